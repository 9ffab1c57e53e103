//! Hyper-parameters of the decoder families, read from GGUF metadata and checked before anything is allocated.
//!
//! Keys are those of the GGUF format document (`{arch}.block_count`, ...). What is set in a file and not implemented
//! here is refused by name: a model that runs with a setting ignored writes fluent, wrong text.

use plimsoll_kernels::{MAX_HEAD_DIM, MAX_INPUT_WIDTH, RopeStyle};

use super::LoadError;
use crate::gguf::{GgufFile, Strings};

/// A Llama-like decoder: pre-norm blocks of grouped-query attention and a gated feed-forward layer.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The family, as files name it.
    pub architecture: &'static str,
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// K/V heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Elements of a head that rotate.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Positions are divided by this (linear scaling); 1 is none.
    pub rope_linear_factor: f32,
    /// Which elements rotate together.
    pub rope_style: RopeStyle,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Tokens in the vocabulary, padding included.
    pub vocab: usize,
    /// The longest sequence the file promises, in tokens.
    pub max_context: usize,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
}

/// What distinguishes a family from its siblings, beyond numbers in the file.
#[derive(Clone, Copy, Debug)]
pub struct FamilyTraits {
    /// Name of the family in `general.architecture`.
    pub architecture: &'static str,
    /// Rotation pairs in this family's GGUF files.
    pub rope_style: RopeStyle,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
}

/// Sizes above these are no model of this class; the limits keep products of sizes far from overflow.
const MOST_LAYERS: usize = 1024;
const MOST_CONTEXT: usize = 1 << 24;
const MOST_TOKENS: usize = 1 << 24;

