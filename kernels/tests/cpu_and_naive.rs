//! The CPU device against its naive twin: every op, every format, every instruction set this processor has.

mod support;

use plimsoll_kernels::cpu::{CpuDevice, Isa};
use plimsoll_kernels::naive::{self, NaiveDevice};
use plimsoll_kernels::{
    AttentionShape, BatchLayout, Device, DeviceError, GgmlType, KvLayout, KvType, PAGE_TOKENS, RopeStyle, RowBuffer,
    WeightSource,
};
use proptest::prelude::*;
use support::*;

/// What 8-bit activations may cost: a half step of each block, spread over its products.
fn quantised_tolerance(format: GgmlType, x: &[f32], w: &[f32]) -> f32 {
    let norm = |v: &[f32]| v.iter().map(|v| v * v).sum::<f32>().sqrt();
    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    if format.block_weights() == 1 { 1e-5 * norm(x) * norm(w) } else { largest / 127.0 * norm(w) * 1.5 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn linear_is_the_dequantised_product(seed: u64, rows in 1usize..20, outputs in 1usize..70, which in 0..FORMATS.len()) {
        let mut random = Random::new(seed);
        let format = FORMATS[which];
        let cols = random.cols(format);
        let bytes = random.weights(format, outputs, cols);
        let source = WeightSource { format, rows: outputs, cols, bytes: &bytes };
        let (x, bias) = (random.values(rows * cols), random.values(outputs));
        let w = naive::dequantize(&source).unwrap();
        let expected = naive::ops::matmul(&x, &w, Some(&bias), cols);
        for device in devices() {
            let matrix = device.matrix(&source).unwrap();
            let (input, bias) = (buffer(&device, &x, cols), device.vector(&bias).unwrap());
            let mut out = device.buffer(outputs, rows).unwrap();
            device.linear(&input, &[&matrix], &[Some(&bias)], &mut [&mut out]);
            prop_assert_eq!(out.rows(), rows);
            for (i, (found, expected)) in device.read(&mut out).iter().zip(&expected).enumerate() {
                let (row, column) = (i / outputs, i % outputs);
                let allowed = quantised_tolerance(format, &x[row * cols..][..cols], &w[column * cols..][..cols]) + 1e-5;
                prop_assert!((found - expected).abs() <= allowed, "{device:?} {format} row {row} output {column}: {found}, expected {expected} +- {allowed}");
            }
        }
    }

    #[test]
    fn linear_on_activations_that_8_bits_hold_exactly_is_exact_arithmetic(seed: u64, rows in 1usize..10, outputs in 1usize..40, which in 3..FORMATS.len()) {
        // Activations are whole steps of their block, so that only f32 rounding separates the two devices.
        let mut random = Random::new(seed);
        let format = FORMATS[which];
        let cols = random.cols(format);
        let bytes = random.weights(format, outputs, cols);
        let source = WeightSource { format, rows: outputs, cols, bytes: &bytes };
        let mut x: Vec<f32> = (0..rows * cols).map(|_| (random.below(255) as f32 - 127.0) * 0.015625).collect();
        x.iter_mut().step_by(32).for_each(|v| *v = 127.0 * 0.015625);
        let w = naive::dequantize(&source).unwrap();
        let expected = naive::ops::matmul(&x, &w, None, cols);
        for device in devices() {
            let matrix = device.matrix(&source).unwrap();
            let mut out = device.buffer(outputs, rows).unwrap();
            device.linear(&buffer(&device, &x, cols), &[&matrix], &[None], &mut [&mut out]);
            let size: f32 = (0..cols).map(|k| (x[k] * w[k]).abs()).sum::<f32>() + 1.0;
            assert_close(&format!("{device:?} {format}"), device.read(&mut out), &expected, 2e-4 * size);
        }
    }

    #[test]
    fn embed_reads_every_format_exactly(seed: u64, rows in 1usize..50, which in 0..FORMATS.len()) {
        let mut random = Random::new(seed);
        let format = FORMATS[which];
        let cols = random.cols(format);
        let bytes = random.weights(format, rows, cols);
        let source = WeightSource { format, rows, cols, bytes: &bytes };
        let tokens: Vec<u32> = (0..rows + 3).map(|_| random.below(rows) as u32).collect();
        let expected = naive::ops::gather_rows(&naive::dequantize(&source).unwrap(), cols, &tokens);
        for device in devices() {
            let table = device.matrix(&source).unwrap();
            let mut out = device.buffer(cols, tokens.len()).unwrap();
            device.embed(&table, &tokens, &mut out);
            prop_assert_eq!(device.read(&mut out), &expected, "{}", format);
        }
    }

    #[test]
    fn norms_sums_and_activations_are_their_formulas(seed: u64, rows in 1usize..6, width in 1usize..100) {
        let mut random = Random::new(seed);
        let (x, y, weight) = (random.values(rows * width), random.values(rows * width), random.values(width));
        let sum: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).collect();
        for device in devices() {
            let w = device.vector(&weight).unwrap();
            let (a, b) = (buffer(&device, &x, width), buffer(&device, &y, width));
            let mut out = device.buffer(width, rows).unwrap();
            device.rms_norm(&a, &w, 1e-5, &mut out);
            assert_close("rms_norm", device.read(&mut out), &naive::ops::rms_norm(&x, &weight, 1e-5), 1e-5);
            let mut residual = buffer(&device, &x, width);
            device.add_rms_norm(&mut residual, &b, &w, 1e-5, &mut out);
            prop_assert_eq!(device.read(&mut residual), &sum);
            assert_close("add_rms_norm", device.read(&mut out), &naive::ops::rms_norm(&sum, &weight, 1e-5), 1e-5);
            let mut residual = buffer(&device, &x, width);
            device.add(&mut residual, &b);
            prop_assert_eq!(device.read(&mut residual), &sum);
            device.swiglu(&a, &b, &mut out);
            assert_close("swiglu", device.read(&mut out), &naive::ops::swiglu(&x, &y), 1e-5);
            let rows: Vec<u32> = (0..rows as u32).rev().collect();
            device.gather_rows(&a, &rows, &mut out);
            prop_assert_eq!(device.read(&mut out), naive::ops::gather_rows(&x, width, &rows));
        }
    }

    #[test]
    fn rope_turns_pairs_of_both_styles(seed: u64, rows in 1usize..5, heads in 1usize..4, pairs in 1usize..40, rest in 0usize..20) {
        let mut random = Random::new(seed);
        let head_dim = 2 * pairs + rest;
        let positions: Vec<u32> = (0..rows).map(|_| random.below(30_000) as u32).collect();
        let frequencies: Vec<f32> = (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect();
        let x = random.values(rows * heads * head_dim);
        for device in devices() {
            let f = device.vector(&frequencies).unwrap();
            let mut angles = device.buffer(2 * pairs, rows).unwrap();
            device.rope_angles(&positions, &f, &mut angles);
            let expected_angles = naive::ops::rope_angles(&positions, &frequencies);
            prop_assert_eq!(device.read(&mut angles), &expected_angles);
            for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
                let mut expected = x.clone();
                naive::ops::rope(&mut expected, heads * head_dim, head_dim, style, &expected_angles, pairs);
                let mut found = buffer(&device, &x, heads * head_dim);
                device.rope(&mut found, head_dim, style, &angles);
                assert_close("rope", device.read(&mut found), &expected, 1e-6);
            }
        }
    }

    #[test]
    fn attention_is_softmax_over_the_visible_keys(seed: u64, kv_heads in 1usize..3, group in 1usize..5, head_dim in 1usize..80, f16: bool, long: bool) {
        let mut random = Random::new(seed);
        let kv_type = if f16 { KvType::F16 } else { KvType::F32 };
        let layout = KvLayout { layers: 2, kv_heads, head_dim, kv_type };
        let shape = AttentionShape { heads: kv_heads * group, kv_heads, head_dim, scale: (head_dim as f32).powf(-0.5) };
        let lengths = if long { vec![1100] } else { vec![1 + random.below(70), 1 + random.below(40)] };
        let batch = Batch::whole(&lengths, &mut random);
        let (keys, values) = (random.values(batch.rows() * kv_heads * head_dim), random.values(batch.rows() * kv_heads * head_dim));
        let asked = batch.last_rows(3);
        let queries = random.values(asked.rows() * shape.heads * head_dim);

        let expected = attention_of(&NaiveDevice, layout, shape, &batch, &keys, &values, &asked, &queries);
        for device in devices() {
            let found = attention_of(&device, layout, shape, &batch, &keys, &values, &asked, &queries);
            assert_close(&format!("{device:?} {shape:?}"), &found, &expected, 2e-5);
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn attention_of<D: Device>(
    device: &D,
    layout: KvLayout,
    shape: AttentionShape,
    batch: &Batch,
    keys: &[f32],
    values: &[f32],
    asked: &Batch,
    queries: &[f32],
) -> Vec<f32> {
    let (kv_width, width) = (layout.kv_heads * layout.head_dim, shape.heads * layout.head_dim);
    let mut pages = device.pages(layout, batch.page_count()).unwrap();
    let (k, v) = (buffer(device, keys, kv_width), buffer(device, values, kv_width));
    device.write_kv(&mut pages, 1, &k, &v, &batch.layout());
    let mut out = device.buffer(width, asked.rows()).unwrap();
    device.attend(&pages, 1, &buffer(device, queries, width), shape, &asked.layout(), &mut out);
    device.read(&mut out).to_vec()
}

#[test]
fn both_vector_instruction_sets_give_the_same_bits() {
    let devices: Vec<CpuDevice> =
        [Isa::Avx2, Isa::Avx512Vnni].into_iter().filter(|isa| isa.is_available()).map(|isa| device(1, isa)).collect();
    if devices.len() < 2 {
        eprintln!("skipped: this processor has not both AVX2 and AVX-512 VNNI");
        return;
    }
    let mut random = Random::new(7);
    for format in FORMATS {
        let cols = random.cols(format);
        let bytes = random.weights(format, 40, cols);
        let source = WeightSource { format, rows: 40, cols, bytes: &bytes };
        let x = random.values(11 * cols);
        let results = devices.iter().map(|device| {
            let matrix = device.matrix(&source).unwrap();
            let mut out = device.buffer(40, 11).unwrap();
            device.linear(&buffer(device, &x, cols), &[&matrix], &[None], &mut [&mut out]);
            bits(device.read(&mut out))
        });
        let results: Vec<_> = results.collect();
        assert_eq!(results[0], results[1], "{format}");
    }
    for (kv_type, head_dim) in [(KvType::F16, 64), (KvType::F16, 75), (KvType::F32, 40)] {
        let layout = KvLayout { layers: 2, kv_heads: 2, head_dim, kv_type };
        let shape = AttentionShape { heads: 10, kv_heads: 2, head_dim, scale: 0.1 };
        let batch = Batch::whole(&[600, 45], &mut random);
        let (keys, values) = (random.values(645 * 2 * head_dim), random.values(645 * 2 * head_dim));
        let asked = batch.last_rows(5);
        let queries = random.values(asked.rows() * 10 * head_dim);
        let [a, b] = [0, 1].map(|i| attention_of(&devices[i], layout, shape, &batch, &keys, &values, &asked, &queries));
        assert_eq!(bits(&a), bits(&b), "{kv_type:?} {head_dim}");
    }
    let (x, y, weight) = (random.values(3 * 77), random.values(3 * 77), random.values(77));
    let results = devices.iter().map(|device| {
        let (a, b) = (buffer(device, &x, 77), buffer(device, &y, 77));
        let mut out = device.buffer(77, 3).unwrap();
        device.rms_norm(&a, &device.vector(&weight).unwrap(), 1e-6, &mut out);
        let mut found = bits(device.read(&mut out));
        device.swiglu(&a, &b, &mut out);
        found.extend(bits(device.read(&mut out)));
        found
    });
    let results: Vec<_> = results.collect();
    assert_eq!(results[0], results[1], "row-wise ops");
}

/// Weights at the ends of every format's range, with scales that keep all sums whole numbers below 2^24 (or such
/// numbers times 128).
fn extreme_weights(format: GgmlType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; format.tensor_bytes(rows, cols).unwrap()];
    let row_bytes = bytes.len() / rows;
    for (row, row_data) in bytes.chunks_exact_mut(row_bytes).enumerate() {
        for block in row_data.chunks_exact_mut(format.block_bytes()) {
            for byte in &mut *block {
                *byte = match row % 8 {
                    0 => 0x00,
                    1 => 0xff,
                    // -128 and 127 of Q8_0.
                    2 => 0x80,
                    3 => 0x7f,
                    4 => [0x80, 0x7f][random.below(2)],
                    5 => [0x00, 0xff][random.below(2)],
                    6 => [0x0f, 0xf0][random.below(2)],
                    _ => random.bits() as u8,
                };
            }
            let one = half::f16::ONE.to_le_bytes();
            match format {
                GgmlType::Q4_1 | GgmlType::Q5_1 => block[..4].copy_from_slice(&[one, one].concat()),
                GgmlType::Q4_K | GgmlType::Q5_K => {
                    block[..4].copy_from_slice(&[one, one].concat());
                    // Every scale and minimum is one.
                    block[4..12].fill(1);
                    block[12..16].fill(0x11);
                }
                GgmlType::Q6_K => {
                    block[192..208].fill(if row % 2 == 0 { 0x80 } else { 1 });
                    block[208..].copy_from_slice(&one);
                }
                _ => block[..2].copy_from_slice(&one),
            }
        }
    }
    bytes
}

#[test]
fn the_largest_weights_times_the_largest_activations_are_exact() {
    // 8-bit products summed in 16 bits saturate or wrap where a kernel is careless with its headroom.
    let (outputs, cols) = (40, 512);
    let mut random = Random::new(11);
    let x: Vec<f32> = (0..9 * cols)
        .map(|i| match i / cols {
            0 => 127.0,
            1 => -127.0,
            2 => [127.0, -127.0][i % 2],
            3 => [127.0, -127.0][i / 2 % 2],
            _ => [127.0, -127.0][random.below(2)],
        })
        .collect();
    for format in FORMATS.into_iter().filter(|format| format.block_weights() > 1) {
        let bytes = extreme_weights(format, outputs, cols, &mut random);
        let source = WeightSource { format, rows: outputs, cols, bytes: &bytes };
        let w = naive::dequantize(&source).unwrap();
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
        let expected: Vec<f32> = x.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| dot(x, w) as f32)).collect();
        for device in devices() {
            let matrix = device.matrix(&source).unwrap();
            let mut out = device.buffer(outputs, 9).unwrap();
            device.linear(&buffer(&device, &x, cols), &[&matrix], &[None], &mut [&mut out]);
            for (i, (found, expected)) in device.read(&mut out).iter().zip(&expected).enumerate() {
                assert!(
                    found == expected,
                    "{device:?} {format} row {} output {}: {found}, expected {expected}",
                    i / outputs,
                    i % outputs
                );
            }
        }
    }
}

