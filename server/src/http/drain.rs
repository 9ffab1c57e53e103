//! How a server ends: take no new work, let running requests finish, then cut them.
//!
//! Owns the phase and the count of running requests. Never owns sockets or the engine.

use std::sync::Arc;

use tokio::sync::watch;

/// Where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Takes work.
    Serving,
    /// Takes no new work and says so; running requests finish.
    Draining,
    /// Running requests end with an error, connections close.
    Closing,
}

/// The phase of the server, shared by all who must react to it.
#[derive(Clone, Debug)]
pub struct Drain {
    phase: Arc<watch::Sender<Phase>>,
    running: Arc<watch::Sender<usize>>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Serving)), running: Arc::new(watch::Sender::new(0)) }
    }
}

/// A request that runs; the drain waits until it is dropped.
#[derive(Debug)]
pub struct RunningRequest {
    running: Arc<watch::Sender<usize>>,
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.running.send_modify(|count| *count -= 1);
    }
}

impl Drain {
    /// The phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Moves on to `phase`; phases never go back.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let forward = phase > *current;
            if forward {
                *current = phase;
            }
            forward
        });
    }

    /// Completes when `phase` has been reached.
    pub async fn reached(&self, phase: Phase) {
        let mut receiver = self.phase.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = receiver.wait_for(|current| *current >= phase).await;
    }

    /// Counts a request in until the value is dropped.
    pub fn request(&self) -> RunningRequest {
        self.running.send_modify(|count| *count += 1);
        RunningRequest { running: self.running.clone() }
    }

    /// Requests that run.
    pub fn running(&self) -> usize {
        *self.running.borrow()
    }

    /// Completes when no request runs.
    pub async fn idle(&self) {
        let mut receiver = self.running.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = receiver.wait_for(|count| *count == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn the_drain_waits_for_the_last_request() {
        let drain = Drain::default();
        let (one, two) = (drain.request(), drain.request());
        drain.enter(Phase::Draining);
        drop(one);
        assert!(tokio::time::timeout(Duration::from_millis(20), drain.idle()).await.is_err());
        drop(two);
        drain.idle().await;
    }

    #[tokio::test]
    async fn phases_never_go_back() {
        let drain = Drain::default();
        drain.enter(Phase::Closing);
        drain.enter(Phase::Draining);
        assert_eq!(drain.phase(), Phase::Closing);
        drain.reached(Phase::Draining).await;
    }
}
