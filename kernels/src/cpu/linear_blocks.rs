//! The micro-kernel of block-quantised matrices: one tile of 16 outputs times a few rows of 8-bit activations.
//!
//! The row count is a constant of the compiled function, so that every row's sums stay in registers, and changes
//! nothing in what is computed: per row and block, `sum += float(integer dot product - offset) * (weight scale *
//! activation scale)`, then the minimum's share, blocks in order. That is why one row and many rows give the same bits.
//!
//! Two ways lead there. A few rows stream the tile through registers ([`multiply_tile`]). More rows share the unpacking:
//! a part of the tile is laid out in the first-level cache as bytes and f32 scales ([`Unpacked`]) and met by all of them.

use std::hint::black_box;

use super::lanes::Lanes;
use super::pack::{BlockLayout, SUPER_BLOCKS, Scales, TILE_ROWS, VECTOR};
use super::quantize_row::QuantBlock;
use crate::GgmlType;

/// A format as a type, so that the kernel is compiled for it.
pub(crate) trait Codec {
    /// How it is packed.
    const LAYOUT: BlockLayout;
}

macro_rules! codecs {
    ($($name:ident),*) => {$(
        #[allow(non_camel_case_types)]
        pub(crate) struct $name;
        impl Codec for $name {
            const LAYOUT: BlockLayout = match BlockLayout::of(GgmlType::$name) {
                Some(layout) => layout,
                None => panic!("a float type has no blocks"),
            };
        }
    )*};
}
codecs!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K);

/// How far ahead of its use a weight is asked for. The hardware prefetcher stops at pages; this does not.
const PREFETCH_BYTES: usize = 4096;

/// Steps of 4 inputs after which an instruction set must widen its sums: `quants * 128 * 2` is what one pair adds.
const fn steps_per_part(capacity: u32, bits: u32) -> usize {
    (capacity / (((1 << bits) - 1) * 256)) as usize
}

/// The dot products of one tile's 16 rows with `R` rows of activations.
///
/// # Safety
/// The processor has the instructions of `S`; `tile` is a packed tile of `C`'s format with `blocks` blocks, and each
/// pointer of `x` has `blocks` blocks behind it.
#[inline(always)]
pub(crate) unsafe fn multiply_tile<S: Lanes, C: Codec, const R: usize>(
    tile: *const u8,
    blocks: usize,
    x: [*const QuantBlock; R],
) -> [S::F; R] {
    // SAFETY: the offsets below are those of the packed layout, for `blocks` blocks.
    unsafe {
        let layout = C::LAYOUT;
        let mut sums = [S::splat(0.0); R];
        let (mut super_scale, mut super_minimum) = (S::splat(0.0), S::splat(0.0));
        let mut at = tile;
        for b in 0..blocks {
            if layout.header_bytes() > 0 && b % SUPER_BLOCKS == 0 {
                super_scale = S::load_f16(at.cast());
                if layout.minimums {
                    super_minimum = S::load_f16(at.add(2 * TILE_ROWS).cast());
                }
                at = at.add(layout.header_bytes());
            }
            let mut line = 0;
            while line < layout.block_bytes() {
                S::prefetch(at.wrapping_add(PREFETCH_BYTES + line));
                line += 64;
            }
            match layout.scales {
                Scales::Block => {
                    let dots = dot_block::<S, C, R>(at, x, b);
                    accumulate::<S, R>(&mut sums, dots.0, S::load_f16(at.cast()), x, b);
                    if layout.minimums {
                        add_minimums::<S, R>(&mut sums, S::load_f16(at.add(2 * TILE_ROWS).cast()), x, b);
                    }
                }
                Scales::Super => {
                    let dots = dot_block::<S, C, R>(at, x, b);
                    accumulate::<S, R>(&mut sums, dots.0, S::mul(super_scale, S::load_u8(at)), x, b);
                    let minimum = S::mul(super_minimum, S::load_u8(at.add(TILE_ROWS)));
                    add_minimums::<S, R>(&mut sums, minimum, x, b);
                }
                Scales::SuperHalves => {
                    let dots = dot_block::<S, C, R>(at, x, b);
                    let scale = S::mul(super_scale, S::load_i8(at.cast()));
                    accumulate::<S, R>(&mut sums, dots.0, scale, x, b);
                    let scale = S::mul(super_scale, S::load_i8(at.add(TILE_ROWS).cast()));
                    accumulate::<S, R>(&mut sums, dots.1, scale, x, b);
                }
            }
            at = at.add(layout.block_bytes());
        }
        sums
    }
}

