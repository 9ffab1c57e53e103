//! All sessions: who is meant by a request, and what the store held when the process began.
//!
//! A client that names its session gets that one; a client that knows nothing of sessions is recognised by what it
//! sends: the session of the longest beginning of its conversation that is known. The same conversation asked for twice
//! at a time is two sessions. Tenants and models never meet.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_models::chat::Message;

use super::chain::{ChainEnd, ChainKey, Link, SessionId};
use super::compaction_record::{CompactionRecord, CompactionState, FailureReason};
use super::session::Session;
use super::store::{Change, Counters, Store, StoreError, StoredSession};
use crate::engine::TenantId;

/// What a request says about its session.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Whose it is.
    pub tenant: TenantId,
    /// The model or preset.
    pub model: &'a str,
    /// The client's name for it.
    pub name: Option<&'a str>,
    /// The conversation as the client sent it.
    pub messages: &'a [Message],
}

/// A session while a request of it runs.
#[derive(Debug)]
pub struct OpenSession {
    /// The session.
    pub session: Arc<Session>,
    /// The digests of the request's turns.
    pub links: Vec<Link>,
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if let Some(link) = self.links.last() {
            self.session.end(link.end);
        }
    }
}

/// What was found when a store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Sessions in the store.
    pub sessions: usize,
    /// Compactions that a process began and did not end; they are closed as failed.
    pub interrupted: usize,
}

#[derive(Debug, Default)]
struct Known {
    sessions: HashMap<SessionId, Arc<Session>>,
    /// The session that was at a place in a conversation last.
    by_end: HashMap<ChainEnd, SessionId>,
}

/// See the module's text. Clones are equal.
#[derive(Clone, Debug)]
pub struct SessionBook {
    store: Store,
    key: ChainKey,
    known: Arc<Mutex<Known>>,
}

impl SessionBook {
    /// Opens the book in a data folder and closes what an earlier process left open.
    ///
    /// # Errors
    /// The folder or the file cannot be used, is damaged, or another process uses it.
    pub fn open(folder: &Path) -> Result<(Self, Recovery), StoreError> {
        let (store, key, stored) = Store::open(folder)?;
        let mut recovery = Recovery { sessions: stored.len(), interrupted: 0 };
        let book = Self { store, key, known: Arc::default() };
        for mut session in stored {
            let closed: Vec<Change> = session.records.iter_mut().filter_map(close_interrupted).collect();
            recovery.interrupted += closed.len();
            book.store.write_later(closed);
            book.keep(session);
        }
        Ok((book, recovery))
    }

    /// A book that ends with the process.
    pub fn in_memory() -> Self {
        let (store, key) = Store::in_memory().expect("a store in memory needs no file and no lock");
        Self { store, key, known: Arc::default() }
    }

