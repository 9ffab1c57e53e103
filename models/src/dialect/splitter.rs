//! Splits a reply into content, reasoning and tool calls while it arrives.
//!
//! Owns the text that is not decided yet: something that may become a tag, a call that is not closed, and white space
//! before them. Everything else is handed out at once. A call is handed out whole, when it is closed. Tags that turn out
//! not to be a call are content again, and the text after them is searched anew, so that nothing is lost and a mistake
//! does not hide a right call behind it.
//!
//! Rules: reasoning opens at the beginning of a reply only. A tag inside a Markdown fence is text. White space next to a
//! tag belongs to the tag. The naive twin in the tests works on the whole text.

use super::hermes::{self, Body, BodyEnd, CLOSE, OPEN};
use super::{ReasoningStyle, ToolsOffered};

/// Opens reasoning.
pub(super) const THINK: &str = "<think>";
/// Ends reasoning.
pub(super) const END_THINK: &str = "</think>";

/// What a splitter is certain of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// Visible text.
    Content(String),
    /// Reasoning.
    Reasoning(String),
    /// A complete call.
    ToolCall {
        /// The tool's name, as the model wrote it.
        name: String,
        /// Its arguments as JSON text.
        arguments: String,
    },
}

/// Where in a reply the undecided text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing has been said yet.
    Beginning,
    Content,
    Reasoning,
}

/// Splits one reply.
#[derive(Clone, Debug)]
pub struct OutputSplitter {
    reasoning: ReasoningStyle,
    tools: ToolsOffered,
    place: Place,
    /// Text that is not decided.
    pending: String,
    /// Bytes of `pending` in which no closing tag begins; so that a long call is searched once.
    searched: usize,
    /// White space at the front of `pending` belongs to a tag before it.
    after_tag: bool,
    fence: Fence,
}

/// What can be done with the undecided text.
enum Step {
    /// The first bytes are text of this place.
    Text(usize),
    /// So many bytes are white space and a tag of reasoning; then this place.
    Tag(usize, Place),
    /// So many bytes were calls.
    Calls(usize, Vec<hermes::Call>),
    /// More text is needed.
    Wait,
}

impl OutputSplitter {
    pub(super) fn new(reasoning: ReasoningStyle, reasoning_is_open: bool, tools: ToolsOffered) -> Self {
        Self {
            reasoning,
            tools,
            place: if reasoning_is_open { Place::Reasoning } else { Place::Beginning },
            pending: String::new(),
            searched: 0,
            after_tag: reasoning_is_open,
            fence: Fence::default(),
        }
    }

    /// What is certain after more text.
    #[must_use]
    pub fn feed(&mut self, text: &str) -> Vec<OutputPart> {
        self.pending.push_str(text);
        self.advance(false)
    }

    /// The end of the reply: what was held back.
    #[must_use]
    pub fn finish(&mut self) -> Vec<OutputPart> {
        self.advance(true)
    }

    fn advance(&mut self, at_end: bool) -> Vec<OutputPart> {
        let mut parts = Vec::new();
        loop {
            if self.after_tag {
                let kept = self.pending.trim_start().len();
                self.discard(self.pending.len() - kept);
                if self.pending.is_empty() {
                    return parts;
                }
            }
            match self.step(at_end) {
                Step::Text(length) => self.say(length, &mut parts),
                Step::Tag(length, place) => {
                    self.discard(length);
                    self.enter(place);
                }
                Step::Calls(length, calls) => {
                    self.discard(length);
                    self.enter(Place::Content);
                    parts.extend(
                        calls
                            .into_iter()
                            .map(|call| OutputPart::ToolCall { name: call.name, arguments: call.arguments }),
                    );
                }
                Step::Wait => return parts,
            }
            if self.pending.is_empty() {
                return parts;
            }
        }
    }

    fn discard(&mut self, length: usize) {
        self.pending.drain(..length);
        self.searched = 0;
    }

    fn enter(&mut self, place: Place) {
        self.place = place;
        self.after_tag = true;
        self.fence = Fence::default();
    }

    fn say(&mut self, length: usize, parts: &mut Vec<OutputPart>) {
        let text: String = self.pending.drain(..length).collect();
        self.searched = 0;
        self.after_tag = false;
        self.fence.feed(&text);
        match (self.place, parts.last_mut()) {
            (Place::Reasoning, Some(OutputPart::Reasoning(before))) => before.push_str(&text),
            (Place::Reasoning, _) => parts.push(OutputPart::Reasoning(text)),
            (_, Some(OutputPart::Content(before))) => before.push_str(&text),
            (_, _) => parts.push(OutputPart::Content(text)),
        }
        if self.place == Place::Beginning {
            self.place = Place::Content;
        }
    }