/// `sums += dots * (scale * activation scale)`.
///
/// # Safety
/// As [`multiply_tile`].
#[inline(always)]
unsafe fn accumulate<S: Lanes, const R: usize>(
    sums: &mut [S::F; R],
    dots: [S::F; R],
    scale: S::F,
    x: [*const QuantBlock; R],
    b: usize,
) {
    // SAFETY: block `b` exists in every row.
    unsafe {
        for r in 0..R {
            let scale = S::mul(scale, S::splat((*x[r].add(b)).scale));
            sums[r] = S::fma(dots[r], scale, sums[r]);
        }
    }
}

/// `sums += minimum * sum of the activations`.
///
/// # Safety
/// As [`multiply_tile`].
#[inline(always)]
unsafe fn add_minimums<S: Lanes, const R: usize>(
    sums: &mut [S::F; R],
    minimum: S::F,
    x: [*const QuantBlock; R],
    b: usize,
) {
    // SAFETY: block `b` exists in every row.
    unsafe {
        for r in 0..R {
            sums[r] = S::fma(minimum, S::splat((*x[r].add(b)).scaled_sum), sums[r]);
        }
    }
}

/// The integer dot products of one block, offsets taken off: of all 32 inputs, or, where the halves have scales of
/// their own, of inputs 0..16 and 16..32.
///
/// # Safety
/// As [`multiply_tile`], `block` being the packed block `b`.
#[inline(always)]
unsafe fn dot_block<S: Lanes, C: Codec, const R: usize>(
    block: *const u8,
    x: [*const QuantBlock; R],
    b: usize,
) -> ([S::F; R], [S::F; R]) {
    // SAFETY: the offsets are those of the packed block; activations are read 4 bytes at a time below 32.
    unsafe {
        let layout = C::LAYOUT;
        let halves = matches!(layout.scales, Scales::SuperHalves);
        let zero = S::splat_i(0);
        let (mut dots, mut first_half) = ([zero; R], [zero; R]);
        let quants = block.add(layout.quants_at());
        if layout.bits == 8 {
            for step in 0..8 {
                let w = S::load_bytes(quants.add(step * VECTOR));
                for r in 0..R {
                    dots[r] = S::dot_offset(dots[r], w, (*x[r].add(b)).quants.as_ptr().add(4 * step));
                }
            }
        } else {
            let steps = steps_per_part(S::PART_CAPACITY, layout.bits);
            let mut unpacker = Unpacker::<S>::new::<C>(block);
            let mut parts = [S::part_zero(); R];
            for g in 0..4 {
                let (low, high) = unpacker.next::<C>(block, g);
                for r in 0..R {
                    let a = (*x[r].add(b)).quants.as_ptr().add(8 * g);
                    parts[r] = S::part_dot(parts[r], low, a);
                    parts[r] = S::part_dot(parts[r], high, a.add(4));
                }
                if (2 * (g + 1)) % steps == 0 || g == 3 || (halves && g == 1) {
                    for r in 0..R {
                        dots[r] = S::add_i(dots[r], S::part_sum(parts[r]));
                    }
                    parts = [S::part_zero(); R];
                }
                if halves && g == 1 {
                    first_half = dots;
                    dots = [zero; R];
                }
            }
        }
        if halves {
            without_offset::<S, C, R>(first_half, dots, x, b)
        } else {
            without_offset::<S, C, R>(dots, dots, x, b)
        }
    }
}

