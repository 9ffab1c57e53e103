//! How fast a model reads prompts and writes tokens, without an engine around it.
//!
//! The columns are those of the field's common benchmark (llama-bench): prompts of `n` tokens from an empty cache, and `n` tokens
//! one by one behind a given depth. Logits are computed for the last row of each step, and no token is chosen. Owns what
//! is timed. Never prints.

use std::time::{Duration, Instant};

use plimsoll_kernels::{PAGE_TOKENS, PageIndex};

use crate::executor::{Executor, ExecutorError, SeqId, Span};

/// Something to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reading a prompt of so many tokens, in steps of the executor's size.
    Prefill(usize),
    /// Writing tokens one by one.
    Decode {
        /// How many.
        tokens: usize,
        /// Tokens of the sequence before the first of them.
        depth: usize,
        /// Sequences that are written side by side, one token each per step.
        streams: usize,
    },
}

impl Work {
    /// Tokens that are read or written in all.
    pub const fn tokens(self) -> usize {
        match self {
            Self::Prefill(tokens) => tokens,
            Self::Decode { tokens, streams, .. } => tokens * streams,
        }
    }

    /// Positions that one sequence takes.
    pub const fn positions(self) -> usize {
        match self {
            Self::Prefill(tokens) => tokens,
            Self::Decode { tokens, depth, .. } => depth + tokens,
        }
    }

    /// Pages an executor needs for it.
    pub const fn pages(self) -> usize {
        let each = self.positions().div_ceil(PAGE_TOKENS);
        match self {
            Self::Prefill(_) => each,
            Self::Decode { streams, .. } => each * streams,
        }
    }
}

/// Times `work` so many times, after one untimed run; what lies before a depth is read once.
///
/// # Errors
/// The executor failed. Panics when it was planned for less than [`Work::pages`] pages or [`Work::positions`] positions.
pub fn time(executor: &mut dyn Executor, work: Work, repetitions: usize) -> Result<Vec<Duration>, ExecutorError> {
    let vocab = executor.geometry().vocab;
    let sequences: Vec<Sequence> = match work {
        Work::Prefill(_) => vec![Sequence::new(0, work.positions(), vocab)],
        Work::Decode { streams, .. } => (0..streams).map(|at| Sequence::new(at, work.positions(), vocab)).collect(),
    };
    if let Work::Decode { depth, .. } = work {
        for sequence in &sequences {
            prefill(executor, sequence, depth)?;
        }
    }
    let mut times = Vec::with_capacity(repetitions);
    for repetition in 0..=repetitions {
        let began = Instant::now();
        match work {
            Work::Prefill(tokens) => prefill(executor, &sequences[0], tokens)?,
            Work::Decode { tokens, depth, .. } => decode(executor, &sequences, depth, tokens)?,
        }
        if repetition > 0 {
            times.push(began.elapsed());
        }
    }
    Ok(times)
}

/// Tokens and pages of one sequence.
struct Sequence {
    seq: SeqId,
    tokens: Vec<u32>,
    pages: Vec<PageIndex>,
}

impl Sequence {
    /// Tokens of a fixed linear congruential sequence (the constants of Knuth's MMIX), the same on every run.
    fn new(at: usize, positions: usize, vocab: usize) -> Self {
        let mut state = at as u64 + 1;
        let tokens = (0..positions).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocab as u64) as u32
        });
        let pages = positions.div_ceil(PAGE_TOKENS);
        Self {
            seq: SeqId(at as u64),
            tokens: tokens.collect(),
            pages: (at * pages..(at + 1) * pages).map(|page| page as PageIndex).collect(),
        }
    }

    fn span(&self, start: usize, end: usize, logits: bool) -> Span<'_> {
        Span {
            seq: self.seq,
            tokens: &self.tokens[start..end],
            start: start as u32,
            pages: &self.pages[..end.div_ceil(PAGE_TOKENS)],
            logits,
        }
    }
}

fn prefill(executor: &mut dyn Executor, sequence: &Sequence, tokens: usize) -> Result<(), ExecutorError> {
    let step = executor.geometry().max_rows;
    for start in (0..tokens).step_by(step) {
        let end = (start + step).min(tokens);
        executor.forward(&[sequence.span(start, end, end == tokens)])?;
    }
    Ok(())
}

fn decode(
    executor: &mut dyn Executor,
    sequences: &[Sequence],
    depth: usize,
    tokens: usize,
) -> Result<(), ExecutorError> {
    for at in depth..depth + tokens {
        let spans: Vec<Span<'_>> = sequences.iter().map(|sequence| sequence.span(at, at + 1, true)).collect();
        executor.forward(&spans)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::ExecutorGeometry;

    /// Writes down what it was asked for.
    struct Recorder {
        geometry: ExecutorGeometry,
        steps: Vec<Vec<(u32, usize)>>,
    }

    impl Executor for Recorder {
        fn geometry(&self) -> &ExecutorGeometry {
            &self.geometry
        }

        fn describe(&self) -> String {
            "a recorder".into()
        }

        fn forward(&mut self, spans: &[Span<'_>]) -> Result<&[f32], ExecutorError> {
            for span in spans {
                assert_eq!(span.pages.len(), (span.start as usize + span.tokens.len()).div_ceil(PAGE_TOKENS));
                assert!(span.pages.iter().all(|page| (*page as usize) < self.geometry.pages));
            }
            self.steps.push(spans.iter().map(|span| (span.start, span.tokens.len())).collect());
            Ok(&[])
        }

        fn copy_page(&mut self, _from: PageIndex, _to: PageIndex) {}

        fn retire(&mut self, _seq: SeqId) {}
    }

    fn recorder(pages: usize) -> Recorder {
        let geometry =
            ExecutorGeometry { vocab: 100, max_context: 1000, max_rows: 64, max_logits: 8, pages, page_bytes: 1 };
        Recorder { geometry, steps: Vec::new() }
    }

    #[test]
    fn a_prompt_is_read_in_steps_of_the_executors_size_once_more_than_it_is_timed() {
        let mut executor = recorder(Work::Prefill(150).pages());
        assert_eq!(time(&mut executor, Work::Prefill(150), 2).unwrap().len(), 2);
        let one = [vec![(0, 64)], vec![(64, 64)], vec![(128, 22)]];
        assert_eq!(executor.steps, [&one[..], &one[..], &one[..]].concat());
    }

    #[test]
    fn what_lies_before_a_depth_is_read_once_and_streams_are_written_side_by_side() {
        let work = Work::Decode { tokens: 2, depth: 70, streams: 2 };
        assert_eq!(work.tokens(), 4);
        let mut executor = recorder(work.pages());
        time(&mut executor, work, 1).unwrap();
        let depth = [vec![(0, 64)], vec![(64, 6)]];
        let written = [vec![(70, 1), (70, 1)], vec![(71, 1), (71, 1)]];
        assert_eq!(executor.steps, [&depth[..], &depth[..], &written[..], &written[..]].concat());
    }
}
