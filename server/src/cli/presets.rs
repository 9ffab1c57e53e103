//! `plimsoll presets`: the presets one can serve, one of them in full, and the schema of their files.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use plimsoll_guard::GuardLimits;
use plimsoll_models::preset::library::user_folder;
use plimsoll_models::preset::schema::preset_schema;
use plimsoll_models::preset::{Preset, PresetLibrary, PresetOrigin};
use serde_json::{Value, json};

use crate::preset_budget::preset_budget;

/// List presets, show one, or print the JSON Schema of preset files.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll presets
  plimsoll presets show local-robust-27b
  plimsoll presets schema > schema.json

Presets of one's own are JSON files in ~/.config/plimsoll/presets
(XDG_CONFIG_HOME and PLIMSOLL_CONFIG_DIR move it).")]
pub struct Presets {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print JSON instead of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List all presets (the default).
    List,
    /// Show one preset with the token counts that follow from it.
    Show {
        /// The preset's name.
        name: String,
    },
    /// Print the JSON Schema of preset files.
    Schema,
}

impl Presets {
    /// Prints what was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        match self.action.unwrap_or(Action::List) {
            Action::Schema => {
                serde_json::to_writer_pretty(&mut out, &preset_schema())?;
                writeln!(out)?;
            }
            Action::List => {
                let library = PresetLibrary::load()?;
                if self.json {
                    let list = library
                        .iter()
                        .map(|(preset, origin)| as_json(preset, origin))
                        .collect::<anyhow::Result<Vec<_>>>()?;
                    serde_json::to_writer_pretty(&mut out, &list)?;
                    writeln!(out)?;
                } else {
                    out.write_all(table(&library)?.as_bytes())?;
                }
            }
            Action::Show { name } => {
                let library = PresetLibrary::load()?;
                let Some((preset, origin)) = library.iter().find(|(preset, _)| preset.name == name) else {
                    let names: Vec<_> = library.iter().map(|(preset, _)| preset.name.as_str()).collect();
                    eprintln!("plimsoll: no preset is called {name:?}; there are {}", names.join(", "));
                    return Ok(ExitCode::from(2));
                };
                // A preset is JSON, so it is shown as such either way.
                serde_json::to_writer_pretty(&mut out, &as_json(preset, origin)?)?;
                writeln!(out)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn origin_text(origin: &PresetOrigin) -> String {
    match origin {
        PresetOrigin::Embedded => "embedded".to_owned(),
        PresetOrigin::File(path) => path.display().to_string(),
    }
}

fn as_json(preset: &Preset, origin: &PresetOrigin) -> anyhow::Result<Value> {
    Ok(json!({
        "name": preset.name,
        "origin": origin_text(origin),
        "preset": preset,
        "tokens": preset_budget(preset)?,
        "guard_limits": guard_limits_of(preset)?,
    }))
}

/// The guard's limits of a preset, or why they are refused.
pub(super) fn guard_limits_of(preset: &Preset) -> anyhow::Result<GuardLimits> {
    serde_json::from_value(Value::Object(preset.guard.0.clone()))
        .map_err(|error| anyhow::anyhow!("preset {}: guard: {error}", preset.name))
}

fn table(library: &PresetLibrary) -> anyhow::Result<String> {
    let mut text = String::new();
    for (preset, origin) in library.iter() {
        let budget = preset_budget(preset)?;
        writeln!(
            text,
            "{:<18} window {:>7}  compaction {:>6}  response {:>6}  model {:<22} {}",
            preset.name,
            budget.window,
            budget.compaction,
            budget.response,
            preset.model,
            origin_text(origin),
        )?;
        writeln!(text, "{:<18} {}", "", preset.about)?;
    }
    if let Some(folder) = user_folder() {
        writeln!(text, "\npresets of one's own: {}", folder.display())?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use plimsoll_guard::Positive;
    use plimsoll_models::preset::{BudgetSection, embedded};
    use plimsoll_runtime::budget::{BudgetConfig, Tokens};
    use serde_json::Map;

    use super::*;

    #[test]
    fn the_embedded_presets_divide_their_windows_as_documented() {
        let expected = [
            ("demo", [8192, 4096, 5120, 5734, 1536, 512, 64, 256, 2000]),
            ("local-robust-9b", [131_072, 65_536, 81_920, 91_750, 24_576, 8192, 1024, 4096, 32_000]),
            ("local-robust-27b", [64_000, 32_000, 40_000, 44_800, 12_000, 4000, 500, 2000, 15_625]),
        ];
        for (preset, (name, numbers)) in embedded().iter().zip(expected) {
            let budget = preset_budget(preset).unwrap();
            let found = [
                budget.window,
                budget.economy,
                budget.checkpoint,
                budget.compaction,
                budget.response,
                budget.summary,
                budget.summary_min,
                budget.safety,
                budget.retain,
            ];
            assert_eq!((preset.name.as_str(), found), (name, numbers.map(Tokens)));
            assert!(budget.automatic_compaction.is_on());
        }
    }

    #[test]
    fn the_embedded_presets_give_the_guard_its_documented_limits() {
        for preset in embedded() {
            let limits = guard_limits_of(&preset).unwrap();
            let expected = match preset.name.as_str() {
                "local-robust-9b" => GuardLimits::local_robust(),
                "local-robust-27b" => GuardLimits {
                    result_fingerprint_chars: Positive::new(3906).unwrap(),
                    ..GuardLimits::local_robust()
                },
                _ => GuardLimits::default(),
            };
            assert_eq!(limits, expected, "{}", preset.name);
        }
    }

    /// The schema names the guard's keys with the guard's defaults.
    #[test]
    fn the_schema_and_the_guard_know_the_same_keys() {
        let schema = preset_schema();
        let keys = schema.pointer("/$defs/Guard/properties").unwrap().as_object().unwrap();
        let written = serde_json::to_value(GuardLimits::default()).unwrap();
        for (key, shape) in keys {
            let default = shape.get("default").unwrap_or(&Value::Null);
            assert_eq!(written.get(key).unwrap_or(&Value::Null), default, "{key}");
            let value = match key.as_str() {
                "tool_timeouts" => json!({"bash": 5}),
                _ if default.is_null() => json!(7),
                _ => default.clone(),
            };
            serde_json::from_value::<GuardLimits>(json!({key: value})).unwrap();
        }
        for key in written.as_object().unwrap().keys() {
            assert!(keys.contains_key(key), "{key}");
        }
    }

    /// The schema's budget keys are those that the runtime's budget reads: each is accepted, and no other is written.
    #[test]
    fn the_schema_and_the_budget_know_the_same_keys() {
        let schema = preset_schema();
        let keys = schema.pointer("/$defs/Budget/properties").unwrap().as_object().unwrap();
        let mut all = Map::new();
        for (key, shape) in keys {
            let value = match shape.get("type").and_then(Value::as_str) {
                Some("boolean") => json!(true),
                Some("number") => json!(0.5),
                Some("integer") => json!(4096),
                _ => json!("ratio"),
            };
            all.insert(key.clone(), value);
        }
        let config: BudgetConfig = serde_json::from_value(Value::Object(all.clone())).unwrap();
        let Value::Object(written) = serde_json::to_value(&config).unwrap() else { panic!("an object") };
        let sorted = |map: &Map<String, Value>| {
            let mut keys: Vec<_> = map.keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(sorted(&written), sorted(&all));
    }

    #[test]
    fn a_preset_whose_budget_breaks_the_invariants_is_refused_with_the_numbers() {
        let mut preset = embedded().into_iter().find(|preset| preset.name == "local-robust-27b").unwrap();
        preset.budget =
            BudgetSection(json!({"window": 64_000, "compaction_tokens": 46_080}).as_object().unwrap().clone());
        let message = preset_budget(&preset).unwrap_err().to_string();
        assert!(message.contains("64080") && message.contains("local-robust-27b"), "{message}");
        preset.budget = BudgetSection(json!({"window": 64_000, "sumary_ratio": 0.1}).as_object().unwrap().clone());
        assert!(preset_budget(&preset).unwrap_err().to_string().contains("sumary_ratio"));
    }
}
