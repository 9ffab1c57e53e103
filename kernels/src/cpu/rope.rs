//! Rotary embedding (Su et al., 2021) with angles computed once per step for all layers.
//!
//! Angles are `position * frequency` rounded to f32, as transformers has them; their cosines and sines are computed in
//! f64 and rounded once.

use super::isa::Kernel;
use super::lanes::Lanes;
use crate::RopeStyle;

/// The angles of one position: `[cos .., sin ..]`, twice as long as `frequencies`.
pub(crate) fn angles(position: u32, frequencies: &[f32], out: &mut [f32]) {
    let (cos, sin) = out.split_at_mut(frequencies.len());
    for ((f, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let angle = f64::from(position as f32 * f);
        (*sin, *cos) = (angle.sin() as f32, angle.cos() as f32);
    }
}

/// Rotates every head of one row.
pub(crate) struct Rope<'a> {
    pub row: &'a mut [f32],
    pub head_dim: usize,
    pub style: RopeStyle,
    /// From [`angles`].
    pub angles: &'a [f32],
}

impl Kernel for Rope<'_> {
    type Output = ();

    // Plain Rust: no operation here is fused, so every instruction set gives the same bits.
    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let n = self.angles.len() / 2;
        let (cos, sin) = self.angles.split_at(n);
        for head in self.row.chunks_exact_mut(self.head_dim) {
            match self.style {
                RopeStyle::Interleaved => {
                    let pairs = &mut head.as_chunks_mut::<2>().0[..n];
                    for i in 0..n {
                        let [a, b] = pairs[i];
                        pairs[i] = [a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]];
                    }
                }
                RopeStyle::HalfSplit => {
                    let (first, second) = head.split_at_mut(n);
                    let second = &mut second[..n];
                    for i in 0..n {
                        let (a, b) = (first[i], second[i]);
                        first[i] = a * cos[i] - b * sin[i];
                        second[i] = b * cos[i] + a * sin[i];
                    }
                }
            }
        }
    }
}
