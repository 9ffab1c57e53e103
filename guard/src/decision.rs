//! What the guard answers.
//!
//! Types only, in the words of the wire format.

use serde::{Deserialize, Serialize};

/// What a session may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardState {
    /// Everything the limits allow.
    #[default]
    Normal,
    /// Read-only calls, a few, for a while.
    Diagnostic,
    /// Nothing until a new user message.
    Paused,
    /// Nothing until a new user message.
    Stopped,
}

/// Whether a call may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
#[must_use]
pub enum Decision {
    /// It may.
    Allow,
    /// It may not.
    Deny {
        /// Why, in one sentence for people and models.
        reason: String,
    },
}

/// The `guard` object of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardStatus {
    /// What the session may do.
    pub state: GuardState,
    /// Why it may not do everything.
    pub reason: Option<String>,
    /// Calls without progress so far.
    pub no_progress: u64,
    /// Calls since the last user message.
    pub calls: u64,
    /// Ids of the calls that were denied in this answer.
    pub denied: Vec<String>,
}
