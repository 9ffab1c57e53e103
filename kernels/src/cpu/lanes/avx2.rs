//! The lanes as pairs of 256-bit registers.
//!
//! Dot products of bytes run through `vpmaddubsw`, whose 16-bit sums hold 8 steps of 4-bit weights, 4 of 5-bit and 2 of
//! 6-bit weights; 8-bit weights move their sign to the activation, so that nothing saturates.
#![allow(unsafe_op_in_unsafe_fn)] // Every function is a step or two of the trait, whose text states the contract.

use std::arch::x86_64::*;

use super::Lanes;
use crate::cpu::isa::Kernel;

/// AVX2, FMA, F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Pair<T>(T, T);

/// Runs a kernel with these instructions enabled.
///
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

#[inline(always)]
unsafe fn lane_ids() -> Pair<__m256i> {
    Pair(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))
}

/// All bits of the first `n` lanes.
#[inline(always)]
unsafe fn first_mask(n: usize) -> Pair<__m256i> {
    let (ids, n) = (lane_ids(), _mm256_set1_epi32(n as i32));
    Pair(_mm256_cmpgt_epi32(n, ids.0), _mm256_cmpgt_epi32(n, ids.1))
}

macro_rules! pairwise {
    ($f:ident, $a:expr, $b:expr) => {
        Pair($f($a.0, $b.0), $f($a.1, $b.1))
    };
    ($f:ident, $a:expr) => {
        Pair($f($a.0), $f($a.1))
    };
}

impl Lanes for Avx2 {
    type F = Pair<__m256>;
    type I = Pair<__m256i>;
    type B = Pair<__m256i>;
    type Part = Pair<__m256i>;

