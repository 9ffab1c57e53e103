//! The Hermes form of tools: how they are described, how a call is written, and how a call is read again.
//!
//! Owns the texts (those of Qwen2.5's template, which many small models have seen) and the tolerance for drift when
//! reading. Format: NousResearch's Hermes function calling.

use serde_json::{Map, Value};

use super::forgiving_json::{self, Outcome};
use crate::chat::{Message, Role, Tool, ToolCall};
use crate::template::tool_value;

/// Opens a call.
pub(super) const OPEN: &str = "<tool_call>";
/// Closes a call.
pub(super) const CLOSE: &str = "</tool_call>";

/// What a conversation without a system message says where tools must be described.
const DEFAULT_SYSTEM: &str = "You are a helpful assistant.";

/// Tools, calls and results written into messages, for templates that know none of them.
pub(super) fn write_into_messages(messages: Vec<Message>, tools: &[Tool]) -> Vec<Message> {
    let mut written: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut messages = messages.into_iter().peekable();
    if !tools.is_empty() {
        let system = messages.next_if(|message| message.role == Role::System);
        let text = system.map(|message| message.content).filter(|text| !text.is_empty());
        let text = text.as_deref().unwrap_or(DEFAULT_SYSTEM);
        written.push(Message::text(Role::System, format!("{text}{}", describe_tools(tools))));
    }
    let mut after_result = false;
    for message in messages {
        let is_result = message.role == Role::Tool;
        match message.role {
            Role::Tool => {
                let result = format!("<tool_response>\n{}\n</tool_response>", message.content);
                match written.last_mut().filter(|_| after_result) {
                    Some(turn) => turn.content.push_str(&format!("\n{result}")),
                    None => written.push(Message::text(Role::User, result)),
                }
            }
            Role::Assistant if !message.tool_calls.is_empty() => {
                let calls = message.tool_calls.iter().map(write_call);
                let text = Some(message.content.clone()).filter(|text| !text.is_empty());
                let content = text.into_iter().chain(calls).collect::<Vec<_>>().join("\n");
                written.push(Message { content, tool_calls: Vec::new(), ..message });
            }
            _ => written.push(message),
        }
        after_result = is_result;
    }
    written
}

/// The section of a system message that describes tools.
fn describe_tools(tools: &[Tool]) -> String {
    let mut text = String::from(
        "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
         function signatures within <tools></tools> XML tags:\n<tools>",
    );
    for tool in tools {
        text.push('\n');
        text.push_str(&python_spacing(&tool_value(tool)));
    }
    text.push_str(
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within \
         <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": \
         <args-json-object>}\n</tool_call>",
    );
    text
}

/// A call as the model would write it.
fn write_call(call: &ToolCall) -> String {
    let name = Value::from(call.name.as_str());
    let arguments = match serde_json::from_str::<Map<String, Value>>(&call.arguments) {
        Ok(object) => python_spacing(&Value::Object(object)),
        Err(_) if call.arguments.trim().is_empty() => "{}".to_owned(),
        // A model's mistake in the history: as text, which is what it was.
        Err(_) => Value::from(call.arguments.as_str()).to_string(),
    };
    format!("{OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{CLOSE}")
}

/// How a call begins, up to where the model chooses.
pub(super) fn call_prefix(tool: Option<&str>) -> String {
    match tool {
        Some(name) => format!("{OPEN}\n{{\"name\": {}, \"arguments\": ", Value::from(name)),
        None => format!("{OPEN}\n{{\"name\": \""),
    }
}

/// JSON with `", "` and `": "`, as models know it from Python.
fn python_spacing(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(python_spacing).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), python_spacing(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// A call read from a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    /// JSON text.
    pub(super) arguments: String,
}

/// What the text between the tags is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// One call or more.
    Calls(Vec<Call>),
    /// It ends inside a string: the tag that was found may be part of the string.
    EndsInString,
    /// No call.
    NoCall,
}

/// What ends the text that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// The closing tag: missing braces can be completed, for the model meant to be done.
    ClosingTag,
    /// Another opening tag or the end of the reply: what is incomplete stays incomplete.
    Other,
}

