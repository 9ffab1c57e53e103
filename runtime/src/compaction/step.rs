//! The steps of a compaction by name, faults that are injected at them, and how it is cancelled.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio::sync::watch;

/// A step of a compaction, named by what has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Step {
    Locked,
    Settled,
    Priced,
    Started,
    Summarised,
    Accepted,
    Persisted,
    Rechecked,
    Replaced,
    Released,
    Measured,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Locked,
        Self::Settled,
        Self::Priced,
        Self::Started,
        Self::Summarised,
        Self::Accepted,
        Self::Persisted,
        Self::Rechecked,
        Self::Replaced,
        Self::Released,
        Self::Measured,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Settled => "settled",
            Self::Priced => "priced",
            Self::Started => "started",
            Self::Summarised => "summarised",
            Self::Accepted => "accepted",
            Self::Persisted => "persisted",
            Self::Rechecked => "rechecked",
            Self::Replaced => "replaced",
            Self::Released => "released",
            Self::Measured => "measured",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no step of a compaction; the steps are {}", Step::ALL.map(Step::as_str).join(", "))]
pub struct UnknownStep {
    /// The word.
    pub found: String,
}

impl FromStr for Step {
    type Err = UnknownStep;

    fn from_str(word: &str) -> Result<Self, UnknownStep> {
        let found = Self::ALL.into_iter().find(|step| step.as_str() == word);
        found.ok_or_else(|| UnknownStep { found: word.to_owned() })
    }
}

/// Faults at steps, for tests of what a compaction promises. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Behind this step it waits so long.
    pub pause: Option<(Step, Duration)>,
    /// Behind this step it fails as if the disk had.
    pub fail: Option<Step>,
}

/// Cancels a compaction when it is told to, or when it is dropped.
#[derive(Debug)]
pub struct Canceller(watch::Sender<bool>);

impl Canceller {
    /// A canceller and what it cancels.
    pub fn new() -> (Self, Cancel) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), Cancel(receiver))
    }

    /// Asks for the end.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Whether a compaction was cancelled.
#[derive(Clone, Debug)]
pub struct Cancel(watch::Receiver<bool>);

impl Cancel {
    /// Whether it was.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when it is.
    pub async fn cancelled(&mut self) {
        // A canceller that is gone has cancelled.
        let _ = self.0.wait_for(|cancelled| *cancelled).await;
    }
}
