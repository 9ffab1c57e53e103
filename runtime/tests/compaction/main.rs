//! What a compaction promises: the old history or the new one, never a mix, from the live cache, on stable storage.
//!
//! - [`desk`]: an engine, its text side and a book of sessions, and a client that resends its whole history.
//! - [`scripted`]: every outcome, with the simulated engine's scripted summaries.
//! - [`real_model`]: the same road with SmolLM2.

mod desk;
mod real_model;
mod scripted;
