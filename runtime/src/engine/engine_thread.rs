//! The engine thread's loop: commands, admission, one step, and again.
//!
//! Owns the queue, the ledger and the batch, and joins them. It never waits for a reader of events, and sleeps on its
//! inbox when nothing runs. What is computed is the business of [`super::continuous_batch`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::admission::lifetime;
use super::config::EngineConfig;
use super::continuous_batch::ContinuousBatch;
use super::handle::{Command, DrainReport, Ticket};
use super::ledger::{Ledger, WaitingAccount};
use super::request::{GenerationRequest, Reject};
use super::status::{Board, Counts, EngineState};
use super::waiting_queue::{Waiting, WaitingQueue};
use crate::executor::{Executor, ExecutorError};

/// How often an idle engine says that it is alive.
const IDLE_BEAT: Duration = Duration::from_secs(1);

/// Bounds of the advice to a caller whose request found the queue full, in seconds.
const RETRY_AFTER_S: (f64, f64) = (1.0, 60.0);

/// Weight of the last pause between two ends of requests in their average.
const PACE_WEIGHT: f64 = 0.2;

/// The body of the engine thread: runs until it is told to stop, nobody is left to tell it, or a step fails.
pub(super) fn run(executor: Box<dyn Executor>, config: &EngineConfig, inbox: Receiver<Command>, board: &Board) {
    let mut engine = EngineThread::new(executor, config, board);
    let (state, why) = match catch_unwind(AssertUnwindSafe(|| engine.turn_until_told(&inbox))) {
        Ok(Ok(())) => (EngineState::Stopped, "the engine was shut down".to_owned()),
        Ok(Err(error)) => (EngineState::Poisoned, error.to_string()),
        Err(panic) => (EngineState::Poisoned, format!("the engine thread panicked: {}", panic_message(&*panic))),
    };
    if state == EngineState::Poisoned {
        tracing::error!(%why, "the engine is poisoned");
    }
    engine.end(state, &why);
    // Commands that are still under way are dropped; their accounts say that the engine is down.
    drop(inbox);
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// A caller that waits until everything has ended.
struct Drain {
    deadline: Instant,
    done: oneshot::Sender<DrainReport>,
    cut_off: usize,
}

struct EngineThread<'a> {
    board: &'a Board,
    queue_limit: usize,
    batch: ContinuousBatch,
    ledger: Ledger,
    waiting: WaitingQueue,
    /// The head of the queue did not fit, and nothing that could change that has happened since.
    head_blocked: bool,
    draining: bool,
    drains: Vec<Drain>,
    ends: PaceOfEnds,
}

/// Average time between ends of requests: what a full queue can tell about the wait.
struct PaceOfEnds {
    seconds: f64,
    last: Instant,
}

impl<'a> EngineThread<'a> {
    fn new(executor: Box<dyn Executor>, config: &EngineConfig, board: &'a Board) -> Self {
        Self {
            board,
            queue_limit: config.queue_limit,
            batch: ContinuousBatch::new(executor, config),
            ledger: Ledger::default(),
            waiting: WaitingQueue::default(),
            head_blocked: false,
            draining: false,
            drains: Vec::new(),
            ends: PaceOfEnds { seconds: 1.0, last: Instant::now() },
        }
    }

    /// Turns until a shutdown, or until every handle and generation is gone.
    fn turn_until_told(&mut self, inbox: &Receiver<Command>) -> Result<(), ExecutorError> {
        loop {
            self.board.beat();
            if !self.take_commands(inbox) {
                return Ok(());
            }
            self.cut_off_late_drains();
            self.admit();
            if !self.batch.is_empty() {
                let ended = self.batch.step(&mut self.ledger)?;
                self.note_ends(ended.requests);
                self.head_blocked &= ended.choices == 0;
            }
            self.publish();
            self.report_drains();
        }
    }

