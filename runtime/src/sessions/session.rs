//! One conversation: its turns, the forms that stand for its compacted parts, its records, and the lock of its
//! compactions.
//!
//! What the store must hold before something takes effect is flushed first: memory never runs ahead of it. Never
//! renders and never decides to compact.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_models::chat::{Message, Role};

use super::chain::{ChainEnd, Link, Results, SessionId, head_len, same_turn};
use super::compaction_record::{CompactionId, CompactionRecord, CompactionState, SpanRef};
use super::effective_form::EffectiveForm;
use super::head::Head;
use super::history::History;
use super::notice::{self, Told};
use super::reading::Reading;
use super::store::{Change, Counters, Store, StoreError, StoredSession, StoredTurn};
use crate::budget::{Budget, LastCompaction, Meter, Tokens, Zone};
use crate::engine::TenantId;

/// Failures in a row after which a session is no longer compacted automatically.
pub const BREAKER_LIMIT: u32 = 3;

/// Holds off other compactions of its session.
#[must_use]
#[derive(Debug)]
pub struct CompactionLock {
    _held: tokio::sync::OwnedMutexGuard<()>,
}

/// A sequence that lies in the engine's cache: the last prompt of the session and the reply to it.
#[derive(Clone, Debug)]
pub struct Live {
    /// Its tokens, as they were fed.
    pub tokens: Arc<Vec<u32>>,
    /// The place in the conversation at which it ends.
    pub end: ChainEnd,
    /// Whether its last turn is closed; a reply is left open, since its end token is not fed.
    pub closed: bool,
}

#[derive(Debug)]
struct Turn {
    parent: Option<ChainEnd>,
    message: Message,
    spoken: Option<Arc<[u32]>>,
}

#[derive(Debug)]
struct State {
    turns: HashMap<ChainEnd, Turn>,
    /// Oldest first.
    forms: Vec<(SpanRef, Arc<EffectiveForm>)>,
    /// Oldest first.
    records: Vec<CompactionRecord>,
    counters: Counters,
    notices: HashMap<ChainEnd, String>,
    head: Option<Arc<Head>>,
    live: Option<Live>,
    reading: Option<Reading>,
    /// Last turns of the requests that run.
    running: Vec<ChainEnd>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    tenant: TenantId,
    model: String,
    store: Store,
    compacting: Arc<tokio::sync::Mutex<()>>,
    used_at: AtomicU64,
    state: Mutex<State>,
}

impl Session {
    pub(super) fn from_stored(stored: StoredSession, store: Store) -> Self {
        let StoredSession { id, tenant, model, counters, turns, records, forms, notices, head } = stored;
        let turns = turns.into_iter().map(|turn| {
            (turn.end, Turn { parent: turn.parent, message: turn.message, spoken: turn.spoken.map(Arc::from) })
        });
        let state = State {
            turns: turns.collect(),
            forms: forms.into_iter().map(|(span, form)| (span, Arc::new(form))).collect(),
            records,
            counters,
            notices: notices.into_iter().collect(),
            head: head.map(Arc::new),
            live: None,
            reading: None,
            running: Vec::new(),
        };
        let (compacting, used_at) = (Arc::default(), AtomicU64::new(0));
        Self { id, tenant, model, store, compacting, used_at, state: Mutex::new(state) }
    }

    /// Each change of the state is complete when the lock is let go of.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name on the wire.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Whose it is.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The model or preset it talks to.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Waits for a compaction that runs and keeps others off.
    pub async fn compaction_lock(self: &Arc<Self>) -> CompactionLock {
        CompactionLock { _held: self.compacting.clone().lock_owned().await }
    }

    /// The same without waiting; `None` while one runs.
    pub fn try_compaction_lock(self: &Arc<Self>) -> Option<CompactionLock> {
        self.compacting.clone().try_lock_owned().ok().map(|held| CompactionLock { _held: held })
    }

