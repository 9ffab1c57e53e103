//! From what was asked for on the command line to running engines.
//!
//! Owns the way from a preset, a model name or a simulation file to a [`Catalog`]. Blocking; runs aside.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use plimsoll_runtime::budget::{Budget, BudgetConfig, Tokens};
use plimsoll_runtime::engine::{Engine, EngineConfig, SamplingParams};
use plimsoll_runtime::simulated::{SimulatedExecutor, SimulatedLimits, SimulationScript};

use crate::catalog::{LoadedModel, ServedModel};
use crate::generate::simulated_text::SimulatedText;
use crate::wire::messages::Media;

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
            text: Arc::new(SimulatedText),
            engine: Engine::start(Box::new(executor), engine),
            trained_window: window,
        },
        budget: Arc::new(budget),
        sampling: SamplingParams::default(),
        media: Media::Refuse,
    })
}
