//! An inference server for local models with context budgeting built into the engine.
//!
//! - [`cli`]: the commands of `plimsoll`.

pub mod cli;
