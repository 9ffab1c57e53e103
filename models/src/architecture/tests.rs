//! Files that are no model this project runs are refused by name, before anything is allocated; those that are, load.

use plimsoll_kernels::naive::NaiveDevice;
use plimsoll_kernels::{GgmlType, KvType};

use super::{LoadError, StepLimits, load, plan};
use crate::gguf::GgufFile;
use crate::gguf::writer::{Value, Writer};

const LIMITS: StepLimits = StepLimits { max_rows: 4, max_logits: 2, kv_type: KvType::F32 };

/// Sizes of the sound file below.
const HIDDEN: u64 = 32;
const FEED_FORWARD: u64 = 64;
const TOKENS: u64 = 5;

fn set(mut writer: Writer, key: &str, value: Value) -> Writer {
    writer.metadata.retain(|(name, _)| name != key);
    writer.with(key, value)
}

fn without(mut writer: Writer, key: &str) -> Writer {
    writer.metadata.retain(|(name, _)| name != key);
    writer
}

fn zeros(ggml_type: GgmlType, weights: u64) -> Vec<u8> {
    vec![0; weights as usize / ggml_type.block_weights() * ggml_type.block_bytes()]
}

fn add(writer: Writer, name: &str, dims: &[u64], ggml_type: GgmlType) -> Writer {
    let weights = dims.iter().product();
    writer.with_tensor(name, dims, ggml_type, zeros(ggml_type, weights))
}

/// A `llama` file of one layer with two heads of 16, all weights zero, its feed-forward matrices of type `matrices`.
fn sound(matrices: GgmlType) -> Writer {
    let mut writer = Writer::default()
        .with_text("general.architecture", "llama")
        .with("llama.block_count", Value::U32(1))
        .with("llama.context_length", Value::U32(64))
        .with("llama.embedding_length", Value::U32(HIDDEN as u32))
        .with("llama.feed_forward_length", Value::U32(FEED_FORWARD as u32))
        .with("llama.attention.head_count", Value::U32(2))
        .with("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
        .with("tokenizer.ggml.tokens", Value::Strings((0..TOKENS).map(|i| i.to_string()).collect()));
    writer = add(writer, "token_embd.weight", &[HIDDEN, TOKENS], GgmlType::F32);
    for norm in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        writer = add(writer, &format!("{norm}.weight"), &[HIDDEN], GgmlType::F32);
    }
    for matrix in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        writer = add(writer, &format!("blk.0.{matrix}.weight"), &[HIDDEN, HIDDEN], GgmlType::F32);
    }
    for matrix in ["ffn_gate", "ffn_up"] {
        writer = add(writer, &format!("blk.0.{matrix}.weight"), &[HIDDEN, FEED_FORWARD], matrices);
    }
    add(writer, "blk.0.ffn_down.weight", &[FEED_FORWARD, HIDDEN], GgmlType::F32)
}

/// Plans and loads, which must agree.
fn refusal(writer: &Writer) -> LoadError {
    let file = GgufFile::parse(writer.bytes()).expect("the header is right");
    let planned = plan(&file, &NaiveDevice, LIMITS).expect_err("the plan refuses it");
    let loaded = load(&file, &NaiveDevice, LIMITS).err().expect("loading refuses it");
    assert_eq!(planned.to_string(), loaded.to_string());
    planned
}

#[test]
fn a_sound_file_loads_as_it_was_planned() {
    let file = GgufFile::parse(sound(GgmlType::F32).bytes()).unwrap();
    let planned = plan(&file, &NaiveDevice, LIMITS).unwrap();
    let model = load(&file, &NaiveDevice, LIMITS).unwrap();
    assert_eq!(model.shape(), &planned);
    assert_eq!((planned.vocab, planned.kv.head_dim, planned.kv.kv_heads), (TOKENS as usize, 16, 2));
    let matrices = TOKENS * HIDDEN + 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FEED_FORWARD;
    let vectors = 3 * HIDDEN + 16 / 2;
    assert_eq!(planned.weight_bytes as u64, 4 * (matrices + vectors), "the rotary frequencies are counted");
}

