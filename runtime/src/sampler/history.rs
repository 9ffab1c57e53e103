//! The tokens said so far and the penalties that count them.
//!
//! Owns the sequence (prompt and reply) and two tables of counts: the last `repeat_last_n` tokens of the sequence for
//! the repetition penalty, the reply for frequency and presence. A table is kept only where its penalty is on. The
//! repetition penalty is that of CTRL (arXiv:1909.05858), the other two are defined by the OpenAI API.

use std::collections::HashMap;

use crate::engine::SamplingParams;

/// What was said, as far as the parameters ask for it.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Prompt and reply; empty where neither the repetition penalty nor DRY needs it.
    sequence: Vec<u32>,
    /// How often each token occurs in the repetition penalty's window.
    window: HashMap<u32, u32>,
    /// How often each token occurs in the reply.
    reply: HashMap<u32, u32>,
    keeps: Keeps,
}

/// Which parts are kept up.
#[derive(Clone, Copy, Debug)]
struct Keeps {
    sequence: bool,
    /// Tokens of the repetition penalty's window; 0 where it is off.
    window: usize,
    reply: bool,
}

impl History {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let window = if params.repetition_penalty == 1.0 { 0 } else { params.repeat_last_n as usize };
        let keeps = Keeps {
            sequence: window > 0 || params.dry_multiplier > 0.0,
            window,
            reply: params.frequency_penalty != 0.0 || params.presence_penalty != 0.0,
        };
        let mut history = Self { sequence: Vec::new(), window: HashMap::new(), reply: HashMap::new(), keeps };
        if keeps.sequence {
            history.sequence.extend_from_slice(prompt);
        }
        for &token in &prompt[prompt.len().saturating_sub(window)..] {
            *history.window.entry(token).or_default() += 1;
        }
        history
    }

    /// Prompt and reply, where DRY is on.
    pub(super) fn sequence(&self) -> &[u32] {
        &self.sequence
    }

    /// The reply grows by one token.
    pub(super) fn accept(&mut self, token: u32) {
        if self.keeps.reply {
            *self.reply.entry(token).or_default() += 1;
        }
        if self.keeps.sequence {
            self.sequence.push(token);
        }
        if self.keeps.window > 0 {
            *self.window.entry(token).or_default() += 1;
            if let Some(left) = self.sequence.len().checked_sub(self.keeps.window + 1) {
                let left = self.sequence[left];
                let count = self.window.get_mut(&left).expect("a token that leaves the window was counted in it");
                *count -= 1;
                if *count == 0 {
                    self.window.remove(&left);
                }
            }
        }
    }

    /// Applies the three penalties to `logits` (`[vocab]`). Each touches a token once, so the order of the tables does
    /// not matter.
    pub(super) fn penalise(&self, params: &SamplingParams, logits: &mut [f32]) {
        for token in self.window.keys() {
            if let Some(logit) = logits.get_mut(*token as usize) {
                if *logit > 0.0 {
                    *logit /= params.repetition_penalty;
                } else {
                    *logit *= params.repetition_penalty;
                }
            }
        }
        for (token, &count) in &self.reply {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= count as f32 * params.frequency_penalty + params.presence_penalty;
            }
        }
    }
}