impl DecoderConfig {
    /// Reads and checks the hyper-parameters of a file of `family`.
    pub fn from_gguf(file: &GgufFile, family: FamilyTraits) -> Result<Self, LoadError> {
        let arch = family.architecture;
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let size = |suffix: &str, most: usize| -> Result<usize, LoadError> {
            let found = file.require::<usize>(&key(suffix))?;
            if found == 0 || found > most {
                return Err(unsupported(arch, key(suffix), found, format!("a number in 1..={most}")));
            }
            Ok(found)
        };
        let optional_size = |suffix: &str, most: usize| -> Result<Option<usize>, LoadError> {
            if file.value(&key(suffix)).is_some() { size(suffix, most).map(Some) } else { Ok(None) }
        };

        let layers = size("block_count", MOST_LAYERS)?;
        let hidden = size("embedding_length", MAX_INPUT_WIDTH)?;
        let feed_forward = size("feed_forward_length", MAX_INPUT_WIDTH)?;
        let heads = size("attention.head_count", MAX_INPUT_WIDTH)?;
        let kv_heads = optional_size("attention.head_count_kv", MAX_INPUT_WIDTH)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads");
            return Err(unsupported(arch, key("attention.head_count_kv"), kv_heads, expected));
        }
        let head_dim = match optional_size("attention.key_length", MAX_HEAD_DIM)? {
            Some(dim) => dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let expected = format!("a divisor of the width {hidden}, or `{}`", key("attention.key_length"));
                return Err(unsupported(arch, key("attention.head_count"), heads, expected));
            }
        };
        // A head as wide as `hidden / heads` was not checked by its key.
        if head_dim > MAX_HEAD_DIM || heads * head_dim > MAX_INPUT_WIDTH {
            let found = format!("{heads} heads of {head_dim} elements");
            let expected = format!("heads of at most {MAX_HEAD_DIM} elements, {MAX_INPUT_WIDTH} in all");
            return Err(unsupported(arch, key("attention.head_count"), found, expected));
        }
        if let Some(value_dim) = optional_size("attention.value_length", MAX_HEAD_DIM)?
            && value_dim != head_dim
        {
            let expected = format!("the key length, {head_dim}");
            return Err(unsupported(arch, key("attention.value_length"), value_dim, expected));
        }
        let rotary_dim = optional_size("rope.dimension_count", MAX_HEAD_DIM)?.unwrap_or(head_dim);
        if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let expected = format!("an even number of at most the head's {head_dim} elements");
            return Err(unsupported(arch, key("rope.dimension_count"), rotary_dim, expected));
        }

        Self::refuse_what_is_not_implemented(file, arch)?;
        let positive = |suffix: &str, default: Option<f32>| -> Result<f32, LoadError> {
            let found = match (file.get::<f32>(&key(suffix))?, default) {
                (Some(found), _) => found,
                (None, Some(default)) => default,
                (None, None) => file.require(&key(suffix))?,
            };
            if found.is_finite() && found > 0.0 {
                Ok(found)
            } else {
                Err(unsupported(arch, key(suffix), found, "a positive number".into()))
            }
        };
        let rope_linear_factor = match file.get::<&str>(&key("rope.scaling.type"))? {
            Some("none") => 1.0,
            // A factor without a type is linear, and 0 is none, as llama.cpp reads them; the second key is the older one.
            _ => match file.get::<f32>(&key("rope.scaling.factor"))?.or(file.get(&key("rope.scale_linear"))?) {
                None | Some(0.0) => 1.0,
                Some(factor) if factor.is_finite() && factor > 0.0 => factor,
                Some(other) => {
                    return Err(unsupported(arch, key("rope.scaling.factor"), other, "a positive number".into()));
                }
            },
        };

        let embedding = file.require_tensor("token_embd.weight")?;
        let vocab = match *embedding.dims {
            [_, vocab] if vocab > MOST_TOKENS => {
                let expected = format!("at most {MOST_TOKENS} rows");
                return Err(unsupported(arch, "token_embd.weight".into(), format!("{vocab} rows"), expected));
            }
            [_, vocab] => vocab,
            _ => {
                return Err(LoadError::NoMatrix { name: "token_embd.weight".into(), found: embedding.dims.to_vec() });
            }
        };
        if let Some(pieces) = file.get::<Strings>("tokenizer.ggml.tokens")?
            && pieces.len() > vocab
        {
            return Err(LoadError::TokensWithoutEmbedding { tokens: pieces.len(), rows: vocab });
        }

        Ok(Self {
            architecture: arch,
            layers,
            hidden,
            feed_forward,
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            // 10000 is the base of the original paper and of files that leave the key out.
            rope_base: positive("rope.freq_base", Some(10_000.0))?,
            rope_linear_factor,
            rope_style: family.rope_style,
            norm_eps: positive("attention.layer_norm_rms_epsilon", None)?,
            qkv_bias: family.qkv_bias,
            vocab,
            max_context: size("context_length", MOST_CONTEXT)?,
            tied_head: file.tensor("output.weight").is_none(),
        })
    }

    fn refuse_what_is_not_implemented(file: &GgufFile, arch: &'static str) -> Result<(), LoadError> {
        let key = |suffix: &str| format!("{arch}.{suffix}");
        if let Some(found) = file.get::<&str>(&key("rope.scaling.type"))?
            && !matches!(found, "none" | "linear")
        {
            return Err(unsupported(arch, key("rope.scaling.type"), found, "`none` or `linear`".into()));
        }
        for suffix in ["attention.sliding_window", "expert_count"] {
            if let Some(found) = file.get::<u32>(&key(suffix))?
                && found != 0
            {
                return Err(unsupported(arch, key(suffix), found, "absent or 0".into()));
            }
        }
        for suffix in [
            "attention.clamp_kqv",
            "attention.max_alibi_bias",
            "attention.scale",
            "attention.temperature_scale",
            "attn_logit_softcapping",
            "embedding_scale",
            "final_logit_softcapping",
            "logit_scale",
            "residual_scale",
        ] {
            if let Some(found) = file.get::<f32>(&key(suffix))?
                && found != 0.0
            {
                return Err(unsupported(arch, key(suffix), found, "absent or 0".into()));
            }
        }
        if file.get::<bool>(&key("attention.causal"))? == Some(false) {
            return Err(unsupported(arch, key("attention.causal"), false, "absent or true".into()));
        }
        Ok(())
    }

    /// Rotary frequencies `base^(-2i/rotary_dim) / factor_i`, one per pair. The factors are the file's
    /// `rope_freqs.weight`, in which converters store the llama3 rule; absent, they are 1.
    pub fn rope_frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        (0..self.rotary_dim / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / self.rotary_dim as f32;
                let factor = factors.map_or(1.0, |f| f[i]);
                1.0 / self.rope_base.powf(exponent) / factor / self.rope_linear_factor
            })
            .collect()
    }
}

fn unsupported(architecture: &'static str, key: String, found: impl ToString, expected: String) -> LoadError {
    LoadError::UnsupportedSetting { architecture, key, found: found.to_string(), expected }
}
