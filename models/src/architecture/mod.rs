//! Architectures: a model that reads like its paper's diagram, written once for all devices.
//!
//! An architecture owns its weights and its activation buffers, planned at load. It knows nothing of pages,
//! schedulers or sampling: it asks a [`CacheView`] to keep keys and values and to attend.

use plimsoll_kernels::{AttentionShape, Device, KvLayout};

/// The tokens of one step: a ragged batch in which prefill chunks and decode rows of several sequences are mixed.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// Token of each row.
    pub tokens: &'a [u32],
    /// Position of each row in its sequence.
    pub positions: &'a [u32],
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: &'a [u32],
}

/// The cache as an architecture sees it during one step.
pub trait CacheView<D: Device> {
    /// Keeps the keys and values (`[rows, kv_heads * head_dim]`) of all rows of the step for `layer`.
    fn append(&mut self, device: &D, layer: usize, keys: &D::Buffer, values: &D::Buffer);
    /// Causal attention of each row over its own sequence, the step's own rows included.
    fn attend(&self, device: &D, layer: usize, queries: &D::Buffer, shape: AttentionShape, out: &mut D::Buffer);
}

/// What the runtime must know of a loaded model.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// The architecture's name in model files (`llama`, `qwen2`, ...).
    pub architecture: String,
    /// Logits per row.
    pub vocab: usize,
    /// The longest sequence the position encoding supports, in tokens.
    pub max_context: usize,
    /// Layers, heads and element type of the K/V cache.
    pub kv: KvLayout,
    /// Bytes of packed weights.
    pub weight_bytes: usize,
    /// Bytes of activation buffers.
    pub activation_bytes: usize,
}

/// A loaded model on device `D`.
pub trait Architecture<D: Device>: Send {
    /// Geometry and sizes.
    fn shape(&self) -> &ModelShape;
    /// The most rows one step may have.
    fn max_rows(&self) -> usize;
    /// Runs one step and returns the logits `[logit_rows, vocab]`.
    fn forward(&mut self, device: &D, batch: &TokenBatch<'_>, cache: &mut dyn CacheView<D>) -> &[f32];
}
