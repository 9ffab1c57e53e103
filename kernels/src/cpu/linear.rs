//! Matrix products: which thread multiplies which tiles with which rows.
//!
//! Owns the division of work and the safe entry; the arithmetic is in `linear_blocks` and `linear_float`. Tiles are
//! dealt out in runs; within a run a block of rows meets all tiles before the next block of rows does, so that weights
//! are read from memory once and stay in the second-level cache while the rows pass.

use std::marker::PhantomData;
use std::ops::Range;

use super::buffer::{CpuBuffer, CpuVector};
use super::isa::{Kernel, PresentIsa, dispatch};
use super::lanes::Lanes;
use super::linear_blocks::{self, Codec, Unpacked};
use super::linear_float::{self, FloatCodec};
use super::memory::Shared;
use super::pack::{BlockLayout, PackedMatrix, SUPER_BLOCKS, TILE_ROWS, tile_bytes};
use super::quantize_row::{BLOCK, QuantBlock, QuantizeBlocks};
use super::thread_pool::ThreadPool;
use crate::{GgmlType, RowBuffer};

/// Bytes of tiles in a run: what stays in a second-level cache next to a few rows.
const RUN_BYTES: usize = 192 << 10;

/// Runs per thread to which tiles are dealt out at least, for balance.
const RUNS_PER_THREAD: usize = 6;

/// Rows that meet an unpacked part of a tile one after the other: enough to make the unpacking cheap, few enough that
/// the rows of a wide matrix stay in the second-level cache from tile to tile.
const UNPACKED_ROWS: usize = 64;

/// Rows below which quantising is not worth another thread.
const SERIAL_ROWS: usize = 4;

/// `outs[i] = x * matrices[i]^T (+ biases[i])`.
///
/// `scratch` holds the quantised rows, at least one; more rows than fit are done in several passes, which changes no
/// result.
pub(crate) fn linear(
    isa: PresentIsa,
    pool: &ThreadPool,
    scratch: &mut [QuantBlock],
    x: &CpuBuffer,
    matrices: &[&PackedMatrix],
    biases: &[Option<&CpuVector>],
    outs: &mut [&mut CpuBuffer],
) {
    let (rows, cols) = (x.rows(), x.width());
    assert!(
        matrices.len() == biases.len() && matrices.len() == outs.len(),
        "{} matrices with {} bias slots and {} outputs",
        matrices.len(),
        biases.len(),
        outs.len()
    );
    for ((m, bias), out) in matrices.iter().zip(biases).zip(&mut *outs) {
        assert_eq!(m.cols, cols, "a {} x {} matrix on rows of {cols}", m.rows, m.cols);
        assert_eq!(m.rows, out.width(), "a {} x {} matrix into rows of {}", m.rows, m.cols, out.width());
        let bias = bias.map_or(m.rows, |bias| bias.values().len());
        assert_eq!(bias, m.rows, "a bias of {bias} for a {} x {} matrix", m.rows, m.cols);
        out.set_rows(rows);
    }
    if rows == 0 {
        return;
    }
    let mut products = Products { isa, pool, cols, matrices, biases, outs };
    if matrices.iter().any(|m| !is_quantised(m.format)) {
        products.multiply(Rows::Floats(x.values()), 0..rows);
    }
    if matrices.iter().any(|m| is_quantised(m.format)) {
        let blocks = cols / BLOCK;
        let pass = scratch.len() / blocks;
        assert!(pass > 0, "a row of {blocks} blocks does not fit scratch memory for {}", scratch.len());
        for start in (0..rows).step_by(pass) {
            let range = start..rows.min(start + pass);
            let scratch = &mut scratch[..range.len() * blocks];
            quantize(isa, pool, &x.values()[start * cols..range.end * cols], cols, scratch);
            products.multiply(Rows::Blocks(scratch), range);
        }
    }
}

fn is_quantised(format: GgmlType) -> bool {
    BlockLayout::of(format).is_some()
}

fn quantize(isa: PresentIsa, pool: &ThreadPool, x: &[f32], cols: usize, out: &mut [QuantBlock]) {
    let rows = x.len() / cols;
    if rows < SERIAL_ROWS {
        return dispatch(isa, QuantizeBlocks { x, out });
    }
    let (blocks, shared) = (cols / BLOCK, Shared::new(out));
    pool.run(rows, |row| {
        // SAFETY: every item has the blocks of its own row.
        let out = unsafe { shared.part(row * blocks, blocks) };
        dispatch(isa, QuantizeBlocks { x: &x[row * cols..][..cols], out });
    });
}

