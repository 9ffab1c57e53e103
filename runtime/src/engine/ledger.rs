//! One account per request, and exactly one terminal that closes it.
//!
//! An account is a value: closing it consumes it, so nothing can be said about a request after its terminal, and a
//! request can end only once. An account that is dropped instead (the engine thread went away) still says so. A choice
//! of a request is a [`ChoiceLine`]; ending it consumes it too.
//!
//! Terminals are held back until [`Ledger::deliver`], which the engine calls after it has published its counts.
//! The idea of a ledger in which every request has one terminal is PegaInfer's.

use tokio::sync::mpsc::UnboundedSender;

use super::request::{ChoiceIndex, Event, FinishReason, Reject, Terminal, TokenOut, Usage};
use super::status::EngineTotals;

/// The sending end of one request's events. A receiver that is gone is no error: its request is cancelled by a command.
#[derive(Debug)]
struct Line {
    events: UnboundedSender<Event>,
    /// What is said if the account is dropped instead of closed; `None` once it is closed.
    last_word: Option<Terminal>,
}

impl Line {
    fn say(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(terminal) = self.last_word.take() {
            self.say(Event::Done(terminal));
        }
    }
}

/// A request that is not admitted yet.
#[derive(Debug)]
pub(super) struct WaitingAccount(Line);

impl WaitingAccount {
    pub fn open(events: UnboundedSender<Event>) -> Self {
        Self(Line { events, last_word: Some(Terminal::Rejected(Reject::EngineDown)) })
    }
}

/// A request that runs.
#[derive(Debug)]
pub(super) struct RunningAccount {
    line: Line,
    usage: Usage,
}

impl RunningAccount {
    /// `tokens` more of the prompt turned out to be cached.
    pub fn found(&mut self, tokens: usize, ledger: &mut Ledger) {
        self.usage.cached += tokens as u32;
        ledger.totals.cached_tokens += tokens as u64;
    }

    /// `rows` rows of the prompt were fed.
    pub fn fed(&mut self, rows: usize) {
        self.usage.prefilled += rows as u32;
    }

    /// `processed` of the prompt's tokens are in the cache.
    pub fn prefill(&mut self, processed: usize) {
        self.line.say(Event::Prefill { processed: processed as u32, total: self.usage.prompt });
    }

    pub fn open_choice(&self, choice: ChoiceIndex) -> ChoiceLine {
        ChoiceLine { choice, events: self.line.events.clone() }
    }
}

/// One choice of a running request. It belongs to its request, is never kept beyond its account, and ends before it.
#[derive(Debug)]
pub(super) struct ChoiceLine {
    choice: ChoiceIndex,
    events: UnboundedSender<Event>,
}

impl ChoiceLine {
    pub fn token(&self, account: &mut RunningAccount, token: TokenOut) {
        account.usage.completion += 1;
        let _ = self.events.send(Event::Token { choice: self.choice, token });
    }

    pub fn finish(self, reason: FinishReason) {
        let _ = self.events.send(Event::ChoiceFinished { choice: self.choice, reason });
    }
}

/// All accounts' sums, and the terminals that are not delivered yet.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub totals: EngineTotals,
    closed: Vec<(Line, Terminal)>,
}

impl Ledger {
    pub fn admit(&mut self, WaitingAccount(mut line): WaitingAccount, prompt: usize, cached: usize) -> RunningAccount {
        line.last_word = Some(Terminal::Failed("the engine thread ended".into()));
        let usage = Usage { prompt: prompt as u32, cached: cached as u32, ..Usage::default() };
        line.say(Event::Admitted { cached: usage.cached });
        self.totals.prompt_tokens += prompt as u64;
        self.totals.cached_tokens += cached as u64;
        RunningAccount { line, usage }
    }

    pub fn reject(&mut self, WaitingAccount(line): WaitingAccount, reason: Reject) {
        self.close(line, Terminal::Rejected(reason));
    }

    pub fn cancel_waiting(&mut self, WaitingAccount(line): WaitingAccount, prompt: usize) {
        self.close(line, Terminal::Cancelled(Usage { prompt: prompt as u32, ..Usage::default() }));
    }

    pub fn fail_waiting(&mut self, WaitingAccount(line): WaitingAccount, message: &str) {
        self.close(line, Terminal::Failed(message.to_owned()));
    }

    pub fn finish(&mut self, RunningAccount { line, usage }: RunningAccount) {
        self.close(line, Terminal::Finished(usage));
    }

    pub fn cancel(&mut self, RunningAccount { line, usage }: RunningAccount) {
        self.close(line, Terminal::Cancelled(usage));
    }

    pub fn fail(&mut self, RunningAccount { line, .. }: RunningAccount, message: &str) {
        self.close(line, Terminal::Failed(message.to_owned()));
    }

    fn close(&mut self, mut line: Line, terminal: Terminal) {
        match &terminal {
            Terminal::Finished(_) => self.totals.finished += 1,
            Terminal::Cancelled(_) => self.totals.cancelled += 1,
            Terminal::Rejected(_) => self.totals.rejected += 1,
            Terminal::Failed(_) => self.totals.failed += 1,
        }
        line.last_word = None;
        self.closed.push((line, terminal));
    }

    /// Delivers the terminals of all accounts closed since the last call.
    pub fn deliver(&mut self) {
        for (line, terminal) in self.closed.drain(..) {
            line.say(Event::Done(terminal));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[test]
    fn an_account_says_exactly_one_terminal_and_only_when_delivered() {
        let (sender, mut events) = unbounded_channel();
        let mut ledger = Ledger::default();
        let account = ledger.admit(WaitingAccount::open(sender), 7, 3);
        ledger.finish(account);
        assert_eq!(events.try_recv().unwrap(), Event::Admitted { cached: 3 });
        assert!(events.try_recv().is_err());
        ledger.deliver();
        ledger.deliver();
        let usage = Usage { prompt: 7, cached: 3, ..Usage::default() };
        assert_eq!(events.try_recv().unwrap(), Event::Done(Terminal::Finished(usage)));
        assert!(events.try_recv().is_err());
        assert_eq!(ledger.totals.finished, 1);
    }

    #[test]
    fn a_dropped_account_still_says_how_it_ended() {
        let (sender, mut events) = unbounded_channel();
        drop(WaitingAccount::open(sender.clone()));
        assert_eq!(events.try_recv().unwrap(), Event::Done(Terminal::Rejected(Reject::EngineDown)));
        drop(Ledger::default().admit(WaitingAccount::open(sender), 1, 0));
        assert_eq!(events.try_recv().unwrap(), Event::Admitted { cached: 0 });
        assert!(matches!(events.try_recv().unwrap(), Event::Done(Terminal::Failed(_))));
        assert!(events.try_recv().is_err());
    }
}
