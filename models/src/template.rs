//! The model's own Jinja chat template, rendered safely.
//!
//! Owns the environment in which templates run, made to equal Hugging Face's (`ImmutableSandboxedEnvironment` with
//! `trim_blocks`, `lstrip_blocks`, loop controls, `tojson`, `raise_exception`, `strftime_now`), and the conversion of
//! canonical messages into what templates read. It never tokenizes and never decides how tools look; a template that
//! knows no tools is helped by [`crate::dialect`].
//!
//! **Hostile templates and messages.** A template comes out of a downloaded file. Fuel bounds its time and its memory
//! (64 bytes cost as much as an instruction), and every failure is a [`TemplateError`].
//!
//! **Text stays text.** Before rendering, strings in messages that spell a special token are escaped ([`escape`]), so
//! that conditions, `trim` and `tojson` in the template still see almost the same text; the tokenizer searches special
//! tokens in the escaped prompt and takes the marks out afterwards ([`crate::tokenizer::Tokenizer::encode_prompt`]).

mod calendar;
mod environment;
mod escape;
mod python_json;
mod system_turns;
#[cfg(test)]
mod tests;

use minijinja::Value as JinjaValue;
use minijinja::value::Serde;
use serde_json::{Map, Value, json};

use crate::chat::{Message, Role, Tool, ToolCall};
use crate::gguf::{GgufError, GgufFile};
use crate::tokenizer::{SpecialTokens, Tokenizer};

pub use escape::{SENTINEL, escape, unescape};
pub use system_turns::{merge_user_turns, normalise_for_template, system_into_first_user};

use environment::CompiledTemplate;

/// The template every ChatML model understands, for models without one of their own and for scripted replies.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] \
    + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Why a prompt could not be rendered. All of them are the template's or the conversation's fault, never the server's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum TemplateError {
    #[error("the chat template does not compile: {reason}")]
    Syntax { reason: String },

    #[error("the chat template refuses this conversation: {message}")]
    Raised { message: String },

    #[error("the chat template did not finish within {fuel} steps ({bytes} bytes of messages)")]
    OutOfFuel { fuel: u64, bytes: usize },

    #[error("the chat template fails on this conversation: {reason}")]
    Failed { reason: String },

    #[error("the chat template's source has {found} bytes, the limit is {limit}")]
    TooLarge { found: usize, limit: usize },
}

/// What a caller may choose beside the messages.
#[derive(Clone, Debug, Default)]
pub struct TemplateOptions {
    /// Whether the prompt ends with the beginning of an assistant turn.
    pub add_generation_prompt: bool,
    /// The variable `enable_thinking`; left undefined by `None`, so that the template's own default applies.
    pub enable_thinking: Option<bool>,
    /// More variables (`chat_template_kwargs` of a request). They cannot replace messages, tools or tokens.
    pub variables: Map<String, Value>,
    /// Seconds since 1970 for `strftime_now`, read as UTC; the system's clock by `None`.
    pub now: Option<i64>,
}

/// A rendered prompt, in which special tokens of the template and look-alikes in messages are still told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    escaped: String,
}

impl RenderedPrompt {
    /// A prompt from text in which every special token is meant.
    pub fn from_escaped(escaped: String) -> Self {
        Self { escaped }
    }

    /// The prompt with look-alikes escaped: every special token in it is one.
    pub fn escaped(&self) -> &str {
        &self.escaped
    }

    /// The same, to keep.
    pub fn into_escaped(self) -> String {
        self.escaped
    }

    /// The prompt for people.
    pub fn text(&self) -> String {
        unescape(&self.escaped).into_owned()
    }
}

/// What a template can do, found by looking for the names it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateAbilities {
    /// It lists tools.
    pub tools: bool,
    /// It renders the calls of assistant turns.
    pub tool_calls: bool,
    /// It renders the role `tool` in its own way.
    pub tool_results: bool,
    /// It renders reasoning of assistant turns.
    pub reasoning: bool,
    /// It reads `enable_thinking`.
    pub enable_thinking: bool,
}

/// A compiled chat template with the strings it needs.
#[derive(Debug)]
pub struct ChatTemplate {
    compiled: CompiledTemplate,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    structure: SpecialTokens,
}

impl ChatTemplate {
    /// The template of a model file; `None` if it has none (base models).
    ///
    /// # Errors
    /// [`TemplateFileError::Gguf`] if the key is no string, [`TemplateFileError::Template`] if it does not compile.
    pub fn from_gguf(file: &GgufFile, tokenizer: &Tokenizer) -> Result<Option<Self>, TemplateFileError> {
        let Some(source) = file.get::<&str>("tokenizer.chat_template")? else { return Ok(None) };
        let name = |id: Option<u32>| id.and_then(|id| tokenizer.token_piece(id)).map(|name| name.into_owned());
        let (bos, eos) = (name(tokenizer.bos()), name(tokenizer.eos()));
        Ok(Some(Self::from_source(source, bos, eos, tokenizer.structure().clone())?))
    }

