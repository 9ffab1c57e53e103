//! The contract between the engine thread and something that computes logits.
//!
//! The engine owns all bookkeeping (which page holds what, who runs); an executor owns the bytes (weights, pages,
//! activations). The model executor runs an architecture on a device; the simulated executor replays a
//! script. Neither knows of requests.

use plimsoll_kernels::PageIndex;

/// Identity of a sequence for as long as the engine lives; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Sizes the engine must respect.
#[derive(Clone, Debug)]
pub struct ExecutorGeometry {
    /// Logits per row.
    pub vocab: usize,
    /// The longest sequence, in tokens.
    pub max_context: usize,
    /// The most rows of one step.
    pub max_rows: usize,
    /// The most spans of one step that want logits: the bound on sequences that run at once.
    pub max_logits: usize,
    /// Pages in the store.
    pub pages: usize,
    /// Bytes of one page.
    pub page_bytes: usize,
}

/// Consecutive tokens of one sequence within a step.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Its tokens, at positions `start .. start + tokens.len()`.
    pub tokens: &'a [u32],
    /// Position of the first token.
    pub start: u32,
    /// The sequence's pages, covering positions `0 .. start + tokens.len()`.
    pub pages: &'a [PageIndex],
    /// Whether the logits after the last token are wanted.
    pub logits: bool,
}

/// A step failed in a way that makes the executor's state unreliable: the engine is poisoned.
#[derive(Debug, thiserror::Error)]
#[error("the model step failed: {0}")]
pub struct ExecutorError(pub String);

/// Computes logits; see the module's text.
pub trait Executor: Send {
    /// Sizes, fixed for life.
    fn geometry(&self) -> &ExecutorGeometry;
    /// One line for people: device, threads, cache type.
    fn describe(&self) -> String;
    /// Runs one step. Returns the logits `[spans with logits, vocab]`, in span order.
    ///
    /// Spans belong to distinct sequences, have at least one token, and together at most `max_rows` tokens and
    /// `max_logits` wanted logits. No page slot that is written is visible to another span: shared pages are full, or
    /// were copied with [`Executor::copy_page`] before. A sequence may begin at `start > 0`: what is on its pages then
    /// was computed by another sequence with the same tokens.
    fn forward(&mut self, spans: &[Span<'_>]) -> Result<&[f32], ExecutorError>;
    /// Copies the contents of page `from` over page `to`.
    fn copy_page(&mut self, from: PageIndex, to: PageIndex);
    /// The sequence has ended, perhaps without ever having been fed; an executor that keeps anything under its id lets
    /// go of it. Its pages may live on in the prefix index.
    fn retire(&mut self, seq: SeqId);
}
