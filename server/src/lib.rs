//! An inference server for local models with context budgeting built into the engine.
//!
//! - [`wire`]: JSON in, canonical values out, and back.
//! - [`generate`]: from a request to its reply.
//! - [`session_name`]: what a client calls its session.
//! - [`catalog`]: what is served under which name.
//! - [`data_folder`]: where sessions outlive the server.
//! - [`http`]: sockets, and the rules of the door.
//! - [`routes`]: the endpoints.
//! - [`state`]: what all handlers share.
//! - [`load`]: from names to running engines.
//! - [`preset_budget`]: the budget of a preset.
//! - [`serving`]: a server's life.
//! - [`cli`]: the commands of `plimsoll`.

pub mod catalog;
pub mod cli;
pub mod data_folder;
pub mod generate;
pub mod http;
pub mod load;
pub mod preset_budget;
pub mod routes;
pub mod serving;
pub mod session_name;
pub mod state;
pub mod wire;
