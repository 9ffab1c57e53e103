//! Which conversation a request belongs to, and the numbers each conversation shows on its meter.
//!
//! A client may name its session; a client that knows nothing of sessions is recognised by what it sends: the messages
//! of a conversation form a chain of digests, and a request whose beginning ends where an earlier one ended belongs to
//! the same session. Digests are keyed by a random key of this process and by the tenant, so that nobody can find out
//! or meet what another tenant said.
//!
//! Owns the registry, bounded by the number of sessions, least recently used first out. Never stores messages.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::HeaderMap;
use plimsoll_models::chat::{Message, Role};
use plimsoll_runtime::budget::{Budget, Counts, Meter, Tokens};
use plimsoll_runtime::engine::TenantId;

use crate::wire::chat_request::Extensions;

/// Sessions that are remembered.
pub const SESSIONS_LIMIT: usize = 4096;
/// Places in conversations at which a session is recognised, per session.
const CHAIN_ENDS_PER_SESSION: usize = 32;
/// What a session's id begins with.
const PREFIX: &str = "ses_";

/// A session's name on the wire: `ses_` and 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(String);

impl SessionId {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The digest of a conversation up to some message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainEnd([u8; 32]);

impl std::fmt::Debug for ChainEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChainEnd({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// What a session's meter is computed from.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The window.
    pub budget: Arc<Budget>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Numbers that grow while the reply is generated.
    pub live: Arc<LiveCounts>,
    /// The cap that was granted in place of the one asked for.
    pub clamped_to: Option<u32>,
    /// What the server changed in the request's content.
    pub edits: Vec<String>,
}

impl Reading {
    /// The meter of this reading.
    pub fn meter(&self, session: &SessionId) -> Meter {
        let counts = Counts {
            prompt: Tokens(self.prompt),
            cached: Tokens(self.live.cached.load(Ordering::Relaxed)),
            completion: Tokens(self.live.completion.load(Ordering::Relaxed)),
        };
        let mut meter = Meter::new(session.as_str(), &self.budget, counts);
        meter.clamped_max_tokens = self.clamped_to;
        meter.edits = self.edits.clone();
        meter
    }
}

/// Numbers of a reply while it is generated, written by the reply and read by the meter.
#[derive(Debug, Default)]
pub struct LiveCounts {
    /// Tokens of the prompt that came from the prefix cache.
    pub cached: AtomicU32,
    /// Tokens of the longest choice.
    pub completion: AtomicU32,
}

struct Session {
    tenant: TenantId,
    reading: Option<Reading>,
    chain_ends: VecDeque<ChainEnd>,
    used_at: u64,
}

#[derive(Default)]
struct Registry {
    sessions: HashMap<SessionId, Session>,
    by_chain_end: HashMap<ChainEnd, SessionId>,
    clock: u64,
}

/// All live sessions.
pub struct Sessions {
    key: [u8; 32],
    limit: usize,
    registry: Mutex<Registry>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sessions", self.registry().sessions.len())
    }
}

impl Default for Sessions {
    fn default() -> Self {
        Self::new(SESSIONS_LIMIT)
    }
}

/// The name a client gives its session, first that is present.
pub fn named_session(headers: &HeaderMap, extensions: &Extensions) -> Option<String> {
    let header = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    extensions
        .session
        .clone()
        .or_else(|| header("x-session-id"))
        .or_else(|| header("session-id"))
        .or_else(|| extensions.prompt_cache_key.clone())
        .or_else(|| header("x-claude-code-session-id"))
        .or_else(|| extensions.metadata_session.clone())
        .filter(|name| !name.is_empty())
}

impl Sessions {
    /// A registry of at most `limit` sessions.
    pub fn new(limit: usize) -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the operating system provides random numbers");
        Self { key, limit: limit.max(1), registry: Mutex::default() }
    }

