//! From what was asked for on the command line to running engines.
//!
//! Owns the way from a preset, a model name or a simulation file to a [`Catalog`]. Blocking; runs aside.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use plimsoll_runtime::budget::{Budget, BudgetConfig, Tokens};
use plimsoll_runtime::engine::{Engine, EngineConfig, SamplingParams};
use plimsoll_runtime::simulated::{SimulatedExecutor, SimulatedLimits, SimulationScript};

use crate::catalog::{Catalog, LoadedModel, ServedModel};
use crate::generate::simulated_text::SimulatedText;
use crate::wire::messages::Media;

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

/// Loads everything that is wanted.
pub fn load(options: &LoadOptions) -> anyhow::Result<Catalog> {
    let mut models = Vec::new();
    for wanted in &options.wanted {
        match wanted {
            Wanted::Simulation(path) => models.push(simulation(path, options.engine.clone())?),
            Wanted::Preset(name) => bail!("the preset `{name}` cannot be loaded by this build; use --simulate"),
            Wanted::Model(name) => bail!("the model `{name}` cannot be loaded by this build; use --simulate"),
        }
    }
    Ok(Catalog::new(models))
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
    let executor = SimulatedExecutor::new(script, SimulatedLimits::for_window(script.window));
    Ok(ServedModel {
        id: script.model.clone(),
        display_name: script.model.clone(),
        model: LoadedModel {
            text: Arc::new(SimulatedText::new(&script.dialect)?),
            engine: Engine::start(Box::new(executor), engine),
            trained_window: window,
        },
        budget: Arc::new(budget),
        sampling: SamplingParams::default(),
        media: Media::Refuse,
    })
}
