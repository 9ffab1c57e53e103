//! Wire formats: JSON in, canonical values out, and back.
//!
//! Knows every field of the API and nothing of sockets, tokens or the engine's clock.
//!
//! - [`error`]: everything that can go wrong, and how it looks to a client.
//! - [`fields`]: a JSON object read field by field.
//! - [`messages`]: messages and tools, reduced to canonical ones.
//! - [`parameters`]: what chat and raw completions have in common.
//! - [`chat_request`], [`chat_response`]: `POST /v1/chat/completions`.
//! - [`completion_request`], [`completion_response`]: `POST /v1/completions`.
//! - [`model_list`]: `GET /v1/models`.
//! - [`reply`]: what a generation says, before it has the form of an API.
//! - [`usage`]: the usage object.

pub mod chat_request;
pub mod chat_response;
pub mod completion_request;
pub mod completion_response;
pub mod error;
pub mod fields;
pub mod messages;
pub mod model_list;
pub mod parameters;
pub mod reply;
pub mod usage;
