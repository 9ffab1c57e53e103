//! Which sampling parameters are accepted.
//!
//! The ranges are those of the OpenAI API where it defines them (temperature, top_p, presence and frequency penalty,
//! logit_bias, top_logprobs) and those of llama.cpp and vLLM elsewhere. NaN is in no range. The message belongs to the
//! caller's edge; here are the name, what was found and what was expected.

use crate::engine::SamplingParams;

/// A sampling parameter outside of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} is {found}, expected {expected}")]
pub struct SamplingError {
    /// The parameter's name as the API spells it.
    pub parameter: &'static str,
    /// The value that was given.
    pub found: String,
    /// The values that are accepted, in words.
    pub expected: &'static str,
}

fn check(parameter: &'static str, value: f32, accepted: bool, expected: &'static str) -> Result<(), SamplingError> {
    if accepted { Ok(()) } else { Err(SamplingError { parameter, found: value.to_string(), expected }) }
}

impl SamplingParams {
    /// Most alternatives per token, the OpenAI API's limit.
    pub const MOST_LOGPROBS: u32 = 20;

    /// Checks every parameter's range.
    ///
    /// # Errors
    /// The first parameter that is outside, with its name, value and range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let within = |value: f32, low: f32, high: f32| (low..=high).contains(&value);
        let t = self.temperature;
        check("temperature", t, within(t, 0.0, 2.0), "a number from 0 to 2")?;
        check("top_p", self.top_p, within(self.top_p, 0.0, 1.0), "a number from 0 to 1")?;
        check("min_p", self.min_p, within(self.min_p, 0.0, 1.0), "a number from 0 to 1")?;
        let p = self.typical_p;
        check("typical_p", p, within(p, 0.0, 1.0) && p > 0.0, "a number above 0 and at most 1")?;
        for (name, penalty) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(name, penalty, within(penalty, -2.0, 2.0), "a number from -2 to 2")?;
        }
        let p = self.repetition_penalty;
        check("repetition_penalty", p, p > 0.0 && p.is_finite(), "a number above 0 (1 is off)")?;
        let m = self.dry_multiplier;
        check("dry_multiplier", m, m >= 0.0 && m.is_finite(), "a number of at least 0 (0 is off)")?;
        let b = self.dry_base;
        check("dry_base", b, b >= 1.0 && b.is_finite(), "a number of at least 1")?;
        let p = self.xtc_probability;
        check("xtc_probability", p, within(p, 0.0, 1.0), "a number from 0 to 1")?;
        let t = self.xtc_threshold;
        check("xtc_threshold", t, within(t, 0.0, 1.0), "a number from 0 to 1 (above 0.5 is off)")?;
        for &(token, bias) in &self.logit_bias {
            if !within(bias, -100.0, 100.0) {
                let found = format!("{bias} for token {token}");
                return Err(SamplingError { parameter: "logit_bias", found, expected: "biases from -100 to 100" });
            }
        }
        match self.logprobs {
            Some(n) if n > Self::MOST_LOGPROBS => Err(SamplingError {
                parameter: "top_logprobs",
                found: n.to_string(),
                expected: "a whole number from 0 to 20",
            }),
            _ => Ok(()),
        }
    }

    /// Checks that the tokens named by the parameters exist in a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// The first parameter that names a token outside of the vocabulary.
    pub fn validate_tokens(&self, vocab: usize) -> Result<(), SamplingError> {
        let outside = |parameter, token: u32| SamplingError {
            parameter,
            found: format!("token {token} of a vocabulary of {vocab}"),
            expected: "token ids of the model's vocabulary",
        };
        if let Some(&(token, _)) = self.logit_bias.iter().find(|(token, _)| *token as usize >= vocab) {
            return Err(outside("logit_bias", token));
        }
        match self.dry_breakers.iter().find(|token| **token as usize >= vocab) {
            Some(&token) => Err(outside("dry_sequence_breakers", token)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SamplingParams)) -> SamplingError {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate().expect_err("outside of the range")
    }

    #[test]
    fn the_defaults_and_the_ends_of_the_ranges_are_accepted() {
        assert_eq!(SamplingParams::default().validate(), Ok(()));
        let low = SamplingParams {
            temperature: 0.0,
            top_p: 0.0,
            min_p: 0.0,
            typical_p: 1e-6,
            presence_penalty: -2.0,
            frequency_penalty: -2.0,
            repetition_penalty: 1e-6,
            dry_base: 1.0,
            xtc_threshold: 0.0,
            logit_bias: vec![(1, -100.0)],
            logprobs: Some(0),
            ..SamplingParams::default()
        };
        assert_eq!(low.validate(), Ok(()));
        let high = SamplingParams {
            temperature: 2.0,
            top_p: 1.0,
            top_k: u32::MAX,
            min_p: 1.0,
            presence_penalty: 2.0,
            frequency_penalty: 2.0,
            repetition_penalty: 5.0,
            dry_multiplier: 9.0,
            dry_base: 9.0,
            xtc_probability: 1.0,
            xtc_threshold: 1.0,
            logit_bias: vec![(1, 100.0)],
            logprobs: Some(20),
            ..SamplingParams::default()
        };
        assert_eq!(high.validate(), Ok(()));
    }

    #[test]
    fn a_refusal_names_the_parameter_what_was_found_and_what_was_expected() {
        let error = refused(|p| p.temperature = 2.5);
        assert_eq!(error.to_string(), "temperature is 2.5, expected a number from 0 to 2");
        let error = refused(|p| p.logit_bias = vec![(3, 0.5), (7, 101.0)]);
        assert_eq!(error.to_string(), "logit_bias is 101 for token 7, expected biases from -100 to 100");
        assert_eq!(refused(|p| p.logprobs = Some(21)).parameter, "top_logprobs");
    }

    #[test]
    fn nan_infinity_and_what_is_out_of_range_are_refused_for_every_number() {
        type Set = fn(&mut SamplingParams, f32);
        let numbers: [(&str, Set, f32); 12] = [
            ("temperature", |p, v| p.temperature = v, -0.1),
            ("top_p", |p, v| p.top_p = v, 1.1),
            ("min_p", |p, v| p.min_p = v, -0.1),
            ("typical_p", |p, v| p.typical_p = v, 0.0),
            ("presence_penalty", |p, v| p.presence_penalty = v, 2.1),
            ("frequency_penalty", |p, v| p.frequency_penalty = v, -2.1),
            ("repetition_penalty", |p, v| p.repetition_penalty = v, 0.0),
            ("dry_multiplier", |p, v| p.dry_multiplier = v, -1.0),
            ("dry_base", |p, v| p.dry_base = v, 0.9),
            ("xtc_probability", |p, v| p.xtc_probability = v, 1.5),
            ("xtc_threshold", |p, v| p.xtc_threshold = v, -0.5),
            ("logit_bias", |p, v| p.logit_bias = vec![(0, v)], 100.5),
        ];
        for (name, set, outside) in numbers {
            for value in [outside, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert_eq!(refused(|p| set(p, value)).parameter, name, "{value}");
            }
        }
    }

    #[test]
    fn tokens_outside_of_the_vocabulary_are_refused() {
        let params = SamplingParams { logit_bias: vec![(9, 1.0)], dry_breakers: vec![10], ..Default::default() };
        assert_eq!(params.validate_tokens(11), Ok(()));
        assert_eq!(params.validate_tokens(10).expect_err("breaker").parameter, "dry_sequence_breakers");
        assert_eq!(params.validate_tokens(9).expect_err("bias").parameter, "logit_bias");
    }
}
