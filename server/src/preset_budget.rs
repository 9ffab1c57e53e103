//! The budget of a preset: its section as data, read and resolved by the runtime's arithmetic.

use plimsoll_models::preset::Preset;
use plimsoll_runtime::budget::Budget;
use serde_json::Value;

/// The budget of a preset, or why it is refused, with the numbers.
pub fn preset_budget(preset: &Preset) -> anyhow::Result<Budget> {
    let refused = |error: &dyn std::fmt::Display| anyhow::anyhow!("preset {}: budget: {error}", preset.name);
    let config = serde_json::from_value(Value::Object(preset.budget.0.clone())).map_err(|error| refused(&error))?;
    Budget::resolve(None, &config).map_err(|error| refused(&error))
}