    /// The conversation as it is rendered: the newest form that stands for its beginning is applied. `links` are those
    /// of `messages`.
    ///
    /// A form applies where the client's turns are those that were replaced; where they are so but for the contents of
    /// old tool results, it applies too, and `edits` says so.
    pub fn history(&self, messages: &[Message], links: &[Link]) -> History {
        let head = head_len(messages);
        let turns = &messages[head..];
        let state = self.state();
        let applying = |results: Results| {
            let newest = state.forms.iter().rev();
            newest.clone().find(|(span, _)| state.replaces(span, turns, links, results))
        };
        let (found, pruned) = match applying(Results::Kept) {
            Some(found) => (Some(found), false),
            None => (applying(Results::LeftOut), true),
        };
        let form = found.map(|(_, form)| form.clone());
        let replaced_turns = found.map_or(0, |(span, _)| span.turns as usize);
        let of_form = form.as_ref().map(|form| form.messages()).unwrap_or_default();
        let mut history = History {
            messages: messages[..head].to_vec(),
            spoken: vec![None; head + of_form.len()],
            noticed: Vec::new(),
            head,
            form_messages: of_form.len(),
            form,
            replaced_turns,
            edits: Vec::new(),
        };
        if pruned && history.form.is_some() {
            history.edits.push(
                "old tool results differ from those that were summarised; the summary of the originals is used".into(),
            );
        }
        history.messages.extend(of_form);
        for (message, link) in turns.iter().zip(links).skip(replaced_turns) {
            let mut message = message.clone();
            if let Some(notice) = state.notices.get(&link.end) {
                history.noticed.push((history.messages.len(), message.content.len()));
                message.content.push_str(notice);
            }
            history.messages.push(message);
            history.spoken.push(state.turns.get(&link.end).and_then(|turn| turn.spoken.clone()));
        }
        history
    }

    /// Appends the notice that is due for a prompt that ends in the turn `newest` and is in `zone`. False: nothing was
    /// due, the newest turn can carry none, or what is due does not fit; then it stays due. From here on the notice
    /// stands in every [`Session::history`].
    pub fn notify(
        &self,
        newest: &Message,
        link: &Link,
        zone: Zone,
        budget: &Budget,
        fits: impl FnOnce(&str) -> bool,
    ) -> bool {
        if !matches!(newest.role, Role::User | Role::Tool) {
            return false;
        }
        let mut state = self.state();
        if state.notices.contains_key(&link.end) {
            return false;
        }
        let Counters { told, policy_told, compaction_untold, .. } = state.counters;
        let Some(text) = notice::due(Told { zone: told, policy: policy_told, compaction_untold }, zone, budget) else {
            return false;
        };
        if !fits(&text) {
            return false;
        }
        state.notices.insert(link.end, text.clone());
        state.counters.told = told.max(zone);
        state.counters.policy_told = true;
        state.counters.compaction_untold = false;
        let changes =
            vec![Change::Notice { session: self.id.clone(), end: link.end, text }, self.changed(&state.counters)];
        drop(state);
        self.store.write_later(changes);
        true
    }

    /// What stood before the first turn in the last request.
    pub fn head(&self) -> Option<Arc<Head>> {
        self.state().head.clone()
    }

    /// A request stands under this head.
    pub fn set_head(&self, head: Head) {
        let mut state = self.state();
        if state.head.as_deref() == Some(&head) {
            return;
        }
        self.store.write_later(vec![Change::Head { session: self.id.clone(), head: Box::new(head.clone()) }]);
        state.head = Some(Arc::new(head));
    }

    /// The newest conversation, under the last head; empty where nothing was asked yet.
    pub fn newest_conversation(&self) -> Vec<Message> {
        let state = self.state();
        let mut turns = Vec::new();
        let mut at = state.counters.newest;
        while let Some(turn) = at.and_then(|end| state.turns.get(&end)) {
            turns.push(turn.message.clone());
            at = turn.parent;
        }
        let mut messages = state.head.as_ref().map(|head| head.system.clone()).unwrap_or_default();
        messages.extend(turns.into_iter().rev());
        messages
    }

