//! `plimsoll doctor`: what this machine is, what will fit on it, and whether models can be had.
//!
//! Owns the measuring and the words. Nothing is downloaded, loaded or changed; the hub is asked whether it answers.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use indicatif::BinaryBytes;
use plimsoll_kernels::Device;
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_models::architecture;
use plimsoll_models::gguf::GgufFile;
use plimsoll_models::preset::{Preset, PresetLibrary};
use plimsoll_models::source::wheel::Pip;
use plimsoll_models::source::{KnownModel, ModelName, Network, Sources};
use plimsoll_runtime::memory_plan::{MemoryPlan, PoolSize, available_memory};
use serde::Serialize;

use crate::load::{DEFAULT_CACHE_WINDOWS, step_limits};
use crate::preset_budget::preset_budget;

/// Show what this machine can run and whether models can be fetched.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll doctor
  plimsoll doctor --json | jq '.presets[] | select(.fits and .supported != false) | .name'")]
pub struct Doctor {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Findings {
    machine: Machine,
    presets: Vec<Fit>,
    sources: Places,
}

#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    /// Hardware threads this process may use.
    threads: usize,
    /// Instruction sets that the kernels look for, best first.
    instruction_sets: Vec<&'static str>,
    /// Bytes of main memory, where the system says.
    memory_total: Option<u64>,
    /// Bytes that can be had without swapping, within the limits of a control group.
    memory_available: Option<u64>,
}

/// Whether a preset fits into main memory.
#[derive(Debug, Serialize)]
struct Fit {
    name: String,
    model: String,
    window: u32,
    /// Full windows of cache that `serve` would plan.
    cache_windows: usize,
    /// Bytes of weights, work buffers and these windows; absent where the model is neither here nor a known one.
    needed: Option<u64>,
    /// Of these, the weights.
    weights: Option<u64>,
    /// Of these, activations and scratch; they are not counted where the model is not on this machine.
    work_buffers: Option<u64>,
    /// Whether one window fits at the least.
    fits: Option<bool>,
    /// Whether the model's architecture can be run by this version.
    supported: Option<bool>,
    on_this_machine: bool,
    /// Why the preset cannot be served at all.
    refused: Option<String>,
}

#[derive(Debug, Serialize)]
struct Places {
    store: String,
    store_files: usize,
    store_bytes: u64,
    /// Why the store cannot be written to.
    store_problem: Option<String>,
    hugging_face_cache: Option<String>,
    hub: String,
    /// Why the hub cannot be used.
    hub_problem: Option<String>,
    /// Why wheels cannot be fetched.
    pip_problem: Option<String>,
}

