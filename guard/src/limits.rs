//! What a preset allows.
//!
//! Read from JSON; unknown keys are refused. A ceiling is a positive whole number or `null` (none); 0, -1, 1.5, "null"
//! and false are refused, because each could be meant as either. No limit scales with the window and none is renewed by
//! a compaction.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A whole number above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Positive(NonZeroU64);

impl Positive {
    /// `None` for 0.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    const fn constant(value: u64) -> Self {
        Self::new(value).expect("the constant is above 0")
    }
}

impl Serialize for Positive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PositiveVisitor)
    }
}

struct PositiveVisitor;

impl Visitor<'_> for PositiveVisitor {
    type Value = Positive;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number above 0")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Positive, E> {
        Positive::new(value).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Positive, E> {
        let found = de::Unexpected::Signed(value);
        u64::try_from(value).ok().and_then(Positive::new).ok_or_else(|| E::invalid_value(found, &self))
    }
}

/// Most of something in one turn, or no ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ceiling {
    /// `null`.
    None,
    /// So many.
    Of(Positive),
}

impl Ceiling {
    /// Whether so many are too many.
    #[must_use]
    pub const fn is_exceeded_by(self, count: u64) -> bool {
        match self {
            Self::None => false,
            Self::Of(most) => count > most.get(),
        }
    }
}

impl Serialize for Ceiling {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_unit(),
            Self::Of(most) => most.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Ceiling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CeilingVisitor;
        impl Visitor<'_> for CeilingVisitor {
            type Value = Ceiling;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number above 0, or null for no ceiling")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Ceiling, E> {
                Ok(Ceiling::None)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ceiling, E> {
                let most = Positive::new(value);
                most.map(Ceiling::Of).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Ceiling, E> {
                let most = u64::try_from(value).ok().and_then(Positive::new);
                most.map(Ceiling::Of).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
        }
        deserializer.deserialize_any(CeilingVisitor)
    }
}

/// How alike two texts are, from 0.8 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Similarity(f64);

impl Similarity {
    /// `None` outside of 0.8 to 1, and for NaN.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (0.8..=1.0).contains(&value).then_some(Self(value))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Serialize for Similarity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for Similarity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Self::new(value)
            .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Float(value), &"a number from 0.8 to 1"))
    }
}

/// Whose facts count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceMode {
    /// Also what is read from the known result shapes of widespread agents.
    #[default]
    Reported,
    /// Only an executor's.
    Verified,
}

/// What follows a diagnosis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterDiagnosis {
    /// Work goes on with the timed-out action still blocked.
    Resume,
    /// Only a new user message goes on.
    #[default]
    Stop,
}

/// The guard's part of a preset. The default is for presets that say nothing; [`GuardLimits::local_robust`] has no
/// ceilings per turn.
///
/// ```
/// use plimsoll_guard::{Ceiling, GuardLimits};
///
/// let limits: GuardLimits = serde_json::from_str(r#"{"max_turn_steps": null}"#)?;
/// assert_eq!(limits.max_turn_steps, Ceiling::None);
/// assert!(limits.max_turn_tool_calls.is_exceeded_by(49));
/// let refusal = serde_json::from_str::<GuardLimits>(r#"{"max_turn_steps": 0}"#).unwrap_err();
/// assert!(refusal.to_string().contains("expected a whole number above 0, or null for no ceiling"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuardLimits {
    /// Model steps in one turn.
    pub max_turn_steps: Ceiling,
    /// Tool calls in one turn.
    pub max_turn_tool_calls: Ceiling,
    /// Length of one turn, in milliseconds.
    pub max_turn_ms: Ceiling,
    /// Tokens generated in one turn; only where configured, since a window is no cumulative allowance.
    #[serde(skip_serializing_if = "is_none")]
    pub max_turn_tokens: Ceiling,
    /// Calls without progress before a pause.
    pub no_progress_limit: Positive,
    /// Equivalent calls before a stop.
    pub equivalent_limit: Positive,
    /// Completed read-only calls in one diagnosis.
    pub diagnostic_max_calls: Positive,
    /// Length of one diagnosis, in milliseconds.
    pub diagnostic_max_ms: Positive,
    /// From here on two texts of the assistant are the same.
    pub text_similarity: Similarity,
    /// Characters of a result that are stored for people to read; the comparison takes all of them.
    pub result_fingerprint_chars: Positive,
    /// Real changes the same failure family may survive.
    pub same_failure_across_changes: Positive,
    /// Whose facts count.
    pub evidence: EvidenceMode,
    /// What follows a diagnosis.
    pub after_diagnosis: AfterDiagnosis,
    /// Timeouts of the managed executor by tool name, in milliseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tool_timeouts: BTreeMap<String, Positive>,
}

