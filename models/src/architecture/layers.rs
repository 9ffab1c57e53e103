//! The blocks families are composed of: grouped-query attention with rotary positions, and the gated feed-forward layer.
//!
//! A block owns its weights and reads and writes the step's [`Activations`]. Its residual is *deferred*: a block leaves
//! its output in `delta`, and the next block's norm adds it to the stream in the same pass (the fused
//! `add_rms_norm` of the op contract).

use plimsoll_kernels::{AttentionShape, Device, DeviceError, RowBuffer};

use super::config::DecoderConfig;
use super::weights::{TensorSpec, Weights};
use super::{CacheView, LoadError, StepLimits};

/// The activation buffers of a decoder, one set for all layers.
pub struct Activations<D: Device> {
    /// The residual stream `[rows, hidden]`.
    pub stream: D::Buffer,
    /// Normalised input of a block `[rows, hidden]`.
    pub normed: D::Buffer,
    /// Output of a block, not yet added to the stream `[rows, hidden]`.
    pub delta: D::Buffer,
    queries: D::Buffer,
    keys: D::Buffer,
    values: D::Buffer,
    attended: D::Buffer,
    gate: D::Buffer,
    up: D::Buffer,
    gated: D::Buffer,
    /// Cosines and sines of the rows' positions `[rows, rotary_dim]`.
    pub angles: D::Buffer,
    /// Rows whose logits are wanted `[logits, hidden]`.
    pub picked: D::Buffer,
    /// The same, normalised.
    pub picked_normed: D::Buffer,
    /// `[logits, vocab]`.
    pub logits: D::Buffer,
}

impl<D: Device> Activations<D> {
    /// Widths and capacities of all buffers, in the order of the fields.
    fn sizes(config: &DecoderConfig, limits: StepLimits) -> [(usize, usize); 14] {
        let (rows, logits) = (limits.max_rows, limits.max_logits);
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        [
            (config.hidden, rows),
            (config.hidden, rows),
            (config.hidden, rows),
            (q, rows),
            (kv, rows),
            (kv, rows),
            (q, rows),
            (config.feed_forward, rows),
            (config.feed_forward, rows),
            (config.feed_forward, rows),
            (config.rotary_dim, rows),
            (config.hidden, logits),
            (config.hidden, logits),
            (config.vocab, logits),
        ]
    }

    /// Bytes of all buffers, exactly.
    pub fn bytes(device: &D, config: &DecoderConfig, limits: StepLimits) -> usize {
        Self::sizes(config, limits).iter().map(|&(width, rows)| device.buffer_bytes(width, rows)).sum()
    }

    /// Allocates all buffers.
    pub fn new(device: &D, config: &DecoderConfig, limits: StepLimits) -> Result<Self, DeviceError> {
        let mut sizes = Self::sizes(config, limits).into_iter();
        let mut next = || {
            let (width, rows) = sizes.next().expect("`sizes` lists every field");
            device.buffer(width, rows)
        };
        Ok(Self {
            stream: next()?,
            normed: next()?,
            delta: next()?,
            queries: next()?,
            keys: next()?,
            values: next()?,
            attended: next()?,
            gate: next()?,
            up: next()?,
            gated: next()?,
            angles: next()?,
            picked: next()?,
            picked_normed: next()?,
            logits: next()?,
        })
    }
}

/// Grouped-query attention: q, k, v projections (with biases in some families), rotation, cache, output projection.
pub struct Attention<D: Device> {
    q: D::Matrix,
    k: D::Matrix,
    v: D::Matrix,
    biases: Option<[D::Vector; 3]>,
    output: D::Matrix,
    shape: AttentionShape,
}

