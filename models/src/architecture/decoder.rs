//! The pre-norm decoder of the Llama shape: what `llama` and `qwen2` have in common, which is all but numbers.
//!
//! ```text
//! x = embed(tokens)
//! per block:  x += attention(norm(x));  x += feed_forward(norm(x))
//! logits = head(norm(x))
//! ```

use plimsoll_kernels::{Device, KvLayout};

use super::config::{DecoderConfig, FamilyTraits};
use super::layers::{Activations, Attention, GatedFeedForward};
use super::weights::{self, TensorSpec, Weights};
use super::{Architecture, CacheView, LoadError, ModelShape, StepLimits, TokenBatch};
use crate::gguf::GgufFile;

struct Block<D: Device> {
    attention_norm: D::Vector,
    attention: Attention<D>,
    feed_forward_norm: D::Vector,
    feed_forward: GatedFeedForward<D>,
}

/// A decoder on device `D`.
pub struct Decoder<D: Device> {
    config: DecoderConfig,
    shape: ModelShape,
    limits: StepLimits,
    embedding: D::Matrix,
    blocks: Vec<Block<D>>,
    norm: D::Vector,
    /// `None`: the head is the embedding.
    head: Option<D::Matrix>,
    rope_frequencies: D::Vector,
    activations: Activations<D>,
}

const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Every tensor of such a model.
fn tensors<D: Device>(config: &DecoderConfig, file: &GgufFile) -> Vec<TensorSpec> {
    let mut specs = vec![
        TensorSpec::matrix("token_embd.weight", config.vocab, config.hidden),
        TensorSpec::vector("output_norm.weight", config.hidden),
    ];
    if !config.tied_head {
        specs.push(TensorSpec::matrix("output.weight", config.vocab, config.hidden));
    }
    if file.tensor(ROPE_FACTORS).is_some() {
        specs.push(TensorSpec::vector(ROPE_FACTORS, config.rotary_dim / 2));
    }
    for layer in 0..config.layers {
        specs.push(TensorSpec::vector(format!("blk.{layer}.attn_norm.weight"), config.hidden));
        specs.extend(Attention::<D>::tensors(config, layer));
        specs.push(TensorSpec::vector(format!("blk.{layer}.ffn_norm.weight"), config.hidden));
        specs.extend(GatedFeedForward::<D>::tensors(config, layer));
    }
    specs
}

/// Checks every tensor and counts the bytes the device will hold for parameters.
fn plan_weights<D: Device>(file: &GgufFile, device: &D, config: &DecoderConfig) -> Result<usize, LoadError> {
    let specs = tensors::<D>(config, file);
    weights::refuse_unused(file, config.architecture, &specs)?;
    // The rotary frequencies are held in the place of the file's factors, and also where the file has none.
    let computed = if file.tensor(ROPE_FACTORS).is_some() { 0 } else { config.rotary_dim / 2 * size_of::<f32>() };
    Ok(weights::plan(file, device, &specs)? + computed)
}

/// The sizes such a model will have, read from the file's header alone.
pub fn plan<D: Device>(
    file: &GgufFile,
    family: FamilyTraits,
    device: &D,
    limits: StepLimits,
) -> Result<ModelShape, LoadError> {
    let config = DecoderConfig::from_gguf(file, family)?;
    let weight_bytes = plan_weights(file, device, &config)?;
    Ok(shape(&config, device, limits, weight_bytes))
}

fn shape<D: Device>(config: &DecoderConfig, device: &D, limits: StepLimits, weight_bytes: usize) -> ModelShape {
    ModelShape {
        architecture: config.architecture,
        vocab: config.vocab,
        max_context: config.max_context,
        kv: KvLayout {
            layers: config.layers,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            kv_type: limits.kv_type,
        },
        weight_bytes,
        activation_bytes: Activations::bytes(device, config, limits),
    }
}

impl<D: Device> Decoder<D> {
    /// Loads the model.
    pub fn load(file: &GgufFile, family: FamilyTraits, device: &D, limits: StepLimits) -> Result<Self, LoadError> {
        let config = DecoderConfig::from_gguf(file, family)?;
        let weight_bytes = plan_weights(file, device, &config)?;
        let activations = Activations::new(device, &config, limits).map_err(LoadError::Buffers)?;
        let mut weights = Weights::load(file, device, &tensors::<D>(&config, file))?;

        let factors = file.tensor(ROPE_FACTORS).is_some().then(|| weights.values(ROPE_FACTORS));
        if let Some(values) = &factors
            && let Some(index) = values.iter().position(|factor| factor.is_nan() || *factor <= 0.0)
        {
            return Err(LoadError::BadFactor { name: ROPE_FACTORS.into(), index, found: values[index] });
        }
        let frequencies = config.rope_frequencies(factors.as_deref());
        let mut blocks = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            blocks.push(Block {
                attention_norm: weights.vector(device, &format!("blk.{layer}.attn_norm.weight"))?,
                attention: Attention::new(device, &config, layer, &mut weights)?,
                feed_forward_norm: weights.vector(device, &format!("blk.{layer}.ffn_norm.weight"))?,
                feed_forward: GatedFeedForward::new(layer, &mut weights),
            });
        }
        Ok(Self {
            shape: shape(&config, device, limits, weight_bytes),
            limits,
            embedding: weights.matrix("token_embd.weight"),
            blocks,
            norm: weights.vector(device, "output_norm.weight")?,
            head: (!config.tied_head).then(|| weights.matrix("output.weight")),
            rope_frequencies: device
                .vector(&frequencies)
                .map_err(|source| LoadError::Device { name: ROPE_FACTORS.into(), source })?,
            activations,
            config,
        })
    }
}

impl<D: Device> Architecture<D> for Decoder<D> {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn limits(&self) -> StepLimits {
        self.limits
    }

    fn forward(&mut self, device: &D, batch: &TokenBatch<'_>, cache: &mut dyn CacheView<D>) -> &[f32] {
        let Self { config, blocks, activations: a, .. } = self;
        let eps = config.norm_eps;
        device.embed(&self.embedding, batch.tokens, &mut a.stream);
        device.rope_angles(batch.positions, &self.rope_frequencies, &mut a.angles);

        for (layer, block) in blocks.iter().enumerate() {
            if layer == 0 {
                device.rms_norm(&a.stream, &block.attention_norm, eps, &mut a.normed);
            } else {
                device.add_rms_norm(&mut a.stream, &a.delta, &block.attention_norm, eps, &mut a.normed);
            }
            block.attention.forward(device, config, layer, a, cache);
            device.add_rms_norm(&mut a.stream, &a.delta, &block.feed_forward_norm, eps, &mut a.normed);
            block.feed_forward.forward(device, a);
        }

        device.add(&mut a.stream, &a.delta);
        device.gather_rows(&a.stream, batch.logit_rows, &mut a.picked);
        device.rms_norm(&a.picked, &self.norm, eps, &mut a.picked_normed);
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        device.linear(&a.picked_normed, &[head], &[None], &mut [&mut a.logits]);
        device.read(&mut a.logits)
    }
}
