//! What the engine promises, checked with an executor that knows what must lie on every page.
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_kernels::PAGE_TOKENS;

use proptest::prelude::*;

use super::checking_executor::{CheckingExecutor, END, Seen, guided_reply, reply};
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
        purpose: Purpose::Reply,
        guide: None,
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

#[test]
fn choices_that_run_side_by_side_do_not_disturb_each_other() {
    let (engine, seen) = checked(400, 40, 16);
    let prompts: Vec<_> = (0..12).map(|i| prompt(i % 5, 20 + 17 * i as usize)).collect();
    let generations: Vec<_> = prompts.iter().map(|p| engine.submit(request(p.clone(), 60))).collect();
    for (prompt, generation) in prompts.iter().zip(generations) {
        assert_eq!(hear(generation).replies.concat(), reply(prompt, 60));
    }
    assert_at_rest(&engine);
    assert!(seen.lock().unwrap().most_logits > 1, "they ran side by side");
}

#[test]
fn prompts_that_come_at_once_read_their_common_beginning_once() {
    let (executor, seen) = CheckingExecutor::new(400, 4000, 64, 16);
    // Slow enough that all are there before the first has read its prompt.
    let engine = Engine::start(Box::new(executor.with_row_time(Duration::from_micros(100))), EngineConfig::default());
    let head = prompt(3, 1000);
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| [head.clone(), prompt(i, 40)].concat()).collect();
    let generations: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(i, p)| engine.submit(GenerationRequest { n: 1 + i as u32 % 3, ..request(p.clone(), 10) }))
        .collect();
    for (prompt, generation) in prompts.iter().zip(generations) {
        let heard = hear(generation);
        assert!(heard.replies.iter().all(|said| *said == reply(prompt, 10)));
        assert_eq!(heard.usage().cached + heard.usage().prefilled, heard.usage().prompt);
    }
    let rows = seen.lock().unwrap().rows;
    assert!(rows < 1000 + 6 * (40 + 64) + 12 * 10, "{rows} rows were fed");
    assert_at_rest(&engine);
}

#[test]
fn an_end_token_ends_the_reply_and_is_no_part_of_it() {
    let (engine, _) = checked(64, 64, 8);
    let prompt = (0..).map(|seed| prompt(seed, 10)).find(|p| (3..20).contains(&reply(p, 50).len())).unwrap();
    let natural = reply(&prompt, 50);
    let heard = hear(engine.submit(request(prompt.clone(), 50)));
    assert_eq!(heard.reasons, [Some(FinishReason::End(END))]);
    assert_eq!(heard.replies[0], natural);

    let heard = hear(engine.submit(GenerationRequest { ignore_end: true, ..request(prompt.clone(), 30) }));
    assert_eq!(heard.reasons, [Some(FinishReason::Length)]);
    assert_eq!(heard.replies[0].len(), 30);
    assert_eq!(heard.replies[0][natural.len()], END);

    let min_tokens = natural.len() as u32 + 1;
    let heard = hear(engine.submit(GenerationRequest { min_tokens, ..request(prompt.clone(), 50) }));
    assert_eq!(heard.replies[0][..natural.len()], natural);
    assert!(heard.replies[0].len() as u32 >= min_tokens && !heard.replies[0].contains(&END));

    let heard = hear(engine.submit(GenerationRequest { banned: vec![END], ..request(prompt, 50) }));
    assert_eq!(heard.replies[0].len(), 50);
}

#[test]
fn what_can_never_run_is_rejected_at_once_and_the_rest_goes_on() {
    let (engine, _) = checked(8, 64, 4);
    let terminal = |request| hear(engine.submit(request)).terminal.unwrap();
    let rejected = |request| match terminal(request) {
        Terminal::Rejected(reason) => reason,
        other => panic!("expected a rejection, found {other:?}"),
    };
    assert!(matches!(rejected(request(vec![], 1)), Reject::Malformed(_)));
    assert_eq!(rejected(request(prompt(0, 200), 57)), Reject::BeyondContext { needed: 257, max_context: 256 });
    assert_eq!(
        rejected(GenerationRequest { n: 2, ..request(prompt(0, 100), 100) }),
        Reject::NeverFits { needed: 11, pages: 8 }
    );
    assert!(matches!(terminal(request(prompt(0, 200), 56)), Terminal::Finished(_)));
    assert_eq!(engine.status().totals.rejected, 3);
}

