//! What all handlers share: the catalogue, the sessions, the rules of the door, and where the server is in its life.
//!
//! Never handles a request.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_runtime::engine::RequestIds;
use plimsoll_runtime::sessions::SessionBook;
use tokio::sync::Semaphore;

use crate::catalog::Catalog;
use crate::http::auth::ApiKeys;
use crate::http::drain::{Drain, Phase};
use crate::http::host_rule::HostRule;
use crate::http::json_body::{BodyLimits, BodyMemory};
use crate::wire::error::{NotReady, ServerError};

/// The engine thread says that it lives between two steps; the longest step of a slow machine stays well below.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(60);

/// Prompts that are rendered and encoded at a time. Both are work for a processor, not waiting.
const PROMPTS_AT_A_TIME: usize = 2;

/// What may be set about the server.
#[derive(Debug)]
pub struct ServerOptions {
    /// API keys; none: everybody may ask.
    pub keys: ApiKeys,
    /// Allowed hosts and origins.
    pub hosts: HostRule,
    /// Limits of bodies.
    pub body: BodyLimits,
    /// Longest silence of a stream before a keep-alive.
    pub silence: Duration,
}

/// See the module's text.
pub struct ServerState {
    /// What may be set.
    pub options: ServerOptions,
    /// All conversations.
    pub sessions: SessionBook,
    /// The server's phase and its running requests.
    pub drain: Drain,
    /// Seconds since 1970 when the server started.
    pub started_at: u64,
    /// Memory of the bodies that are being read and prepared.
    pub bodies: BodyMemory,
    /// Places for prompts that are being prepared.
    pub preparing: Semaphore,
    /// Names for requests to engines.
    pub request_ids: RequestIds,
    catalog: OnceLock<Catalog>,
}

/// The state as handlers hold it.
pub type SharedState = Arc<ServerState>;

impl ServerState {
    /// A server that is still loading.
    pub fn new(options: ServerOptions, sessions: SessionBook, drain: Drain) -> Self {
        Self {
            options,
            sessions,
            drain,
            started_at: unix_seconds(),
            bodies: BodyMemory::default(),
            preparing: Semaphore::new(PROMPTS_AT_A_TIME),
            request_ids: RequestIds::default(),
            catalog: OnceLock::new(),
        }
    }

    /// The models are loaded. The first catalogue stays.
    pub fn loaded(&self, catalog: Catalog) {
        let _ = self.catalog.set(catalog);
    }

    /// The catalogue, once it is there.
    pub fn catalog(&self) -> Result<&Catalog, ServerError> {
        self.catalog.get().ok_or(ServerError::NotReady(NotReady::Loading))
    }

    /// Whether the server takes work.
    pub fn readiness(&self) -> Result<&Catalog, NotReady> {
        if self.drain.phase() != Phase::Serving {
            return Err(NotReady::Draining);
        }
        let catalog = self.catalog.get().ok_or(NotReady::Loading)?;
        let dead = catalog.engines().iter().any(|engine| {
            let status = engine.status();
            status.state.is_ended() || status.heartbeat_age > HEARTBEAT_LIMIT
        });
        if dead { Err(NotReady::Poisoned) } else { Ok(catalog) }
    }

    /// The catalogue for new work.
    pub fn catalog_for_work(&self) -> Result<&Catalog, ServerError> {
        self.readiness().map_err(ServerError::NotReady)
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs())
}

/// An identity for the wire: the prefix and 24 random hexadecimal digits.
pub fn wire_id(prefix: &str) -> String {
    let mut bytes = [0u8; 12];
    getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
    let mut id = String::with_capacity(prefix.len() + 24);
    id.push_str(prefix);
    for byte in bytes {
        id.push_str(&format!("{byte:02x}"));
    }
    id
}
