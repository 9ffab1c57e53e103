//! Kernel speed against what the memory and the cores allow: `cargo bench -p plimsoll-benches --bench kernels`.
//!
//! - `gemv`: one row times about 128 MB of packed weights, so that they come from memory; GB/s of packed bytes, and the
//!   share of the read bandwidth measured in the same run with the same threads.
//! - `gemm`: 128 rows times a matrix of 1024 outputs of 4096 inputs; GOP/s, a multiplication and an addition counting two.
//! - `attention`: one decode row over 2,048 and 8,192 cached tokens of 8 K/V heads of 128 in f16, four queries each.
//!
//! Criterion's own reports follow the usual form. The table at the end comes from a separate measurement: the shortest
//! of many runs, a few milliseconds each, of the kernel and of plain reading, so that other work on the machine disturbs both as
//! little as possible; shares are of the highest read bandwidth that the run saw. With `PLIMSOLL_BENCH_JSON` set to a
//! path, the table is written there too.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_kernels::cpu::{CpuBuffer, CpuDevice, CpuOptions, PackedMatrix};
use plimsoll_kernels::{
    AttentionShape, BatchLayout, Device, GgmlType, KvLayout, KvType, PAGE_TOKENS, RowBuffer, WeightSource,
};
use serde_json::json;

const FORMATS: [GgmlType; 6] =
    [GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::F16];

/// Inputs and outputs of a matrix.
const WIDTH: usize = 4096;
/// Bytes of weights that a GEMV goes through before it meets the same ones again: several third-level caches.
const ROTATION_BYTES: usize = 128 << 20;
/// Rows of a prefill chunk.
const CHUNK_ROWS: usize = 128;
/// Outputs of the matrix that a chunk meets; few, so that one timing is short.
const CHUNK_OUTPUTS: usize = 1024;

/// Bytes that one timing of a memory-bound kernel, or of plain reading, goes through.
const TIMED_BYTES: usize = 32 << 20;

/// How long calls are repeated in search of the shortest.
const SEARCH: Duration = Duration::from_millis(1500);

/// The shortest of the calls that [`SEARCH`] has time for, in seconds: what the machine can do when nobody else has it.
fn shortest(mut f: impl FnMut()) -> f64 {
    f();
    let (begin, mut shortest) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < SEARCH {
        let call = Instant::now();
        f();
        shortest = shortest.min(call.elapsed().as_secs_f64());
    }
    shortest
}

/// Memory to measure the read bandwidth in. It asks for huge pages, as weights do.
struct Reader {
    buffer: CpuBuffer,
    threads: usize,
    next: usize,
    /// The highest so far, GB/s of all threads together.
    highest: f64,
}

impl Reader {
    fn new(device: &CpuDevice) -> Self {
        let rows = 12;
        let mut buffer =
            device.buffer(TIMED_BYTES / size_of::<f32>(), rows).expect("memory for the bandwidth measurement");
        buffer.set_rows(rows);
        buffer.values_mut().fill(1.0);
        Self { buffer, threads: device.threads(), next: 0, highest: 0.0 }
    }

