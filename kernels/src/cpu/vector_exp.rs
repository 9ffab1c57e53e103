//! `e^x` on 16 lanes.
//!
//! `x = n ln 2 + r` with `|r| <= ln 2 / 2`, `ln 2` in two parts, and Cephes' polynomial of degree 7 for `e^r`. The
//! relative error is at most [`MAX_RELATIVE_ERROR`] for results in the range of normal f32. Arguments beyond
//! [`LOWEST`]..=[`HIGHEST`] are moved there: the result is never infinite and never zero. NaN stays NaN.

use super::lanes::Lanes;

/// Two units in the last place, tested over the whole range.
#[cfg(test)]
pub(crate) const MAX_RELATIVE_ERROR: f64 = 2.4e-7;

/// About `ln` of the smallest normal f32.
pub(crate) const LOWEST: f32 = -87.336_54;
/// Below `ln` of `2^127.5`, so that the power of two stays finite.
pub(crate) const HIGHEST: f32 = 88.02;

/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
#[allow(clippy::excessive_precision)] // Cephes' digits.
pub(crate) unsafe fn exp<S: Lanes>(x: S::F) -> S::F {
    // SAFETY: by the contract; `round(x / ln 2)` is in -126..=127 for the clamped range.
    unsafe {
        // The order of operands lets a NaN through.
        let x = S::min(S::splat(HIGHEST), S::max(S::splat(LOWEST), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-0.693_359_375), x);
        let r = S::fma(n, S::splat(2.121_944_40e-4), r);
        let mut p = S::splat(1.987_569_150e-4);
        p = S::fma(p, r, S::splat(1.398_199_950e-3));
        p = S::fma(p, r, S::splat(8.333_451_907e-3));
        p = S::fma(p, r, S::splat(4.166_579_589e-2));
        p = S::fma(p, r, S::splat(1.666_666_546e-1));
        p = S::fma(p, r, S::splat(5.000_000_120e-1));
        let p = S::add(S::fma(S::mul(r, r), p, r), S::splat(1.0));
        S::mul(p, S::exp2_integral(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::{Isa, Kernel, PresentIsa, dispatch};

    struct Exps<'a>(&'a mut [f32; 16]);

    impl Kernel for Exps<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Lanes>(self) {
            // SAFETY: the array holds 16.
            unsafe { S::store(self.0.as_mut_ptr(), exp::<S>(S::load(self.0.as_ptr()))) }
        }
    }

    #[test]
    fn the_error_stays_below_its_bound_over_the_whole_range() {
        for isa in Isa::available() {
            let isa = PresentIsa::new(isa).unwrap();
            let mut worst = 0f64;
            let count = 400_000;
            for i in (0..count).step_by(16) {
                let x: [f32; 16] =
                    std::array::from_fn(|j| LOWEST + (HIGHEST - LOWEST) * ((i + j) as f32 / count as f32));
                let mut y = x;
                dispatch(isa, Exps(&mut y));
                for (x, y) in x.iter().zip(y) {
                    let exact = f64::from(*x).exp();
                    worst = worst.max((f64::from(y) / exact - 1.0).abs());
                }
            }
            assert!(worst < MAX_RELATIVE_ERROR, "{:?}: relative error {worst:e}", isa);
        }
    }

    #[test]
    fn the_ends_stay_finite_and_one_is_exact() {
        for isa in Isa::available() {
            let mut x = [0.0; 16];
            x[1] = f32::NEG_INFINITY;
            x[2] = f32::INFINITY;
            x[3] = -1e30;
            x[4] = f32::NAN;
            dispatch(PresentIsa::new(isa).unwrap(), Exps(&mut x));
            assert_eq!(x[0], 1.0);
            assert!(x[4].is_nan());
            assert!(x[1] > 0.0 && x[1] < 1.3e-38 && x[3] == x[1] && x[2] > 1e38 && x[2].is_finite(), "{isa}: {x:?}");
        }
    }
}
