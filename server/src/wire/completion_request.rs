//! The body of `POST /v1/completions`, read strictly: raw prompts without a chat template.
//!
//! Owns which fields the endpoint knows. Never encodes or counts.

use serde_json::Value;

use super::chat_request::{Delivery, Extensions, read_delivery, read_extensions};
use super::error::ServerError;
use super::fields::{Fields, kind};
use super::parameters::{LogprobsForm, ParameterDefaults, Parameters, tokens};

/// Most prompts of one request.
pub const PROMPTS_LIMIT: usize = 64;

/// A raw prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawPrompt {
    /// Text to encode; special tokens in it are text.
    Text(String),
    /// Token ids, all below the vocabulary's size.
    Tokens(Vec<u32>),
}

/// A raw completion request.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// Its prompts, at least one; choice `i` of prompt `p` has index `p * n + i`.
    pub prompts: Vec<RawPrompt>,
    /// How tokens are chosen and when a reply ends.
    pub parameters: Parameters,
    /// Stream or not.
    pub delivery: Delivery,
    /// Session hints, cache policy, echoes.
    pub extensions: Extensions,
    /// Fields nobody knows.
    pub ignored: Vec<String>,
}

impl CompletionRequest {
    /// Reads a body from which `model` has been taken.
    pub fn read(mut fields: Fields, defaults: &ParameterDefaults) -> Result<Self, ServerError> {
        let prompt = fields.take("prompt").ok_or_else(|| ServerError::Missing { param: "prompt".into() })?;
        let prompts = read_prompts(prompt, defaults.vocab)?;
        let parameters = Parameters::read(&mut fields, defaults, LogprobsForm::Completions)?;
        let delivery = read_delivery(&mut fields)?;
        let mut ignored = Vec::new();
        let extensions = read_extensions(&mut fields, &mut ignored)?;
        fields.refuse("suffix", "this server does not fill in the middle")?;
        fields.refuse("context_management", "a raw prompt has no turns that could be summarised")?;
        if fields.boolean("echo")? == Some(true) {
            return Err(ServerError::UnsupportedValue {
                param: "echo".into(),
                found: "`true`".into(),
                reason: "the prompt is not repeated in the reply".into(),
            });
        }
        if fields.integer_within("best_of", 1, i64::MAX)?.is_some_and(|best_of| best_of != i64::from(parameters.n)) {
            return Err(ServerError::UnsupportedValue {
                param: "best_of".into(),
                found: "a number other than `n`".into(),
                reason: "replies are not ranked".into(),
            });
        }
        ignored.extend(fields.unknown());
        Ok(Self { prompts, parameters, delivery, extensions, ignored })
    }
}

fn read_prompts(value: Value, vocab: usize) -> Result<Vec<RawPrompt>, ServerError> {
    let values = match value {
        Value::String(text) => return Ok(vec![RawPrompt::Text(text)]),
        Value::Array(values) => values,
        other => {
            return Err(ServerError::InvalidType {
                param: "prompt".into(),
                expected: "a string, an array of strings or an array of token ids",
                found: kind(&other),
            });
        }
    };
    if values.is_empty() {
        return Err(ServerError::InvalidValue { param: "prompt".into(), reason: "must not be empty".into() });
    }
    if values.iter().all(Value::is_number) {
        return Ok(vec![RawPrompt::Tokens(tokens(values, "prompt", vocab)?)]);
    }
    if values.len() > PROMPTS_LIMIT {
        return Err(ServerError::InvalidValue {
            param: "prompt".into(),
            reason: format!("must hold at most {PROMPTS_LIMIT} prompts, found {}", values.len()),
        });
    }
    values
        .into_iter()
        .enumerate()
        .map(|(at, value)| match value {
            Value::String(text) => Ok(RawPrompt::Text(text)),
            Value::Array(ids) if !ids.is_empty() => {
                Ok(RawPrompt::Tokens(tokens(ids, &format!("prompt[{at}]"), vocab)?))
            }
            other => Err(ServerError::InvalidType {
                param: format!("prompt[{at}]"),
                expected: "a string or a non-empty array of token ids",
                found: kind(&other),
            }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_runtime::engine::SamplingParams;
    use serde_json::json;

    fn read(body: Value) -> Result<CompletionRequest, ServerError> {
        let defaults = ParameterDefaults { sampling: SamplingParams::default(), vocab: 100 };
        CompletionRequest::read(Fields::open(body, "").unwrap(), &defaults)
    }

    #[test]
    fn prompts_come_as_text_texts_tokens_or_lists_of_tokens() {
        let prompts = |value: Value| read(json!({"prompt": value})).unwrap().prompts;
        assert_eq!(prompts(json!("a")), [RawPrompt::Text("a".into())]);
        assert_eq!(prompts(json!(["a", "b"])), [RawPrompt::Text("a".into()), RawPrompt::Text("b".into())]);
        assert_eq!(prompts(json!([1, 2])), [RawPrompt::Tokens(vec![1, 2])]);
        assert_eq!(prompts(json!([[1], [2]])), [RawPrompt::Tokens(vec![1]), RawPrompt::Tokens(vec![2])]);
    }

    #[test]
    fn wrong_prompts_and_unsupported_fields_are_named() {
        for (body, code, param) in [
            (json!({}), "missing_required_parameter", "prompt"),
            (json!({"prompt": {}}), "invalid_type", "prompt"),
            (json!({"prompt": []}), "invalid_value", "prompt"),
            (json!({"prompt": [100]}), "invalid_value", "prompt[0]"),
            (json!({"prompt": [-1]}), "invalid_value", "prompt[0]"),
            (json!({"prompt": ["a", []]}), "invalid_type", "prompt[1]"),
            (json!({"prompt": "a", "suffix": "b"}), "unsupported_parameter", "suffix"),
            (json!({"prompt": "a", "echo": true}), "unsupported_value", "echo"),
            (json!({"prompt": "a", "best_of": 3}), "unsupported_value", "best_of"),
            (json!({"prompt": "a", "logprobs": 21}), "integer_above_max_value", "logprobs"),
        ] {
            let error = read(body.clone()).unwrap_err().body();
            assert_eq!(
                (error["error"]["code"].as_str(), error["error"]["param"].as_str()),
                (Some(code), Some(param)),
                "{body}"
            );
        }
    }
}
