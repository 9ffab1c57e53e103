//! Exact decimals.
//!
//! A ratio is a whole mantissa over a power of ten. It is read from decimal text; a JSON or TOML number, which arrives
//! as a binary float, is taken as its shortest decimal text, which is what the person wrote. Products with a window are
//! formed in integers: in binary floats 2570 * 0.7 is 1798.99..., here it is 1799.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use super::Tokens;

/// Most decimals: `10^19` still fits 64 bits, and a float between 0.01 and 1 has at most 19.
const MOST_DECIMALS: u32 = 19;

/// A decimal number of at least 0, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    /// Without trailing zeros while `decimals > 0`, so that equal values are equal.
    mantissa: u64,
    decimals: u32,
}

/// Text that is no ratio.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a decimal number of at least 0 with at most {MOST_DECIMALS} decimals, like 0.625")]
pub struct RatioError(String);

impl Ratio {
    /// `mantissa / 10^decimals`; at most 19 decimals.
    ///
    /// # Panics
    /// With more decimals than that, at compile time where it is used for a constant.
    #[must_use]
    pub const fn new(mut mantissa: u64, mut decimals: u32) -> Self {
        assert!(decimals <= MOST_DECIMALS, "10^decimals fits 64 bits");
        while decimals > 0 && mantissa.is_multiple_of(10) {
            mantissa /= 10;
            decimals -= 1;
        }
        Self { mantissa, decimals }
    }

    /// Numerator and denominator.
    pub(super) const fn fraction(self) -> (u64, u64) {
        (self.mantissa, 10u64.pow(self.decimals))
    }

    /// `floor(window * self)`, saturating.
    #[must_use]
    pub const fn of(self, window: Tokens) -> Tokens {
        let (mantissa, scale) = self.fraction();
        let product = window.0 as u128 * mantissa as u128 / scale as u128;
        Tokens(if product > u32::MAX as u128 { u32::MAX } else { product as u32 })
    }

    /// Whether it lies strictly between 0 and 1.
    #[must_use]
    pub const fn is_proper(self) -> bool {
        let (mantissa, scale) = self.fraction();
        0 < mantissa && mantissa < scale
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((a, a_scale), (b, b_scale)) = (self.fraction(), other.fraction());
        (u128::from(a) * u128::from(b_scale)).cmp(&(u128::from(b) * u128::from(a_scale)))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for Ratio {
    type Err = RatioError;

    /// Reads digits with an optional point and an optional exponent.
    fn from_str(text: &str) -> Result<Self, RatioError> {
        parse(text).ok_or_else(|| RatioError(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<Ratio> {
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
    if !all_digits || whole.len() + fraction.len() == 0 {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let mut mantissa: u64 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    if mantissa == 0 {
        return Some(Ratio::new(0, 0));
    }
    let mut decimals = i64::try_from(fraction.len()).ok()? - i64::from(exponent);
    while decimals < 0 {
        // Ends by overflow after at most 20 rounds.
        mantissa = mantissa.checked_mul(10)?;
        decimals += 1;
    }
    while decimals > i64::from(MOST_DECIMALS) && mantissa.is_multiple_of(10) {
        mantissa /= 10;
        decimals -= 1;
    }
    let decimals = u32::try_from(decimals).ok().filter(|&d| d <= MOST_DECIMALS)?;
    Some(Ratio::new(mantissa, decimals))
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mantissa, scale) = self.fraction();
        write!(f, "{}", mantissa / scale)?;
        if self.decimals > 0 {
            write!(f, ".{:0width$}", mantissa % scale, width = self.decimals as usize)?;
        }
        Ok(())
    }
}

impl Serialize for Ratio {
    /// The nearest binary float, whose shortest decimal text is the ratio again (up to 15 digits).
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.to_string().parse().map_err(serde::ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_f64(NumberVisitor)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Ratio;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a decimal number like 0.625")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Ratio, E> {
        // Rust prints the shortest decimal text that reads back as the same float.
        value.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ratio, E> {
        Ok(Ratio::new(value, 0))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Ratio, E> {
        value.to_string().parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ratio(text: &str) -> Ratio {
        text.parse().expect("a ratio")
    }

    #[test]
    fn products_are_exact_where_binary_floats_are_off_by_one() {
        assert_eq!((2570.0 * 0.7) as u32, 1798, "the reason for this file");
        assert_eq!(ratio("0.7").of(Tokens(2570)), Tokens(1799));
        for window in 0..200_000u32 {
            assert_eq!(ratio("0.7").of(Tokens(window)).0, window / 10 * 7 + window % 10 * 7 / 10);
        }
    }

    #[test]
    fn decimal_text_is_read_exactly() {
        assert_eq!(ratio("0.7"), Ratio::new(7, 1));
        assert_eq!(ratio(".5"), Ratio::new(5, 1));
        assert_eq!(ratio("5."), Ratio::new(5, 0));
        assert_eq!(ratio("0.70000"), ratio("0.7"));
        assert_eq!(ratio("7e-1"), ratio("0.7"));
        assert_eq!(ratio("0.07E1"), ratio("0.7"));
        assert_eq!(ratio("0.0078125").to_string(), "0.0078125");
        assert_eq!(ratio("0.0000000000000000001").of(Tokens(u32::MAX)), Tokens(0));
        assert_eq!(ratio("100000000000").of(Tokens(u32::MAX)), Tokens(u32::MAX));
    }

    #[test]
    fn text_that_is_no_ratio_is_refused() {
        for text in
            ["", ".", "-0.1", "+0.1", "nan", "inf", "0,7", "0.7.1", "1e", "e5", "1e99", "1e-99", "1e999999999999", " 1"]
        {
            assert!(text.parse::<Ratio>().is_err(), "{text:?}");
        }
        assert!("0.00000000000000000001".parse::<Ratio>().is_err());
        assert!("9".repeat(10_000).parse::<Ratio>().is_err());
        let message = "-0.1".parse::<Ratio>().expect_err("negative").to_string();
        assert_eq!(message, "\"-0.1\" is not a decimal number of at least 0 with at most 19 decimals, like 0.625");
    }

    #[test]
    fn a_json_number_is_taken_as_it_was_written() {
        let read = |text: &str| serde_json::from_str::<Ratio>(text);
        assert_eq!(read("0.7").expect("a ratio"), ratio("0.7"));
        assert_eq!(read("1").expect("a ratio"), ratio("1"));
        for text in ["-0.1", "-1", "\"0.7\"", "true", "null", "[0.7]"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::to_string(&ratio("0.244140625")).expect("json"), "0.244140625");
    }

    proptest! {
        #[test]
        fn reading_never_panics_and_printing_reads_back(text in "[0-9.eE+-]{0,30}") {
            if let Ok(ratio) = text.parse::<Ratio>() {
                prop_assert_eq!(ratio.to_string().parse::<Ratio>(), Ok(ratio));
            }
        }

        #[test]
        fn order_is_the_order_of_the_values(a in 0u64..1000, x in 0u32..19, b in 0u64..1000, y in 0u32..19) {
            let value = |m: u64, d: u32| m as f64 / 10f64.powi(d as i32);
            if (value(a, x) - value(b, y)).abs() > 1e-12 * value(a, x) {
                let want = value(a, x).partial_cmp(&value(b, y)).expect("numbers");
                prop_assert_eq!(Ratio::new(a, x).cmp(&Ratio::new(b, y)), want);
            }
        }
    }
}
