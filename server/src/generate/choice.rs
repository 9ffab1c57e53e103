//! The pipeline of one choice: tokens in, certain pieces out.
//!
//! Owns the stages and their order. Never waits, never talks to the engine: it says whether the choice has ended, and
//! the caller draws the conclusions. Model text never makes it fail.

use plimsoll_runtime::detokenizer::Detokenizer;
use plimsoll_runtime::engine::FinishReason;
use plimsoll_runtime::stop_strings::StopStrings;

use crate::wire::chat_request::ParallelCalls;
use crate::wire::reply::{ChoiceUpdate, Finish, Piece, TokenReport};
use plimsoll_runtime::model_text::{SplitPiece, Splitter};

/// One choice while it is generated.
pub struct ChoicePipeline {
    choice: u32,
    detokenizer: Detokenizer,
    stops: Option<StopStrings>,
    splitter: Box<dyn Splitter>,
    parallel_calls: ParallelCalls,
    /// Reports whose text has not been passed on, each with the place of its first byte in the raw reply.
    pending: Vec<(usize, TokenReport)>,
    /// Bytes of all tokens so far.
    fed: usize,
    /// Bytes that came out of the stop stage.
    passed: usize,
    calls: usize,
    reasoning: bool,
    generated: u32,
    reasoning_tokens: u32,
    ended: bool,
}

impl ChoicePipeline {
    /// A pipeline for choice number `choice`. Without stop strings the stage is left out.
    pub fn new(
        choice: u32,
        stops: Option<StopStrings>,
        splitter: Box<dyn Splitter>,
        parallel_calls: ParallelCalls,
    ) -> Self {
        Self {
            choice,
            detokenizer: Detokenizer::default(),
            stops,
            splitter,
            parallel_calls,
            pending: Vec::new(),
            fed: 0,
            passed: 0,
            calls: 0,
            reasoning: false,
            generated: 0,
            reasoning_tokens: 0,
            ended: false,
        }
    }

    /// Whether the choice has ended; tokens that come later are dropped.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Tokens consumed, the one that ended the choice included.
    pub fn generated(&self) -> u32 {
        self.generated
    }

    /// Tokens of reasoning.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// One more token. `None` where nothing became certain.
    pub fn token(&mut self, bytes: &[u8], report: Option<TokenReport>) -> Option<ChoiceUpdate> {
        if self.ended {
            return None;
        }
        self.generated += 1;
        if let Some(report) = report {
            self.pending.push((self.fed, report));
        }
        self.fed += bytes.len();
        let text = self.detokenizer.feed(bytes);
        let (text, stopped) = self.stop_stage(text);
        let mut update = ChoiceUpdate { choice: self.choice, ..ChoiceUpdate::default() };
        let enough = self.split_stage(&text, &mut update);
        if self.reasoning {
            self.reasoning_tokens += 1;
        }
        if stopped || enough {
            if !enough {
                self.flush_splitter(&mut update);
            }
            self.close(Finish::Stop, &mut update);
            return Some(update);
        }
        if update.pieces.is_empty() {
            return None;
        }
        update.tokens = self.pending.drain(..).map(|(_, report)| report).collect();
        Some(update)
    }

    /// The engine says that the choice ended.
    pub fn finish(&mut self, reason: FinishReason) -> Option<ChoiceUpdate> {
        if self.ended {
            return None;
        }
        let mut finish = match reason {
            FinishReason::End(_) => {
                self.generated += 1;
                Finish::Stop
            }
            FinishReason::Guided => Finish::Stop,
            FinishReason::Length => Finish::Length,
        };
        let mut update = ChoiceUpdate { choice: self.choice, ..ChoiceUpdate::default() };
        let rest = self.detokenizer.finish();
        let (mut text, stopped) = self.stop_stage(rest);
        if stopped {
            finish = Finish::Stop;
        } else if let Some(stops) = &mut self.stops {
            let held = stops.finish();
            self.passed += held.len();
            text.push_str(&held);
        }
        if !self.split_stage(&text, &mut update) {
            self.flush_splitter(&mut update);
        }
        self.close(finish, &mut update);
        Some(update)
    }

    fn stop_stage(&mut self, text: String) -> (String, bool) {
        let (text, stopped) = match &mut self.stops {
            None => (text, false),
            Some(stops) => {
                let step = stops.feed(&text);
                (step.text, step.stopped.is_some())
            }
        };
        self.passed += text.len();
        (text, stopped)
    }

