//! What a generation says, before it has the form of an API.
//!
//! Types only: the output pipeline makes them, the wire formats write them.

use serde_json::Value;

use super::usage::Usage;

/// A piece of a choice, as soon as it is certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Visible text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A tool call begins; its arguments follow.
    CallBegin {
        /// Place of the call in the choice, from 0.
        call: usize,
        /// Its id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// Place of the call in the choice.
        call: usize,
        /// JSON text; all fragments together are the arguments.
        fragment: String,
    },
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop string was met.
    Stop,
    /// The limit of the reply was reached.
    Length,
    /// It ended with calls to answer.
    ToolCalls,
}

impl Finish {
    /// The word of OpenAI's API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenReport {
    /// Its bytes, perhaps a part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest alternatives, best first.
    pub top: Vec<(Vec<u8>, f32)>,
}

/// A choice grew, or ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChoiceUpdate {
    /// Which choice.
    pub choice: u32,
    /// What is certain since the last update.
    pub pieces: Vec<Piece>,
    /// Tokens of these pieces, where log-probabilities are wanted.
    pub tokens: Vec<TokenReport>,
    /// Whether it ended.
    pub finish: Option<Finish>,
}

/// How far the prompt is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens of the prompt.
    pub total: u32,
    /// Of these, tokens that came from the prefix cache.
    pub cached: u32,
    /// Tokens that are done, cached ones included.
    pub processed: u32,
    /// Milliseconds since the request arrived.
    pub time_ms: u64,
}

/// What a response says beside its choices.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    /// What was used.
    pub usage: Usage,
    /// The session's `context` object.
    pub context: Value,
    /// What could not be honoured to the letter.
    pub warnings: Vec<String>,
    /// `user` of the request.
    pub user: Option<String>,
    /// `metadata` of the request.
    pub metadata: Option<Value>,
}

impl Tail {
    /// Adds everything but the usage to a response object or a last chunk.
    pub fn write(&self, object: &mut Value) {
        object["context"] = self.context.clone();
        if !self.warnings.is_empty() {
            object["warnings"] = self.warnings.clone().into();
        }
        if let Some(user) = &self.user {
            object["user"] = user.clone().into();
        }
        if let Some(metadata) = &self.metadata {
            object["metadata"] = metadata.clone();
        }
    }
}

/// A choice that has been collected to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WholeChoice {
    /// All visible text.
    pub text: String,
    /// All reasoning.
    pub reasoning: String,
    /// Calls: id, name, arguments.
    pub calls: Vec<(String, String, String)>,
    /// All tokens, where log-probabilities are wanted.
    pub tokens: Vec<TokenReport>,
    /// Why it ended; `None` while it runs.
    pub finish: Option<Finish>,
}

impl WholeChoice {
    /// Appends an update.
    pub fn take(&mut self, update: ChoiceUpdate) {
        for piece in update.pieces {
            match piece {
                Piece::Text(text) => self.text.push_str(&text),
                Piece::Reasoning(text) => self.reasoning.push_str(&text),
                Piece::CallBegin { id, name, .. } => self.calls.push((id, name, String::new())),
                Piece::CallArguments { call, fragment } => {
                    if let Some(call) = self.calls.get_mut(call) {
                        call.2.push_str(&fragment);
                    }
                }
            }
        }
        self.tokens.extend(update.tokens);
        self.finish = self.finish.or(update.finish);
    }
}
