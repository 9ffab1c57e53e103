//! The shape of a preset file.
//!
//! Owns what is read here and nowhere else: the model, the sampling defaults, the rendering. The sections `budget` and
//! `guard` are carried as data: each has one definition, in the room that acts on it (the runtime's `BudgetConfig`, the
//! guard's `GuardLimits`), which also refuses unknown keys and impossible values. Whoever serves a preset reads them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::source::{ModelName, SourceError};

/// Why a preset file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PresetError {
    /// The text is no preset: no JSON, an unknown key, a missing key, a value of the wrong kind.
    #[error("{origin}: {source}")]
    Parse {
        /// Where the text came from.
        origin: String,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// A value is outside its limits.
    #[error("{origin}: {key} is {found}, expected {expected}")]
    Value {
        /// Where the text came from.
        origin: String,
        /// The key, with dots.
        key: &'static str,
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// The model's name makes no sense.
    #[error("{origin}: model: {source}")]
    Model {
        /// Where the text came from.
        origin: String,
        /// What is wrong with the name.
        source: SourceError,
    },
    /// The file cannot be read.
    #[error("cannot read {origin}: {source}")]
    Io {
        /// The file or folder.
        origin: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// One preset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Where the JSON Schema of this file lies; for editors, otherwise without meaning.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The model id on the API: letters, digits, '-', '_' and '.'.
    pub name: String,
    /// One line for a list.
    pub about: String,
    /// The model: a known name, a hub file as org/repository:file.gguf, or a path.
    pub model: String,
    /// The window and its division.
    pub budget: BudgetSection,
    /// How tokens are chosen where a request does not say. What is left out stays neutral.
    #[serde(default)]
    pub sampling: Sampling,
    /// How a conversation becomes a prompt.
    #[serde(default)]
    pub rendering: Rendering,
    /// The limits of the guard; left out, its defaults hold.
    #[serde(default)]
    pub guard: GuardSection,
    /// What happens when the window fills.
    #[serde(default)]
    pub overflow: Overflow,
    /// How a session is compacted.
    #[serde(default)]
    pub compaction: Compaction,
    /// What becomes of images, audio and files in messages.
    #[serde(default)]
    pub media: Media,
}

/// The budget section as data: the keys of the runtime's budget.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BudgetSection(pub Map<String, Value>);

/// The guard section as data: the keys of the guard's limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GuardSection(pub Map<String, Value>);

/// Sampling defaults of a preset. `null` or left out: neutral, the stage is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// 0 is greedy.
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
    /// Nucleus mass.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: Option<f64>,
    /// Tokens kept; 0 is off.
    pub top_k: Option<u32>,
    /// Least probability relative to the likeliest token.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_p: Option<f64>,
    /// Subtracted from the logit of every token seen in the reply.
    #[schemars(range(min = -2.0, max = 2.0))]
    pub presence_penalty: Option<f64>,
    /// Subtracted from the logit per occurrence in the reply.
    #[schemars(range(min = -2.0, max = 2.0))]
    pub frequency_penalty: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens seen; 1 is off.
    #[schemars(range(min = 0.1, max = 10.0))]
    pub repetition_penalty: Option<f64>,
}

/// How a conversation becomes a prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rendering {
    /// The dialect; `null` or left out: the one that the model file's own template shows.
    pub dialect: Option<String>,
    /// Values handed to the chat template in every render, such as `preserve_thinking`. A request's
    /// `chat_template_kwargs` win.
    pub template_arguments: Map<String, Value>,
}

/// What happens when the window fills.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// The session is compacted and goes on.
    #[default]
    Compact,
    /// The session hands over to a fresh one.
    Handoff,
    /// The client gets the overflow error.
    Error,
}

/// How a session is compacted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Compaction {
    /// What fills a section of the summary that the model failed at.
    pub fallback: Fallback,
    /// Whether the clarity probe is asked before a summary replaces the history.
    pub clarity_gate: bool,
}

/// What fills a section of the summary that the model failed at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Nothing: the compaction fails and the history stays.
    #[default]
    None,
    /// Facts the engine extracted itself. For models that are too small to summarise.
    Facts,
}

/// What becomes of images, audio and files in messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Media {
    /// The request is refused, naming the part.
    #[default]
    Refuse,
    /// A word in brackets takes its place, and the response says so.
    Placeholder,
}