    /// The tags that mean something here.
    fn tags(&self) -> impl Iterator<Item = &'static str> + use<> {
        let think = match (self.reasoning, self.place) {
            (ReasoningStyle::ThinkTags, Place::Beginning) => Some(THINK),
            (ReasoningStyle::ThinkTags, Place::Reasoning) => Some(END_THINK),
            _ => None,
        };
        let call = (self.tools == ToolsOffered::Yes).then_some(OPEN);
        think.into_iter().chain(call)
    }

    fn step(&mut self, at_end: bool) -> Step {
        let text = self.pending.as_str();
        let found = self.tags().filter_map(|tag| Some((text.find(tag)?, tag))).min_by_key(|(at, _)| *at);
        let Some((at, tag)) = found else {
            return self.text_before(self.first_possible_tag(at_end), at_end);
        };
        let space = text[..at].trim_end().len();
        if space > 0 {
            // The beginning of a reply ends with its first word.
            return Step::Text(space);
        }
        let mut fence = self.fence;
        fence.feed(&text[..at]);
        match tag {
            THINK => Step::Tag(at + tag.len(), Place::Reasoning),
            END_THINK => Step::Tag(at + tag.len(), Place::Content),
            _ if fence.is_open() => Step::Text(at + tag.len()),
            _ => self.call(at, at_end),
        }
    }

    /// Text up to `end`; white space before `end` waits for what follows.
    fn text_before(&self, end: usize, at_end: bool) -> Step {
        let sure = if at_end || self.tags().next().is_none() { end } else { self.pending[..end].trim_end().len() };
        if sure == 0 { Step::Wait } else { Step::Text(sure) }
    }

    /// Where a tag may have begun at the end of the text, or the end of the text.
    fn first_possible_tag(&self, at_end: bool) -> usize {
        let text = self.pending.as_str();
        if at_end {
            return text.len();
        }
        let possible = |tag: &'static str| {
            let longest = tag.len().min(text.len() + 1) - 1;
            (1..=longest).rev().find(|length| text.ends_with(&tag[..*length])).map(|length| text.len() - length)
        };
        self.tags().filter_map(possible).min().unwrap_or(text.len())
    }

    /// The undecided text is white space and an opening tag at `at`.
    fn call(&mut self, at: usize, at_end: bool) -> Step {
        let start = at + OPEN.len();
        let not_a_call = Step::Text(start);
        let text = self.pending.as_str();
        if !hermes::may_become_calls(&text[start..]) {
            return not_a_call;
        }
        let mut from = self.searched.max(start);
        loop {
            let rest = &text[from..];
            let close = rest.find(CLOSE).map(|i| (from + i, BodyEnd::ClosingTag, CLOSE.len()));
            let open = rest.find(OPEN).map(|i| (from + i, BodyEnd::Other, 0));
            let Some((end, kind, skip)) = close.into_iter().chain(open).min_by_key(|(end, ..)| *end) else { break };
            match hermes::read_body(&text[start..end], kind) {
                Body::Calls(calls) => return Step::Calls(end + skip, calls),
                Body::NoCall => return not_a_call,
                Body::EndsInString => from = end + 1,
            }
        }
        if at_end {
            return self.unclosed_call(start).unwrap_or(not_a_call);
        }
        // The last bytes may be the beginning of a tag.
        let mut searched = text.len().saturating_sub(CLOSE.len() - 1).max(from);
        while !text.is_char_boundary(searched) {
            searched -= 1;
        }
        self.searched = searched;
        Step::Wait
    }

    /// A call at the end of the reply without its closing tag, or with a part of it.
    fn unclosed_call(&self, start: usize) -> Option<Step> {
        let body = &self.pending[start..];
        let cut = (1..CLOSE.len()).rev().find(|length| body.ends_with(&CLOSE[..*length])).unwrap_or(0);
        [body.len(), body.len() - cut].into_iter().find_map(|end| {
            match hermes::read_body(&body[..end], BodyEnd::Other) {
                Body::Calls(calls) => Some(Step::Calls(self.pending.len(), calls)),
                Body::EndsInString | Body::NoCall => None,
            }
        })
    }
}

/// Whether the text so far has an open Markdown fence: a line that begins with three backticks opens or closes one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fence {
    open: bool,
    line: Line,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// At its beginning, after spaces and so many backticks.
    #[default]
    Empty,
    Backticks(u8),
    /// Nothing on it matters any more.
    Decided,
}

impl Fence {
    pub(super) fn feed(&mut self, text: &str) {
        for c in text.chars() {
            self.line = match (c, self.line) {
                ('\n', _) => Line::Empty,
                (' ' | '\t', Line::Empty) => Line::Empty,
                ('`', Line::Empty) => Line::Backticks(1),
                ('`', Line::Backticks(1)) => Line::Backticks(2),
                ('`', Line::Backticks(_)) => {
                    self.open = !self.open;
                    Line::Decided
                }
                _ => Line::Decided,
            };
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }
}
