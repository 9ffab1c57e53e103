//! Writes a summary together with the model: the engine the headings, the model complete lines below them.
//!
//! Each section ends when the model begins a heading or ends its reply, when the section's share of the cap is used up,
//! or when the model only repeats itself; what stands incomplete is dropped. Owns the caps. Never judges a summary.

use std::sync::Arc;

use super::draft::{SharedDraft, is_none};
use super::instruction::{NEXT_STEP, SECTIONS, heading};
use super::thinking::{Thinking, Thought, tokens_holding};
use crate::engine::{Guidance, Guide};
use crate::model_text::ModelText;

/// Most tokens of a line.
const LINE_CAP: u32 = 160;
/// Lines over [`LINE_CAP`] after which a section ends.
const LONG_LINES: u32 = 2;
/// Repeated lines in a row after which a section ends.
const REPEATS: u32 = 2;
/// The part of the cap that thinking may use: one over this.
const THINKING_SHARE: u32 = 4;
/// What is left for each later section when one goes on for want of a complete line, in tokens.
const LEAST_SECTION: u32 = 12;

/// What becomes of a summary in which the model calls a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnToolCall {
    /// The summary ends there.
    End,
    /// The section ends there.
    EndSection,
}

/// See the module's text.
pub struct SummaryWriter {
    text: Arc<dyn ModelText>,
    draft: SharedDraft,
    thinking: Thinking,
    headings: Vec<Vec<u32>>,
    line_break: Vec<u32>,
    call_opening: Option<String>,
    on_tool_call: OnToolCall,
    /// Tokens that open a tool call.
    openings: Vec<u32>,
    /// These and what would end the reply: a section must not stay empty because the model is done.
    openings_and_ends: Vec<u32>,
    cap: u32,
    /// Tokens that were appended.
    used: u32,
    /// The section that is written; `None` before the first.
    section: Option<Section>,
}

#[derive(Debug)]
struct Section {
    at: usize,
    /// Tokens it may have in all.
    cap: u32,
    tokens: u32,
    line: Vec<u8>,
    line_tokens: u32,
    complete_lines: u32,
    long_lines: u32,
    repeats: u32,
}

impl std::fmt::Debug for SummaryWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SummaryWriter({} of {} tokens, {:?})", self.used, self.cap, self.section)
    }
}

impl SummaryWriter {
    /// A writer of a summary of at most `cap` tokens, behind a prompt that ends in `prompt_end`.
    pub fn new(
        text: Arc<dyn ModelText>,
        prompt_end: &str,
        cap: u32,
        on_tool_call: OnToolCall,
        draft: SharedDraft,
    ) -> Self {
        let call_opening = text.tool_call_opening().map(str::to_owned);
        let openings = call_opening.as_deref().map(|opening| tokens_holding(&*text, opening)).unwrap_or_default();
        let openings_and_ends = [&openings, text.end_tokens()].concat();
        Self {
            thinking: Thinking::new(text.clone(), prompt_end, cap / THINKING_SHARE),
            headings: (0..SECTIONS.len()).map(|section| text.encode_part(&heading(section))).collect(),
            line_break: text.encode_part("\n"),
            call_opening,
            on_tool_call,
            openings,
            openings_and_ends,
            cap,
            used: 0,
            section: None,
            text,
            draft,
        }
    }

    /// Tokens for the headings from `section` on, their line breaks included.
    fn headings_from(&self, section: usize) -> u32 {
        let later = &self.headings[section.min(SECTIONS.len())..];
        later.iter().map(|heading| (heading.len() + self.line_break.len()) as u32).sum()
    }

    /// Ends what is written behind `before`, and begins section `at`.
    fn begin(&mut self, at: usize, mut before: Vec<u32>) -> Guidance {
        let Some(heading) = self.headings.get(at) else { return Guidance::End };
        before.extend_from_slice(heading);
        self.used += before.len() as u32;
        let left = self.cap.saturating_sub(self.used + self.headings_from(at + 1));
        let sections_left = (SECTIONS.len() - at) as u32;
        self.section = Some(Section {
            at,
            cap: left / sections_left,
            tokens: 0,
            line: Vec::new(),
            line_tokens: 0,
            complete_lines: 0,
            long_lines: 0,
            repeats: 0,
        });
        Guidance::Replace(before)
    }

    fn keep(&mut self) -> Guidance {
        self.used += 1;
        Guidance::Keep
    }