/// The dot products of block `b` as f32, the share of the format's offset taken off: of the whole block, or of its
/// halves where these have scales of their own (else the second result is of no meaning). Exact: all numbers are
/// integers below 2^24.
///
/// # Safety
/// As [`multiply_tile`].
#[inline(always)]
unsafe fn without_offset<S: Lanes, C: Codec, const R: usize>(
    first: [S::I; R],
    second: [S::I; R],
    x: [*const QuantBlock; R],
    b: usize,
) -> ([S::F; R], [S::F; R]) {
    let layout = C::LAYOUT;
    let halves = matches!(layout.scales, Scales::SuperHalves);
    // SAFETY: block `b` exists in every row.
    unsafe {
        let mut out = ([S::splat(0.0); R], [S::splat(0.0); R]);
        for r in 0..R {
            let block = &*x[r].add(b);
            out.0[r] = S::to_f32(first[r]);
            if halves {
                out.1[r] = S::to_f32(second[r]);
            }
            if let Some(log2) = layout.offset_log2
                && (layout.bits != 8 || S::DOT_KEEPS_OFFSET)
            {
                let offset = S::splat(-((1 << log2) as f32));
                if halves {
                    let (sum, first_sum) = (S::splat(block.sum), S::splat(block.first_half_sum));
                    out.0[r] = S::fma(offset, first_sum, out.0[r]);
                    out.1[r] = S::fma(offset, S::sub(sum, first_sum), out.1[r]);
                } else {
                    out.0[r] = S::fma(offset, S::splat(block.sum), out.0[r]);
                }
            }
        }
        out
    }
}

/// Brings the weights of a block of nibbles and planes to bytes, 64 and 64 at a time.
struct Unpacker<S: Lanes> {
    low_bits: S::B,
    high_bits: S::B,
}

impl<S: Lanes> Unpacker<S> {
    /// # Safety
    /// The processor has the instructions of `S`; `block` is a packed block of `C`'s format, of 4 to 6 bits.
    #[inline(always)]
    unsafe fn new<C: Codec>(block: *const u8) -> Self {
        // SAFETY: the planes lie behind the scales.
        unsafe {
            let plane = block.add(C::LAYOUT.scale_bytes());
            let none = S::splat_byte(0);
            match C::LAYOUT.bits {
                5 => {
                    let bits = S::load_bytes(plane);
                    Self { low_bits: bits, high_bits: S::shift_left_4(bits) }
                }
                6 => Self { low_bits: S::load_bytes(plane), high_bits: S::load_bytes(plane.add(VECTOR)) },
                _ => Self { low_bits: none, high_bits: none },
            }
        }
    }

    /// The weights of nibble vector `g`, inputs `8 g ..` and `8 g + 4 ..`; to be called for 0, 1, 2, 3.
    ///
    /// # Safety
    /// As [`Self::new`], with the same block.
    #[inline(always)]
    unsafe fn next<C: Codec>(&mut self, block: *const u8, g: usize) -> (S::B, S::B) {
        // SAFETY: as above.
        unsafe {
            let nibble = S::splat_byte(0x0f);
            let w = S::load_bytes(block.add(C::LAYOUT.quants_at() + g * VECTOR));
            let mut low = S::and(w, nibble);
            let mut high = S::and(S::shift_right::<4>(w), nibble);
            if C::LAYOUT.bits == 5 {
                let mask = S::splat_byte(0x10);
                low = S::or(low, S::and(self.low_bits, mask));
                high = S::or(high, S::and(self.high_bits, mask));
                self.low_bits = S::shift_right::<1>(self.low_bits);
                self.high_bits = S::shift_right::<1>(self.high_bits);
            } else if C::LAYOUT.bits == 6 {
                let mask = S::splat_byte(0x30);
                if g == 2 {
                    let plane = block.add(C::LAYOUT.scale_bytes());
                    self.low_bits = S::shift_left_4(S::load_bytes(plane));
                    self.high_bits = S::shift_left_4(S::load_bytes(plane.add(VECTOR)));
                }
                low = S::or(low, S::and(self.low_bits, mask));
                high = S::or(high, S::and(self.high_bits, mask));
                self.low_bits = S::shift_right::<2>(self.low_bits);
                self.high_bits = S::shift_right::<2>(self.high_bits);
            }
            (low, high)
        }
    }
}

