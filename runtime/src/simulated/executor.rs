//! The replay: logits peaked at the next scripted token.

use std::collections::{HashMap, VecDeque};
use std::thread::sleep;
use std::time::Duration;

use plimsoll_kernels::{PAGE_TOKENS, PageIndex};

use super::script::{ScriptedReply, SimulationFaults, SimulationScript};
use super::vocabulary::{IM_END, VOCABULARY, encode};
use crate::executor::{Executor, ExecutorError, ExecutorGeometry, SeqId, Span};

/// The scripted token's logit. Other logits are 0; with bias (at most 100), penalties and temperature (at most 2)
/// applied, the scripted token still has all of the probability. Only DRY, whose penalty grows exponentially, can
/// outweigh it where a script repeats itself at length.
const PEAK: f32 = 1e6;
/// The logit of a space, which is said where the scripted token is forbidden (an end that comes too early).
const FILLER: f32 = 1e3;

/// Sizes of a simulated device.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedLimits {
    /// Pages of the simulated store.
    pub pages: usize,
    /// The most rows of one step.
    pub max_rows: usize,
    /// The most sequences that run at once.
    pub max_logits: usize,
}

impl SimulatedLimits {
    /// Room for four full windows, steps of 512 rows, 64 sequences.
    pub fn for_window(window: usize) -> Self {
        Self { pages: 4 * window.div_ceil(PAGE_TOKENS), max_rows: 512, max_logits: 64 }
    }
}

/// A reply that is being said.
#[derive(Debug)]
struct Playing {
    tokens: Vec<u32>,
    /// The next token to say.
    next: usize,
    /// Tokens fed since the last one was said: that one itself, or what a guide wrote in its place.
    heard: Vec<u32>,
    begun: bool,
    ttft_ms: u64,
    tpot_ms: u64,
}

impl Playing {
    fn new(reply: &ScriptedReply) -> Self {
        let mut tokens = encode(reply.text());
        tokens.push(IM_END);
        let (ttft_ms, tpot_ms) = reply.times_ms();
        Self { tokens, next: 0, heard: Vec::new(), begun: false, ttft_ms, tpot_ms }
    }

    /// The next token and how long it takes; after the end it is the end again.
    fn say(&mut self) -> (u32, u64) {
        let wait = if self.begun { self.tpot_ms } else { self.ttft_ms };
        self.begun = true;
        self.find_place();
        (self.tokens.get(self.next).copied().unwrap_or(IM_END), wait)
    }

    /// Goes on behind what was heard: what was said stands, or a guide wrote what comes next or further below. What
    /// the script does not have is passed over, and the script stays where it is.
    fn find_place(&mut self) {
        let heard = std::mem::take(&mut self.heard);
        let rest = &self.tokens[self.next..];
        if rest.starts_with(&heard) {
            self.next += heard.len();
            return;
        }
        let space = |token: &u32| u8::try_from(*token).is_ok_and(|byte| byte.is_ascii_whitespace());
        let Some(first) = heard.iter().position(|token| !space(token)) else { return };
        let last = heard.iter().rposition(|token| !space(token)).expect("there is a first one");
        let line = &heard[first..=last];
        let begins_line = |at: usize| at == 0 || rest[at - 1] == u32::from(b'\n');
        let found = rest.windows(line.len()).enumerate().find(|(at, window)| *window == line && begins_line(*at));
        if let Some((at, _)) = found {
            let end = at + line.len();
            let breaks = heard.len() > last + 1 && rest.get(end) == Some(&u32::from(b'\n'));
            self.next += end + usize::from(breaks);
        }
    }
}

/// Replays a script; see the module's text. The first logits wanted for a sequence take the next reply. Where a guide
/// writes tokens in place of the script's (the headings of a summary), the script goes on behind the same text, if it
/// has it at the beginning of a line, and stays where it is if not.
#[derive(Debug)]
pub struct SimulatedExecutor {
    geometry: ExecutorGeometry,
    replies: VecDeque<ScriptedReply>,
    default: ScriptedReply,
    faults: SimulationFaults,
    steps: u64,
    playing: HashMap<SeqId, Playing>,
    logits: Vec<f32>,
}

impl SimulatedExecutor {
    /// A simulated device with a script in it.
    pub fn new(script: &SimulationScript, limits: SimulatedLimits) -> Self {
        let SimulatedLimits { pages, max_rows, max_logits } = limits;
        let geometry = ExecutorGeometry {
            vocab: VOCABULARY,
            max_context: script.window,
            max_rows,
            max_logits,
            pages,
            page_bytes: 0,
        };
        Self {
            geometry,
            replies: script.replies.clone().into(),
            default: ScriptedReply::Text(script.default.clone()),
            faults: script.faults.clone(),
            steps: 0,
            playing: HashMap::new(),
            logits: Vec::with_capacity(max_logits * VOCABULARY),
        }
    }
}

