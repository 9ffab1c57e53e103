//! The parameters that chat completions and raw completions share: how tokens are chosen and when a reply ends.
//!
//! Owns names, ranges and defaults of these parameters, and the refusal of those that need a grammar. Never touches
//! prompts. Names and ranges follow OpenAI where it has the parameter, and vLLM / llama.cpp for the rest.

use plimsoll_runtime::engine::SamplingParams;
use serde_json::Value;

use super::error::ServerError;
use super::fields::{Fields, kind};

/// Most choices of one request. Each holds a sequence of its own for its whole life.
pub const CHOICES_LIMIT: u32 = 16;
/// Most stop strings of one request.
pub const STOP_STRINGS_LIMIT: usize = plimsoll_runtime::stop_strings::MOST_STOP_STRINGS;
/// Longest stop string, in bytes: what is held back from a stream is bounded by it.
pub const STOP_STRING_BYTES_LIMIT: usize = 1024;
/// Most strings that end a DRY match; each is a token that every step looks for.
pub const DRY_BREAKERS_LIMIT: usize = 64;
/// Most alternatives reported per token.
pub const TOP_LOGPROBS_LIMIT: i64 = 20;

/// What the model brings along: values for what a request leaves out, and the limits of its vocabulary.
#[derive(Clone, Debug)]
pub struct ParameterDefaults {
    /// Sampling of the preset.
    pub sampling: SamplingParams,
    /// Tokens of the vocabulary.
    pub vocab: usize,
}

/// The parameters of a request.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Most tokens of a reply, as asked for; larger numbers than `u32` holds are its largest.
    pub reply_limit: Option<u32>,
    /// Choices.
    pub n: u32,
    /// How tokens are chosen. The seed is the request's, or random.
    pub sampling: SamplingParams,
    /// Strings at whose start a DRY match ends; the caller turns them into tokens.
    pub dry_breakers: Vec<String>,
    /// Strings that end a reply.
    pub stop: Vec<String>,
    /// Tokens that end a reply, besides the model's own.
    pub stop_tokens: Vec<u32>,
    /// End tokens are impossible before.
    pub min_tokens: u32,
    /// End tokens do not end.
    pub ignore_end: bool,
}

/// Which spelling of `logprobs` an API has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogprobsForm {
    /// `logprobs: bool` with `top_logprobs: 0..=20`.
    Chat,
    /// `logprobs: 0..=20`, alternatives included.
    Completions,
}

/// Why parameters that prescribe the reply's form are refused.
const NEEDS_GRAMMAR: &str = "replies cannot be held to a grammar by this version";

impl Parameters {
    /// Takes the shared parameters out of a request.
    pub fn read(
        fields: &mut Fields,
        defaults: &ParameterDefaults,
        logprobs_form: LogprobsForm,
    ) -> Result<Self, ServerError> {
        let vocab = defaults.vocab;
        let older = fields.integer("max_tokens", 1)?;
        let newer = fields.integer("max_completion_tokens", 1)?;
        let reply_limit = newer.or(older).map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        let n = fields.integer_within("n", 1, i64::from(CHOICES_LIMIT))?.unwrap_or(1) as u32;
        let mut sampling = defaults.sampling.clone();
        read_sampling(fields, &mut sampling)?;
        sampling.logit_bias = read_logit_bias(fields, vocab)?;
        sampling.logprobs = read_logprobs(fields, logprobs_form)?;
        let dry_breakers = short_strings(fields, "dry_sequence_breakers", DRY_BREAKERS_LIMIT)?;
        let stop = short_strings(fields, "stop", STOP_STRINGS_LIMIT)?;
        let mut stop_tokens = read_tokens(fields, "stop_token_ids", vocab)?.unwrap_or_default();
        // Every generated token is looked for among them.
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let min_tokens = fields.integer("min_tokens", 0)?.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
        let ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
        refuse_what_needs_a_grammar(fields)?;
        Ok(Self { reply_limit, n, sampling, dry_breakers, stop, stop_tokens, min_tokens, ignore_end })
    }
}

