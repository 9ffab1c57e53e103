//! GGML blocks to f32, one weight at a time, straight from the block layouts of `ggml-common.h`.
//!
//! Owns the meaning of the bytes; never packs or multiplies. Checked against candle-core, an independent reader.

use half::{bf16, f16};

use crate::{DeviceError, GgmlType, WeightSource};

/// The formats this file reads.
pub const FORMATS: [GgmlType; 11] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

/// The weights `[rows, cols]` of `source` as f32.
///
/// # Errors
/// [`DeviceError::UnsupportedFormat`], [`DeviceError::PartialBlock`] or [`DeviceError::WrongByteCount`].
pub fn dequantize(source: &WeightSource<'_>) -> Result<Vec<f32>, DeviceError> {
    source.check(&FORMATS)?;
    let format = source.format;
    let mut out = Vec::with_capacity(source.rows * source.cols);
    for block in source.bytes.chunks_exact(format.block_bytes()) {
        match format {
            GgmlType::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            GgmlType::F16 => out.push(half_at(block, 0)),
            GgmlType::BF16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            GgmlType::Q4_0 => q4_0(block, &mut out),
            GgmlType::Q4_1 => q4_1(block, &mut out),
            GgmlType::Q5_0 => q5_0(block, &mut out),
            GgmlType::Q5_1 => q5_1(block, &mut out),
            GgmlType::Q8_0 => out.extend(block[2..].iter().map(|&q| half_at(block, 0) * f32::from(q as i8))),
            GgmlType::Q4_K => q4_k(block, &mut out),
            GgmlType::Q5_K => q5_k(block, &mut out),
            GgmlType::Q6_K => q6_k(block, &mut out),
            other => unreachable!("{other} was refused above"),
        }
    }
    Ok(out)
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Weight `i` of a 16-byte nibble field: the low nibbles are weights 0..16, the high ones 16..32.
fn nibble(field: &[u8], i: usize) -> u8 {
    if i < 16 { field[i] & 15 } else { field[i - 16] >> 4 }
}

/// Bit `i` of the 4-byte field that holds the fifth bits, moved to its place.
fn fifth_bit(field: &[u8], i: usize) -> u8 {
    ((field[i / 8] >> (i % 8)) & 1) << 4
}

fn q4_0(block: &[u8], out: &mut Vec<f32>) {
    let d = half_at(block, 0);
    out.extend((0..32).map(|i| d * (f32::from(nibble(&block[2..], i)) - 8.0)));
}

fn q4_1(block: &[u8], out: &mut Vec<f32>) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    out.extend((0..32).map(|i| d * f32::from(nibble(&block[4..], i)) + m));
}

fn q5_0(block: &[u8], out: &mut Vec<f32>) {
    let d = half_at(block, 0);
    out.extend((0..32).map(|i| {
        let q = nibble(&block[6..], i) | fifth_bit(&block[2..6], i);
        d * (f32::from(q) - 16.0)
    }));
}

fn q5_1(block: &[u8], out: &mut Vec<f32>) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    out.extend((0..32).map(|i| {
        let q = nibble(&block[8..], i) | fifth_bit(&block[4..8], i);
        d * f32::from(q) + m
    }));
}

/// The 6-bit scale and 6-bit min of sub-block `j` of a Q4_K or Q5_K block, from its 12 bytes of packed scales.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4), (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let quants = &block[16..144];
    for sub in 0..8 {
        let (scale, min) = scale_and_min(&block[4..16], sub);
        for i in 0..32 {
            let byte = quants[sub / 2 * 32 + i];
            let q = if sub % 2 == 0 { byte & 15 } else { byte >> 4 };
            out.push(d * scale * f32::from(q) - dmin * min);
        }
    }
}

fn q5_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (high, quants) = (&block[16..48], &block[48..176]);
    for sub in 0..8 {
        let (scale, min) = scale_and_min(&block[4..16], sub);
        for i in 0..32 {
            let byte = quants[sub / 2 * 32 + i];
            let low = if sub % 2 == 0 { byte & 15 } else { byte >> 4 };
            let q = low | (((high[i] >> sub) & 1) << 4);
            out.push(d * scale * f32::from(q) - dmin * min);
        }
    }
}