impl Preset {
    /// Reads and checks a preset. `origin` is for messages.
    ///
    /// The sections `budget` and `guard` are not looked into here; whoever serves the preset does.
    pub fn parse(text: &str, origin: &str) -> Result<Self, PresetError> {
        let preset: Self =
            serde_json::from_str(text).map_err(|source| PresetError::Parse { origin: origin.to_owned(), source })?;
        preset.check(origin)?;
        Ok(preset)
    }

    /// The model as asked for.
    pub fn model_name(&self) -> Result<ModelName, SourceError> {
        ModelName::parse(&self.model)
    }

    fn check(&self, origin: &str) -> Result<(), PresetError> {
        let refuse =
            |key, found: String, expected| Err(PresetError::Value { origin: origin.to_owned(), key, found, expected });
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(plain) {
            return refuse("name", format!("{:?}", self.name), "1 to 64 letters, digits, '-', '_' or '.'");
        }
        let Sampling { temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, .. } =
            self.sampling;
        let ranges = [
            ("sampling.temperature", temperature, 0.0, 2.0, "0 to 2"),
            ("sampling.top_p", top_p, 0.0, 1.0, "0 to 1"),
            ("sampling.min_p", min_p, 0.0, 1.0, "0 to 1"),
            ("sampling.presence_penalty", presence_penalty, -2.0, 2.0, "-2 to 2"),
            ("sampling.frequency_penalty", frequency_penalty, -2.0, 2.0, "-2 to 2"),
            ("sampling.repetition_penalty", repetition_penalty, 0.1, 10.0, "0.1 to 10"),
        ];
        for (key, value, least, most, expected) in ranges {
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                return refuse(key, value.to_string(), expected);
            }
        }
        match self.model_name() {
            // The file may be on another disk today; that is for whoever loads it to say.
            Ok(_) | Err(SourceError::NoSuchFile { .. }) => Ok(()),
            Err(source) => Err(PresetError::Model { origin: origin.to_owned(), source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn minimal() -> Value {
        json!({"name": "mine", "about": "a test", "model": "smollm2", "budget": {"window": 8192}})
    }

    fn with(key: &str, value: Value) -> Result<Preset, PresetError> {
        let mut preset = minimal();
        let mut place = &mut preset;
        for word in key.split('.') {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[word];
        }
        *place = value;
        Preset::parse(&preset.to_string(), "test")
    }

    #[test]
    fn what_is_left_out_has_the_documented_default() {
        let preset = Preset::parse(&minimal().to_string(), "test").unwrap();
        assert_eq!(preset.guard, GuardSection::default());
        assert_eq!(preset.sampling, Sampling::default());
        assert_eq!((preset.overflow, preset.media), (Overflow::Compact, Media::Refuse));
    }

    #[test]
    fn unknown_keys_are_refused_at_every_level() {
        for key in ["sumary", "sampling.temprature", "compaction.gate", "rendering.template"] {
            let error = with(key, json!(1)).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{key}: {error}");
        }
    }

    #[test]
    fn values_outside_their_limits_are_named() {
        for (key, value) in [
            ("sampling.temperature", json!(-0.1)),
            ("sampling.temperature", json!(2.5)),
            ("sampling.top_p", json!(1.01)),
            ("sampling.presence_penalty", json!(-3)),
            ("sampling.repetition_penalty", json!(0)),
            ("name", json!("")),
            ("name", json!("a/b")),
        ] {
            match with(key, value.clone()).unwrap_err() {
                PresetError::Value { key: named, .. } => assert_eq!(named, key, "{value}"),
                other => panic!("{key} = {value}: {other}"),
            }
        }
        assert!(matches!(with("model", json!("gpt-17")), Err(PresetError::Model { .. })));
        assert!(with("model", json!("/not/there.gguf")).is_ok(), "a missing file is said when it is loaded");
    }

    #[test]
    fn a_preset_survives_being_written_and_read() {
        let preset = with("guard.max_turn_steps", Value::Null).unwrap();
        assert_eq!(preset.guard.0["max_turn_steps"], Value::Null, "null is not the same as left out");
        let text = serde_json::to_string(&preset).unwrap();
        assert_eq!(Preset::parse(&text, "test").unwrap(), preset);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_error_and_no_panic(text in ".{0,200}") {
            assert!(Preset::parse(&text, "test").is_err());
        }
    }
}