#[test]
fn requests_under_pressure_end_in_the_order_in_which_they_came() {
    // Each request needs three pages: the pool holds three of the six at a time.
    let (engine, seen) = checked(9, 64, 8);
    let ask = |seed| engine.submit(GenerationRequest { ignore_end: true, ..request(prompt(seed, 60), 30) });
    let generations: Vec<_> = (0..6).map(ask).collect();
    for generation in generations {
        assert_eq!(hear(generation).usage().completion, 30);
    }
    assert_eq!(seen.lock().unwrap().retired, [0, 1, 2, 3, 4, 5]);
    assert!(seen.lock().unwrap().most_logits > 1, "they ran side by side");
    assert_at_rest(&engine);
}

#[test]
fn a_full_queue_says_so_and_when_to_come_back() {
    let (executor, _) = CheckingExecutor::new(4, 128, 16, 4);
    let executor = executor.with_row_time(Duration::from_millis(3));
    let config = EngineConfig { queue_limit: 2, ..EngineConfig::default() };
    let engine = Engine::start(Box::new(executor), config);
    let long = || GenerationRequest { ignore_end: true, ..request(prompt(1, 60), 60) };
    let mut generations: Vec<_> = (0..5).map(|_| engine.submit(long())).collect();
    for late in generations.drain(3..) {
        let Some(Terminal::Rejected(Reject::QueueFull { waiting: 2, retry_after_s })) = hear(late).terminal else {
            panic!("expected a full queue");
        };
        assert!((1..=60).contains(&retry_after_s));
    }
    assert_eq!(engine.status().waiting, 2);
    for generation in generations {
        assert!(matches!(hear(generation).terminal, Some(Terminal::Finished(_))));
    }
}

#[test]
fn tenants_are_admitted_in_turn() {
    // One request at a time fits. They are named by tenant and number; the name is the prompt's first token.
    let (executor, seen) = CheckingExecutor::new(4, 128, 64, 4);
    let executor = executor.with_row_time(Duration::from_micros(500));
    let engine = Engine::start(Box::new(executor), EngineConfig::default());
    let ask = |name| {
        let tenant = TenantId(u64::from(name) / 10);
        engine.submit(GenerationRequest { tenant, ignore_end: true, ..request(prompt(name, 60), 60) })
    };
    let generations: Vec<_> = [11, 12, 13, 14, 21, 22, 31].map(ask).into();
    for generation in generations {
        hear(generation);
    }
    assert_eq!(seen.lock().unwrap().retired, [11, 12, 21, 31, 13, 22, 14]);
}

#[test]
fn two_thousand_cancellations_at_random_moments_leave_nothing_behind() {
    let (engine, seen) = checked(60, 48, 6);
    let mut random = 12345u64;
    let mut dice = |sides: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % sides
    };
    let mut open: Vec<(Generation, u64)> = Vec::new();
    let mut cancelled = 0;
    while cancelled < 2000 {
        let length = 1 + dice(300) as usize;
        let asked = GenerationRequest {
            n: 1 + dice(3) as u32,
            tenant: TenantId(dice(3)),
            ignore_end: true,
            cache: if dice(5) == 0 { CachePolicy::Bypass } else { CachePolicy::Default },
            ..request(prompt(dice(4) as u32, length), 200)
        };
        open.push((engine.submit(asked), dice(30)));
        while open.len() > dice(12) as usize {
            let (mut generation, events) = open.swap_remove(dice(open.len() as u64) as usize);
            for _ in 0..events {
                if generation.blocking_next().is_none() {
                    break;
                }
            }
            if dice(2) == 0 {
                generation.cancel();
            }
            drop(generation);
            cancelled += 1;
        }
    }
    drop(open);
    let status = assert_at_rest(&engine);
    assert_eq!(status.state, EngineState::Running);
    let ends = status.totals.finished + status.totals.cancelled + status.totals.rejected;
    assert!(ends >= 2000 && status.totals.cancelled > 500 && status.totals.failed == 0, "{status:?}");
    assert!(seen.lock().unwrap().live.is_empty(), "every sequence was retired");
    let prompt = prompt(77, 100);
    assert_eq!(hear(engine.submit(request(prompt.clone(), 40))).replies.concat(), reply(&prompt, 40));
    wait_for(engine.clear_cache());
    assert_eq!(engine.status().pages.free, 60);
}

