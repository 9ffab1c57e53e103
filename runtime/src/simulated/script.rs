//! The file a simulation is described by.
//!
//! ```json
//! {
//!   "model": "scripted", "dialect": "chatml", "window": 8192,
//!   "replies": ["Hello.", {"text": "Slowly.", "ttft_ms": 500, "tpot_ms": 20}],
//!   "default": "I have nothing more to say."
//! }
//! ```
//! Every generation consumes one reply, in order, summaries included; when they are used up, each gets `default`.
//! Texts are raw model text: tool calls and reasoning are written as the dialect writes them.

use std::path::Path;

use plimsoll_models::preset::Fallback;
use serde::{Deserialize, Serialize};

/// What is said when the replies are used up and the script does not say.
const OVER: &str = "The script is over.";

/// A script that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("cannot read the simulation script: {0}")]
    Read(#[from] std::io::Error),
    /// It is no script: broken JSON, a missing or an unknown key.
    #[error("the simulation script is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The window holds nothing.
    #[error("the simulation's window is {found} tokens, expected at least {least}")]
    WindowTooSmall {
        /// Tokens in the script.
        found: usize,
        /// Tokens it needs.
        least: usize,
    },
}

/// One scripted reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ScriptedReply {
    /// Raw model text, as fast as the machine is.
    Text(String),
    /// Raw model text at a given speed.
    Timed(TimedReply),
}

/// Raw model text at a given speed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedReply {
    /// The text.
    pub text: String,
    /// Milliseconds before its first token. The step that makes it takes so long, for everyone who runs.
    #[serde(default)]
    pub ttft_ms: u64,
    /// Milliseconds before every other token.
    #[serde(default)]
    pub tpot_ms: u64,
}

impl ScriptedReply {
    /// The raw model text.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Timed(reply) => &reply.text,
        }
    }

    pub(super) fn times_ms(&self) -> (u64, u64) {
        match self {
            Self::Text(_) => (0, 0),
            Self::Timed(reply) => (reply.ttft_ms, reply.tpot_ms),
        }
    }
}

/// Faults that a test of a server wants to see handled. Steps are counted from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulationFaults {
    /// The step that fails as a broken device does.
    pub error_at_step: Option<u64>,
    /// The step that panics as a bug does.
    pub panic_at_step: Option<u64>,
    /// A compaction that waits before it goes on from a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_compaction: Option<CompactionPause>,
    /// The step of a compaction that fails as a broken disk does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_compaction: Option<String>,
}

/// Where a compaction waits, and how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactionPause {
    /// The step's name.
    pub step: String,
    /// Milliseconds.
    pub ms: u64,
}

/// A simulation; see the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulationScript {
    /// The model id that is served.
    pub model: String,
    /// The dialect whose templates and parsers apply.
    pub dialect: String,
    /// The context window, in tokens (bytes).
    pub window: usize,
    /// Replies in order.
    pub replies: Vec<ScriptedReply>,
    /// The reply when they are used up.
    #[serde(default = "over")]
    pub default: String,
    /// Served as a preset whose sessions the server compacts by itself.
    #[serde(default)]
    pub managed: bool,
    /// Served as a preset with a guard: a compaction that fails stops the session.
    #[serde(default)]
    pub guarded: bool,
    /// What fills a section of a summary that the script fails at.
    #[serde(default)]
    pub fallback: Fallback,
    /// Faults to inject.
    #[serde(default, skip_serializing_if = "is_faultless")]
    pub faults: SimulationFaults,
}

fn over() -> String {
    OVER.to_owned()
}

fn is_faultless(faults: &SimulationFaults) -> bool {
    *faults == SimulationFaults::default()
}

impl SimulationScript {
    /// The least window: room for a prompt and a reply of one token.
    pub const LEAST_WINDOW: usize = 2;

    /// Reads a script.
    ///
    /// # Errors
    /// Broken JSON, a missing or unknown key, a window without room.
    pub fn parse(json: &str) -> Result<Self, ScriptError> {
        let script: Self = serde_json::from_str(json)?;
        if script.window < Self::LEAST_WINDOW {
            return Err(ScriptError::WindowTooSmall { found: script.window, least: Self::LEAST_WINDOW });
        }
        Ok(script)
    }

    /// Reads a script from a file.
    ///
    /// # Errors
    /// As [`SimulationScript::parse`], and a file that cannot be read.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_it_is_documented() {
        let script = SimulationScript::parse(
            r#"{"model": "scripted", "dialect": "chatml", "window": 8192,
                "replies": ["Hello.", {"text": "Slowly.", "ttft_ms": 500, "tpot_ms": 20}, {"text": "Plain."}],
                "default": "Nothing more."}"#,
        )
        .unwrap();
        assert_eq!(script.replies.iter().map(ScriptedReply::text).collect::<Vec<_>>(), ["Hello.", "Slowly.", "Plain."]);
        assert_eq!(script.replies.iter().map(ScriptedReply::times_ms).collect::<Vec<_>>(), [(0, 0), (500, 20), (0, 0)]);
        assert_eq!(script.default, "Nothing more.");
        assert_eq!(SimulationScript::parse(&serde_json::to_string(&script).unwrap()).unwrap(), script);
    }

    #[test]
    fn unknown_keys_and_empty_windows_are_refused() {
        let refused = |json| SimulationScript::parse(json).unwrap_err().to_string();
        let extra = refused(r#"{"model": "m", "dialect": "chatml", "window": 9, "replies": [], "speed": 3}"#);
        assert!(extra.contains("speed"), "{extra}");
        let reply = r#"{"model": "m", "dialect": "chatml", "window": 9, "replies": [{"text": "", "tps": 1}]}"#;
        assert!(SimulationScript::parse(reply).is_err());
        assert!(refused(r#"{"model": "m", "dialect": "chatml", "window": 1, "replies": []}"#).contains("at least 2"));
        assert!(refused(r#"{"model": "m", "window": 9, "replies": []}"#).contains("dialect"));
    }
}
