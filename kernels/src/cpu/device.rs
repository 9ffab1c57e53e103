//! [`CpuDevice`]: every op with its checks, spread over the pool.
//!
//! Owns the threads and the scratch memory, whose size is fixed when the device is made: batches that need more are
//! done in several passes, which changes no result. No op allocates.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::attention::{self, Scratch as AttentionScratch};
use super::buffer::{CpuBuffer, CpuVector};
use super::isa::{Isa, PresentIsa, dispatch};
use super::kv_pages::{self, CpuPages};
use super::linear;
use super::memory::Region;
use super::pack::{FORMATS, PackedMatrix, packed_bytes};
use super::quantize_row::QuantBlock;
use super::rms_norm::{AddRmsNorm, RmsNorm};
use super::rope::{self, Rope};
use super::swiglu::Swiglu;
use super::thread_pool::ThreadPool;
use crate::{
    AttentionShape, BatchLayout, Device, DeviceError, GgmlType, KvLayout, MAX_INPUT_WIDTH, PageIndex, RopeStyle,
    RowBuffer, WeightSource,
};

/// Quantised blocks of 32 activations that one pass of a matrix product holds: 1,024 rows of 5,120, 7.5 MiB.
const SCRATCH_BLOCKS: usize = 1024 * 5120 / 32;
const _: () = assert!(SCRATCH_BLOCKS >= MAX_INPUT_WIDTH / 32, "the widest row fits scratch memory");

/// Elements of a row-wise op below which one thread does it: less than a microsecond or two of work.
const SERIAL_ELEMENTS: usize = 16 << 10;

/// How to make a [`CpuDevice`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the calling one included; by default as many as the process may use at once.
    pub threads: Option<NonZeroUsize>,
    /// Instruction set; by default the fastest present.
    pub isa: Option<Isa>,
}

/// Executes the ops on the host's processor.
pub struct CpuDevice {
    isa: PresentIsa,
    pool: ThreadPool,
    scratch: Mutex<Scratch>,
}

struct Scratch {
    blocks: Region<QuantBlock>,
    attention: AttentionScratch,
}