#[test]
fn a_cancelled_prefill_stops_within_two_chunks_and_what_it_computed_is_reused() {
    let (executor, seen) = CheckingExecutor::new(400, 10_000, 64, 4);
    let engine = Engine::start(Box::new(executor.with_row_time(Duration::from_micros(200))), EngineConfig::default());
    let prompt = prompt(5, 9_000);
    let mut generation = engine.submit(request(prompt.clone(), 10));
    let processed = loop {
        if let Some(Event::Prefill { processed, .. }) = generation.blocking_next()
            && processed >= 640
        {
            break processed;
        }
    };
    drop(generation);
    let before = seen.lock().unwrap().steps;
    assert_at_rest(&engine);
    assert!(seen.lock().unwrap().steps <= before + 2);
    let heard = hear(engine.submit(request(prompt[..1000].to_vec(), 10)));
    assert!(heard.usage().cached >= processed.min(999));
    assert_eq!(heard.replies.concat(), reply(&prompt[..1000], 10));
}

#[test]
fn a_long_prompt_does_not_stall_running_replies() {
    let (executor, _) = CheckingExecutor::new(400, 8_000, 512, 4);
    let engine = Engine::start(Box::new(executor.with_row_time(Duration::from_micros(500))), EngineConfig::default());
    // 500 us per row: 512 rows at once would stall a reply for 256 ms.
    let running = engine.submit(GenerationRequest { ignore_end: true, ..request(prompt(1, 40), 60) });
    let long = engine.submit(request(prompt(2, 3000), 1));
    assert_eq!(hear(running).replies.concat().len(), 60);
    let stall = engine.status().totals.longest_stall_ms;
    assert_eq!(hear(long).replies.concat(), reply(&prompt(2, 3000), 1));
    // More than the limit allows for a loaded machine.
    assert!(stall < 200, "a reply was stalled for {stall} ms");
}