/// Steps of 4 inputs in a block.
const STEPS: usize = 8;

/// Up to [`SUPER_BLOCKS`] blocks of a tile of 4 to 6 bits, ready to be multiplied: 6 KiB that stay in the first-level cache.
#[repr(C, align(64))]
pub(crate) struct Unpacked {
    /// One byte per weight, `[step][row][4]`.
    quants: [[u8; STEPS * VECTOR]; SUPER_BLOCKS],
    /// Scales of the block, or of its halves.
    scales: [[[f32; TILE_ROWS]; 2]; SUPER_BLOCKS],
    minimums: [[f32; TILE_ROWS]; SUPER_BLOCKS],
}

impl Unpacked {
    /// Zeros.
    pub const EMPTY: Self = Self {
        quants: [[0; STEPS * VECTOR]; SUPER_BLOCKS],
        scales: [[[0.0; TILE_ROWS]; 2]; SUPER_BLOCKS],
        minimums: [[0.0; TILE_ROWS]; SUPER_BLOCKS],
    };

    /// Unpacks the first `blocks` blocks, at most [`SUPER_BLOCKS`], behind `at` and its header. Returns what follows.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; a header, where the format has one, and `blocks` packed blocks of
    /// `C`'s format lie behind `at`.
    #[inline(always)]
    pub unsafe fn fill<S: Lanes, C: Codec>(&mut self, mut at: *const u8, blocks: usize) -> *const u8 {
        let layout = C::LAYOUT;
        // SAFETY: the offsets are those of the packed layout; each store fills an array of its size.
        unsafe {
            let (mut super_scale, mut super_minimum) = (S::splat(0.0), S::splat(0.0));
            if layout.header_bytes() > 0 {
                super_scale = S::load_f16(at.cast());
                if layout.minimums {
                    super_minimum = S::load_f16(at.add(2 * TILE_ROWS).cast());
                }
                at = at.add(layout.header_bytes());
            }
            for b in 0..blocks {
                let mut line = 0;
                while line < layout.block_bytes() {
                    S::prefetch(at.wrapping_add(PREFETCH_BYTES + line));
                    line += 64;
                }
                let scales = &mut self.scales[b];
                let minimum = match layout.scales {
                    Scales::Block => {
                        S::store(scales[0].as_mut_ptr(), S::load_f16(at.cast()));
                        if layout.minimums { S::load_f16(at.add(2 * TILE_ROWS).cast()) } else { S::splat(0.0) }
                    }
                    Scales::Super => {
                        S::store(scales[0].as_mut_ptr(), S::mul(super_scale, S::load_u8(at)));
                        S::mul(super_minimum, S::load_u8(at.add(TILE_ROWS)))
                    }
                    Scales::SuperHalves => {
                        S::store(scales[0].as_mut_ptr(), S::mul(super_scale, S::load_i8(at.cast())));
                        let second = S::load_i8(at.add(TILE_ROWS).cast());
                        S::store(scales[1].as_mut_ptr(), S::mul(super_scale, second));
                        S::splat(0.0)
                    }
                };
                if layout.minimums {
                    S::store(self.minimums[b].as_mut_ptr(), minimum);
                }
                let quants = self.quants[b].as_mut_ptr();
                let mut unpacker = Unpacker::<S>::new::<C>(at);
                for g in 0..4 {
                    let (low, high) = unpacker.next::<C>(at, g);
                    S::store_bytes(quants.add(2 * g * VECTOR), low);
                    S::store_bytes(quants.add((2 * g + 1) * VECTOR), high);
                }
                at = at.add(layout.block_bytes());
            }
            at
        }
    }

