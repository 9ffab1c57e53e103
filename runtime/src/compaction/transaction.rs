//! The transaction: settle, price, start, summarise, accept, persist, re-check, replace, release and read again.
//!
//! Until "replaced" is on stable storage the history is what it was; a failure anywhere before leaves it so, and says
//! why in a record. The one place that writes a session's records and forms. Never talks to a client.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_kernels::PAGE_TOKENS;
use plimsoll_models::chat::{Message, Role, Tool};
use plimsoll_models::preset::Fallback;
use serde_json::{Map, Value};

use super::acceptance::{self, Rejection, Written};
use super::draft::SharedDraft;
use super::facts::Facts;
use super::form_builder::{self, Built, Room, ToolOutputs};
use super::free_writer::FreeWriter;
use super::instruction::INSTRUCTION;
use super::settle::balanced_cuts;
use super::step::{Cancel, FaultPlan, Step};
use super::summary_writer::{OnToolCall, SummaryWriter};
use crate::budget::{Budget, Ratio, SummaryTooSmall, Tokens};
use crate::engine::{
    CachePolicy, EngineHandle, Event, FinishReason, Generation, GenerationRequest, Guide, Purpose, RequestIds,
    SamplingParams, TenantId, Terminal, Usage,
};
use crate::model_text::{Conversation, Ending, ModelText, TextError};
use crate::sessions::{
    Checkpoint, CompactionLock, CompactionRecord, CompactionState, EffectiveForm, FailureReason, History, Link, Live,
    Session, SpanRef, StoreError, Trigger,
};

/// The part of the way from the head to the compaction threshold that a new prompt may take.
const NEW_PROMPT_SHARE: Ratio = Ratio::new(4, 1);
/// The part of the window that kept messages of the user may take.
const KEPT_SHARE: Ratio = Ratio::new(5, 2);

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

fn failure_of(record: &CompactionRecord) -> &str {
    match &record.state {
        CompactionState::Failed { message, .. } => message,
        _ => "the compaction did not end",
    }
}

/// The instruction as it is appended to a conversation.
#[derive(Clone, Debug)]
struct Appended {
    /// What closes an open reply; empty where the last turn is closed.
    reply_end: Vec<u32>,
    /// The instruction in its frame, and the beginning of the reply.
    instruction: Vec<u32>,
    /// The end of all this as text.
    end: String,
}

/// The turns that are replaced, as the engine has them.
#[derive(Clone, Debug)]
struct Settled {
    /// Turns in front of the cut.
    turns: usize,
    /// The conversation up to the cut, without the instruction.
    base: Vec<u32>,
    /// Whether its last turn is closed in `base`.
    closed: bool,
    /// How many of its first tokens lie in the cache, if the session is live there.
    live: Option<usize>,
    /// Whether nothing newer could be paid for.
    folded: bool,
}

/// A generation that did not end well.
enum Ended {
    Cancelled,
    Engine(String),
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

    /// Compacts the session whose lock is held: all of it or nothing.
    ///
    /// # Errors
    /// See [`CompactionError`]; the history is then what it was.
    pub async fn compact(
        &self,
        lock: &CompactionLock,
        task: CompactionTask,
        cancel: Cancel,
    ) -> Result<CompactionRecord, CompactionError> {
        let _held = lock;
        let began = Instant::now();
        let history = Arc::new(task.session.history(&task.messages, &task.links));
        let settled = self.settle(&task, &history).await?;
        let link = task.links[settled.turns - 1];
        let span = SpanRef { turns: settled.turns as u32, end: link.end, pruned: link.pruned };
        let trigger = if settled.folded { Trigger::Fold } else { task.trigger };
        let mut record = CompactionRecord::started(task.session.id().clone(), task.session.model(), trigger, span);
        record.live = settled.live.is_some();
        record.edits.clone_from(&history.edits);
        let (branches, read_before) = (Vec::new(), Tokens(0));
        let mut transaction =
            Transaction { compactor: self, task, history, settled, record, branches, read_before, cancel, began };
        match transaction.run().await {
            Ok(()) => Ok(transaction.record),
            Err(Rejection { reason, message }) => {
                let mut record = transaction.record;
                record.state = CompactionState::Failed { reason, message };
                record.pause_ms = millis(began);
                let stop = self.guarded && reason.counts();
                if let Err(error) = transaction.task.session.record_failed(&record, stop).await {
                    tracing::error!(session = %record.session, %error, "a failed compaction could not be recorded");
                }
                tracing::warn!(session = %record.session, compaction = %record.id, "{}", failure_of(&record));
                Err(CompactionError::Failed(Box::new(record)))
            }
        }
    }