    /// Returns whether the reply may hold one call alone and has it.
    fn split_stage(&mut self, text: &str, update: &mut ChoiceUpdate) -> bool {
        if text.is_empty() {
            return false;
        }
        let pieces = self.splitter.feed(text);
        self.take_pieces(pieces, update)
    }

    fn flush_splitter(&mut self, update: &mut ChoiceUpdate) {
        let rest = self.splitter.finish();
        self.take_pieces(rest, update);
    }

    fn take_pieces(&mut self, pieces: Vec<SplitPiece>, update: &mut ChoiceUpdate) -> bool {
        for piece in pieces {
            match piece {
                SplitPiece::Text(text) => {
                    self.reasoning = false;
                    update.pieces.push(Piece::Text(text));
                }
                SplitPiece::Reasoning(text) => {
                    self.reasoning = true;
                    update.pieces.push(Piece::Reasoning(text));
                }
                SplitPiece::CallBegin { name } => {
                    self.reasoning = false;
                    update.pieces.push(Piece::CallBegin { call: self.calls, id: call_id(), name });
                    self.calls += 1;
                }
                SplitPiece::CallArguments(fragment) => {
                    let call = self.calls.saturating_sub(1);
                    update.pieces.push(Piece::CallArguments { call, fragment });
                }
                SplitPiece::CallEnd => {
                    if self.parallel_calls == ParallelCalls::One {
                        return true;
                    }
                }
            }
        }
        false
    }

    fn close(&mut self, finish: Finish, update: &mut ChoiceUpdate) {
        // A token counts as said when its first byte was let through.
        let passed = self.passed;
        let said = self.pending.drain(..).filter(|(start, _)| *start < passed);
        update.tokens = said.map(|(_, report)| report).collect();
        update.finish = Some(match finish {
            Finish::Stop if self.calls > 0 => Finish::ToolCalls,
            other => other,
        });
        self.ended = true;
    }
}

/// A call's id, unique without coordination.
fn call_id() -> String {
    let random = getrandom::u64().expect("the operating system provides random numbers");
    format!("call_{random:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::reply::WholeChoice;
    use plimsoll_runtime::model_text::PlainSplitter;
    use proptest::prelude::*;

    fn run(chunks: &[&[u8]], stops: &[&str], reason: FinishReason) -> (WholeChoice, u32) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let stops = (!stops.is_empty()).then(|| StopStrings::new(stops).unwrap());
        let mut pipeline = ChoicePipeline::new(0, stops, Box::new(PlainSplitter), ParallelCalls::Allowed);
        let mut whole = WholeChoice::default();
        for bytes in chunks {
            let report = TokenReport { bytes: bytes.to_vec(), logprob: -1.0, top: Vec::new() };
            if let Some(update) = pipeline.token(bytes, Some(report)) {
                whole.take(update);
            }
            if pipeline.ended() {
                break;
            }
        }
        if let Some(update) = pipeline.finish(reason) {
            whole.take(update);
        }
        (whole, pipeline.generated())
    }

    #[test]
    fn a_stop_string_cuts_the_text_the_tokens_and_the_count() {
        let (whole, generated) = run(&[b"one ", b"two S", b"TO", b"P three"], &["STOP"], FinishReason::Length);
        assert_eq!(whole.text, "one two ");
        assert_eq!(whole.finish, Some(Finish::Stop));
        assert_eq!(whole.tokens.len(), 2);
        assert_eq!(generated, 4);
    }

    #[test]
    fn a_length_cut_inside_a_stop_prefix_and_a_character_loses_nothing() {
        let (whole, _) = run(&[b"ab S", b"T", &[0xf0, 0x9f]], &["STOP"], FinishReason::Length);
        assert_eq!(whole.text, "ab ST\u{fffd}");
        assert_eq!(whole.finish, Some(Finish::Length));
        assert_eq!(whole.tokens.len(), 3);
    }

    proptest! {
        #[test]
        fn the_text_does_not_depend_on_where_tokens_are_cut(
            text in "[aSTOP é😀]{0,40}",
            cuts in proptest::collection::vec(0usize..120, 0..20),
        ) {
            let bytes = text.as_bytes();
            let mut borders: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            borders.extend([0, bytes.len()]);
            borders.sort_unstable();
            let chunks: Vec<&[u8]> = borders.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let (whole, _) = run(&chunks, &["STOP"], FinishReason::Length);
            let expected = text.split_once("STOP").map_or(text.as_str(), |(before, _)| before);
            prop_assert_eq!(whole.text, expected);
        }
    }
}
