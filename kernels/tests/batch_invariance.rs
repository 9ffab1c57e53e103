//! The promise that the engine's caches stand on: a row's bits depend on that row alone.
//!
//! Every op that could break it is run over the same rows in many cuts, orders and thread counts, on every instruction
//! set this processor has, and compared bit by bit.

mod support;

use plimsoll_kernels::cpu::{CpuDevice, Isa};
use plimsoll_kernels::{AttentionShape, Device, KvLayout, KvType, WeightSource};
use proptest::prelude::*;
use support::*;

/// One device per instruction set and thread count, instruction sets apart.
fn families() -> Vec<Vec<CpuDevice>> {
    Isa::available().map(|isa| (1..=3).map(|threads| device(threads, isa)).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_row_of_a_product_has_the_same_bits_in_any_batch_order_and_thread_count(
        seed: u64, rows in 1usize..30, outputs in 1usize..100, which in 0..FORMATS.len()
    ) {
        let mut random = Random::new(seed);
        let format = FORMATS[which];
        let cols = random.cols(format);
        let bytes = random.weights(format, outputs, cols);
        let source = WeightSource { format, rows: outputs, cols, bytes: &bytes };
        let x = random.values(rows * cols);
        for family in families() {
            let mut expected: Option<Vec<u32>> = None;
            for device in family {
                let matrix = device.matrix(&source).unwrap();
                let product = |x: &[f32]| {
                    let mut out = device.buffer(outputs, x.len() / cols).unwrap();
                    device.linear(&buffer(&device, x, cols), &[&matrix], &[None], &mut [&mut out]);
                    bits(device.read(&mut out))
                };
                let whole = product(&x);
                let expected = &*expected.get_or_insert(whole.clone());
                prop_assert_eq!(&whole, expected, "{:?} {}: threads", device, format);
                for cut in cuts(rows, &mut random) {
                    let parts: Vec<u32> = cut.into_iter().flat_map(|r| product(&x[r.start * cols..r.end * cols])).collect();
                    prop_assert_eq!(&parts, expected, "{:?} {}: cuts", device, format);
                }
                let order = random.permutation(rows);
                let shuffled: Vec<f32> = order.iter().flat_map(|&r| x[r * cols..][..cols].to_vec()).collect();
                let found = product(&shuffled);
                for (place, &row) in order.iter().enumerate() {
                    prop_assert_eq!(&found[place * outputs..][..outputs], &expected[row * outputs..][..outputs], "{}: order", format);
                }
            }
        }
    }

    #[test]
    fn prefill_in_one_pass_in_uneven_chunks_and_step_by_step_gives_the_same_bytes(
        seed: u64, kv_heads in 1usize..4, group in 1usize..6, head_dim in 1usize..70, f16: bool, length in 1usize..150
    ) {
        attention_in_cuts(seed, kv_heads, group, head_dim, f16, length)?;
    }
}

#[test]
fn prefill_across_spans_gives_the_same_bytes_in_any_cut() {
    for (seed, (kv_heads, group, head_dim)) in [(1, 2, 20), (2, 3, 32), (1, 40, 16)].into_iter().enumerate() {
        attention_in_cuts(seed as u64, kv_heads, group, head_dim, seed % 2 == 0, 1100).unwrap();
    }
}

/// Attention over one long sequence and a short neighbour, in many cuts, with any number of threads.
fn attention_in_cuts(
    seed: u64,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    f16: bool,
    length: usize,
) -> Result<(), TestCaseError> {
    let mut random = Random::new(seed);
    let kv_type = if f16 { KvType::F16 } else { KvType::F32 };
    let layout = KvLayout { layers: 1, kv_heads, head_dim, kv_type };
    let shape = AttentionShape { heads: kv_heads * group, kv_heads, head_dim, scale: (head_dim as f32).powf(-0.5) };
    let batch = Batch::whole(&[1 + length / 30, length], &mut random);
    let (kv_width, width, rows) = (kv_heads * head_dim, shape.heads * head_dim, batch.rows());
    let (keys, values, queries) =
        (random.values(rows * kv_width), random.values(rows * kv_width), random.values(rows * width));
    for family in families() {
        let mut expected: Option<Vec<u32>> = None;
        for device in family {
            // Plain Rust is too slow for all of this; its order of operations is the same code.
            if length > 150 && device.isa() == Isa::Scalar && (group > 2 || device.threads() > 2) {
                continue;
            }
            let mut ways = vec![vec![0..rows]];
            // Step by step over a long sequence is quadratic: there the last steps have to do.
            let steps_from = rows.saturating_sub(150);
            ways.push((0..steps_from).step_by(400).map(|r| r..steps_from.min(r + 400)).collect());
            ways[1].extend((steps_from..rows).map(|r| r..r + 1));
            ways.extend(cuts(rows, &mut random).into_iter().filter(|cut| cut.len() < 150));
            for cut in ways {
                let mut pages = device.pages(layout, batch.page_count()).unwrap();
                let mut found = Vec::new();
                for range in &cut {
                    let part = batch.rows_of(range.clone());
                    let rows_of = |x: &[f32], w: usize| buffer(&device, &x[range.start * w..range.end * w], w);
                    device.write_kv(
                        &mut pages,
                        0,
                        &rows_of(&keys, kv_width),
                        &rows_of(&values, kv_width),
                        &part.layout(),
                    );
                    let mut out = device.buffer(width, range.len()).unwrap();
                    device.attend(&pages, 0, &rows_of(&queries, width), shape, &part.layout(), &mut out);
                    found.extend(bits(device.read(&mut out)));
                }
                let expected = &*expected.get_or_insert(found.clone());
                prop_assert!(&found == expected, "{device:?} {shape:?}: {} chunks give other bits", cut.len());
            }
        }
    }
    Ok(())
}

#[test]
fn row_wise_ops_have_the_same_bits_with_any_number_of_threads() {
    // Wide enough to be spread over threads.
    let (rows, width) = (37, 2000);
    for family in families() {
        let mut expected = None;
        for device in family {
            let mut random = Random::new(5);
            let (x, y) = (random.values(rows * width), random.values(rows * width));
            let weight = device.vector(&random.values(width)).unwrap();
            let (mut a, b) = (buffer(&device, &x, width), buffer(&device, &y, width));
            let mut out = device.buffer(width, rows).unwrap();
            let mut found = Vec::new();
            device.rms_norm(&a, &weight, 1e-6, &mut out);
            found.extend(bits(device.read(&mut out)));
            device.swiglu(&a, &b, &mut out);
            found.extend(bits(device.read(&mut out)));
            device.add_rms_norm(&mut a, &b, &weight, 1e-6, &mut out);
            found.extend(bits(device.read(&mut out)));
            found.extend(bits(device.read(&mut a)));
            assert!(found == *expected.get_or_insert(found.clone()), "{device:?}");
        }
    }
}
