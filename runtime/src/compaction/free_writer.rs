//! Writes a summary in whatever form a request's own instructions ask for: the text is the model's alone.
//!
//! Owns the two things that end it early, a tool call and a line over and over. Never judges a summary.

use std::sync::Arc;

use super::draft::SharedDraft;
use super::thinking::{Thinking, Thought, tokens_holding};
use crate::detokenizer::Detokenizer;
use crate::engine::{Guidance, Guide};
use crate::model_text::ModelText;

/// How often a line may stand in a row.
const SAME_LINES: usize = 3;
/// The part of the cap that thinking may use: one over this.
const THINKING_SHARE: u32 = 2;

/// See the module's text.
pub struct FreeWriter {
    text: Arc<dyn ModelText>,
    draft: SharedDraft,
    thinking: Thinking,
    thinks: bool,
    call_opening: Option<String>,
    openings: Vec<u32>,
    detokenizer: Detokenizer,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for FreeWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FreeWriter({} bytes)", self.bytes.len())
    }
}

impl FreeWriter {
    /// A writer of a summary of at most `cap` tokens, behind a prompt that ends in `prompt_end`.
    pub fn new(text: Arc<dyn ModelText>, prompt_end: &str, cap: u32, draft: SharedDraft) -> Self {
        let call_opening = text.tool_call_opening().map(str::to_owned);
        let openings = call_opening.as_deref().map(|opening| tokens_holding(&*text, opening)).unwrap_or_default();
        let thinking = Thinking::new(text.clone(), prompt_end, cap / THINKING_SHARE);
        let detokenizer = Detokenizer::default();
        Self { text, draft, thinking, thinks: true, call_opening, openings, detokenizer, bytes: Vec::new() }
    }

    /// Whether the last complete lines are all the same.
    fn repeats(&self) -> bool {
        let complete = match self.bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => &self.bytes[..end],
            None => return false,
        };
        let mut lines = complete.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
        let Some(last) = lines.next() else { return false };
        lines.take_while(|line| *line == last).take(SAME_LINES).count() == SAME_LINES
    }
}

/// Whether `wanted` ends within the last `last` bytes.
fn holds_in_end(bytes: &[u8], wanted: &str, last: usize) -> bool {
    let from = bytes.len().saturating_sub(last + wanted.len());
    bytes[from..].windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

impl Guide for FreeWriter {
    fn sampled(&mut self, token: u32) -> Guidance {
        if self.thinks {
            match self.thinking.sampled(token) {
                Thought::GoesOn => return Guidance::Keep,
                Thought::Ends(tokens) => {
                    self.thinks = false;
                    return Guidance::Replace(tokens);
                }
                Thought::Text => self.thinks = false,
            }
        }
        if self.text.end_tokens().contains(&token) {
            return Guidance::End;
        }
        let bytes = self.text.token_bytes(token);
        self.bytes.extend_from_slice(&bytes);
        let mut draft = self.draft.lock();
        draft.free.push_str(&self.detokenizer.feed(&bytes));
        if self.call_opening.as_deref().is_some_and(|opening| holds_in_end(&self.bytes, opening, bytes.len())) {
            draft.tool_call = true;
            return Guidance::End;
        }
        if bytes.contains(&b'\n') && self.repeats() {
            draft.repeated = SAME_LINES;
            return Guidance::End;
        }
        Guidance::Keep
    }

    fn forbidden(&self) -> &[u32] {
        &self.openings
    }
}
