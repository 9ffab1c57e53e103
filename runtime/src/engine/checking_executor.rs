//! An executor that knows what must lie on every page slot: the oracle for the engine's bookkeeping.
//!
//! It keeps, per slot, the token and position that were written there and a digest of everything before. Each step it
//! reads every slot that attention would read and panics (which poisons the engine) where one holds another position,
//! or another past, than its sequence has. Its "logits" are peaked at a function of that digest, so a reply depends on
//! every token of its past as it is found on the pages; [`reply`] computes the same from the prompt alone.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_kernels::{PAGE_TOKENS, PageIndex};

use super::guide::{Guidance, Guide};
use crate::executor::{Executor, ExecutorError, ExecutorGeometry, SeqId, Span};

/// Tokens of the vocabulary; the last one ends replies.
pub(super) const VOCAB: usize = 64;
pub(super) const END: u32 = VOCAB as u32 - 1;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    token: u32,
    position: u32,
    digest: u64,
}

fn digest(before: u64, token: u32) -> u64 {
    (before ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 0x5851_f42d
}

fn next(digest: u64) -> u32 {
    // One token in 24 ends the reply.
    if digest.is_multiple_of(24) { END } else { (digest >> 8) as u32 % END }
}

/// The reply to a prompt: at most `cap` tokens, the end token not included.
pub(super) fn reply(prompt: &[u32], cap: usize) -> Vec<u32> {
    let mut past = prompt.iter().fold(0, |past, token| digest(past, *token));
    let mut tokens = Vec::new();
    while tokens.len() < cap && next(past) != END {
        tokens.push(next(past));
        past = digest(past, next(past));
    }
    tokens
}

/// The same for a reply with a guide.
pub(super) fn guided_reply(prompt: &[u32], guide: &mut dyn Guide, cap: usize) -> Vec<u32> {
    let mut past = prompt.iter().fold(0, |past, token| digest(past, *token));
    let mut tokens = Vec::new();
    while tokens.len() < cap {
        let sampled = next(past);
        let said = match guide.sampled(sampled) {
            Guidance::Keep => vec![sampled],
            Guidance::Replace(forced) => forced,
            Guidance::End => break,
        };
        past = said.iter().fold(past, |past, token| digest(past, *token));
        tokens.extend(said);
    }
    tokens.truncate(cap);
    tokens
}

/// What the executor has seen, for the test to look at.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub steps: u64,
    pub most_rows: usize,
    pub most_logits: usize,
    pub copies: u64,
    pub rows: u64,
    /// Sequences fed and not retired, each with the first token of its first span.
    pub live: HashMap<SeqId, u32>,
    /// First tokens of the sequences retired, in that order.
    pub retired: Vec<u32>,
}

pub(super) struct CheckingExecutor {
    geometry: ExecutorGeometry,
    slots: Vec<Option<Slot>>,
    logits: Vec<f32>,
    row_time: Duration,
    seen: Arc<Mutex<Seen>>,
}

impl CheckingExecutor {
    pub fn new(pages: usize, max_context: usize, max_rows: usize, max_logits: usize) -> (Self, Arc<Mutex<Seen>>) {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let geometry = ExecutorGeometry { vocab: VOCAB, max_context, max_rows, max_logits, pages, page_bytes: 0 };
        let slots = vec![None; pages * PAGE_TOKENS];
        (Self { geometry, slots, logits: Vec::new(), row_time: Duration::ZERO, seen: seen.clone() }, seen)
    }

    /// Every row of a step takes so long.
    pub fn with_row_time(mut self, row_time: Duration) -> Self {
        self.row_time = row_time;
        self
    }

    fn slot(pages: &[PageIndex], position: usize) -> usize {
        pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
    }

    /// The digest of positions `0..end`, after checking each.
    fn read(&self, span: &Span<'_>, end: usize) -> u64 {
        (0..end).fold(0, |past, position| {
            let slot = self.slots[Self::slot(span.pages, position)].expect("a slot is read before it was written");
            assert_eq!(slot.position as usize, position, "{:?} reads a slot of another position", span.seq);
            assert_eq!(slot.digest, digest(past, slot.token), "{:?} reads a slot of another past", span.seq);
            slot.digest
        })
    }
}

impl Executor for CheckingExecutor {
    fn geometry(&self) -> &ExecutorGeometry {
        &self.geometry
    }

    fn describe(&self) -> String {
        "checks every page slot".into()
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<&[f32], ExecutorError> {
        let rows: usize = spans.iter().map(|s| s.tokens.len()).sum();
        let wanted = spans.iter().filter(|s| s.logits).count();
        assert!(rows > 0 && rows <= self.geometry.max_rows, "a step of {rows} rows");
        assert!(wanted <= self.geometry.max_logits, "a step with {wanted} rows of logits");
        let mut written = HashSet::new();
        for span in spans {
            let end = span.start as usize + span.tokens.len();
            assert_eq!(span.pages.len(), end.div_ceil(PAGE_TOKENS), "the pages cover the span exactly");
            let mut past = self.read(span, span.start as usize);
            for (position, token) in (span.start as usize..end).zip(span.tokens) {
                let slot = Self::slot(span.pages, position);
                assert!(written.insert(slot), "two sequences write one slot");
                past = digest(past, *token);
                self.slots[slot] = Some(Slot { token: *token, position: position as u32, digest: past });
            }
        }
        // Attention reads after all rows of the step are written: what one sequence wrote must not show in another.
        self.logits.clear();
        for span in spans {
            let past = self.read(span, span.start as usize + span.tokens.len());
            if span.logits {
                let row = self.logits.len();
                self.logits.resize(row + VOCAB, 0.0);
                self.logits[row + next(past) as usize] = 100.0;
            }
        }
        let mut seen = self.seen.lock().unwrap();
        seen.steps += 1;
        seen.most_rows = seen.most_rows.max(rows);
        seen.most_logits = seen.most_logits.max(wanted);
        seen.rows += rows as u64;
        for span in spans {
            seen.live.entry(span.seq).or_insert(span.tokens[0]);
        }
        if !self.row_time.is_zero() {
            std::thread::sleep(self.row_time * rows as u32);
        }
        Ok(&self.logits)
    }

    fn copy_page(&mut self, from: PageIndex, to: PageIndex) {
        assert_ne!(from, to);
        let (from, to) = (from as usize * PAGE_TOKENS, to as usize * PAGE_TOKENS);
        self.slots.copy_within(from..from + PAGE_TOKENS, to);
        self.seen.lock().unwrap().copies += 1;
    }

    fn retire(&mut self, seq: SeqId) {
        let mut seen = self.seen.lock().unwrap();
        let first = seen.live.remove(&seq);
        seen.retired.extend(first);
    }
}
