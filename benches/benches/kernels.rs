//! Kernel speed against what the memory and the cores allow: `cargo bench -p plimsoll-benches --bench kernels`.
//!
//! - `gemv`: one row times about 128 MB of packed weights, so that they come from memory; GB/s of packed bytes, and the
//!   share of the read bandwidth measured in the same run with the same threads.
//! - `gemm`: 128 rows times a 4096 x 4096 matrix; GOP/s, a multiplication and an addition counting two.
//! - `attention`: one decode row over 2,048 and 8,192 cached tokens of 8 K/V heads of 128 in f16, four queries each.
//!
//! Criterion's own reports follow the usual form; the lines that begin with `share` come from a separate measurement:
//! the shortest of many runs of equal size, of the kernel and of plain reading, so that other work on the machine
//! disturbs both as little as possible.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_kernels::cpu::{CpuBuffer, CpuDevice, CpuOptions, PackedMatrix};
use plimsoll_kernels::{
    AttentionShape, BatchLayout, Device, GgmlType, KvLayout, KvType, PAGE_TOKENS, RowBuffer, WeightSource,
};

const FORMATS: [GgmlType; 6] =
    [GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::F16];

/// Inputs and outputs of a matrix.
const WIDTH: usize = 4096;
/// Bytes of weights that a GEMV goes through before it meets the same ones again: several third-level caches.
const ROTATION_BYTES: usize = 128 << 20;
/// Rows of a prefill chunk.
const CHUNK_ROWS: usize = 128;

/// Bytes that one timing of a memory-bound kernel, or of plain reading, goes through.
const TIMED_BYTES: usize = 32 << 20;

