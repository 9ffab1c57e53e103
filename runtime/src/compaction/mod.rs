//! Compaction inside the engine: one transaction that turns a long conversation into a short one, or changes nothing.
//!
//! The summary is written from the live sequence: its tokens stay in the cache, the instruction is appended to them as
//! tokens, and nothing of the conversation is prefilled again. The engine writes the skeleton of headings, the model the
//! lines below them.
//!
//! - [`compactor`]: who compacts what.
//! - [`transaction`]: the steps, in their order, and the only place that changes a session.
//! - [`balanced_cuts`] and [`settle`]: which turns are replaced.
//! - [`instruction`]: what the model is asked, and the sections.
//! - [`summary_writer`]: writes the sections together with the model; [`free_writer`]: a summary in the form that a
//!   request's own instructions ask for; [`thinking`]: what a model thinks first; [`draft`]: what both have written.
//! - [`facts`]: what the engine reads out of a conversation by itself.
//! - [`acceptance`]: whether a draft is a summary.
//! - [`form_builder`]: what takes the place of the turns.
//! - [`step`]: the names of the steps, faults at them, and how a compaction is cancelled.

pub mod acceptance;
pub mod balanced_cuts;
pub mod compactor;
pub mod draft;
pub mod facts;
pub mod form_builder;
pub mod free_writer;
pub mod instruction;
pub mod settle;
pub mod step;
pub mod summary_writer;
pub mod thinking;
pub mod transaction;

pub use compactor::{CompactionError, CompactionTask, Compactor};
pub use step::{Cancel, Canceller, FaultPlan, Step, UnknownStep};
