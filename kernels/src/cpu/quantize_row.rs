//! Activations to 8 bits, 32 at a time, once per row.
//!
//! `q = round(x * 127 / max|x|)`, ties to even; the scale is `max|x| / 127` in f32. The sums that correct weight
//! offsets and carry block minimums are exact. A NaN or infinity in the block makes its scale one, so that it
//! reaches the outputs instead of vanishing. The idea is ggml's Q8_1.

use super::isa::Kernel;
use super::lanes::Lanes;
use super::memory::Plain;

/// Weights and activations in a block.
pub(crate) const BLOCK: usize = 32;

/// Blocks whose largest magnitude is below this are zeros: the factor of smaller ones would not be finite, and no
/// product with a weight would be seen next to any other.
const SMALLEST: f32 = 1e-36;

/// 32 activations.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct QuantBlock {
    /// In `-127..=127`.
    pub quants: [i8; BLOCK],
    /// What one step of `quants` is worth.
    pub scale: f32,
    /// `scale * sum(quants)`.
    pub scaled_sum: f32,
    /// `sum(quants)`, an integer.
    pub sum: f32,
    /// The sum of the first 16.
    pub first_half_sum: f32,
}

// SAFETY: integers and floats without padding, valid when zero, alignment 4.
unsafe impl Plain for QuantBlock {}

/// Quantises rows: `x` is any whole number of blocks, `out` the blocks in the same order.
pub(crate) struct QuantizeBlocks<'a> {
    pub x: &'a [f32],
    pub out: &'a mut [QuantBlock],
}

impl Kernel for QuantizeBlocks<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let (blocks, rest) = self.x.as_chunks::<BLOCK>();
        assert!(
            rest.is_empty() && blocks.len() == self.out.len(),
            "{} values, {} blocks",
            self.x.len(),
            self.out.len()
        );
        for i in 0..blocks.len() {
            // SAFETY: the instructions are present by the contract of `run`.
            self.out[i] = unsafe { quantize::<S>(&blocks[i]) };
        }
    }
}

/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn quantize<S: Lanes>(x: &[f32; BLOCK]) -> QuantBlock {
    // SAFETY: both loads and both stores stay in their 32-element arrays.
    unsafe {
        let (low, high) = (S::load(x.as_ptr()), S::load(x.as_ptr().add(16)));
        let largest = S::reduce_max_i(S::max_i(S::magnitude_bits(low), S::magnitude_bits(high)));
        let largest = f32::from_bits(largest as u32);
        let factor = if largest >= SMALLEST { 127.0 / largest } else { 0.0 };
        let (factor, top, bottom) = (S::splat(factor), S::splat(127.0), S::splat(-127.0));
        // The order of operands turns a NaN into a bound.
        let low = S::to_i32(S::min(S::max(S::mul(low, factor), bottom), top));
        let high = S::to_i32(S::min(S::max(S::mul(high, factor), bottom), top));
        let mut quants = [0; BLOCK];
        S::store_i8(quants.as_mut_ptr(), low);
        S::store_i8(quants.as_mut_ptr().add(16), high);
        let first_half_sum = S::reduce_add_i(low) as f32;
        let sum = first_half_sum + S::reduce_add_i(high) as f32;
        let scale = largest / 127.0;
        QuantBlock { quants, scale, scaled_sum: scale * sum, sum, first_half_sum }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::isa::{Isa, PresentIsa, dispatch};

    fn quantized(isa: Isa, x: &[f32]) -> Vec<QuantBlock> {
        let zero = QuantBlock { quants: [0; BLOCK], scale: 0.0, scaled_sum: 0.0, sum: 0.0, first_half_sum: 0.0 };
        let mut out = vec![zero; x.len() / BLOCK];
        dispatch(PresentIsa::new(isa).unwrap(), QuantizeBlocks { x, out: &mut out });
        out
    }

    proptest! {
        #[test]
        fn a_block_is_its_values_to_half_a_step_on_every_isa(x in prop::collection::vec(-1e3f32..1e3, 64), exponent in -30..30) {
            let x: Vec<f32> = x.iter().map(|v| v * 2f32.powi(exponent)).collect();
            let scalar = quantized(Isa::Scalar, &x);
            for (values, block) in x.chunks(BLOCK).zip(&scalar) {
                let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
                prop_assert_eq!(block.scale, largest / 127.0);
                for (v, q) in values.iter().zip(block.quants) {
                    prop_assert!((v - f32::from(q) * block.scale).abs() <= block.scale * 0.5001);
                }
                prop_assert_eq!(block.sum, block.quants.iter().map(|q| f32::from(*q)).sum::<f32>());
                prop_assert_eq!(block.first_half_sum, block.quants[..16].iter().map(|q| f32::from(*q)).sum::<f32>());
            }
            for isa in Isa::available() {
                prop_assert_eq!(&quantized(isa, &x), &scalar, "{}", isa);
            }
        }
    }

    #[test]
    fn a_block_next_to_nothing_is_nothing() {
        for isa in Isa::available() {
            for largest in [1e-45, 1e-39, f32::MIN_POSITIVE, 0.99 * SMALLEST] {
                let mut x = [0.0; BLOCK];
                x[3] = largest;
                x[30] = -0.5 * largest;
                assert_eq!(quantized(isa, &x)[0].quants, [0; BLOCK], "{isa} {largest:e}");
            }
            let mut x = [0.0; BLOCK];
            x[3] = SMALLEST;
            let block = quantized(isa, &x)[0];
            assert_eq!((block.quants[3], block.sum), (127, 127.0), "{isa}");
        }
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_not_finite_reaches_the_scale() {
        for isa in Isa::available() {
            assert_eq!(quantized(isa, &[0.0; BLOCK])[0].scaled_sum, 0.0);
            for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
                let mut x = [1.0; BLOCK];
                x[20] = bad;
                assert!(!quantized(isa, &x)[0].scale.is_finite(), "{isa} {bad}");
            }
        }
    }
}
