//! The CPU device against candle-transformers, an independent implementation of the same families.
//!
//! candle reads the same file with its own loader, kernels and rotary tables; only the numbers are shared.

use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen2};
use plimsoll_kernels::KvType;
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_models::architecture::{self, StepLimits};
use plimsoll_models::gguf::GgufFile;
use plimsoll_runtime::model_executor::ModelExecutor;
use plimsoll_runtime::verify::{self, Comparison};

const TOKENS: [u32; 11] = [5, 77, 300, 12, 12, 255, 3, 191, 64, 9, 120];

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(family).join("model-f32.gguf")
}

/// Logits after the last token.
fn candle_logits(path: &Path, tokens: &[u32]) -> Vec<f32> {
    let mut file = std::fs::File::open(path).unwrap();
    let content = Content::read(&mut file).unwrap();
    let input = Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let architecture = content.metadata["general.architecture"].to_string().unwrap().clone();
    let logits = match architecture.as_str() {
        "llama" => {
            quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu).unwrap().forward(&input, 0)
        }
        "qwen2" => {
            quantized_qwen2::ModelWeights::from_gguf(content, &mut file, &Device::Cpu).unwrap().forward(&input, 0)
        }
        other => panic!("no oracle for {other}"),
    };
    logits.unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Logits after the last token.
fn our_logits(path: &Path, tokens: &[u32]) -> Vec<f32> {
    let file = GgufFile::open(path).unwrap();
    let device = CpuDevice::new(CpuOptions::default()).unwrap();
    let limits = StepLimits { max_rows: tokens.len(), max_logits: tokens.len(), kv_type: KvType::F32 };
    let model = architecture::load(&file, &device, limits).unwrap();
    let mut executor = ModelExecutor::new(device, model, verify::pages_needed(tokens.len()), 4096).unwrap();
    verify::greedy(&mut executor, tokens, 1).1
}

#[test]
fn f32_logits_equal_candles() {
    for family in ["llama-s0", "qwen2-s0"] {
        let path = fixture(family);
        let ours = our_logits(&path, &TOKENS);
        let comparison = Comparison::between(&ours, &candle_logits(&path, &TOKENS), ours.len());
        assert!(comparison.max_difference < 5e-4, "{family}: {comparison:?}");
        assert_eq!(comparison.argmax_equal, 1, "{family}: {comparison:?}");
    }
}
