//! Sessions: which conversation a request belongs to, what stands in the place of its compacted part, and what is
//! written down about it.
//!
//! - [`chain`]: the digests by which a conversation is recognised.
//! - [`effective_form`]: what takes the place of a replaced part.
//! - [`compaction_record`]: what is written down about a compaction.
//! - [`store`]: the SQLite file, owned by one thread that commits what is queued together.
//! - [`head`]: what stands before the first turn.
//! - [`history`]: a conversation as it is rendered.
//! - [`notice`]: what the model is told about its window.
//! - [`reading`]: what a session's meter is computed from.
//! - [`session`]: one conversation: its turns, forms, records, and the lock of its compactions.
//! - [`book`]: all sessions.

pub mod book;
pub mod chain;
pub mod compaction_record;
pub mod effective_form;
pub mod head;
pub mod history;
pub mod notice;
pub mod reading;
pub mod session;
pub mod store;

pub use book::{Asked, LiveTokens, OpenSession, Recovery, SESSIONS_LIMIT, SessionBook};
pub use chain::{ChainEnd, ChainKey, Link, SessionId, head_len};
pub use compaction_record::{CompactionId, CompactionRecord, CompactionState, FailureReason, SpanRef, Trigger};
pub use effective_form::{Checkpoint, EffectiveForm};
pub use head::Head;
pub use history::History;
pub use reading::{LiveCounts, Reading};
pub use session::{CompactionLock, Live, Session};
pub use store::StoreError;
