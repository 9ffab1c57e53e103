//! What `POST /v1/completions` answers: one object, or chunks.
//!
//! Owns the JSON of both, with the older form of log-probabilities. Never decides what is said or when.

use serde_json::{Map, Value, json};

use super::chat_response::finite;
use super::reply::{Finish, Piece, Progress, Tail, TokenReport, WholeChoice};

/// What all chunks of a response have in common.
#[derive(Clone, Debug)]
pub struct CompletionHead {
    /// `cmpl-...`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model as the client named it.
    pub model: String,
    /// Whether chunks have a `usage` field.
    pub include_usage: bool,
}

impl CompletionHead {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.object(choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// A piece of a choice. `offset` is the length of the choice's text before it, in characters.
    pub fn piece(&self, index: u32, piece: Piece, tokens: &[TokenReport], offset: usize) -> Value {
        let text = match piece {
            Piece::Text(text) | Piece::Reasoning(text) => text,
            Piece::CallBegin { .. } | Piece::CallArguments { .. } => String::new(),
        };
        self.chunk(json!([choice(index, &text, tokens, offset, None)]))
    }

    /// The last chunk of a choice.
    pub fn finish(&self, index: u32, finish: Finish, tokens: &[TokenReport], offset: usize) -> Value {
        self.chunk(json!([choice(index, "", tokens, offset, Some(finish))]))
    }

    /// The chunk that carries the usage, after all choices.
    pub fn usage(&self, tail: &Tail) -> Value {
        let mut chunk = self.object(json!([]));
        chunk["usage"] = json!(tail.usage);
        chunk
    }

    /// A chunk that says nothing but that the server is at work.
    pub fn keep_alive(&self, progress: Progress) -> Value {
        let mut chunk = self.chunk(json!([choice(0, "", &[], 0, None)]));
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
        let choices: Vec<Value> = choices
            .into_iter()
            .enumerate()
            .map(|(index, whole)| choice(index as u32, &whole.text, &whole.tokens, 0, whole.finish))
            .collect();
        let mut object = self.object(choices.into());
        object["usage"] = json!(tail.usage);
        tail.write(&mut object);
        object
    }
}

fn choice(index: u32, text: &str, tokens: &[TokenReport], offset: usize, finish: Option<Finish>) -> Value {
    json!({
        "text": text,
        "index": index,
        "logprobs": logprobs(tokens, offset),
        "finish_reason": finish.map(Finish::as_str),
    })
}

fn logprobs(tokens: &[TokenReport], mut offset: usize) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut texts = Vec::with_capacity(tokens.len());
    for token in tokens {
        let text = String::from_utf8_lossy(&token.bytes).into_owned();
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
    }
    let top: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let map: Map<String, Value> = token
                .top
                .iter()
                .map(|(bytes, value)| (String::from_utf8_lossy(bytes).into_owned(), json!(finite(*value))))
                .collect();
            map.into()
        })
        .collect();
    json!({
        "tokens": texts,
        "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": top,
        "text_offset": offsets,
    })
}