/// Whether text after an opening tag can still become a call, judged by how it begins.
pub(super) fn may_become_calls(body: &str) -> bool {
    let body = body.trim_start();
    body.is_empty() || body.starts_with(['{', '[']) || body.starts_with("```") || "```".starts_with(body)
}

/// Reads the text between the tags.
pub(super) fn read_body(body: &str, end: BodyEnd) -> Body {
    let mut rest = without_fence(body.trim());
    let mut calls = Vec::new();
    while !rest.is_empty() {
        match forgiving_json::parse(rest) {
            Outcome::Complete(parsed) => {
                let Some(found) = calls_of(&parsed.value, rest, &parsed) else { return Body::NoCall };
                calls.extend(found);
                rest = rest[parsed.end..].trim_start_matches(|c: char| c.is_whitespace() || c == ',' || c == ';');
                // A brace too many at the end is a frequent slip.
                if !calls.is_empty() && rest.chars().all(|c| c == '}' || c.is_whitespace()) {
                    rest = "";
                }
            }
            Outcome::EndsInString => return Body::EndsInString,
            Outcome::Missing(closers) if end == BodyEnd::ClosingTag => {
                let completed = format!("{rest}{closers}");
                let Outcome::Complete(parsed) = forgiving_json::parse(&completed) else { return Body::NoCall };
                let Some(found) = calls_of(&parsed.value, &completed, &parsed) else { return Body::NoCall };
                calls.extend(found);
                rest = "";
            }
            Outcome::Missing(_) | Outcome::Invalid => return Body::NoCall,
        }
    }
    if calls.is_empty() { Body::NoCall } else { Body::Calls(calls) }
}

/// The body without a Markdown fence around it.
fn without_fence(body: &str) -> &str {
    let Some(inside) = body.strip_prefix("```") else { return body };
    let inside = inside.strip_prefix("json").unwrap_or(inside);
    inside.strip_suffix("```").unwrap_or(inside).trim()
}

fn calls_of(value: &Value, text: &str, parsed: &forgiving_json::Parsed) -> Option<Vec<Call>> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| call_of(item.as_object()?, |_| None)).collect()
        }
        Value::Object(fields) => {
            let verbatim = |key: &str| parsed.field(key).map(|range| &text[range]);
            Some(vec![call_of(fields, verbatim)?])
        }
        _ => None,
    }
}

/// A call in one of the shapes models use: name and arguments, the same inside `function`, or `function` as the name.
fn call_of<'a>(fields: &Map<String, Value>, verbatim: impl Fn(&str) -> Option<&'a str>) -> Option<Call> {
    let (fields, outer) = match fields.get("function") {
        Some(Value::Object(inner)) => (inner, false),
        _ => (fields, true),
    };
    let name = fields.get("name").or_else(|| fields.get("function"))?.as_str()?.trim();
    if name.is_empty() {
        return None;
    }
    let found = ["arguments", "parameters"].into_iter().find_map(|key| Some((key, fields.get(key)?)));
    let arguments = match found {
        None | Some((_, Value::Null)) => "{}".to_owned(),
        Some((_, Value::String(text))) => arguments_in_string(text),
        Some((key, value)) => {
            // The model's own text where it is JSON: numbers keep their digits and spacing.
            let own = verbatim(key).filter(|text| outer && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok());
            own.map_or_else(|| value.to_string(), str::to_owned)
        }
    };
    Some(Call { name: name.to_owned(), arguments })
}

/// Arguments that were quoted once too often.
fn arguments_in_string(text: &str) -> String {
    if serde_json::from_str::<Map<String, Value>>(text).is_ok() {
        return text.to_owned();
    }
    match forgiving_json::parse(text.trim()) {
        Outcome::Complete(parsed) if parsed.value.is_object() && parsed.end == text.trim().len() => {
            parsed.value.to_string()
        }
        _ if text.trim().is_empty() => "{}".to_owned(),
        // No object at all: the client sees what the model wrote, as one JSON string.
        _ => Value::from(text).to_string(),
    }
}
