//! What is written down about a compaction, from its start to its end.
//!
//! The record is the same in the store and on the wire. It holds numbers, the summary's text and reasons; it never
//! holds the conversation.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::chain::{ChainEnd, SessionId, hexadecimal, random_bytes};
use crate::budget::Tokens;

/// A compaction's name on the wire: `cmp_` and 24 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CompactionId(String);

impl CompactionId {
    /// An id nobody had before.
    pub fn random() -> Self {
        Self(format!("cmp_{}", hexadecimal(&random_bytes::<12>())))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CompactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a conversation was compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// Its prompt reached the preset's threshold.
    Threshold,
    /// The request asked for it.
    Request,
    /// A person asked for it.
    Hand,
    /// It did not fit the window and no earlier compaction of it was known.
    Fold,
}

/// Why a compaction changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureReason {
    /// Somebody cancelled it.
    Cancelled,
    /// The process ended while it ran.
    Interrupted,
    /// There was no balanced part that could be replaced.
    NothingToReplace,
    /// The window held too little room for a summary.
    NoRoom,
    /// The summary was ended by its cap.
    Truncated,
    /// The summary held no text.
    Empty,
    /// A section of the summary was missing or held no complete line.
    MissingSection,
    /// The summary called a tool.
    ToolCall,
    /// The summary said the same line over and over.
    Repetition,
    /// The summary was not smaller than what it was to replace.
    NotSmaller,
    /// The prompt would still have been too long afterwards.
    TooLarge,
    /// The engine failed or refused.
    Engine,
    /// The store could not keep what had to be kept.
    Store,
    /// The conversation changed while it was summarised.
    SpanChanged,
}

impl FailureReason {
    /// Whether the failure counts towards switching automatic compaction off: a cancelled or interrupted compaction
    /// says nothing about the next one.
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Cancelled | Self::Interrupted)
    }
}

/// How far a compaction came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum CompactionState {
    /// The summary is being written.
    Started,
    /// The summary was accepted and is kept; the history is still the old one.
    Summarised,
    /// The effective form has taken the history's place.
    Replaced,
    /// The history is what it was.
    Failed {
        /// Why.
        reason: FailureReason,
        /// The same for people, with numbers.
        message: String,
    },
}

impl CompactionState {
    /// The word that the record's `state` holds.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Summarised => "summarised",
            Self::Replaced => "replaced",
            Self::Failed { .. } => "failed",
        }
    }
}

/// The turns that a compaction replaces: the first `turns` behind the leading system messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanRef {
    /// How many; at least 1.
    pub turns: u32,
    /// The digest of the conversation behind them.
    pub end: ChainEnd,
    /// The same without the contents of tool results.
    pub pruned: ChainEnd,
}

/// The record of one compaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionRecord {
    /// Its name.
    pub id: CompactionId,
    /// Whose conversation.
    pub session: SessionId,
    /// The model that wrote the summary.
    pub model: String,
    /// Why it was made.
    pub trigger: Trigger,
    /// Whether the summary was read from the session's live cache; otherwise the conversation was prefilled again.
    pub live: bool,
    /// How far it came.
    #[serde(flatten)]
    pub state: CompactionState,
    /// What it replaces.
    pub span: SpanRef,
    /// Most tokens of the summary.
    pub cap: Tokens,
    /// Tokens of the prompt before.
    pub tokens_before: Tokens,
    /// Tokens of the prompt after, once known.
    pub tokens_after: Option<Tokens>,
    /// Tokens of the summary.
    pub summary_tokens: Tokens,
    /// Tokens of the instruction, its frame included.
    pub instruction_tokens: Tokens,
    /// Tokens that were prefilled for the summary; with `live`, the instruction's alone.
    pub prefilled_tokens: Tokens,
    /// How many summaries were written.
    pub attempts: u32,
    /// The summary's text, as soon as there is one; with a failure it is evidence.
    pub summary: Option<String>,
    /// Sections that were filled with facts because the model wrote nothing usable.
    pub fallback_sections: Vec<String>,
    /// What was left out or shortened, in sentences.
    pub edits: Vec<String>,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// How long the session stood still, in milliseconds.
    pub pause_ms: u64,
    /// Of this, writing the summary.
    pub summary_ms: u64,
    /// Of this, reading the new prompt.
    pub reprefill_ms: u64,
    /// Whether the summary was made ahead of time.
    pub prepared: bool,
}

impl CompactionRecord {
    /// A record of a compaction that begins at this moment, with every number still 0.
    pub fn started(session: SessionId, model: impl Into<String>, trigger: Trigger, span: SpanRef) -> Self {
        Self {
            id: CompactionId::random(),
            session,
            model: model.into(),
            trigger,
            live: true,
            state: CompactionState::Started,
            span,
            cap: Tokens(0),
            tokens_before: Tokens(0),
            tokens_after: None,
            summary_tokens: Tokens(0),
            instruction_tokens: Tokens(0),
            prefilled_tokens: Tokens(0),
            attempts: 0,
            summary: None,
            fallback_sections: Vec::new(),
            edits: Vec::new(),
            started_ms: unix_ms(),
            pause_ms: 0,
            summary_ms: 0,
            reprefill_ms: 0,
            prepared: false,
        }
    }
}

/// Milliseconds since 1970; 0 on a machine whose clock is before that.
pub(super) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TenantId;
    use crate::sessions::ChainKey;
    use plimsoll_models::chat::{Message, Role};

    #[test]
    fn a_record_reads_back_what_it_wrote_and_its_state_is_a_word_beside_its_numbers() {
        let link = ChainKey::random().links(TenantId(1), "m", &[Message::text(Role::User, "hi")])[0];
        let span = SpanRef { turns: 1, end: link.end, pruned: link.pruned };
        let mut record = CompactionRecord::started(SessionId::random(), "m", Trigger::Hand, span);
        for state in [
            CompactionState::Started,
            CompactionState::Replaced,
            CompactionState::Failed { reason: FailureReason::NotSmaller, message: "12 >= 11".into() },
        ] {
            record.state = state;
            let json = serde_json::to_value(&record).unwrap();
            assert_eq!(json["state"], record.state.as_str());
            assert_eq!(json["span"]["turns"], 1);
            assert_eq!(serde_json::from_value::<CompactionRecord>(json).unwrap(), record);
        }
        assert_eq!(serde_json::to_value(&record).unwrap()["reason"], "not_smaller");
    }
}
