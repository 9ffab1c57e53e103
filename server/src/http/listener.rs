//! Accepts connections and speaks HTTP/1.1 on them.
//!
//! Owns the limits of a connection: how many there are, how long a request's head may take to arrive (a client that
//! sends one byte a minute holds nothing but its own socket), how large it may be. `axum::serve` has no such limits.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::drain::{Drain, Phase};

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Most connections at a time; more wait in the operating system's queue.
    pub connections: usize,
    /// Time from a connection's opening, or from the last answer, to the end of the next request's head.
    pub head_time: Duration,
    /// Largest head, in bytes.
    pub head_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { connections: 1024, head_time: Duration::from_secs(30), head_bytes: 128 * 1024 }
    }
}

/// How long to wait when the operating system refuses to accept (too many open files, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the closing phase. While the server drains it still answers (`/ready` must be able to say no);
/// handlers refuse new work. In the closing phase connections end after the answer they are at.
pub async fn serve(listener: TcpListener, router: Router, drain: Drain, limits: ConnectionLimits) {
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place.expect("the semaphore is never closed"),
            () = drain.reached(Phase::Closing) => return,
        };
        let socket = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = drain.reached(Phase::Closing) => return,
        };
        // Small events must leave at once; a socket that cannot promise it still works.
        let _ = socket.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let drain = drain.clone();
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.head_time)
                .max_buf_size(limits.head_bytes)
                .serve_connection(TokioIo::new(socket), service);
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = drain.reached(Phase::Closing) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!("connection ended: {error}");
            }
            drop(place);
        });
    }
}
