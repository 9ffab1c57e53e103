//! Who compacts: a served model's engine, text and window, and what they are asked to do.
//!
//! Owns how a history becomes tokens and what a summary may cost. Never changes a session itself.

use std::sync::Arc;

use plimsoll_kernels::PAGE_TOKENS;
use plimsoll_models::chat::{Message, Tool};
use plimsoll_models::preset::Fallback;
use serde_json::{Map, Value};

use super::instruction::INSTRUCTION;
use super::step::FaultPlan;
use crate::budget::{Budget, SummaryTooSmall, Tokens};
use crate::engine::{EngineHandle, RequestIds};
use crate::model_text::{Conversation, Ending, ModelText, TextError};
use crate::sessions::{CompactionRecord, CompactionState, History, Link, Session, Trigger};

/// Compacts sessions of one served model.
#[derive(Clone)]
pub struct Compactor {
    /// The engine that holds the sessions' sequences.
    pub engine: EngineHandle,
    /// The text side of its model.
    pub text: Arc<dyn ModelText>,
    /// The window.
    pub budget: Arc<Budget>,
    /// What fills a section that the model failed at.
    pub fallback: Fallback,
    /// Whether a failure stops the session.
    pub guarded: bool,
    /// Names for requests to the engine.
    pub ids: RequestIds,
    /// Faults, in tests.
    pub faults: FaultPlan,
}

/// What is to be compacted.
#[derive(Clone, Debug)]
pub struct CompactionTask {
    /// Whose conversation.
    pub session: Arc<Session>,
    /// The conversation as the client has it.
    pub messages: Arc<Vec<Message>>,
    /// The digests of its turns.
    pub links: Arc<Vec<Link>>,
    /// Tools the model is told of.
    pub tools: Arc<Vec<Tool>>,
    /// Variables of the template.
    pub variables: Arc<Map<String, Value>>,
    /// Why.
    pub trigger: Trigger,
    /// What the model is told in place of the usual instruction; then there are no sections.
    pub instructions: Option<String>,
}

/// Why there was no compaction.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CompactionError {
    #[error("there is no finished turn that could be replaced")]
    NothingToReplace,
    #[error("the session is compacted already; wait for that to end")]
    Busy,
    #[error("the conversation cannot be rendered: {0}")]
    Text(#[from] TextError),
    /// It was begun, or could not be paid for; the record says why it ended.
    #[error("{}", failure_of(.0))]
    Failed(Box<CompactionRecord>),
}

pub(super) fn failure_of(record: &CompactionRecord) -> &str {
    match &record.state {
        CompactionState::Failed { message, .. } => message,
        _ => "the compaction did not end",
    }
}

/// The instruction as it is appended to a conversation.
#[derive(Clone, Debug)]
pub(super) struct Appended {
    /// What closes an open reply; empty where the last turn is closed.
    pub(super) reply_end: Vec<u32>,
    /// The instruction in its frame, and the beginning of the reply.
    pub(super) instruction: Vec<u32>,
    /// The end of all this as text.
    pub(super) end: String,
}

impl std::fmt::Debug for Compactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compactor(window {}, guarded {})", self.budget.window, self.guarded)
    }
}

impl Compactor {
    /// Tokens of the instruction and its frame, as they are appended to a conversation: what an admission sets aside.
    /// Without a frame the number is an estimate from above.
    pub fn instruction_tokens(&self) -> u32 {
        let appended = self.appended(INSTRUCTION);
        let count = appended.map_or_else(
            || self.text.encode_part(INSTRUCTION).len() + 64,
            |appended| appended.reply_end.len() + appended.instruction.len(),
        );
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The instruction in its frame; `None` where the template frames turns in no way that can be appended to.
    pub(super) fn appended(&self, instruction: &str) -> Option<Appended> {
        let frame = self.text.turn_frame()?;
        let tokens = [&frame.user_begin[..], &self.text.encode_part(instruction), &frame.reply_begin].concat();
        Some(Appended { reply_end: frame.reply_end.clone(), instruction: tokens, end: frame.reply_begin_text.clone() })
    }

    fn capacity(&self) -> Tokens {
        let geometry = self.engine.geometry();
        let capacity = geometry.max_context.min(geometry.pages * PAGE_TOKENS);
        Tokens(u32::try_from(capacity).unwrap_or(u32::MAX))
    }

    pub(super) fn price(&self, input: usize) -> Result<Tokens, SummaryTooSmall> {
        self.budget.summary_cap(Tokens(u32::try_from(input).unwrap_or(u32::MAX)), self.capacity(), None)
    }

    /// Runs work for a processor aside.
    pub(super) async fn aside<T: Send + 'static>(&self, work: impl FnOnce(&dyn ModelText) -> T + Send + 'static) -> T {
        let text = self.text.clone();
        match tokio::task::spawn_blocking(move || work(&*text)).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// The first `places` messages of a history as tokens.
    pub(super) async fn render(
        &self,
        task: &CompactionTask,
        history: &Arc<History>,
        places: usize,
        ending: Ending,
    ) -> Result<Vec<u32>, TextError> {
        let (history, tools, variables) = (history.clone(), task.tools.clone(), task.variables.clone());
        self.aside(move |text| {
            let conversation = Conversation {
                messages: &history.messages[..places],
                tools: &tools,
                variables: &variables,
                spoken: &history.spoken[..places],
                ending,
            };
            text.render(conversation).map(|rendered| rendered.tokens)
        })
        .await
    }
}
