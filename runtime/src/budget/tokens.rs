//! Counts of tokens.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number of tokens. Sums are formed in 64 bits where they are compared, so that none can wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u32);

impl Tokens {
    /// The difference, 0 where it would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, the largest number where it would not fit.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// For sums and differences that may leave 32 bits.
    pub(super) const fn wide(self) -> i64 {
        self.0 as i64
    }
}

impl From<u32> for Tokens {
    fn from(count: u32) -> Self {
        Self(count)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