    /// A template from its source. `structure` are the strings that must not be taken for special tokens in messages.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`], [`TemplateError::TooLarge`].
    pub fn from_source(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
        structure: SpecialTokens,
    ) -> Result<Self, TemplateError> {
        Ok(Self { compiled: CompiledTemplate::new(source)?, source: source.to_owned(), bos, eos, structure })
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the template can do.
    pub fn abilities(&self) -> TemplateAbilities {
        let reads = |name: &str| self.source.contains(name);
        TemplateAbilities {
            tools: reads("tools"),
            tool_calls: reads("tool_calls"),
            tool_results: reads("'tool'") || reads("\"tool\""),
            reasoning: reads("reasoning_content"),
            enable_thinking: reads("enable_thinking"),
        }
    }

    /// Renders a conversation.
    ///
    /// Arguments of tool calls are given as objects where they parse as one, and as text where they do not; a template
    /// that cannot use text is given `{"arguments": text}`, so that a model's mistake in the history never makes a
    /// conversation unusable.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] with the template's own words, [`TemplateError::OutOfFuel`],
    /// [`TemplateError::Failed`].
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &TemplateOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        let first = self.render_with(messages, tools, options, Malformed::Text);
        match first {
            Err(TemplateError::Failed { .. } | TemplateError::Raised { .. })
                if messages.iter().flat_map(|m| &m.tool_calls).any(|call| arguments_object(call).is_none()) =>
            {
                self.render_with(messages, tools, options, Malformed::Object).or(first)
            }
            first => first,
        }
    }

    fn render_with(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &TemplateOptions,
        malformed: Malformed,
    ) -> Result<RenderedPrompt, TemplateError> {
        let mut context = options.variables.clone();
        if let Some(enabled) = options.enable_thinking {
            context.insert("enable_thinking".into(), enabled.into());
        }
        context.insert("messages".into(), messages.iter().map(|message| message_value(message, malformed)).collect());
        let tools = if tools.is_empty() { Value::Null } else { tools.iter().map(tool_value).collect() };
        context.insert("tools".into(), tools);
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        let mut context = Value::Object(context);
        let bytes = escape_strings(&mut context, &self.structure);
        if let Value::Object(context) = &mut context {
            for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
                if let Some(token) = token {
                    context.insert(name.into(), token.clone().into());
                }
            }
        }
        let escaped = self.compiled.render(JinjaValue::from(Serde(&context)), bytes, options.now)?;
        Ok(RenderedPrompt { escaped })
    }
}

/// Why a template could not be taken from a file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TemplateFileError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// How arguments that are no JSON object are given to a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Malformed {
    Text,
    Object,
}

/// The arguments of a call, if they are a JSON object. No arguments at all are an empty object.
fn arguments_object(call: &ToolCall) -> Option<Map<String, Value>> {
    if call.arguments.trim().is_empty() {
        return Some(Map::new());
    }
    serde_json::from_str(&call.arguments).ok()
}

/// A message as templates read it: the keys of the OpenAI API.
fn message_value(message: &Message, malformed: Malformed) -> Value {
    let mut value = Map::new();
    value.insert("role".into(), message.role.as_str().into());
    value.insert("content".into(), message.content.clone().into());
    if let Some(reasoning) = &message.reasoning {
        value.insert("reasoning_content".into(), reasoning.clone().into());
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let arguments = match arguments_object(call) {
                Some(object) => Value::Object(object),
                None if malformed == Malformed::Object => json!({ "arguments": call.arguments }),
                None => Value::String(call.arguments.clone()),
            };
            json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
        });
        value.insert("tool_calls".into(), calls.collect());
    }
    if let Some(id) = &message.tool_call_id {
        value.insert("tool_call_id".into(), id.clone().into());
    }
    if let Some(name) = &message.name {
        value.insert("name".into(), name.clone().into());
    }
    debug_assert!(message.tool_calls.is_empty() || message.role == Role::Assistant, "only assistants call tools");
    Value::Object(value)
}

/// A tool as templates read it: the keys of the OpenAI API, in its order.
pub(crate) fn tool_value(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".into(), tool.name.clone().into());
    if let Some(description) = &tool.description {
        function.insert("description".into(), description.clone().into());
    }
    let parameters =
        if tool.parameters.is_null() { json!({ "type": "object", "properties": {} }) } else { tool.parameters.clone() };
    function.insert("parameters".into(), parameters);
    json!({ "type": "function", "function": function })
}

/// Escapes every string in a value, keys included, and returns how many bytes of strings there are.
fn escape_strings(value: &mut Value, structure: &SpecialTokens) -> usize {
    match value {
        Value::String(text) => {
            if let std::borrow::Cow::Owned(escaped) = escape(text, structure) {
                *text = escaped;
            }
            text.len()
        }
        Value::Array(items) => items.iter_mut().map(|item| escape_strings(item, structure) + 1).sum(),
        Value::Object(fields) => {
            let mut bytes = 0;
            let changes = |key: &String| matches!(escape(key, structure), std::borrow::Cow::Owned(_));
            if fields.keys().any(changes) {
                let old = std::mem::take(fields);
                fields.extend(old.into_iter().map(|(key, value)| (escape(&key, structure).into_owned(), value)));
            }
            for (key, item) in fields.iter_mut() {
                bytes += key.len() + escape_strings(item, structure);
            }
            bytes
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}