#[test]
fn a_cache_never_shows_what_lies_beyond_a_position() {
    // Slots beyond the position hold NaN, as a reused page might.
    let layout = KvLayout { layers: 2, kv_heads: 1, head_dim: 24, kv_type: KvType::F16 };
    let shape = AttentionShape { heads: 3, kv_heads: 1, head_dim: 24, scale: 0.2 };
    for device in devices() {
        let mut random = Random::new(3);
        let length = PAGE_TOKENS + 5;
        let batch = Batch::whole(&[2 * PAGE_TOKENS], &mut random);
        let mut rows = vec![f32::NAN; 2 * PAGE_TOKENS * 24];
        let real = random.values(length * 24);
        rows[..real.len()].copy_from_slice(&real);
        let asked = Batch { positions: vec![length as u32 - 1], row_seq: vec![0], ..batch.clone() };
        let queries = random.values(72);
        let found = attention_of(&device, layout, shape, &batch, &rows, &rows, &asked, &queries);
        assert!(found.iter().all(|v| v.is_finite()), "{device:?}: {found:?}");
    }
}

#[test]
fn the_stated_bytes_are_those_held() {
    let device = device(2, Isa::Scalar);
    let mut random = Random::new(1);
    for format in FORMATS {
        for (rows, cols) in [(1, 256), (16, 512), (17, 768), (100, 256)] {
            let bytes = random.weights(format, rows, cols);
            let matrix = device.matrix(&WeightSource { format, rows, cols, bytes: &bytes }).unwrap();
            assert_eq!(device.matrix_bytes(format, rows, cols), matrix.bytes(), "{format} {rows} x {cols}");
            // Whole tiles of K formats keep their 6-bit scales as bytes; all others are as compact as the file.
            let file = format.tensor_bytes(rows.next_multiple_of(16), cols).unwrap();
            assert!(matrix.bytes() <= file + file / 32, "{format}: {} bytes for {file} in the file", matrix.bytes());
        }
    }
    assert_eq!(device.buffer_bytes(10, 7), device.buffer(10, 7).unwrap().bytes());
    let layout = KvLayout { layers: 3, kv_heads: 2, head_dim: 8, kv_type: KvType::F16 };
    assert_eq!(device.pages(layout, 5).unwrap().bytes(), 5 * layout.page_bytes());
}

