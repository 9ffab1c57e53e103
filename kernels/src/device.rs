//! The op contract: what a device must compute for a model, on which shapes, and what it promises.
//!
//! Activations are f32, row-major, one row per token of a *ragged batch*: rows of several sequences side by side,
//! prefill chunks and decode rows mixed. Buffers are made once, at load; no op allocates.
//!
//! Two promises hold for every op of every device on the CPU, and the rest of the engine is built on them:
//! **batch invariance** (a row's result depends on that row's inputs alone, never on its neighbours, on the number of
//! rows, or on how a prompt was cut into chunks) and **determinism** (the same inputs give the same bits, for any
//! number of threads).

use crate::weight_format::GgmlType;

/// Tokens in one K/V page.
pub const PAGE_TOKENS: usize = 32;

/// The widest attention head, in elements, that every device supports (Gemma 4's global layers have it).
pub const MAX_HEAD_DIM: usize = 512;

/// The widest input of a matrix product, in elements, that every device supports: eight times the widest layer known.
pub const MAX_INPUT_WIDTH: usize = 1 << 20;

/// The place of a page in a device's page store.
pub type PageIndex = u32;

/// What can go wrong on a device.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DeviceError {
    #[error("a {rows} x {cols} matrix of type {format} needs {expected} bytes, found {found}")]
    WrongByteCount { format: GgmlType, rows: usize, cols: usize, expected: usize, found: usize },
    #[error("a row of {cols} weights is no whole number of {format} blocks of {block} weights")]
    PartialBlock { format: GgmlType, cols: usize, block: usize },
    #[error("no kernel reads weights of type {format}; convert them to one of {supported}")]
    UnsupportedFormat { format: GgmlType, supported: String },
    #[error("allocating {bytes} bytes for {what} failed")]
    OutOfMemory { what: &'static str, bytes: usize },
    #[error("this processor has no {wanted} instructions; it has {available}")]
    MissingInstructions { wanted: &'static str, available: String },
    #[error("starting {threads} threads failed: {source}")]
    Threads { threads: usize, source: std::io::Error },
}

/// A weight matrix as it lies in a file: `rows` output features of `cols` input features each, row-major.
#[derive(Clone, Copy, Debug)]
pub struct WeightSource<'a> {
    /// Block type of the bytes.
    pub format: GgmlType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Exactly `format.tensor_bytes(rows, cols)` bytes, in the file's (little-endian) order.
    pub bytes: &'a [u8],
}

impl WeightSource<'_> {
    /// Checks that the format is one of `supported` and that the bytes are those of the shape.
    ///
    /// # Errors
    /// [`DeviceError::UnsupportedFormat`], [`DeviceError::PartialBlock`] or [`DeviceError::WrongByteCount`].
    pub fn check(&self, supported: &[GgmlType]) -> Result<(), DeviceError> {
        let Self { format, rows, cols, bytes } = *self;
        if !supported.contains(&format) {
            let supported = supported.iter().map(|f| f.name()).collect::<Vec<_>>().join(", ");
            return Err(DeviceError::UnsupportedFormat { format, supported });
        }
        if !cols.is_multiple_of(format.block_weights()) {
            return Err(DeviceError::PartialBlock { format, cols, block: format.block_weights() });
        }
        // A size beyond usize cannot be the length of a slice.
        let expected = format.tensor_bytes(rows, cols).unwrap_or(usize::MAX);
        if bytes.len() != expected {
            return Err(DeviceError::WrongByteCount { format, rows, cols, expected, found: bytes.len() });
        }
        Ok(())
    }
}

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 32-bit floats: tests and references.
    F32,
    /// 16-bit IEEE floats: the default.
    F16,
}

impl KvType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// Geometry of a model's K/V cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers that own K/V.
    pub layers: usize,
    /// K/V heads per layer.
    pub kv_heads: usize,
    /// Elements of one head, the same for keys and values.
    pub head_dim: usize,
    /// Element type.
    pub kv_type: KvType,
}

impl KvLayout {
    /// Bytes of one page: [`PAGE_TOKENS`] tokens, keys and values, all layers.
    pub const fn page_bytes(&self) -> usize {
        PAGE_TOKENS * self.token_bytes()
    }

    /// Bytes of one token: keys and values, all layers.
    pub const fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * self.kv_type.bytes()
    }
}

/// Which pairs of a head's elements rotary embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1` (the permuted q/k rows of `llama` GGUF files).
    Interleaved,
    /// Elements `i` and `i + rotary/2` (`qwen2` and the Hugging Face order).
    HalfSplit,
}

/// Heads of one attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads; head `h` reads K/V head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// K/V heads.
    pub kv_heads: usize,
    /// Elements of one head, at most [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// Factor of the dot products, usually `head_dim^-1/2`.
    pub scale: f32,
}

/// Where the rows of a ragged batch stand in their sequences, and where those sequences' pages are.
///
/// Row `r` is the token at `positions[r]` of sequence `row_seq[r]`. Key position `p` of sequence `s` lies in page
/// `page_table[page_start[s] + p / PAGE_TOKENS]`, slot `p % PAGE_TOKENS`. Rows of one sequence are contiguous and in
/// ascending position. All indices are checked by the safe wrappers; a table that is too short is a panic that states
/// the broken invariant, never an out-of-bounds access.
#[derive(Clone, Copy, Debug)]
pub struct BatchLayout<'a> {
    /// Position of each row in its sequence.
    pub positions: &'a [u32],
    /// Sequence of each row, an index into `page_start`.
    pub row_seq: &'a [u32],
    /// Page numbers, sequence after sequence.
    pub page_table: &'a [PageIndex],
    /// First entry of each sequence in `page_table`, one more entry than there are sequences.
    pub page_start: &'a [u32],
}

