//! Scans over a row of logits, for samplers: safe, vectorised, the same result on every run.
//!
//! Orders are fixed by the length of the row. NaN is the caller's to exclude.

use super::isa::{Kernel, PresentIsa, dispatch};
use super::lanes::{LANES, Lanes};
use super::vector_exp::exp;

/// The largest value; negative infinity for an empty row.
pub fn largest(logits: &[f32]) -> f32 {
    dispatch(PresentIsa::best(), Largest(logits))
}

/// The index of the first largest value; `None` for an empty row.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let top = largest(logits);
    logits.iter().position(|v| *v == top)
}

/// The sum of `e^((x - shift) * scale)`: with the largest logit as `shift` and the inverse temperature as `scale`, the
/// denominator of a softmax. 16 partial sums, added by a fixed tree.
pub fn exp_sum(logits: &[f32], shift: f32, scale: f32) -> f32 {
    dispatch(PresentIsa::best(), ExpSum { logits, shift, scale })
}

struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) -> f32 {
        let (chunks, rest) = self.0.as_chunks::<LANES>();
        // SAFETY: a chunk holds 16.
        let top = unsafe {
            let mut top = S::splat(f32::NEG_INFINITY);
            for chunk in chunks {
                top = S::max(top, S::load(chunk.as_ptr()));
            }
            S::reduce_max(top)
        };
        let mut largest = top;
        for v in rest {
            largest = largest.max(*v);
        }
        largest
    }
}

struct ExpSum<'a> {
    logits: &'a [f32],
    shift: f32,
    scale: f32,
}

impl Kernel for ExpSum<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) -> f32 {
        let (chunks, rest) = self.logits.as_chunks::<LANES>();
        // SAFETY: a chunk holds 16, the rest its length.
        unsafe {
            let (shift, scale, zero) = (S::splat(self.shift), S::splat(self.scale), S::splat(0.0));
            let mut sum = zero;
            for chunk in chunks {
                sum = S::add(sum, exp::<S>(S::mul(S::sub(S::load(chunk.as_ptr()), shift), scale)));
            }
            let last = exp::<S>(S::mul(S::sub(S::load_part(rest.as_ptr(), rest.len()), shift), scale));
            S::reduce_add(S::add(sum, S::keep_first(last, rest.len(), zero)))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn scans_agree_with_their_naive_forms(logits in prop::collection::vec(-30f32..30.0, 1..200), scale in 0.1f32..2.0) {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(largest(&logits), top);
            prop_assert_eq!(argmax(&logits), logits.iter().position(|v| *v == top));
            let exact: f64 = logits.iter().map(|v| (f64::from(*v - top) * f64::from(scale)).exp()).sum();
            prop_assert!((f64::from(exp_sum(&logits, top, scale)) / exact - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn an_empty_row_has_no_largest() {
        assert_eq!(argmax(&[]), None);
        assert_eq!(largest(&[]), f32::NEG_INFINITY);
        assert_eq!(exp_sum(&[], 0.0, 1.0), 0.0);
    }
}
