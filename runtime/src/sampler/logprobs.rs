//! What is reported about a token: log-probabilities of the model's own distribution.
//!
//! Read from the logits before bias, penalties, bans and truncation, by log-sum-exp, so that they do not depend on how
//! the token was chosen. A token the model holds for impossible has negative infinity.

use super::candidates::{Ranked, select_highest};
use super::mass::exp;
use crate::engine::TokenLogprob;

/// The log-probability of `token` and of the `n` likeliest tokens, best first.
pub(super) fn report(logits: &[f32], token: u32, n: u32, ranking: &mut Vec<Ranked>) -> (f32, Vec<TokenLogprob>) {
    // `f32::max` and `min` pass over NaN; infinity counts as the largest number.
    let finite = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
    let highest = logits.iter().fold(f32::NEG_INFINITY, |highest, &logit| highest.max(finite(logit)));
    let sum: f64 = logits.iter().map(|&logit| f64::from(exp(finite(logit) - highest))).sum();
    let log_sum = f64::from(highest) + sum.ln();
    let logprob = |logit: f32| match finite(logit) {
        f32::NEG_INFINITY => f32::NEG_INFINITY,
        logit => (f64::from(logit) - log_sum) as f32,
    };
    let mut top = Vec::new();
    if n > 0 {
        select_highest(logits, n as usize, ranking);
        ranking.sort_unstable_by(Ranked::order);
        top.extend(ranking.iter().map(|r| TokenLogprob { token: r.token, logprob: logprob(-r.key) }));
    }
    (logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| logprob(logit)), top)
}
