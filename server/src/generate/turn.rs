//! A request of a conversation on its way to the engine: its session, its compaction, its prompt.
//!
//! Owns the order: what is stopped stays stopped; a compaction that runs is waited for; one that is due is made; then
//! the model is told of its window, and the budget decides. Never writes JSON.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use plimsoll_models::chat::Message;
use plimsoll_models::dialect::ToolsOffered;
use plimsoll_runtime::budget::Tokens;
use plimsoll_runtime::compaction::{Canceller, CompactionError, CompactionTask, Compactor};
use plimsoll_runtime::model_text::{Conversation, Ending, Rendered};
use plimsoll_runtime::sessions::{
    CompactionLock, CompactionRecord, Head, History, LiveTokens, OpenSession, Reading, Session, Trigger, head_len,
};

use super::prepare::prepared;
use super::reply::{Reply, Spoken};
use super::submit::{Prepared, grant, submit};
use crate::catalog::ServedModel;
use crate::http::drain::Phase;
use crate::state::SharedState;
use crate::wire::chat_request::{ChatRequest, CompactAt, CompactionWish};
use crate::wire::error::ServerError;

/// Tokens more than its own that a notice may cost where it joins a message: the text around the seam may be divided in
/// another way.
const SEAM_TOKENS: u32 = 16;

/// A request of a conversation, with its session open.
pub struct TurnTask {
    /// The server.
    pub state: SharedState,
    /// The model.
    pub served: ServedModel,
    /// The request.
    pub request: Arc<ChatRequest>,
    /// Its session, which counts as running until this is dropped.
    pub open: Arc<OpenSession>,
    /// Filled when the reply is under way.
    pub turn: Arc<OnceLock<Turn>>,
}

/// A turn whose reply is under way.
#[derive(Debug)]
pub struct Turn {
    /// What the session's meter shows.
    pub reading: Reading,
    prompt: Vec<u32>,
    lead: Vec<u32>,
    spoken: Spoken,
}

impl Turn {
    /// The reply has been said; `said` are the request's messages and the reply.
    pub fn settle(&self, state: &SharedState, open: &OpenSession, said: &[Message]) {
        let spoken = self.spoken.whole().map(|reply| {
            let live = LiveTokens { tokens: Arc::new([&self.prompt[..], &reply].concat()), closed: false };
            (Arc::from([&self.lead[..], &reply].concat()), live)
        });
        state.sessions.settle_reply(open, said, spoken);
    }
}

impl TurnTask {
    /// Brings the request to the engine. The reply is under way when this ends.
    ///
    /// # Errors
    /// The request cannot be answered; its session is what it was, but for a compaction that succeeded.
    pub async fn start(self) -> Result<Reply, ServerError> {
        let session = &self.open.session;
        // Whoever compacts the session decides what its prompt is.
        let lock = session.compaction_lock().await;
        self.refuse_stopped()?;
        let (mut history, mut rendered) = self.render().await?;
        let mut lock = Some(lock);
        while let Some((held, trigger)) = self.due(rendered.tokens.len()).and_then(|due| Some((lock.take()?, due))) {
            let before = rendered.tokens.len();
            let record = match self.compact(held, trigger).await? {
                Ok(record) => record,
                Err(CompactionError::NothingToReplace) => break,
                Err(CompactionError::Text(error)) => return Err(error.into()),
                Err(CompactionError::Busy | CompactionError::Failed(_)) => {
                    // The session goes on with its old history, if that fits and nobody guards it.
                    self.refuse_stopped()?;
                    break;
                }
            };
            (history, rendered) = self.render().await?;
            // One part of a history beyond the window was folded: the rest may be too long still.
            if record.trigger == Trigger::Fold && rendered.tokens.len() < before {
                lock = Some(session.compaction_lock().await);
            }
        }
        drop(lock);
        if self.tell(rendered.tokens.len()) {
            (history, rendered) = self.render().await?;
        }
        self.submit(history, rendered).await
    }

    fn refuse_stopped(&self) -> Result<(), ServerError> {
        let session = &self.open.session;
        match session.stopped() {
            None => Ok(()),
            Some(reason) => Err(ServerError::SessionStopped { session: session.id().as_str().to_owned(), reason }),
        }
    }

    /// The conversation as the model sees it now.
    async fn render(&self) -> Result<(History, Rendered), ServerError> {
        let (request, open) = (self.request.clone(), self.open.clone());
        let text = self.served.model.text.clone();
        prepared(&self.state, move || {
            let history = open.session.history(&request.messages, &open.links);
            let rendered = text.render(Conversation {
                messages: &history.messages,
                tools: &request.tools,
                variables: &request.template_variables,
                spoken: &history.spoken,
                ending: Ending::Reply,
            })?;
            Ok((history, rendered))
        })
        .await
    }

