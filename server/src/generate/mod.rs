//! From a request to its reply: the output pipeline.
//!
//! token -> bytes -> UTF-8 -> stop strings -> reasoning / tool calls -> wire. Each stage holds back only what could
//! still change meaning. Streams and whole answers are made of the same updates, so they are equal.
//!
//! - [`choice`]: the pipeline of one choice.
//! - [`reply`]: all choices of one prompt, as the engine generates them.
//! - [`submit`]: the budget, the session and the engine, in this order.
//! - [`prepare`]: rendering and encoding, a few at a time.
//! - [`turn`]: a request of a conversation: its session, its compaction, its prompt.
//! - [`deliver`]: updates as one object or as server-sent events, with keep-alives.

pub mod choice;
pub mod deliver;
pub mod prepare;
pub mod reply;
pub mod submit;
pub mod turn;
