//! What the engine says about itself, and the board it is written on.
//!
//! The engine thread writes the board once per turn of its loop, before any terminal of that turn is delivered: who
//! has seen a request end finds it counted. Readers never wait for a step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;

use crate::executor::ExecutorGeometry;
use crate::page_pool::PageCounts;

/// What the engine is doing with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineState {
    /// Takes and runs them.
    Running,
    /// Finishes what it has, rejects the rest.
    Draining,
    /// A step failed; nothing runs any more.
    Poisoned,
    /// It was shut down, or the last handle is gone.
    Stopped,
}

impl EngineState {
    /// Whether the engine thread is gone.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Poisoned | Self::Stopped)
    }
}

/// Sums over the engine's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineTotals {
    /// Requests whose choices all ended by themselves.
    pub finished: u64,
    /// Requests their callers let go of.
    pub cancelled: u64,
    /// Requests that were never admitted.
    pub rejected: u64,
    /// Requests the engine broke under.
    pub failed: u64,
    /// Steps of the executor.
    pub steps: u64,
    /// Rows fed to the executor.
    pub rows_fed: u64,
    /// Tokens of admitted prompts.
    pub prompt_tokens: u64,
    /// Of these, tokens that came from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of replies.
    pub generated_tokens: u64,
    /// The longest step that decoded anything, in milliseconds: the longest stall a reply has seen.
    pub longest_stall_ms: u64,
}

/// The engine at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EngineStatus {
    /// What it is doing with requests.
    pub state: EngineState,
    /// Admitted requests.
    pub running: usize,
    /// Requests that wait for admission.
    pub waiting: usize,
    /// Where the pages are.
    pub pages: PageCounts,
    /// Sums over its life.
    pub totals: EngineTotals,
    /// Time since the engine thread last said it is alive. It does so between steps, and once a second when idle.
    pub heartbeat_age: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub running: usize,
    pub waiting: usize,
    pub pages: PageCounts,
    pub totals: EngineTotals,
}

/// What the engine thread and its handles share.
#[derive(Debug)]
pub(super) struct Board {
    born: Instant,
    heartbeat_ms: AtomicU64,
    state: watch::Sender<EngineState>,
    counts: Mutex<Counts>,
    pub geometry: ExecutorGeometry,
    pub device: String,
}

impl Board {
    pub fn new(geometry: ExecutorGeometry, device: String) -> Self {
        let pages = PageCounts { total: geometry.pages, free: geometry.pages, evictable: 0, promised: 0 };
        Self {
            born: Instant::now(),
            heartbeat_ms: AtomicU64::new(0),
            state: watch::Sender::new(EngineState::Running),
            counts: Mutex::new(Counts { pages, ..Counts::default() }),
            geometry,
            device,
        }
    }

    pub fn beat(&self) {
        self.heartbeat_ms.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub fn set_state(&self, state: EngineState) {
        self.state.send_replace(state);
    }

    pub fn state(&self) -> EngineState {
        *self.state.borrow()
    }

    pub fn watch_state(&self) -> watch::Receiver<EngineState> {
        self.state.subscribe()
    }

    /// The counts are plain numbers, valid whatever happened while they were locked.
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn status(&self) -> EngineStatus {
        let Counts { running, waiting, pages, totals } = *self.counts();
        let beat = Duration::from_millis(self.heartbeat_ms.load(Ordering::Relaxed));
        let heartbeat_age = self.born.elapsed().saturating_sub(beat);
        EngineStatus { state: self.state(), running, waiting, pages, totals, heartbeat_age }
    }
}