    /// How many turns the newest conversation has.
    pub fn turns(&self) -> usize {
        let state = self.state();
        let mut count = 0;
        let mut at = state.counters.newest;
        while let Some(turn) = at.and_then(|end| state.turns.get(&end)) {
            count += 1;
            at = turn.parent;
        }
        count
    }

    /// A request was admitted: the meter shows this reading from here on.
    pub fn set_reading(&self, reading: Reading) {
        self.state().reading = Some(reading);
    }

    /// The meter of a reading of this session.
    pub fn meter_of(&self, reading: &Reading) -> Meter {
        let mut meter = reading.meter(&self.id);
        let state = self.state();
        meter.compactions = state.counters.compactions;
        meter.last_compaction = state.records.iter().rev().find_map(last_compaction);
        meter
    }

    /// The meter; `None` where no request was admitted since the process began.
    pub fn meter(&self) -> Option<Meter> {
        let reading = self.state().reading.clone()?;
        Some(self.meter_of(&reading))
    }

    /// When it was used last, on the book's clock.
    pub(super) fn used_at(&self) -> u64 {
        self.used_at.load(Ordering::Relaxed)
    }

    pub(super) fn used(&self, at: u64) {
        self.used_at.store(at, Ordering::Relaxed);
    }

    /// The session knows these turns from here on; the store learns of them with its next commit.
    pub(super) fn learn(&self, messages: &[Message], links: &[Link]) {
        let turns = &messages[head_len(messages)..];
        let Some(newest) = links.last() else { return };
        let mut changes = Vec::new();
        let mut state = self.state();
        if state.counters.newest != Some(newest.end) {
            state.counters.newest = Some(newest.end);
            changes.push(self.changed(&state.counters));
        }
        let mut parent = None;
        for (message, link) in turns.iter().zip(links) {
            if let Entry::Vacant(place) = state.turns.entry(link.end) {
                let message = Message { reasoning: None, ..message.clone() };
                place.insert(Turn { parent, message: message.clone(), spoken: None });
                let turn = StoredTurn { end: link.end, parent, message, spoken: None };
                changes.push(Change::Turn { session: self.id.clone(), turn });
            }
            parent = Some(link.end);
        }
        drop(state);
        self.store.write_later(changes);
    }

    /// The reply has been said: `messages` ends with it, `spoken` are its tokens, `live` is what lies in the cache.
    pub fn settle_reply(&self, messages: &[Message], links: &[Link], spoken: Arc<[u32]>, live: Live) {
        self.learn(messages, links);
        let (Some(message), Some(link)) = (messages.last(), links.last()) else { return };
        let parent = links.len().checked_sub(2).map(|at| links[at].end);
        let mut state = self.state();
        if message.role == Role::Assistant
            && let Some(turn) = state.turns.get_mut(&link.end)
        {
            turn.spoken = Some(spoken.clone());
            let turn =
                StoredTurn { end: link.end, parent, message: turn.message.clone(), spoken: Some(spoken.to_vec()) };
            self.store.write_later(vec![Change::Turn { session: self.id.clone(), turn }]);
        }
        state.live = Some(live);
    }

    /// More of the session was read into the engine's cache.
    pub(crate) fn set_live(&self, live: Live) {
        self.state().live = Some(live);
    }

    /// What of the session lies in the engine's cache, if nothing else has taken its place there.
    pub fn live(&self) -> Option<Live> {
        self.state().live.clone()
    }

    /// A compaction begins: on stable storage when this returns.
    ///
    /// # Errors
    /// The store could not be written; nothing has changed.
    pub async fn record_started(&self, record: &CompactionRecord) -> Result<(), StoreError> {
        self.put_record(record).await
    }

