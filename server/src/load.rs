//! From what was asked for on the command line to running engines.
//!
//! Owns the way from a preset, a model name or a simulation file to a [`Catalog`]: find or fetch the file, read its text
//! side, plan its memory, load it, start its engine. A preset and the raw model below it share one engine. Blocking;
//! runs aside. Says on stderr what it found and what it will hold in memory.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_kernels::{Device, KvType};
use plimsoll_models::architecture::{self, ModelShape, StepLimits};
use plimsoll_models::dialect::{Dialect, DialectName};
use plimsoll_models::gguf::GgufFile;
use plimsoll_models::preset::{self, Overflow, Preset, PresetLibrary};
use plimsoll_models::source::{LocalModel, Origin, Sources};
use plimsoll_models::template::ChatTemplate;
use plimsoll_models::tokenizer::Tokenizer;
use plimsoll_runtime::budget::{Budget, BudgetConfig, Tokens};
use plimsoll_runtime::compaction::FaultPlan;
use plimsoll_runtime::engine::{Engine, EngineConfig, EngineHandle, SamplingParams};
use plimsoll_runtime::memory_plan::{MemoryPlan, PlanError, PoolSize, available_memory};
use plimsoll_runtime::model_executor::ModelExecutor;
use plimsoll_runtime::simulated::{SimulatedExecutor, SimulatedLimits, SimulationScript};
use serde_json::{Map, Value};

use crate::catalog::{Catalog, LoadedModel, ServedModel, Upkeep};
use crate::preset_budget::preset_budget;
use crate::wire::messages::Media;
use plimsoll_runtime::model_text::FileText;
use plimsoll_runtime::model_text::SimulatedText;

/// Window of a model that is served without a preset and without being told, in tokens.
const DEFAULT_WINDOW: usize = 8192;
/// Full windows the cache has room for where nothing is said; fewer where memory is short, and then that is said.
pub(crate) const DEFAULT_CACHE_WINDOWS: usize = 4;
/// Rows of one step: prefill is as fast as it gets well below.
const STEP_ROWS: usize = 512;
/// Sequences that may decode in one step.
const STEP_SEQUENCES: usize = 64;

/// What one step of a served model may hold.
pub(crate) const fn step_limits() -> StepLimits {
    StepLimits { max_rows: STEP_ROWS, max_logits: STEP_SEQUENCES, kv_type: KvType::F16 }
}

/// Something to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A preset by name; its model is offered under its own name as well.
    Preset(String),
    /// A model without a preset.
    Model(String),
    /// A simulation file.
    Simulation(PathBuf),
}

/// What to load, and how.
#[derive(Debug)]
pub struct LoadOptions {
    /// What to serve, the default first.
    pub wanted: Vec<Wanted>,
    /// Threads of the kernels; by default one per core.
    pub threads: Option<NonZeroUsize>,
    /// Window of models without a preset, in tokens.
    pub window: Option<u32>,
    /// Full windows the K/V cache has room for.
    pub cache_windows: Option<NonZeroUsize>,
    /// Limits of each engine.
    pub engine: EngineConfig,
}

/// A model file and the presets it is wanted under.
struct WantedModel {
    local: LocalModel,
    presets: Vec<(Preset, Budget)>,
}

/// Loads everything that is wanted.
pub fn load(options: &LoadOptions) -> anyhow::Result<Catalog> {
    let mut catalog = Catalog::new();
    let mut models: Vec<WantedModel> = Vec::new();
    for wanted in &options.wanted {
        match wanted {
            Wanted::Simulation(path) => {
                let served = simulation(path, options.engine.clone())?;
                catalog = catalog.with(served.model.engine.clone(), [served]);
            }
            Wanted::Preset(name) => {
                let library = PresetLibrary::load()?;
                let Some(preset) = library.get(name) else {
                    let known: Vec<&str> = library.iter().map(|(preset, _)| preset.name.as_str()).collect();
                    bail!("there is no preset `{name}`; there are {}", known.join(", "));
                };
                // Refused before anything is downloaded.
                let budget = preset_budget(preset)?;
                let at = place_of(&mut models, &preset.model)?;
                models[at].presets.push((preset.clone(), budget));
            }
            Wanted::Model(name) => {
                place_of(&mut models, name)?;
            }
        }
    }
    for wanted in models {
        let (engine, served) = load_model(wanted, options)?;
        catalog = catalog.with(engine, served);
    }
    Ok(catalog)
}

