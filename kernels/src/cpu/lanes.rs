//! Sixteen lanes: the few vector operations the kernels are written in, once per instruction set.
//!
//! Kernels are generic over [`Lanes`], so every instruction set executes the same operations in the same order; an
//! implementation is a list of one-line functions. Sums across lanes use one fixed tree (halves of 8, 4, 2, 1).

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// One instruction set.
///
/// # Safety
/// Every function needs the instructions of the implementing set. Those that take a pointer read or write the stated
/// number of elements behind it; no alignment is needed. `n` is at most [`LANES`].
pub(crate) trait Lanes: Copy {
    /// 16 f32.
    type F: Copy;
    /// 16 i32.
    type I: Copy;
    /// 64 bytes: 4 for each of 16 lanes.
    type B: Copy;
    /// A running dot product of unsigned and signed bytes, before it is widened to [`Lanes::I`].
    type Part: Copy;

    /// Rows a quantised matrix kernel keeps in registers, a power of two.
    const BLOCK_ROWS: usize;
    /// Rows a float matrix kernel keeps in registers, a power of two.
    const FLOAT_ROWS: usize;
    /// Queries an attention kernel keeps in registers, a power of two.
    const QUERY_ROWS: usize;
    /// Vectors of tokens, one or two, whose scores an attention kernel keeps in registers per query.
    const SCORE_VECTORS: usize;
    /// Vectors of values an attention kernel keeps in registers per query.
    const VALUE_VECTORS: usize;
    /// The largest magnitude a [`Lanes::Part`] element can hold.
    const PART_CAPACITY: u32;
    /// Whether [`Lanes::dot_offset`] returns `sum((w + 128) a)`, to be corrected, or `sum(w a)`.
    const DOT_KEEPS_OFFSET: bool;

    unsafe fn splat(x: f32) -> Self::F;
    /// Reads 16.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Reads `n`, the other lanes are zero.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F;
    /// Writes 16.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Writes the first `n`.
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize);
    /// Reads 16 IEEE halves.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Writes 16 IEEE halves, rounded to nearest even.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    /// Reads 16 bfloat16.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// Reads 16 unsigned bytes.
    unsafe fn load_u8(p: *const u8) -> Self::F;
    /// Reads 16 signed bytes.
    unsafe fn load_i8(p: *const i8) -> Self::F;

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` if one is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` if one is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even; for magnitudes below 2^22.
    unsafe fn round(v: Self::F) -> Self::F;
    /// `2^n` for integral `n` in `-126..=127`.
    unsafe fn exp2_integral(n: Self::F) -> Self::F;
    /// The first `n` lanes of `v`, `fill` in the others.
    unsafe fn keep_first(v: Self::F, n: usize, fill: Self::F) -> Self::F;
    /// The sum of all lanes, by the fixed tree.
    unsafe fn reduce_add(v: Self::F) -> f32;
    unsafe fn reduce_max(v: Self::F) -> f32;
    /// Lane 0.
    unsafe fn first(v: Self::F) -> f32;

    unsafe fn splat_i(x: i32) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn max_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn reduce_add_i(v: Self::I) -> i32;
    unsafe fn reduce_max_i(v: Self::I) -> i32;
    unsafe fn to_f32(v: Self::I) -> Self::F;
    /// To the nearest integer, ties to even; for magnitudes below 2^22.
    unsafe fn to_i32(v: Self::F) -> Self::I;
    /// The bits of `|v|`: ordered as the magnitudes are, with NaN above infinity.
    unsafe fn magnitude_bits(v: Self::F) -> Self::I;
    /// Writes 16 values in `-128..=127` as bytes.
    unsafe fn store_i8(p: *mut i8, v: Self::I);

    /// Reads 64.
    unsafe fn load_bytes(p: *const u8) -> Self::B;
    /// Writes 64.
    unsafe fn store_bytes(p: *mut u8, v: Self::B);
    unsafe fn splat_byte(x: u8) -> Self::B;
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// Shifts right by 1, 2 or 4 bits; what crosses from one byte to its neighbour must be masked off by the caller.
    unsafe fn shift_right<const N: u32>(v: Self::B) -> Self::B;
    /// Shifts left by 4 bits, likewise.
    unsafe fn shift_left_4(v: Self::B) -> Self::B;

    unsafe fn part_zero() -> Self::Part;
    /// Adds to every lane the dot product of its 4 unsigned bytes of `w` with the 4 signed bytes at `a`.
    unsafe fn part_dot(p: Self::Part, w: Self::B, a: *const i8) -> Self::Part;
    unsafe fn part_sum(p: Self::Part) -> Self::I;
    /// Adds to every lane the dot product of its 4 bytes of `w`, which hold `weight + 128`, with the 4 signed bytes
    /// at `a`, themselves in `-127..=127`; see [`Lanes::DOT_KEEPS_OFFSET`].
    unsafe fn dot_offset(sum: Self::I, w: Self::B, a: *const i8) -> Self::I;
    /// Asks for the cache line at `p`, which may be any address.
    unsafe fn prefetch(p: *const u8);
}
