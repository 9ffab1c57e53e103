//! The policy that subtracts fixed amounts from the reduced window.
//!
//! For people who come from tools that derive their thresholds so and expect the same numbers. Everything saturates at 0.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::{AutomaticCompaction, Ratio, Tokens};

/// Tokens kept for the output of a summary at most: an upper bound seen for summary output.
pub const MOST_SUMMARY_OUTPUT: Tokens = Tokens(20_000);

/// Compaction begins this many tokens before the end of the reduced window.
pub const COMPACTION_BUFFER: Tokens = Tokens(13_000);

/// The warning comes this many tokens before the compaction.
pub const WARNING_BUFFER: Tokens = Tokens(20_000);

/// A prompt is refused from this many tokens before the end of the reduced window.
pub const BLOCKING_BUFFER: Tokens = Tokens(3_000);

/// A percentage that can only make compaction earlier. Whatever is not above 0 and at most 100 is kept as text, for the
/// warning that it has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PercentOverride(String);

impl PercentOverride {
    /// The percentage as it was written.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The percentage, if it is one.
    #[must_use]
    pub fn accepted(&self) -> Option<Ratio> {
        self.0.parse().ok().filter(|percent| (Ratio::new(0, 0) < *percent) && *percent <= Ratio::new(100, 0))
    }
}

impl fmt::Display for PercentOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for PercentOverride {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.accepted() {
            Some(percent) => percent.serialize(serializer),
            None => serializer.serialize_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for PercentOverride {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl Visitor<'_> for Scalar {
            type Value = PercentOverride;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a percentage above 0 and at most 100")
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<PercentOverride, E> {
                Ok(PercentOverride(value.to_string()))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<PercentOverride, E> {
                Ok(PercentOverride(value.to_string()))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<PercentOverride, E> {
                Ok(PercentOverride(value.to_string()))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<PercentOverride, E> {
                Ok(PercentOverride(value.to_owned()))
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}

/// The thresholds of the absolute policy, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AbsoluteThresholds {
    /// The reduced window: `min(window, cap) - min(max_output, 20000)`.
    pub effective: Tokens,
    /// `effective - 13000`, or what the percentage says where that is less.
    pub compaction: Tokens,
    /// 20000 before the compaction, or before the end of the reduced window where nothing compacts by itself. The tools
    /// this comes from have an error threshold of the same value.
    pub warning: Tokens,
    /// `effective - 3000`, or the override.
    pub blocking: Tokens,
}

impl AbsoluteThresholds {
    /// Computes them. `percent` is above 0 and at most 100; `automatic` says whether the engine compacts by itself.
    #[must_use]
    pub fn new(
        window: Tokens,
        max_output: Tokens,
        cap: Option<Tokens>,
        percent: Option<Ratio>,
        blocking: Option<Tokens>,
        automatic: bool,
    ) -> Self {
        let effective = window.min(cap.unwrap_or(window)).saturating_sub(Self::summary(max_output));
        let late = effective.saturating_sub(COMPACTION_BUFFER);
        let compaction = percent.map_or(late, |percent| late.min(percent_of(effective, percent)));
        let warns_before = if automatic { compaction } else { effective };
        Self {
            effective,
            compaction,
            warning: warns_before.saturating_sub(WARNING_BUFFER),
            blocking: blocking.unwrap_or_else(|| effective.saturating_sub(BLOCKING_BUFFER)),
        }
    }

    /// Tokens set aside for the output of a summary.
    #[must_use]
    pub fn summary(max_output: Tokens) -> Tokens {
        max_output.min(MOST_SUMMARY_OUTPUT)
    }

    /// Whether this window can be compacted by itself: not if the threshold lies at 0, where every request triggers it.
    #[must_use]
    pub fn automatic_compaction(&self) -> AutomaticCompaction {
        if self.effective <= COMPACTION_BUFFER || self.compaction == Tokens(0) {
            AutomaticCompaction::WindowTooSmall { effective: self.effective, needed: COMPACTION_BUFFER }
        } else {
            AutomaticCompaction::On
        }
    }

    /// How much is left before the compaction: `max(0, round((t - used) / t * 100))`, in whole percent.
    #[must_use]
    pub fn percent_left(&self, used: Tokens) -> u32 {
        let (t, used) = (u64::from(self.compaction.0), u64::from(used.0));
        if t == 0 {
            return 0;
        }
        let hundredfold = t.saturating_sub(used) * 100;
        u32::try_from((2 * hundredfold + t) / (2 * t)).expect("at most 100")
    }
}

/// `floor(tokens * percent / 100)`.
fn percent_of(tokens: Tokens, percent: Ratio) -> Tokens {
    let (numerator, denominator) = percent.fraction();
    let share = u128::from(tokens.0) * u128::from(numerator) / (u128::from(denominator) * 100);
    Tokens(u32::try_from(share).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thresholds(window: u32, max_output: u32, automatic: bool) -> AbsoluteThresholds {
        AbsoluteThresholds::new(Tokens(window), Tokens(max_output), None, None, None, automatic)
    }

    #[test]
    fn the_percentage_can_only_lower_the_trigger() {
        let at = |text: &str| {
            let percent = PercentOverride::new(text).accepted();
            AbsoluteThresholds::new(Tokens(200_000), Tokens(32_000), None, percent, None, true).compaction
        };
        assert_eq!(at("50"), Tokens(90_000));
        assert_eq!(at("0.5"), Tokens(900));
        assert_eq!(at("92.7"), Tokens(166_860));
        for ignored_or_later in ["92.8", "100", "100.5", "0", "-5", "NaN", "fifty", ""] {
            assert_eq!(at(ignored_or_later), Tokens(167_000), "{ignored_or_later}");
        }
    }

    #[test]
    fn without_automatic_compaction_the_warning_refers_to_the_reduced_window() {
        assert_eq!(thresholds(200_000, 32_000, true).warning, Tokens(147_000));
        assert_eq!(thresholds(200_000, 32_000, false).warning, Tokens(160_000));
    }

    #[test]
    fn a_reduced_window_of_thirteen_thousand_or_less_does_not_compact_by_itself() {
        assert!(thresholds(13_001 + 8_192, 8_192, true).automatic_compaction().is_on());
        assert_eq!(
            thresholds(13_000 + 8_192, 8_192, true).automatic_compaction(),
            AutomaticCompaction::WindowTooSmall { effective: Tokens(13_000), needed: Tokens(13_000) }
        );
        assert_eq!(thresholds(100, 8_192, true).blocking, Tokens(0), "everything saturates");
    }

    #[test]
    fn percent_left_is_rounded_and_ends_at_zero() {
        let t = thresholds(200_000, 32_000, true);
        let left = |used| t.percent_left(Tokens(used));
        assert_eq!((left(0), left(83_500), left(167_000), left(200_000)), (100, 50, 0, 0));
        assert_eq!((left(165_330), left(166_164), left(166_166)), (1, 1, 0), "half a percent is 835 tokens");
        assert_eq!(thresholds(100, 8_192, true).percent_left(Tokens(5)), 0);
    }
}