fn read_sampling(fields: &mut Fields, sampling: &mut SamplingParams) -> Result<(), ServerError> {
    let mut number = |field: &str, least: f64, most: f64, place: &mut f32| -> Result<(), ServerError> {
        if let Some(value) = fields.number(field, least, most)? {
            *place = value;
        }
        Ok(())
    };
    number("temperature", 0.0, 2.0, &mut sampling.temperature)?;
    number("top_p", 0.0, 1.0, &mut sampling.top_p)?;
    number("min_p", 0.0, 1.0, &mut sampling.min_p)?;
    number("typical_p", 0.0, 1.0, &mut sampling.typical_p)?;
    number("presence_penalty", -2.0, 2.0, &mut sampling.presence_penalty)?;
    number("frequency_penalty", -2.0, 2.0, &mut sampling.frequency_penalty)?;
    number("repetition_penalty", 0.01, 10.0, &mut sampling.repetition_penalty)?;
    number("dry_multiplier", 0.0, 100.0, &mut sampling.dry_multiplier)?;
    number("dry_base", 1.0, 100.0, &mut sampling.dry_base)?;
    number("xtc_probability", 0.0, 1.0, &mut sampling.xtc_probability)?;
    number("xtc_threshold", 0.0, 1.0, &mut sampling.xtc_threshold)?;
    // A nucleus of mass 0 holds the likeliest token alone; the smallest positive mass says the same.
    sampling.top_p = sampling.top_p.max(f32::MIN_POSITIVE);
    sampling.typical_p = sampling.typical_p.max(f32::MIN_POSITIVE);
    let mut count = |field: &str, least: i64, place: &mut u32| -> Result<(), ServerError> {
        if let Some(value) = fields.integer(field, least)? {
            // -1 is the other engines' word for "off" or "everything", which is 0 here.
            *place = u32::try_from(value.max(0)).unwrap_or(u32::MAX);
        }
        Ok(())
    };
    count("top_k", -1, &mut sampling.top_k)?;
    count("dry_allowed_length", 0, &mut sampling.dry_allowed_length)?;
    count("dry_penalty_last_n", -1, &mut sampling.dry_penalty_last_n)?;
    count("repeat_last_n", 0, &mut sampling.repeat_last_n)?;
    sampling.seed = read_seed(fields)?;
    Ok(())
}

/// Every seed that fits 64 bits, signed or not, is a seed of its own; others are refused, because two of them must not
/// mean the same.
fn read_seed(fields: &mut Fields) -> Result<u64, ServerError> {
    match fields.take("seed") {
        None => Ok(random_seed()),
        Some(value) => {
            value.as_i64().map(|seed| seed as u64).or_else(|| value.as_u64()).ok_or_else(|| ServerError::InvalidValue {
                param: fields.name("seed"),
                reason: format!("must be an integer of 64 bits, found {value}"),
            })
        }
    }
}

fn random_seed() -> u64 {
    getrandom::u64().expect("the operating system provides random numbers")
}

fn read_logit_bias(fields: &mut Fields, vocab: usize) -> Result<Vec<(u32, f32)>, ServerError> {
    let param = fields.name("logit_bias");
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(ServerError::InvalidType {
                param,
                expected: "an object from token ids to numbers",
                found: kind(&other),
            });
        }
    };
    let mut biases = Vec::with_capacity(map.len());
    for (key, value) in map {
        // Only the plain spelling: `5`, `05` and `+5` would be three biases of one token.
        let plain = |token: &u32| (*token as usize) < vocab && token.to_string() == key;
        let token = key.parse::<u32>().ok().filter(plain).ok_or_else(|| ServerError::InvalidValue {
            param: param.clone(),
            reason: format!("must have token ids below {vocab} as keys, found `{key}`"),
        })?;
        let bias =
            value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)).ok_or_else(|| ServerError::InvalidValue {
                param: param.clone(),
                reason: format!("must have numbers from -100 to 100 as values, found {value} for token {token}"),
            })?;
        biases.push((token, bias as f32));
    }
    Ok(biases)
}