    /// Adds the dot products of the first `blocks` blocks with `R` rows to `sums`, as [`multiply_tile`] would.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; `self` was filled with `blocks` blocks of `C`'s format, and each
    /// pointer of `x` has as many behind it.
    #[inline(always)]
    pub unsafe fn multiply<S: Lanes, C: Codec, const R: usize>(
        &self,
        blocks: usize,
        x: [*const QuantBlock; R],
        sums: &mut [[f32; TILE_ROWS]; R],
    ) {
        // SAFETY: arrays of 16 are read and written as vectors.
        unsafe {
            let mut total = [S::splat(0.0); R];
            for r in 0..R {
                total[r] = S::load(sums[r].as_ptr());
            }
            let rolled = if C::LAYOUT.bits < 6 { Rolled::new() } else { Rolled { two: 2, four: 4 } };
            for b in 0..blocks {
                let dots = dot_unpacked::<S, C, R>(&self.quants[b], x, b, rolled);
                let [first, second] = &self.scales[b];
                accumulate::<S, R>(&mut total, dots.0, S::load(first.as_ptr()), x, b);
                if matches!(C::LAYOUT.scales, Scales::SuperHalves) {
                    accumulate::<S, R>(&mut total, dots.1, S::load(second.as_ptr()), x, b);
                }
                if C::LAYOUT.minimums {
                    add_minimums::<S, R>(&mut total, S::load(self.minimums[b].as_ptr()), x, b);
                }
            }
            for r in 0..R {
                S::store(sums[r].as_mut_ptr(), total[r]);
            }
        }
    }
}

/// As [`dot_block`], of an unpacked block.
///
/// # Safety
/// As [`multiply_tile`], `quants` being those of block `b`.
#[inline(always)]
unsafe fn dot_unpacked<S: Lanes, C: Codec, const R: usize>(
    quants: &[u8; STEPS * VECTOR],
    x: [*const QuantBlock; R],
    b: usize,
    rolled: Rolled,
) -> ([S::F; R], [S::F; R]) {
    let layout = C::LAYOUT;
    let halves = matches!(layout.scales, Scales::SuperHalves);
    let sections = if halves { 2 } else { 1 };
    let steps = steps_per_part(S::PART_CAPACITY, layout.bits);
    let steps = if steps < STEPS / sections { steps } else { STEPS / sections };
    // SAFETY: the loops make `STEPS` steps, so that 64 bytes of weights and 4 activations lie behind the pointers.
    unsafe {
        let mut dots = [[S::splat_i(0); R]; 2];
        let mut step = 0;
        for section in 0..sections {
            for _ in 0..rolled.count(STEPS / sections / steps) {
                let mut parts = [S::part_zero(); R];
                for _ in 0..rolled.count(steps / 2) {
                    for s in 0..2 {
                        let w = S::load_bytes(quants.as_ptr().add((step + s) * VECTOR));
                        for r in 0..R {
                            let a = (*x[r].add(b)).quants.as_ptr().add(4 * (step + s));
                            parts[r] = S::part_dot(parts[r], w, a);
                        }
                    }
                    step += 2;
                }
                for r in 0..R {
                    dots[section][r] = S::add_i(dots[section][r], S::part_sum(parts[r]));
                }
            }
        }
        without_offset::<S, C, R>(dots[0], dots[1], x, b)
    }
}

/// Trip counts that the compiler does not know. It would unroll these loops and then, to save registers, go through the
/// block row by row, loading every weight once per row.
#[derive(Clone, Copy)]
struct Rolled {
    two: usize,
    four: usize,
}

impl Rolled {
    fn new() -> Self {
        Self { two: black_box(2), four: black_box(4) }
    }

    #[inline(always)]
    fn count(self, n: usize) -> usize {
        match n {
            2 => self.two,
            4 => self.four,
            other => other,
        }
    }
}
