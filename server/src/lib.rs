//! An inference server for local models with context budgeting built into the engine.