    fn write(&mut self, token: u32) -> Guidance {
        let bytes = self.text.token_bytes(token);
        let is_end = self.text.end_tokens().contains(&token);
        let Some(mut section) = self.section.take() else { return Guidance::End };
        let at = section.at;
        let was_in_line = !section.line.is_empty();
        if is_end {
            self.complete(&mut section);
            let before = if was_in_line { self.line_break.clone() } else { Vec::new() };
            return self.begin(at + 1, before);
        }
        section.tokens += 1;
        section.line_tokens += 1;
        section.line.extend_from_slice(&bytes);
        if self.opens_call(&section.line) {
            self.draft.lock().tool_call = true;
            return match self.on_tool_call {
                OnToolCall::End => Guidance::End,
                OnToolCall::EndSection => {
                    let before = if was_in_line { self.line_break.clone() } else { Vec::new() };
                    self.begin(at + 1, before)
                }
            };
        }
        // Bytes of this token up to and with the last line break that completes something.
        let mut completed = 0;
        let mut enough = false;
        while let Some(end) = section.line.iter().position(|byte| *byte == b'\n') {
            let rest = section.line.split_off(end + 1);
            section.line.truncate(end);
            enough |= self.complete(&mut section);
            section.line = rest;
            section.line_tokens = u32::from(!section.line.is_empty());
            completed = bytes.len() - section.line.len().min(bytes.len());
            if enough {
                break;
            }
        }
        let heads_a_section = section.line.trim_ascii_start().starts_with(b"#");
        if enough || heads_a_section {
            // The token stands as far as it completed lines; what came behind is the engine's to write.
            let before = match (completed, std::str::from_utf8(&bytes[..completed])) {
                (0, _) if was_in_line => self.line_break.clone(),
                (0, _) => Vec::new(),
                (all, _) if all == bytes.len() => vec![token],
                (_, Ok(kept)) => self.text.encode_part(kept),
                (_, Err(_)) => self.line_break.clone(),
            };
            return self.begin(at + 1, before);
        }
        let in_line = !section.line.is_empty();
        let room_to_overrun = self.cap.saturating_sub(self.used + self.headings_from(at + 1))
            > (SECTIONS.len() - at - 1) as u32 * LEAST_SECTION + 2 + self.line_break.len() as u32;
        let over = section.tokens >= section.cap;
        let may_overrun = section.complete_lines == 0 && section.tokens < 2 * section.cap && room_to_overrun;
        if over && !may_overrun {
            // An incomplete line is dropped.
            let mut before = vec![token];
            if in_line {
                before.extend_from_slice(&self.line_break);
            }
            return self.begin(at + 1, before);
        }
        if section.line_tokens >= LINE_CAP {
            section.long_lines += 1;
            section.line.clear();
            section.line_tokens = 0;
            let mut before = vec![token];
            before.extend_from_slice(&self.line_break);
            if section.long_lines >= LONG_LINES {
                return self.begin(at + 1, before);
            }
            self.used += before.len() as u32;
            self.section = Some(section);
            return Guidance::Replace(before);
        }
        self.section = Some(section);
        self.keep()
    }

    /// The line is complete. True: the section has said enough.
    fn complete(&self, section: &mut Section) -> bool {
        let line = String::from_utf8_lossy(&section.line).trim_end().to_owned();
        section.line.clear();
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            return false;
        }
        if !self.draft.lock().push(section.at, &line) {
            section.repeats += 1;
            return section.repeats >= REPEATS;
        }
        section.repeats = 0;
        section.complete_lines += 1;
        section.at == NEXT_STEP || is_none(&line)
    }

    fn opens_call(&self, line: &[u8]) -> bool {
        let Some(opening) = self.call_opening.as_deref().map(str::as_bytes) else { return false };
        line.len() >= opening.len() && line.windows(opening.len()).any(|window| window == opening)
    }
}

impl Guide for SummaryWriter {
    fn sampled(&mut self, token: u32) -> Guidance {
        if self.section.is_some() {
            return self.write(token);
        }
        match self.thinking.sampled(token) {
            Thought::GoesOn => self.keep(),
            Thought::Ends(before) => self.begin(0, before),
            Thought::Text => self.begin(0, Vec::new()),
        }
    }

    fn forbidden(&self) -> &[u32] {
        match &self.section {
            Some(section) if section.complete_lines == 0 && section.line.is_empty() => &self.openings_and_ends,
            _ => &self.openings,
        }
    }
}