impl Executor for SimulatedExecutor {
    fn geometry(&self) -> &ExecutorGeometry {
        &self.geometry
    }

    fn describe(&self) -> String {
        "simulation: scripted replies, no weights".to_owned()
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<&[f32], ExecutorError> {
        self.steps += 1;
        if self.faults.error_at_step == Some(self.steps) {
            return Err(ExecutorError(format!("the script asked for an error at step {}", self.steps)));
        }
        if self.faults.panic_at_step == Some(self.steps) {
            panic!("the script asked for a panic at step {}", self.steps);
        }
        self.logits.clear();
        let mut step_ms = 0;
        for span in spans {
            if let Some(playing) = self.playing.get_mut(&span.seq) {
                playing.heard.extend_from_slice(span.tokens);
            }
            if !span.logits {
                continue;
            }
            let playing = self
                .playing
                .entry(span.seq)
                .or_insert_with(|| Playing::new(&self.replies.pop_front().unwrap_or_else(|| self.default.clone())));
            let (token, wait_ms) = playing.say();
            step_ms = step_ms.max(wait_ms);
            let row = self.logits.len();
            self.logits.resize(row + VOCABULARY, 0.0);
            self.logits[row + usize::from(b' ')] = FILLER;
            self.logits[row + token as usize] = PEAK;
        }
        if step_ms > 0 {
            sleep(Duration::from_millis(step_ms));
        }
        Ok(&self.logits)
    }

    fn copy_page(&mut self, _from: PageIndex, _to: PageIndex) {}

    fn retire(&mut self, seq: SeqId) {
        self.playing.remove(&seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(json_replies: &str) -> SimulationScript {
        let json = format!(r#"{{"model": "m", "dialect": "chatml", "window": 99, "replies": {json_replies}}}"#);
        SimulationScript::parse(&json).unwrap()
    }

    fn span(seq: u64, logits: bool) -> Span<'static> {
        Span { seq: SeqId(seq), tokens: &[1], start: 0, pages: &[0], logits }
    }

    fn fed(seq: u64, tokens: &[u32]) -> Span<'_> {
        Span { seq: SeqId(seq), tokens, start: 0, pages: &[0], logits: true }
    }

    fn peaks(logits: &[f32]) -> Vec<usize> {
        logits.chunks(VOCABULARY).map(|row| row.iter().position(|l| *l == PEAK).unwrap()).collect()
    }

    #[test]
    fn sequences_take_replies_in_the_order_in_which_they_first_want_logits() {
        let mut executor = SimulatedExecutor::new(&script(r#"["ab", "c"]"#), SimulatedLimits::for_window(99));
        assert_eq!(peaks(executor.forward(&[span(1, false), span(2, true)]).unwrap()), [97]);
        assert_eq!(peaks(executor.forward(&[span(1, true), fed(2, &[97])]).unwrap()), [99, 98]);
        let end = IM_END as usize;
        assert_eq!(peaks(executor.forward(&[fed(2, &[98]), fed(1, &[99])]).unwrap()), [end, end]);
        assert_eq!(peaks(executor.forward(&[span(3, true)]).unwrap()), [usize::from(b'T')], "the default begins");
    }

    #[test]
    fn a_script_goes_on_behind_what_a_guide_wrote() {
        let replies = r###"["## A\n- one\n## B\n- two\n"]"###;
        let mut executor = SimulatedExecutor::new(&script(replies), SimulatedLimits::for_window(99));
        let mut next = |text: &str| peaks(executor.forward(&[fed(1, &encode(text))]).unwrap())[0] as u8 as char;
        assert_eq!(next("prompt"), '#');
        assert_eq!(next("## A\n"), '-', "what it would have said itself");
        assert_eq!(next("- on"), 'e');
        assert_eq!(next("\n## Missing\n"), 'e', "the script does not have it");
        assert_eq!(next("\n## B\n"), '-');
        assert_eq!(next("-"), ' ');
    }

    #[test]
    fn a_step_takes_as_long_as_its_slowest_reply() {
        let replies = r#"[{"text": "x", "ttft_ms": 30}, {"text": "y", "ttft_ms": 60}]"#;
        let mut executor = SimulatedExecutor::new(&script(replies), SimulatedLimits::for_window(99));
        let start = std::time::Instant::now();
        let _ = executor.forward(&[span(1, true), span(2, true)]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(60));
    }
}