/// Rows `[rows, cols]` as the kernels read them.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Floats(&'a [f32]),
    Blocks(&'a [QuantBlock]),
}

impl Rows<'_> {
    /// Whether matrices of this format read such rows.
    fn suit(&self, format: GgmlType) -> bool {
        is_quantised(format) == matches!(self, Self::Blocks(_))
    }
}

/// Products with the same input, their shapes checked.
struct Products<'a, 'b> {
    isa: PresentIsa,
    pool: &'a ThreadPool,
    cols: usize,
    matrices: &'a [&'a PackedMatrix],
    biases: &'a [Option<&'a CpuVector>],
    outs: &'a mut [&'b mut CpuBuffer],
}

impl Products<'_, '_> {
    /// Computes rows `range` of the outputs of all matrices that read such rows; `rows` are those rows alone.
    fn multiply(&mut self, rows: Rows<'_>, range: Range<usize>) {
        let wanted = |i: usize| rows.suit(self.matrices[i].format);
        let total: usize = (0..self.matrices.len()).filter(|i| wanted(*i)).map(|i| self.matrices[i].tiles()).sum();
        let balanced = total.div_ceil(self.pool.threads() * RUNS_PER_THREAD).max(1);
        let run_of = |i: usize| {
            let tile = tile_bytes(self.matrices[i].format, self.cols).max(1);
            (RUN_BYTES / tile).clamp(1, balanced)
        };
        let runs_of = |i: usize| if wanted(i) { self.matrices[i].tiles().div_ceil(run_of(i)) } else { 0 };
        let items = (0..self.matrices.len()).map(runs_of).sum();
        let outs = Shared::new(self.outs);
        let (isa, cols, matrices, biases) = (self.isa, self.cols, self.matrices, self.biases);
        self.pool.run(items, |mut item| {
            let mut i = 0;
            while item >= runs_of(i) {
                item -= runs_of(i);
                i += 1;
            }
            let matrix = matrices[i];
            let first_tile = item * run_of(i);
            let last_tile = matrix.tiles().min(first_tile + run_of(i));
            // SAFETY: the buffers themselves are not changed during the run; of their values, each item writes the
            // columns of its own tiles.
            let out = unsafe { (*outs.at(i)).as_shared() };
            let bias = biases[i].map(CpuVector::values);
            let first_row = range.start;
            multiply_tiles(isa, Tiles { matrix, cols, bias, rows, first_row, first_tile, last_tile, out });
        });
    }
}

/// Some tiles of a matrix times some rows.
#[derive(Clone, Copy)]
struct Tiles<'a> {
    matrix: &'a PackedMatrix,
    cols: usize,
    bias: Option<&'a [f32]>,
    rows: Rows<'a>,
    /// The place of the first of `rows` in the output.
    first_row: usize,
    first_tile: usize,
    last_tile: usize,
    /// `[.., matrix.rows]`, holding `first_row` and the following rows.
    out: Shared<f32>,
}

/// Enters the kernel of the matrix's format; each is compiled by itself.
fn multiply_tiles(isa: PresentIsa, tiles: Tiles<'_>) {
    match tiles.matrix.format {
        GgmlType::F32 => dispatch(isa, FloatTiles::<linear_float::F32>(tiles, PhantomData)),
        GgmlType::F16 => dispatch(isa, FloatTiles::<linear_float::F16>(tiles, PhantomData)),
        GgmlType::BF16 => dispatch(isa, FloatTiles::<linear_float::BF16>(tiles, PhantomData)),
        GgmlType::Q4_0 => dispatch(isa, BlockTiles::<linear_blocks::Q4_0>(tiles, PhantomData)),
        GgmlType::Q4_1 => dispatch(isa, BlockTiles::<linear_blocks::Q4_1>(tiles, PhantomData)),
        GgmlType::Q5_0 => dispatch(isa, BlockTiles::<linear_blocks::Q5_0>(tiles, PhantomData)),
        GgmlType::Q5_1 => dispatch(isa, BlockTiles::<linear_blocks::Q5_1>(tiles, PhantomData)),
        GgmlType::Q8_0 => dispatch(isa, BlockTiles::<linear_blocks::Q8_0>(tiles, PhantomData)),
        GgmlType::Q4_K => dispatch(isa, BlockTiles::<linear_blocks::Q4_K>(tiles, PhantomData)),
        GgmlType::Q5_K => dispatch(isa, BlockTiles::<linear_blocks::Q5_K>(tiles, PhantomData)),
        GgmlType::Q6_K => dispatch(isa, BlockTiles::<linear_blocks::Q6_K>(tiles, PhantomData)),
        other => unreachable!("{other} was refused when it was packed"),
    }
}

