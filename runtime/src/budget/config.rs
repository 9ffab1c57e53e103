//! What a preset says about its window.
//!
//! Read from JSON or TOML; unknown keys are refused. Each quantity may be a share of the window (`compaction_ratio`) or a
//! number of tokens (`compaction_tokens`); where both stand the ratio wins, where neither stands the default ratio
//! holds. What the numbers mean and which are accepted is said where they are resolved.

use serde::{Deserialize, Serialize};

use super::{PercentOverride, Ratio, Tokens};

/// How thresholds follow from the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// As shares of the window.
    #[default]
    Ratio,
    /// By subtracting fixed amounts from the reduced window.
    Absolute,
}

/// The window's part of a preset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the sixteen pairs are explained by the table of quantities in `Budget`")]
pub struct BudgetConfig {
    /// How thresholds follow from the window.
    pub policy: Policy,
    /// Tokens of the window, prompt and reply together; may be given by the caller instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Tokens>,
    /// Whether the engine compacts by itself where it can; left out, it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automatic_compaction: Option<bool>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub economy_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub economy_tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_min_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_min_tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safety_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safety_tokens: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_tokens: Option<Tokens>,

    /// Absolute policy: most tokens of a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<Tokens>,
    /// Absolute policy: the window counts as no larger than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<Tokens>,
    /// Absolute policy: compaction at this percentage of the reduced window, where that is earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<PercentOverride>,
    /// Absolute policy: a prompt of this many tokens is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocking: Option<Tokens>,
}

/// A quantity with its name, its two keys and its default ratio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantity {
    pub name: &'static str,
    pub ratio: Option<Ratio>,
    pub tokens: Option<Tokens>,
    pub default: Ratio,
}

impl BudgetConfig {
    /// The eight quantities: economy, checkpoint, compaction, response, summary, summary_min, safety, retain.
    pub(super) fn quantities(&self) -> [Quantity; 8] {
        let quantity = |name, ratio, tokens, default| Quantity { name, ratio, tokens, default };
        let [economy, checkpoint, compaction, response, summary, summary_min, safety, retain] = DEFAULT_RATIOS;
        [
            quantity("economy", self.economy_ratio, self.economy_tokens, economy),
            quantity("checkpoint", self.checkpoint_ratio, self.checkpoint_tokens, checkpoint),
            quantity("compaction", self.compaction_ratio, self.compaction_tokens, compaction),
            quantity("response", self.response_ratio, self.response_tokens, response),
            quantity("summary", self.summary_ratio, self.summary_tokens, summary),
            quantity("summary_min", self.summary_min_ratio, self.summary_min_tokens, summary_min),
            quantity("safety", self.safety_ratio, self.safety_tokens, safety),
            quantity("retain", self.retain_ratio, self.retain_tokens, retain),
        ]
    }
}

/// 0.5, 0.625, 0.7, 3/16, 1/16, 1/128, 1/32, 125/512: in the order of [`BudgetConfig::quantities`].
pub(super) const DEFAULT_RATIOS: [Ratio; 8] = [
    Ratio::new(5, 1),
    Ratio::new(625, 3),
    Ratio::new(7, 1),
    Ratio::new(1875, 4),
    Ratio::new(625, 4),
    Ratio::new(78_125, 7),
    Ratio::new(3125, 5),
    Ratio::new(244_140_625, 9),
];
