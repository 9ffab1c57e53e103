//! The stages in their order.
//!
//! Owns everything one choice needs to choose: parameters, random numbers, history, scratch. Never ends a reply: end
//! tokens, caps and stop strings are the engine's business. The order is described in the module above.

use rand::{RngCore, SeedableRng};
use rand_pcg::Pcg64;

use super::candidates::{Candidates, Ranked};
use super::dry::Dry;
use super::history::History;
use super::logprobs;
use crate::engine::{SamplingParams, TokenOut};

/// Chooses the tokens of one choice of one request.
///
/// ```
/// use plimsoll_runtime::engine::SamplingParams;
/// use plimsoll_runtime::sampler::Sampler;
///
/// let greedy = SamplingParams { temperature: 0.0, logprobs: Some(1), ..SamplingParams::default() };
/// let mut sampler = Sampler::new(&greedy, 0, &[1, 2], &[], 4);
/// let out = sampler.sample(&[0.0, 3.0, 1.0, 2.0], &[]);
/// assert_eq!((out.token, out.top[0].token), (1, 1));
/// // Token 1 is forbidden this time.
/// assert_eq!(sampler.sample(&[0.0, 3.0, 1.0, 2.0], &[1]).token, 3);
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    /// Never chosen.
    banned: Vec<u32>,
    vocab: usize,
    rng: Pcg64,
    history: History,
    dry: Dry,
    /// The logits after bias, penalties and bans, `[vocab]`.
    shaped: Vec<f32>,
    candidates: Candidates,
    /// Scratch of the reported alternatives.
    ranking: Vec<Ranked>,
}

impl Sampler {
    /// A sampler for the given choice of a request with this prompt. `banned` tokens are never chosen; `vocab` is the
    /// number of logits that count. The parameters are validated by the caller; token ids beyond the vocabulary have no
    /// effect.
    #[must_use]
    pub fn new(params: &SamplingParams, choice: u32, prompt: &[u32], banned: &[u32], vocab: usize) -> Self {
        Self {
            history: History::new(params, prompt),
            params: params.clone(),
            banned: banned.to_vec(),
            vocab,
            rng: Pcg64::seed_from_u64(params.seed.wrapping_add(u64::from(choice))),
            dry: Dry::new(params),
            shaped: Vec::with_capacity(vocab),
            candidates: Candidates::default(),
            ranking: Vec::new(),
        }
    }

    /// Chooses the next token from `logits` (`[vocab]`) and counts it as said. `forbidden` tokens are impossible this
    /// once (end tokens before `min_tokens`, say).
    ///
    /// NaN counts as impossible and infinity as the largest number. If nothing is possible, the lowest id that is
    /// neither banned nor forbidden is chosen, and failing that the lowest that is not banned.
    #[must_use]
    pub fn sample(&mut self, logits: &[f32], forbidden: &[u32]) -> TokenOut {
        let out = self.propose(logits, forbidden);
        self.accept(out.token);
        out
    }

    /// The next token, not yet counted as said: [`Self::accept`] it, or another in its place.
    #[must_use]
    pub fn propose(&mut self, logits: &[f32], forbidden: &[u32]) -> TokenOut {
        let logits = &logits[..logits.len().min(self.vocab)];
        let token = self.choose(logits, forbidden);
        let (logprob, top) = match self.params.logprobs {
            None => (None, Vec::new()),
            Some(n) => {
                let (logprob, top) = logprobs::report(logits, token, n, &mut self.ranking);
                (Some(logprob), top)
            }
        };
        TokenOut { token, logprob, top }
    }

    /// Counts a token as said that was not chosen here (a forced one).
    pub fn accept(&mut self, token: u32) {
        self.history.accept(token);
    }

