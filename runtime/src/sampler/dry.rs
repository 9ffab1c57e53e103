//! DRY: the penalty on continuing a repetition.
//!
//! If the sequence ends with tokens that it has already contained, the token that followed them then is punished by
//! `multiplier * base ^ (length - allowed_length)`, where `length` is how much repeats, from `allowed_length` on. A
//! match never reaches across a breaker, a breaker is never punished, and the longest match decides. The rule is
//! p-e-w's (text-generation-webui pull request 5677); all matches are found in linear time by the Z-function of the
//! reversed sequence, as llama.cpp does.

use std::collections::{HashMap, HashSet};

use crate::engine::SamplingParams;

/// The stage with its scratch memory; nothing but the breakers is kept between tokens.
#[derive(Clone, Debug)]
pub(super) struct Dry {
    /// A set, since every token of the sequence may be looked for in it.
    breakers: HashSet<u32>,
    /// `z[i]`: how many tokens before the end also stand before the place `i` tokens further back.
    z: Vec<usize>,
    /// The longest match that each token would continue, in tokens.
    longest: HashMap<u32, usize>,
}

impl Dry {
    pub(super) fn new(params: &SamplingParams) -> Self {
        Self { breakers: params.dry_breakers.iter().copied().collect(), z: Vec::new(), longest: HashMap::new() }
    }

    /// Lowers the logits (`[vocab]`) of tokens that would continue a repetition of `sequence`.
    pub(super) fn penalise(&mut self, params: &SamplingParams, sequence: &[u32], logits: &mut [f32]) {
        if params.dry_multiplier <= 0.0 {
            return;
        }
        let reach = match params.dry_penalty_last_n {
            0 => sequence.len(),
            n => sequence.len().min(n as usize),
        };
        let sequence = &sequence[sequence.len() - reach..];
        let unbroken = sequence.iter().rev().position(|token| self.breakers.contains(token)).unwrap_or(sequence.len());
        let shortest = (params.dry_allowed_length as usize).max(1);
        if unbroken < shortest {
            return;
        }
        self.match_lengths(sequence);
        self.longest.clear();
        let back = |i: usize| sequence[sequence.len() - 1 - i];
        for (i, &z) in self.z.iter().enumerate().skip(1) {
            let length = z.min(unbroken);
            let next = back(i - 1);
            if length >= shortest && !self.breakers.contains(&next) {
                let longest = self.longest.entry(next).or_default();
                *longest = length.max(*longest);
            }
        }
        for (token, length) in &self.longest {
            if let Some(logit) = logits.get_mut(*token as usize) {
                let excess = (length - params.dry_allowed_length as usize) as f32;
                // A long match overflows to infinity; the largest number says the same and cannot become NaN.
                *logit -= (params.dry_multiplier * params.dry_base.powf(excess)).min(f32::MAX);
            }
        }
    }

    /// The Z-function of the reversed sequence.
    fn match_lengths(&mut self, sequence: &[u32]) {
        let n = sequence.len();
        let back = |i: usize| sequence[n - 1 - i];
        self.z.clear();
        self.z.resize(n, 0);
        // [left, right) is the match found so far that reaches furthest.
        let (mut left, mut right) = (0, 0);
        for i in 1..n {
            let mut z = if i < right { self.z[i - left].min(right - i) } else { 0 };
            while i + z < n && back(z) == back(i + z) {
                z += 1;
            }
            if i + z > right {
                (left, right) = (i, i + z);
            }
            self.z[i] = z;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampler::naive;

    fn penalties(params: &SamplingParams, sequence: &[u32]) -> Vec<f32> {
        let mut logits = vec![0.0; 8];
        Dry::new(params).penalise(params, sequence, &mut logits);
        logits
    }

    fn params() -> SamplingParams {
        SamplingParams { dry_multiplier: 1.0, dry_base: 2.0, dry_allowed_length: 2, ..Default::default() }
    }

    #[test]
    fn the_token_that_would_continue_a_repetition_is_punished_by_its_length() {
        // 1 2 3 was said, and the end is 1 2 again.
        assert_eq!(penalties(&params(), &[1, 2, 3, 0, 1, 2])[3], -1.0);
        assert_eq!(penalties(&params(), &[4, 1, 2, 3, 0, 4, 1, 2])[3], -2.0);
        assert_eq!(penalties(&params(), &[2, 3, 0, 1, 2]), [0.0; 8], "one token is within the allowed length");
    }

    #[test]
    fn a_breaker_ends_a_match_and_is_never_punished() {
        let broken = SamplingParams { dry_breakers: vec![1], ..params() };
        assert_eq!(penalties(&broken, &[4, 1, 2, 3, 0, 4, 1, 2]), [0.0; 8]);
        let next = SamplingParams { dry_breakers: vec![3], ..params() };
        assert_eq!(penalties(&next, &[4, 1, 2, 3, 0, 4, 1, 2]), [0.0; 8]);
    }

    #[test]
    fn what_lies_beyond_the_reach_is_forgotten() {
        let near = SamplingParams { dry_penalty_last_n: 5, ..params() };
        assert_eq!(penalties(&near, &[1, 2, 3, 0, 1, 2]), [0.0; 8]);
        let far = SamplingParams { dry_penalty_last_n: 6, ..params() };
        assert_eq!(penalties(&far, &[1, 2, 3, 0, 1, 2])[3], -1.0);
    }

    #[test]
    fn an_endless_repetition_stays_finite() {
        let logits = penalties(&params(), &[5; 4000]);
        assert_eq!(logits[5], f32::MIN);
    }

    proptest! {
        #[test]
        fn the_linear_search_finds_what_the_plain_one_finds(
            sequence in prop::collection::vec(0u32..4, 0..40),
            breakers in prop::collection::vec(0u32..8, 0..2),
            allowed in 0u32..4,
            reach in 0u32..50,
        ) {
            let params = SamplingParams {
                dry_breakers: breakers, dry_allowed_length: allowed, dry_penalty_last_n: reach, ..params()
            };
            let want: Vec<f32> = (0..8).map(|t| -naive::dry_penalty(&params, &sequence, t) as f32).collect();
            prop_assert_eq!(penalties(&params, &sequence), want);
        }
    }
}
