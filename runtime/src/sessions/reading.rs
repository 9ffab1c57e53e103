//! What a session's meter is computed from: the numbers of its last request, while and after it runs.
//!
//! Lives as long as the process. Never counts anything itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::chain::SessionId;
use crate::budget::{Budget, Counts, Meter, Tokens};

/// See the module's text.
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
    /// A reading of a prompt to which nothing is said yet.
    pub fn of_prompt(budget: Arc<Budget>, prompt: u32, cached: u32) -> Self {
        let live = Arc::new(LiveCounts { cached: AtomicU32::new(cached), completion: AtomicU32::new(0) });
        Self { budget, prompt, live, clamped_to: None, edits: Vec::new() }
    }

    /// The meter of this reading, without what only the session knows.
    pub(super) fn meter(&self, session: &SessionId) -> Meter {
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