    /// Its summary is accepted: on stable storage when this returns.
    ///
    /// # Errors
    /// The store could not be written; nothing has changed.
    pub async fn record_summarised(&self, record: &CompactionRecord) -> Result<(), StoreError> {
        self.put_record(record).await
    }

    /// Numbers that are known only after the replacement.
    ///
    /// # Errors
    /// The store could not be written; nothing has changed.
    pub async fn record_measured(&self, record: &CompactionRecord) -> Result<(), StoreError> {
        self.put_record(record).await
    }

    /// The form takes the place of the record's span: on stable storage, record and form together, before it takes
    /// effect. The breaker is reset and a stopped session goes on.
    ///
    /// # Errors
    /// The store could not be written; the history is what it was.
    pub async fn replace(&self, record: &CompactionRecord, form: &EffectiveForm) -> Result<(), StoreError> {
        debug_assert_eq!(record.state, CompactionState::Replaced);
        let changes = {
            let mut counters = self.state().counters.clone();
            counters.replaced();
            vec![
                Change::Record(Box::new(record.clone())),
                Change::Form { session: self.id.clone(), span: record.span, form: Box::new(form.clone()) },
                self.changed(&counters),
            ]
        };
        self.store.write(changes).await?;
        let mut state = self.state();
        state.put(record);
        state.forms.push((record.span, Arc::new(form.clone())));
        state.counters.replaced();
        // Turns may have been learned while this was written.
        let changed = self.changed(&state.counters);
        state.live = None;
        drop(state);
        self.store.write_later(vec![changed]);
        Ok(())
    }

    /// A compaction failed; `stop` stops the session with it. Cancelled ones count towards nothing.
    ///
    /// # Errors
    /// The store could not be written. The failure counts in this process all the same.
    pub async fn record_failed(&self, record: &CompactionRecord, stop: bool) -> Result<(), StoreError> {
        let changes = {
            let mut state = self.state();
            if let CompactionState::Failed { reason, message } = &record.state
                && reason.counts()
            {
                state.counters.failures_in_row += 1;
                if stop {
                    state.counters.stopped = Some(message.clone());
                }
            }
            state.put(record);
            vec![Change::Record(Box::new(record.clone())), self.changed(&state.counters)]
        };
        self.store.write(changes).await
    }

    async fn put_record(&self, record: &CompactionRecord) -> Result<(), StoreError> {
        self.store.write(vec![Change::Record(Box::new(record.clone()))]).await?;
        self.state().put(record);
        Ok(())
    }

    fn changed(&self, counters: &Counters) -> Change {
        Change::Session {
            id: self.id.clone(),
            tenant: self.tenant,
            model: self.model.clone(),
            counters: counters.clone(),
        }
    }

    /// A record by its id.
    pub fn compaction(&self, id: &CompactionId) -> Option<CompactionRecord> {
        self.state().records.iter().find(|record| record.id == *id).cloned()
    }

    /// All records, oldest first.
    pub fn records(&self) -> Vec<CompactionRecord> {
        self.state().records.clone()
    }

    /// Compactions that replaced something.
    pub fn compactions(&self) -> u32 {
        self.state().counters.compactions
    }

    /// Compactions that failed since the last success.
    pub fn failures_in_row(&self) -> u32 {
        self.state().counters.failures_in_row
    }

    /// Whether automatic compaction is switched off because it failed [`BREAKER_LIMIT`] times in a row.
    pub fn breaker_open(&self) -> bool {
        self.failures_in_row() >= BREAKER_LIMIT
    }

    /// Why the session is stopped, if it is.
    pub fn stopped(&self) -> Option<String> {
        self.state().counters.stopped.clone()
    }

    /// A person lets a stopped session go on and closes the breaker.
    ///
    /// # Errors
    /// The store could not be written; nothing has changed.
    pub async fn resume(&self) -> Result<(), StoreError> {
        let mut counters = self.state().counters.clone();
        counters.resumed();
        self.store.write(vec![self.changed(&counters)]).await?;
        self.state().counters.resumed();
        Ok(())
    }

