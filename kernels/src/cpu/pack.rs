//! Packed weights: tiles of 16 output rows, read as one stream from the first input to the last.
//!
//! Owns the packed layouts, the packing from GGML blocks and the reading of one row (embeddings); the matrix kernels
//! read the same layouts through [`BlockLayout`]. Packing is exact: no weight, scale or minimum is rounded.
//!
//! A quantised tile is a sequence of blocks of 16 rows x 32 inputs; K formats put a header before every 8 blocks.
//!
//! ```text
//! header  16 f16 super scales, 16 f16 super minimums (negated)         Q4_K, Q5_K; Q6_K has scales only
//! block   16 f16 scales, 16 f16 minimums                               Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, minimums for _1
//!         16 u8 scales, 16 u8 minimums                                 Q4_K, Q5_K
//!         16 i8 scales of inputs 0..16, 16 of inputs 16..32            Q6_K
//!         planes of the bits above the nibble, 64 bytes per bit        Q5_*, Q6_K
//!         quants: 4 x 64 bytes of nibbles, or 8 x 64 bytes (plus 128)  Q8_0
//! ```
//!
//! In 64 bytes of quants, byte `4 r + j` belongs to row `r`. Of nibble vector `g` the low nibbles are inputs
//! `8 g + j`, the high ones `8 g + 4 + j`. The extra bits of byte `b` lie in byte `b` of a plane, placed so that a few
//! shifts of the whole plane bring each bit above its nibble (the `_bit` functions below).
//!
//! Float tiles are `[input][row]`. Rows beyond the matrix are zeros.

use half::{bf16, f16};

use super::lanes::LANES;
use super::memory::{Region, Shared};
use super::quantize_row::BLOCK;
use super::thread_pool::ThreadPool;
use crate::{DeviceError, GgmlType, WeightSource};

/// Output rows of a tile.
pub(crate) const TILE_ROWS: usize = LANES;

/// Blocks behind one header of a K format.
pub(crate) const SUPER_BLOCKS: usize = 8;

/// Bytes of 16 f16.
const HALVES: usize = 2 * TILE_ROWS;

/// Bytes that carry one byte, or a part of one, for 16 rows x 4 inputs.
pub(crate) const VECTOR: usize = 4 * TILE_ROWS;

/// The formats that can be packed.
pub(crate) const FORMATS: [GgmlType; 11] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

/// How the scales of a quantised format are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// One f16 per row and block.
    Block,
    /// 6 bits per row and block, times an f16 per 8 blocks (Q4_K, Q5_K).
    Super,
    /// 8 bits per row and 16 inputs, times an f16 per 8 blocks (Q6_K).
    SuperHalves,
}

/// Where things lie in a packed block; see the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLayout {
    /// Bits of a weight.
    pub bits: u32,
    /// log2 of what was added to make weights unsigned.
    pub offset_log2: Option<u32>,
    /// Whether a minimum is added.
    pub minimums: bool,
    /// How scales are kept.
    pub scales: Scales,
}

impl BlockLayout {
    /// The layout of a quantised format, `None` for float types and formats without a kernel.
    pub const fn of(format: GgmlType) -> Option<Self> {
        let (bits, offset_log2, minimums, scales) = match format {
            GgmlType::Q4_0 => (4, Some(3), false, Scales::Block),
            GgmlType::Q4_1 => (4, None, true, Scales::Block),
            GgmlType::Q5_0 => (5, Some(4), false, Scales::Block),
            GgmlType::Q5_1 => (5, None, true, Scales::Block),
            GgmlType::Q8_0 => (8, Some(7), false, Scales::Block),
            GgmlType::Q4_K => (4, None, true, Scales::Super),
            GgmlType::Q5_K => (5, None, true, Scales::Super),
            GgmlType::Q6_K => (6, Some(5), false, Scales::SuperHalves),
            _ => return None,
        };
        Some(Self { bits, offset_log2, minimums, scales })
    }

    /// Bytes before every [`SUPER_BLOCKS`] blocks.
    pub const fn header_bytes(&self) -> usize {
        match self.scales {
            Scales::Block => 0,
            Scales::Super | Scales::SuperHalves => HALVES * (1 + self.minimums as usize),
        }
    }

    /// Bytes of scales and minimums, where the planes begin.
    pub const fn scale_bytes(&self) -> usize {
        match self.scales {
            Scales::Block => HALVES * (1 + self.minimums as usize),
            Scales::Super | Scales::SuperHalves => 2 * TILE_ROWS,
        }
    }

