//! The lanes in plain Rust, for any architecture; the compiler vectorises what it can.
//!
//! No instructions have to be enabled here, so that inlining is left to the compiler.
#![allow(unsafe_op_in_unsafe_fn)] // Every function is one step of the trait, whose text states the contract.

use half::{bf16, f16};

use super::{LANES, Lanes};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

/// A fused multiplication where the architecture always has one; elsewhere it would be a call per element.
#[inline]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c }
}

/// `f` on every lane of two vectors. A plain loop: closures in the SIMD kernels would lose their target features, here
/// there are none to lose.
#[inline]
fn zip<A: Copy, B: Copy, R: Copy + Default>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> R) -> [R; LANES] {
    let mut out = [R::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// The fixed tree of all reductions.
#[inline]
fn reduce<T: Copy>(mut v: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            v[i] = f(v[i], v[i + half]);
        }
        half /= 2;
    }
    v[0]
}

/// 1.5 * 2^23: adding it rounds an f32 below 2^22 to an integer.
const ROUNDER: f32 = 12_582_912.0;

impl Lanes for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 4 * LANES];
    type Part = [i32; LANES];

    const BLOCK_ROWS: usize = 2;
    const FLOAT_ROWS: usize = 2;
    const QUERY_ROWS: usize = 1;
    const SCORE_VECTORS: usize = 2;
    const VALUE_VECTORS: usize = 1;
    const PART_CAPACITY: u32 = i32::MAX as u32;
    const DOT_KEEPS_OFFSET: bool = true;

    #[inline]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline]
    unsafe fn load(p: *const f32) -> Self::F {
        p.cast::<Self::F>().read_unaligned()
    }
    #[inline]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        let mut v = [0.0; LANES];
        p.copy_to_nonoverlapping(v.as_mut_ptr(), n);
        v
    }
    #[inline]
    unsafe fn store(p: *mut f32, v: Self::F) {
        p.cast::<Self::F>().write_unaligned(v);
    }
    #[inline]
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize) {
        p.copy_from_nonoverlapping(v.as_ptr(), n);
    }
    #[inline]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        p.cast::<[u16; LANES]>().read_unaligned().map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        p.cast::<[u16; LANES]>().write_unaligned(v.map(|x| f16::from_f32(x).to_bits()));
    }
    #[inline]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        p.cast::<[u16; LANES]>().read_unaligned().map(|bits| bf16::from_bits(bits).to_f32())
    }
    #[inline]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        p.cast::<[u8; LANES]>().read_unaligned().map(f32::from)
    }
    #[inline]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        p.cast::<[i8; LANES]>().read_unaligned().map(f32::from)
    }
    #[inline]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = c;
        for i in 0..LANES {
            out[i] = multiply_add(a[i], b[i], c[i]);
        }
        out
    }
    #[inline]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline]
    unsafe fn round(v: Self::F) -> Self::F {
        v.map(|x| (x + ROUNDER) - ROUNDER)
    }
    #[inline]
    unsafe fn exp2_integral(n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    #[inline]
    unsafe fn keep_first(v: Self::F, n: usize, fill: Self::F) -> Self::F {
        let mut out = fill;
        out[..n].copy_from_slice(&v[..n]);
        out
    }
    #[inline]
    unsafe fn reduce_add(v: Self::F) -> f32 {
        reduce(v, |a, b| a + b)
    }
    #[inline]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        reduce(v, |a, b| if a > b { a } else { b })
    }
    #[inline]
    unsafe fn first(v: Self::F) -> f32 {
        v[0]
    }
    #[inline]
    unsafe fn splat_i(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline]
    unsafe fn max_i(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::max)
    }
    #[inline]
    unsafe fn reduce_add_i(v: Self::I) -> i32 {
        reduce(v, i32::wrapping_add)
    }
    #[inline]
    unsafe fn reduce_max_i(v: Self::I) -> i32 {
        reduce(v, i32::max)
    }
    #[inline]
    unsafe fn to_f32(v: Self::I) -> Self::F {
        v.map(|x| x as f32)
    }
    #[inline]
    unsafe fn to_i32(v: Self::F) -> Self::I {
        v.map(|x| ((x + ROUNDER) - ROUNDER) as i32)
    }
    #[inline]
    unsafe fn magnitude_bits(v: Self::F) -> Self::I {
        v.map(|x| (x.to_bits() & 0x7fff_ffff) as i32)
    }
    #[inline]
    unsafe fn store_i8(p: *mut i8, v: Self::I) {
        p.cast::<[i8; LANES]>().write_unaligned(v.map(|x| x as i8));
    }
    #[inline]
    unsafe fn load_bytes(p: *const u8) -> Self::B {
        p.cast::<Self::B>().read_unaligned()
    }
    #[inline]
    unsafe fn store_bytes(p: *mut u8, v: Self::B) {
        p.cast::<Self::B>().write_unaligned(v);
    }
    #[inline]
    unsafe fn splat_byte(x: u8) -> Self::B {
        [x; 4 * LANES]
    }
    #[inline]
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B {
        let mut out = a;
        for i in 0..out.len() {
            out[i] &= b[i];
        }
        out
    }
    #[inline]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        let mut out = a;
        for i in 0..out.len() {
            out[i] |= b[i];
        }
        out
    }
    #[inline]
    unsafe fn shift_right<const N: u32>(v: Self::B) -> Self::B {
        v.map(|x| x >> N)
    }
    #[inline]
    unsafe fn shift_left_4(v: Self::B) -> Self::B {
        v.map(|x| x << 4)
    }
    #[inline]
    unsafe fn part_zero() -> Self::Part {
        [0; LANES]
    }
    // A function of its own: inlined eight times per block it would swamp the optimiser.
    #[inline(never)]
    unsafe fn part_dot(p: Self::Part, w: Self::B, a: *const i8) -> Self::Part {
        let a = a.cast::<[i8; 4]>().read_unaligned();
        let mut out = p;
        let a = a.map(i32::from);
        for lane in 0..LANES {
            let products: [i32; 4] = std::array::from_fn(|j| i32::from(w[4 * lane + j]).wrapping_mul(a[j]));
            out[lane] = products.into_iter().fold(out[lane], i32::wrapping_add);
        }
        out
    }
    #[inline]
    unsafe fn part_sum(p: Self::Part) -> Self::I {
        p
    }
    #[inline]
    unsafe fn dot_offset(sum: Self::I, w: Self::B, a: *const i8) -> Self::I {
        Self::part_dot(sum, w, a)
    }
    #[inline]
    unsafe fn prefetch(_p: *const u8) {}
}
