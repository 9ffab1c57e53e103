//! How a model family writes tool calls and reasoning: what goes into the prompt, and how the output is split again.
//!
//! Owns the choice of a dialect from a template, the preparation of a conversation for templates that know no tools, and
//! the tags. The template itself is rendered by [`crate::template`]; turns are ended by the tokenizer's end tokens. Model
//! text never causes an error here: what is no call is content.
//!
//! | dialect | template | tools |
//! |---|---|---|
//! | `hermes` | writes `<tool_call>` itself (Qwen2.5, Qwen3, Hermes) | rendered by the template |
//! | `chatml` | any other chat template (SmolLM2) | described in the system message in Hermes form |
//! | `plain` | none (base models) | not supported |

mod forgiving_json;
mod hermes;
mod splitter;
#[cfg(test)]
mod tests;

use crate::chat::{Message, Tool};
use crate::template::{ChatTemplate, normalise_for_template};

pub use splitter::{OutputPart, OutputSplitter};

/// The names of the dialects, as scripted replies and presets write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DialectName {
    /// ChatML or another turn format whose template writes Hermes calls itself.
    Hermes,
    /// A chat template without tools of its own; tools are described in the system message.
    ChatMl,
    /// No chat format at all.
    Plain,
}

impl DialectName {
    /// All names.
    pub const ALL: [Self; 3] = [Self::Hermes, Self::ChatMl, Self::Plain];

    /// The word for configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::ChatMl => "chatml",
            Self::Plain => "plain",
        }
    }

    /// The dialect with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == word)
    }
}

/// Whether replies contain reasoning in `<think>` tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStyle {
    /// There is none; the tag is text like any other.
    None,
    /// `<think>` opens it at the beginning of a reply, or already in the prompt; `</think>` ends it.
    ThinkTags,
}

/// How a model family writes calls and reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    name: DialectName,
    reasoning: ReasoningStyle,
}

/// A conversation in the form its template wants.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedConversation {
    /// One system message at most, at the beginning; calls and results in the form the template knows.
    pub messages: Vec<Message>,
    /// The tools the template shall list; empty where they stand in the system message.
    pub tools: Vec<Tool>,
}

impl Dialect {
    /// A dialect by name.
    pub const fn new(name: DialectName, reasoning: ReasoningStyle) -> Self {
        Self { name, reasoning }
    }

    /// The dialect of a model with this template.
    pub fn of_template(template: Option<&ChatTemplate>) -> Self {
        let Some(template) = template else { return Self::new(DialectName::Plain, ReasoningStyle::None) };
        let source = template.source();
        let abilities = template.abilities();
        // Other families that use the tag (Qwen3.5 writes XML in it) say so by their inner tags.
        let hermes = source.contains("<tool_call>") && !source.contains("<function=");
        let name =
            if abilities.tools && abilities.tool_calls && hermes { DialectName::Hermes } else { DialectName::ChatMl };
        let thinks = source.contains("</think>");
        Self::new(name, if thinks { ReasoningStyle::ThinkTags } else { ReasoningStyle::None })
    }

    /// Its name.
    pub const fn name(&self) -> DialectName {
        self.name
    }

    /// How it reasons.
    pub const fn reasoning(&self) -> ReasoningStyle {
        self.reasoning
    }

    /// Whether tools can be offered to the model at all.
    pub const fn tool_prompt_supported(&self) -> bool {
        !matches!(self.name, DialectName::Plain)
    }

    /// A conversation in the form the template wants: late system messages become user turns, and where the template
    /// knows no tools, tools, calls and results are written into the messages in Hermes form.
    #[must_use]
    pub fn prepare(&self, messages: &[Message], tools: &[Tool]) -> PreparedConversation {
        let messages = normalise_for_template(messages);
        match self.name {
            DialectName::Hermes => PreparedConversation { messages, tools: tools.to_vec() },
            DialectName::ChatMl => {
                PreparedConversation { messages: hermes::write_into_messages(messages, tools), tools: Vec::new() }
            }
            DialectName::Plain => PreparedConversation { messages, tools: Vec::new() },
        }
    }

    /// How a reply opens a call; `None` where tools cannot be offered.
    pub const fn call_opening(&self) -> Option<&'static str> {
        if self.tool_prompt_supported() { Some(hermes::OPEN) } else { None }
    }

    /// What opens and what ends reasoning; `None` where there is none.
    pub const fn reasoning_tags(&self) -> Option<(&'static str, &'static str)> {
        match self.reasoning {
            ReasoningStyle::None => None,
            ReasoningStyle::ThinkTags => Some((splitter::THINK, splitter::END_THINK)),
        }
    }

    /// How a reply begins that must be a call: of the named tool, or of any. The text goes after the generation prompt,
    /// its tags as special tokens, and the splitter is fed with it first.
    pub fn forced_call_prefix(&self, tool: Option<&str>) -> Option<String> {
        self.tool_prompt_supported().then(|| hermes::call_prefix(tool))
    }

    /// A splitter for one reply. `prompt` is the rendered prompt, whose end says whether the reply begins inside
    /// reasoning; without `tools` nothing is a call.
    #[must_use]
    pub fn splitter(&self, prompt: &str, tools: ToolsOffered) -> OutputSplitter {
        let opened = self.reasoning == ReasoningStyle::ThinkTags && prompt.trim_end().ends_with(splitter::THINK);
        let tools = if self.tool_prompt_supported() { tools } else { ToolsOffered::No };
        OutputSplitter::new(self.reasoning, opened, tools)
    }

    /// Takes reasoning out of an assistant message whose client sent it back inside the text, as templates that know
    /// reasoning do: what stands before `</think>` is reasoning, what follows is content.
    #[must_use]
    pub fn split_history(&self, message: Message) -> Message {
        if self.reasoning == ReasoningStyle::None || message.reasoning.is_some() {
            return message;
        }
        let Some((before, after)) = message.content.split_once(splitter::END_THINK) else { return message };
        let reasoning = before.trim_start().strip_prefix(splitter::THINK).unwrap_or(before).trim_matches('\n');
        Message { reasoning: Some(reasoning.to_owned()), content: after.trim_start_matches('\n').to_owned(), ..message }
    }
}

/// Whether the model was told of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ToolsOffered {
    Yes,
    No,
}
