//! What the engine promises, checked with an executor that knows what must lie on every page.
#![cfg(test)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_kernels::PAGE_TOKENS;

use super::checking_executor::{CheckingExecutor, END, Seen, reply};
use super::*;
use crate::simulated::{IM_END, SimulatedExecutor, SimulatedLimits, SimulationScript, encode};

/// A deterministic prompt without end tokens; different seeds differ from their first token on.
fn prompt(seed: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|i| (seed + i * i + i / 7) % END).collect()
}

fn request(prompt: Vec<u32>, reply_cap: u32) -> GenerationRequest {
    GenerationRequest {
        id: RequestId(1),
        tenant: TenantId(0),
        prompt,
        reply_cap,
        reserve_beyond: 0,
        n: 1,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        end_tokens: vec![END],
        min_tokens: 0,
        ignore_end: false,
        banned: vec![],
        cache: CachePolicy::Default,
    }
}

/// Everything a generation said, with its order checked.
#[derive(Debug, Default)]
struct Heard {
    cached: Option<u32>,
    prefills: Vec<u32>,
    replies: Vec<Vec<u32>>,
    reasons: Vec<Option<FinishReason>>,
    terminal: Option<Terminal>,
}

impl Heard {
    fn note(&mut self, event: Event) {
        assert!(self.terminal.is_none(), "{event:?} after the terminal");
        let admitted = self.cached.is_some();
        match event {
            Event::Admitted { cached } => assert!(self.cached.replace(cached).is_none(), "admitted twice"),
            Event::Prefill { processed, .. } => {
                assert!(admitted && self.replies.is_empty());
                assert!(self.prefills.last().is_none_or(|last| *last < processed));
                self.prefills.push(processed);
            }
            Event::Token { choice, token } => {
                assert!(admitted);
                self.grow(choice);
                assert!(self.reasons[choice as usize].is_none(), "a token after its choice ended");
                self.replies[choice as usize].push(token.token);
            }
            Event::ChoiceFinished { choice, reason } => {
                self.grow(choice);
                assert!(self.reasons[choice as usize].replace(reason).is_none(), "a choice ended twice");
            }
            Event::Done(terminal) => self.terminal = Some(terminal),
        }
    }

    fn grow(&mut self, choice: ChoiceIndex) {
        let len = self.replies.len().max(choice as usize + 1);
        self.replies.resize(len, Vec::new());
        self.reasons.resize(len, None);
    }

    fn usage(&self) -> Usage {
        match &self.terminal {
            Some(Terminal::Finished(usage) | Terminal::Cancelled(usage)) => *usage,
            other => panic!("expected an end with a usage, found {other:?}"),
        }
    }
}

