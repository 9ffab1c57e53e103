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
use super::session::{Live, Session};
use super::store::{Change, Store, StoreError, StoredSession};
use crate::engine::TenantId;

/// Sessions that are kept; beyond it, the one that was used longest ago is forgotten for good.
pub const SESSIONS_LIMIT: usize = 4096;

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
    clock: u64,
    sessions: HashMap<SessionId, Arc<Session>>,
    /// The session that was at a place in a conversation last.
    by_end: HashMap<ChainEnd, SessionId>,
}

/// See the module's text. Clones are equal.
#[derive(Clone, Debug)]
pub struct SessionBook {
    store: Store,
    key: ChainKey,
    limit: usize,
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
        let book = Self { store, key, limit: SESSIONS_LIMIT, known: Arc::default() };
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
        Self { store, key, limit: SESSIONS_LIMIT, known: Arc::default() }
    }

    /// The same book with room for another number of sessions, at least 1.
    #[must_use]
    pub fn with_limit(self, limit: usize) -> Self {
        Self { limit: limit.max(1), ..self }
    }

    /// A key for `purpose` that lives as long as the store.
    pub fn derived_key(&self, purpose: &str) -> [u8; 32] {
        *blake3::Hasher::new_keyed(&self.key.0).update(b"key").update(purpose.as_bytes()).finalize().as_bytes()
    }

    /// The digests of a conversation.
    pub fn links(&self, session: &Session, messages: &[Message]) -> Vec<Link> {
        self.key.links(session.tenant(), session.model(), messages)
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
        known.use_now(&session);
        while known.sessions.len() > self.limit {
            let idle = known.sessions.values().filter(|other| !other.is_running() && other.id() != session.id());
            let Some(oldest) = idle.min_by_key(|other| other.used_at()).cloned() else { break };
            tracing::info!(session = %oldest.id(), limit = self.limit, "the session used longest ago is forgotten");
            known.forget(&oldest);
            self.store.write_later(vec![Change::Delete(oldest.id().clone())]);
        }
        session
    }

    /// Finds or begins the session of a request, which counts as running until the answer is dropped.
    pub fn session(&self, asked: Asked<'_>) -> OpenSession {
        let links = self.key.links(asked.tenant, asked.model, asked.messages);
        let session = match self.meant(&asked, &links) {
            Meant::Known(session) => session,
            Meant::Begin(stored) => {
                // What nobody can come back to is not written.
                if asked.name.is_some() || !links.is_empty() {
                    self.store.write_later(written(&stored));
                }
                self.keep(*stored)
            }
        };
        session.learn(asked.messages, &links);
        let mut known = self.known();
        known.use_now(&session);
        for link in &links {
            known.by_end.insert(link.end, session.id().clone());
        }
        drop(known);
        if let Some(link) = links.last() {
            session.begin(link.end);
        }
        OpenSession { session, links }
    }

    /// The reply to a request has been said: `messages` are the request's and the reply. Where the engine can tell,
    /// `said` are the reply's tokens and what lies in the cache.
    pub fn settle_reply(&self, open: &OpenSession, messages: &[Message], said: Option<(Arc<[u32]>, LiveTokens)>) {
        let links = self.links(&open.session, messages);
        let Some(link) = links.last() else { return };
        match said {
            None => open.session.learn(messages, &links),
            Some((spoken, LiveTokens { tokens, closed })) => {
                open.session.settle_reply(messages, &links, spoken, Live { tokens, end: link.end, closed });
            }
        }
        self.known().by_end.insert(link.end, open.session.id().clone());
    }

    fn meant(&self, asked: &Asked<'_>, links: &[Link]) -> Meant {
        let begin = |id| Meant::Begin(Box::new(StoredSession::new(id, asked.tenant, asked.model.to_owned())));
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

    /// A tenant's session, by its id or by the name its client has for it with one of `models`.
    pub fn find<'a>(
        &self,
        tenant: TenantId,
        name: &str,
        models: impl IntoIterator<Item = &'a str>,
    ) -> Option<Arc<Session>> {
        let known = self.known();
        let id = SessionId::from_stored(name.to_owned());
        let by_id = known.sessions.get(&id).filter(|session| session.tenant() == tenant);
        let by_name = || {
            let named = models.into_iter().map(|model| self.key.named_session(tenant, model, name));
            named.filter_map(|id| known.sessions.get(&id)).max_by_key(|session| session.used_at())
        };
        by_id.or_else(by_name).cloned()
    }

    /// All sessions of a tenant, most recently used first.
    pub fn list(&self, tenant: TenantId) -> Vec<Arc<Session>> {
        let mut sessions: Vec<_> =
            self.known().sessions.values().filter(|session| session.tenant() == tenant).cloned().collect();
        sessions.sort_by_key(|session| std::cmp::Reverse(session.used_at()));
        sessions
    }

    /// Forgets a session for good, after a compaction of it that runs.
    ///
    /// # Errors
    /// The store could not be written; the session stays.
    pub async fn delete(&self, session: &Arc<Session>) -> Result<(), StoreError> {
        let _lock = session.compaction_lock().await;
        self.store.write(vec![Change::Delete(session.id().clone())]).await?;
        self.known().forget(session);
        Ok(())
    }

    /// Waits until everything that was said so far is on stable storage.
    ///
    /// # Errors
    /// Some of it could not be written.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.store.write(Vec::new()).await
    }
}

/// What of a session lies in the engine's cache, with its reply at the end.
#[derive(Clone, Debug)]
pub struct LiveTokens {
    /// As they were fed.
    pub tokens: Arc<Vec<u32>>,
    /// Whether the last turn is closed.
    pub closed: bool,
}

impl Known {
    fn use_now(&mut self, session: &Session) {
        self.clock += 1;
        session.used(self.clock);
    }

    /// Places that another session has taken over in the meantime are that session's.
    fn forget(&mut self, session: &Session) {
        self.sessions.remove(session.id());
        for end in session.ends() {
            if self.by_end.get(&end) == Some(session.id()) {
                self.by_end.remove(&end);
            }
        }
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
    let notices = stored.notices.iter().map(|(end, text)| Change::Notice {
        session: stored.id.clone(),
        end: *end,
        text: text.clone(),
    });
    let head = stored.head.iter().map(|head| Change::Head { session: stored.id.clone(), head: Box::new(head.clone()) });
    std::iter::once(session).chain(turns).chain(forms).chain(notices).chain(head).collect()
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