/// Finds or fetches a model; one that is wanted already keeps its place.
fn place_of(models: &mut Vec<WantedModel>, name: &str) -> anyhow::Result<usize> {
    let local = Sources::from_env()?.fetch(name).with_context(|| format!("finding the model `{name}`"))?;
    if let Some(at) = models.iter().position(|known| known.local.path == local.path) {
        return Ok(at);
    }
    models.push(WantedModel { local, presets: Vec::new() });
    Ok(models.len() - 1)
}

fn load_model(wanted: WantedModel, options: &LoadOptions) -> anyhow::Result<(EngineHandle, Vec<ServedModel>)> {
    let WantedModel { local, presets } = wanted;
    if local.path.is_dir() {
        bail!(
            "`{}` is a folder; safetensors checkpoints are not supported yet, give a GGUF file",
            local.path.display()
        );
    }
    let raw_id = match local.origin {
        Origin::Path => local.path.file_stem().map_or_else(|| local.name.clone(), |stem| stem.to_string_lossy().into()),
        _ => local.name.clone(),
    };
    let reading = || format!("reading `{}`", local.path.display());
    let file = GgufFile::open(&local.path).with_context(reading)?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file).with_context(reading)?);
    let template = ChatTemplate::from_gguf(&file, &tokenizer).with_context(reading)?.map(Arc::new);
    let own_dialect = Dialect::of_template(template.as_deref());

    let device = CpuDevice::new(CpuOptions { threads: options.threads, ..CpuOptions::default() })?;
    let limits = step_limits();
    let shape = architecture::plan(&file, &device, limits).with_context(reading)?;
    let raw_window = match (options.window, presets.first()) {
        (Some(window), _) => window,
        (None, Some((_, budget))) => budget.window.0,
        (None, None) => u32::try_from(shape.max_context.min(DEFAULT_WINDOW)).unwrap_or(u32::MAX),
    };
    let raw_config = BudgetConfig { automatic_compaction: Some(false), ..BudgetConfig::default() };
    let raw_budget = Budget::resolve(Some(Tokens(raw_window)), &raw_config)?;
    let longest = presets.iter().map(|(_, budget)| budget.window.0).chain([raw_window]).max().unwrap_or(raw_window);
    let plan = plan(&shape, device.scratch_bytes(), longest as usize, options.cache_windows)?;
    eprintln!("{raw_id} from {}", local.path.display());
    eprint!("{plan}");

    let model = architecture::load(&file, &device, limits).with_context(reading)?;
    let executor = ModelExecutor::new(device, model, plan.pages, longest as usize)?;
    let engine = Engine::start(Box::new(executor), options.engine.clone());
    eprintln!("  on {}", engine.device());

    let trained_window = u32::try_from(shape.max_context).unwrap_or(u32::MAX);
    let loaded = |dialect| LoadedModel {
        text: Arc::new(FileText::new(tokenizer.clone(), template.clone(), dialect, shape.vocab)),
        engine: engine.clone(),
        trained_window,
    };
    let mut served = Vec::with_capacity(presets.len() + 1);
    for (preset, budget) in presets {
        served.push(served_preset(preset, budget, own_dialect, loaded)?);
    }
    served.push(ServedModel {
        id: raw_id.clone(),
        display_name: raw_id,
        model: loaded(own_dialect),
        budget: Arc::new(raw_budget),
        sampling: SamplingParams::default(),
        template_arguments: Map::new(),
        media: Media::Refuse,
        upkeep: Upkeep::default(),
    });
    for model in &served {
        eprintln!("  {}: window {}, prompts up to {} tokens", model.id, model.budget.window, model.longest_prompt());
    }
    Ok((engine, served))
}

fn served_preset(
    preset: Preset,
    budget: Budget,
    own_dialect: Dialect,
    loaded: impl Fn(Dialect) -> LoadedModel,
) -> anyhow::Result<ServedModel> {
    let dialect = match &preset.rendering.dialect {
        None => own_dialect,
        Some(word) => match DialectName::from_word(word) {
            Some(name) => Dialect::new(name, own_dialect.reasoning()),
            None => bail!(
                "preset {}: the dialect `{word}` is not known; known are {}",
                preset.name,
                DialectName::ALL.map(DialectName::as_str).join(", ")
            ),
        },
    };
    let upkeep = Upkeep {
        managed: preset.overflow == Overflow::Compact && budget.automatic_compaction.is_on(),
        guarded: !preset.guard.0.is_empty(),
        fallback: preset.compaction.fallback,
        faults: FaultPlan::default(),
    };
    Ok(ServedModel {
        id: preset.name.clone(),
        display_name: preset.name,
        model: loaded(dialect),
        budget: Arc::new(budget),
        upkeep,
        sampling: sampling_of(&preset.sampling),
        template_arguments: preset.rendering.template_arguments,
        media: match preset.media {
            preset::Media::Refuse => Media::Refuse,
            preset::Media::Placeholder => Media::Placeholder,
        },
    })
}

