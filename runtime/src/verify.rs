//! A model against itself and against reference logits.
//!
//! The same tokens are computed in one pass, step by step, in uneven chunks, and from a checkpoint whose original pages
//! were overwritten by another sequence. On the CPU all four must agree bit for bit (batch invariance); against a
//! reference the largest difference counts, because a wrong epsilon or a transposed head still writes fluent text.

use plimsoll_kernels::{Device, PAGE_TOKENS, PageIndex};
use serde::Serialize;

use crate::executor::{Executor, SeqId, Span};
use crate::model_executor::ModelExecutor;

/// Largest difference to reference logits that an f32 run may show: three times the spread of a correct f64 run over
/// seeds (1.5e-4), and below what every known mistake of the math costs.
pub const MAX_DIFFERENCE: f32 = 5e-4;

/// How the tokens were fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// All tokens in one step.
    OnePass,
    /// One token per step.
    StepByStep,
    /// Chunks of 33, 1, 30 and the rest, which cross page borders at odd places.
    UnevenChunks,
    /// The first half's pages are copied, the originals overwritten by another sequence, and the copy continued.
    CheckpointEvictRestore,
}

/// Two sets of logits side by side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Rows compared.
    pub rows: usize,
    /// Largest absolute difference.
    pub max_difference: f32,
    /// Mean absolute difference.
    pub mean_difference: f32,
    /// Standard deviation of the reference logits, the scale of both differences.
    pub logit_std: f32,
    /// Rows whose largest logit is the same token.
    pub argmax_equal: usize,
}

impl Comparison {
    /// Compares `[rows, vocab]` logits with a reference of the same shape.
    pub fn between(found: &[f32], reference: &[f32], vocab: usize) -> Self {
        assert_eq!(found.len(), reference.len(), "logits of the same rows and vocabulary are compared");
        let n = reference.len() as f64;
        let mean = reference.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = reference.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        let differences = || found.iter().zip(reference).map(|(a, b)| (a - b).abs());
        let rows = found.chunks(vocab).zip(reference.chunks(vocab));
        Self {
            rows: found.len() / vocab,
            // A NaN must not vanish in a maximum.
            max_difference: differences().fold(0.0, |m, d| if d.is_nan() || d > m { d } else { m }),
            mean_difference: (differences().map(f64::from).sum::<f64>() / n) as f32,
            logit_std: variance.sqrt() as f32,
            argmax_equal: rows.filter(|(a, b)| argmax(a) == argmax(b)).count(),
        }
    }
}

/// Index of the largest value, the first where several are equal.
pub fn argmax(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// What was compared and whether it is within the limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassReport {
    /// How the tokens were fed.
    pub pass: Pass,
    /// Against the reference logits, where there are any.
    pub reference: Option<Comparison>,
    /// Against the one-pass logits of the same model.
    pub one_pass: Comparison,
    /// Within the limits.
    pub passed: bool,
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Tokens fed.
    pub tokens: usize,
    /// Largest difference allowed against the reference.
    pub limit: f32,
    /// One entry per way of feeding.
    pub passes: Vec<PassReport>,
    /// All within the limits.
    pub passed: bool,
}

/// Pages an executor needs to verify `tokens` tokens: two sequences side by side.
pub fn pages_needed(tokens: usize) -> usize {
    2 * tokens.div_ceil(PAGE_TOKENS)
}

