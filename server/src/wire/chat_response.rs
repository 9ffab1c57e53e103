//! What `POST /v1/chat/completions` answers: one object, or chunks.
//!
//! Owns the JSON of both. Never decides what is said or when.

use serde_json::{Value, json};

use super::reply::{Finish, Piece, Progress, Tail, TokenReport, WholeChoice};

/// What all chunks of a response have in common.
#[derive(Clone, Debug)]
pub struct ChatHead {
    /// `chatcmpl-...`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model as the client named it.
    pub model: String,
    /// Whether chunks have a `usage` field.
    pub include_usage: bool,
}

impl ChatHead {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&self, index: u32, delta: Value, tokens: &[TokenReport], finish: Option<Finish>) -> Value {
        self.chunk(json!([{
            "index": index,
            "delta": delta,
            "logprobs": logprobs(tokens),
            "finish_reason": finish.map(Finish::as_str),
        }]))
    }

    /// The first chunk of a choice.
    pub fn opening(&self, index: u32) -> Value {
        self.choice(index, json!({"role": "assistant", "content": ""}), &[], None)
    }

    /// A piece of a choice and the log-probabilities that came with it.
    pub fn piece(&self, index: u32, piece: Piece, tokens: &[TokenReport]) -> Value {
        let delta = match piece {
            Piece::Text(text) => json!({"content": text}),
            Piece::Reasoning(text) => json!({"reasoning_content": text}),
            Piece::CallBegin { call, id, name } => json!({"tool_calls": [
                {"index": call, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}),
            Piece::CallArguments { call, fragment } => {
                json!({"tool_calls": [{"index": call, "function": {"arguments": fragment}}]})
            }
        };
        self.choice(index, delta, tokens, None)
    }

    /// The last chunk of a choice.
    pub fn finish(&self, index: u32, finish: Finish, tokens: &[TokenReport]) -> Value {
        self.choice(index, json!({}), tokens, Some(finish))
    }

    /// The chunk that carries the usage, after all choices.
    pub fn usage(&self, tail: &Tail) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = json!(tail.usage);
        chunk
    }

    /// A chunk that says nothing but that the server is at work.
    pub fn keep_alive(&self, progress: Progress) -> Value {
        let mut chunk = self.choice(0, json!({}), &[], None);
        chunk["prompt_progress"] = json!({
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": progress.time_ms,
        });
        chunk
    }

    /// The whole response.
    pub fn whole(&self, choices: Vec<WholeChoice>, tail: &Tail) -> Value {
        let choices: Vec<Value> =
            choices.into_iter().enumerate().map(|(index, choice)| whole_choice(index, choice)).collect();
        let mut object = json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": tail.usage,
        });
        tail.write(&mut object);
        object
    }
}

fn whole_choice(index: usize, choice: WholeChoice) -> Value {
    let content = if choice.text.is_empty() && !choice.calls.is_empty() { Value::Null } else { choice.text.into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !choice.reasoning.is_empty() {
        message["reasoning_content"] = choice.reasoning.into();
    }
    if !choice.calls.is_empty() {
        message["tool_calls"] = choice
            .calls
            .into_iter()
            .map(|(id, name, arguments)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs(&choice.tokens),
        "finish_reason": choice.finish.map(Finish::as_str),
    })
}

fn logprobs(tokens: &[TokenReport]) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let mut object = logprob(&token.bytes, token.logprob);
            object["top_logprobs"] = token.top.iter().map(|(bytes, value)| logprob(bytes, *value)).collect();
            object
        })
        .collect();
    json!({"content": content, "refusal": null})
}

fn logprob(bytes: &[u8], value: f32) -> Value {
    json!({"token": String::from_utf8_lossy(bytes), "logprob": finite(value), "bytes": bytes})
}

/// JSON has no infinity; -9999 is what OpenAI sends for the impossible.
pub(super) fn finite(value: f32) -> f64 {
    if value.is_finite() { f64::from(value) } else { -9999.0 }
}