    fn measure(&mut self) {
        let Self { buffer, threads, next, highest } = self;
        let seconds = shortest(|| {
            *next = (*next + 1) % buffer.rows();
            std::thread::scope(|scope| {
                for values in buffer.row(*next).chunks(buffer.width().div_ceil(*threads)) {
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
        *highest = highest.max(TIMED_BYTES as f64 / seconds / 1e9);
    }
}

/// A line of the table: the speeds of one format's matrix products.
struct ProductSpeed {
    format: GgmlType,
    gemm_gops: f64,
    gemv_gbs: f64,
}

/// A line of the table: the speed of attention over so many cached tokens.
struct AttentionSpeed {
    depth: usize,
    gbs: f64,
}

/// Prints the table and writes it where the environment asks for it.
fn report(device: &CpuDevice, read: f64, products: &[ProductSpeed], attention: &[AttentionSpeed]) {
    println!("\n{}; memory read {read:.1} GB/s", device.describe());
    println!("{:<16} {:>12} {:>12} {:>12}", "", "GEMM GOP/s", "GEMV GB/s", "of bandwidth");
    for ProductSpeed { format, gemm_gops, gemv_gbs } in products {
        let name = format.name();
        println!("{name:<16} {gemm_gops:>12.0} {gemv_gbs:>12.1} {:>10.0} %", 100.0 * gemv_gbs / read);
    }
    for AttentionSpeed { depth, gbs } in attention {
        let name = format!("attention {depth}");
        println!("{name:<16} {:>12} {gbs:>12.1} {:>10.0} %", "", 100.0 * gbs / read);
    }
    let Ok(path) = std::env::var("PLIMSOLL_BENCH_JSON") else { return };
    let round = |v: f64| (v * 1000.0).round() / 1000.0;
    let products: Vec<_> = products
        .iter()
        .map(|p| {
            json!({
                "format": p.format.name(),
                "gemm_gop_per_s": round(p.gemm_gops),
                "gemv_gb_per_s": round(p.gemv_gbs),
                "gemv_share_of_read": round(p.gemv_gbs / read),
            })
        })
        .collect();
    let attention: Vec<_> = attention
        .iter()
        .map(|a| json!({ "depth": a.depth, "gb_per_s": round(a.gbs), "share_of_read": round(a.gbs / read) }))
        .collect();
    let table = json!({
        "device": device.describe(),
        "isa": device.isa().name(),
        "threads": device.threads(),
        "read_gb_per_s": round(read),
        "products": products,
        "attention_decode": attention,
    });
    std::fs::write(&path, format!("{table:#}\n")).unwrap_or_else(|error| panic!("writing {path}: {error}"));
}

/// `count` times the same matrix of pseudo-random bytes; scales stay finite because their upper bits are cleared.
fn matrices(device: &CpuDevice, format: GgmlType, outputs: usize, count: usize) -> Vec<PackedMatrix> {
    let mut state = 1u64;
    let mut bytes: Vec<u8> = (0..format.tensor_bytes(outputs, WIDTH).expect("whole blocks"))
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
    let source = WeightSource { format, rows: outputs, cols: WIDTH, bytes: &bytes };
    (0..count).map(|_| device.matrix(&source).expect("memory for a matrix")).collect()
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
    let mut reader = Reader::new(&device);
    let (mut product_speeds, mut attention_speeds) = (Vec::new(), Vec::new());
    for format in FORMATS {
        reader.measure();
        let bytes = device.matrix_bytes(format, WIDTH, WIDTH);
        let rotation = matrices(&device, format, WIDTH, ROTATION_BYTES.div_ceil(bytes));
        let (x, mut out) = (rows(&device, WIDTH, 1), device.buffer(WIDTH, 1).expect("memory for a row"));
        let mut next = 0;
        let mut gemv = || {
            next = (next + 1) % rotation.len();
            device.linear(&x, &[&rotation[next]], &[None], &mut [&mut out]);
        };
        let calls = TIMED_BYTES.div_ceil(bytes);
        let seconds = shortest(|| (0..calls).for_each(|_| gemv()));
        let gemv_gbs = (calls * bytes) as f64 / seconds / 1e9;
        let mut group = c.benchmark_group("gemv");
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(format), |b| b.iter(&mut gemv));
        group.finish();

        let (x, mut out) =
            (rows(&device, WIDTH, CHUNK_ROWS), device.buffer(CHUNK_OUTPUTS, CHUNK_ROWS).expect("memory for rows"));
        let matrix = &matrices(&device, format, CHUNK_OUTPUTS, 1)[0];
        let mut gemm = || device.linear(&x, &[matrix], &[None], &mut [&mut out]);
        let operations = 2 * CHUNK_ROWS * WIDTH * CHUNK_OUTPUTS;
        let gemm_gops = operations as f64 / shortest(&mut gemm) / 1e9;
        product_speeds.push(ProductSpeed { format, gemm_gops, gemv_gbs });
        let mut group = c.benchmark_group("gemm");
        group.throughput(Throughput::Elements(operations as u64));
        group.bench_function(BenchmarkId::from_parameter(format), |b| b.iter(&mut gemm));
        group.finish();
    }

    let layout = KvLayout { layers: 1, kv_heads: 8, head_dim: 128, kv_type: KvType::F16 };
    let shape = AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, scale: 128f32.powf(-0.5) };
    for depth in [2048, 8192] {
        reader.measure();
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
        let seconds = shortest(|| (0..calls).for_each(|_| decode()));
        attention_speeds.push(AttentionSpeed { depth, gbs: (calls * bytes) as f64 / seconds / 1e9 });
        let mut group = c.benchmark_group("attention");
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(depth), |b| b.iter(&mut decode));
        group.finish();
    }
    report(&device, reader.highest, &product_speeds, &attention_speeds);
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