    fn choose(&mut self, logits: &[f32], forbidden: &[u32]) -> u32 {
        self.shape(logits, forbidden);
        if self.params.temperature == 0.0 {
            return self.likeliest().unwrap_or_else(|| self.least_bad(forbidden));
        }
        // Drawn whether or not anything is left to exclude, so that a token's draw depends on its place alone.
        let exclude = self.params.xtc_probability > 0.0 && {
            let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            uniform < f64::from(self.params.xtc_probability)
        };
        if self.truncate(exclude) { self.candidates.draw(&mut self.rng) } else { self.least_bad(forbidden) }
    }

    /// Bias, penalties, bans.
    fn shape(&mut self, logits: &[f32], forbidden: &[u32]) {
        self.shaped.clear();
        self.shaped.extend_from_slice(logits);
        self.shaped.resize(self.vocab, f32::NEG_INFINITY);
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = self.shaped.get_mut(token as usize) {
                *logit += bias;
            }
        }
        self.history.penalise(&self.params, &mut self.shaped);
        self.dry.penalise(&self.params, self.history.sequence(), &mut self.shaped);
        for &token in self.banned.iter().chain(forbidden) {
            if let Some(logit) = self.shaped.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn likeliest(&self) -> Option<u32> {
        let mut best = (None, f32::NEG_INFINITY);
        for (token, &logit) in (0..).zip(&self.shaped) {
            if logit > best.1 {
                best = (Some(token), logit);
            }
        }
        best.0
    }

    /// The truncations and the temperature. False if no token is possible.
    fn truncate(&mut self, exclude_top_choices: bool) -> bool {
        let params = &self.params;
        if !self.candidates.collect(&self.shaped, params.top_k) {
            return false;
        }
        self.candidates.typical_p(params.typical_p);
        self.candidates.top_p(params.top_p);
        self.candidates.min_p(params.min_p);
        if exclude_top_choices {
            self.candidates.xtc(params.xtc_threshold);
        }
        self.candidates.weigh(params.temperature);
        true
    }

    /// What to say when the model offers nothing.
    fn least_bad(&self, forbidden: &[u32]) -> u32 {
        let lowest = |refused: &dyn Fn(&u32) -> bool| (0..self.vocab as u32).find(|token| !refused(token));
        lowest(&|token| self.banned.contains(token) || forbidden.contains(token))
            .or_else(|| lowest(&|token| self.banned.contains(token)))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::RngCore;

    use super::super::naive;
    use super::*;

    const LOGITS: [f32; 6] = [1.0, 4.0, 2.0, 3.0, -1.0, 0.0];

    fn neutral() -> SamplingParams {
        SamplingParams { seed: 7, ..SamplingParams::default() }
    }

    fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..neutral() }
    }

    fn sampler(params: &SamplingParams, prompt: &[u32]) -> Sampler {
        Sampler::new(params, 0, prompt, &[], 6)
    }

    /// The tokens that can be drawn with the given parameters.
    fn kept(params: &SamplingParams, exclude: bool) -> Vec<u32> {
        let mut sampler = sampler(params, &[]);
        sampler.shape(&LOGITS, &[]);
        assert!(sampler.truncate(exclude));
        sampler.candidates.distribution().iter().map(|d| d.0).collect()
    }

    fn replies(params: &SamplingParams, choice: u32, n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(params, choice, &[1, 2], &[], 6);
        (0..n).map(|_| sampler.sample(&LOGITS, &[]).token).collect()
    }

    #[test]
    fn temperature_zero_takes_the_likeliest_and_the_lower_id_on_a_tie() {
        assert_eq!(sampler(&greedy(), &[]).sample(&LOGITS, &[]).token, 1);
        assert_eq!(sampler(&greedy(), &[]).sample(&[1.0, 2.0, 2.0], &[]).token, 1);
    }

    #[test]
    fn a_bias_moves_a_token_and_a_ban_beats_any_bias() {
        let biased = SamplingParams { logit_bias: vec![(4, 10.0), (1, -3.5)], ..greedy() };
        assert_eq!(sampler(&biased, &[]).sample(&LOGITS, &[]).token, 4);
        assert_eq!(sampler(&biased, &[]).sample(&LOGITS, &[4]).token, 3);
        assert_eq!(Sampler::new(&biased, 0, &[], &[4, 3], 6).sample(&LOGITS, &[]).token, 2);
    }

