//! The whole chain by sorting everything: the oracle of the tests.
//!
//! Floating point, the library's exponential, one sort per stage, no scratch. Returns the distribution that the draw
//! must follow, and how near the nearest decision was to its border: where the two arithmetics may rightly disagree,
//! tests look away.

use crate::engine::SamplingParams;

/// The outcome of all stages.
pub(super) struct Shaped {
    /// Probability of every kept token, in the order of the ids.
    pub distribution: Vec<(u32, f64)>,
    /// Least distance of any decision from its border.
    pub margin: f64,
}

/// What DRY subtracts from the logit of `next`.
pub(super) fn dry_penalty(params: &SamplingParams, sequence: &[u32], next: u32) -> f64 {
    let reach = if params.dry_penalty_last_n == 0 { usize::MAX } else { params.dry_penalty_last_n as usize };
    let sequence = &sequence[sequence.len().saturating_sub(reach)..];
    let breaker = |token: u32| params.dry_breakers.contains(&token);
    let mut longest = 0;
    for place in 0..sequence.len() {
        if sequence[place] == next && !breaker(next) {
            let ends = sequence[..place].iter().rev().zip(sequence.iter().rev());
            longest = longest.max(ends.take_while(|(a, b)| a == b && !breaker(**a)).count());
        }
    }
    if longest == 0 || longest < params.dry_allowed_length as usize {
        return 0.0;
    }
    let excess = longest - params.dry_allowed_length as usize;
    f64::from(params.dry_multiplier) * f64::from(params.dry_base).powi(excess as i32)
}

/// Bias, penalties and bans on sanitised logits.
fn shape(params: &SamplingParams, prompt: &[u32], reply: &[u32], banned: &[u32], logits: &[f32]) -> Vec<f64> {
    let sequence: Vec<u32> = prompt.iter().chain(reply).copied().collect();
    let window = &sequence[sequence.len().saturating_sub(params.repeat_last_n as usize)..];
    let shape = |(token, &logit): (u32, &f32)| {
        if logit.is_nan() || banned.contains(&token) {
            return f64::NEG_INFINITY;
        }
        let mut l = f64::from(logit.min(f32::MAX));
        l += params.logit_bias.iter().filter(|b| b.0 == token).map(|b| f64::from(b.1)).sum::<f64>();
        if window.contains(&token) {
            let penalty = f64::from(params.repetition_penalty);
            l = if l > 0.0 { l / penalty } else { l * penalty };
        }
        let said = reply.iter().filter(|t| **t == token).count();
        l -= said as f64 * f64::from(params.frequency_penalty);
        l -= if said > 0 { f64::from(params.presence_penalty) } else { 0.0 };
        if params.dry_multiplier > 0.0 {
            l -= dry_penalty(params, &sequence, token);
        }
        l
    };
    (0..).zip(logits).map(shape).collect()
}

fn softmax(kept: &[(u32, f64)]) -> Vec<f64> {
    let highest = kept.iter().map(|k| k.1).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = kept.iter().map(|k| (k.1 - highest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// Keeps the leading entries until their probabilities reach `p`.
fn cut(kept: &mut Vec<(u32, f64)>, probabilities: &[f64], p: f64, margin: &mut f64) {
    let mut sum = 0.0;
    for (i, probability) in probabilities.iter().enumerate() {
        sum += probability;
        *margin = margin.min((sum - p).abs());
        if sum >= p {
            return kept.truncate(i + 1);
        }
    }
}

/// The distribution that the draw must follow; `None` where no token is possible. `excludes`: whether XTC struck.
pub(super) fn chain(
    params: &SamplingParams,
    prompt: &[u32],
    reply: &[u32],
    banned: &[u32],
    logits: &[f32],
    excludes: bool,
) -> Option<Shaped> {
    let shaped = shape(params, prompt, reply, banned, logits);
    let mut margin = f64::INFINITY;
    let mut kept: Vec<(u32, f64)> = (0..).zip(shaped).filter(|k| k.1 > f64::NEG_INFINITY).collect();
    if kept.is_empty() {
        return None;
    }
    let by_logit = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    kept.sort_by(by_logit);
    // Ties that rounding may break differently make a border uncertain.
    let ties = |kept: &[(u32, f64)]| {
        let gaps = kept.windows(2).map(|w| (w[0].1 - w[1].1).abs()).filter(|gap| *gap > 0.0);
        gaps.fold(f64::INFINITY, f64::min)
    };
    margin = margin.min(ties(&kept));
    if params.top_k > 0 {
        kept.truncate(params.top_k as usize);
    }
    if params.typical_p < 1.0 {
        let p = softmax(&kept);
        let entropy: f64 = -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
        let mut by_surprise: Vec<((u32, f64), f64)> = kept.iter().copied().zip(p.iter().copied()).collect();
        let surprise = |p: f64| (-p.ln() - entropy).abs();
        by_surprise.sort_by(|a, b| surprise(a.1).total_cmp(&surprise(b.1)).then(a.0.0.cmp(&b.0.0)));
        for w in by_surprise.windows(2) {
            // Equal probabilities are equally surprising in either arithmetic; other near ties are not certain.
            if w[0].1 != w[1].1 {
                margin = margin.min(surprise(w[1].1) - surprise(w[0].1));
            }
        }
        kept = by_surprise.iter().map(|b| b.0).collect();
        let p: Vec<f64> = by_surprise.iter().map(|b| b.1).collect();
        cut(&mut kept, &p, f64::from(params.typical_p), &mut margin);
        kept.sort_by(by_logit);
    }
    if params.top_p < 1.0 {
        let p = softmax(&kept);
        cut(&mut kept, &p, f64::from(params.top_p), &mut margin);
    }
    if params.min_p > 0.0 {
        let least = softmax(&kept)[0] * f64::from(params.min_p);
        let p = softmax(&kept);
        margin = p.iter().fold(margin, |m, p| m.min((p - least).abs()));
        kept.truncate(p.iter().filter(|p| **p >= least).count());
    }
    if excludes {
        let p = softmax(&kept);
        let threshold = f64::from(params.xtc_threshold);
        margin = p.iter().fold(margin, |m, p| m.min((p - threshold).abs()));
        let eligible = p.iter().filter(|p| **p >= threshold).count();
        kept.drain(..eligible.saturating_sub(1));
    }
    kept.iter_mut().for_each(|k| k.1 /= f64::from(params.temperature));
    let p = softmax(&kept);
    let mut distribution: Vec<(u32, f64)> = kept.iter().map(|k| k.0).zip(p).collect();
    distribution.sort_by_key(|d| d.0);
    Some(Shaped { distribution, margin })
}
