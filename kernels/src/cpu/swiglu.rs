//! `silu(gate) * up` = `gate / (1 + e^-gate) * up`, with the error of [`super::vector_exp`] plus two roundings.

use super::isa::Kernel;
use super::lanes::{LANES, Lanes};
use super::vector_exp::exp;

/// All slices of one length.
pub(crate) struct Swiglu<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub out: &'a mut [f32],
}

impl Kernel for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let Self { gate, up, out } = self;
        assert!(gate.len() == up.len() && gate.len() == out.len(), "{} gates, {} ups", gate.len(), up.len());
        let mut i = 0;
        while i < gate.len() {
            let n = LANES.min(gate.len() - i);
            // SAFETY: the slices have one length, and `i + n` does not exceed it.
            unsafe {
                let (g, u) = (load::<S>(&gate[i..], n), load::<S>(&up[i..], n));
                let one = S::splat(1.0);
                let y = S::mul(S::div(g, S::add(one, exp::<S>(S::sub(S::splat(0.0), g)))), u);
                let to = out[i..].as_mut_ptr();
                if n == LANES { S::store(to, y) } else { S::store_part(to, y, n) }
            }
            i += n;
        }
    }
}

/// The first `n` of a slice that has them.
///
/// # Safety
/// The processor has the instructions of `S`, and `n <= x.len()`.
#[inline(always)]
unsafe fn load<S: Lanes>(x: &[f32], n: usize) -> S::F {
    // SAFETY: by the contract.
    unsafe { if n == LANES { S::load(x.as_ptr()) } else { S::load_part(x.as_ptr(), n) } }
}
