//! The micro-kernel of block-quantised matrices: one tile of 16 outputs times a few rows of 8-bit activations.
//!
//! The row count is a constant of the compiled function, so that every row's sums stay in registers, and changes
//! nothing in what is computed: per row and block, `sum += float(integer dot product - offset) * (weight scale *
//! activation scale)`, then the minimum's share, blocks in order. That is why one row and many rows give the same bits.

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

/// `sums += float(dots) * (scale * activation scale)`.
///
/// # Safety
/// As [`multiply_tile`].
#[inline(always)]
unsafe fn accumulate<S: Lanes, const R: usize>(
    sums: &mut [S::F; R],
    dots: [S::I; R],
    scale: S::F,
    x: [*const QuantBlock; R],
    b: usize,
) {
    // SAFETY: block `b` exists in every row.
    unsafe {
        for r in 0..R {
            let scale = S::mul(scale, S::splat((*x[r].add(b)).scale));
            sums[r] = S::fma(S::to_f32(dots[r]), scale, sums[r]);
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
) -> ([S::I; R], [S::I; R]) {
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
            let nibble = S::splat_byte(0x0f);
            let plane = block.add(layout.scale_bytes());
            let (mut low_bits, mut high_bits) = (nibble, nibble);
            if layout.bits == 5 {
                low_bits = S::load_bytes(plane);
                high_bits = S::shift_left_4(low_bits);
            } else if layout.bits == 6 {
                low_bits = S::load_bytes(plane);
                high_bits = S::load_bytes(plane.add(VECTOR));
            }
            let mut parts = [S::part_zero(); R];
            for g in 0..4 {
                let w = S::load_bytes(quants.add(g * VECTOR));
                let mut low = S::and(w, nibble);
                let mut high = S::and(S::shift_right::<4>(w), nibble);
                if layout.bits == 5 {
                    let mask = S::splat_byte(0x10);
                    low = S::or(low, S::and(low_bits, mask));
                    high = S::or(high, S::and(high_bits, mask));
                    low_bits = S::shift_right::<1>(low_bits);
                    high_bits = S::shift_right::<1>(high_bits);
                } else if layout.bits == 6 {
                    let mask = S::splat_byte(0x30);
                    if g == 2 {
                        low_bits = S::shift_left_4(S::load_bytes(plane));
                        high_bits = S::shift_left_4(S::load_bytes(plane.add(VECTOR)));
                    }
                    low = S::or(low, S::and(low_bits, mask));
                    high = S::or(high, S::and(high_bits, mask));
                    low_bits = S::shift_right::<2>(low_bits);
                    high_bits = S::shift_right::<2>(high_bits);
                }
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
        if let Some(log2) = layout.offset_log2
            && (layout.bits != 8 || S::DOT_KEEPS_OFFSET)
        {
            for r in 0..R {
                let block = &*x[r].add(b);
                let sum = S::splat_i(block.sum);
                let sum = if halves {
                    let first = S::splat_i(block.first_half_sum);
                    first_half[r] = S::sub_i(first_half[r], times::<S>(log2, first));
                    S::sub_i(sum, first)
                } else {
                    sum
                };
                dots[r] = S::sub_i(dots[r], times::<S>(log2, sum));
            }
        }
        if halves { (first_half, dots) } else { (dots, first_half) }
    }
}

/// `v * 2^log2` for the offsets there are.
///
/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn times<S: Lanes>(log2: u32, v: S::I) -> S::I {
    // SAFETY: as the caller.
    unsafe {
        match log2 {
            3 => S::shift_left_i::<3>(v),
            4 => S::shift_left_i::<4>(v),
            5 => S::shift_left_i::<5>(v),
            _ => S::shift_left_i::<7>(v),
        }
    }
}
