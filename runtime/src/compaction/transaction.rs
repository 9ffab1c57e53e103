//! The transaction: settle, price, start, summarise, accept, persist, re-check, replace, release and read again.
//!
//! Until "replaced" is on stable storage the history is what it was; a failure anywhere before leaves it so, and says
//! why in a record. The one place that writes a session's records and forms. Never talks to a client.

mod candidate;
mod errand;

use std::sync::Arc;
use std::time::Instant;

use plimsoll_kernels::PAGE_TOKENS;
use plimsoll_models::chat::{Message, Role};
use plimsoll_models::preset::Fallback;

use self::errand::{Ended, ended, rejected};
use super::acceptance::Rejection;
use super::compactor::{Appended, CompactionError, CompactionTask, Compactor, failure_of};
use super::draft::SharedDraft;
use super::form_builder::ToolOutputs;
use super::free_writer::FreeWriter;
use super::instruction::INSTRUCTION;
use super::settle::Settled;
use super::step::{Cancel, Step};
use super::summary_writer::{OnToolCall, SummaryWriter};
use crate::budget::Tokens;
use crate::engine::{FinishReason, Guide, Purpose};
use crate::model_text::Ending;
use crate::sessions::{
    CompactionLock, CompactionRecord, CompactionState, FailureReason, History, Live, SpanRef, StoreError, Trigger,
};

impl Compactor {
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

fn store_failed(error: &StoreError) -> Rejection {
    Rejection::new(FailureReason::Store, error.to_string())
}

fn tokens(count: usize) -> Tokens {
    Tokens(u32::try_from(count).unwrap_or(u32::MAX))
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
