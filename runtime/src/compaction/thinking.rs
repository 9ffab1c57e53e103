//! What a model thinks before it writes: kept apart under its own cap, and dropped.
//!
//! Owns the recognition of reasoning at the beginning of a reply. Never judges what is thought.

use std::sync::Arc;

use crate::model_text::ModelText;

/// What a sampled token means for the thinking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thought {
    /// The model thinks on.
    GoesOn,
    /// The thinking is over with this token, or has to be: these tokens take its place, and the text begins behind them.
    Ends(Vec<u32>),
    /// The model does not think; the token belongs to the text.
    Text,
}

/// Thinking at the beginning of one reply.
#[derive(Clone)]
pub struct Thinking {
    text: Arc<dyn ModelText>,
    state: State,
    /// What was thought, tags included.
    bytes: Vec<u8>,
    tokens: u32,
    cap: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was sampled that decides it.
    Undecided,
    Thinks,
    Over,
}

impl std::fmt::Debug for Thinking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Thinking({:?}, {} of {} tokens)", self.state, self.tokens, self.cap)
    }
}

impl Thinking {
    /// Of a reply to a prompt that ends in `prompt_end`, which may have opened it. At most `cap` tokens are thought.
    pub fn new(text: Arc<dyn ModelText>, prompt_end: &str, cap: u32) -> Self {
        let state = match text.reasoning_tags() {
            None => State::Over,
            Some((open, _)) if prompt_end.trim_end().ends_with(open) => State::Thinks,
            Some(_) => State::Undecided,
        };
        Self { text, state, bytes: Vec::new(), tokens: 0, cap }
    }

    /// A token was sampled.
    pub fn sampled(&mut self, token: u32) -> Thought {
        let tags = self.text.reasoning_tags().map(|(open, close)| (open.to_owned(), close.to_owned()));
        let (State::Undecided | State::Thinks, Some((open, close))) = (self.state, tags) else { return Thought::Text };
        let ends = self.text.end_tokens().contains(&token);
        self.bytes.extend(self.text.token_bytes(token));
        self.tokens += 1;
        let so_far = String::from_utf8_lossy(&self.bytes).into_owned();
        let begun = so_far.trim_start();
        if self.state == State::Undecided {
            if begun.starts_with(&open) {
                self.state = State::Thinks;
            } else if ends || !open.starts_with(begun) || self.tokens >= self.cap {
                self.state = State::Over;
                return Thought::Text;
            } else {
                return Thought::GoesOn;
            }
        }
        if so_far.contains(&close) {
            self.state = State::Over;
            let mut tokens = vec![token];
            tokens.extend(self.text.encode_part("\n\n"));
            return Thought::Ends(tokens);
        }
        if ends || self.tokens >= self.cap {
            self.state = State::Over;
            let mut tokens = self.text.encode_part("\n");
            tokens
                .extend(whole_token(&*self.text, &close).map_or_else(|| self.text.encode_part(&close), |id| vec![id]));
            tokens.extend(self.text.encode_part("\n\n"));
            return Thought::Ends(tokens);
        }
        Thought::GoesOn
    }
}

/// The token that is this text and nothing else.
pub fn whole_token(text: &dyn ModelText, wanted: &str) -> Option<u32> {
    (0..text.vocab() as u32).find(|token| text.token_bytes(*token) == wanted.as_bytes())
}

/// Tokens that hold this text.
pub fn tokens_holding(text: &dyn ModelText, wanted: &str) -> Vec<u32> {
    let wanted = wanted.as_bytes();
    let holds = |token: &u32| {
        let bytes = text.token_bytes(*token);
        bytes.len() >= wanted.len() && bytes.windows(wanted.len()).any(|window| window == wanted)
    };
    (0..text.vocab() as u32).filter(holds).collect()
}
