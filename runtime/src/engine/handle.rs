//! The way in and out of the engine thread: commands, handles, and the receiving end of a request.
//!
//! Transport only: nothing here decides anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use super::config::EngineConfig;
use super::engine_thread;
use super::ledger::WaitingAccount;
use super::request::{Event, GenerationRequest, RequestId, TenantId};
use super::status::{Board, EngineState, EngineStatus};
use crate::executor::{Executor, ExecutorGeometry};

/// The engine's own name for a request, so that a caller's repeated id does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

pub(super) enum Command {
    Submit { ticket: Ticket, request: Box<GenerationRequest>, account: WaitingAccount },
    Cancel(Ticket),
    Drain { deadline: Instant, done: oneshot::Sender<DrainReport> },
    ClearCache { done: oneshot::Sender<usize> },
    Forget { tenant: TenantId, tokens: Vec<u32>, keep: usize, done: oneshot::Sender<usize> },
    Shutdown,
}

/// What a drain without end waits for, where the clock cannot hold the time that was asked for: a year.
const LONGEST_DRAIN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Requests that were cancelled because the time was up.
    pub cut_off: usize,
}

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts the engine thread. It ends with [`EngineHandle::shutdown`], with the last handle and generation, or when
    /// the executor fails.
    pub fn start(executor: Box<dyn Executor>, config: EngineConfig) -> EngineHandle {
        let board = Arc::new(Board::new(executor.geometry().clone(), executor.describe()));
        let (commands, inbox) = channel();
        let shared = board.clone();
        std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || engine_thread::run(executor, &config, inbox, &shared))
            .expect("the system can start one more thread");
        EngineHandle { commands, board, tickets: Arc::new(AtomicU64::new(0)) }
    }
}

/// A handle to the engine thread; clones are equal.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: Sender<Command>,
    board: Arc<Board>,
    tickets: Arc<AtomicU64>,
}

impl EngineHandle {
    /// Hands a request to the engine. Never blocks and never fails: a request that cannot run says so through its one
    /// terminal.
    pub fn submit(&self, request: GenerationRequest) -> Generation {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let (sender, events) = unbounded_channel();
        let id = request.id;
        let account = WaitingAccount::open(sender);
        // If the engine is gone the command is dropped, and with it the account, which then says so.
        let _ = self.commands.send(Command::Submit { ticket, request: Box::new(request), account });
        Generation { id, ticket, events, commands: self.commands.clone(), ended: false }
    }

    /// The engine as of its last step; never waits for one.
    pub fn status(&self) -> EngineStatus {
        self.board.status()
    }

    /// Sizes of the executor.
    pub fn geometry(&self) -> &ExecutorGeometry {
        &self.board.geometry
    }

    /// One line for people: device, threads, cache type.
    pub fn device(&self) -> &str {
        &self.board.device
    }

    /// Rejects what comes from here on and finishes what is running or waiting; what is left after `timeout` is
    /// cancelled. The engine stays in the state [`EngineState::Draining`].
    pub async fn drain(&self, timeout: Duration) -> DrainReport {
        let (done, report) = oneshot::channel();
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or(now + LONGEST_DRAIN);
        let _ = self.commands.send(Command::Drain { deadline, done });
        report.await.unwrap_or(DrainReport { cut_off: 0 })
    }

    /// Forgets all cached prefixes; returns how many pages the cache held. Running requests keep theirs.
    pub async fn clear_cache(&self) -> usize {
        let (done, pages) = oneshot::channel();
        let _ = self.commands.send(Command::ClearCache { done });
        pages.await.unwrap_or(0)
    }

    /// Forgets what is cached of `tokens` behind the first `keep` of them, as far as no other cached prefix goes on from
    /// it and nobody reads it; returns how many pages came free.
    pub async fn forget(&self, tenant: TenantId, tokens: Vec<u32>, keep: usize) -> usize {
        let (done, pages) = oneshot::channel();
        let _ = self.commands.send(Command::Forget { tenant, tokens, keep, done });
        pages.await.unwrap_or(0)
    }

    /// Ends the engine after its current step and waits for that: running requests fail, waiting ones are rejected.
    pub async fn shutdown(&self) {
        let _ = self.commands.send(Command::Shutdown);
        self.ended().await;
    }

    /// Waits until the engine thread has ended, and says how.
    pub async fn ended(&self) -> EngineState {
        let mut state = self.board.watch_state();
        let ended = state.wait_for(|state| state.is_ended()).await;
        *ended.expect("the handle keeps the board, so its sender lives")
    }
}

/// The receiving end of one request. Dropping it cancels the request.
#[derive(Debug)]
#[must_use = "dropping a generation cancels it"]
pub struct Generation {
    id: RequestId,
    ticket: Ticket,
    events: UnboundedReceiver<Event>,
    commands: Sender<Command>,
    ended: bool,
}

impl Generation {
    /// The request's identity, as its caller chose it.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after [`Event::Done`]. Cancel safe: an event is lost by no dropped future.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        self.seen(event)
    }

    /// The next event, waited for by blocking the thread; `None` after [`Event::Done`].
    ///
    /// # Panics
    /// Inside of an asynchronous task.
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        self.seen(event)
    }

    fn seen(&mut self, event: Option<Event>) -> Option<Event> {
        self.ended = matches!(event, None | Some(Event::Done(_)));
        event
    }

    /// Asks the engine to let go of the request, which it does before its next step. Events that are under way still
    /// arrive; the terminal may be another one if the request ended by itself in the meantime.
    pub fn cancel(&self) {
        let _ = self.commands.send(Command::Cancel(self.ticket));
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            self.cancel();
        }
    }
}