fn read_logprobs(fields: &mut Fields, form: LogprobsForm) -> Result<Option<u32>, ServerError> {
    match form {
        LogprobsForm::Completions => {
            Ok(fields.integer_within("logprobs", 0, TOP_LOGPROBS_LIMIT)?.map(|count| count as u32))
        }
        LogprobsForm::Chat => {
            let wanted = fields.boolean("logprobs")?.unwrap_or(false);
            let top = fields.integer_within("top_logprobs", 0, TOP_LOGPROBS_LIMIT)?;
            if wanted {
                return Ok(Some(top.unwrap_or(0) as u32));
            }
            match top {
                None | Some(0) => Ok(None),
                Some(_) => Err(ServerError::InvalidValue {
                    param: fields.name("top_logprobs"),
                    reason: "needs `logprobs` to be true".into(),
                }),
            }
        }
    }
}

fn strings(fields: &mut Fields, field: &str) -> Result<Option<Vec<String>>, ServerError> {
    let param = fields.name(field);
    let values = match fields.take(field) {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(vec![text])),
        Some(Value::Array(values)) => values,
        Some(other) => {
            return Err(ServerError::InvalidType {
                param,
                expected: "a string or an array of strings",
                found: kind(&other),
            });
        }
    };
    values
        .into_iter()
        .enumerate()
        .map(|(at, value)| match value {
            Value::String(text) => Ok(text),
            other => Err(ServerError::InvalidType {
                param: format!("{param}[{at}]"),
                expected: "a string",
                found: kind(&other),
            }),
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

/// Takes a string or a list of at most `limit` strings, each with something in it and of a bounded length.
fn short_strings(fields: &mut Fields, field: &str, limit: usize) -> Result<Vec<String>, ServerError> {
    let param = fields.name(field);
    let found = strings(fields, field)?.unwrap_or_default();
    let invalid = |reason: String| Err(ServerError::InvalidValue { param, reason });
    if found.len() > limit {
        return invalid(format!("must hold at most {limit} strings, found {}", found.len()));
    }
    if found.iter().any(String::is_empty) {
        return invalid("must not hold an empty string".into());
    }
    if let Some(long) = found.iter().find(|text| text.len() > STOP_STRING_BYTES_LIMIT) {
        return invalid(format!("must hold strings of at most {STOP_STRING_BYTES_LIMIT} bytes, found {}", long.len()));
    }
    Ok(found)
}

/// Takes an array of token ids below `vocab`.
pub fn read_tokens(fields: &mut Fields, field: &str, vocab: usize) -> Result<Option<Vec<u32>>, ServerError> {
    let param = fields.name(field);
    fields.array(field)?.map(|values| tokens(values, &param, vocab)).transpose()
}

/// Token ids of a JSON array.
pub fn tokens(values: Vec<Value>, param: &str, vocab: usize) -> Result<Vec<u32>, ServerError> {
    values
        .into_iter()
        .enumerate()
        .map(|(at, value)| {
            value.as_u64().filter(|token| *token < vocab as u64).map(|token| token as u32).ok_or_else(|| {
                ServerError::InvalidValue {
                    param: format!("{param}[{at}]"),
                    reason: format!("must be a token id below {vocab}, found {value}"),
                }
            })
        })
        .collect()
}

fn refuse_what_needs_a_grammar(fields: &mut Fields) -> Result<(), ServerError> {
    if let Some(mut format) = fields.object("response_format")? {
        let kind_name = format.needed_string("type")?;
        if kind_name != "text" {
            return Err(ServerError::UnsupportedValue {
                param: "response_format".into(),
                found: format!("`{kind_name}`"),
                reason: NEEDS_GRAMMAR.into(),
            });
        }
    }
    for field in [
        "grammar",
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "guided_choice",
        "json_schema",
        "structured_outputs",
    ] {
        fields.refuse(field, NEEDS_GRAMMAR)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<Parameters, ServerError> {
        let defaults = ParameterDefaults { sampling: SamplingParams::default(), vocab: 100 };
        Parameters::read(&mut Fields::open(value, "").unwrap(), &defaults, LogprobsForm::Chat)
    }

    #[test]
    fn reply_limits_of_every_size_are_refused_below_one_and_kept_up_to_the_largest() {
        for limit in [0, -1, i64::MIN] {
            let error = read(json!({"max_tokens": limit})).unwrap_err().body();
            assert_eq!(error["error"]["param"], "max_tokens");
            assert_eq!(error["error"]["code"], "integer_below_min_value");
        }
        assert_eq!(read(json!({"max_tokens": 1})).unwrap().reply_limit, Some(1));
        assert_eq!(read(json!({"max_tokens": 2147483647})).unwrap().reply_limit, Some(2147483647));
        assert_eq!(read(json!({"max_tokens": i64::MAX})).unwrap().reply_limit, Some(u32::MAX));
        assert_eq!(read(json!({"max_tokens": 5, "max_completion_tokens": 7})).unwrap().reply_limit, Some(7));
        assert_eq!(read(json!({})).unwrap().reply_limit, None);
    }

    #[test]
    fn parameters_out_of_range_are_refused_by_name() {
        for (body, code, param) in [
            (json!({"temperature": -0.1}), "integer_below_min_value", "temperature"),
            (json!({"temperature": 2.1}), "integer_above_max_value", "temperature"),
            (json!({"temperature": "hot"}), "invalid_type", "temperature"),
            (json!({"top_p": 1.5}), "integer_above_max_value", "top_p"),
            (json!({"n": 0}), "integer_below_min_value", "n"),
            (json!({"n": 17}), "integer_above_max_value", "n"),
            (json!({"stop": ""}), "invalid_value", "stop"),
            (json!({"stop": vec!["x"; 17]}), "invalid_value", "stop"),
            (json!({"stop": [1]}), "invalid_type", "stop[0]"),
            (json!({"top_logprobs": 3}), "invalid_value", "top_logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "integer_above_max_value", "top_logprobs"),
            (json!({"logit_bias": {"100": 1}}), "invalid_value", "logit_bias"),
            (json!({"logit_bias": {"1": 101}}), "invalid_value", "logit_bias"),
            (json!({"logit_bias": {"05": 1}}), "invalid_value", "logit_bias"),
            (json!({"logit_bias": {"+5": 1}}), "invalid_value", "logit_bias"),
            (json!({"seed": 1e30}), "invalid_value", "seed"),
            (json!({"seed": 1.5}), "invalid_value", "seed"),
            (json!({"dry_sequence_breakers": vec!["x"; 65]}), "invalid_value", "dry_sequence_breakers"),
            (json!({"dry_sequence_breakers": ["x".repeat(1025)]}), "invalid_value", "dry_sequence_breakers"),
            (json!({"logit_bias": []}), "invalid_type", "logit_bias"),
            (json!({"stop_token_ids": [100]}), "invalid_value", "stop_token_ids[0]"),
            (json!({"response_format": {"type": "json_schema"}}), "unsupported_value", "response_format"),
            (json!({"response_format": {"type": "json_object"}}), "unsupported_value", "response_format"),
            (json!({"grammar": "root ::= x"}), "unsupported_parameter", "grammar"),
            (json!({"guided_json": {}}), "unsupported_parameter", "guided_json"),
        ] {
            let error = read(body.clone()).unwrap_err().body();
            assert_eq!(
                (error["error"]["code"].as_str(), error["error"]["param"].as_str()),
                (Some(code), Some(param)),
                "{body}"
            );
        }
    }

    #[test]
    fn every_sampling_parameter_reaches_the_sampler() {
        let read = read(json!({
            "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "typical_p": 0.8, "presence_penalty": 0.1,
            "frequency_penalty": 0.2, "repetition_penalty": 1.1, "repeat_last_n": 32, "dry_multiplier": 0.8,
            "dry_base": 1.6, "dry_allowed_length": 3, "dry_penalty_last_n": -1, "xtc_probability": 0.3,
            "xtc_threshold": 0.15, "logit_bias": {"7": -100}, "seed": -1, "logprobs": true, "top_logprobs": 2,
        }))
        .unwrap();
        assert_eq!(
            read.sampling,
            SamplingParams {
                temperature: 0.5,
                top_p: 0.9,
                top_k: 40,
                min_p: 0.05,
                typical_p: 0.8,
                presence_penalty: 0.1,
                frequency_penalty: 0.2,
                repetition_penalty: 1.1,
                repeat_last_n: 32,
                dry_multiplier: 0.8,
                dry_base: 1.6,
                dry_allowed_length: 3,
                dry_penalty_last_n: 0,
                dry_breakers: Vec::new(),
                xtc_probability: 0.3,
                xtc_threshold: 0.15,
                logit_bias: vec![(7, -100.0)],
                seed: u64::MAX,
                logprobs: Some(2),
            }
        );
    }
}
