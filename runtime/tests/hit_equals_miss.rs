//! A cache hit gives the same bytes as a miss: tokens and log-probabilities of 50 prompts, however they were computed.
//!
//! The cold run bypasses the cache. It is compared with a full hit, hits that end inside a page and at its border, a
//! fork, and a run batched with other requests, on the tiny checkpoints and on SmolLM2.

use std::path::{Path, PathBuf};

use plimsoll_kernels::KvType;
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_models::architecture::{self, StepLimits};
use plimsoll_models::gguf::GgufFile;
use plimsoll_models::source::real_model;
use plimsoll_runtime::engine::{
    CachePolicy, Engine, EngineConfig, EngineHandle, Event, Generation, GenerationRequest, Purpose, RequestId,
    SamplingParams, TenantId, Terminal, TokenOut, Usage,
};
use plimsoll_runtime::model_executor::ModelExecutor;

const PROMPTS: u32 = 50;
const LONGEST_PROMPT: usize = 100;
const REPLY: u32 = 6;

fn engine(path: &Path) -> (EngineHandle, u32) {
    let file = GgufFile::open(path).unwrap();
    let device = CpuDevice::new(CpuOptions::default()).unwrap();
    let limits = StepLimits { max_rows: 64, max_logits: 16, kv_type: KvType::F16 };
    let model = architecture::load(&file, &device, limits).unwrap();
    let vocab = model.shape().vocab as u32;
    let executor = ModelExecutor::new(device, model, 1024, 4096).unwrap();
    (Engine::start(Box::new(executor), EngineConfig::default()), vocab)
}

/// Tokens of a fixed sequence of lengths and contents, so that no prompt is a prefix of another.
fn prompts(vocab: u32) -> Vec<Vec<u32>> {
    (0..PROMPTS)
        .map(|p| {
            let tokens = 3 + (p as usize * 37) % LONGEST_PROMPT;
            (0..tokens as u32).map(|i| (p * 7919 + i * i * 31 + i * 13 + 5) % vocab).collect()
        })
        .collect()
}

fn request(prompt: &[u32], cache: CachePolicy, n: u32) -> GenerationRequest {
    GenerationRequest {
        id: RequestId(0),
        tenant: TenantId(0),
        prompt: prompt.to_vec(),
        reply_cap: REPLY,
        reserve_beyond: 0,
        n,
        sampling: SamplingParams { temperature: 0.0, logprobs: Some(3), ..SamplingParams::default() },
        end_tokens: Vec::new(),
        min_tokens: 0,
        ignore_end: false,
        banned: Vec::new(),
        cache,
        purpose: Purpose::Reply,
        guide: None,
    }
}

/// The replies of all choices, and what they cost.
fn collect(mut generation: Generation, n: usize) -> (Vec<Vec<TokenOut>>, Usage) {
    let mut replies = vec![Vec::new(); n];
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token { choice, token } => replies[choice as usize].push(token),
            Event::Done(Terminal::Finished(usage)) => return (replies, usage),
            Event::Done(other) => panic!("{other:?}"),
            _ => {}
        }
    }
    panic!("a generation ends with its terminal");
}

fn clear(engine: &EngineHandle) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(engine.clear_cache());
}

/// Where another conversation parts from this one, beside the middle: the borders of pages and the first token.
const PARTINGS: [usize; 5] = [1, 31, 32, 33, 64];

fn check(path: &Path, partings: &[usize]) {
    let (engine, vocab) = engine(path);
    let run = |prompt: &[u32], cache: CachePolicy| {
        let before = engine.status().totals.rows_fed;
        let (mut replies, usage) = collect(engine.submit(request(prompt, cache, 1)), 1);
        (replies.remove(0), usage, engine.status().totals.rows_fed - before)
    };
    let prompts = prompts(vocab);
    let mut cold = Vec::new();
    for prompt in &prompts {
        let (reply, usage, rows) = run(prompt, CachePolicy::Bypass);
        assert_eq!((usage.cached, usage.prefilled), (0, prompt.len() as u32), "the control prefills everything");
        assert_eq!(rows, prompt.len() as u64 + u64::from(REPLY) - 1, "every row of the prompt is fed");
        cold.push(reply);
    }

    for (prompt, cold) in prompts.iter().zip(&cold) {
        clear(&engine);
        let (miss, usage, _) = run(prompt, CachePolicy::Default);
        assert_eq!((&miss, usage.cached), (cold, 0), "a miss");

        let (hit, usage, rows) = run(prompt, CachePolicy::Default);
        assert_eq!(&hit, cold, "the same request again");
        assert_eq!(usage.cached as usize, prompt.len() - 1, "all but one token are cached");
        assert_eq!(rows, u64::from(REPLY), "one row of the prompt is fed");

        // Another conversation left a prefix of this one in the cache.
        for &shared in partings.iter().chain(&[prompt.len() / 2]) {
            if shared >= prompt.len() {
                continue;
            }
            clear(&engine);
            let mut other = prompt[..shared].to_vec();
            other.extend((0..20).map(|i| (prompt[shared] + 1 + i) % vocab));
            run(&other, CachePolicy::Default);
            let (partial, usage, rows) = run(prompt, CachePolicy::Default);
            assert_eq!(&partial, cold, "a hit of {shared} tokens");
            assert_eq!(usage.cached as usize, shared, "the hit ends at the token where the two differ");
            assert_eq!(rows, (prompt.len() - shared) as u64 + u64::from(REPLY) - 1, "only new rows are fed");
        }

        clear(&engine);
        let (forks, _) = collect(engine.submit(request(prompt, CachePolicy::Default, 3)), 3);
        for fork in forks {
            assert_eq!(&fork, cold, "a fork");
        }
    }

    clear(&engine);
    let generations: Vec<_> =
        prompts.iter().map(|prompt| engine.submit(request(prompt, CachePolicy::Default, 1))).collect();
    for (generation, cold) in generations.into_iter().zip(&cold) {
        let (mut replies, _) = collect(generation, 1);
        assert_eq!(&replies.remove(0), cold, "batched with others");
    }
}

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(family).join("model-f32.gguf")
}

#[test]
fn a_cache_hit_gives_the_same_bytes_as_a_miss_on_llama() {
    check(&fixture("llama-s0"), &PARTINGS);
}

#[test]
fn a_cache_hit_gives_the_same_bytes_as_a_miss_on_qwen2() {
    check(&fixture("qwen2-s0"), &PARTINGS);
}

#[test]
fn a_cache_hit_gives_the_same_bytes_as_a_miss_on_smollm2() {
    match real_model("smollm2-135m-instruct") {
        Ok(path) => check(&path, &[33]),
        Err(unavailable) => unavailable.skip("a_cache_hit_gives_the_same_bytes_as_a_miss_on_smollm2"),
    }
}
