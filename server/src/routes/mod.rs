//! The endpoints, a file for each kind, and the router that puts them behind the door.
//!
//! - [`router`]: paths, and what every request passes through.
//! - [`chat_completions`], [`completions`]: generation.
//! - [`answer`]: the end that both share.
//! - [`models`]: what is served.
//! - [`tokens`]: text to tokens and back, and the rendered prompt.
//! - [`context`]: the meters of live sessions.
//! - [`probes`]: health, readiness, version.

pub mod answer;
pub mod chat_completions;
pub mod completions;
pub mod context;
pub mod models;
pub mod probes;
pub mod router;
pub mod sessions;
pub mod tokens;
