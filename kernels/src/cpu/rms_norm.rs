//! RMS norm (Zhang and Sennrich, 2019), alone and fused with the addition of a residual.
//!
//! Squares are summed in 16 lanes of f32, then by the lanes' fixed tree: the order depends on the width alone.

use super::isa::Kernel;
use super::lanes::{LANES, Lanes};

/// `out = x / sqrt(mean(x^2) + eps) * weight` for one row.
pub(crate) struct RmsNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f32,
    pub out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        // SAFETY: the instructions are present by the contract of `run`.
        unsafe { norm::<S>(self.x, self.weight, self.eps, self.out) }
    }
}

/// `residual += delta`, then the norm of the residual, for one row.
pub(crate) struct AddRmsNorm<'a> {
    pub residual: &'a mut [f32],
    pub delta: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f32,
    pub out: &'a mut [f32],
}

impl Kernel for AddRmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        assert_eq!(self.residual.len(), self.delta.len(), "a residual and a delta of one width");
        for i in 0..self.residual.len() {
            self.residual[i] += self.delta[i];
        }
        // SAFETY: the instructions are present by the contract of `run`.
        unsafe { norm::<S>(self.residual, self.weight, self.eps, self.out) }
    }
}

/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn norm<S: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = x.len();
    assert!(weight.len() == width && out.len() == width, "norm of {} over rows of {width}", weight.len());
    // SAFETY: `i + n <= width`, the length of all three slices.
    unsafe {
        let mut sum = S::splat(0.0);
        let mut i = 0;
        while i < width {
            let n = LANES.min(width - i);
            let v = if n == LANES { S::load(x.as_ptr().add(i)) } else { S::load_part(x.as_ptr().add(i), n) };
            sum = S::fma(v, v, sum);
            i += n;
        }
        let factor = S::splat(1.0 / (S::reduce_add(sum) / width as f32 + eps).sqrt());
        i = 0;
        while i < width {
            let n = LANES.min(width - i);
            let (from, scale, to) = (x.as_ptr().add(i), weight.as_ptr().add(i), out.as_mut_ptr().add(i));
            if n == LANES {
                S::store(to, S::mul(S::mul(S::load(from), factor), S::load(scale)));
            } else {
                S::store_part(to, S::mul(S::mul(S::load_part(from, n), factor), S::load_part(scale, n)), n);
            }
            i += n;
        }
    }
}
