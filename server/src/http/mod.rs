//! Sockets, rules and routes.
//!
//! - [`listener`]: accepts connections within limits.
//! - [`host_rule`], [`auth`]: who may ask.
//! - [`json_body`]: bodies within limits.
//! - [`panic_guard`]: a panic is a 500 for one request.
//! - [`drain`]: how a server ends.

pub mod auth;
pub mod drain;
pub mod host_rule;
pub mod json_body;
pub mod listener;
pub mod panic_guard;
