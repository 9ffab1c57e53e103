//! The exponential and the fixed-point probability.
//!
//! A mass is `exp(x)` for `x <= 0` in units of 2^-40, as an integer: the likeliest token has [`ONE`], and what is less
//! likely than 2^-41 of it has none. Integer sums are exact and order-independent, so a nucleus has the same border
//! however it is found. The exponential is our own (the polynomial of Cephes' `expf`, relative error below 3e-7): plain
//! arithmetic that compilers vectorise and that gives the same bits on every machine, which a libm does not promise.

/// The mass of `exp(0)`. A vocabulary of 2^23 tokens still sums within 64 bits.
pub(super) const ONE: u64 = 1 << 40;

/// Below this `exp` is taken as 0: it is the least exponent whose result is a normal number.
const LEAST: f32 = -87.0;

/// `exp(x)` for `x <= 0`. Anything below -87, NaN included, gives about 1.6e-38.
#[inline]
#[must_use]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, so that the product with the integer loses nothing (Cody and Waite).
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.max(LEAST);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let k = rounded - ROUND;
    let r = x - k * LN_2_HIGH - k * LN_2_LOW;
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = p * r + c;
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    (p * r * r + r + 1.0) * f32::from_bits(exponent << 23)
}

/// `exp(x)` for `x <= 0` as a mass, rounded to the nearest unit.
#[inline]
#[must_use]
pub(super) fn mass(x: f32) -> u64 {
    // 2^52 as f64: the sum's low bits are the rounded integer, which vectorises where a saturating cast does not.
    const ROUND: f64 = 4_503_599_627_370_496.0;
    (f64::from(exp(x)) * ONE as f64 + ROUND).to_bits() - ROUND.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_agrees_with_the_library_to_seven_digits() {
        assert_eq!(exp(0.0), 1.0);
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 3e-7, "exp({x}) = {}, want {want}", exp(x));
        }
    }

    #[test]
    fn a_mass_is_the_probability_in_units_of_two_to_the_minus_forty() {
        assert_eq!(mass(0.0), ONE);
        assert!(mass(-std::f32::consts::LN_2).abs_diff(ONE / 2) < 1 << 18);
        assert_eq!(mass(-28.0), (f64::from(exp(-28.0)) * ONE as f64).round() as u64);
        for nothing in [-30.0, -1e9, f32::MIN, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(mass(nothing), 0, "{nothing}");
        }
    }
}
