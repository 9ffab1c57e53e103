//! One conversation: its turns, the forms that stand for its compacted parts, its records, and the lock of its
//! compactions.
//!
//! What the store must hold before something takes effect is flushed first: memory never runs ahead of it. Never
//! renders and never decides to compact.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_models::chat::{Message, Role};

use super::chain::{ChainEnd, Link, Results, SessionId, head_len, same_turn};
use super::compaction_record::{CompactionId, CompactionRecord, CompactionState, SpanRef};
use super::effective_form::EffectiveForm;
use super::history::History;
use super::store::{Change, Counters, Store, StoreError, StoredSession, StoredTurn};
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
    live: Option<Live>,
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
    state: Mutex<State>,
}

impl Session {
    pub(super) fn from_stored(stored: StoredSession, store: Store) -> Self {
        let StoredSession { id, tenant, model, counters, turns, records, forms } = stored;
        let turns = turns.into_iter().map(|turn| {
            (turn.end, Turn { parent: turn.parent, message: turn.message, spoken: turn.spoken.map(Arc::from) })
        });
        let state = State {
            turns: turns.collect(),
            forms: forms.into_iter().map(|(span, form)| (span, Arc::new(form))).collect(),
            records,
            counters,
            live: None,
            running: Vec::new(),
        };
        Self { id, tenant, model, store, compacting: Arc::default(), state: Mutex::new(state) }
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
        let spoken = |link: &Link| state.turns.get(&link.end).and_then(|turn| turn.spoken.clone());
        let Some((span, form)) = found else {
            let mut said = vec![None; head];
            said.extend(links.iter().map(spoken));
            return History {
                messages: messages.to_vec(),
                spoken: said,
                head,
                form: None,
                form_messages: 0,
                replaced_turns: 0,
                edits: Vec::new(),
            };
        };
        let replaced = span.turns as usize;
        let of_form = form.messages();
        let form_messages = of_form.len();
        let mut all = messages[..head].to_vec();
        all.extend(of_form);
        all.extend_from_slice(&turns[replaced..]);
        let mut said = vec![None; head + form_messages];
        said.extend(links[replaced..].iter().map(spoken));
        let edits = if pruned {
            vec!["old tool results differ from those that were summarised; the summary of the originals is used".into()]
        } else {
            Vec::new()
        };
        History {
            messages: all,
            spoken: said,
            head,
            form: Some(form.clone()),
            form_messages,
            replaced_turns: replaced,
            edits,
        }
    }

    /// The session knows these turns from here on; the store learns of them with its next commit.
    pub(super) fn learn(&self, messages: &[Message], links: &[Link]) {
        let turns = &messages[head_len(messages)..];
        let mut changes = Vec::new();
        let mut state = self.state();
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
        let counters = Counters { failures_in_row: 0, compactions: self.compactions() + 1, stopped: None };
        let changes = vec![
            Change::Record(Box::new(record.clone())),
            Change::Form { session: self.id.clone(), span: record.span, form: Box::new(form.clone()) },
            self.changed(&counters),
        ];
        self.store.write(changes).await?;
        let mut state = self.state();
        state.put(record);
        state.forms.push((record.span, Arc::new(form.clone())));
        state.counters = counters;
        state.live = None;
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
        let counters = Counters { compactions: self.compactions(), ..Counters::default() };
        self.store.write(vec![self.changed(&counters)]).await?;
        self.state().counters = counters;
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
            counters: Counters { compactions: state.counters.compactions, ..Counters::default() },
            turns: turns.collect(),
            records: Vec::new(),
            forms: state.forms.iter().map(|(span, form)| (*span, (**form).clone())).collect(),
        }
    }

    /// Ends of all turns that are known.
    pub(super) fn ends(&self) -> Vec<ChainEnd> {
        self.state().turns.keys().copied().collect()
    }
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
