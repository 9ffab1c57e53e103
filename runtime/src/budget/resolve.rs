//! From a configuration and a window to token counts, or a refusal with the numbers.
//!
//! Owns the invariants. A [`Budget`] that exists keeps them: nothing outside of this crate can build one.

use serde::Serialize;

use super::absolute::AbsoluteThresholds;
use super::config::{BudgetConfig, Policy, Quantity};
use super::{Ratio, Tokens};

/// The smallest window that is served, in tokens.
pub const SMALLEST_WINDOW: Tokens = Tokens(2048);

/// The least summary budget with which compaction runs by itself, in tokens: a window of 4096 with the default ratios.
pub const LEAST_SUMMARY: Tokens = Tokens(256);

/// Whether the engine compacts by itself, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum AutomaticCompaction {
    /// It does.
    On,
    /// The configuration or the request says no.
    Off,
    /// A summary could not hold enough.
    SummaryTooSmall {
        /// Tokens of the summary.
        summary: Tokens,
        /// Tokens it would need.
        needed: Tokens,
    },
    /// Under the absolute policy the threshold would lie at 0 and every request would trigger it.
    WindowTooSmall {
        /// Tokens of the reduced window.
        effective: Tokens,
        /// Tokens it must exceed.
        needed: Tokens,
    },
}

impl AutomaticCompaction {
    /// Whether the engine compacts by itself.
    #[must_use]
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

impl std::fmt::Display for AutomaticCompaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            Self::SummaryTooSmall { summary, needed } => {
                write!(f, "off: it needs a summary of {needed} tokens, this window has {summary}")
            }
            Self::WindowTooSmall { effective, needed } => {
                write!(f, "off: it needs a reduced window of more than {needed} tokens, this one has {effective}")
            }
        }
    }
}

/// A key that was given and has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BudgetWarning {
    /// A percentage outside of (0, 100].
    #[error("percent is {found}, which is not above 0 and at most 100; the default threshold holds")]
    PercentIgnored {
        /// What was given.
        found: String,
    },
}

/// Why a budget is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum BudgetError {
    #[error("no window is given; shares of the window need one (set window, in tokens)")]
    NoWindow,
    #[error("window is {window}, the smallest that is served is {SMALLEST_WINDOW} tokens")]
    WindowTooSmall { window: Tokens },
    #[error("{name}_ratio is {ratio}, expected a number above 0 and below 1")]
    ImproperRatio { name: &'static str, ratio: Ratio },
    #[error(
        "economy {economy}, checkpoint {checkpoint}, compaction {compaction}: expected 0 < economy < checkpoint < compaction"
    )]
    Order { economy: Tokens, checkpoint: Tokens, compaction: Tokens },
    #[error(
        "compaction {compaction} + response {response} + summary {summary} + safety {safety} = {sum}, expected less than the window {window}; lower one of them by {excess} tokens in all"
    )]
    Sum { compaction: Tokens, response: Tokens, summary: Tokens, safety: Tokens, sum: u64, window: Tokens, excess: u64 },
    #[error("summary_min {summary_min}, summary {summary}: expected 0 < summary_min <= summary")]
    SummaryMin { summary_min: Tokens, summary: Tokens },
    #[error("{name} is 0 tokens, expected at least 1")]
    Zero { name: &'static str },
    #[error("retain is {retain} tokens, expected less than the window {window}")]
    Retain { retain: Tokens, window: Tokens },
    #[error("{key} belongs to the other policy than {policy}; leave it out or change the policy")]
    OtherPolicy { key: &'static str, policy: &'static str },
    #[error("the absolute policy needs max_output, the most tokens of a reply (at least 1)")]
    NoMaxOutput,
    #[error("the reduced window is {effective} tokens (window {window} - {reserved} for output), expected at least 1")]
    NothingLeft { effective: Tokens, window: Tokens, reserved: Tokens },
}