    /// A request runs whose conversation ends here.
    pub(super) fn begin(&self, end: ChainEnd) {
        self.state().running.push(end);
    }

    pub(super) fn end(&self, end: ChainEnd) {
        let mut state = self.state();
        if let Some(at) = state.running.iter().position(|running| *running == end) {
            state.running.swap_remove(at);
        }
    }

    /// Whether any request of it runs.
    pub fn is_running(&self) -> bool {
        !self.state().running.is_empty()
    }

    /// Whether a request with the very same conversation runs.
    pub(super) fn runs(&self, end: &ChainEnd) -> bool {
        self.state().running.contains(end)
    }

    /// Everything that is kept, for a session that begins as this one's equal.
    pub(super) fn copied(&self, id: SessionId) -> StoredSession {
        let state = self.state();
        let turns = state.turns.iter().map(|(end, turn)| StoredTurn {
            end: *end,
            parent: turn.parent,
            message: turn.message.clone(),
            spoken: turn.spoken.as_ref().map(|tokens| tokens.to_vec()),
        });
        StoredSession {
            id,
            tenant: self.tenant,
            model: self.model.clone(),
            counters: Counters { failures_in_row: 0, stopped: None, ..state.counters.clone() },
            turns: turns.collect(),
            records: Vec::new(),
            forms: state.forms.iter().map(|(span, form)| (*span, (**form).clone())).collect(),
            notices: state.notices.iter().map(|(end, text)| (*end, text.clone())).collect(),
            head: state.head.as_deref().cloned(),
        }
    }

    /// Ends of all turns that are known.
    pub(super) fn ends(&self) -> Vec<ChainEnd> {
        self.state().turns.keys().copied().collect()
    }
}

impl Counters {
    fn replaced(&mut self) {
        self.resumed();
        self.compactions += 1;
        self.told = Zone::Normal;
        self.compaction_untold = true;
    }

    fn resumed(&mut self) {
        self.failures_in_row = 0;
        self.stopped = None;
    }
}

/// The numbers of a compaction that replaced something.
fn last_compaction(record: &CompactionRecord) -> Option<LastCompaction> {
    if record.state != CompactionState::Replaced {
        return None;
    }
    Some(LastCompaction {
        id: record.id.to_string(),
        tokens_before: record.tokens_before,
        tokens_after: record.tokens_after.unwrap_or(Tokens(0)),
        summary_tokens: record.summary_tokens,
        prefilled_tokens: record.prefilled_tokens,
        pause_ms: record.pause_ms,
        summary_ms: record.summary_ms,
        reprefill_ms: record.reprefill_ms,
        prepared: record.prepared,
        fallback_sections: record.fallback_sections.clone(),
    })
}

impl State {
    fn put(&mut self, record: &CompactionRecord) {
        match self.records.iter_mut().find(|known| known.id == record.id) {
            Some(known) => *known = record.clone(),
            None => self.records.push(record.clone()),
        }
    }

    /// Whether the span is the beginning of a conversation. The digests say so, and the turns that were kept confirm
    /// it.
    fn replaces(&self, span: &SpanRef, turns: &[Message], links: &[Link], results: Results) -> bool {
        let count = span.turns as usize;
        let Some(link) = count.checked_sub(1).and_then(|at| links.get(at)) else { return false };
        let meets = match results {
            Results::Kept => link.end == span.end,
            Results::LeftOut => link.pruned == span.pruned,
        };
        if !meets {
            return false;
        }
        let mut at = Some(span.end);
        for message in turns[..count].iter().rev() {
            let Some(turn) = at.and_then(|end| self.turns.get(&end)) else { return false };
            if !same_turn(&turn.message, message, results) {
                return false;
            }
            at = turn.parent;
        }
        at.is_none()
    }
}