    /// Whether a prompt of that length is to be compacted first, and why.
    fn due(&self, prompt: usize) -> Option<Trigger> {
        if self.request.extensions.compaction == CompactionWish::Off || self.open.session.breaker_open() {
            return None;
        }
        let by_budget = self.served.budget.compaction.0;
        let (at, trigger) = match (self.request.compact_at, self.served.upkeep.managed) {
            (Some(CompactAt::Tokens(at)), managed) => (if managed { at.min(by_budget) } else { at }, Trigger::Request),
            (Some(CompactAt::Budget), _) => (by_budget, Trigger::Request),
            (None, true) => (by_budget, Trigger::Threshold),
            (None, false) => return None,
        };
        (prompt >= at as usize).then_some(trigger)
    }

    async fn compact(
        &self,
        lock: CompactionLock,
        trigger: Trigger,
    ) -> Result<Result<CompactionRecord, CompactionError>, ServerError> {
        let task = CompactionTask {
            session: self.open.session.clone(),
            messages: Arc::new(self.request.messages.clone()),
            links: Arc::new(self.open.links.clone()),
            tools: Arc::new(self.request.tools.clone()),
            variables: Arc::new(self.request.template_variables.clone()),
            trigger,
            instructions: None,
        };
        compact_apart(&self.state, self.served.compactor(&self.state.request_ids), lock, task).await
    }

    /// Tells the model of its window, where that is due; true: the prompt has changed.
    fn tell(&self, prompt: usize) -> bool {
        let (Some(newest), Some(link)) = (self.request.messages.last(), self.open.links.last()) else { return false };
        if !self.served.upkeep.managed {
            return false;
        }
        let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
        let zone = self.open.session.meter_of(&Reading::of_prompt(self.served.budget.clone(), prompt, 0)).zone;
        // Being told of the window must not be what makes a prompt too long for it.
        let room = self.served.longest_prompt().saturating_sub(prompt).saturating_sub(SEAM_TOKENS);
        let fits = |notice: &str| self.served.model.text.encode_part(notice).len() <= room as usize;
        self.open.session.notify(newest, link, zone, &self.served.budget, fits)
    }

    async fn submit(&self, history: History, rendered: Rendered) -> Result<Reply, ServerError> {
        let Self { state, served, request, open, turn } = self;
        let Rendered { text, tokens: prompt, reply_lead: lead } = rendered;
        let edits = request.edits.iter().chain(&history.edits).cloned().collect();
        let prepared = Prepared {
            tenant: open.session.tenant(),
            prompt: prompt.clone(),
            parameters: &request.parameters,
            cache: request.extensions.cache,
            instruction: served.instruction(),
            edits,
        };
        let granted = grant(state, served, prepared)?;
        let reading = granted.reading.clone();
        let tools = if request.tools.is_empty() { ToolsOffered::No } else { ToolsOffered::Yes };
        let reply = submit(state, served, granted, &request.parameters, request.parallel_calls, || {
            served.model.text.splitter(&text, tools)
        })
        .await?;
        let system = request.messages[..head_len(&request.messages)].to_vec();
        let (tools, variables) = (request.tools.clone(), request.template_variables.clone());
        open.session.set_head(Head { system, tools, variables });
        open.session.set_reading(reading.clone());
        let _ = turn.set(Turn { reading, prompt, lead, spoken: reply.spoken() });
        Ok(reply)
    }
}

/// Compacts in a task of its own, so that a client that goes away does not end what others wait for. The server's end
/// cancels it.
pub async fn compact_apart(
    state: &SharedState,
    compactor: Compactor,
    lock: CompactionLock,
    task: CompactionTask,
) -> Result<Result<CompactionRecord, CompactionError>, ServerError> {
    let drain = state.drain.clone();
    let running = drain.request();
    let work = tokio::spawn(async move {
        let _running = running;
        let (canceller, cancel) = Canceller::new();
        let closing = async {
            drain.reached(Phase::Closing).await;
            canceller.cancel();
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            outcome = compactor.compact(&lock, task, cancel) => outcome,
            never = closing => match never {},
        }
    });
    work.await.map_err(|panic| {
        tracing::error!("a compaction panicked: {panic}");
        ServerError::Internal
    })
}

/// What a compaction by hand works on: the session's newest conversation.
pub fn task_by_hand(state: &SharedState, session: &Arc<Session>, instructions: Option<String>) -> CompactionTask {
    let head = session.head().map(|head| (*head).clone()).unwrap_or_default();
    let messages = session.newest_conversation();
    let links = state.sessions.links(session, &messages);
    CompactionTask {
        session: session.clone(),
        messages: Arc::new(messages),
        links: Arc::new(links),
        tools: Arc::new(head.tools),
        variables: Arc::new(head.variables),
        trigger: Trigger::Hand,
        instructions,
    }
}

/// The meter of a conversation after a compaction by hand: its new prompt, which lies in the cache.
pub fn reading_after(served: &ServedModel, record: &CompactionRecord) -> Option<Reading> {
    let Tokens(after) = record.tokens_after?;
    Some(Reading::of_prompt(served.budget.clone(), after, after))
}
