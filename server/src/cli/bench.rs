//! `plimsoll bench`: how fast a model is on this machine.
//!
//! Times the model alone, without engine, HTTP or tokenizer. Owns the columns, which are named as in llama-bench so that
//! two engines can be put side by side; what is timed is `runtime::speed`'s.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use plimsoll_kernels::KvType;
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_models::architecture::{self, StepLimits};
use plimsoll_models::gguf::GgufFile;
use plimsoll_models::source::Sources;
use plimsoll_runtime::executor::Executor;
use plimsoll_runtime::model_executor::ModelExecutor;
use plimsoll_runtime::speed::{Work, time};
use serde::Serialize;

use crate::load::step_limits;

/// Time a model on this machine.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Model(ModelArguments),
}

/// Time prompts and replies of a model, the model alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll bench model smollm2
  plimsoll bench model qwen2.5-coder-0.5b -p 512,4096 -n 64 -d 0,2048,6000 --json
  plimsoll bench model smollm2 -p 0 -n 64 --streams 1,8

Each row is one test: `pp512` reads a prompt of 512 tokens from an empty cache, `tg64 @ d2048`
writes 64 tokens behind 2048. One run before the timed ones warms up. With --json, a line per
test with the columns of llama-bench.")]
struct ModelArguments {
    /// A GGUF file, a known name, or organisation/repository:file.gguf.
    model: String,
    /// Lengths of prompts, in tokens; 0 for none.
    #[arg(short = 'p', long = "n-prompt", value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    prompts: Vec<usize>,
    /// Lengths of replies, in tokens; 0 for none.
    #[arg(short = 'n', long = "n-gen", value_name = "TOKENS", value_delimiter = ',', default_value = "128")]
    replies: Vec<usize>,
    /// Tokens before a reply.
    #[arg(short = 'd', long = "n-depth", value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    depths: Vec<usize>,
    /// Replies that are written side by side.
    #[arg(long, value_name = "STREAMS", value_delimiter = ',', default_value = "1")]
    streams: Vec<NonZeroUsize>,
    /// Timed runs of each test.
    #[arg(short = 'r', long, default_value = "5")]
    repetitions: NonZeroUsize,
    /// Threads of the kernels [default: one per core].
    #[arg(short = 't', long, env = "PLIMSOLL_THREADS")]
    threads: Option<NonZeroUsize>,
    /// Print a JSON object per test.
    #[arg(long)]
    json: bool,
}

/// A test and what was measured; names, order and units of llama-bench.
#[derive(Debug, Serialize)]
struct Row<'a> {
    build_number: &'static str,
    cpu_info: &'a str,
    backends: &'static str,
    model_filename: &'a str,
    model_type: &'a str,
    model_size: u64,
    n_batch: usize,
    n_threads: usize,
    type_k: &'static str,
    type_v: &'static str,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    n_streams: usize,
    load_ns: u64,
    peak_rss_bytes: Option<u64>,
    median_ns: u64,
    avg_ns: u64,
    stddev_ns: u64,
    median_ts: f64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
}

impl Bench {
    /// Runs the tests.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Action::Model(arguments) = self.action;
        arguments.run()
    }
}