    /// Planes of bits above the nibble.
    pub const fn planes(&self) -> usize {
        match self.bits {
            5 => 1,
            6 => 2,
            _ => 0,
        }
    }

    /// Where the quants begin in a block.
    pub const fn quants_at(&self) -> usize {
        self.scale_bytes() + self.planes() * VECTOR
    }

    /// Bytes of a block.
    pub const fn block_bytes(&self) -> usize {
        self.quants_at() + if self.bits == 8 { 8 * VECTOR } else { 4 * VECTOR }
    }

    /// Where block `b` of a tile begins.
    fn block_at(&self, b: usize) -> usize {
        b * self.block_bytes() + self.header_bytes() * (b / SUPER_BLOCKS + 1)
    }

    /// Where the header of block `b` begins.
    fn header_at(&self, b: usize) -> usize {
        let group = b / SUPER_BLOCKS;
        group * (self.header_bytes() + SUPER_BLOCKS * self.block_bytes())
    }
}

/// The place of the fifth bit of nibble vector `g` in its plane's byte: shifted right `g` times after, for the high
/// nibbles, a shift left by 4, it stands at bit 4.
fn fifth_bit(g: usize, high: bool) -> usize {
    if high { g } else { 4 + g }
}

/// The place of the two upper bits of nibble vector `g` in their plane's byte (plane 0 for low nibbles, 1 for high):
/// vectors 0 and 1 stand at bits 4 and 6, vectors 2 and 3 at bits 0 and 2, a shift left by 4 away.
fn sixth_bits(g: usize) -> usize {
    [4, 6, 0, 2][g]
}

/// A packed matrix `[rows, cols]`.
#[derive(Debug)]
pub struct PackedMatrix {
    pub(crate) format: GgmlType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: Region<u8>,
}

/// Bytes of one tile of 16 rows; more than can be had where the product is beyond `usize`.
pub(crate) fn tile_bytes(format: GgmlType, cols: usize) -> usize {
    match BlockLayout::of(format) {
        Some(layout) => {
            let blocks = cols / BLOCK;
            let headers = (blocks / SUPER_BLOCKS).saturating_mul(layout.header_bytes());
            blocks.saturating_mul(layout.block_bytes()).saturating_add(headers)
        }
        None => (TILE_ROWS * format.block_bytes()).saturating_mul(cols),
    }
}

/// Bytes of a packed matrix, exactly.
pub(crate) fn packed_bytes(format: GgmlType, rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE_ROWS).saturating_mul(tile_bytes(format, cols))
}

impl PackedMatrix {
    /// Packs a matrix, tiles in parallel.
    pub(crate) fn pack(source: &WeightSource<'_>, pool: &ThreadPool) -> Result<Self, DeviceError> {
        source.check(&FORMATS)?;
        let WeightSource { format, rows, cols, bytes } = *source;
        let tile_bytes = tile_bytes(format, cols);
        let tiles = rows.div_ceil(TILE_ROWS);
        let mut data = Region::new("a weight matrix", packed_bytes(format, rows, cols))?;
        let shared = Shared::new(&mut data);
        let row_bytes = cols / format.block_weights() * format.block_bytes();
        pool.run(tiles, |tile| {
            // SAFETY: tiles are disjoint and make up the region.
            let tile_data = unsafe { shared.part(tile * tile_bytes, tile_bytes) };
            for row in 0..TILE_ROWS.min(rows - tile * TILE_ROWS) {
                let row_source = &bytes[(tile * TILE_ROWS + row) * row_bytes..][..row_bytes];
                pack_row(format, row_source, row, tile_data);
            }
        });
        Ok(Self { format, rows, cols, data })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// The tile with rows `16 tile ..`.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        let bytes = tile_bytes(self.format, self.cols);
        &self.data[tile * bytes..][..bytes]
    }