    const BLOCK_ROWS: usize = 4;
    const FLOAT_ROWS: usize = 4;
    const QUERY_ROWS: usize = 4;
    const SCORE_VECTORS: usize = 1;
    const VALUE_VECTORS: usize = 1;
    const PART_CAPACITY: u32 = i16::MAX as u32;
    const DOT_KEEPS_OFFSET: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        let v = _mm256_set1_ps(x);
        Pair(v, v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)))
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        let mask = first_mask(n);
        Pair(_mm256_maskload_ps(p, mask.0), _mm256_maskload_ps(p.wrapping_add(8), mask.1))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        _mm256_storeu_ps(p, v.0);
        _mm256_storeu_ps(p.add(8), v.1);
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize) {
        let mask = first_mask(n);
        _mm256_maskstore_ps(p, mask.0, v.0);
        _mm256_maskstore_ps(p.wrapping_add(8), mask.1, v.1);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        Pair(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
        _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
        Pair(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        let bytes = _mm_loadu_si128(p.cast());
        Self::to_f32(Pair(_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        let bytes = _mm_loadu_si128(p.cast());
        Self::to_f32(Pair(_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))))
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    unsafe fn round(v: Self::F) -> Self::F {
        Pair(
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v.0),
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v.1),
        )
    }
    #[inline(always)]
    unsafe fn exp2_integral(n: Self::F) -> Self::F {
        let (n, bias) = (Self::to_i32(n), _mm256_set1_epi32(127));
        Pair(
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n.0, bias))),
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n.1, bias))),
        )
    }
    #[inline(always)]
    unsafe fn keep_first(v: Self::F, n: usize, fill: Self::F) -> Self::F {
        let mask = first_mask(n);
        Pair(
            _mm256_blendv_ps(fill.0, v.0, _mm256_castsi256_ps(mask.0)),
            _mm256_blendv_ps(fill.1, v.1, _mm256_castsi256_ps(mask.1)),
        )
    }
    #[inline(always)]
    unsafe fn reduce_add(v: Self::F) -> f32 {
        let v = _mm256_add_ps(v.0, v.1);
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
    #[inline(always)]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        let v = _mm256_max_ps(v.0, v.1);
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
    #[inline(always)]
    unsafe fn first(v: Self::F) -> f32 {
        _mm256_cvtss_f32(v.0)
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        let v = _mm256_set1_epi32(x);
        Pair(v, v)
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn max_i(a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_max_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn reduce_add_i(v: Self::I) -> i32 {
        let v = _mm256_add_epi32(v.0, v.1);
        let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
        _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<1>(v)))
    }
    #[inline(always)]
    unsafe fn reduce_max_i(v: Self::I) -> i32 {
        let v = _mm256_max_epi32(v.0, v.1);
        let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
        _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32::<1>(v)))
    }
    #[inline(always)]
    unsafe fn to_f32(v: Self::I) -> Self::F {
        pairwise!(_mm256_cvtepi32_ps, v)
    }
    #[inline(always)]
    unsafe fn to_i32(v: Self::F) -> Self::I {
        pairwise!(_mm256_cvtps_epi32, v)
    }
    #[inline(always)]
    unsafe fn magnitude_bits(v: Self::F) -> Self::I {
        let mask = _mm256_set1_epi32(0x7fff_ffff);
        Pair(_mm256_and_si256(_mm256_castps_si256(v.0), mask), _mm256_and_si256(_mm256_castps_si256(v.1), mask))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: Self::I) {
        // Both packs work on 128-bit halves: the first leaves 0..4, 8..12 | 4..8, 12..16.
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(v.0, v.1));
        let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storeu_si128(p.cast(), bytes);
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::B {
        Pair(_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast()))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: Self::B) {
        _mm256_storeu_si256(p.cast(), v.0);
        _mm256_storeu_si256(p.add(32).cast(), v.1);
    }
    #[inline(always)]
    unsafe fn splat_byte(x: u8) -> Self::B {
        let v = _mm256_set1_epi8(x as i8);
        Pair(v, v)
    }
    #[inline(always)]
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B {
        pairwise!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        pairwise!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    unsafe fn shift_right<const N: u32>(v: Self::B) -> Self::B {
        match N {
            1 => Pair(_mm256_srli_epi16::<1>(v.0), _mm256_srli_epi16::<1>(v.1)),
            2 => Pair(_mm256_srli_epi16::<2>(v.0), _mm256_srli_epi16::<2>(v.1)),
            _ => Pair(_mm256_srli_epi16::<4>(v.0), _mm256_srli_epi16::<4>(v.1)),
        }
    }
    #[inline(always)]
    unsafe fn shift_left_4(v: Self::B) -> Self::B {
        Pair(_mm256_slli_epi16::<4>(v.0), _mm256_slli_epi16::<4>(v.1))
    }
    #[inline(always)]
    unsafe fn part_zero() -> Self::Part {
        Pair(_mm256_setzero_si256(), _mm256_setzero_si256())
    }
    #[inline(always)]
    unsafe fn part_dot(p: Self::Part, w: Self::B, a: *const i8) -> Self::Part {
        let a = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
        Pair(_mm256_add_epi16(p.0, _mm256_maddubs_epi16(w.0, a)), _mm256_add_epi16(p.1, _mm256_maddubs_epi16(w.1, a)))
    }
    #[inline(always)]
    unsafe fn part_sum(p: Self::Part) -> Self::I {
        let ones = _mm256_set1_epi16(1);
        Pair(_mm256_madd_epi16(p.0, ones), _mm256_madd_epi16(p.1, ones))
    }
    #[inline(always)]
    unsafe fn dot_offset(sum: Self::I, w: Self::B, a: *const i8) -> Self::I {
        let (ones, flip) = (_mm256_set1_epi16(1), _mm256_set1_epi8(-128));
        let a = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
        // 128 * 127 * 2 stays below 2^15, so the pairs do not saturate.
        let w = Pair(_mm256_xor_si256(w.0, flip), _mm256_xor_si256(w.1, flip));
        let low = _mm256_maddubs_epi16(_mm256_abs_epi8(w.0), _mm256_sign_epi8(a, w.0));
        let high = _mm256_maddubs_epi16(_mm256_abs_epi8(w.1), _mm256_sign_epi8(a, w.1));
        Pair(
            _mm256_add_epi32(sum.0, _mm256_madd_epi16(low, ones)),
            _mm256_add_epi32(sum.1, _mm256_madd_epi16(high, ones)),
        )
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}