    /// Takes all commands that are there, waiting for one if there is nothing else to do. False: stop.
    fn take_commands(&mut self, inbox: &Receiver<Command>) -> bool {
        if self.batch.is_empty() && (self.waiting.len() == 0 || self.head_blocked) {
            let next_deadline = self.drains.iter().map(|d| d.deadline.saturating_duration_since(Instant::now())).min();
            match inbox.recv_timeout(next_deadline.unwrap_or(IDLE_BEAT).min(IDLE_BEAT)) {
                Ok(Command::Shutdown) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return false,
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { ticket, request, account } => self.enqueue(ticket, *request, account),
            Command::Cancel(ticket) => self.cancel(ticket),
            Command::Drain { deadline, done } => {
                self.draining = true;
                self.board.set_state(EngineState::Draining);
                self.drains.push(Drain { deadline, done, cut_off: 0 });
            }
            Command::ClearCache { done } => {
                let pages = self.batch.clear_cache();
                self.head_blocked = false;
                self.publish();
                let _ = done.send(pages);
            }
            Command::Forget { tenant, tokens, keep, done } => {
                let pages = self.batch.forget(tenant, &tokens, keep);
                self.head_blocked &= pages == 0;
                self.publish();
                let _ = done.send(pages);
            }
            Command::Shutdown => unreachable!("the loop that takes commands ends on it"),
        }
    }

    fn enqueue(&mut self, ticket: Ticket, request: GenerationRequest, account: WaitingAccount) {
        let geometry = self.batch.executor().geometry();
        let verdict = if self.draining {
            Err(Reject::Draining)
        } else {
            lifetime(&request, geometry, self.batch.most_sequences())
        };
        match verdict {
            Ok(lifetime) => self.waiting.push(Waiting { ticket, request, lifetime, account }),
            Err(reason) => return self.ledger.reject(account, reason),
        }
        // A burst is admitted as it is read, so that only requests that must wait count against the queue.
        self.admit();
        if self.waiting.len() > self.queue_limit
            && let Some(Waiting { account, .. }) = self.waiting.remove(ticket)
        {
            let waiting = self.waiting.len();
            let wait = (waiting + 1) as f64 * self.ends.seconds;
            let retry_after_s = wait.clamp(RETRY_AFTER_S.0, RETRY_AFTER_S.1).ceil() as u32;
            self.ledger.reject(account, Reject::QueueFull { waiting, retry_after_s });
        }
    }

    fn cancel(&mut self, ticket: Ticket) {
        match self.waiting.remove(ticket) {
            Some(Waiting { request, account, .. }) => self.ledger.cancel_waiting(account, request.prompt.len()),
            None => self.batch.cancel(ticket, &mut self.ledger),
        }
        self.head_blocked = false;
    }

    /// Admits requests in their turn for as long as the next one fits.
    fn admit(&mut self) {
        while !self.head_blocked
            && let Some(head) = self.waiting.head()
        {
            match self.batch.find_place(&head.request, head.lifetime) {
                Some(place) => {
                    let waiting = self.waiting.pop().expect("the queue has a head");
                    self.batch.begin(waiting, place, &mut self.ledger);
                }
                None => self.head_blocked = true,
            }
        }
    }

    fn note_ends(&mut self, ended: usize) {
        if ended > 0 {
            let seconds = self.ends.last.elapsed().as_secs_f64() / ended as f64;
            self.ends.seconds += (seconds - self.ends.seconds) * PACE_WEIGHT;
            self.ends.last = Instant::now();
        }
    }

    /// Cancels everything if the time of a drain is up.
    fn cut_off_late_drains(&mut self) {
        let left = self.batch.len() + self.waiting.len();
        let now = Instant::now();
        if left == 0 || self.drains.iter().all(|drain| drain.deadline > now) {
            return;
        }
        self.batch.cancel_all(&mut self.ledger);
        while let Some(Waiting { request, account, .. }) = self.waiting.pop() {
            self.ledger.cancel_waiting(account, request.prompt.len());
        }
        for drain in &mut self.drains {
            drain.cut_off = left;
        }
    }

    fn report_drains(&mut self) {
        if self.batch.is_empty() && self.waiting.len() == 0 {
            for Drain { done, cut_off, .. } in self.drains.drain(..) {
                let _ = done.send(DrainReport { cut_off });
            }
        }
    }

    /// Writes the board, then lets the terminals out.
    fn publish(&mut self) {
        *self.board.counts() = Counts {
            running: self.batch.len(),
            waiting: self.waiting.len(),
            pages: self.batch.pages(),
            totals: self.ledger.totals,
        };
        self.ledger.deliver();
    }

    /// Closes all accounts. The state is written first: who sees a request fail finds the engine in that state.
    fn end(&mut self, state: EngineState, why: &str) {
        self.batch.fail_all(why, &mut self.ledger);
        while let Some(waiting) = self.waiting.pop() {
            self.ledger.fail_waiting(waiting.account, why);
        }
        self.board.set_state(state);
        self.publish();
    }
}