    /// Tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Writes the weights of row `row` to `out`, dequantised by the formula of the format.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        assert_eq!(out.len(), self.cols, "a row of {} weights into {}", self.cols, out.len());
        let (tile, row) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        let Some(layout) = BlockLayout::of(self.format) else {
            let size = self.format.block_bytes();
            for (weight, column) in out.iter_mut().zip(tile.chunks_exact(TILE_ROWS * size)) {
                *weight = float(self.format, &column[row * size..][..size]);
            }
            return;
        };
        for (b, weights) in out.chunks_exact_mut(BLOCK).enumerate() {
            read_block(&layout, tile, b, row, weights);
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The value of a float weight.
fn float(format: GgmlType, bytes: &[u8]) -> f32 {
    match format {
        GgmlType::F32 => f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        GgmlType::F16 => f16::from_ne_bytes([bytes[0], bytes[1]]).to_f32(),
        GgmlType::BF16 => bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f32(),
        other => unreachable!("{other} is no float type"),
    }
}

/// The weights of block `b` of one row.
fn read_block(layout: &BlockLayout, tile: &[u8], b: usize, row: usize, weights: &mut [f32]) {
    let (header, block) = (&tile[layout.header_at(b)..], &tile[layout.block_at(b)..][..layout.block_bytes()]);
    let (planes, quants) = (&block[layout.scale_bytes()..], &block[layout.quants_at()..]);
    let offset = layout.offset_log2.map_or(0.0, |log2| (1 << log2) as f32);
    for (i, weight) in weights.iter_mut().enumerate() {
        let (g, high, byte) = (i / 8, i % 8 >= 4, 4 * row + i % 4);
        let nibble = || quants[g * VECTOR + byte] >> if high { 4 } else { 0 } & 15;
        let q = match layout.bits {
            4 => nibble(),
            5 => nibble() | (planes[byte] >> fifth_bit(g, high) & 1) << 4,
            6 => nibble() | (planes[usize::from(high) * VECTOR + byte] >> sixth_bits(g) & 3) << 4,
            _ => quants[i / 4 * VECTOR + byte],
        };
        let (scale, minimum) = match layout.scales {
            Scales::Block => {
                (half_at(block, 2 * row), if layout.minimums { half_at(block, HALVES + 2 * row) } else { 0.0 })
            }
            Scales::Super => (
                half_at(header, 2 * row) * f32::from(block[row]),
                half_at(header, HALVES + 2 * row) * f32::from(block[TILE_ROWS + row]),
            ),
            Scales::SuperHalves => (half_at(header, 2 * row) * f32::from(block[i / 16 * TILE_ROWS + row] as i8), 0.0),
        };
        *weight = scale * (f32::from(q) - offset);
        if layout.minimums {
            *weight += minimum;
        }
    }
}

/// Packs one row of a file into row `row` of a zeroed tile.
fn pack_row(format: GgmlType, source: &[u8], row: usize, tile: &mut [u8]) {
    let Some(layout) = BlockLayout::of(format) else {
        let size = format.block_bytes();
        for (weight, column) in source.chunks_exact(size).zip(tile.chunks_exact_mut(TILE_ROWS * size)) {
            let to = &mut column[row * size..][..size];
            to.copy_from_slice(weight);
            // Files are little-endian; the kernels load numbers.
            if cfg!(target_endian = "big") {
                to.reverse();
            }
        }
        return;
    };
    for (s, block) in source.chunks_exact(format.block_bytes()).enumerate() {
        match format {
            GgmlType::Q4_0 => pack_scaled(&layout, tile, s, row, &block[..2], |i| nibble(&block[2..], i)),
            GgmlType::Q4_1 => pack_scaled(&layout, tile, s, row, &block[..4], |i| nibble(&block[4..], i)),
            GgmlType::Q5_0 => {
                pack_scaled(&layout, tile, s, row, &block[..2], |i| nibble(&block[6..], i) | bit(&block[2..6], i) << 4);
            }
            GgmlType::Q5_1 => {
                pack_scaled(&layout, tile, s, row, &block[..4], |i| nibble(&block[8..], i) | bit(&block[4..8], i) << 4);
            }
            GgmlType::Q8_0 => pack_scaled(&layout, tile, s, row, &block[..2], |i| block[2 + i] ^ 0x80),
            GgmlType::Q4_K => pack_super(&layout, tile, s, row, block, |sub, i| k_nibble(&block[16..], sub, i)),
            GgmlType::Q5_K => pack_super(&layout, tile, s, row, block, |sub, i| {
                k_nibble(&block[48..], sub, i) | (block[16 + i] >> sub & 1) << 4
            }),
            GgmlType::Q6_K => pack_q6_k(&layout, tile, s, row, block),
            other => unreachable!("{other} has no packed layout"),
        }
    }
}

/// Weight `i` of 16 bytes of nibbles: the low ones are weights 0..16.
fn nibble(field: &[u8], i: usize) -> u8 {
    field[i % 16] >> (i / 16 * 4) & 15
}

/// Bit `i` of a field.
fn bit(field: &[u8], i: usize) -> u8 {
    field[i / 8] >> (i % 8) & 1
}

/// Weight `i` of sub-block `sub` of a Q4_K or Q5_K block: two sub-blocks share 32 bytes.
fn k_nibble(field: &[u8], sub: usize, i: usize) -> u8 {
    field[sub / 2 * 32 + i] >> (sub % 2 * 4) & 15
}

/// Puts the quants of block `b`, given as unsigned numbers.
fn pack_quants(layout: &BlockLayout, tile: &mut [u8], b: usize, row: usize, quant: impl Fn(usize) -> u8) {
    let block = &mut tile[layout.block_at(b)..][..layout.block_bytes()];
    let (planes, quants) = block[layout.scale_bytes()..].split_at_mut(layout.planes() * VECTOR);
    for i in 0..BLOCK {
        let (q, g, high, byte) = (quant(i), i / 8, i % 8 >= 4, 4 * row + i % 4);
        if layout.bits == 8 {
            quants[i / 4 * VECTOR + byte] = q;
            continue;
        }
        quants[g * VECTOR + byte] |= (q & 15) << if high { 4 } else { 0 };
        match layout.bits {
            5 => planes[byte] |= (q >> 4) << fifth_bit(g, high),
            6 => planes[usize::from(high) * VECTOR + byte] |= (q >> 4) << sixth_bits(g),
            _ => (),
        }
    }
}

/// Puts an f16 of the file as the number the kernels load.
fn put_half(to: &mut [u8], at: usize, little_endian: &[u8]) {
    let bits = u16::from_le_bytes([little_endian[0], little_endian[1]]);
    to[at..at + 2].copy_from_slice(&bits.to_ne_bytes());
}

/// A block with an f16 scale and perhaps an f16 minimum.
fn pack_scaled(
    layout: &BlockLayout,
    tile: &mut [u8],
    b: usize,
    row: usize,
    scales: &[u8],
    quant: impl Fn(usize) -> u8,
) {
    let at = layout.block_at(b);
    put_half(tile, at + 2 * row, &scales[..2]);
    if layout.minimums {
        put_half(tile, at + HALVES + 2 * row, &scales[2..4]);
    }
    pack_quants(layout, tile, b, row, quant);
}

/// A Q4_K or Q5_K block.
fn pack_super(
    layout: &BlockLayout,
    tile: &mut [u8],
    s: usize,
    row: usize,
    block: &[u8],
    quant: impl Fn(usize, usize) -> u8,
) {
    let header = layout.header_at(s * SUPER_BLOCKS);
    put_half(tile, header + 2 * row, &block[..2]);
    // Negated, so that the kernels only ever add.
    put_half(tile, header + HALVES + 2 * row, &[block[2], block[3] ^ 0x80]);
    let packed = &block[4..16];
    for sub in 0..SUPER_BLOCKS {
        let b = s * SUPER_BLOCKS + sub;
        let (scale, minimum) = if sub < 4 {
            (packed[sub] & 63, packed[sub + 4] & 63)
        } else {
            (packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4, packed[sub + 4] >> 4 | packed[sub] >> 6 << 4)
        };
        let at = layout.block_at(b);
        tile[at + row] = scale;
        tile[at + TILE_ROWS + row] = minimum;
        pack_quants(layout, tile, b, row, |i| quant(sub, i));
    }
}

fn pack_q6_k(layout: &BlockLayout, tile: &mut [u8], s: usize, row: usize, block: &[u8]) {
    put_half(tile, layout.header_at(s * SUPER_BLOCKS) + 2 * row, &block[208..210]);
    for sub in 0..SUPER_BLOCKS {
        let b = s * SUPER_BLOCKS + sub;
        let at = layout.block_at(b);
        tile[at + row] = block[192 + 2 * sub];
        tile[at + TILE_ROWS + row] = block[192 + 2 * sub + 1];
        let (half, quarter) = (sub / 4, sub % 4);
        pack_quants(layout, tile, b, row, |i| {
            let low = block[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
            low | (block[128 + half * 32 + i] >> (2 * quarter) & 3) << 4
        });
    }
}
