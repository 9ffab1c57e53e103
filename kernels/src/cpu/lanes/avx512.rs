//! The lanes as one 512-bit register, bytes multiplied by `vpdpbusd`.
#![allow(unsafe_op_in_unsafe_fn)] // Every function is a step or two of the trait, whose text states the contract.

use std::arch::x86_64::*;

use super::Lanes;
use crate::cpu::isa::Kernel;

/// AVX-512 F, BW, VL, DQ, VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Runs a kernel with these instructions enabled.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL, DQ and VNNI, and what AVX2 code needs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

/// A bit for each of the first `n` lanes.
#[inline(always)]
fn first_mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// Lanes 8..16.
#[inline(always)]
unsafe fn upper(v: __m512) -> __m256 {
    _mm512_extractf32x8_ps::<1>(v)
}

impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    type Part = __m512i;

    const BLOCK_ROWS: usize = 8;
    const FLOAT_ROWS: usize = 8;
    const QUERY_ROWS: usize = 4;
    const SCORE_VECTORS: usize = 2;
    const VALUE_VECTORS: usize = 4;
    const PART_CAPACITY: u32 = i32::MAX as u32;
    const DOT_KEEPS_OFFSET: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        _mm512_maskz_loadu_ps(first_mask(n), p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        _mm512_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize) {
        _mm512_mask_storeu_ps(p, first_mask(n), v);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn round(v: Self::F) -> Self::F {
        _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(v)
    }
    #[inline(always)]
    unsafe fn exp2_integral(n: Self::F) -> Self::F {
        let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
    }
    #[inline(always)]
    unsafe fn keep_first(v: Self::F, n: usize, fill: Self::F) -> Self::F {
        _mm512_mask_mov_ps(fill, first_mask(n), v)
    }
    #[inline(always)]
    unsafe fn reduce_add(v: Self::F) -> f32 {
        let v = _mm256_add_ps(_mm512_castps512_ps256(v), upper(v));
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
    #[inline(always)]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        let v = _mm256_max_ps(_mm512_castps512_ps256(v), upper(v));
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
    #[inline(always)]
    unsafe fn first(v: Self::F) -> f32 {
        _mm512_cvtss_f32(v)
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn max_i(a: Self::I, b: Self::I) -> Self::I {
        _mm512_max_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn reduce_add_i(v: Self::I) -> i32 {
        _mm512_reduce_add_epi32(v)
    }
    #[inline(always)]
    unsafe fn reduce_max_i(v: Self::I) -> i32 {
        _mm512_reduce_max_epi32(v)
    }
    #[inline(always)]
    unsafe fn to_f32(v: Self::I) -> Self::F {
        _mm512_cvtepi32_ps(v)
    }
    #[inline(always)]
    unsafe fn to_i32(v: Self::F) -> Self::I {
        _mm512_cvtps_epi32(v)
    }
    #[inline(always)]
    unsafe fn magnitude_bits(v: Self::F) -> Self::I {
        _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: Self::I) {
        _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v));
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::B {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: Self::B) {
        _mm512_storeu_si512(p.cast(), v);
    }
    #[inline(always)]
    unsafe fn splat_byte(x: u8) -> Self::B {
        _mm512_set1_epi8(x as i8)
    }
    #[inline(always)]
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B {
        _mm512_and_si512(a, b)
    }
    #[inline(always)]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn shift_right<const N: u32>(v: Self::B) -> Self::B {
        _mm512_srli_epi16::<N>(v)
    }
    #[inline(always)]
    unsafe fn shift_left_4(v: Self::B) -> Self::B {
        _mm512_slli_epi16::<4>(v)
    }
    #[inline(always)]
    unsafe fn part_zero() -> Self::Part {
        _mm512_setzero_si512()
    }
    #[inline(always)]
    unsafe fn part_dot(p: Self::Part, w: Self::B, a: *const i8) -> Self::Part {
        _mm512_dpbusd_epi32(p, w, _mm512_set1_epi32(a.cast::<i32>().read_unaligned()))
    }
    #[inline(always)]
    unsafe fn part_sum(p: Self::Part) -> Self::I {
        p
    }
    #[inline(always)]
    unsafe fn dot_offset(sum: Self::I, w: Self::B, a: *const i8) -> Self::I {
        Self::part_dot(sum, w, a)
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}