impl<D: Device> Attention<D> {
    /// The tensors of block `layer`.
    pub fn tensors(config: &DecoderConfig, layer: usize) -> Vec<TensorSpec> {
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let mut specs = vec![
            TensorSpec::matrix(format!("blk.{layer}.attn_q.weight"), q, config.hidden),
            TensorSpec::matrix(format!("blk.{layer}.attn_k.weight"), kv, config.hidden),
            TensorSpec::matrix(format!("blk.{layer}.attn_v.weight"), kv, config.hidden),
            TensorSpec::matrix(format!("blk.{layer}.attn_output.weight"), config.hidden, q),
        ];
        if config.qkv_bias {
            specs.push(TensorSpec::vector(format!("blk.{layer}.attn_q.bias"), q));
            specs.push(TensorSpec::vector(format!("blk.{layer}.attn_k.bias"), kv));
            specs.push(TensorSpec::vector(format!("blk.{layer}.attn_v.bias"), kv));
        }
        specs
    }

    /// Takes the block's tensors.
    pub fn new(device: &D, config: &DecoderConfig, layer: usize, weights: &mut Weights<D>) -> Result<Self, LoadError> {
        let mut bias = |name: &str| weights.vector(device, &format!("blk.{layer}.{name}.bias"));
        let biases = if config.qkv_bias { Some([bias("attn_q")?, bias("attn_k")?, bias("attn_v")?]) } else { None };
        let mut matrix = |name: &str| weights.matrix(&format!("blk.{layer}.{name}.weight"));
        Ok(Self {
            q: matrix("attn_q"),
            k: matrix("attn_k"),
            v: matrix("attn_v"),
            biases,
            output: matrix("attn_output"),
            shape: AttentionShape {
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                scale: (config.head_dim as f32).sqrt().recip(),
            },
        })
    }

    /// Reads `normed`, leaves the block's output in `delta`.
    pub fn forward(
        &self,
        device: &D,
        config: &DecoderConfig,
        layer: usize,
        a: &mut Activations<D>,
        cache: &mut dyn CacheView<D>,
    ) {
        let biases = match &self.biases {
            Some([q, k, v]) => [Some(q), Some(k), Some(v)],
            None => [None; 3],
        };
        device.linear(
            &a.normed,
            &[&self.q, &self.k, &self.v],
            &biases,
            &mut [&mut a.queries, &mut a.keys, &mut a.values],
        );
        device.rope(&mut a.queries, config.head_dim, config.rope_style, &a.angles);
        device.rope(&mut a.keys, config.head_dim, config.rope_style, &a.angles);
        cache.append(device, layer, &a.keys, &a.values);
        a.attended.set_rows(a.queries.rows());
        cache.attend(device, layer, &a.queries, self.shape, &mut a.attended);
        device.linear(&a.attended, &[&self.output], &[None], &mut [&mut a.delta]);
    }
}

/// `down(silu(gate(x)) * up(x))`.
pub struct GatedFeedForward<D: Device> {
    gate: D::Matrix,
    up: D::Matrix,
    down: D::Matrix,
}

impl<D: Device> GatedFeedForward<D> {
    /// The tensors of block `layer`.
    pub fn tensors(config: &DecoderConfig, layer: usize) -> Vec<TensorSpec> {
        vec![
            TensorSpec::matrix(format!("blk.{layer}.ffn_gate.weight"), config.feed_forward, config.hidden),
            TensorSpec::matrix(format!("blk.{layer}.ffn_up.weight"), config.feed_forward, config.hidden),
            TensorSpec::matrix(format!("blk.{layer}.ffn_down.weight"), config.hidden, config.feed_forward),
        ]
    }

    /// Takes the block's tensors.
    pub fn new(layer: usize, weights: &mut Weights<D>) -> Self {
        let mut matrix = |name: &str| weights.matrix(&format!("blk.{layer}.{name}.weight"));
        Self { gate: matrix("ffn_gate"), up: matrix("ffn_up"), down: matrix("ffn_down") }
    }

    /// Reads `normed`, leaves the block's output in `delta`.
    pub fn forward(&self, device: &D, a: &mut Activations<D>) {
        device.linear(&a.normed, &[&self.gate, &self.up], &[None, None], &mut [&mut a.gate, &mut a.up]);
        device.swiglu(&a.gate, &a.up, &mut a.gated);
        device.linear(&a.gated, &[&self.down], &[None], &mut [&mut a.delta]);
    }
}
