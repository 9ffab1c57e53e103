//! Random weights, rows and batches for the tests of devices.
#![allow(dead_code)] // Each test binary uses its part.

use std::num::NonZeroUsize;
use std::ops::Range;

use half::f16;
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions, Isa};
use plimsoll_kernels::{BatchLayout, Device, GgmlType, PAGE_TOKENS, RowBuffer};

/// Float types first.
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

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// In `-2..2`.
    pub fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 22) as f32 - 2.0
    }

    pub fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }

    /// A width that `format` allows; for float types any.
    pub fn cols(&mut self, format: GgmlType) -> usize {
        match format.block_weights() {
            1 => 1 + self.below(300),
            block => block * (1 + self.below(1280 / block)),
        }
    }

    /// A matrix whose quants are random bits and whose scales are of ordinary size.
    pub fn weights(&mut self, format: GgmlType, rows: usize, cols: usize) -> Vec<u8> {
        let mut bytes = vec![0; format.tensor_bytes(rows, cols).unwrap()];
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            for byte in &mut *block {
                *byte = self.bits() as u8;
            }
            let mut half = |at: usize, value: f32| {
                block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
            };
            match format {
                GgmlType::F32 => block.copy_from_slice(&self.value().to_le_bytes()),
                GgmlType::F16 => half(0, self.value()),
                GgmlType::BF16 => block.copy_from_slice(&half::bf16::from_f32(self.value()).to_le_bytes()),
                GgmlType::Q4_0 | GgmlType::Q5_0 => half(0, self.value() * 0.05),
                GgmlType::Q8_0 => half(0, self.value() * 0.005),
                GgmlType::Q4_1 | GgmlType::Q5_1 => {
                    half(0, self.value() * 0.05);
                    half(2, self.value() * 0.5);
                }
                GgmlType::Q4_K | GgmlType::Q5_K => {
                    half(0, self.value() * 0.001);
                    half(2, self.value() * 0.01);
                }
                GgmlType::Q6_K => half(208, self.value() * 0.0005),
                other => panic!("no random weights of type {other}"),
            }
        }
        bytes
    }
}

/// A device with this many threads and these instructions.
pub fn device(threads: usize, isa: Isa) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(isa) }).unwrap()
}

/// A device of two threads for every instruction set of this processor.
pub fn devices() -> Vec<CpuDevice> {
    Isa::available().map(|isa| device(2, isa)).collect()
}

/// A buffer that holds `values`, brought in through the one op that writes what it is given: a table of f32.
pub fn buffer<D: Device>(device: &D, values: &[f32], width: usize) -> D::Buffer {
    let rows = values.len() / width;
    let mut out = device.buffer(width, rows).unwrap();
    out.set_rows(rows);
    if rows > 0 {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let source = plimsoll_kernels::WeightSource { format: GgmlType::F32, rows, cols: width, bytes: &bytes };
        let table = device.matrix(&source).unwrap();
        let tokens: Vec<u32> = (0..rows as u32).collect();
        device.embed(&table, &tokens, &mut out);
    }
    out
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Differences of at most `tolerance` of the larger of one and the expected magnitude.
#[track_caller]
pub fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * e.abs().max(1.0), "{what}, element {i}: {f}, expected {e}");
    }
}

/// The message of the panic in `f`.
pub fn panic_of(f: impl FnOnce()) -> String {
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("a panic");
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => payload.downcast_ref::<&str>().expect("a message").to_string(),
    }
}

/// The whole range row by row, in halves, and in two random cuts.
pub fn cuts(rows: usize, random: &mut Random) -> Vec<Vec<Range<usize>>> {
    let mut ways = vec![(0..rows).map(|r| r..r + 1).collect(), vec![0..rows / 2, rows / 2..rows]];
    for _ in 0..2 {
        let mut cut = Vec::new();
        let mut start = 0;
        while start < rows {
            let end = rows.min(start + 1 + random.below(1 + rows / 2));
            cut.push(start..end);
            start = end;
        }
        ways.push(cut);
    }
    ways.iter_mut().for_each(|way: &mut Vec<Range<usize>>| way.retain(|range| !range.is_empty()));
    ways
}

/// A ragged batch that owns its arrays.
#[derive(Clone, Debug)]
pub struct Batch {
    pub positions: Vec<u32>,
    pub row_seq: Vec<u32>,
    pub page_table: Vec<u32>,
    pub page_start: Vec<u32>,
}

impl Batch {
    /// All rows of sequences of these lengths, their pages scattered over a store just large enough.
    pub fn whole(lengths: &[usize], random: &mut Random) -> Self {
        let pages: Vec<usize> = lengths.iter().map(|l| l.div_ceil(PAGE_TOKENS)).collect();
        let page_table = random.permutation(pages.iter().sum()).into_iter().map(|p| p as u32).collect();
        let mut page_start = vec![0];
        for count in pages {
            page_start.push(page_start[page_start.len() - 1] + count as u32);
        }
        let rows = lengths.iter().enumerate().flat_map(|(s, l)| (0..*l).map(move |p| (p as u32, s as u32)));
        let (positions, row_seq) = rows.unzip();
        Self { positions, row_seq, page_table, page_start }
    }

    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    pub fn page_count(&self) -> usize {
        self.page_table.len()
    }

    /// Some of the rows, over the same sequences.
    pub fn rows_of(&self, range: Range<usize>) -> Self {
        let (positions, row_seq) = (self.positions[range.clone()].to_vec(), self.row_seq[range].to_vec());
        Self { positions, row_seq, ..self.clone() }
    }

    /// The last `count` rows of every sequence, or all it has.
    pub fn last_rows(&self, count: usize) -> Self {
        let keep = |r: &usize| self.row_seq.get(r + count) != Some(&self.row_seq[*r]);
        let rows: Vec<usize> = (0..self.rows()).filter(keep).collect();
        let positions = rows.iter().map(|r| self.positions[*r]).collect();
        let row_seq = rows.iter().map(|r| self.row_seq[*r]).collect();
        Self { positions, row_seq, ..self.clone() }
    }

    pub fn layout(&self) -> BatchLayout<'_> {
        BatchLayout {
            positions: &self.positions,
            row_seq: &self.row_seq,
            page_table: &self.page_table,
            page_start: &self.page_start,
        }
    }
}