    /// The registry is plain maps, valid whatever happened while they were locked.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digests of a conversation after each of its messages. Reasoning, ids and the system head take no part:
    /// clients change or drop them between turns.
    pub fn chain(&self, tenant: TenantId, model: &str, messages: &[Message]) -> Vec<ChainEnd> {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&tenant.0.to_le_bytes());
        update_text(&mut hasher, model);
        let mut end = *hasher.finalize().as_bytes();
        let turns = messages.iter().skip_while(|message| message.role == Role::System);
        turns
            .map(|message| {
                let mut hasher = blake3::Hasher::new_keyed(&self.key);
                hasher.update(&end);
                update_text(&mut hasher, message.role.as_str());
                update_text(&mut hasher, &message.content);
                for call in &message.tool_calls {
                    update_text(&mut hasher, &call.name);
                    update_text(&mut hasher, &canonical_arguments(&call.arguments));
                }
                end = *hasher.finalize().as_bytes();
                ChainEnd(end)
            })
            .collect()
    }

    /// Finds or opens the session of a request. `chain` is the conversation's; it decides where no name is given.
    pub fn open(&self, tenant: TenantId, name: Option<&str>, chain: &[ChainEnd]) -> SessionId {
        let mut registry = self.registry();
        let found = match name {
            Some(name) => self.known(&registry, tenant, name).unwrap_or_else(|| self.derived(tenant, name)),
            None => chain
                .iter()
                .rev()
                .find_map(|end| registry.by_chain_end.get(end))
                .cloned()
                .unwrap_or_else(random_session),
        };
        registry.touch(&found, tenant);
        if let Some(end) = chain.last() {
            registry.remember(&found, *end);
        }
        registry.shrink(self.limit);
        found
    }

    /// The reply has been said: the conversation goes on behind it.
    pub fn reply_said(&self, session: &SessionId, tenant: TenantId, end: ChainEnd) {
        let mut registry = self.registry();
        registry.touch(session, tenant);
        registry.remember(session, end);
        registry.shrink(self.limit);
    }

    /// A request of the session was admitted: its meter shows this reading from here on.
    pub fn admitted(&self, session: &SessionId, reading: Reading) {
        if let Some(entry) = self.registry().sessions.get_mut(session) {
            entry.reading = Some(reading);
        }
    }

    /// The meter of a session, by its id or by the name its client uses.
    pub fn meter(&self, tenant: TenantId, name: &str) -> Option<Meter> {
        let registry = self.registry();
        let id = self.known(&registry, tenant, name).or_else(|| {
            let derived = self.derived(tenant, name);
            registry.sessions.contains_key(&derived).then_some(derived)
        })?;
        registry.sessions.get(&id)?.reading.as_ref().map(|reading| reading.meter(&id))
    }

    /// The meters of all sessions of a tenant, most recently used first.
    pub fn meters(&self, tenant: TenantId) -> Vec<Meter> {
        let registry = self.registry();
        let mut found: Vec<(u64, Meter)> = registry
            .sessions
            .iter()
            .filter(|(_, session)| session.tenant == tenant)
            .filter_map(|(id, session)| Some((session.used_at, session.reading.as_ref()?.meter(id))))
            .collect();
        found.sort_by_key(|(used_at, _)| std::cmp::Reverse(*used_at));
        found.into_iter().map(|(_, meter)| meter).collect()
    }

    fn known(&self, registry: &Registry, tenant: TenantId, name: &str) -> Option<SessionId> {
        let id = SessionId(name.to_owned());
        registry.sessions.get(&id).filter(|session| session.tenant == tenant).map(|_| id)
    }

    /// The id of a session that its client names: the same for the same tenant and name while this process lives.
    fn derived(&self, tenant: TenantId, name: &str) -> SessionId {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"name");
        hasher.update(&tenant.0.to_le_bytes());
        update_text(&mut hasher, name);
        session_id(&hasher.finalize().as_bytes()[..16])
    }
}

impl Registry {
    fn touch(&mut self, id: &SessionId, tenant: TenantId) {
        self.clock += 1;
        let used_at = self.clock;
        self.sessions
            .entry(id.clone())
            .or_insert_with(|| Session { tenant, reading: None, chain_ends: VecDeque::new(), used_at })
            .used_at = used_at;
    }

    fn remember(&mut self, id: &SessionId, end: ChainEnd) {
        if self.by_chain_end.insert(end, id.clone()).as_ref() == Some(id) {
            return;
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.chain_ends.push_back(end);
        if session.chain_ends.len() > CHAIN_ENDS_PER_SESSION
            && let Some(oldest) = session.chain_ends.pop_front()
        {
            self.forget_end(&oldest, id);
        }
    }

    /// An end that another session has taken over in the meantime is that session's.
    fn forget_end(&mut self, end: &ChainEnd, id: &SessionId) {
        if self.by_chain_end.get(end) == Some(id) {
            self.by_chain_end.remove(end);
        }
    }

    fn shrink(&mut self, limit: usize) {
        while self.sessions.len() > limit {
            let oldest = self.sessions.iter().min_by_key(|(_, session)| session.used_at).map(|(id, _)| id.clone());
            let Some(oldest) = oldest else { return };
            let Some(session) = self.sessions.remove(&oldest) else { return };
            for end in session.chain_ends {
                self.forget_end(&end, &oldest);
            }
        }
    }
}

/// Lengths go in front of texts, so that no two lists of texts are the same bytes.
fn update_text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// Arguments that differ in white space or in the order of keys alone are the same; what does not parse is itself.
fn canonical_arguments(text: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(mut value) => {
            value.sort_all_objects();
            value.to_string()
        }
        Err(_) => text.to_owned(),
    }
}

