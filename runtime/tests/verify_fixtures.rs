//! Every family's random checkpoint against the reference logits of transformers, on every device, however it is fed.

use std::path::{Path, PathBuf};

use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_kernels::naive::NaiveDevice;
use plimsoll_kernels::{Device, KvType, RopeStyle};
use plimsoll_models::architecture::config::FamilyTraits;
use plimsoll_models::architecture::decoder::Decoder;
use plimsoll_models::architecture::{self, Architecture, StepLimits, llama};
use plimsoll_models::gguf::GgufFile;
use plimsoll_runtime::model_executor::ModelExecutor;
use plimsoll_runtime::verify::{MAX_DIFFERENCE, Report, pages_needed, verify};
use safetensors::SafeTensors;

const FAMILIES: [&str; 3] = ["llama-s0", "llama3rope-s0", "qwen2-s0"];

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(family)
}

fn reference(family: &str) -> (Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(fixture(family).join("reference.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        tensors.tensor(name).unwrap().data().chunks_exact(4).map(|c| c.try_into().unwrap()).collect()
    };
    let tokens = words("token_ids").into_iter().map(u32::from_le_bytes).collect();
    let logits = words("logits").into_iter().map(f32::from_le_bytes).collect();
    (tokens, logits)
}

fn limits(kv_type: KvType) -> StepLimits {
    StepLimits { max_rows: 128, max_logits: 128, kv_type }
}

fn report<D: Device>(
    device: D,
    family: &str,
    kv_type: KvType,
    load: impl FnOnce(&GgufFile, &D) -> Box<dyn Architecture<D>>,
) -> Report {
    let file = GgufFile::open(&fixture(family).join("model-f32.gguf")).unwrap();
    let (tokens, logits) = reference(family);
    let model = load(&file, &device);
    assert_eq!(model.shape(), &architecture::plan(&file, &device, limits(kv_type)).unwrap(), "the plan is the load");
    let mut executor = ModelExecutor::new(device, model, pages_needed(tokens.len()), 4096).unwrap();
    verify(&mut executor, &tokens, Some(&logits), MAX_DIFFERENCE)
}

fn load<D: Device>(file: &GgufFile, device: &D) -> Box<dyn Architecture<D>> {
    architecture::load(file, device, limits(KvType::F32)).unwrap()
}

fn cpu(threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: threads.try_into().ok(), ..CpuOptions::default() }).unwrap()
}

#[test]
fn the_naive_device_is_within_the_limit_of_the_reference() {
    for family in FAMILIES {
        let report = report(NaiveDevice, family, KvType::F32, load);
        assert!(report.passed, "{family}: {report:#?}");
    }
}

#[test]
fn the_cpu_device_is_within_the_limit_of_the_reference_for_any_number_of_threads() {
    for family in FAMILIES {
        for threads in [1, 2, 3] {
            let report = report(cpu(threads), family, KvType::F32, load);
            assert!(report.passed, "{family}, {threads} threads: {report:#?}");
        }
    }
}

#[test]
fn a_half_precision_cache_agrees_with_itself_bit_for_bit() {
    for family in FAMILIES {
        let report = report(cpu(2), family, KvType::F16, |file, device| {
            architecture::load(file, device, limits(KvType::F16)).unwrap()
        });
        for pass in &report.passes {
            assert_eq!(pass.one_pass.max_difference, 0.0, "{family}: {:?}", pass.pass);
        }
    }
}

#[test]
fn verify_finds_a_wrong_rotation() {
    let wrong = FamilyTraits { rope_style: RopeStyle::HalfSplit, ..llama::FAMILY };
    let report = report(cpu(1), "llama-s0", KvType::F32, |file, device| {
        Box::new(Decoder::load(file, wrong, device, limits(KvType::F32)).unwrap())
    });
    assert!(!report.passed);
    assert!(report.passes.iter().all(|pass| pass.reference.is_some_and(|c| c.max_difference > 0.1)));
}