/// The window, divided.
///
/// | quantity | meaning | default share |
/// |---|---|---|
/// | `economy` | from here the model is told to be frugal | 0.5 |
/// | `checkpoint` | from here it is told to keep its durable facts in order | 0.625 |
/// | `compaction` | from here the turn is settled, summarised, replaced | 0.7 |
/// | `response` | cap of one reply | 0.1875 |
/// | `summary`, `summary_min` | most and least output of a summary, reasoning included | 0.0625, 0.0078125 |
/// | `safety` | never used by anything | 0.03125 |
/// | `retain` | verbatim tail of compactions that keep one | 0.244140625 |
/// | `effective` | `window - summary - safety`: what percentages refer to | |
///
/// ```
/// use plimsoll_runtime::budget::{Budget, BudgetConfig, Tokens};
///
/// let budget = Budget::resolve(Some(Tokens(64000)), &BudgetConfig::default())?;
/// assert_eq!(budget.compaction, Tokens(44800));
/// // A threshold that leaves no room for what may follow is refused with the numbers.
/// let late = BudgetConfig { compaction_tokens: Some(Tokens(46080)), ..BudgetConfig::default() };
/// let refusal = Budget::resolve(Some(Tokens(64000)), &late).unwrap_err().to_string();
/// assert!(refusal.contains("46080 + response 12000 + summary 4000 + safety 2000 = 64080"));
/// # Ok::<(), plimsoll_runtime::budget::BudgetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the table above explains the quantities")]
pub struct Budget {
    /// How the thresholds were found.
    pub policy: Policy,
    pub window: Tokens,
    pub economy: Tokens,
    pub checkpoint: Tokens,
    pub compaction: Tokens,
    pub response: Tokens,
    pub summary: Tokens,
    pub summary_min: Tokens,
    pub safety: Tokens,
    pub retain: Tokens,
    pub effective: Tokens,
    /// Absolute policy: a prompt of this many tokens is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocking: Option<Tokens>,
    /// Whether the engine compacts by itself.
    pub automatic_compaction: AutomaticCompaction,
    /// What was given and has no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<BudgetWarning>,
}

impl Budget {
    /// Divides the window. `window` wins over the one in the configuration.
    ///
    /// # Errors
    /// Says which invariant does not hold, with the numbers.
    pub fn resolve(window: Option<Tokens>, config: &BudgetConfig) -> Result<Self, BudgetError> {
        let window = window.or(config.window).ok_or(BudgetError::NoWindow)?;
        if window < SMALLEST_WINDOW {
            return Err(BudgetError::WindowTooSmall { window });
        }
        for Quantity { name, ratio, .. } in config.quantities() {
            if let Some(ratio) = ratio.filter(|ratio| !ratio.is_proper()) {
                return Err(BudgetError::ImproperRatio { name, ratio });
            }
        }
        let budget = match config.policy {
            Policy::Ratio => Self::by_ratio(window, config)?,
            Policy::Absolute => Self::by_subtraction(window, config)?,
        };
        if budget.retain >= window {
            return Err(BudgetError::Retain { retain: budget.retain, window });
        }
        Ok(budget)
    }

    fn by_ratio(window: Tokens, config: &BudgetConfig) -> Result<Self, BudgetError> {
        let foreign = [
            ("max_output", config.max_output.is_some()),
            ("cap", config.cap.is_some()),
            ("percent", config.percent.is_some()),
            ("blocking", config.blocking.is_some()),
        ];
        if let Some((key, _)) = foreign.into_iter().find(|(_, given)| *given) {
            return Err(BudgetError::OtherPolicy { key, policy: "ratio" });
        }
        let [economy, checkpoint, compaction, response, summary, summary_min, safety, retain] =
            config.quantities().map(|quantity| tokens(quantity, window));
        if !(Tokens(0) < economy && economy < checkpoint && checkpoint < compaction) {
            return Err(BudgetError::Order { economy, checkpoint, compaction });
        }
        let sum: u64 = [compaction, response, summary, safety].iter().map(|t| u64::from(t.0)).sum();
        if sum >= u64::from(window.0) {
            let excess = sum + 1 - u64::from(window.0);
            return Err(BudgetError::Sum { compaction, response, summary, safety, sum, window, excess });
        }
        if summary_min == Tokens(0) || summary_min > summary {
            return Err(BudgetError::SummaryMin { summary_min, summary });
        }
        if response == Tokens(0) {
            return Err(BudgetError::Zero { name: "response" });
        }
        let automatic_compaction = if config.automatic_compaction == Some(false) {
            AutomaticCompaction::Off
        } else if summary < LEAST_SUMMARY {
            AutomaticCompaction::SummaryTooSmall { summary, needed: LEAST_SUMMARY }
        } else {
            AutomaticCompaction::On
        };
        Ok(Self {
            policy: Policy::Ratio,
            window,
            economy,
            checkpoint,
            compaction,
            response,
            summary,
            summary_min,
            safety,
            retain,
            effective: window.saturating_sub(summary).saturating_sub(safety),
            blocking: None,
            automatic_compaction,
            warnings: Vec::new(),
        })
    }