/// The shortest of `runs` calls, in seconds: what the machine can do when nobody else has it.
fn shortest(runs: usize, mut f: impl FnMut()) -> f64 {
    f();
    let time = |_| {
        let begin = Instant::now();
        f();
        begin.elapsed().as_secs_f64()
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

/// GB/s that all threads together read from memory that asks for huge pages, as the weights do.
fn read_bandwidth(device: &CpuDevice) -> f64 {
    let (width, rows) = (TIMED_BYTES / size_of::<f32>(), 12);
    let mut buffer = device.buffer(width, rows).expect("memory for the bandwidth measurement");
    buffer.set_rows(rows);
    buffer.values_mut().fill(1.0);
    let mut next = 0;
    let seconds = shortest(60, || {
        next = (next + 1) % rows;
        std::thread::scope(|scope| {
            for values in buffer.row(next).chunks(width / device.threads()) {
                scope.spawn(move || {
                    let mut sums = [0f32; 64];
                    for chunk in values.as_chunks::<64>().0 {
                        for (sum, v) in sums.iter_mut().zip(chunk) {
                            *sum += v;
                        }
                    }
                    black_box(sums);
                });
            }
        });
    });
    TIMED_BYTES as f64 / seconds / 1e9
}

/// Pseudo-random bytes; scales stay finite because their upper bits are cleared.
fn matrix(device: &CpuDevice, format: GgmlType) -> PackedMatrix {
    let mut state = 1u64;
    let mut bytes: Vec<u8> = (0..format.tensor_bytes(WIDTH, WIDTH).expect("whole blocks"))
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let scales: &[usize] = match format {
            GgmlType::Q6_K => &[209],
            GgmlType::Q4_1 | GgmlType::Q4_K => &[1, 3],
            _ => &[1],
        };
        for at in scales {
            block[*at] &= 0xa7;
        }
    }
    device.matrix(&WeightSource { format, rows: WIDTH, cols: WIDTH, bytes: &bytes }).expect("memory for a matrix")
}

fn rows(device: &CpuDevice, width: usize, rows: usize) -> CpuBuffer {
    let mut buffer = device.buffer(width, rows).expect("memory for activations");
    buffer.set_rows(rows);
    for (i, v) in buffer.values_mut().iter_mut().enumerate() {
        *v = ((i * 7919 % 1009) as f32 - 504.0) / 504.0;
    }
    buffer
}

fn products(c: &mut Criterion) {
    let device = CpuDevice::new(CpuOptions::default()).expect("a CPU device");
    let bandwidth = read_bandwidth(&device);
    println!("{}; memory read {bandwidth:.1} GB/s", device.describe());
    for format in FORMATS {
        let bandwidth = read_bandwidth(&device).max(bandwidth);
        let bytes = device.matrix_bytes(format, WIDTH, WIDTH);
        let matrices: Vec<PackedMatrix> =
            (0..ROTATION_BYTES.div_ceil(bytes)).map(|_| matrix(&device, format)).collect();
        let (x, mut out) = (rows(&device, WIDTH, 1), device.buffer(WIDTH, 1).expect("memory for a row"));
        let mut next = 0;
        let mut gemv = || {
            next = (next + 1) % matrices.len();
            device.linear(&x, &[&matrices[next]], &[None], &mut [&mut out]);
        };
        let calls = TIMED_BYTES.div_ceil(bytes);
        let seconds = shortest(60, || (0..calls).for_each(|_| gemv()));
        let speed = (calls * bytes) as f64 / seconds / 1e9;
        println!("share gemv {format}: {speed:.1} GB/s, {:.0} % of memory bandwidth", 100.0 * speed / bandwidth);
        let mut group = c.benchmark_group("gemv");
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(format), |b| b.iter(&mut gemv));
        group.finish();

        let (x, mut out) =
            (rows(&device, WIDTH, CHUNK_ROWS), device.buffer(WIDTH, CHUNK_ROWS).expect("memory for rows"));
        let mut gemm = || device.linear(&x, &[&matrices[0]], &[None], &mut [&mut out]);
        let operations = 2 * CHUNK_ROWS * WIDTH * WIDTH;
        let speed = operations as f64 / shortest(20, &mut gemm) / 1e9;
        println!("share gemm {format}: {speed:.0} GOP/s, {:.1} times the 150 asked for", speed / 150.0);
        let mut group = c.benchmark_group("gemm");
        group.throughput(Throughput::Elements(operations as u64));
        group.bench_function(BenchmarkId::from_parameter(format), |b| b.iter(&mut gemm));
        group.finish();
    }

    let layout = KvLayout { layers: 1, kv_heads: 8, head_dim: 128, kv_type: KvType::F16 };
    let shape = AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, scale: 128f32.powf(-0.5) };
    for depth in [2048, 8192] {
        // Layers' worth of pages, so that they come from memory.
        let bytes = depth * layout.token_bytes();
        let copies = ROTATION_BYTES.div_ceil(bytes);
        let pages_each = depth / PAGE_TOKENS;
        let mut pages = device.pages(layout, copies * pages_each).expect("memory for pages");
        let table: Vec<u32> = (0..(copies * pages_each) as u32).collect();
        let starts: Vec<u32> = (0..=copies as u32).map(|i| i * pages_each as u32).collect();
        let positions: Vec<u32> = (0..depth as u32).collect();
        let kv = rows(&device, 8 * 128, depth);
        for copy in 0..copies as u32 {
            let row_seq = vec![copy; depth];
            let batch =
                BatchLayout { positions: &positions, row_seq: &row_seq, page_table: &table, page_start: &starts };
            device.write_kv(&mut pages, 0, &kv, &kv, &batch);
        }
        let (queries, mut out) = (rows(&device, 32 * 128, 1), rows(&device, 32 * 128, 1));
        let mut next = 0;
        let mut decode = || {
            next = (next + 1) % copies as u32;
            let batch = BatchLayout {
                positions: &[depth as u32 - 1],
                row_seq: &[next],
                page_table: &table,
                page_start: &starts,
            };
            device.attend(&pages, 0, &queries, shape, &batch, &mut out);
        };
        let calls = TIMED_BYTES.div_ceil(bytes);
        let seconds = shortest(60, || (0..calls).for_each(|_| decode()));
        let speed = (calls * bytes) as f64 / seconds / 1e9;
        println!("share attention {depth}: {speed:.1} GB/s, {:.0} % of memory bandwidth", 100.0 * speed / bandwidth);
        let mut group = c.benchmark_group("attention");
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(depth), |b| b.iter(&mut decode));
        group.finish();
    }
}

criterion_group! {
    name = kernels;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = products
}
criterion_main!(kernels);