impl ModelArguments {
    fn tests(&self) -> Vec<Work> {
        let prompts = self.prompts.iter().filter(|tokens| **tokens > 0).map(|tokens| Work::Prefill(*tokens));
        let mut tests: Vec<Work> = prompts.collect();
        for &depth in &self.depths {
            for &tokens in self.replies.iter().filter(|tokens| **tokens > 0) {
                tests.extend(self.streams.iter().map(|streams| Work::Decode { tokens, depth, streams: streams.get() }));
            }
        }
        tests
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        let tests = self.tests();
        ensure!(!tests.is_empty(), "there is nothing to time: give -p or -n above 0");
        let local =
            Sources::from_env()?.fetch(&self.model).with_context(|| format!("finding the model `{}`", self.model))?;
        let path = local.path.display().to_string();
        ensure!(local.path.is_file(), "`{path}` is a folder; safetensors checkpoints are not supported yet");

        let began = Instant::now();
        let file = GgufFile::open(&local.path).with_context(|| format!("reading `{path}`"))?;
        let device = CpuDevice::new(CpuOptions { threads: self.threads, ..CpuOptions::default() })?;
        let cpu = format!("{}, {}", plimsoll_kernels::Device::describe(&device), device.isa());
        let threads = device.threads();
        let limits = StepLimits { kv_type: KvType::F16, ..step_limits() };
        let shape = architecture::plan(&file, &device, limits).with_context(|| format!("reading `{path}`"))?;
        for test in &tests {
            let positions = test.positions();
            ensure!(
                positions <= shape.max_context,
                "a test of {positions} tokens is longer than the {} the model supports",
                shape.max_context
            );
            if let Work::Decode { streams, .. } = test {
                ensure!(
                    *streams <= limits.max_logits,
                    "{streams} streams are more than the {} of one step",
                    limits.max_logits
                );
            }
        }
        let pages = tests.iter().map(|test| test.pages()).max().unwrap_or(1);
        let model = architecture::load(&file, &device, limits).with_context(|| format!("reading `{path}`"))?;
        let mut executor = ModelExecutor::new(device, model, pages, usize::MAX)?;
        let load = began.elapsed();
        // The file has served.
        drop(file);

        let weight_bytes = shape.weight_bytes as u64;
        if !self.json {
            print(&format!(
                "{} · {threads} threads · {} MiB of packed weights · loaded in {:.2} s",
                executor.describe(),
                weight_bytes >> 20,
                load.as_secs_f64()
            ))?;
            print(&format!("{:<22} {:>12} {:>10} {:>12}", "test", "median tok/s", "± dev.", "weights GB/s"))?;
        }
        for test in tests {
            let times = time(&mut executor, test, self.repetitions.get())?;
            let row =
                Row::new(test, &times, Setting { cpu: &cpu, path: &local.path, name: &local.name, threads, load });
            let row = Row { model_size: weight_bytes, n_batch: limits.max_rows, ..row };
            if self.json {
                print(&serde_json::to_string(&row)?)?;
            } else {
                print(&row.line(test, weight_bytes))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What all rows have in common.
struct Setting<'a> {
    cpu: &'a str,
    path: &'a Path,
    name: &'a str,
    threads: usize,
    load: Duration,
}

impl<'a> Row<'a> {
    fn new(test: Work, times: &[Duration], setting: Setting<'a>) -> Self {
        let samples_ns: Vec<u64> = times.iter().map(nanoseconds).collect();
        let per_second = |ns: &u64| test.tokens() as f64 / (*ns).max(1) as f64 * 1e9;
        let samples_ts: Vec<f64> = samples_ns.iter().map(per_second).collect();
        let as_floats: Vec<f64> = samples_ns.iter().map(|ns| *ns as f64).collect();
        let (n_prompt, n_gen, n_depth, n_streams) = match test {
            Work::Prefill(tokens) => (tokens, 0, 0, 1),
            Work::Decode { tokens, depth, streams } => (0, tokens, depth, streams),
        };
        Self {
            build_number: env!("CARGO_PKG_VERSION"),
            cpu_info: setting.cpu,
            backends: "CPU",
            model_filename: setting.path.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
            model_type: setting.name,
            model_size: 0,
            n_batch: 0,
            n_threads: setting.threads,
            type_k: "f16",
            type_v: "f16",
            n_prompt,
            n_gen,
            n_depth,
            n_streams,
            load_ns: nanoseconds(&setting.load),
            peak_rss_bytes: peak_resident_bytes(),
            median_ns: median(&as_floats) as u64,
            avg_ns: mean(&as_floats) as u64,
            stddev_ns: deviation(&as_floats) as u64,
            median_ts: median(&samples_ts),
            avg_ts: mean(&samples_ts),
            stddev_ts: deviation(&samples_ts),
            samples_ns,
            samples_ts,
        }
    }

    fn line(&self, test: Work, weight_bytes: u64) -> String {
        let (name, steps) = match test {
            Work::Prefill(tokens) => (format!("pp{tokens}"), None),
            Work::Decode { tokens, depth, streams: 1 } => (format!("tg{tokens} @ d{depth}"), Some(tokens)),
            Work::Decode { tokens, depth, streams } => (format!("tg{tokens} x{streams} @ d{depth}"), Some(tokens)),
        };
        let bandwidth = steps.map(|steps| weight_bytes as f64 * steps as f64 / self.median_ns.max(1) as f64);
        let bandwidth = bandwidth.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        format!("{name:<22} {:>12.1} {:>10.1} {bandwidth:>12}", self.median_ts, self.stddev_ts)
    }
}

fn print(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn nanoseconds(time: &Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Of the sample: over one less than its size.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len().saturating_sub(1).max(1) as f64).sqrt()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The most memory the process had resident, where the system says (`VmHWM` of proc).
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_deviations_are_those_of_the_textbook() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), (32.0f64 / 7.0).sqrt());
        assert_eq!(deviation(&[5.0]), 0.0);
    }

    #[test]
    fn a_row_counts_the_tokens_of_all_streams() {
        let setting =
            Setting { cpu: "", path: Path::new("a/b.gguf"), name: "b", threads: 2, load: Duration::from_secs(1) };
        let work = Work::Decode { tokens: 10, depth: 5, streams: 8 };
        let row = Row::new(work, &[Duration::from_secs(2)], setting);
        assert_eq!((row.median_ts, row.n_streams, row.model_filename), (40.0, 8, "b.gguf"));
        assert!(row.line(work, 1_000_000_000).ends_with("5.0"), "{}", row.line(work, 1_000_000_000));
    }
}