    #[test]
    fn a_forbidden_token_is_possible_again_next_time() {
        let mut sampler = sampler(&greedy(), &[]);
        assert_eq!(sampler.sample(&LOGITS, &[1]).token, 3);
        assert_eq!(sampler.sample(&LOGITS, &[]).token, 1);
    }

    #[test]
    fn presence_counts_once_and_frequency_counts_each_occurrence_in_the_reply() {
        let presence = SamplingParams { presence_penalty: 1.5, ..greedy() };
        let mut sampler = sampler(&presence, &[3, 3, 3]);
        let said: Vec<u32> = (0..4).map(|_| sampler.sample(&LOGITS, &[]).token).collect();
        // 4.0 falls to 2.5, then 3.0 to 1.5, then 2.5 leads and stays where it is.
        assert_eq!(said, [1, 3, 1, 1]);
        let frequency = SamplingParams { frequency_penalty: 0.75, ..greedy() };
        let mut sampler = super::tests::sampler(&frequency, &[3, 3, 3]);
        let said: Vec<u32> = (0..5).map(|_| sampler.sample(&LOGITS, &[]).token).collect();
        // 4.0, 3.25, then 3.0 of token 3, then 2.5 of token 1, then 2.25 of token 3.
        assert_eq!(said, [1, 1, 3, 1, 3]);
    }

    #[test]
    fn repetition_counts_the_prompt_within_its_window_and_lowers_negative_logits_too() {
        let params = SamplingParams { repetition_penalty: 2.0, repeat_last_n: 2, ..neutral() };
        let mut sampler = sampler(&params, &[1, 4, 3]);
        sampler.shape(&LOGITS, &[]);
        assert_eq!(sampler.shaped, [1.0, 4.0, 2.0, 1.5, -2.0, 0.0]);
        sampler.accept(3);
        sampler.shape(&LOGITS, &[]);
        assert_eq!(sampler.shaped, [1.0, 4.0, 2.0, 1.5, -1.0, 0.0]);
        sampler.accept(1);
        sampler.accept(1);
        sampler.shape(&LOGITS, &[]);
        assert_eq!(sampler.shaped, [1.0, 2.0, 2.0, 3.0, -1.0, 0.0]);
    }

    #[test]
    fn dry_keeps_a_loop_from_going_on() {
        let params = SamplingParams { dry_multiplier: 4.0, ..greedy() };
        // 0 2 1 was said and 0 2 stands at the end: the likeliest token would go on with the loop.
        assert_eq!(sampler(&params, &[0, 2, 1, 5, 0, 2]).sample(&LOGITS, &[]).token, 3);
        assert_eq!(sampler(&greedy(), &[0, 2, 1, 5, 0, 2]).sample(&LOGITS, &[]).token, 1);
    }

