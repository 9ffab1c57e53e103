//! Zones and advisory levels.
//!
//! A zone says which threshold of the budget a session has reached; the engine acts on it. A level says how full the
//! reduced window is, for people and programs that watch; it triggers nothing by itself.

use serde::{Deserialize, Serialize};

use super::{Budget, Ratio, Tokens};

/// From this usage on the level is EMERGENCY, where no other is configured.
pub const DEFAULT_EMERGENCY: Ratio = Ratio::new(8, 1);

/// From this usage on the level is CRITICAL.
const CRITICAL: Ratio = Ratio::new(5, 1);

/// From this usage on the level is WARNING.
const WARNING: Ratio = Ratio::new(4, 1);

/// The highest threshold that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Zone {
    Normal,
    Economy,
    Checkpoint,
    Compaction,
}

impl Zone {
    /// As it is spelled on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Economy => "economy",
            Self::Checkpoint => "checkpoint",
            Self::Compaction => "compaction",
        }
    }
}

/// How full the reduced window is, as advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Level {
    Ok,
    Warning,
    Critical,
    Emergency,
}

impl Level {
    /// As it is spelled on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Emergency => "emergency",
        }
    }
}

/// Where a count comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The engine counted it.
    Measured,
    /// Somebody guessed it: the level never exceeds WARNING.
    Estimated,
}

/// A part of the reduced window, as an exact fraction.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    numerator: u64,
    denominator: u64,
}

impl Usage {
    /// `tokens / effective`. An empty window counts as full.
    #[must_use]
    pub fn of(tokens: Tokens, effective: Tokens) -> Self {
        match effective.0 {
            0 => Self { numerator: 1, denominator: 1 },
            effective => Self { numerator: tokens.0.into(), denominator: effective.into() },
        }
    }

    fn reaches(self, ratio: Ratio) -> bool {
        let (numerator, denominator) = ratio.fraction();
        u128::from(self.numerator) * u128::from(denominator) >= u128::from(numerator) * u128::from(self.denominator)
    }
}

impl From<Ratio> for Usage {
    fn from(ratio: Ratio) -> Self {
        let (numerator, denominator) = ratio.fraction();
        Self { numerator, denominator }
    }
}

/// A usage above 1, which no session can have. (Below 0 cannot be expressed.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("usage is {numerator} / {denominator}, expected a number from 0 to 1")]
pub struct LevelError {
    /// Tokens in use, or the mantissa of the ratio that was given.
    pub numerator: u64,
    /// Tokens of the reduced window, or the scale of the ratio.
    pub denominator: u64,
}

impl Level {
    /// The level of a usage. `emergency` is tested first, so that a low one wins over the others.
    ///
    /// # Errors
    /// If the usage exceeds 1.
    pub fn of(usage: Usage, emergency: Ratio, counted: Counted) -> Result<Self, LevelError> {
        let Usage { numerator, denominator } = usage;
        if numerator > denominator {
            return Err(LevelError { numerator, denominator });
        }
        let level = if usage.reaches(emergency) {
            Self::Emergency
        } else if usage.reaches(CRITICAL) {
            Self::Critical
        } else if usage.reaches(WARNING) {
            Self::Warning
        } else {
            Self::Ok
        };
        Ok(match counted {
            Counted::Measured => level,
            Counted::Estimated => level.min(Self::Warning),
        })
    }
}

impl Budget {
    /// The zone of a session of so many tokens.
    #[must_use]
    pub fn zone(&self, tokens: Tokens) -> Zone {
        if tokens >= self.compaction {
            Zone::Compaction
        } else if tokens >= self.checkpoint {
            Zone::Checkpoint
        } else if tokens >= self.economy {
            Zone::Economy
        } else {
            Zone::Normal
        }
    }

    /// The level of a session of so many tokens; what exceeds the reduced window counts as full.
    #[must_use]
    pub fn level(&self, tokens: Tokens, emergency: Ratio, counted: Counted) -> Level {
        let usage = Usage::of(tokens.min(self.effective), self.effective);
        Level::of(usage, emergency, counted).expect("the count was bounded by the reduced window")
    }
}
