//! A server's life: bind, load, serve, drain, end.
//!
//! Owns the order of these. The socket is bound first, so that `/ready` can say `loading` while a model is fetched.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use plimsoll_runtime::engine::EngineState;
use plimsoll_runtime::sessions::{SessionBook, StoreError};
use tokio::net::TcpListener;

use crate::catalog::Catalog;
use crate::data_folder::DataFolder;
use crate::http::auth::{ApiKeys, TenantKey};
use crate::http::drain::{Drain, Phase};
use crate::http::host_rule::HostRule;
use crate::http::json_body::BodyLimits;
use crate::http::listener::{ConnectionLimits, serve};
use crate::routes::router::router;
use crate::state::{ServerOptions, ServerState, SharedState};

/// Longest silence of a stream. Clients give up after 300 s, proxies after 30; the promise is one event in 10 s.
pub const DEFAULT_SILENCE: Duration = Duration::from_secs(8);

/// How long replies that were cut may take to tell their clients.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long a server whose engine broke still answers, so that whoever asks `/ready` hears the reason.
const POISONED_LINGER: Duration = Duration::from_secs(5);

/// What may be set about a server.
#[derive(Clone, Debug)]
pub struct ServingOptions {
    /// The address to bind; loopback unless the operator says otherwise.
    pub host: IpAddr,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// API keys; none: everybody may ask.
    pub api_keys: Vec<String>,
    /// Hosts and origins to serve beside loopback and the bound address.
    pub allowed_hosts: Vec<String>,
    /// Where sessions are kept.
    pub data: DataFolder,
    /// Limits of bodies.
    pub body: BodyLimits,
    /// Limits of connections.
    pub connections: ConnectionLimits,
    /// Longest silence of a stream.
    pub silence: Duration,
    /// How long running requests may go on after the end was asked for.
    pub drain: Duration,
}

impl Default for ServingOptions {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            data: DataFolder::Memory,
            body: BodyLimits::default(),
            connections: ConnectionLimits::default(),
            silence: DEFAULT_SILENCE,
            drain: Duration::from_secs(30),
        }
    }
}

/// Why a server could not begin.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; --host and --port choose another address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The sessions cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the tenants' key is derived for.
const TENANTS: &str = "tenants";

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Asked,
    /// An engine broke.
    EngineBroke,
}

/// A server that has its socket.
pub struct BoundServer {
    listener: TcpListener,
    address: SocketAddr,
    state: SharedState,
    connections: ConnectionLimits,
    drain: Duration,
}

impl BoundServer {
    /// Binds the socket and opens the sessions. Nothing is served before [`BoundServer::run`].
    ///
    /// # Errors
    /// See [`BindError`].
    pub async fn bind(options: ServingOptions) -> Result<Self, BindError> {
        let wanted = SocketAddr::new(options.host, options.port);
        let refused = |source| BindError::Listen { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let sessions = match options.data.path() {
            None => SessionBook::in_memory(),
            Some(folder) => {
                let (book, recovery) = SessionBook::open(folder)?;
                if recovery.sessions > 0 {
                    tracing::info!(
                        sessions = recovery.sessions,
                        interrupted = recovery.interrupted,
                        "sessions of an earlier process were found again"
                    );
                }
                book
            }
        };
        // The same key is the same tenant after a restart.
        let tenants = TenantKey(sessions.derived_key(TENANTS));
        let server_options = ServerOptions {
            keys: ApiKeys::new(&options.api_keys, tenants),
            hosts: HostRule::new(address.ip(), &options.allowed_hosts),
            body: options.body,
            silence: options.silence,
        };
        let state = Arc::new(ServerState::new(server_options, sessions, Drain::default()));
        Ok(Self { listener, address, state, connections: options.connections, drain: options.drain })
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its handlers share.
    pub fn state(&self) -> SharedState {
        self.state.clone()
    }

    /// Serves until `stop` completes or an engine breaks. `load` provides the models; `ready` is called when requests
    /// are taken.
    ///
    /// # Errors
    /// Those of `load`.
    pub async fn run<E>(
        self,
        load: impl Future<Output = Result<Catalog, E>>,
        ready: impl FnOnce(&Catalog),
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, E> {
        let Self { listener, state, connections, drain: patience, .. } = self;
        let drain = state.drain.clone();
        let serving = tokio::spawn(serve(listener, router(state.clone()), drain.clone(), connections));
        tokio::pin!(stop);
        let outcome = tokio::select! {
            loaded = load => loaded.map(Some),
            () = stop.as_mut() => Ok(None),
        };
        let ended = match outcome {
            Err(error) => {
                drain.enter(Phase::Closing);
                return Err(error);
            }
            Ok(None) => Ended::Asked,
            Ok(Some(catalog)) => {
                let engines = catalog.engines().to_vec();
                state.loaded(catalog.clone());
                ready(&catalog);
                let broken = async {
                    if engines.is_empty() {
                        return std::future::pending().await;
                    }
                    let ends = engines.iter().map(|engine| Box::pin(engine.ended()));
                    select_all(ends).await.0
                };
                let ended = tokio::select! {
                    how = broken => {
                        tracing::error!("the engine ended: {how:?}");
                        Ended::EngineBroke
                    }
                    () = stop => Ended::Asked,
                };
                match ended {
                    Ended::EngineBroke => tokio::time::sleep(POISONED_LINGER).await,
                    Ended::Asked => {
                        drain.enter(Phase::Draining);
                        let finished = tokio::time::timeout(patience, drain.idle()).await;
                        if finished.is_err() {
                            tracing::warn!(running = drain.running(), "cutting requests that did not finish in time");
                        }
                    }
                }
                drain.enter(Phase::Closing);
                // Whoever has not heard by then will see the connection close.
                let _ = tokio::time::timeout(LAST_WORDS, drain.idle()).await;
                for engine in &engines {
                    if engine.status().state != EngineState::Poisoned {
                        let _ = tokio::time::timeout(LAST_WORDS, engine.shutdown()).await;
                    }
                }
                ended
            }
        };
        drain.enter(Phase::Closing);
        let _ = serving.await;
        if let Err(error) = state.sessions.flush().await {
            tracing::error!("sessions were not written: {error}");
        }
        Ok(ended)
    }
}