impl Doctor {
    /// Measures and prints. Finding that something does not fit is no failure.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let sources = Sources::from_env()?;
        let machine = Machine::measure();
        let presets = PresetLibrary::load()?;
        let findings = Findings {
            presets: presets.iter().map(|(preset, _)| fit(preset, &sources, machine.memory_available)).collect(),
            sources: Places::look(&sources)?,
            machine,
        };
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &findings)?;
            writeln!(out)?;
        } else {
            out.write_all(findings.text().as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Machine {
    fn measure() -> Self {
        let cpu_info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            cpu: field(&cpu_info, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            instruction_sets: instruction_sets(),
            memory_total: field(&memory, "MemTotal").and_then(kibibytes),
            memory_available: available_memory().map(|bytes| bytes as u64),
        }
    }
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// `123 kB` in bytes.
fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> Vec<&'static str> {
    let sets = [
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
    ];
    sets.into_iter().filter(|(_, found)| *found).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction_sets() -> Vec<&'static str> {
    Vec::new()
}

/// What serving a model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    weights: u64,
    work_buffers: Option<u64>,
    one_window: u64,
}

impl Need {
    /// As `serve` plans it, from the file itself.
    fn of_file(path: &Path, window: u32) -> Option<Self> {
        let file = GgufFile::open(path).ok()?;
        let device = CpuDevice::new(CpuOptions::default()).ok()?;
        let shape = architecture::plan(&file, &device, step_limits()).ok()?;
        let window = usize::try_from(window).ok()?;
        let plan = MemoryPlan::new(&shape, device.scratch_bytes(), window, PoolSize::Windows(1), None).ok()?;
        Some(Self {
            weights: plan.weights as u64,
            work_buffers: Some((plan.activations + plan.scratch) as u64),
            one_window: plan.pool() as u64,
        })
    }

    /// From what is published of a model.
    fn of_known(model: &KnownModel, window: u32) -> Self {
        let one_window = model.bytes_with_window(window.into()) - model.bytes;
        Self { weights: model.bytes, work_buffers: None, one_window }
    }

    fn with_windows(&self, windows: usize) -> u64 {
        self.weights + self.work_buffers.unwrap_or(0) + self.one_window * windows as u64
    }

    /// The windows that `serve` would plan: as many as fit, at most the default, at least one.
    fn windows(&self, available: Option<u64>) -> usize {
        let fit = |windows: &usize| available.is_none_or(|available| self.with_windows(*windows) <= available);
        (1..=DEFAULT_CACHE_WINDOWS).rev().find(fit).unwrap_or(1)
    }
}

fn fit(preset: &Preset, sources: &Sources, available: Option<u64>) -> Fit {
    let name = preset.model_name();
    let known: Option<&KnownModel> = match &name {
        Ok(ModelName::Known(model)) => Some(model),
        _ => None,
    };
    let budget = preset_budget(preset);
    let window = budget.as_ref().map_or(0, |budget| budget.window.0);
    let local = name.as_ref().ok().and_then(|name| sources.find(name).ok().flatten());
    let need = local
        .as_ref()
        .and_then(|local| Need::of_file(&local.path, window))
        .or_else(|| known.map(|model| Need::of_known(model, window)));
    let cache_windows = need.map_or(DEFAULT_CACHE_WINDOWS, |need| need.windows(available));
    let needed = need.map(|need| need.with_windows(cache_windows));
    Fit {
        name: preset.name.clone(),
        model: preset.model.clone(),
        window,
        cache_windows,
        needed,
        weights: need.map(|need| need.weights),
        work_buffers: need.and_then(|need| need.work_buffers),
        fits: needed.zip(available).map(|(needed, available)| needed <= available),
        supported: known.map(|model| architecture::supports(model.architecture)),
        on_this_machine: local.is_some(),
        refused: budget.err().map(|error| error.to_string()).or(name.err().map(|error| error.to_string())),
    }
}

impl Places {
    fn look(sources: &Sources) -> anyhow::Result<Self> {
        let files = sources.store().list()?;
        let hub_problem = match sources.network() {
            Network::Off => Some("switched off by PLIMSOLL_OFFLINE".to_owned()),
            Network::WithoutHub => Some("switched off by HF_HUB_OFFLINE".to_owned()),
            Network::Allowed => sources.hub().reach().err().map(|error| error.to_string()),
        };
        let pip_problem = match sources.network() {
            Network::Off => Some("switched off by PLIMSOLL_OFFLINE".to_owned()),
            _ => Pip::find().err().map(|error| error.to_string()),
        };
        Ok(Self {
            store: sources.store().root().display().to_string(),
            store_files: files.len(),
            store_bytes: files.iter().map(|file| file.bytes).sum(),
            store_problem: write_problem(sources.store().root()),
            hugging_face_cache: sources.hub_cache().filter(|path| path.is_dir()).map(|path| path.display().to_string()),
            hub: sources.hub().endpoint().to_owned(),
            hub_problem,
            pip_problem,
        })
    }
}

/// Whether the nearest folder that exists can be written to.
fn write_problem(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    let metadata = match std::fs::metadata(existing) {
        Ok(metadata) => metadata,
        Err(error) => return Some(format!("{}: {error}", existing.display())),
    };
    if !metadata.is_dir() {
        return Some(format!("{} is no folder", existing.display()));
    }
    metadata.permissions().readonly().then(|| format!("{} is read-only", existing.display()))
}

impl Findings {
    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            writeln!(text, "{label:<24} {value}").expect("a string takes everything");
        };
        let bytes = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| BinaryBytes(bytes).to_string());
        let Machine { cpu, threads, instruction_sets, memory_total, memory_available } = &self.machine;
        line("CPU", format!("{cpu}, {threads} threads"));
        let sets = if instruction_sets.is_empty() {
            "none of those the kernels know".into()
        } else {
            instruction_sets.join(", ")
        };
        line("instruction sets", sets);
        line("memory", format!("{}, {} available", bytes(*memory_total), bytes(*memory_available)));
        line("GPU", "not used: this version computes on the CPU".to_owned());
        for preset in &self.presets {
            line(&format!("preset {}", preset.name), preset.verdict());
        }
        let places = &self.sources;
        let problem = |problem: &Option<String>, fine: &str| problem.clone().unwrap_or_else(|| fine.to_owned());
        let held = format!("{} files, {}", places.store_files, BinaryBytes(places.store_bytes));
        line("store", format!("{} ({held}) {}", places.store, places.store_problem.as_deref().unwrap_or_default()));
        line("Hugging Face cache", places.hugging_face_cache.clone().unwrap_or_else(|| "none".to_owned()));
        line("hub", problem(&places.hub_problem, &format!("{} answers", places.hub)));
        line("package index", problem(&places.pip_problem, "pip is there (the index is asked when it is needed)"));
        text
    }
}

