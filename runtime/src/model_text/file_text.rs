//! The text side of a model file: its tokenizer, its template, its dialect.
//!
//! Adapts `plimsoll-models` to [`ModelText`]. Owns nothing but the composition and a preset's template arguments.

use std::sync::Arc;

use plimsoll_models::dialect::{Dialect, OutputPart, OutputSplitter, ToolsOffered};
use plimsoll_models::template::ChatTemplate;
use plimsoll_models::tokenizer::{ControlTokens, Tokenizer};

use super::template_text::{Codec, TemplateText};
use super::{Conversation, ModelText, Rendered, SplitPiece, Splitter, TextError, TurnFrame};

/// The text side of one model file.
#[derive(Debug)]
pub struct FileText {
    tokenizer: Arc<Tokenizer>,
    template: Option<TemplateText>,
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
        let template = template.map(|template| TemplateText::new(template, dialect, &*tokenizer));
        Self { tokenizer, template, dialect, banned }
    }
}

impl Codec for Tokenizer {
    fn encode_escaped(&self, escaped: &str) -> Vec<u32> {
        Tokenizer::encode_escaped(self, escaped)
    }

    fn with_beginning(&self, tokens: Vec<u32>) -> Vec<u32> {
        self.with_bos(tokens)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        Tokenizer::decode(self, tokens, ControlTokens::Show)
    }

    fn end_tokens(&self) -> &[u32] {
        Tokenizer::end_tokens(self)
    }
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
        template.render(conversation, &*self.tokenizer)
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
        self.template.as_ref()?.turn_frame()
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