impl CpuDevice {
    /// Starts the threads and allocates scratch memory.
    ///
    /// # Errors
    /// [`DeviceError::MissingInstructions`], [`DeviceError::OutOfMemory`] or [`DeviceError::Threads`].
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let isa = options.isa.map_or_else(|| Ok(PresentIsa::best()), PresentIsa::new)?;
        let threads =
            options.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
        let pool =
            ThreadPool::new(threads).map_err(|source| DeviceError::Threads { threads: threads.get(), source })?;
        let scratch = Scratch {
            blocks: Region::new("quantised activations", SCRATCH_BLOCKS)?,
            attention: AttentionScratch::new(threads.get())?,
        };
        Ok(Self { isa, pool, scratch: Mutex::new(scratch) })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa.get()
    }

    /// Threads, the calling one included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    // Scratch holds nothing between ops, so that a panic in one leaves nothing broken for the next.
    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` for each row, on several threads if there is enough to do.
    fn for_rows(&self, rows: usize, width: usize, f: impl Fn(usize) + Sync) {
        if rows * width < SERIAL_ELEMENTS { (0..rows).for_each(f) } else { self.pool.run(rows, f) }
    }
}

impl std::fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Device for CpuDevice {
    type Matrix = PackedMatrix;
    type Vector = CpuVector;
    type Buffer = CpuBuffer;
    type Pages = CpuPages;

    fn describe(&self) -> String {
        let threads = self.threads();
        format!("CPU, {}, {threads} thread{}", self.isa(), if threads == 1 { "" } else { "s" })
    }

    fn reads(&self, format: GgmlType) -> bool {
        FORMATS.contains(&format)
    }

    fn matrix_bytes(&self, format: GgmlType, rows: usize, cols: usize) -> usize {
        packed_bytes(format, rows, cols)
    }

    fn matrix(&self, source: &WeightSource<'_>) -> Result<PackedMatrix, DeviceError> {
        PackedMatrix::pack(source, &self.pool)
    }

    fn vector(&self, values: &[f32]) -> Result<CpuVector, DeviceError> {
        CpuVector::new(values)
    }

    fn buffer_bytes(&self, width: usize, max_rows: usize) -> usize {
        width.saturating_mul(max_rows).saturating_mul(size_of::<f32>())
    }

    fn buffer(&self, width: usize, max_rows: usize) -> Result<CpuBuffer, DeviceError> {
        CpuBuffer::new(width, max_rows)
    }

    fn pages(&self, layout: KvLayout, count: usize) -> Result<CpuPages, DeviceError> {
        CpuPages::new(layout, count)
    }

    fn scratch_bytes(&self) -> usize {
        SCRATCH_BLOCKS * size_of::<QuantBlock>() + AttentionScratch::bytes(self.threads())
    }

    fn embed(&self, table: &PackedMatrix, tokens: &[u32], out: &mut CpuBuffer) {
        let width = table.cols;
        assert_eq!(out.width(), width, "an embedding of {width} into rows of {}", out.width());
        out.set_rows(tokens.len());
        let values = out.shared();
        self.for_rows(tokens.len(), width, |row| {
            // SAFETY: every item has its own row.
            let to = unsafe { values.part(row * width, width) };
            table.read_row(tokens[row] as usize, to);
        });
    }

    fn rms_norm(&self, x: &CpuBuffer, weight: &CpuVector, eps: f32, out: &mut CpuBuffer) {
        let width = x.width();
        assert_eq!(out.width(), width, "a norm of rows of {width} into rows of {}", out.width());
        out.set_rows(x.rows());
        let values = out.shared();
        self.for_rows(x.rows(), width, |row| {
            // SAFETY: every item has its own row.
            let out = unsafe { values.part(row * width, width) };
            dispatch(self.isa, RmsNorm { x: x.row(row), weight: weight.values(), eps, out });
        });
    }

    fn add_rms_norm(
        &self,
        residual: &mut CpuBuffer,
        delta: &CpuBuffer,
        weight: &CpuVector,
        eps: f32,
        out: &mut CpuBuffer,
    ) {
        let (rows, width) = (residual.rows(), residual.width());
        assert_eq!((delta.rows(), delta.width()), (rows, width), "a delta of the residual's shape");
        assert_eq!(out.width(), width, "a norm of rows of {width} into rows of {}", out.width());
        out.set_rows(rows);
        let (sums, values) = (residual.shared(), out.shared());
        self.for_rows(rows, width, |row| {
            // SAFETY: every item has its own row of both buffers.
            let (residual, out) = unsafe { (sums.part(row * width, width), values.part(row * width, width)) };
            dispatch(self.isa, AddRmsNorm { residual, delta: delta.row(row), weight: weight.values(), eps, out });
        });
    }

    fn add(&self, residual: &mut CpuBuffer, delta: &CpuBuffer) {
        let (rows, width) = (residual.rows(), residual.width());
        assert_eq!((delta.rows(), delta.width()), (rows, width), "a delta of the residual's shape");
        let sums = residual.shared();
        self.for_rows(rows, width, |row| {
            // SAFETY: every item has its own row.
            let residual = unsafe { sums.part(row * width, width) };
            for (r, d) in residual.iter_mut().zip(delta.row(row)) {
                *r += d;
            }
        });
    }

    fn linear(
        &self,
        x: &CpuBuffer,
        matrices: &[&PackedMatrix],
        biases: &[Option<&CpuVector>],
        outs: &mut [&mut CpuBuffer],
    ) {
        linear::linear(self.isa, &self.pool, &mut self.scratch().blocks, x, matrices, biases, outs);
    }

    fn rope_angles(&self, positions: &[u32], frequencies: &CpuVector, out: &mut CpuBuffer) {
        let (frequencies, width) = (frequencies.values(), out.width());
        assert_eq!(width, 2 * frequencies.len(), "a cosine and a sine for each of {} frequencies", frequencies.len());
        out.set_rows(positions.len());
        let values = out.shared();
        // A cosine costs some dozens of multiplications.
        self.for_rows(positions.len(), 32 * width, |row| {
            // SAFETY: every item has its own row.
            rope::angles(positions[row], frequencies, unsafe { values.part(row * width, width) });
        });
    }

    fn rope(&self, x: &mut CpuBuffer, head_dim: usize, style: RopeStyle, angles: &CpuBuffer) {
        let (rows, width) = (x.rows(), x.width());
        assert_eq!(angles.rows(), rows, "a row of angles for each of {rows} rows");
        assert!(head_dim > 0 && width.is_multiple_of(head_dim), "rows of {width} are no heads of {head_dim}");
        assert!(angles.width() <= head_dim, "{} rotated elements of heads of {head_dim}", angles.width());
        let values = x.shared();
        self.for_rows(rows, width, |row| {
            // SAFETY: every item has its own row.
            let row_values = unsafe { values.part(row * width, width) };
            dispatch(self.isa, Rope { row: row_values, head_dim, style, angles: angles.row(row) });
        });
    }

    fn write_kv(
        &self,
        pages: &mut CpuPages,
        layer: usize,
        keys: &CpuBuffer,
        values: &CpuBuffer,
        batch: &BatchLayout<'_>,
    ) {
        kv_pages::write_kv(self.isa, &self.pool, pages, layer, keys, values, batch);
    }

    fn attend(
        &self,
        pages: &CpuPages,
        layer: usize,
        queries: &CpuBuffer,
        shape: AttentionShape,
        batch: &BatchLayout<'_>,
        out: &mut CpuBuffer,
    ) {
        let scratch = &mut self.scratch().attention;
        attention::attend(self.isa, &self.pool, scratch, pages, layer, queries, shape, batch, out);
    }

    fn swiglu(&self, gate: &CpuBuffer, up: &CpuBuffer, out: &mut CpuBuffer) {
        let (rows, width) = (gate.rows(), gate.width());
        assert_eq!((up.rows(), up.width()), (rows, width), "gate and up of one shape");
        assert_eq!(out.width(), width, "rows of {width} into rows of {}", out.width());
        out.set_rows(rows);
        let values = out.shared();
        self.for_rows(rows, width, |row| {
            // SAFETY: every item has its own row.
            let out = unsafe { values.part(row * width, width) };
            dispatch(self.isa, Swiglu { gate: gate.row(row), up: up.row(row), out });
        });
    }

    fn gather_rows(&self, x: &CpuBuffer, rows: &[u32], out: &mut CpuBuffer) {
        let width = x.width();
        assert_eq!(out.width(), width, "rows of {width} into rows of {}", out.width());
        out.set_rows(rows.len());
        for (to, &row) in out.values_mut().chunks_exact_mut(width).zip(rows) {
            to.copy_from_slice(x.row(row as usize));
        }
    }

    fn copy_page(&self, pages: &mut CpuPages, from: PageIndex, to: PageIndex) {
        pages.copy_page(from, to);
    }

    fn read<'a>(&self, buffer: &'a mut CpuBuffer) -> &'a [f32] {
        buffer.values()
    }
}
