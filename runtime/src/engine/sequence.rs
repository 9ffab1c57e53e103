//! A running request as the engine thread keeps it: its sequences, their tokens and their pages.
//!
//! Bookkeeping only: what has been fed, what is pending, where it lies. Which rows are fed when is the scheduler's
//! decision; what the logits mean is the sampler's.

use plimsoll_kernels::PAGE_TOKENS;

use super::admission::Lifetime;
use super::guide::Guide;
use super::handle::Ticket;
use super::ledger::{ChoiceLine, RunningAccount};
use super::request::{CachePolicy, GenerationRequest, Purpose};
use crate::executor::{SeqId, Span};
use crate::page_pool::{PageTable, Reservation};
use crate::prefix_index::PrefixIndex;
use crate::sampler::Sampler;

/// Tokens of which the first `fed` have their K/V on `pages`; the rest is pending.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: SeqId,
    pub tokens: Vec<u32>,
    pub fed: usize,
    pub pages: PageTable,
}

impl Sequence {
    /// Another sequence with the same tokens and pages so far; writes part them (copy-on-write).
    pub fn fork(&self, id: SeqId) -> Self {
        Self { id, tokens: self.tokens.clone(), fed: self.fed, pages: self.pages.clone() }
    }

    /// Tokens that are not fed yet.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.fed
    }

    /// The next `rows` pending tokens as a span; its pages must be prepared.
    pub fn span(&self, rows: usize, purpose: Purpose) -> Span<'_> {
        let end = self.fed + rows;
        Span {
            seq: self.id,
            tokens: &self.tokens[self.fed..end],
            start: self.fed as u32,
            pages: &self.pages.indices()[..end.div_ceil(PAGE_TOKENS)],
            logits: end == self.tokens.len() && purpose == Purpose::Reply,
        }
    }

    /// Lets the index remember the first `tokens` fed tokens.
    pub fn remember(&mut self, tokens: usize, request: &GenerationRequest, index: &mut impl PrefixIndex) {
        if request.cache == CachePolicy::Bypass || tokens == 0 {
            return;
        }
        debug_assert!(tokens <= self.fed, "only tokens that were fed have K/V");
        let Self { tokens: all, pages, .. } = self;
        let count = tokens.div_ceil(PAGE_TOKENS);
        pages.exchange(|holds| index.insert(request.tenant, &all[..tokens], &mut holds[..count]));
    }
}

/// One choice of a running request.
#[derive(Debug)]
pub(super) struct Choice {
    pub sequence: Sequence,
    pub sampler: Sampler,
    pub guide: Option<Box<dyn Guide>>,
    pub line: ChoiceLine,
    /// Tokens of the reply so far.
    pub generated: u32,
}

/// What a running request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its first choice reads the prompt up to here; the others are not forked yet.
    Prefill { until: usize },
    /// Every choice has a pending token, or several where its guide wrote them.
    Decode,
}

/// Counts what the prefix index was told to remember: a lookup is repeated only where it may find more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheVersion(pub u64);

/// An admitted request.
#[derive(Debug)]
pub(super) struct Running {
    pub ticket: Ticket,
    pub request: GenerationRequest,
    pub account: RunningAccount,
    /// Pages it may still take.
    pub promise: Reservation,
    pub phase: Phase,
    pub lifetime: Lifetime,
    /// State of the cache when its prompt was looked up last.
    pub looked_up: CacheVersion,
    /// Choices that have not ended; never empty between steps.
    pub choices: Vec<Choice>,
}

impl Running {
    /// Sequences it runs or will run when it has forked.
    pub fn sequences(&self) -> usize {
        match self.phase {
            Phase::Prefill { .. } => self.request.n as usize,
            Phase::Decode => self.choices.len(),
        }
    }
}