    /// The absolute policy in the terms of the other: the output it sets aside is the summary, nothing is safety, and
    /// economy and checkpoint both stand at the warning, or, where that falls to 0, at the compaction: a warning from the
    /// first token on warns of nothing.
    fn by_subtraction(window: Tokens, config: &BudgetConfig) -> Result<Self, BudgetError> {
        let [economy, checkpoint, compaction, response, summary, summary_min, safety, retain] = config.quantities();
        let given = |q: &Quantity| q.ratio.is_some() || q.tokens.is_some();
        if let Some(q) = [economy, checkpoint, compaction, response, summary, safety].iter().find(|q| given(q)) {
            return Err(BudgetError::OtherPolicy { key: q.name, policy: "absolute" });
        }
        let max_output = config.max_output.filter(|t| t.0 > 0).ok_or(BudgetError::NoMaxOutput)?;
        let mut warnings = Vec::new();
        let percent = config.percent.as_ref().and_then(|percent| {
            let accepted = percent.accepted();
            if accepted.is_none() {
                warnings.push(BudgetWarning::PercentIgnored { found: percent.to_string() });
            }
            accepted
        });
        let find =
            |automatic| AbsoluteThresholds::new(window, max_output, config.cap, percent, config.blocking, automatic);
        let wanted = config.automatic_compaction != Some(false);
        let mut thresholds = find(wanted);
        let counted = window.min(config.cap.unwrap_or(window));
        let summary = AbsoluteThresholds::summary(max_output);
        if thresholds.effective == Tokens(0) {
            return Err(BudgetError::NothingLeft { effective: Tokens(0), window: counted, reserved: summary });
        }
        let automatic_compaction = match thresholds.automatic_compaction() {
            _ if !wanted => AutomaticCompaction::Off,
            AutomaticCompaction::On if summary < LEAST_SUMMARY => {
                AutomaticCompaction::SummaryTooSmall { summary, needed: LEAST_SUMMARY }
            }
            found => found,
        };
        if !automatic_compaction.is_on() {
            thresholds = find(false);
        }
        let summary_min = tokens(summary_min, counted);
        // The default share may exceed a small summary; one that was asked for may not.
        let summary_min = if given(&config.quantities()[5]) { summary_min } else { summary_min.min(summary) };
        if summary_min == Tokens(0) || summary_min > summary {
            return Err(BudgetError::SummaryMin { summary_min, summary });
        }
        let warning = match thresholds.warning {
            Tokens(0) => thresholds.compaction,
            warning => warning.min(thresholds.compaction),
        };
        Ok(Self {
            policy: Policy::Absolute,
            window: counted,
            economy: warning,
            checkpoint: warning,
            compaction: thresholds.compaction,
            response: max_output,
            summary,
            summary_min,
            safety: Tokens(0),
            retain: tokens(retain, counted),
            effective: thresholds.effective,
            blocking: Some(thresholds.blocking),
            automatic_compaction,
            warnings,
        })
    }

    /// The same budget for a request that switches automatic compaction off.
    #[must_use]
    pub fn without_automatic_compaction(mut self) -> Self {
        if self.automatic_compaction.is_on() {
            self.automatic_compaction = AutomaticCompaction::Off;
        }
        self
    }
}

/// A quantity in tokens: the ratio wins over the tokens given beside it, the default over nothing.
fn tokens(quantity: Quantity, window: Tokens) -> Tokens {
    match (quantity.ratio, quantity.tokens) {
        (Some(ratio), _) => ratio.of(window),
        (None, Some(tokens)) => tokens,
        (None, None) => quantity.default.of(window),
    }
}