    /// Plain maps, valid whatever happened while they were locked.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, stored: StoredSession) -> Arc<Session> {
        let session = Arc::new(Session::from_stored(stored, self.store.clone()));
        let mut known = self.known();
        for end in session.ends() {
            known.by_end.insert(end, session.id().clone());
        }
        known.sessions.insert(session.id().clone(), session.clone());
        session
    }

    /// Finds or begins the session of a request, which counts as running until the answer is dropped.
    ///
    /// # Errors
    /// A session that has to be written first could not be.
    pub async fn session(&self, asked: Asked<'_>) -> Result<OpenSession, StoreError> {
        let links = self.key.links(asked.tenant, asked.model, asked.messages);
        let session = match self.meant(&asked, &links) {
            Meant::Known(session) => session,
            Meant::Begin(stored) => {
                self.store.write(written(&stored)).await?;
                self.keep(*stored)
            }
        };
        session.learn(asked.messages, &links);
        let mut known = self.known();
        for link in &links {
            known.by_end.insert(link.end, session.id().clone());
        }
        drop(known);
        if let Some(link) = links.last() {
            session.begin(link.end);
        }
        Ok(OpenSession { session, links })
    }

    fn meant(&self, asked: &Asked<'_>, links: &[Link]) -> Meant {
        let begin = |id| {
            Meant::Begin(Box::new(StoredSession {
                id,
                tenant: asked.tenant,
                model: asked.model.to_owned(),
                counters: Counters::default(),
                turns: Vec::new(),
                records: Vec::new(),
                forms: Vec::new(),
            }))
        };
        if let Some(name) = asked.name {
            let id = self.key.named_session(asked.tenant, asked.model, name);
            let own = |session: &Arc<Session>| session.tenant() == asked.tenant && session.model() == asked.model;
            let known = self.known();
            let by_id = known.sessions.get(&SessionId::from_stored(name.to_owned())).filter(|session| own(session));
            return match by_id.or_else(|| known.sessions.get(&id)) {
                Some(session) => Meant::Known(session.clone()),
                None => begin(id),
            };
        }
        let known = self.known();
        let found = links.iter().rev().find_map(|link| known.sessions.get(known.by_end.get(&link.end)?));
        match (found, links.last()) {
            (Some(session), Some(last)) if session.runs(&last.end) => {
                Meant::Begin(Box::new(session.copied(SessionId::random())))
            }
            (Some(session), _) => Meant::Known(session.clone()),
            (None, _) => begin(SessionId::random()),
        }
    }

    /// A tenant's session, by its id.
    pub fn find(&self, tenant: TenantId, id: &str) -> Option<Arc<Session>> {
        let id = SessionId::from_stored(id.to_owned());
        self.known().sessions.get(&id).filter(|session| session.tenant() == tenant).cloned()
    }

    /// All sessions of a tenant, in no order.
    pub fn list(&self, tenant: TenantId) -> Vec<Arc<Session>> {
        self.known().sessions.values().filter(|session| session.tenant() == tenant).cloned().collect()
    }

    /// Forgets a session for good, after a compaction of it that runs. False: the tenant has none of that id.
    ///
    /// # Errors
    /// The store could not be written; the session stays.
    pub async fn delete(&self, tenant: TenantId, id: &str) -> Result<bool, StoreError> {
        let Some(session) = self.find(tenant, id) else { return Ok(false) };
        let _lock = session.compaction_lock().await;
        self.store.write(vec![Change::Delete(session.id().clone())]).await?;
        let mut known = self.known();
        known.sessions.remove(session.id());
        known.by_end.retain(|_, owner| owner != session.id());
        Ok(true)
    }

    /// Waits until everything that was said so far is on stable storage.
    ///
    /// # Errors
    /// Some of it could not be written.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.store.write(Vec::new()).await
    }
}

enum Meant {
    Known(Arc<Session>),
    Begin(Box<StoredSession>),
}

/// A new session as changes of the store.
fn written(stored: &StoredSession) -> Vec<Change> {
    let session = Change::Session {
        id: stored.id.clone(),
        tenant: stored.tenant,
        model: stored.model.clone(),
        counters: stored.counters.clone(),
    };
    let turns = stored.turns.iter().map(|turn| Change::Turn { session: stored.id.clone(), turn: turn.clone() });
    let forms = stored.forms.iter().map(|(span, form)| Change::Form {
        session: stored.id.clone(),
        span: *span,
        form: Box::new(form.clone()),
    });
    std::iter::once(session).chain(turns).chain(forms).collect()
}

/// Nobody is left to end what an earlier process began. Its summary, if there is one, stays as evidence.
fn close_interrupted(record: &mut CompactionRecord) -> Option<Change> {
    match record.state {
        CompactionState::Started | CompactionState::Summarised => {
            let message = "the process ended while the session was compacted".to_owned();
            record.state = CompactionState::Failed { reason: FailureReason::Interrupted, message };
            Some(Change::Record(Box::new(record.clone())))
        }
        CompactionState::Replaced | CompactionState::Failed { .. } => None,
    }
}