/// Tiles of a block-quantised matrix of format `C`.
struct BlockTiles<'a, C>(Tiles<'a>, PhantomData<C>);

impl<C: Codec> Kernel for BlockTiles<'_, C> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        // SAFETY: the instructions are present by the contract of `run`; `multiply_tiles` chose the matrix's format.
        unsafe { self.0.blocks::<S, C>() }
    }
}

/// Tiles of a float matrix of type `C`.
struct FloatTiles<'a, C>(Tiles<'a>, PhantomData<C>);

impl<C: FloatCodec> Kernel for FloatTiles<'_, C> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        // SAFETY: as above.
        unsafe { self.0.floats::<S, C>() }
    }
}

impl Tiles<'_> {
    /// # Safety
    /// The processor has the instructions of `S`; `C` is the matrix's format.
    #[inline(always)]
    unsafe fn blocks<S: Lanes, C: Codec>(&self) {
        let Rows::Blocks(x) = self.rows else { unreachable!("quantised matrices meet quantised rows") };
        let blocks = self.cols / BLOCK;
        let rows = x.len() / blocks;
        let mut row = 0;
        while row < rows {
            let (rest, x) = (rows - row, &x[row * blocks..]);
            // SAFETY: `x` has the rows that each call reads.
            unsafe {
                row += match largest_power(rest, S::BLOCK_ROWS) {
                    _ if C::LAYOUT.bits < 8 && rest > S::BLOCK_ROWS => self.unpacked_rows::<S, C>(x, blocks, row),
                    8 if S::BLOCK_ROWS >= 8 => self.block_rows::<S, C, 8>(x, blocks, row),
                    4 if S::BLOCK_ROWS >= 4 => self.block_rows::<S, C, 4>(x, blocks, row),
                    2 if S::BLOCK_ROWS >= 2 => self.block_rows::<S, C, 2>(x, blocks, row),
                    _ => self.block_rows::<S, C, 1>(x, blocks, row),
                };
            }
        }
    }

    /// Multiplies all tiles of the run with the rows of `x`, at most [`UNPACKED_ROWS`], from row `row` of the pass on;
    /// returns how many. The same bits as [`Self::block_rows`], each tile unpacked once.
    ///
    /// # Safety
    /// As [`Self::blocks`].
    #[inline(always)]
    unsafe fn unpacked_rows<S: Lanes, C: Codec>(&self, x: &[QuantBlock], blocks: usize, row: usize) -> usize {
        let rows = UNPACKED_ROWS.min(x.len() / blocks);
        let x = &x[..rows * blocks];
        let mut unpacked = Unpacked::EMPTY;
        let mut sums = [[0.0; TILE_ROWS]; UNPACKED_ROWS];
        for tile in self.first_tile..self.last_tile {
            let mut at = self.matrix.tile(tile).as_ptr();
            sums[..rows].fill([0.0; TILE_ROWS]);
            for first in (0..blocks).step_by(SUPER_BLOCKS) {
                let count = SUPER_BLOCKS.min(blocks - first);
                // SAFETY: the tile is packed for `blocks` blocks of `C`, and every row has that many.
                unsafe {
                    at = unpacked.fill::<S, C>(at, count);
                    let mut r = 0;
                    while r < rows {
                        let x = &x[r * blocks + first..];
                        let sums = &mut sums[r..];
                        r += match largest_power(rows - r, S::BLOCK_ROWS) {
                            8 if S::BLOCK_ROWS >= 8 => meet::<S, C, 8>(&unpacked, count, x, blocks, sums),
                            4 if S::BLOCK_ROWS >= 4 => meet::<S, C, 4>(&unpacked, count, x, blocks, sums),
                            2 if S::BLOCK_ROWS >= 2 => meet::<S, C, 2>(&unpacked, count, x, blocks, sums),
                            _ => meet::<S, C, 1>(&unpacked, count, x, blocks, sums),
                        };
                    }
                }
            }
            for r in 0..rows {
                // SAFETY: the row exists in the output.
                unsafe { self.store::<S, 1>(tile, row + r, [S::load(sums[r].as_ptr())]) };
            }
        }
        rows
    }

    /// Multiplies all tiles of the run with the first `R` rows of `x`, row `row` of the pass; returns `R`.
    ///
    /// # Safety
    /// As [`Self::blocks`].
    #[inline(always)]
    unsafe fn block_rows<S: Lanes, C: Codec, const R: usize>(
        &self,
        x: &[QuantBlock],
        blocks: usize,
        row: usize,
    ) -> usize {
        let x = &x[..R * blocks];
        let mut pointers = [x.as_ptr(); R];
        for r in 1..R {
            pointers[r] = x[r * blocks..].as_ptr();
        }
        for tile in self.first_tile..self.last_tile {
            let data = self.matrix.tile(tile);
            // SAFETY: the tile is packed for `blocks` blocks of `C`, and every pointer has that many behind it.
            unsafe {
                let sums = linear_blocks::multiply_tile::<S, C, R>(data.as_ptr(), blocks, pointers);
                self.store::<S, R>(tile, row, sums);
            }
        }
        R
    }

    /// # Safety
    /// The processor has the instructions of `S`; `C` is the matrix's type.
    #[inline(always)]
    unsafe fn floats<S: Lanes, C: FloatCodec>(&self) {
        let Rows::Floats(x) = self.rows else { unreachable!("float matrices meet float rows") };
        let cols = self.cols;
        let mut row = 0;
        while row < x.len() / cols {
            let x = &x[row * cols..];
            // SAFETY: the match leaves at least the `R` rows that the call reads.
            unsafe {
                row += match largest_power(x.len() / cols, S::FLOAT_ROWS) {
                    8 if S::FLOAT_ROWS >= 8 => self.float_rows::<S, C, 8>(x, row),
                    4 if S::FLOAT_ROWS >= 4 => self.float_rows::<S, C, 4>(x, row),
                    2 if S::FLOAT_ROWS >= 2 => self.float_rows::<S, C, 2>(x, row),
                    _ => self.float_rows::<S, C, 1>(x, row),
                };
            }
        }
    }

    /// As [`Self::block_rows`], for float types.
    ///
    /// # Safety
    /// As [`Self::floats`].
    #[inline(always)]
    unsafe fn float_rows<S: Lanes, C: FloatCodec, const R: usize>(&self, x: &[f32], row: usize) -> usize {
        let x = &x[..R * self.cols];
        let mut pointers = [x.as_ptr(); R];
        for r in 1..R {
            pointers[r] = x[r * self.cols..].as_ptr();
        }
        for tile in self.first_tile..self.last_tile {
            let data = self.matrix.tile(tile);
            // SAFETY: the tile is packed for `cols` inputs of `C`, and every pointer has that many values behind it.
            unsafe {
                let sums = linear_float::multiply_tile::<S, C, R>(data.as_ptr(), self.cols, pointers);
                self.store::<S, R>(tile, row, sums);
            }
        }
        R
    }

    /// Adds the bias and writes the 16 outputs of `tile`, or as many as the matrix has, for rows `row ..` of the pass.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; the rows exist in the output.
    #[inline(always)]
    unsafe fn store<S: Lanes, const R: usize>(&self, tile: usize, row: usize, sums: [S::F; R]) {
        let width = self.matrix.rows;
        let column = tile * TILE_ROWS;
        let count = TILE_ROWS.min(width - column);
        for r in 0..R {
            // SAFETY: `column + count <= width`, the row exists, and no other item writes these columns.
            unsafe {
                let mut sum = sums[r];
                if let Some(bias) = self.bias {
                    sum = S::add(sum, S::load_part(bias[column..][..count].as_ptr(), count));
                }
                let to = self.out.at((self.first_row + row + r) * width + column);
                if count == TILE_ROWS { S::store(to, sum) } else { S::store_part(to, sum, count) }
            }
        }
    }
}

/// Adds the products of the first `R` rows of `x`, which lie `blocks` apart, to `sums`; returns `R`.
///
/// # Safety
/// The processor has the instructions of `S`; `unpacked` was filled with `count` blocks of `C`'s format.
#[inline(always)]
unsafe fn meet<S: Lanes, C: Codec, const R: usize>(
    unpacked: &Unpacked,
    count: usize,
    x: &[QuantBlock],
    blocks: usize,
    sums: &mut [[f32; TILE_ROWS]],
) -> usize {
    let mut pointers = [x.as_ptr(); R];
    for r in 0..R {
        pointers[r] = x[r * blocks..][..count].as_ptr();
    }
    let sums = sums.first_chunk_mut().expect("a sum per row");
    // SAFETY: every pointer has `count` blocks behind it.
    unsafe { unpacked.multiply::<S, C, R>(count, pointers, sums) };
    R
}

/// The largest power of two that is at most `rows` and `limit`.
#[inline(always)]
fn largest_power(rows: usize, limit: usize) -> usize {
    let mut power = limit;
    while power > rows {
        power /= 2;
    }
    power
}