fn is_none(ceiling: &Ceiling) -> bool {
    *ceiling == Ceiling::None
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self {
            max_turn_steps: Ceiling::Of(Positive::constant(48)),
            max_turn_tool_calls: Ceiling::Of(Positive::constant(48)),
            max_turn_ms: Ceiling::Of(Positive::constant(900_000)),
            max_turn_tokens: Ceiling::None,
            no_progress_limit: Positive::constant(3),
            equivalent_limit: Positive::constant(5),
            diagnostic_max_calls: Positive::constant(3),
            diagnostic_max_ms: Positive::constant(120_000),
            text_similarity: Similarity(0.94),
            result_fingerprint_chars: Positive::constant(8000),
            same_failure_across_changes: Positive::constant(12),
            evidence: EvidenceMode::Reported,
            after_diagnosis: AfterDiagnosis::Stop,
            tool_timeouts: BTreeMap::new(),
        }
    }
}

impl GuardLimits {
    /// For agents that work for hours: no ceilings per turn, and work goes on after a diagnosis.
    #[must_use]
    pub fn local_robust() -> Self {
        Self {
            max_turn_steps: Ceiling::None,
            max_turn_tool_calls: Ceiling::None,
            max_turn_ms: Ceiling::None,
            after_diagnosis: AfterDiagnosis::Resume,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(limits: Value) -> Result<GuardLimits, serde_json::Error> {
        serde_json::from_value(limits)
    }

    const CEILINGS: [&str; 4] = ["max_turn_steps", "max_turn_tool_calls", "max_turn_ms", "max_turn_tokens"];
    const POSITIVE: [&str; 6] = [
        "no_progress_limit",
        "equivalent_limit",
        "diagnostic_max_calls",
        "diagnostic_max_ms",
        "result_fingerprint_chars",
        "same_failure_across_changes",
    ];

    #[test]
    fn an_empty_object_has_the_documented_defaults() {
        let want = json!({"max_turn_steps": 48, "max_turn_tool_calls": 48, "max_turn_ms": 900_000,
            "no_progress_limit": 3, "equivalent_limit": 5, "diagnostic_max_calls": 3, "diagnostic_max_ms": 120_000,
            "text_similarity": 0.94, "result_fingerprint_chars": 8000, "same_failure_across_changes": 12,
            "evidence": "reported", "after_diagnosis": "stop"});
        assert_eq!(serde_json::to_value(read(json!({})).expect("valid")).expect("json"), want);
    }

    #[test]
    fn the_robust_limits_have_null_ceilings_and_survive_the_way_through_a_file() {
        let robust = GuardLimits::local_robust();
        let written = serde_json::to_value(&robust).expect("json");
        for key in &CEILINGS[..3] {
            assert_eq!(written[key], Value::Null, "{key}");
        }
        assert_eq!(written["after_diagnosis"], "resume");
        assert_eq!(read(written).expect("valid"), robust);
    }

    #[test]
    fn a_ceiling_is_a_positive_whole_number_or_null_and_nothing_else() {
        for key in CEILINGS {
            for accepted in [json!(null), json!(1), json!(u64::MAX)] {
                assert!(read(json!({key: accepted})).is_ok(), "{key} {accepted}");
            }
            for refused in
                [json!(0), json!(-1), json!(1.5), json!(1.0), json!("null"), json!(false), json!([]), json!("48")]
            {
                let error = read(json!({key: refused})).expect_err("refused").to_string();
                assert!(error.contains("a whole number above 0, or null"), "{key} {refused}: {error}");
            }
            // JSON has no infinity; what overflows a float is refused as well.
            assert!(serde_json::from_str::<GuardLimits>(&format!("{{\"{key}\": 1e999}}")).is_err());
            assert!(serde_json::from_str::<GuardLimits>(&format!("{{\"{key}\": Infinity}}")).is_err());
        }
    }

    #[test]
    fn other_limits_are_positive_whole_numbers() {
        for key in POSITIVE {
            assert!(read(json!({key: 1})).is_ok(), "{key}");
            for refused in [json!(null), json!(0), json!(-1), json!(1.5), json!("3"), json!(true)] {
                let error = read(json!({key: refused})).expect_err("refused").to_string();
                assert!(error.contains("a whole number above 0"), "{key} {refused}: {error}");
            }
        }
        assert!(read(json!({"tool_timeouts": {"bash": 120_000}})).is_ok());
        assert!(read(json!({"tool_timeouts": {"bash": 0}})).is_err());
    }

    #[test]
    fn similarity_lies_between_four_fifths_and_one() {
        for accepted in [json!(0.8), json!(0.94), json!(1), json!(1.0)] {
            assert!(read(json!({"text_similarity": accepted})).is_ok(), "{accepted}");
        }
        for refused in [json!(0.79), json!(1.01), json!(-1), json!(null), json!("0.9")] {
            assert!(read(json!({"text_similarity": refused})).is_err(), "{refused}");
        }
    }

    #[test]
    fn unknown_keys_and_unknown_words_are_refused() {
        assert!(read(json!({"max_turn_step": 3})).is_err());
        assert!(read(json!({"evidence": "guessed"})).is_err());
        assert!(read(json!({"after_diagnosis": "continue"})).is_err());
    }

    #[test]
    fn a_ceiling_is_exceeded_by_one_more() {
        let ceiling = Ceiling::Of(Positive::constant(48));
        assert!(!ceiling.is_exceeded_by(48) && ceiling.is_exceeded_by(49) && !Ceiling::None.is_exceeded_by(u64::MAX));
    }
}