    /// The instruction in its frame; `None` where the template frames turns in no way that can be appended to.
    fn appended(&self, instruction: &str) -> Option<Appended> {
        let frame = self.text.turn_frame()?;
        let tokens = [&frame.user_begin[..], &self.text.encode_part(instruction), &frame.reply_begin].concat();
        Some(Appended { reply_end: frame.reply_end.clone(), instruction: tokens, end: frame.reply_begin_text.clone() })
    }

    fn capacity(&self) -> Tokens {
        let geometry = self.engine.geometry();
        let capacity = geometry.max_context.min(geometry.pages * PAGE_TOKENS);
        Tokens(u32::try_from(capacity).unwrap_or(u32::MAX))
    }

    fn price(&self, input: usize) -> Result<Tokens, SummaryTooSmall> {
        self.budget.summary_cap(Tokens(u32::try_from(input).unwrap_or(u32::MAX)), self.capacity(), None)
    }

    /// Runs work for a processor aside.
    async fn aside<T: Send + 'static>(&self, work: impl FnOnce(&dyn ModelText) -> T + Send + 'static) -> T {
        let text = self.text.clone();
        match tokio::task::spawn_blocking(move || work(&*text)).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// The first `places` messages of a history as tokens.
    async fn render(
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

    /// Chooses the turns: the newest balanced cut that a summary can be paid for.
    async fn settle(&self, task: &CompactionTask, history: &Arc<History>) -> Result<Settled, CompactionError> {
        let turns = &task.messages[history.head..];
        let cuts = balanced_cuts(turns, history.replaced_turns);
        let Some(newest) = cuts.first().copied() else { return Err(CompactionError::NothingToReplace) };
        let live = task.session.live();
        let instruction = task.instructions.as_deref().unwrap_or(INSTRUCTION).to_owned();
        let instruction = self.aside(move |text| text.encode_part(&instruction).len()).await;
        let framed = |base: usize, closed: bool| {
            let frame = self.text.turn_frame().map_or(64, |frame| {
                let end = if closed { 0 } else { frame.reply_end.len() };
                end + frame.user_begin.len() + frame.reply_begin.len()
            });
            base + frame + instruction
        };
        let at_live = |turns: usize| {
            let live = live.as_ref().filter(|live| live.end == task.links[turns - 1].end)?;
            (live.closed || self.text.turn_frame().is_some()).then(|| Settled {
                turns,
                base: live.tokens.to_vec(),
                closed: live.closed,
                live: Some(live.tokens.len()),
                folded: false,
            })
        };
        if let Some(settled) = at_live(newest)
            && self.price(framed(settled.base.len(), settled.closed)).is_ok()
        {
            return Ok(settled);
        }
        // Results that have just arrived, or a conversation that is not in the cache.
        let rendered = async |turns: usize| -> Result<Settled, TextError> {
            let base = self.render(task, history, history.place_of_turn(turns), Ending::History).await?;
            let live =
                live.as_ref().map(|live| &live.tokens).filter(|live| base.starts_with(live)).map(|live| live.len());
            Ok(Settled { turns, base, closed: true, live, folded: false })
        };
        let settled = rendered(newest).await?;
        if self.price(framed(settled.base.len(), true)).is_ok() {
            return Ok(settled);
        }
        // The longest part in front of it that can be paid for.
        let mut best: Option<Settled> = None;
        let (mut low, mut high) = (1, cuts.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let candidate = match at_live(cuts[middle]) {
                Some(settled) => settled,
                None => rendered(cuts[middle]).await?,
            };
            if self.price(framed(candidate.base.len(), candidate.closed)).is_ok() {
                best = Some(Settled { folded: true, ..candidate });
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        // Where no part can be paid for, the record of the newest says so.
        Ok(best.unwrap_or(settled))
    }
}

struct Transaction<'a> {
    compactor: &'a Compactor,
    task: CompactionTask,
    history: Arc<History>,
    settled: Settled,
    record: CompactionRecord,
    /// Sequences behind the base whose first page holds the base's last tokens too, and so outlives them.
    branches: Vec<Vec<u32>>,
    /// What had to be read for the conversation itself, because it was no longer in the cache.
    read_before: Tokens,
    cancel: Cancel,
    began: Instant,
}

/// A summary with its place, measured.
struct Accepted {
    form: EffectiveForm,
    edits: Vec<String>,
    fallback_sections: Vec<String>,
}

impl Transaction<'_> {
    async fn run(&mut self) -> Result<(), Rejection> {
        self.reached(Step::Locked).await?;
        self.reached(Step::Settled).await?;
        let whole = self.rendered(self.history.messages.len(), Ending::Reply).await?;
        self.record.tokens_before = tokens(whole.len());
        let appended = self.append().await?;
        let mut prompt = self.settled.base.clone();
        prompt.extend_from_slice(&appended.reply_end);
        prompt.extend_from_slice(&appended.instruction);
        self.record.instruction_tokens = tokens(appended.reply_end.len() + appended.instruction.len());
        let cap = self
            .compactor
            .price(prompt.len())
            .map_err(|small| Rejection::new(FailureReason::NoRoom, small.to_string()))?;
        self.record.cap = cap;
        self.reached(Step::Priced).await?;
        self.task.session.record_started(&self.record).await.map_err(|error| store_failed(&error))?;
        self.reached(Step::Started).await?;

        if let Some(live) = self.settled.live.filter(|_| self.settled.closed) {
            // Results that have just arrived are the ordinary continuation of the live sequence.
            let usage = self.read_into_cache(self.settled.base.clone()).await.map_err(rejected)?;
            if usage.prefilled as usize > self.settled.base.len() - live + 1 {
                // It was evicted in the meantime.
                self.record.live = false;
                self.read_before = Tokens(usage.prefilled);
            }
            let end = self.record.span.end;
            let tokens = Arc::new(self.settled.base.clone());
            self.task.session.set_live(Live { tokens, end, closed: true });
        }
        let mut cap = cap;
        let mut outputs = ToolOutputs::Whole;
        let accepted = loop {
            let draft = self.summarise(&prompt, cap, &appended.end).await?;
            self.reached(Step::Summarised).await?;
            match self.accept(&draft, cap, outputs).await {
                Err(Rejection { reason: FailureReason::TooLarge, .. }) if outputs == ToolOutputs::Whole => {
                    outputs = ToolOutputs::Cleared;
                    match self.accept(&draft, cap, outputs).await {
                        Err(Rejection { reason: FailureReason::TooLarge, .. }) => {}
                        accepted => break accepted?,
                    }
                    cap = Tokens((cap.0 / 2).max(self.compactor.budget.summary_min.0));
                }
                accepted => break accepted?,
            }
        };
        self.reached(Step::Accepted).await?;

        self.record.edits.extend(accepted.edits);
        self.record.fallback_sections = accepted.fallback_sections;
        self.record.state = CompactionState::Summarised;
        self.task.session.record_summarised(&self.record).await.map_err(|error| store_failed(&error))?;
        self.reached(Step::Persisted).await?;

        let unchanged = {
            let history = self.task.session.history(&self.task.messages, &self.task.links);
            let id = |history: &History| history.form.as_ref().map(|form| form.checkpoint.id.clone());
            id(&history) == id(&self.history) && history.replaced_turns == self.history.replaced_turns
        };
        if !unchanged {
            return Err(Rejection::new(FailureReason::SpanChanged, "another form took the place of these turns"));
        }
        self.reached(Step::Rechecked).await?;

        self.record.state = CompactionState::Replaced;
        self.record.pause_ms = millis(self.began);
        let replaced = self.task.session.replace(&self.record, &accepted.form).await;
        replaced.map_err(|error| store_failed(&error))?;
        // From here on the new history is the history, whatever happens.
        let _ = self.reached_after_replacing(Step::Replaced).await;
        self.release_and_read_again().await;
        let _ = self.reached_after_replacing(Step::Measured).await;
        tracing::info!(
            session = %self.record.session,
            compaction = %self.record.id,
            before = self.record.tokens_before.0,
            after = self.record.tokens_after.map(|after| after.0),
            summary = self.record.summary_tokens.0,
            prefilled = self.record.prefilled_tokens.0,
            ms = self.record.pause_ms,
            "a session was compacted"
        );
        Ok(())
    }

    /// Behind each step a compaction may be cancelled, and faults are injected.
    async fn reached(&mut self, step: Step) -> Result<(), Rejection> {
        if let Some((_, pause)) = self.compactor.faults.pause.filter(|(at, _)| *at == step) {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.cancel.cancelled() => {}
            }
        }
        if self.cancel.is_cancelled() {
            return Err(Rejection::new(FailureReason::Cancelled, format!("cancelled behind the step `{step}`")));
        }
        if self.compactor.faults.fail == Some(step) {
            return Err(Rejection::new(FailureReason::Store, format!("the fault behind the step `{step}`")));
        }
        Ok(())
    }

    /// There is nothing left to cancel.
    async fn reached_after_replacing(&mut self, step: Step) -> Option<()> {
        let (_, pause) = self.compactor.faults.pause.filter(|(at, _)| *at == step)?;
        tokio::time::sleep(pause).await;
        Some(())
    }

    async fn rendered(&self, places: usize, ending: Ending) -> Result<Vec<u32>, Rejection> {
        let rendered = self.compactor.render(&self.task, &self.history, places, ending).await;
        rendered.map_err(|error| Rejection::new(FailureReason::Engine, error.to_string()))
    }

    fn cut(&self) -> usize {
        self.history.place_of_turn(self.settled.turns)
    }

    /// The instruction as tokens behind the base. Where turns cannot be appended, both are rendered as a whole, and what
    /// differs from the base counts as the instruction.
    async fn append(&mut self) -> Result<Appended, Rejection> {
        let instruction = self.task.instructions.clone().unwrap_or_else(|| INSTRUCTION.to_owned());
        if let Some(mut appended) = self.compactor.appended(&instruction) {
            if self.settled.closed {
                appended.reply_end.clear();
            }
            return Ok(appended);
        }
        let cut = self.cut();
        let mut history = (*self.history).clone();
        history.messages.truncate(cut);
        history.spoken.truncate(cut);
        history.messages.push(Message::text(Role::User, instruction));
        history.spoken.push(None);
        let history = Arc::new(history);
        let rendered = self.compactor.render(&self.task, &history, cut + 1, Ending::Reply).await;
        let whole = rendered.map_err(|error| Rejection::new(FailureReason::Engine, error.to_string()))?;
        let common = whole.iter().zip(&self.settled.base).take_while(|(one, other)| one == other).count();
        self.settled.base.truncate(common);
        let end = self.compactor.text.decode(&whole[whole.len().saturating_sub(32)..]);
        Ok(Appended { reply_end: Vec::new(), instruction: whole[common..].to_vec(), end })
    }

    fn request(
        &self,
        prompt: Vec<u32>,
        cap: u32,
        purpose: Purpose,
        guide: Option<Box<dyn Guide>>,
    ) -> GenerationRequest {
        GenerationRequest {
            id: self.compactor.ids.next(),
            tenant: self.tenant(),
            prompt,
            reply_cap: cap,
            reserve_beyond: 0,
            n: 1,
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            end_tokens: Vec::new(),
            min_tokens: 0,
            ignore_end: false,
            banned: self.compactor.text.banned().to_vec(),
            cache: CachePolicy::Default,
            purpose,
            guide,
        }
    }

    fn tenant(&self) -> TenantId {
        self.task.session.tenant()
    }

    /// Reads a prompt into the prefix cache.
    async fn read_into_cache(&mut self, prompt: Vec<u32>) -> Result<Usage, Ended> {
        let request = self.request(prompt, 1, Purpose::Warm, None);
        let generation = self.compactor.engine.submit(request);
        ended(generation, Some(&mut self.cancel)).await.map(|(usage, _, _)| usage)
    }

    /// One summary, written from the live sequence. What it appended to the cache is forgotten again.
    async fn summarise(&mut self, prompt: &[u32], cap: Tokens, prompt_end: &str) -> Result<SharedDraft, Rejection> {
        let began = Instant::now();
        let draft = SharedDraft::default();
        let text = self.compactor.text.clone();
        let on_tool_call = match self.compactor.fallback {
            Fallback::None => OnToolCall::End,
            Fallback::Facts => OnToolCall::EndSection,
        };
        let (custom, cap_tokens, end, shared) =
            (self.task.instructions.is_some(), cap.0, prompt_end.to_owned(), draft.clone());
        let guide = tokio::task::spawn_blocking(move || -> Box<dyn Guide> {
            if custom {
                Box::new(FreeWriter::new(text, &end, cap_tokens, shared))
            } else {
                Box::new(SummaryWriter::new(text, &end, cap_tokens, on_tool_call, shared))
            }
        })
        .await
        .map_err(|error| Rejection::new(FailureReason::Engine, error.to_string()))?;
        self.record.attempts += 1;
        let request = self.request(prompt.to_vec(), cap.0, Purpose::Reply, Some(guide));
        let generation = self.compactor.engine.submit(request);
        let outcome = ended(generation, Some(&mut self.cancel)).await;
        self.record.summary_ms += millis(began);
        let (usage, spoken, reason) = outcome.map_err(rejected)?;
        self.record.prefilled_tokens = Tokens(usage.prefilled).saturating_add(self.read_before);
        self.record.summary_tokens = Tokens(usage.completion);
        // The last token of a reply that ended by its length was said and never read.
        let unread = Tokens(u32::from(!self.settled.closed));
        self.record.live &= self.record.prefilled_tokens <= self.record.instruction_tokens.saturating_add(unread);
        let branch = [prompt, &spoken].concat();
        self.compactor.engine.forget(self.tenant(), branch.clone(), self.settled.base.len()).await;
        self.branches.push(branch);
        if reason == Some(FinishReason::Length) {
            let written = draft.lock();
            self.record.summary = Some(written.sections.iter().flatten().cloned().collect::<Vec<_>>().join("\n"))
                .filter(|text| !text.is_empty())
                .or_else(|| Some(written.free.clone()));
            return Err(Rejection::new(
                FailureReason::Truncated,
                format!("the summary reached its cap of {cap} tokens"),
            ));
        }
        Ok(draft)
    }

    /// Judges a draft and builds what it would put in the place of the turns.
    async fn accept(&mut self, draft: &SharedDraft, cap: Tokens, outputs: ToolOutputs) -> Result<Accepted, Rejection> {
        let draft = draft.lock().clone();
        let custom = self.task.instructions.is_some();
        let fallback = self.compactor.fallback;
        let spoken = spoken_by_both_sides(&self.history, self.cut());
        let evidence = if custom { draft.free.clone() } else { format!("{:?}", draft.sections) };
        let written = self
            .compactor
            .aside(move |text| -> Result<Written, Rejection> {
                let facts = Facts::of(&spoken);
                let fits = |summary: &str| text.encode_part(summary).len() <= cap.0 as usize;
                if custom {
                    acceptance::free(&draft, &facts, fits)
                } else {
                    acceptance::in_sections(&draft, &facts, fallback, fits)
                }
            })
            .await;
        let written = match written {
            Ok(written) => written,
            Err(rejection) => {
                self.record.summary = Some(evidence);
                return Err(rejection);
            }
        };
        self.record.summary = Some(written.text.clone());
        let checkpoint = Checkpoint { id: self.record.id.clone(), text: written.text.clone() };

        let budget = self.compactor.budget.clone();
        let head = self.head_tokens().await?;
        let allowed = head.saturating_add(NEW_PROMPT_SHARE.of(budget.compaction.saturating_sub(head)));
        let replaced = tokens(self.settled.base.len()).saturating_sub(head);
        // In a window that is hardly filled the shares of the window would keep everything.
        let kept = KEPT_SHARE.of(budget.window).min(Tokens(replaced.0 / 4));
        let (history, cut) = (self.history.clone(), self.cut());
        let later = self.record.tokens_before.saturating_sub(tokens(self.settled.base.len()));
        let for_tail = allowed.saturating_sub(head).saturating_sub(later).min(Tokens(replaced.0 / 2));
        let (summary, built) = {
            let (history, checkpoint, text) = (history.clone(), checkpoint.clone(), written.text.clone());
            self.compactor
                .aside(move |model| {
                    let weigh = |text: &str| model.encode_part(text).len() as u32;
                    let summary = weigh(&text);
                    // The first request, the kept messages and the checkpoint go before the tail.
                    let bare = form_builder::build(
                        &history,
                        cut,
                        checkpoint.clone(),
                        Room { kept: kept.0, tail: 0 },
                        ToolOutputs::Cleared,
                        &weigh,
                    );
                    let user_turn = weigh(&bare.form.messages()[0].content);
                    let left = for_tail.0.saturating_sub(user_turn);
                    let room = Room { kept: kept.0, tail: budget.retain.0.min(left) };
                    (summary, form_builder::build(&history, cut, checkpoint, room, outputs, &weigh))
                })
                .await
        };
        let Built { form, edits } = built;
        if Tokens(summary) >= replaced {
            let message = format!("a summary of {summary} tokens is not smaller than the {replaced} it replaces");
            return Err(Rejection::new(FailureReason::NotSmaller, message));
        }
        let new = self.new_history(&form);
        let places = new.head + new.form_messages;
        let rendered = self.compactor.render(&self.task, &Arc::new(new), places, Ending::History).await;
        let length = rendered.map_err(|error| Rejection::new(FailureReason::Engine, error.to_string()))?.len();
        if tokens(length) > allowed {
            let message = format!("the new prompt would have {length} tokens, at most {allowed} are allowed");
            return Err(Rejection::new(FailureReason::TooLarge, message));
        }
        if length >= self.settled.base.len() {
            let message =
                format!("the new prompt of {length} tokens is not smaller than the {} before", self.settled.base.len());
            return Err(Rejection::new(FailureReason::NotSmaller, message));
        }
        Ok(Accepted { form, edits, fallback_sections: written.fallback_sections })
    }

    /// Tokens in front of the first turn.
    async fn head_tokens(&self) -> Result<Tokens, Rejection> {
        // Two conversations that part in their first turn have the head in common.
        let with = |word: &str| {
            let mut history = (*self.history).clone();
            history.messages.truncate(history.head);
            history.messages.push(Message::text(Role::User, word));
            history.spoken = vec![None; history.messages.len()];
            Arc::new(history)
        };
        let mut rendered = Vec::new();
        for word in ["a", "b"] {
            let history = with(word);
            let tokens = self.compactor.render(&self.task, &history, history.messages.len(), Ending::History).await;
            rendered.push(tokens.map_err(|error| Rejection::new(FailureReason::Engine, error.to_string()))?);
        }
        Ok(tokens(rendered[0].iter().zip(&rendered[1]).take_while(|(one, other)| one == other).count()))
    }

    /// The history with the form in the place of the turns.
    fn new_history(&self, form: &EffectiveForm) -> History {
        let old = &self.history;
        let of_form = form.messages();
        let mut messages = old.messages[..old.head].to_vec();
        let mut spoken = vec![None; old.head + of_form.len()];
        let form_messages = of_form.len();
        messages.extend(of_form);
        messages.extend_from_slice(&old.messages[self.cut()..]);
        spoken.extend_from_slice(&old.spoken[self.cut()..]);
        History {
            messages,
            spoken,
            noticed: Vec::new(),
            head: old.head,
            form: Some(Arc::new(form.clone())),
            form_messages,
            replaced_turns: self.settled.turns,
            edits: Vec::new(),
        }
    }

    /// The old pages go, the head stays, the new form is read behind it.
    async fn release_and_read_again(&mut self) {
        let began = Instant::now();
        let new = Arc::new(self.task.session.history(&self.task.messages, &self.task.links));
        let places = new.head + new.form_messages;
        let rendered = self.compactor.render(&self.task, &new, places, Ending::History).await;
        let whole = self.compactor.render(&self.task, &new, new.messages.len(), Ending::Reply).await;
        self.record.tokens_after = whole.ok().map(|whole| tokens(whole.len()));
        match rendered {
            Err(error) => tracing::warn!(session = %self.record.session, %error, "the new form cannot be read ahead"),
            Ok(form) => {
                let keep = form.iter().zip(&self.settled.base).take_while(|(one, other)| one == other).count();
                // A page that holds old tokens too goes as a whole: its few common ones are read again.
                let keep = keep - keep % PAGE_TOKENS;
                let old = std::mem::take(&mut self.settled.base);
                for sequence in std::mem::take(&mut self.branches).into_iter().chain([old]) {
                    self.compactor.engine.forget(self.tenant(), sequence, keep).await;
                }
                let _ = self.reached_after_replacing(Step::Released).await;
                let request = self.request(form.clone(), 1, Purpose::Warm, None);
                match ended(self.compactor.engine.submit(request), None).await {
                    Ok(_) => {
                        let end = self.record.span.end;
                        self.task.session.set_live(Live { tokens: Arc::new(form), end, closed: true });
                    }
                    Err(Ended::Cancelled) => {}
                    Err(Ended::Engine(error)) => {
                        tracing::warn!(session = %self.record.session, error, "the new form was not read ahead");
                    }
                }
            }
        }
        self.record.reprefill_ms = millis(began);
        self.record.pause_ms = millis(self.began);
        if let Err(error) = self.task.session.record_measured(&self.record).await {
            tracing::error!(session = %self.record.session, %error, "the numbers of a compaction were not recorded");
        }
    }
}

