//! The micro-kernel of float matrices: one tile of 16 outputs times a few rows of f32 activations.
//!
//! Per row one sum, inputs in order, whatever the number of rows: the same bits for one row and for many.

use super::lanes::Lanes;
use super::pack::TILE_ROWS;

/// A float type of weights.
pub(crate) trait FloatCodec {
    /// Bytes of a weight.
    const BYTES: usize;
    /// Reads 16 weights.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; 16 weights lie behind `p`.
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F;
}

macro_rules! float_codec {
    ($name:ident, $bytes:literal, $load:ident) => {
        pub(crate) struct $name;
        impl FloatCodec for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Lanes>(p: *const u8) -> S::F {
                // SAFETY: by the trait's contract.
                unsafe { S::$load(p.cast()) }
            }
        }
    };
}
float_codec!(F32, 4, load);
float_codec!(F16, 2, load_f16);
float_codec!(BF16, 2, load_bf16);

/// The dot products of one tile's 16 rows with `R` rows of activations.
///
/// # Safety
/// The processor has the instructions of `S`; `tile` is a packed tile of `C`'s type with `cols` inputs, and each
/// pointer of `x` has `cols` values behind it.
#[inline(always)]
pub(crate) unsafe fn multiply_tile<S: Lanes, C: FloatCodec, const R: usize>(
    tile: *const u8,
    cols: usize,
    x: [*const f32; R],
) -> [S::F; R] {
    // SAFETY: `[input][row]` weights are read up to input `cols`, activations likewise.
    unsafe {
        let mut sums = [S::splat(0.0); R];
        for k in 0..cols {
            let w = C::load::<S>(tile.add(k * TILE_ROWS * C::BYTES));
            for r in 0..R {
                sums[r] = S::fma(w, S::splat(*x[r].add(k)), sums[r]);
            }
        }
        sums
    }
}
