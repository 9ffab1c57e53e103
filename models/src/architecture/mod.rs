//! Architectures: a model that reads like its paper's diagram, written once for all devices.
//!
//! An architecture owns its weights and its activation buffers, planned at load. It knows nothing of pages,
//! schedulers or sampling: it asks a [`CacheView`] to keep keys and values and to attend.
//!
//! - [`config`]: hyper-parameters, read from the file and checked.
//! - [`weights`]: which tensors a model needs, and how they reach a device.
//! - [`layers`]: attention and feed-forward blocks the families share.
//! - [`decoder`]: the shape Llama and its relatives share.
//! - [`llama`], [`qwen2`]: one file per family.
//! - [`registry`]: the list of families.

pub mod config;
pub mod decoder;
pub mod layers;
pub mod llama;
pub mod qwen2;
pub mod registry;
pub mod weights;

#[cfg(test)]
mod tests;

use plimsoll_kernels::{AttentionShape, Device, DeviceError, GgmlType, KvLayout, KvType};

pub use registry::{load, plan, supports};

/// The tokens of one step: a ragged batch in which prefill chunks and decode rows of several sequences are mixed.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// Token of each row.
    pub tokens: &'a [u32],
    /// Position of each row in its sequence.
    pub positions: &'a [u32],
    /// Rows whose logits are wanted, ascending; at most [`StepLimits::max_logits`].
    pub logit_rows: &'a [u32],
}

/// The cache as an architecture sees it during one step.
pub trait CacheView<D: Device> {
    /// Keeps the keys and values (`[rows, kv_heads * head_dim]`) of all rows of the step for `layer`.
    fn append(&mut self, device: &D, layer: usize, keys: &D::Buffer, values: &D::Buffer);
    /// Causal attention of each row over its own sequence, the step's own rows included.
    fn attend(&self, device: &D, layer: usize, queries: &D::Buffer, shape: AttentionShape, out: &mut D::Buffer);
}

/// The largest step a model is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows of one step.
    pub max_rows: usize,
    /// Rows of one step whose logits are wanted.
    pub max_logits: usize,
    /// Element type of cached keys and values.
    pub kv_type: KvType,
}

/// What the runtime must know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// The architecture's name in model files (`llama`, `qwen2`, ...).
    pub architecture: &'static str,
    /// Logits per row.
    pub vocab: usize,
    /// The longest sequence the position encoding supports, in tokens.
    pub max_context: usize,
    /// Layers, heads and element type of the K/V cache.
    pub kv: KvLayout,
    /// Bytes of packed weights, parameter vectors included.
    pub weight_bytes: usize,
    /// Bytes of activation buffers.
    pub activation_bytes: usize,
}

/// A loaded model on device `D`.
pub trait Architecture<D: Device>: Send {
    /// Geometry and sizes.
    fn shape(&self) -> &ModelShape;
    /// The largest step.
    fn limits(&self) -> StepLimits;
    /// Runs one step and returns the logits `[logit_rows, vocab]`. Panics when the batch exceeds [`Self::limits`].
    fn forward(&mut self, device: &D, batch: &TokenBatch<'_>, cache: &mut dyn CacheView<D>) -> &[f32];
}

/// Why a file is no model this project runs.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LoadError {
    #[error("architecture `{found}` is not supported; supported are {supported}")]
    UnsupportedArchitecture { found: String, supported: String },
    #[error("`{key}` = {found} is not supported by architecture `{architecture}`: {expected}")]
    UnsupportedSetting { architecture: &'static str, key: String, found: String, expected: String },
    #[error(transparent)]
    File(#[from] crate::gguf::GgufError),
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?} (innermost first)")]
    WrongShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor `{name}` has shape {found:?}, expected a matrix")]
    NoMatrix { name: String, found: Vec<usize> },
    #[error(
        "the file holds tensor `{name}`, which architecture `{architecture}` does not use; without it the model would \
         compute something else"
    )]
    UnusedTensor { name: String, architecture: &'static str },
    #[error(
        "the tokenizer has {tokens} tokens, the embedding `token_embd.weight` {rows} rows: tokens would have no embedding"
    )]
    TokensWithoutEmbedding { tokens: usize, rows: usize },
    #[error(
        "tensor `{name}` has type {format}, for which there is neither a kernel nor a converter; supported are {supported}"
    )]
    UnsupportedFormat { name: String, format: GgmlType, supported: String },
    #[error("value {index} of tensor `{name}` is {found}, expected a number above 0")]
    BadFactor { name: String, index: usize, found: f32 },
    #[error("tensor `{name}` of type {format} cannot be converted: {reason}")]
    Conversion { name: String, format: GgmlType, reason: String },
    #[error("tensor `{name}`: {source}")]
    Device { name: String, source: DeviceError },
    #[error("activation buffers: {0}")]
    Buffers(#[source] DeviceError),
}