fn scripted(faults: &str) -> EngineHandle {
    // The first token of each reply takes so long that everyone is in line when the fault comes.
    let reply = format!(r#"{{"text": "{}", "ttft_ms": 300}}"#, "word ".repeat(100));
    let json = format!(
        r#"{{"model": "m", "dialect": "chatml", "window": 4096, "replies": [{reply}, {reply}], "faults": {faults}}}"#
    );
    let script = SimulationScript::parse(&json).unwrap();
    let limits = SimulatedLimits { pages: 64, max_rows: 64, max_logits: 8 };
    Engine::start(Box::new(SimulatedExecutor::new(&script, limits)), EngineConfig::default())
}

#[test]
fn a_step_that_fails_or_panics_poisons_the_engine_and_ends_every_request() {
    for (faults, message) in [(r#"{"error_at_step": 20}"#, "error at step"), (r#"{"panic_at_step": 20}"#, "panic at")] {
        let engine = scripted(faults);
        let generations: Vec<_> = (0..6).map(|i| engine.submit(request(prompt(i, 600), 400))).collect();
        let (mut ran, mut failed) = (0, 0);
        for generation in generations {
            let heard = hear(generation);
            ran += u32::from(heard.cached.is_some());
            let Some(Terminal::Failed(why)) = heard.terminal else { panic!("expected a failure, found {heard:?}") };
            assert!(why.contains(message), "{why}");
            assert_eq!(engine.status().state, EngineState::Poisoned);
            failed += 1;
        }
        assert!(ran >= 1 && ran < failed, "{ran} of {failed} ran, the others waited");
        assert_eq!(wait_for(engine.ended()), EngineState::Poisoned);
        let late = hear(engine.submit(request(prompt(0, 3), 1)));
        assert_eq!(late.terminal, Some(Terminal::Rejected(Reject::EngineDown)));
        assert_eq!(wait_for(engine.clear_cache()), 0);
        assert_eq!(wait_for(engine.drain(Duration::from_secs(9))).cut_off, 0);
    }
}

#[test]
fn a_drain_finishes_what_it_has_and_cuts_off_what_takes_too_long() {
    let slow = |prompt, cap| GenerationRequest { ignore_end: true, ..request(prompt, cap) };
    let start = || {
        let (executor, _) = CheckingExecutor::new(64, 2048, 64, 4);
        Engine::start(Box::new(executor.with_row_time(Duration::from_millis(1))), EngineConfig::default())
    };
    let engine = start();
    let running = engine.submit(slow(prompt(0, 5), 20));
    assert_eq!(wait_for(engine.drain(Duration::from_secs(20))).cut_off, 0);
    assert!(matches!(hear(running).terminal, Some(Terminal::Finished(_))));
    assert_eq!(engine.status().state, EngineState::Draining);
    let late = hear(engine.submit(slow(prompt(0, 5), 20)));
    assert_eq!(late.terminal, Some(Terminal::Rejected(Reject::Draining)));

    let engine = start();
    let running = engine.submit(slow(prompt(0, 5), 1000));
    assert_eq!(wait_for(engine.drain(Duration::from_millis(30))).cut_off, 1);
    assert!(matches!(hear(running).terminal, Some(Terminal::Cancelled(_))));
}

#[test]
fn a_shutdown_and_the_loss_of_the_last_handle_end_the_engine() {
    let engine = checked(64, 64, 4).0;
    let running = engine.submit(GenerationRequest { ignore_end: true, ..request(prompt(0, 5), 1500) });
    wait_for(engine.shutdown());
    assert_eq!(engine.status().state, EngineState::Stopped);
    assert!(matches!(hear(running).terminal, Some(Terminal::Failed(_) | Terminal::Rejected(Reject::EngineDown))));

    let (engine, seen) = checked(64, 64, 4);
    let generation = engine.submit(request(prompt(0, 5), 50));
    drop(engine);
    assert_eq!(hear(generation).replies.concat(), reply(&prompt(0, 5), 50));
    let patience = Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&seen) > 1 {
        assert!(Instant::now() < patience, "the engine thread still holds its executor");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes `forced` in place of every `every`th token and ends after `most` sampled ones.
#[derive(Clone, Debug)]
struct Stamp {
    every: usize,
    forced: Vec<u32>,
    most: usize,
    sampled: usize,
}

impl Stamp {
    fn new(every: usize, forced: usize, most: usize) -> Self {
        Self { every, forced: (0..forced as u32).map(|i| i % END).collect(), most, sampled: 0 }
    }
}

impl Guide for Stamp {
    fn sampled(&mut self, _: u32) -> Guidance {
        self.sampled += 1;
        if self.sampled > self.most {
            Guidance::End
        } else if self.sampled.is_multiple_of(self.every) {
            Guidance::Replace(self.forced.clone())
        } else {
            Guidance::Keep
        }
    }

    fn forbidden(&self) -> &[u32] {
        &[]
    }
}

fn guided(prompt: Vec<u32>, cap: u32, guide: &Stamp) -> GenerationRequest {
    GenerationRequest { guide: Some(Box::new(guide.clone())), ..request(prompt, cap) }
}

fn warm(prompt: Vec<u32>) -> GenerationRequest {
    GenerationRequest { purpose: Purpose::Warm, ..request(prompt, 1) }
}

#[test]
fn a_guided_reply_is_what_model_and_guide_write_together() {
    let (engine, seen) = checked(64, 48, 8);
    for (every, forced, most, cap) in [(1, 5, 3, 100), (3, 70, 12, 400), (4, 1, 40, 25), (2, 9, 50, 33), (9, 2, 0, 5)] {
        let guide = Stamp::new(every, forced, most);
        let expected = guided_reply(&prompt(1, 77), &mut guide.clone(), cap as usize);
        let side = engine.submit(request(prompt(5, 40), 60));
        let heard = hear(engine.submit(guided(prompt(1, 77), cap, &guide)));
        assert_eq!(heard.replies.concat(), expected);
        let reason = if expected.len() == cap as usize { FinishReason::Length } else { FinishReason::Guided };
        assert_eq!(heard.reasons, [Some(reason)]);
        assert_eq!(heard.usage().completion as usize, expected.len());
        assert_eq!(hear(side).replies.concat(), reply(&prompt(5, 40), 60), "a neighbour is not disturbed");
    }
    assert!(seen.lock().unwrap().most_rows <= 48);
    assert_at_rest(&engine);
}

#[test]
fn forced_tokens_are_fed_several_at_a_time() {
    let steps = |max_rows| {
        let (engine, _) = checked(64, max_rows, 8);
        let heard = hear(engine.submit(guided(prompt(1, 8), 400, &Stamp::new(1, 100, 2))));
        (heard.replies.concat(), engine.status().totals.steps)
    };
    let (many, few_steps) = steps(128);
    let (one, many_steps) = steps(1);
    assert_eq!(many, one);
    assert!(few_steps <= 4 && many_steps > 200, "{few_steps} {many_steps}");
}

#[test]
fn what_is_appended_to_a_live_sequence_is_all_that_is_fed() {
    let (engine, seen) = checked(64, 48, 8);
    for live in [40, 64, 77] {
        let live_prompt = prompt(live as u32, live);
        let first = hear(engine.submit(request(live_prompt.clone(), 300)));
        assert!(matches!(first.reasons[..], [Some(FinishReason::End(_))]), "all that was said was fed");
        let mut longer = [live_prompt, first.replies.concat()].concat();
        longer.extend([END, 1, 2, 3, 4, 5, 6]);
        let rows = seen.lock().unwrap().rows;
        let guide = Stamp::new(2, 3, 0);
        let usage = hear(engine.submit(guided(longer.clone(), 50, &guide))).usage();
        assert_eq!((usage.prefilled, usage.cached as usize), (7, longer.len() - 7));
        assert_eq!(seen.lock().unwrap().rows - rows, 7);
        let control = GenerationRequest { cache: CachePolicy::Bypass, ..guided(longer.clone(), 50, &guide) };
        assert_eq!(hear(engine.submit(control)).usage().prefilled as usize, longer.len());
    }
}

#[test]
fn a_warm_prompt_is_cached_to_its_last_token_and_says_nothing() {
    let (engine, seen) = checked(64, 48, 8);
    for tokens in [1, 31, 32, 33, 100] {
        let prompt = prompt(tokens as u32, tokens);
        let heard = hear(engine.submit(warm(prompt.clone())));
        let usage = heard.usage();
        assert!(heard.replies.is_empty() && heard.reasons.is_empty());
        assert_eq!((usage.prompt as usize, usage.completion), (tokens, 0));
        let longer = [prompt, vec![7]].concat();
        let usage = hear(engine.submit(request(longer.clone(), 10))).usage();
        assert_eq!((usage.cached as usize, usage.prefilled), (tokens, 1));
    }
    assert_at_rest(&engine);
    assert!(seen.lock().unwrap().live.is_empty());
}

#[test]
fn a_pool_of_one_window_is_enough_to_replace_a_history() {
    let (engine, _) = checked(16, 48, 8);
    let head = prompt(3, 70);
    let old = [head.clone(), prompt(4, 380)].concat();
    hear(engine.submit(warm(old.clone())));
    let fresh = [head.clone(), prompt(6, 380)].concat();
    let forgotten = wait_for(engine.forget(TenantId(0), old, head.len()));
    assert_eq!(forgotten, 450usize.div_ceil(PAGE_TOKENS) - 3);
    let usage = hear(engine.submit(warm(fresh))).usage();
    assert_eq!(usage.cached as usize, head.len(), "the head stayed");
}

#[test]
fn a_summary_waits_while_others_fill_the_pool_and_they_go_on() {
    let (engine, _) = checked(40, 64, 8);
    let live = prompt(9, 100);
    hear(engine.submit(warm(live.clone())));
    // Four streams of ten pages each: the whole pool.
    let streams: Vec<_> =
        (0..4).map(|i| engine.submit(GenerationRequest { ignore_end: true, ..request(prompt(i, 20), 300) })).collect();
    let summary = engine.submit(guided([live, vec![1, 2, 3]].concat(), 150, &Stamp::new(5, 4, 60)));
    for stream in streams {
        assert_eq!(hear(stream).replies.concat().len(), 300);
    }
    assert!(matches!(hear(summary).terminal, Some(Terminal::Finished(_))));
    assert_at_rest(&engine);
}

#[test]
fn an_idle_engine_keeps_saying_that_it_is_alive() {
    let (engine, _) = checked(4, 4, 4);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(engine.status().heartbeat_age < Duration::from_millis(1400), "{:?}", engine.status());
}

#[derive(Clone, Debug)]
enum Act {
    Submit { tenant: u64, seed: u32, length: usize, cap: u32, beyond: u32, n: u32, bypass: bool },
    Warm { seed: u32, length: usize },
    Guided { seed: u32, length: usize, cap: u32, every: usize, forced: usize },
    Forget { seed: u32, length: usize, keep: usize },
    Listen { pick: prop::sample::Index, events: usize },
    Cancel { pick: prop::sample::Index },
    ClearCache,
}

fn act() -> impl Strategy<Value = Act> {
    let pick = any::<prop::sample::Index>;
    let submit = (0u64..3, 0u32..4, 1usize..260, 1u32..90, 0u32..70, 1u32..4, prop::bool::weighted(0.1));
    prop_oneof![
        8 => submit.prop_map(|(tenant, seed, length, cap, beyond, n, bypass)| Act::Submit {
            tenant, seed, length, cap, beyond, n, bypass
        }),
        2 => (0u32..4, 1usize..260).prop_map(|(seed, length)| Act::Warm { seed, length }),
        3 => (0u32..4, 1usize..260, 1u32..90, 1usize..9, 1usize..50).prop_map(|(seed, length, cap, every, forced)| {
            Act::Guided { seed, length, cap, every, forced }
        }),
        2 => (0u32..4, 1usize..260, 0usize..100)
            .prop_map(|(seed, length, keep)| Act::Forget { seed, length, keep }),
        4 => (pick(), 0usize..40).prop_map(|(pick, events)| Act::Listen { pick, events }),
        2 => pick().prop_map(|pick| Act::Cancel { pick }),
        1 => Just(Act::ClearCache),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn any_mix_of_requests_on_any_pool_reads_only_its_own_past(
        pages in 3usize..50,
        max_rows in 1usize..70,
        max_logits in 1usize..9,
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let (executor, seen) = CheckingExecutor::new(pages, pages * PAGE_TOKENS, max_rows, max_logits);
        let config = EngineConfig { queue_limit: 1000, ..EngineConfig::default() };
        let engine = Engine::start(Box::new(executor), config);
        struct Asked {
            prompt: Vec<u32>,
            expected: Vec<u32>,
            choices: usize,
        }
        let mut open: Vec<(Generation, Heard, Asked)> = Vec::new();
        for act in acts {
            match act {
                Act::Submit { tenant, seed, length, cap, beyond, n, bypass } => {
                    let asked = GenerationRequest {
                        tenant: TenantId(tenant),
                        reserve_beyond: beyond,
                        n,
                        cache: if bypass { CachePolicy::Bypass } else { CachePolicy::Default },
                        ..request(prompt(seed, length), cap)
                    };
                    let expected = reply(&asked.prompt, cap as usize);
                    let promise = Asked { prompt: asked.prompt.clone(), expected, choices: n as usize };
                    open.push((engine.submit(asked), Heard::default(), promise));
                }
                Act::Warm { seed, length } => {
                    let promise = Asked { prompt: prompt(seed, length), expected: vec![], choices: 0 };
                    open.push((engine.submit(warm(promise.prompt.clone())), Heard::default(), promise));
                }
                Act::Guided { seed, length, cap, every, forced } => {
                    let (prompt, guide) = (prompt(seed, length), Stamp::new(every, forced, 60));
                    let expected = guided_reply(&prompt, &mut guide.clone(), cap as usize);
                    let promise = Asked { prompt: prompt.clone(), expected, choices: 1 };
                    open.push((engine.submit(guided(prompt, cap, &guide)), Heard::default(), promise));
                }
                Act::Forget { seed, length, keep } => {
                    wait_for(engine.forget(TenantId(0), prompt(seed, length), keep));
                }
                Act::Listen { pick, events } if !open.is_empty() => {
                    let at = pick.index(open.len());
                    let (generation, heard, _) = &mut open[at];
                    for _ in 0..events {
                        if let Some(event) = generation.blocking_next() {
                            heard.note(event);
                        }
                    }
                }
                Act::Cancel { pick } if !open.is_empty() => {
                    drop(open.swap_remove(pick.index(open.len())));
                }
                Act::ClearCache => {
                    wait_for(engine.clear_cache());
                }
                Act::Listen { .. } | Act::Cancel { .. } => {}
            }
        }
        for (mut generation, mut heard, asked) in open {
            while let Some(event) = generation.blocking_next() {
                heard.note(event);
            }
            match heard.terminal {
                Some(Terminal::Finished(usage)) => {
                    prop_assert_eq!(heard.reasons.len(), asked.choices);
                    prop_assert_eq!(usage.prompt as usize, asked.prompt.len());
                    for said in &heard.replies {
                        prop_assert_eq!(said, &asked.expected);
                    }
                    prop_assert_eq!(usage.cached + usage.prefilled, usage.prompt);
                }
                Some(Terminal::Rejected(Reject::NeverFits { .. } | Reject::BeyondContext { .. } | Reject::Malformed(_))) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
        let status = assert_at_rest(&engine);
        prop_assert_eq!(status.state, EngineState::Running);
        prop_assert!(seen.lock().unwrap().live.is_empty());
        wait_for(engine.clear_cache());
        prop_assert_eq!(engine.status().pages.free, pages);
    }
}
