//! The published JSON Schema of preset files, made from the types that read them.
//!
//! Owns the schemas of the sections that are data here: the lists of their keys. The server, where all rooms meet, holds
//! these lists against the types that read them. The file `presets/schema.json` is a copy that a test keeps equal.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::document::{BudgetSection, GuardSection, Preset};

/// The eight quantities of a window: name, what it is, default ratio.
pub const QUANTITIES: [(&str, &str, f64); 8] = [
    ("economy", "from here the model is told to be frugal", 0.5),
    ("checkpoint", "from here the model is told to keep its durable facts in order", 0.625),
    ("compaction", "from here the session is summarised and replaced", 0.7),
    ("response", "cap of one reply", 0.1875),
    ("summary", "most output of a summary, reasoning included", 0.0625),
    ("summary_min", "least output of a summary", 0.007_812_5),
    ("safety", "never used by anything", 0.03125),
    ("retain", "verbatim tail of compactions that keep one", 0.244_140_625),
];

/// The guard's ceilings, which may be `null`: name, what it is, default.
const CEILINGS: [(&str, &str, Option<u64>); 4] = [
    ("max_turn_steps", "Model steps of one turn; null is no ceiling.", Some(48)),
    ("max_turn_tool_calls", "Tool calls of one turn; null is no ceiling.", Some(48)),
    ("max_turn_ms", "Milliseconds of one turn; null is no ceiling.", Some(900_000)),
    ("max_turn_tokens", "Tokens generated in one turn; null is no ceiling.", None),
];

/// The guard's positive counts: name, what it is, default.
const COUNTS: [(&str, &str, u64); 6] = [
    ("no_progress_limit", "Calls without progress before a pause.", 3),
    ("equivalent_limit", "Equivalent calls before a stop.", 5),
    ("diagnostic_max_calls", "Completed read-only calls of one diagnosis.", 3),
    ("diagnostic_max_ms", "Milliseconds of one diagnosis.", 120_000),
    ("result_fingerprint_chars", "Characters of a result that are stored for people to read.", 8000),
    ("same_failure_across_changes", "Real changes that the same failure may survive.", 12),
];

impl JsonSchema for BudgetSection {
    fn schema_name() -> Cow<'static, str> {
        "Budget".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let tokens = |description: &str| json!({"type": "integer", "minimum": 0, "description": description});
        let mut properties = Map::new();
        let policy = json!({
            "enum": ["ratio", "absolute"],
            "default": "ratio",
            "description": "Whether thresholds are shares of the window or follow by subtracting fixed amounts.",
        });
        let window = json!({"type": "integer", "minimum": 2048, "description": "Tokens of prompt and reply together."});
        let automatic =
            json!({"type": "boolean", "description": "Whether the engine compacts by itself where it can."});
        properties.insert("policy".into(), policy);
        properties.insert("window".into(), window);
        properties.insert("automatic_compaction".into(), automatic);
        for (name, what, default) in QUANTITIES {
            let ratio = json!({
                "type": "number",
                "exclusiveMinimum": 0,
                "exclusiveMaximum": 1,
                "default": default,
                "description": format!("Share of the window: {what}. Wins over {name}_tokens."),
            });
            properties.insert(format!("{name}_ratio"), ratio);
            properties.insert(format!("{name}_tokens"), tokens(&format!("Tokens: {what}.")));
        }
        properties.insert("max_output".into(), tokens("Absolute policy: most tokens of a reply."));
        properties.insert("cap".into(), tokens("Absolute policy: the window counts as no larger than this."));
        properties.insert("blocking".into(), tokens("Absolute policy: a prompt of this many tokens is refused."));
        let percent = json!({
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 100,
            "description": "Absolute policy: compaction at this percentage of the reduced window, where that is earlier.",
        });
        properties.insert("percent".into(), percent);
        json_schema!({
            "type": "object",
            "description": "The window and its division.",
            "properties": properties,
            "required": ["window"],
            "additionalProperties": false,
        })
    }
}

impl JsonSchema for GuardSection {
    fn schema_name() -> Cow<'static, str> {
        "Guard".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for (name, what, default) in CEILINGS {
            let ceiling = json!({"type": ["integer", "null"], "minimum": 1, "default": default, "description": what});
            properties.insert(name.into(), ceiling);
        }
        for (name, what, default) in COUNTS {
            let count = json!({"type": "integer", "minimum": 1, "default": default, "description": what});
            properties.insert(name.into(), count);
        }
        let similarity = json!({
            "type": "number",
            "minimum": 0.8,
            "maximum": 1,
            "default": 0.94,
            "description": "From this similarity on two texts of the assistant count as the same.",
        });
        let evidence = json!({
            "enum": ["reported", "verified"],
            "default": "reported",
            "description": "Which facts count: also what known clients report, or only what executors verified.",
        });
        let after = json!({
            "enum": ["resume", "stop"],
            "default": "stop",
            "description": "What follows a diagnosis: work goes on with the timed-out action blocked, or nothing does \
                            until the next user message.",
        });
        let timeouts = json!({
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 1},
            "description": "Milliseconds by tool name, for the managed executor.",
        });
        properties.insert("text_similarity".into(), similarity);
        properties.insert("evidence".into(), evidence);
        properties.insert("after_diagnosis".into(), after);
        properties.insert("tool_timeouts".into(), timeouts);
        json_schema!({
            "type": "object",
            "description": "The limits of the guard.",
            "properties": properties,
            "additionalProperties": false,
        })
    }
}

/// The schema of a preset file.
pub fn preset_schema() -> Value {
    let mut schema = schemars::schema_for!(Preset).to_value();
    schema["title"] = json!("Plimsoll preset");
    schema
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `PLIMSOLL_WRITE_SCHEMA=1 cargo test -p plimsoll-models published_schema` writes the file anew.
    #[test]
    fn the_published_schema_is_the_one_the_types_make() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/schema.json");
        let made = serde_json::to_string_pretty(&preset_schema()).unwrap() + "\n";
        if std::env::var_os("PLIMSOLL_WRITE_SCHEMA").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let published = std::fs::read_to_string(path).unwrap();
        assert!(published == made, "presets/schema.json is not what the types make; `just schema` writes it anew");
    }

    #[test]
    fn every_key_of_the_embedded_presets_is_in_the_schema() {
        let schema = preset_schema();
        let properties = |pointer: &str| schema.pointer(pointer).unwrap().as_object().unwrap();
        for preset in crate::preset::embedded() {
            let Value::Object(keys) = serde_json::to_value(&preset).unwrap() else { panic!("an object") };
            for key in keys.keys() {
                assert!(properties("/properties").contains_key(key), "{key}");
            }
            for (section, keys) in [("Budget", &preset.budget.0), ("Guard", &preset.guard.0)] {
                for key in keys.keys() {
                    assert!(properties(&format!("/$defs/{section}/properties")).contains_key(key), "{section}: {key}");
                }
            }
        }
    }
}
