//! The guard: a deterministic state machine over tool calls and their results.
//!
//! It decides whether the next tool call of a session may run, from what executors saw and never from what the model
//! says. It does no input or output, owns no clock (time is passed in, in milliseconds), and knows nothing of HTTP or
//! models.
//!
//! The policy is a later step: the types here are final enough for presets to carry limits and for callers to ask, and
//! **every call is allowed**; nothing is denied and no limit is enforced.
//!
//! - [`limits`]: what a preset allows.
//! - [`facts`]: what was seen of a call, and by whom.
//! - [`decision`]: what the guard answers.
//! - [`guard`]: the guard of one session.

pub mod decision;
pub mod facts;
pub mod guard;
pub mod limits;

pub use decision::{Decision, GuardState, GuardStatus};
pub use facts::{Call, ChangedFile, Evidence, Facts, Job, JobState};
pub use guard::Guard;
pub use limits::{AfterDiagnosis, Ceiling, EvidenceMode, GuardLimits, Positive, Similarity};