fn hear(mut generation: Generation) -> Heard {
    let mut heard = Heard::default();
    while let Some(event) = generation.blocking_next() {
        heard.note(event);
    }
    assert!(heard.terminal.is_some(), "a generation ends with a terminal");
    heard
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Waits until nothing runs or waits, and checks that every page is back.
fn assert_at_rest(engine: &EngineHandle) -> EngineStatus {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        let status = engine.status();
        if status.running == 0 && status.waiting == 0 {
            assert_eq!(status.pages.in_use(), 0, "{status:?}");
            assert_eq!(status.pages.promised, 0, "{status:?}");
            return status;
        }
        assert!(Instant::now() < patience, "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn checked(pages: usize, max_rows: usize, max_logits: usize) -> (EngineHandle, Arc<Mutex<Seen>>) {
    let (executor, seen) = CheckingExecutor::new(pages, pages * PAGE_TOKENS, max_rows, max_logits);
    (Engine::start(Box::new(executor), EngineConfig::default()), seen)
}

#[test]
fn a_reply_is_what_the_model_says_about_the_whole_prompt() {
    let (engine, seen) = checked(64, 48, 8);
    for tokens in [1, 2, 31, 32, 33, 63, 64, 65, 200, 500] {
        let prompt = prompt(tokens as u32, tokens);
        let heard = hear(engine.submit(request(prompt.clone(), 40)));
        assert_eq!(heard.replies.concat(), reply(&prompt, 40));
        let usage = heard.usage();
        assert_eq!(usage.prompt as usize, tokens);
        assert_eq!(usage.cached + usage.prefilled, usage.prompt);
        assert_eq!(usage.completion as usize, reply(&prompt, 40).len());
    }
    assert_at_rest(&engine);
    assert!(seen.lock().unwrap().live.is_empty(), "every sequence was retired");
    assert!(seen.lock().unwrap().most_rows <= 48);
}

#[test]
fn a_cache_hit_gives_the_same_tokens_as_a_miss_wherever_it_ends() {
    let (engine, _) = checked(1000, 64, 8);
    let base = prompt(3, 150);
    let first = hear(engine.submit(request(base.clone(), 20)));
    assert_eq!(first.usage().cached, 0);
    for common in 0..=150 {
        let mut other = base[..common].to_vec();
        other.extend(prompt(40 + common as u32, 30));
        let shared = base.iter().zip(&other).take_while(|(a, b)| a == b).count();
        let heard = hear(engine.submit(request(other.clone(), 20)));
        assert_eq!(heard.replies.concat(), reply(&other, 20), "after {common} common tokens");
        assert!(heard.usage().cached as usize >= shared, "{:?} of {shared}", heard.usage());
        assert_eq!(heard.usage().cached + heard.usage().prefilled, heard.usage().prompt);
    }
    assert_at_rest(&engine);
}

#[test]
fn an_identical_request_is_answered_identically_from_one_row_of_prefill() {
    let (engine, _) = checked(64, 64, 8);
    for tokens in [1, 2, 32, 33, 64, 100] {
        let prompt = prompt(tokens as u32, tokens);
        let first = hear(engine.submit(request(prompt.clone(), 20)));
        let again = hear(engine.submit(request(prompt.clone(), 20)));
        assert_eq!(first.replies, again.replies);
        assert_eq!(again.usage().cached as usize, tokens - 1);
        assert_eq!(again.usage().prefilled, 1);
    }
}

#[test]
fn only_rows_that_are_not_cached_are_fed_and_a_bypass_feeds_them_all() {
    let (engine, _) = checked(64, 64, 8);
    let prompt = prompt(9, 300);
    let fed = |cache| {
        let before = engine.status().totals.rows_fed;
        let heard = hear(engine.submit(GenerationRequest { cache, ..request(prompt.clone(), 1) }));
        assert_eq!(heard.replies.concat(), reply(&prompt, 1));
        (engine.status().totals.rows_fed - before, heard.usage().cached)
    };
    assert_eq!(fed(CachePolicy::Bypass), (300, 0));
    assert_eq!(engine.status().pages.evictable, 0, "a bypass writes nothing");
    assert_eq!(fed(CachePolicy::Default), (300, 0));
    assert_eq!(fed(CachePolicy::Default), (1, 299));
    assert_eq!(fed(CachePolicy::Bypass), (300, 0));
    wait_for(engine.clear_cache());
    assert_eq!(fed(CachePolicy::Default), (300, 0));
}

#[test]
fn choices_fork_after_one_prefill_and_say_what_they_would_say_alone() {
    for tokens in [1, 2, 32, 33, 34, 70] {
        let (engine, seen) = checked(64, 64, 8);
        let prompt = prompt(tokens as u32, tokens);
        for round in 0..2 {
            let heard = hear(engine.submit(GenerationRequest { n: 4, ..request(prompt.clone(), 40) }));
            let alone = reply(&prompt, 40);
            assert_eq!(heard.replies.iter().filter(|r| **r == alone).count(), if alone.is_empty() { 0 } else { 4 });
            assert_eq!(heard.reasons.len(), 4);
            let usage = heard.usage();
            assert_eq!(usage.completion as usize, 4 * alone.len());
            assert_eq!(usage.cached as usize, if round == 0 { 0 } else { tokens - 1 });
            assert_eq!(usage.cached + usage.prefilled, usage.prompt);
        }
        assert_at_rest(&engine);
        assert!(seen.lock().unwrap().live.is_empty());
    }
}

#[test]
fn a_script_is_replayed_through_the_real_engine() {
    let script = r#"{"model": "m", "dialect": "chatml", "window": 256, "replies": ["Hello, <b>you</b>.", "Zwölf"]}"#;
    let script = SimulationScript::parse(script).unwrap();
    let executor = SimulatedExecutor::new(&script, SimulatedLimits::for_window(script.window));
    let engine = Engine::start(Box::new(executor), EngineConfig::default());
    let ask = |sampling| {
        let request = GenerationRequest { end_tokens: vec![IM_END], sampling, ..request(encode("Hi"), 100) };
        let heard = hear(engine.submit(request));
        assert_eq!(heard.reasons, [Some(FinishReason::End(IM_END))]);
        heard.replies.concat()
    };
    assert_eq!(ask(SamplingParams::default()), encode("Hello, <b>you</b>."));
    let wild = SamplingParams { temperature: 2.0, frequency_penalty: 2.0, seed: 7, ..SamplingParams::default() };
    assert_eq!(ask(wild), encode("Zwölf"));
    assert_eq!(ask(SamplingParams::default()), encode("The script is over."));
}