impl BatchLayout<'_> {
    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// The pages of sequence `seq`.
    pub fn pages(&self, seq: usize) -> &[PageIndex] {
        &self.page_table[self.page_start[seq] as usize..self.page_start[seq + 1] as usize]
    }
}

/// An f32 activation buffer `[rows, width]`, row-major, with a capacity fixed when it was made.
pub trait RowBuffer {
    /// Elements of one row.
    fn width(&self) -> usize;
    /// Rows in use.
    fn rows(&self) -> usize;
    /// Changes the rows in use. Contents of rows are kept; panics beyond the capacity.
    fn set_rows(&mut self, rows: usize);
}

/// Executes a model's operations on one piece of hardware.
///
/// Every op takes its row count from its input buffer and sets it on its outputs. Shapes that do not fit are a
/// programming error and panic with both shapes.
pub trait Device: Send + Sync + 'static {
    /// A packed weight matrix `[rows (out), cols (in)]`.
    type Matrix: Send + Sync + 'static;
    /// A vector of f32 parameters (norm weights, biases, rotary frequencies).
    type Vector: Send + Sync + 'static;
    /// Activations.
    type Buffer: RowBuffer + Send + 'static;
    /// K/V pages of all layers.
    type Pages: Send + 'static;

    /// One line for people: hardware, instruction set, threads.
    fn describe(&self) -> String;

    /// Whether [`Device::matrix`] reads this format; others are converted by the caller first.
    fn reads(&self, format: GgmlType) -> bool;
    /// Bytes that [`Device::matrix`] will hold for such a matrix, exactly.
    fn matrix_bytes(&self, format: GgmlType, rows: usize, cols: usize) -> usize;
    /// Packs a weight matrix.
    fn matrix(&self, source: &WeightSource<'_>) -> Result<Self::Matrix, DeviceError>;
    /// Uploads a parameter vector.
    fn vector(&self, values: &[f32]) -> Result<Self::Vector, DeviceError>;
    /// Bytes of [`Device::buffer`] with these dimensions, exactly.
    fn buffer_bytes(&self, width: usize, max_rows: usize) -> usize;
    /// Makes an activation buffer with zero rows in use.
    fn buffer(&self, width: usize, max_rows: usize) -> Result<Self::Buffer, DeviceError>;
    /// Makes a page store of `count` pages; its bytes are exactly `count * layout.page_bytes()`.
    fn pages(&self, layout: KvLayout, count: usize) -> Result<Self::Pages, DeviceError>;
    /// Bytes of scratch memory the device holds for itself, fixed when it was made.
    fn scratch_bytes(&self) -> usize;

    /// `out[r] = table[tokens[r]]`; `out` is `[tokens, table.cols]`.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32], out: &mut Self::Buffer);
    /// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`, the mean in f32 or better.
    fn rms_norm(&self, x: &Self::Buffer, weight: &Self::Vector, eps: f32, out: &mut Self::Buffer);
    /// `residual += delta`, then `out = rms_norm(residual)`, in one pass.
    fn add_rms_norm(
        &self,
        residual: &mut Self::Buffer,
        delta: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    );
    /// `residual += delta`.
    fn add(&self, residual: &mut Self::Buffer, delta: &Self::Buffer);
    /// `outs[i] = x * matrices[i]^T (+ biases[i])` for matrices that read the same input, so that the input is
    /// quantised once. Float weights (F32, F16, BF16) multiply f32 activations; block-quantised weights multiply
    /// activations quantised to 8 bits per 32 elements. Rows of `x` have at most [`MAX_INPUT_WIDTH`] elements.
    fn linear(
        &self,
        x: &Self::Buffer,
        matrices: &[&Self::Matrix],
        biases: &[Option<&Self::Vector>],
        outs: &mut [&mut Self::Buffer],
    );
    /// Writes the cosines and sines of each row's position: `out[r] = [cos(p f_0) .. cos(p f_n-1), sin(p f_0) ..]`,
    /// the product `p f_i` rounded to f32 as transformers does. `out` is `[rows, 2 * frequencies]`.
    fn rope_angles(&self, positions: &[u32], frequencies: &Self::Vector, out: &mut Self::Buffer);
    /// Rotates the first `2 * frequencies` elements of each head of `x` (`[rows, heads * head_dim]`) in place.
    fn rope(&self, x: &mut Self::Buffer, head_dim: usize, style: RopeStyle, angles: &Self::Buffer);
    /// Writes keys and values of every row (`[rows, kv_heads * head_dim]`) into its page slot of `layer`.
    fn write_kv(
        &self,
        pages: &mut Self::Pages,
        layer: usize,
        keys: &Self::Buffer,
        values: &Self::Buffer,
        batch: &BatchLayout<'_>,
    );
    /// Causal attention of each row over keys `0..=position` of its sequence, softmax in f32.
    /// `queries` and `out` are `[rows, heads * head_dim]`.
    fn attend(
        &self,
        pages: &Self::Pages,
        layer: usize,
        queries: &Self::Buffer,
        shape: AttentionShape,
        batch: &BatchLayout<'_>,
        out: &mut Self::Buffer,
    );
    /// `out = silu(gate) * up`, element by element.
    fn swiglu(&self, gate: &Self::Buffer, up: &Self::Buffer, out: &mut Self::Buffer);
    /// `out[i] = x[rows[i]]`.
    fn gather_rows(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer);
    /// Copies page `from` over page `to`, all layers.
    fn copy_page(&self, pages: &mut Self::Pages, from: PageIndex, to: PageIndex);
    /// The rows in use, in host memory. On the CPU this is the buffer itself.
    fn read<'a>(&self, buffer: &'a mut Self::Buffer) -> &'a [f32];
}