#[test]
fn absurd_sizes_are_refused_by_their_key() {
    for (key, value) in [
        ("llama.block_count", 0u64),
        ("llama.block_count", 1 << 40),
        ("llama.context_length", 0),
        ("llama.context_length", u64::MAX),
        ("llama.embedding_length", 0),
        ("llama.embedding_length", 1 << 21),
        ("llama.feed_forward_length", u64::MAX),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", u64::MAX),
        ("llama.attention.head_count_kv", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.key_length", 0),
        ("llama.attention.key_length", 513),
        ("llama.attention.value_length", 8),
        ("llama.rope.dimension_count", 0),
        ("llama.rope.dimension_count", 7),
        ("llama.rope.dimension_count", 18),
        ("llama.attention.sliding_window", 4096),
        ("llama.expert_count", 8),
    ] {
        let error = refusal(&set(sound(GgmlType::F32), key, Value::Raw(10, value.to_le_bytes().to_vec())));
        let named = match &error {
            LoadError::UnsupportedSetting { key: found, .. } => found == key,
            LoadError::File(error) => error.to_string().contains(key),
            _ => false,
        };
        assert!(named, "{key} = {value}: {error}");
    }
}

#[test]
fn heads_wider_than_any_kernel_reads_are_refused_however_they_are_given() {
    let one_head = set(sound(GgmlType::F32), "llama.attention.head_count", Value::U32(1));
    let wide = set(one_head, "llama.embedding_length", Value::U32(1024));
    assert!(
        matches!(refusal(&wide), LoadError::UnsupportedSetting { found, .. } if found == "1 heads of 1024 elements")
    );
    let many = set(sound(GgmlType::F32), "llama.attention.head_count", Value::U32(1 << 12));
    let many = set(many, "llama.attention.key_length", Value::U32(512));
    assert!(matches!(refusal(&many), LoadError::UnsupportedSetting { found, .. } if found.starts_with("4096 heads")));
}

#[test]
fn settings_that_are_not_implemented_are_refused_and_neutral_values_are_not() {
    for (key, value) in [
        ("llama.rope.scaling.type", Value::String("yarn".into())),
        ("llama.logit_scale", Value::F32(0.5)),
        ("llama.attention.scale", Value::F32(0.1)),
        ("llama.attention.max_alibi_bias", Value::F32(8.0)),
        ("llama.attention.causal", Value::Bool(false)),
        ("llama.rope.scaling.factor", Value::F32(-2.0)),
        ("llama.rope.scaling.factor", Value::F32(f32::NAN)),
        ("llama.rope.freq_base", Value::F32(0.0)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::INFINITY)),
    ] {
        let error = refusal(&set(sound(GgmlType::F32), key, value));
        assert!(matches!(&error, LoadError::UnsupportedSetting { key: found, .. } if found == key), "{key}: {error}");
    }
    for (key, value) in [
        ("llama.rope.scaling.type", Value::String("none".into())),
        ("llama.rope.scaling.factor", Value::F32(0.0)),
        ("llama.logit_scale", Value::F32(0.0)),
        ("llama.attention.causal", Value::Bool(true)),
        ("llama.expert_count", Value::U32(0)),
    ] {
        let file = GgufFile::parse(set(sound(GgmlType::F32), key, value).bytes()).unwrap();
        plan(&file, &NaiveDevice, LIMITS).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

#[test]
fn a_rotary_factor_counts_under_either_key_and_without_a_type() {
    let family = super::llama::FAMILY;
    let factor = |pairs: &[(&str, Value)]| {
        let writer = pairs.iter().fold(sound(GgmlType::F32), |w, (key, value)| set(w, key, value.clone()));
        let file = GgufFile::parse(writer.bytes()).unwrap();
        super::config::DecoderConfig::from_gguf(&file, family).unwrap().rope_linear_factor
    };
    let (four, linear) = (Value::F32(4.0), Value::String("linear".into()));
    assert_eq!(factor(&[]), 1.0);
    assert_eq!(factor(&[("llama.rope.scaling.type", linear.clone())]), 1.0);
    assert_eq!(factor(&[("llama.rope.scaling.type", linear), ("llama.rope.scaling.factor", four.clone())]), 4.0);
    assert_eq!(factor(&[("llama.rope.scaling.factor", four.clone())]), 4.0);
    assert_eq!(factor(&[("llama.rope.scale_linear", four.clone())]), 4.0);
    let none = Value::String("none".into());
    assert_eq!(factor(&[("llama.rope.scaling.type", none), ("llama.rope.scaling.factor", four)]), 1.0);
}

#[test]
fn a_tokenizer_larger_than_the_embedding_is_refused_and_a_smaller_one_is_padding() {
    let tokens = |count: u64| Value::Strings((0..count).map(|i| i.to_string()).collect());
    let larger = set(sound(GgmlType::F32), "tokenizer.ggml.tokens", tokens(TOKENS + 1));
    assert!(matches!(refusal(&larger), LoadError::TokensWithoutEmbedding { tokens: 6, rows: 5 }));
    let smaller = set(sound(GgmlType::F32), "tokenizer.ggml.tokens", tokens(TOKENS - 1));
    for writer in [smaller, without(sound(GgmlType::F32), "tokenizer.ggml.tokens")] {
        assert!(plan(&GgufFile::parse(writer.bytes()).unwrap(), &NaiveDevice, LIMITS).is_ok());
    }
}

#[test]
fn tensors_that_are_missing_misshapen_or_left_over_are_named() {
    let change = |name: &str, change: &dyn Fn(&mut Writer, usize)| {
        let mut writer = sound(GgmlType::F32);
        let at = writer.tensors.iter().position(|tensor| tensor.name == name).expect("the file has it");
        change(&mut writer, at);
        writer
    };
    for name in ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"] {
        let error = refusal(&change(name, &|writer, at| drop(writer.tensors.remove(at))));
        assert!(matches!(&error, LoadError::File(e) if e.to_string().contains(name)), "{name}: {error}");
        let error = refusal(&change(name, &|writer, at| {
            let size = &mut writer.tensors[at].dims[0];
            *size -= 1;
        }));
        assert!(matches!(&error, LoadError::WrongShape { name: found, .. } if found == name), "{name}: {error}");
    }
    let flat = change("token_embd.weight", &|writer, at| writer.tensors[at].dims = vec![HIDDEN * TOKENS]);
    assert!(matches!(refusal(&flat), LoadError::NoMatrix { .. }));
    let left_over = add(sound(GgmlType::F32), "blk.0.attn_q.bias", &[HIDDEN], GgmlType::F32);
    assert!(matches!(refusal(&left_over), LoadError::UnusedTensor { name, .. } if name == "blk.0.attn_q.bias"));
}

#[test]
fn every_tensor_type_loads_or_is_refused_by_the_plan() {
    let mut refused = Vec::new();
    for ggml_type in GgmlType::ALL {
        // Rows of 256 weights hold whole blocks of every type.
        let mut writer = sound(ggml_type);
        for tensor in &mut writer.tensors {
            for size in tensor.dims.iter_mut().filter(|size| **size == HIDDEN) {
                *size = 256;
            }
            let own = GgmlType::from_number(tensor.type_number).expect("a known type");
            tensor.data = zeros(own, tensor.dims.iter().product());
        }
        let writer = set(writer, "llama.embedding_length", Value::U32(256));
        let file = GgufFile::parse(writer.bytes()).unwrap();
        match plan(&file, &NaiveDevice, LIMITS) {
            Ok(planned) => assert_eq!(load(&file, &NaiveDevice, LIMITS).unwrap().shape(), &planned, "{ggml_type}"),
            Err(LoadError::UnsupportedFormat { name, format, supported }) => {
                assert_eq!((name.as_str(), format), ("blk.0.ffn_gate.weight", ggml_type));
                assert!(supported.starts_with("F32, F16, ") && !supported.contains(ggml_type.name()), "{supported}");
                refused.push(ggml_type);
            }
            Err(other) => panic!("{ggml_type}: {other}"),
        }
    }
    assert_eq!(refused, [GgmlType::IQ4_NL, GgmlType::IQ4_XS]);
}

#[test]
fn rotary_factors_that_are_no_factors_are_refused() {
    for bad in [0.0f32, -1.0, f32::NAN] {
        let mut values = [1.0f32; 8];
        values[3] = bad;
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let writer = sound(GgmlType::F32).with_tensor("rope_freqs.weight", &[8], GgmlType::F32, data);
        let file = GgufFile::parse(writer.bytes()).unwrap();
        let error = load(&file, &NaiveDevice, LIMITS).err().expect("refused");
        assert!(matches!(error, LoadError::BadFactor { index: 3, .. }), "{error}");
    }
}
