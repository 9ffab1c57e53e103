//! Scripted replies behind the executor contract.
//!
//! A [`SimulatedExecutor`] has no weights: its logits are peaked at the next byte of a scripted reply. Everything above
//! it is the real engine (pages, prefix index, scheduler, budget), so a server can be tested with real clients on any
//! machine. It owns a script and a cursor per sequence; it never looks at the prompt.
//!
//! - `script`: the file a simulation is described by.
//! - `vocabulary`: one token per byte, and three control tokens.
//! - `executor`: the replay.

mod executor;
mod script;
mod vocabulary;

pub use executor::{SimulatedExecutor, SimulatedLimits};
pub use script::{ScriptError, ScriptedReply, SimulationFaults, SimulationScript, TimedReply};
pub use vocabulary::{CONTROL_TOKENS, END_OF_TEXT, IM_END, IM_START, VOCABULARY, encode};