impl Fit {
    fn verdict(&self) -> String {
        if let Some(refused) = &self.refused {
            return format!("refused: {refused}");
        }
        let (Some(needed), Some(weights)) = (self.needed, self.weights) else {
            return format!("{} with a window of {}: size unknown", self.model, self.window);
        };
        let fits = match self.fits {
            Some(true) => "fits",
            Some(false) => "does not fit",
            None => "may fit",
        };
        let supported = if self.supported == Some(false) { "; its architecture cannot be run yet" } else { "" };
        let here = if self.on_this_machine { "here" } else { "not here yet" };
        let windows = match self.cache_windows {
            1 => "one window".to_owned(),
            windows => format!("{windows} windows"),
        };
        let buffers = match self.work_buffers {
            Some(bytes) => format!("{} work buffers", BinaryBytes(bytes)),
            None => "work buffers not counted".to_owned(),
        };
        format!(
            "{fits}: {} with {windows} of {} needs {} ({} weights, {buffers}); {here}{supported}",
            self.model,
            self.window,
            BinaryBytes(needed),
            BinaryBytes(weights),
        )
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_models::preset::embedded;
    use plimsoll_models::source::ModelStore;
    use plimsoll_models::source::hub::Hub;

    use super::*;

    #[test]
    fn a_preset_is_counted_with_the_windows_that_serve_would_plan() {
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::at("http://127.0.0.1:9", None);
        let sources = Sources::at(ModelStore::at(folder.path()), hub).with_network(Network::Off);
        let demo = embedded().into_iter().find(|preset| preset.name == "demo").unwrap();
        let with = |windows: u64| 98_362_432 + windows * 8192 * 23_040;
        let at = |available| fit(&demo, &sources, available);
        for (available, windows, fits) in [
            (Some(with(4)), 4, Some(true)),
            (Some(with(4) - 1), 3, Some(true)),
            (Some(with(1)), 1, Some(true)),
            (Some(with(1) - 1), 1, Some(false)),
            (None, 4, None),
        ] {
            let found = at(available);
            let needed = Some(with(windows as u64));
            assert_eq!((found.cache_windows, found.fits, found.needed), (windows, fits, needed), "{available:?}");
        }
        assert!(!at(None).on_this_machine);
        let places = Places::look(&sources).unwrap();
        assert!(places.hub_problem.is_some_and(|problem| problem.contains("PLIMSOLL_OFFLINE")));
        assert_eq!(places.store_problem, None);
    }

    #[test]
    fn what_the_system_says_is_read() {
        assert_eq!(field("a\t: 1\nmodel name\t: X (R) @ 2\nmodel name : Y\n", "model name"), Some("X (R) @ 2"));
        assert_eq!(kibibytes("16 kB"), Some(16_384));
        assert_eq!(kibibytes("16"), None);
        let machine = Machine::measure();
        assert!(machine.threads > 0 && !machine.cpu.is_empty());
    }

    #[test]
    fn a_store_in_place_of_a_file_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(write_problem(&file).is_some_and(|problem| problem.contains("no folder")));
        assert_eq!(write_problem(&folder.path().join("not/yet/there")), None);
    }
}