fn q6_k(block: &[u8], out: &mut Vec<f32>) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for i in 0..256 {
        let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
        let byte = low[half * 64 + quarter % 2 * 32 + l];
        let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
        let q = nibble | (((high[half * 32 + l] >> (2 * quarter)) & 3) << 4);
        out.push(d * f32::from(scales[i / 16] as i8) * (f32::from(q) - 32.0));
    }
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{GgmlDType, QStorage, QTensor};
    use candle_core::{Device as CandleDevice, Tensor};
    use proptest::prelude::*;

    use super::*;

    fn candle_type(format: GgmlType) -> GgmlDType {
        match format {
            GgmlType::F32 => GgmlDType::F32,
            GgmlType::F16 => GgmlDType::F16,
            GgmlType::BF16 => GgmlDType::BF16,
            GgmlType::Q4_0 => GgmlDType::Q4_0,
            GgmlType::Q4_1 => GgmlDType::Q4_1,
            GgmlType::Q5_0 => GgmlDType::Q5_0,
            GgmlType::Q5_1 => GgmlDType::Q5_1,
            GgmlType::Q8_0 => GgmlDType::Q8_0,
            GgmlType::Q4_K => GgmlDType::Q4K,
            GgmlType::Q5_K => GgmlDType::Q5K,
            GgmlType::Q6_K => GgmlDType::Q6K,
            other => panic!("{other} has no dequantiser"),
        }
    }

    /// Bytes of random finite values in `format`, quantised by candle, and candle's own reading of them.
    fn candle_reading(format: GgmlType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let tensor = Tensor::from_slice(values, (2, values.len() / 2), &CandleDevice::Cpu).unwrap();
        let quantised = QTensor::quantize(&tensor, candle_type(format)).unwrap();
        let read = quantised.dequantize(&CandleDevice::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        (quantised.data().unwrap().into_owned(), read)
    }

    /// Candle's reading of bytes that no quantiser made, so that every bit of the layout is exercised.
    fn candle_reading_of_bytes(format: GgmlType, bytes: Vec<u8>, cols: usize) -> Vec<f32> {
        let storage =
            QStorage::from_data(std::borrow::Cow::Owned(bytes), &CandleDevice::Cpu, candle_type(format)).unwrap();
        let tensor = QTensor::new(storage, (1, cols)).unwrap();
        tensor.dequantize(&CandleDevice::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    fn assert_close(format: GgmlType, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            let same = (f - e).abs() <= 1e-5 * e.abs().max(1e-3) || (f.is_nan() && e.is_nan()) || f == e;
            assert!(same, "{format} weight {i}: found {f}, candle reads {e}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_format_reads_as_candle_reads_it(values in prop::collection::vec(-4f32..4.0, 512), which in 0..FORMATS.len()) {
            let format = FORMATS[which];
            let (bytes, expected) = candle_reading(format, &values);
            let found = dequantize(&WeightSource { format, rows: 2, cols: 256, bytes: &bytes }).unwrap();
            assert_close(format, &found, &expected);
        }

        #[test]
        fn every_bit_of_a_block_is_read_as_candle_reads_it(mut bytes in prop::collection::vec(any::<u8>(), 288), which in 3..FORMATS.len()) {
            let format = FORMATS[which];
            let cols = format.block_weights();
            bytes.truncate(format.block_bytes());
            // Scales that are infinite or NaN say nothing about the layout.
            let scale_bytes = match format {
                GgmlType::Q6_K => 208..210,
                GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 => 0..2,
                _ => 0..4,
            };
            for high in scale_bytes.skip(1).step_by(2) {
                bytes[high] &= 0xbf;
            }
            let expected = candle_reading_of_bytes(format, bytes.clone(), cols);
            let found = dequantize(&WeightSource { format, rows: 1, cols, bytes: &bytes }).unwrap();
            assert_close(format, &found, &expected);
        }
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_refused_with_both_counts() {
        let bytes = [0; 35];
        let error = dequantize(&WeightSource { format: GgmlType::Q8_0, rows: 1, cols: 32, bytes: &bytes }).unwrap_err();
        assert_eq!(error.to_string(), "a 1 x 32 matrix of type Q8_0 needs 34 bytes, found 35");
        let error = dequantize(&WeightSource { format: GgmlType::Q8_0, rows: 1, cols: 33, bytes: &bytes }).unwrap_err();
        assert!(matches!(error, DeviceError::PartialBlock { cols: 33, block: 32, .. }), "{error}");
        let error =
            dequantize(&WeightSource { format: GgmlType::Q2_K, rows: 1, cols: 256, bytes: &bytes }).unwrap_err();
        assert!(error.to_string().starts_with("no kernel reads weights of type Q2_K"), "{error}");
    }
}
