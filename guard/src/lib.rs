//! The guard: a deterministic state machine over tool calls and their results.