#[test]
fn what_cannot_be_done_is_an_error_and_not_an_abort() {
    let device = device(1, Isa::Scalar);
    let layout = KvLayout { layers: 100, kv_heads: 8, head_dim: 128, kv_type: KvType::F16 };
    assert!(matches!(device.pages(layout, 1 << 40), Err(DeviceError::OutOfMemory { .. })));
    // Products that are zero in 64 bits.
    for (layers, kv_heads) in [(1 << 60, 1 << 60), (1 << 32, 1 << 32), (usize::MAX, usize::MAX)] {
        let layout = KvLayout { layers, kv_heads, ..layout };
        assert!(matches!(device.pages(layout, 1), Err(DeviceError::OutOfMemory { .. })), "{layout:?}");
    }
    assert!(matches!(device.buffer(1 << 40, 1 << 20), Err(DeviceError::OutOfMemory { .. })));
    let source = WeightSource { format: GgmlType::Q3_K, rows: 1, cols: 256, bytes: &[0; 110] };
    assert!(matches!(device.matrix(&source), Err(DeviceError::UnsupportedFormat { .. })));
    assert!(!device.reads(GgmlType::Q3_K) && device.reads(GgmlType::Q6_K));
}

#[test]
fn broken_invariants_panic_with_the_numbers() {
    let device = device(2, Isa::Scalar);
    let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 4, kv_type: KvType::F32 };
    let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 4, scale: 1.0 };
    let row = buffer(&device, &[1.0; 4], 4);
    let good = BatchLayout { positions: &[0], row_seq: &[0], page_table: &[0], page_start: &[0, 1] };
    let bad = [
        ("page 9 of a store of 1", BatchLayout { page_table: &[9], ..good }),
        ("position 32", BatchLayout { positions: &[32], ..good }),
        ("out of bounds", BatchLayout { row_seq: &[1], ..good }),
    ];
    for (message, batch) in bad {
        let write = panic_of(|| device.write_kv(&mut device.pages(layout, 1).unwrap(), 0, &row, &row, &batch));
        assert!(write.contains(message) || write.contains("out of bounds"), "{write}");
        let mut out = device.buffer(4, 1).unwrap();
        let attend = panic_of(|| device.attend(&device.pages(layout, 1).unwrap(), 0, &row, shape, &batch, &mut out));
        assert!(attend.contains(message) || attend.contains("page Some(9)"), "{attend}");
    }
    let table = device.matrix(&WeightSource { format: GgmlType::F32, rows: 2, cols: 4, bytes: &[0; 32] }).unwrap();
    let mut out = device.buffer(4, 1).unwrap();
    assert_eq!(panic_of(|| device.embed(&table, &[2], &mut out)), "row 2 of a matrix of 2 rows");
    assert_eq!(panic_of(|| device.buffer(4, 1).unwrap().set_rows(2)), "2 rows in a buffer of at most 1");
}
