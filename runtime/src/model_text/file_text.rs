//! The text side of a model file: its tokenizer, its template, its dialect.
//!
//! Adapts `plimsoll-models` to [`ModelText`]. Owns nothing but the composition and a preset's template arguments.

use std::sync::Arc;

use plimsoll_models::dialect::{Dialect, OutputPart, OutputSplitter, ToolsOffered};
use plimsoll_models::template::{ChatTemplate, RenderedPrompt, TemplateOptions};
use plimsoll_models::tokenizer::{ControlTokens, Tokenizer};
use serde_json::{Map, Value};

use super::{Conversation, Ending, ModelText, Rendered, SplitPiece, Splitter, TextError, TurnFrame};

/// The text side of one model file.
#[derive(Debug)]
pub struct FileText {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    dialect: Dialect,
    banned: Vec<u32>,
}

impl FileText {
    /// Puts the parts together. `logits` is the length of a row of logits: ids the tokenizer does not know can never
    /// be generated.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        template: Option<Arc<ChatTemplate>>,
        dialect: Dialect,
        logits: usize,
    ) -> Self {
        let banned = (tokenizer.vocab_size()..logits).map(|id| id as u32).collect();
        Self { tokenizer, template, dialect, banned }
    }
}

/// Renders with a template in the form its dialect wants.
pub(super) fn render_with(
    template: &ChatTemplate,
    dialect: &Dialect,
    conversation: Conversation<'_>,
) -> Result<RenderedPrompt, TextError> {
    if !conversation.tools.is_empty() && !dialect.tool_prompt_supported() {
        return Err(TextError::NoToolFormat);
    }
    let messages: Vec<_> =
        conversation.messages.iter().cloned().map(|message| dialect.split_history(message)).collect();
    let prepared = dialect.prepare(&messages, conversation.tools);
    let mut variables: Map<String, Value> = conversation.variables.clone();
    let enable_thinking = match variables.remove("enable_thinking") {
        Some(Value::Bool(enabled)) => Some(enabled),
        Some(other) => {
            variables.insert("enable_thinking".into(), other);
            None
        }
        None => None,
    };
    let options = TemplateOptions {
        add_generation_prompt: conversation.ending == Ending::Reply,
        enable_thinking,
        variables,
        now: None,
    };
    template
        .render(&prepared.messages, &prepared.tools, &options)
        .map_err(|error| TextError::Template(error.to_string()))
}

impl ModelText for FileText {
    fn vocab(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    fn end_tokens(&self) -> &[u32] {
        self.tokenizer.end_tokens()
    }

    fn banned(&self) -> &[u32] {
        &self.banned
    }

    fn render(&self, conversation: Conversation<'_>) -> Result<Rendered, TextError> {
        let Some(template) = &self.template else {
            return Err(TextError::NoTemplate);
        };
        let prompt = render_with(template, &self.dialect, conversation)?;
        Ok(Rendered { tokens: self.tokenizer.encode_prompt(&prompt), text: prompt.text() })
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.with_bos(self.tokenizer.encode_with_specials(text))
    }

    fn encode_part(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_text(text)
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(token).unwrap_or_default().to_vec()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, ControlTokens::Show)
    }

    fn turn_frame(&self) -> Option<&TurnFrame> {
        None
    }

    fn tool_call_opening(&self) -> Option<&str> {
        self.dialect.call_opening()
    }

    fn reasoning_tags(&self) -> Option<(&str, &str)> {
        self.dialect.reasoning_tags()
    }

    fn splitter(&self, prompt: &str, tools: ToolsOffered) -> Box<dyn Splitter> {
        Box::new(DialectSplitter(self.dialect.splitter(prompt, tools)))
    }
}

/// A dialect's splitter as a stage of the pipeline.
pub(super) struct DialectSplitter(pub(super) OutputSplitter);

impl Splitter for DialectSplitter {
    fn feed(&mut self, text: &str) -> Vec<SplitPiece> {
        pieces(self.0.feed(text))
    }

    fn finish(&mut self) -> Vec<SplitPiece> {
        pieces(self.0.finish())
    }
}

fn pieces(parts: Vec<OutputPart>) -> Vec<SplitPiece> {
    let mut pieces = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            OutputPart::Content(text) => pieces.push(SplitPiece::Text(text)),
            OutputPart::Reasoning(text) => pieces.push(SplitPiece::Reasoning(text)),
            OutputPart::ToolCall { name, arguments } => {
                pieces.push(SplitPiece::CallBegin { name });
                pieces.push(SplitPiece::CallArguments(arguments));
                pieces.push(SplitPiece::CallEnd);
            }
        }
    }
    pieces
}