fn random_session() -> SessionId {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
    session_id(&bytes)
}

fn session_id(bytes: &[u8]) -> SessionId {
    let mut id = String::from(PREFIX);
    for byte in bytes {
        id.push_str(&format!("{byte:02x}"));
    }
    SessionId(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: TenantId = TenantId(1);
    const YOU: TenantId = TenantId(2);

    fn talk(turns: &[(Role, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, text)| Message::text(*role, *text)).collect()
    }

    fn open(sessions: &Sessions, tenant: TenantId, messages: &[Message]) -> SessionId {
        let chain = sessions.chain(tenant, "m", messages);
        sessions.open(tenant, None, &chain)
    }

    #[test]
    fn a_conversation_that_goes_on_is_the_same_session_whatever_happens_to_system_head_reasoning_and_ids() {
        let sessions = Sessions::default();
        let first = talk(&[(Role::System, "A"), (Role::User, "hi")]);
        let id = open(&sessions, ME, &first);
        let mut said = first.clone();
        said.push(Message::text(Role::Assistant, "hello"));
        let end = *sessions.chain(ME, "m", &said).last().unwrap();
        sessions.reply_said(&id, ME, end);
        let mut next =
            talk(&[(Role::System, "B"), (Role::User, "hi"), (Role::Assistant, "hello"), (Role::User, "more")]);
        next[2].reasoning = Some("hm".into());
        assert_eq!(open(&sessions, ME, &next), id);
    }

    #[test]
    fn other_conversations_models_and_tenants_are_other_sessions() {
        let sessions = Sessions::default();
        let hi = talk(&[(Role::User, "hi")]);
        let id = open(&sessions, ME, &hi);
        assert_eq!(open(&sessions, ME, &hi), id);
        assert_ne!(open(&sessions, YOU, &hi), id);
        assert_ne!(open(&sessions, ME, &talk(&[(Role::User, "ho")])), id);
        let other_model = sessions.chain(ME, "n", &hi);
        assert_ne!(sessions.open(ME, None, &other_model), id);
    }

    #[test]
    fn a_named_session_is_found_by_name_and_by_id_and_only_by_its_tenant() {
        let sessions = Sessions::default();
        let id = sessions.open(ME, Some("work"), &[]);
        assert_eq!(sessions.open(ME, Some("work"), &[]), id);
        assert_eq!(sessions.open(ME, Some(id.as_str()), &[]), id);
        assert_ne!(sessions.open(YOU, Some("work"), &[]), id);
        assert_ne!(sessions.open(YOU, Some(id.as_str()), &[]), id);
    }

    #[test]
    fn the_registry_forgets_the_least_recently_used() {
        let sessions = Sessions::new(2);
        let a = open(&sessions, ME, &talk(&[(Role::User, "a")]));
        let b = open(&sessions, ME, &talk(&[(Role::User, "b")]));
        assert_eq!(open(&sessions, ME, &talk(&[(Role::User, "a")])), a);
        open(&sessions, ME, &talk(&[(Role::User, "c")]));
        assert_eq!(open(&sessions, ME, &talk(&[(Role::User, "a")])), a);
        assert_ne!(open(&sessions, ME, &talk(&[(Role::User, "b")])), b);
        let registry = sessions.registry();
        assert_eq!(registry.sessions.len(), 2);
        assert_eq!(registry.by_chain_end.len(), 2);
    }

    #[test]
    fn a_long_session_keeps_a_bounded_number_of_ends() {
        let sessions = Sessions::default();
        let mut messages = Vec::new();
        let mut ids = Vec::new();
        for turn in 0..100 {
            messages.push(Message::text(Role::User, turn.to_string()));
            ids.push(open(&sessions, ME, &messages));
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
        assert_eq!(sessions.registry().by_chain_end.len(), CHAIN_ENDS_PER_SESSION);
    }
}
