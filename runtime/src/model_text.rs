//! What a model's tokens mean: the border between conversations and a model's tokenizer, template and dialect.
//!
//! Two things stand behind it: [`FileText`], the text side of a model file, and [`SimulatedText`], the plain text side
//! of the simulated engine. Types and contracts only.

mod file_text;
mod simulated_text;
mod template_text;

use std::sync::Arc;

use plimsoll_models::chat::{Message, Tool};
use plimsoll_models::dialect::ToolsOffered;
use serde_json::{Map, Value};

pub use file_text::FileText;
pub use simulated_text::SimulatedText;

/// Why a conversation cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum TextError {
    #[error("the model file has no chat template")]
    NoTemplate,
    #[error("this model has no format for tools")]
    NoToolFormat,
    #[error("{0}")]
    Template(String),
}

/// A simulation script names a dialect that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the dialect `{found}` is not known; known are {known}")]
pub struct UnknownDialect {
    /// The word in the script.
    pub found: String,
    /// All that would have been understood.
    pub known: String,
}

/// A conversation to render.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// Canonical messages.
    pub messages: &'a [Message],
    /// Tools the model is told of.
    pub tools: &'a [Tool],
    /// Extra variables of the template.
    pub variables: &'a Map<String, Value>,
    /// Tokens of assistant turns that this model generated itself, by place in `messages`; `None`, or a slice that is
    /// too short, is a turn that is encoded from its text. The tokens stand in the prompt exactly as they were
    /// generated, so that what is cached of them is found again; end tokens at their end are left out, for the template
    /// closes the turn. Where the template does not allow it, all turns are encoded from their text.
    pub spoken: &'a [Option<Arc<[u32]>>],
    /// How the prompt ends.
    pub ending: Ending,
}

/// How a rendered prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With the beginning of an assistant turn.
    Reply,
    /// With the end of the last message.
    History,
}

/// The tokens with which a turn of the user, and the beginning of a reply to it, are appended to a live sequence without
/// rendering anything again. Found by rendering a probe with the model's own template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnFrame {
    /// Closes a reply that was generated up to its end token (which is not fed, and is the first of these).
    pub reply_end: Vec<u32>,
    /// Opens a user turn after a closed turn.
    pub user_begin: Vec<u32>,
    /// Closes that user turn and opens a reply.
    pub reply_begin: Vec<u32>,
    /// `reply_begin` as text: its end may have opened reasoning.
    pub reply_begin_text: String,
}

/// A rendered prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// As text, for people.
    pub text: String,
    /// As tokens, for the model. Special tokens stand only where the template put them, never where a message has
    /// text that looks like one.
    pub tokens: Vec<u32>,
    /// What of the prompt's end already belongs to the reply (reasoning that the template opens): it is a part of the
    /// turn's spoken tokens.
    pub reply_lead: Vec<u32>,
}

/// What a splitter is certain of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitPiece {
    /// Visible text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A tool call begins.
    CallBegin {
        /// The tool's name.
        name: String,
    },
    /// More of its arguments, as JSON text.
    CallArguments(String),
    /// It is complete.
    CallEnd,
}

/// Splits a reply into text, reasoning and tool calls while it arrives.
pub trait Splitter: Send {
    /// What is certain after more text.
    fn feed(&mut self, text: &str) -> Vec<SplitPiece>;
    /// The end of the reply: what was held back.
    fn finish(&mut self) -> Vec<SplitPiece>;
}

/// Everything is text: raw completions.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainSplitter;

impl Splitter for PlainSplitter {
    fn feed(&mut self, text: &str) -> Vec<SplitPiece> {
        vec![SplitPiece::Text(text.to_owned())]
    }

    fn finish(&mut self) -> Vec<SplitPiece> {
        Vec::new()
    }
}

/// The text side of a model.
pub trait ModelText: Send + Sync {
    /// Tokens of the vocabulary; ids are below.
    fn vocab(&self) -> usize;
    /// Tokens that end a reply.
    fn end_tokens(&self) -> &[u32];
    /// Tokens that must never be generated.
    fn banned(&self) -> &[u32];
    /// A conversation as the model's prompt.
    fn render(&self, conversation: Conversation<'_>) -> Result<Rendered, TextError>;
    /// A raw prompt as tokens, with the beginning the model expects. It is a whole prompt, not somebody's message:
    /// special tokens written out in it are meant.
    fn encode(&self, text: &str) -> Vec<u32>;
    /// Text that goes on in the middle (sequence breakers): no beginning is added.
    fn encode_part(&self, text: &str) -> Vec<u32>;
    /// What a token says in a reply; empty for control tokens that the dialect does not read.
    fn token_bytes(&self, token: u32) -> Vec<u8>;
    /// Any tokens as text, control tokens written out.
    fn decode(&self, tokens: &[u32]) -> String;
    /// How a turn is appended to a live sequence; `None` where the template does not frame turns in a way that can be
    /// appended to.
    fn turn_frame(&self) -> Option<&TurnFrame>;
    /// How a reply opens a tool call; `None` where the model has no format for tools.
    fn tool_call_opening(&self) -> Option<&str>;
    /// What opens and what ends reasoning in a reply; `None` where the model does not mark any.
    fn reasoning_tags(&self) -> Option<(&str, &str)>;
    /// A splitter for one reply to this rendered prompt, whose end may have opened reasoning.
    fn splitter(&self, prompt: &str, tools: ToolsOffered) -> Box<dyn Splitter>;
}