fn sampling_of(preset: &preset::Sampling) -> SamplingParams {
    let neutral = SamplingParams::default();
    let or = |value: Option<f64>, neutral: f32| value.map_or(neutral, |value| value as f32);
    SamplingParams {
        temperature: or(preset.temperature, neutral.temperature),
        top_p: or(preset.top_p, neutral.top_p),
        top_k: preset.top_k.unwrap_or(neutral.top_k),
        min_p: or(preset.min_p, neutral.min_p),
        presence_penalty: or(preset.presence_penalty, neutral.presence_penalty),
        frequency_penalty: or(preset.frequency_penalty, neutral.frequency_penalty),
        repetition_penalty: or(preset.repetition_penalty, neutral.repetition_penalty),
        ..neutral
    }
}

/// Plans the memory. A number of windows that was asked for is had or refused; the default one shrinks until it fits,
/// to one window at the least.
fn plan(
    shape: &ModelShape,
    scratch: usize,
    window: usize,
    asked: Option<NonZeroUsize>,
) -> Result<MemoryPlan, PlanError> {
    let available = available_memory();
    let of = |windows| MemoryPlan::new(shape, scratch, window, PoolSize::Windows(windows), available);
    if let Some(asked) = asked {
        return of(asked.get());
    }
    let mut windows = DEFAULT_CACHE_WINDOWS;
    loop {
        match of(windows) {
            Err(PlanError::TooLittleMemory { .. }) if windows > 1 => windows -= 1,
            plan => {
                if windows < DEFAULT_CACHE_WINDOWS {
                    eprintln!("memory is short: room for {windows} of {DEFAULT_CACHE_WINDOWS} full windows");
                }
                return plan;
            }
        }
    }
}

/// Starts a simulation.
pub fn simulation(path: &Path, engine: EngineConfig) -> anyhow::Result<ServedModel> {
    let script = SimulationScript::read(path).with_context(|| format!("reading `{}`", path.display()))?;
    simulation_of(&script, engine)
}

/// Starts a simulation from a script. Its window has the default ratios; prompts count one token per byte.
pub fn simulation_of(script: &SimulationScript, engine: EngineConfig) -> anyhow::Result<ServedModel> {
    let window = u32::try_from(script.window).context("the simulation's window does not fit 32 bits")?;
    let budget = Budget::resolve(Some(Tokens(window)), &BudgetConfig::default())?;
    let budget_is_automatic = budget.automatic_compaction.is_on();
    let text = SimulatedText::new(&script.dialect)?;
    let executor = SimulatedExecutor::new(script, SimulatedLimits::for_window(script.window));
    Ok(ServedModel {
        id: script.model.clone(),
        display_name: script.model.clone(),
        model: LoadedModel {
            text: Arc::new(text),
            engine: Engine::start(Box::new(executor), engine),
            trained_window: window,
        },
        budget: Arc::new(budget),
        sampling: SamplingParams::default(),
        template_arguments: Map::<String, Value>::new(),
        media: Media::Refuse,
        upkeep: Upkeep {
            managed: script.managed && budget_is_automatic,
            guarded: script.guarded,
            fallback: script.fallback,
            faults: faults_of(script)?,
        },
    })
}

/// The faults a script names for compactions.
fn faults_of(script: &SimulationScript) -> anyhow::Result<FaultPlan> {
    let faults = &script.faults;
    let pause = match &faults.pause_compaction {
        None => None,
        Some(pause) => {
            let step = pause.step.parse().context("faults.pause_compaction.step")?;
            Some((step, Duration::from_millis(pause.ms)))
        }
    };
    let fail = faults.fail_compaction.as_deref().map(str::parse).transpose().context("faults.fail_compaction")?;
    Ok(FaultPlan { pause, fail })
}
