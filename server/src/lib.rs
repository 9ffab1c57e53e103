//! An inference server for local models with context budgeting built into the engine.
//!
//! - [`wire`]: JSON in, canonical values out, and back.
//! - [`http`]: sockets, rules and routes.
//! - [`cli`]: the commands of `plimsoll`.

pub mod cli;
pub mod http;
pub mod wire;
