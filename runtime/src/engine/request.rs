//! What goes into the engine and what comes out of it.
//!
//! Types only: the values make a half-built request or a token after the end impossible to express.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::guide::Guide;

/// Identity of a request, unique while the server lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Gives out request identities; clones give from the same sequence.
#[derive(Clone, Debug, Default)]
pub struct RequestIds(Arc<AtomicU64>);

impl RequestIds {
    /// One that nobody had before.
    pub fn next(&self) -> RequestId {
        RequestId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whose request it is: the unit of fairness and the border of cache reuse. 0 is the anonymous tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u64);

/// Which of the `n` choices of a request.
pub type ChoiceIndex = u32;

/// How a request meets the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CachePolicy {
    /// Reads it and writes to it.
    #[default]
    Default,
    /// Neither reads nor writes it: the control that shows a full prefill.
    Bypass,
}

/// How the next token is chosen. Neutral values switch a stage off; the order of stages is documented with the
/// sampler. `temperature == 0` is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass in [0, 1]; 1 is off, 0 keeps the likeliest token.
    pub top_p: f32,
    /// Tokens kept; 0 is off.
    pub top_k: u32,
    /// Least probability relative to the likeliest token, in [0, 1]; 0 is off.
    pub min_p: f32,
    /// Locally typical mass in (0, 1]; 1 is off.
    pub typical_p: f32,
    /// Subtracted from the logit of every token seen at least once in the reply.
    pub presence_penalty: f32,
    /// Subtracted from the logit per occurrence in the reply.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen in the last `repeat_last_n` tokens; 1 is off.
    pub repetition_penalty: f32,
    /// Window of the repetition penalty, in tokens, prompt included.
    pub repeat_last_n: u32,
    /// DRY multiplier; 0 is off.
    pub dry_multiplier: f32,
    /// DRY base.
    pub dry_base: f32,
    /// Longest repetition DRY leaves unpunished, in tokens.
    pub dry_allowed_length: u32,
    /// How far back DRY looks, in tokens; 0 is the whole sequence.
    pub dry_penalty_last_n: u32,
    /// Tokens at which a DRY match ends (first tokens of the sequence breakers).
    pub dry_breakers: Vec<u32>,
    /// Chance that XTC removes the top choices; 0 is off.
    pub xtc_probability: f32,
    /// Least probability of a token XTC may remove.
    pub xtc_threshold: f32,
    /// Added to single logits before anything else.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the reply; choices of one request use seed + choice index.
    pub seed: u64,
    /// How many alternatives to report per token; `None`: no log-probabilities at all.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            typical_p: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            repeat_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 0,
            dry_breakers: Vec::new(),
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Purpose {
    /// A reply.
    #[default]
    Reply,
    /// Reading the prompt into the prefix cache, to its last token. Nothing is sampled; the caps of a reply take no part.
    Warm,
}

/// A request as the engine takes it: token ids and exact numbers, everything already decided by the budget.
#[derive(Debug)]
pub struct GenerationRequest {
    /// Its identity, chosen by the caller.
    pub id: RequestId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The rendered prompt; at least one token.
    pub prompt: Vec<u32>,
    /// Most tokens of each reply; at least 1.
    pub reply_cap: u32,
    /// Tokens that are reserved beyond the reply (summary instruction and summary), once per request.
    pub reserve_beyond: u32,
    /// Choices; at least 1. The prompt is prefilled once and forked.
    pub n: u32,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens that end a reply and are not part of it.
    pub end_tokens: Vec<u32>,
    /// End tokens are impossible before this many reply tokens.
    pub min_tokens: u32,
    /// End tokens do not end the reply (they are kept as tokens of it).
    pub ignore_end: bool,
    /// Tokens that may never be chosen (the padding of the vocabulary is always among them).
    pub banned: Vec<u32>,
    /// How it meets the prefix cache.
    pub cache: CachePolicy,
    /// What it is for.
    pub purpose: Purpose,
    /// Writes the reply together with the model; the request then has one choice, and `end_tokens`, `min_tokens` and
    /// `ignore_end` take no part.
    pub guide: Option<Box<dyn Guide>>,
}

/// A token's log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability under the model's unmodified distribution.
    pub logprob: f32,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOut {
    /// Its id.
    pub token: u32,
    /// Its log-probability, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest alternatives, best first, where asked for.
    pub top: Vec<TokenLogprob>,
}

/// Why a choice ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model produced this end token.
    End(u32),
    /// The reply cap was reached.
    Length,
    /// Its guide ended it.
    Guided,
}

/// What a request used, counted by the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Of these, tokens whose K/V came from the prefix cache.
    pub cached: u32,
    /// Rows of the prompt that were fed to the model (`prompt - cached`, also across chunks).
    pub prefilled: u32,
    /// Tokens generated over all choices.
    pub completion: u32,
}

/// The one end of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Terminal {
    /// All choices ended by themselves.
    Finished(Usage),
    /// The caller let go of it.
    Cancelled(Usage),
    /// It was never admitted.
    Rejected(Reject),
    /// The engine broke while it ran.
    Failed(String),
}

/// Why a request was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Reject {
    #[error("the queue holds {waiting} requests, its limit; try again in {retry_after_s} s")]
    QueueFull { waiting: usize, retry_after_s: u32 },
    #[error("the request needs {needed} pages over its lifetime, the pool has {pages}")]
    NeverFits { needed: usize, pages: usize },
    #[error("the request needs {needed} tokens, the model supports {max_context}")]
    BeyondContext { needed: usize, max_context: usize },
    #[error("the request is malformed: {0}")]
    Malformed(&'static str),
    #[error("the server is draining")]
    Draining,
    #[error("the engine is not running")]
    EngineDown,
}

/// What the engine says about a request, in this order: `Admitted`, `Prefill`*, (`Token` | `ChoiceFinished`)*, one
/// `Done`. `Done` may come at any point.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It runs.
    Admitted {
        /// Tokens of its prompt that need no prefill. More may turn up while it reads its prompt, when another request
        /// has read the same; the terminal's [`Usage`] counts those too.
        cached: u32,
    },
    /// A piece of the prompt was read.
    Prefill {
        /// Tokens of the prompt whose K/V is there.
        processed: u32,
        /// Tokens of the prompt.
        total: u32,
    },
    /// A choice grew by one token.
    Token {
        /// Which choice.
        choice: ChoiceIndex,
        /// The token.
        token: TokenOut,
    },
    /// A choice ended by itself; no token of it follows.
    ChoiceFinished {
        /// Which choice.
        choice: ChoiceIndex,
        /// Why.
        reason: FinishReason,
    },
    /// The one terminal; nothing follows.
    Done(Terminal),
}
