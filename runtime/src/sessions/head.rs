//! What stands before the first turn of a conversation: system messages, tools, template variables.
//!
//! A client sends it with every request and may change it. The session keeps the last one, so that it can be compacted
//! by hand and after a restart. Types only.

use plimsoll_models::chat::{Message, Tool};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The leading system messages.
    pub system: Vec<Message>,
    /// The tools the model is told of.
    pub tools: Vec<Tool>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
}