/// Who said what, for the facts: an earlier form as the messages it keeps, its checkpoint as something that was said.
fn spoken_by_both_sides(history: &History, cut: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut from = history.head;
    if let Some(form) = &history.form {
        messages.extend(form.first_request.clone());
        messages.push(Message::text(Role::Assistant, form.checkpoint.text.clone()));
        messages.extend(form.kept.iter().cloned());
        from += 1;
    }
    messages.extend((from..cut).map(|place| history.without_notice(place)));
    messages
}

/// Waits for the end of a generation; also returns the tokens of its reply and why it ended.
async fn ended(
    mut generation: Generation,
    mut cancel: Option<&mut Cancel>,
) -> Result<(Usage, Vec<u32>, Option<FinishReason>), Ended> {
    let mut spoken = Vec::new();
    let mut finish = None;
    loop {
        let event = match &mut cancel {
            None => generation.next().await,
            Some(cancel) => tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(Ended::Cancelled),
                event = generation.next() => event,
            },
        };
        match event {
            Some(Event::Token { token, .. }) => spoken.push(token.token),
            Some(Event::ChoiceFinished { reason, .. }) => finish = Some(reason),
            Some(Event::Done(Terminal::Finished(usage))) => return Ok((usage, spoken, finish)),
            Some(Event::Done(Terminal::Cancelled(_))) => return Err(Ended::Cancelled),
            Some(Event::Done(Terminal::Rejected(reject))) => return Err(Ended::Engine(reject.to_string())),
            Some(Event::Done(Terminal::Failed(error))) => return Err(Ended::Engine(error)),
            Some(Event::Admitted { .. } | Event::Prefill { .. }) => {}
            None => return Err(Ended::Engine("it let go of the request".into())),
        }
    }
}

fn rejected(ended: Ended) -> Rejection {
    match ended {
        Ended::Cancelled => Rejection::new(FailureReason::Cancelled, "cancelled while the engine was at work for it"),
        Ended::Engine(error) => Rejection::new(FailureReason::Engine, format!("the engine failed: {error}")),
    }
}

fn store_failed(error: &StoreError) -> Rejection {
    Rejection::new(FailureReason::Store, error.to_string())
}

fn tokens(count: usize) -> Tokens {
    Tokens(u32::try_from(count).unwrap_or(u32::MAX))
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