/// Verifies a model on `tokens`, against `reference` logits `[tokens, vocab]` where given.
///
/// The executor must be planned for steps of `tokens` rows with logits, and for [`pages_needed`] pages.
pub fn verify<D: Device>(
    executor: &mut ModelExecutor<D>,
    tokens: &[u32],
    reference: Option<&[f32]>,
    limit: f32,
) -> Report {
    let vocab = executor.geometry().vocab;
    let one_pass = all_logits(executor, tokens);
    let mut passes = Vec::new();
    for pass in [Pass::OnePass, Pass::StepByStep, Pass::UnevenChunks, Pass::CheckpointEvictRestore] {
        let logits = match pass {
            Pass::OnePass => one_pass.clone(),
            Pass::StepByStep => in_chunks(executor, tokens, &vec![1; tokens.len()]),
            Pass::UnevenChunks => in_chunks(executor, tokens, &[33, 1, 30, usize::MAX]),
            Pass::CheckpointEvictRestore => restored(executor, tokens),
        };
        let against_one_pass = Comparison::between(&logits, &one_pass, vocab);
        let against_reference = reference.map(|r| Comparison::between(&logits, r, vocab));
        let passed = against_one_pass.max_difference == 0.0
            && against_reference.is_none_or(|c| c.max_difference <= limit && c.argmax_equal == c.rows);
        passes.push(PassReport { pass, reference: against_reference, one_pass: against_one_pass, passed });
    }
    let passed = passes.iter().all(|p| p.passed);
    Report { tokens: tokens.len(), limit, passes, passed }
}

/// The logits of every row of `tokens` in one pass, `[tokens, vocab]`.
pub fn all_logits<D: Device>(executor: &mut ModelExecutor<D>, tokens: &[u32]) -> Vec<f32> {
    in_chunks(executor, tokens, &[tokens.len()])
}

/// Continues `tokens` greedily by `count` tokens. Returns them and the logits after the prompt.
pub fn greedy<D: Device>(executor: &mut ModelExecutor<D>, tokens: &[u32], count: usize) -> (Vec<u32>, Vec<f32>) {
    let vocab = executor.geometry().vocab;
    let pages = pages(0, tokens.len() + count);
    let mut row = feed(executor, tokens, 0, &pages, &[tokens.len()]);
    let prompt_row = row.split_off(row.len() - vocab);
    let mut found = vec![argmax(&prompt_row) as u32];
    while found.len() < count {
        let sequence: Vec<u32> = tokens.iter().chain(&found).copied().collect();
        let row = feed(executor, &sequence, sequence.len() - 1, &pages, &[1]);
        found.push(argmax(&row) as u32);
    }
    found.truncate(count);
    (found, prompt_row)
}

fn pages(first: usize, tokens: usize) -> Vec<PageIndex> {
    (first..first + tokens.div_ceil(PAGE_TOKENS)).map(|page| page as PageIndex).collect()
}

/// Feeds `tokens` on the first pages in chunks of the given sizes, the last cut to what is left.
fn in_chunks<D: Device>(executor: &mut ModelExecutor<D>, tokens: &[u32], sizes: &[usize]) -> Vec<f32> {
    feed(executor, tokens, 0, &pages(0, tokens.len()), sizes)
}

fn feed<D: Device>(
    executor: &mut ModelExecutor<D>,
    tokens: &[u32],
    mut start: usize,
    pages: &[PageIndex],
    sizes: &[usize],
) -> Vec<f32> {
    let mut logits = Vec::new();
    for &size in sizes {
        let end = tokens.len().min(start.saturating_add(size));
        if start == end {
            break;
        }
        let span = Span {
            seq: SeqId(0),
            tokens: &tokens[start..end],
            start: start as u32,
            pages: &pages[..end.div_ceil(PAGE_TOKENS)],
            logits: true,
        };
        logits.extend_from_slice(executor.forward_all_rows(&span));
        start = end;
    }
    logits
}

fn restored<D: Device>(executor: &mut ModelExecutor<D>, tokens: &[u32]) -> Vec<f32> {
    let half = tokens.len() / 2;
    let original = pages(0, tokens.len());
    let checkpoint = pages(original.len(), tokens.len());
    let mut logits = feed(executor, &tokens[..half], 0, &original, &[half]);
    for (&from, &to) in original.iter().zip(&checkpoint) {
        executor.copy_page(from, to);
    }
    let reversed: Vec<u32> = tokens.iter().rev().copied().collect();
    feed(executor, &reversed, 0, &original, &[reversed.len()]);
    logits.extend(feed(executor, tokens, half, &checkpoint, &[usize::MAX]));
    logits
}