    #[test]
    fn each_truncation_keeps_what_its_name_says() {
        // Probabilities: 0.032, 0.636, 0.086, 0.234, 0.004, 0.012 (rounded).
        assert_eq!(kept(&neutral(), false), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kept(&SamplingParams { top_k: 2, ..neutral() }, false), [1, 3]);
        assert_eq!(kept(&SamplingParams { top_k: 9, ..neutral() }, false), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kept(&SamplingParams { top_p: 0.9, ..neutral() }, false), [1, 2, 3]);
        assert_eq!(kept(&SamplingParams { top_p: 0.0, ..neutral() }, false), [1]);
        assert_eq!(kept(&SamplingParams { min_p: 0.1, ..neutral() }, false), [1, 2, 3]);
        assert_eq!(kept(&SamplingParams { min_p: 1.0, ..neutral() }, false), [1]);
        // The entropy is 1.04 nats; token 3 (1.45 nats) is nearest, then token 1 (0.45 nats).
        assert_eq!(kept(&SamplingParams { typical_p: 0.2, ..neutral() }, false), [3]);
        assert_eq!(kept(&SamplingParams { typical_p: 0.3, ..neutral() }, false), [1, 3]);
        let xtc = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.05, ..neutral() };
        assert_eq!(kept(&xtc, true), [0, 2, 4, 5], "of 1, 3, 2 the least likely stays");
        assert_eq!(kept(&SamplingParams { xtc_threshold: 0.6, ..xtc.clone() }, true), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kept(&SamplingParams { top_k: 3, top_p: 0.9, ..neutral() }, false), [1, 3], "0.9 of the three");
    }

    #[test]
    fn xtc_strikes_as_often_as_its_probability_says() {
        let count = |probability: f32| {
            let params = SamplingParams { xtc_probability: probability, xtc_threshold: 0.2, ..neutral() };
            // Struck, token 1 cannot be chosen; otherwise it has 0.636.
            replies(&params, 0, 4000).iter().filter(|t| **t == 1).count() as f64 / 4000.0
        };
        assert!((count(0.0) - 0.636).abs() < 0.03);
        assert!((count(0.5) - 0.636 / 2.0).abs() < 0.03);
        assert_eq!(count(1.0), 0.0);
    }

    #[test]
    fn temperature_comes_last_and_does_not_change_what_is_kept() {
        for temperature in [0.01, 0.5, 1.0, 2.0] {
            assert_eq!(kept(&SamplingParams { top_p: 0.9, temperature, ..neutral() }, false), [1, 2, 3]);
        }
    }

    #[test]
    fn the_same_seed_prompt_and_choice_give_the_same_tokens() {
        let params = SamplingParams { top_p: 0.95, ..neutral() };
        assert_eq!(replies(&params, 0, 200), replies(&params, 0, 200));
        assert_ne!(replies(&params, 0, 200), replies(&params, 1, 200));
        let next_seed = SamplingParams { seed: 8, ..params.clone() };
        assert_eq!(replies(&params, 1, 200), replies(&next_seed, 0, 200), "choices count up from the seed");
        let last_seed = SamplingParams { seed: u64::MAX, ..params };
        assert_eq!(replies(&last_seed, 1, 5).len(), 5);
    }

    #[test]
    fn a_neighbour_does_not_disturb_a_sampler() {
        let params = SamplingParams { temperature: 0.8, repetition_penalty: 1.1, ..neutral() };
        let alone = replies(&params, 0, 100);
        let (mut a, mut b) = (Sampler::new(&params, 0, &[1, 2], &[], 6), Sampler::new(&neutral(), 3, &[5], &[], 6));
        let beside: Vec<u32> = (0..100)
            .map(|_| {
                let _ = b.sample(&LOGITS, &[]);
                a.sample(&LOGITS, &[]).token
            })
            .collect();
        assert_eq!(alone, beside);
    }

    #[test]
    fn the_seed_fixes_the_tokens_across_releases() {
        assert_eq!(replies(&neutral(), 0, 12), [0, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 3]);
    }

    #[test]
    fn draws_follow_the_distribution() {
        for (temperature, top_p) in [(1.0, 1.0), (0.7, 1.0), (1.8, 0.95)] {
            let params = SamplingParams { temperature, top_p, ..neutral() };
            let want = naive::chain(&params, &[], &[], &[], &LOGITS, false).expect("possible").distribution;
            let draws = 60_000;
            let mut seen = [0u32; 6];
            for token in replies(&params, 0, draws) {
                seen[token as usize] += 1;
            }
            let mut chi_square = 0.0;
            for (token, probability) in &want {
                let expected = probability * draws as f64;
                chi_square += (f64::from(seen[*token as usize]) - expected).powi(2) / expected;
            }
            assert_eq!(seen.iter().sum::<u32>(), want.iter().map(|w| seen[w.0 as usize]).sum::<u32>());
            // 20.5 is the 0.999 quantile for five degrees of freedom.
            assert!(chi_square < 20.5, "chi-square {chi_square} at temperature {temperature}, top_p {top_p}");
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_untouched_distribution() {
        let params =
            SamplingParams { logprobs: Some(3), logit_bias: vec![(4, 50.0)], temperature: 0.1, top_k: 1, ..neutral() };
        let out = sampler(&params, &[]).sample(&LOGITS, &[]);
        let log_sum = LOGITS.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        assert_eq!(out.token, 4);
        let close = |found: f32, logit: f64| (f64::from(found) - (logit - log_sum)).abs() < 1e-6;
        assert!(close(out.logprob.expect("asked for"), -1.0));
        assert_eq!(out.top.iter().map(|t| t.token).collect::<Vec<_>>(), [1, 3, 2]);
        assert!(out.top.iter().zip([4.0, 3.0, 2.0]).all(|(t, logit)| close(t.logprob, logit)));
        let none = sampler(&SamplingParams { logprobs: Some(0), ..neutral() }, &[]).sample(&LOGITS, &[]);
        assert!(none.logprob.is_some() && none.top.is_empty());
        let off = sampler(&neutral(), &[]).sample(&LOGITS, &[]);
        assert!(off.logprob.is_none() && off.top.is_empty());
    }

    #[test]
    fn broken_logits_never_panic() {
        let params = [
            greedy(),
            neutral(),
            SamplingParams { typical_p: 0.5, top_p: 0.5, min_p: 0.1, top_k: 2, ..neutral() },
            SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.0, repetition_penalty: 0.01, ..neutral() },
            SamplingParams { dry_multiplier: 1e30, dry_base: 1e30, logprobs: Some(20), ..neutral() },
            SamplingParams { temperature: f32::MIN_POSITIVE / 2.0, logprobs: Some(2), ..neutral() },
        ];
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for params in &params {
            let first = |logits: &[f32], forbidden: &[u32]| {
                let mut sampler = Sampler::new(params, 0, &[1, 1, 1, 1, 1, 9], &[0], 6);
                (0..20).map(|_| sampler.sample(logits, forbidden).token).next_back().expect("twenty")
            };
            assert_eq!(first(&[nan; 6], &[]), 1, "the lowest id that is not banned");
            assert_eq!(first(&[nan; 6], &[1, 2]), 3);
            assert_eq!(first(&[], &[1, 2, 3, 4, 5]), 1, "what is merely forbidden before what is banned");
            assert_eq!(first(&[inf, -inf, nan, 0.0, nan, -inf], &[]), 3);
            assert!([2, 4].contains(&first(&[inf, nan, inf, 0.0, inf, 1.0], &[])));
            assert!(first(&[f32::MAX, f32::MIN, f32::MAX, f32::MIN, f32::MAX, 0.0], &[]) < 6);
            assert!(first(&[0.0; 100], &[]) < 6, "rows may be longer than the vocabulary");
        }
        assert_eq!(Sampler::new(&neutral(), 0, &[], &[], 0).sample(&[], &[]).token, 0);
    }

    #[test]
    fn scratch_memory_is_reused_after_the_first_token() {
        let params = SamplingParams { typical_p: 0.9, top_p: 0.9, xtc_probability: 0.5, ..neutral() };
        let vocab = 5000;
        let row = |step: usize| -> Vec<f32> { (0..vocab).map(|i| ((i * 31 + step * 7) % 97) as f32 / 9.0).collect() };
        let mut sampler = Sampler::new(&params, 0, &[], &[], vocab);
        let _ = sampler.sample(&row(0), &[]);
        let warm = (sampler.shaped.capacity(), sampler.candidates.capacities());
        for step in 1..50 {
            let _ = sampler.sample(&row(step), &[]);
            assert_eq!((sampler.shaped.capacity(), sampler.candidates.capacities()), warm);
        }
    }

    prop_compose! {
        fn any_params()(
            temperature in prop::sample::select(vec![0.05f32, 0.6, 1.0, 2.0]),
            top_p in prop::sample::select(vec![1.0f32, 0.95, 0.713, 0.3, 0.0]),
            top_k in 0u32..8,
            min_p in prop::sample::select(vec![0.0f32, 0.0, 0.031, 0.2]),
            typical_p in prop::sample::select(vec![1.0f32, 1.0, 0.913, 0.4]),
            presence_penalty in prop::sample::select(vec![0.0f32, 0.7, -0.3]),
            frequency_penalty in prop::sample::select(vec![0.0f32, 0.45, -0.2]),
            repetition_penalty in prop::sample::select(vec![1.0f32, 1.3, 0.8]),
            repeat_last_n in 0u32..12,
            dry_multiplier in prop::sample::select(vec![0.0f32, 0.8]),
            xtc_threshold in prop::sample::select(vec![0.041f32, 0.113, 0.33]),
            logit_bias in prop::collection::vec((0u32..12, -3.0f32..3.0), 0..3),
        ) -> SamplingParams {
            SamplingParams {
                temperature, top_p, top_k, min_p, typical_p, presence_penalty, frequency_penalty, repetition_penalty,
                repeat_last_n, dry_multiplier, xtc_threshold, logit_bias, ..SamplingParams::default()
            }
        }
    }

    fn tokens(vocab: u32, below: usize) -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(0..vocab, 0..below)
    }

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            20 => (-40i8..40).prop_map(|l| f32::from(l) / 8.0),
            1 => Just(f32::NAN),
            1 => Just(f32::NEG_INFINITY),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_chain_gives_the_distribution_of_its_naive_twin(
            params in any_params(),
            logits in prop::collection::vec(logit(), 1..40),
            prompt in tokens(12, 10),
            reply in tokens(12, 10),
            banned in tokens(40, 3),
            exclude: bool,
        ) {
            let mut sampler = Sampler::new(&params, 0, &prompt, &banned, logits.len());
            reply.iter().for_each(|&token| sampler.accept(token));
            sampler.shape(&logits, &[]);
            let possible = sampler.truncate(exclude);
            let Some(want) = naive::chain(&params, &prompt, &reply, &banned, &logits, exclude) else {
                prop_assert!(!possible);
                return Ok(());
            };
            prop_assert!(possible);
            // Within single precision of a border either side is right.
            prop_assume!(want.margin > 1e-5);
            let found = sampler.candidates.distribution();
            let ids = |d: &[(u32, f64)]| d.iter().map(|d| d.0).collect::<Vec<_>>();
            prop_assert_eq!(ids(&found), ids(&want.distribution));
            for (found, want) in found.iter().zip(&want.distribution) {
                // At a temperature of 0.05 the single-precision logits are spread twentyfold.
                prop_assert!((found.1 - want.1).abs() < 3e-5, "{found:?} {want:?}");
            }
        }

        #[test]
        fn a_large_vocabulary_is_truncated_as_if_it_had_been_sorted(
            seed: u64,
            top_k in prop::sample::select(vec![0u32, 1, 40, 1000, 2999, 3000]),
            top_p in prop::sample::select(vec![1.0f32, 0.9, 0.5, 0.01]),
        ) {
            let mut rng = Pcg64::seed_from_u64(seed);
            let logits: Vec<f32> = (0..3000).map(|_| (rng.next_u32() % 2000) as f32 / 100.0).collect();
            let params = SamplingParams { top_k, top_p, ..SamplingParams::default() };
            let want = naive::chain(&params, &[], &[], &[], &logits, false).expect("possible");
            prop_assume!(want.margin > 1e-7);
            let mut sampler = Sampler::new(&params, 0, &[], &[], logits.len());
            sampler.shape(&logits, &[]);
            prop_assert!(sampler.truncate(false));
            let found = sampler.candidates.distribution();
            prop_assert_eq!(found.len(), want.distribution.len());
            prop_assert!(found.iter().zip(&want.distribution).all(|(f, w)| f.0 == w.0 && (f.1 - w.1).abs() < 1e-6));
        }
    }
}
