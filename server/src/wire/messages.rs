//! Messages and tools of the chat completions API, reduced to canonical ones.
//!
//! Owns the reading of roles, content parts, tool calls and tool definitions. Never renders anything. A string and a
//! single text block are the same message; ids of items, cache marks and billing lines take no part. System messages stay
//! where they are; dialects settle them for their templates.

use plimsoll_models::chat::{Message, Role, Tool, ToolCall};
use serde_json::Value;

use super::error::ServerError;
use super::fields::{Fields, kind};

/// What stands between two text parts of one message.
const PART_SEPARATOR: &str = "\n";

/// A line some clients put first into their system prompt; it changes with every request and says nothing to a
/// model, but would make every cached prefix useless.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// What stands in for a picture, a sound or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Media {
    /// Such parts are refused.
    #[default]
    Refuse,
    /// A word in brackets stands in their place and the response says so.
    Placeholder,
}

/// Canonical messages and what was changed on the way.
#[derive(Debug, Default)]
pub struct ReadMessages {
    /// The conversation.
    pub messages: Vec<Message>,
    /// What stands in for what, one line each; for the response's `edits`.
    pub edits: Vec<String>,
    /// Unknown fields.
    pub ignored: Vec<String>,
}

/// Reads the `messages` of a request.
pub fn read_messages(values: Vec<Value>, media: Media) -> Result<ReadMessages, ServerError> {
    if values.is_empty() {
        return Err(ServerError::InvalidValue {
            param: "messages".into(),
            reason: "must hold at least one message, found none".into(),
        });
    }
    let mut read = ReadMessages::default();
    for (index, value) in values.into_iter().enumerate() {
        let message = read_message(value, index, media, &mut read)?;
        read.messages.push(message);
    }
    Ok(read)
}

fn read_message(value: Value, index: usize, media: Media, read: &mut ReadMessages) -> Result<Message, ServerError> {
    let mut fields = Fields::open(value, format!("messages[{index}]"))?;
    let role_name = fields.needed_string("role")?;
    let role = match role_name.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            return Err(ServerError::InvalidValue {
                param: fields.name("role"),
                reason: format!("must be system, developer, user, assistant or tool, found `{role_name}`"),
            });
        }
    };
    let content = fields.take("content");
    let mut message = Message::text(role, "");
    message.name = fields.string("name")?;
    if role == Role::Assistant {
        message.reasoning = match fields.string("reasoning_content")? {
            Some(text) => Some(text),
            None => fields.string("reasoning")?,
        }
        .filter(|text| !text.is_empty());
        if let Some(calls) = fields.array("tool_calls")? {
            for (at, call) in calls.into_iter().enumerate() {
                let call = read_tool_call(call, format!("messages[{index}].tool_calls[{at}]"), read)?;
                message.tool_calls.push(call);
            }
        }
        fields.refuse("function_call", "send `tool_calls`")?;
        fields.refuse("audio", "this server reads text parts alone")?;
        if let Some(refusal) = fields.string("refusal")? {
            message.content = refusal;
        }
    }
    if role == Role::Tool {
        message.tool_call_id = Some(fields.needed_string("tool_call_id")?);
    }
    match content {
        Some(content) => {
            let text = read_content(content, &fields.name("content"), media, read)?;
            if !text.is_empty() || message.content.is_empty() {
                message.content = text;
            }
        }
        None if role == Role::Assistant => {}
        None => return Err(ServerError::Missing { param: fields.name("content") }),
    }
    if role == Role::System {
        message.content = without_billing_line(message.content);
    }
    note_unknown(fields, "messages[]", read);
    Ok(message)
}

/// Unknown fields of list items are named once for the whole list.
/// Most unknown fields that are named; there may be as many as a body has room for.
const NAMED_UNKNOWN_LIMIT: usize = 64;

fn note_unknown(fields: Fields, list: &str, read: &mut ReadMessages) {
    for name in fields.unknown() {
        if read.ignored.len() >= NAMED_UNKNOWN_LIMIT {
            return;
        }
        let field = name.rsplit('.').next().unwrap_or(&name);
        let name = format!("{list}.{field}");
        if !read.ignored.contains(&name) {
            read.ignored.push(name);
        }
    }
}

fn read_tool_call(value: Value, path: String, read: &mut ReadMessages) -> Result<ToolCall, ServerError> {
    let mut fields = Fields::open(value, path)?;
    let kind_name = fields.string("type")?.unwrap_or_else(|| "function".to_owned());
    if kind_name != "function" {
        return Err(ServerError::UnsupportedValue {
            param: fields.name("type"),
            found: format!("`{kind_name}`"),
            reason: "tool calls are of type `function`".into(),
        });
    }
    let id = fields.string("id")?.unwrap_or_default();
    let Some(mut function) = fields.object("function")? else {
        return Err(ServerError::Missing { param: fields.name("function") });
    };
    let name = function.needed_string("name")?;
    // Arguments that do not parse are a model's mistake replayed; they are history and rendered as they are.
    let arguments = match function.take("arguments") {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(other) => {
            return Err(ServerError::InvalidType {
                param: function.name("arguments"),
                expected: "a string of JSON",
                found: kind(&other),
            });
        }
    };
    fields.take("index");
    note_unknown(function, "messages[].tool_calls[].function", read);
    note_unknown(fields, "messages[].tool_calls[]", read);
    Ok(ToolCall { id, name, arguments })
}

fn read_content(value: Value, path: &str, media: Media, read: &mut ReadMessages) -> Result<String, ServerError> {
    let parts = match value {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            return Err(ServerError::InvalidType {
                param: path.to_owned(),
                expected: "a string or an array of text parts",
                found: kind(&other),
            });
        }
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::open(part, format!("{path}[{at}]"))?;
        let part_kind = fields.needed_string("type")?;
        match part_kind.as_str() {
            "text" | "input_text" | "output_text" => {
                texts.push(fields.needed_string("text")?);
                note_unknown(fields, "messages[].content[]", read);
            }
            "refusal" => texts.push(fields.needed_string("refusal")?),
            _ => {
                let param = format!("{path}[{at}]");
                let stand_in = stand_in(&part_kind).filter(|_| media == Media::Placeholder);
                let Some(stand_in) = stand_in else {
                    return Err(ServerError::UnsupportedContent { param, kind: part_kind });
                };
                read.edits.push(format!("{param}: `{part_kind}` replaced by `{stand_in}`"));
                texts.push(stand_in.to_owned());
            }
        }
    }
    Ok(texts.join(PART_SEPARATOR))
}

fn stand_in(part_kind: &str) -> Option<&'static str> {
    match part_kind {
        "image_url" | "input_image" | "image" => Some("[image]"),
        "input_audio" | "audio" => Some("[audio]"),
        "video_url" | "video" => Some("[video]"),
        "file" | "input_file" | "document" => Some("[document]"),
        _ => None,
    }
}

fn without_billing_line(text: String) -> String {
    if !text.contains(BILLING_LINE) {
        return text;
    }
    let kept: Vec<&str> = text.split('\n').filter(|line| !line.starts_with(BILLING_LINE)).collect();
    kept.join("\n")
}

/// Tools of a request and what the server has to say about them.
#[derive(Debug, Default)]
pub struct ReadTools {
    /// The tools.
    pub tools: Vec<Tool>,
    /// Sentences for the response's `warnings`.
    pub warnings: Vec<String>,
    /// Unknown fields.
    pub ignored: Vec<String>,
}

/// Reads the `tools` of a request.
pub fn read_tools(values: Vec<Value>) -> Result<ReadTools, ServerError> {
    let mut read = ReadTools::default();
    let mut notes = ReadMessages::default();
    for (index, value) in values.into_iter().enumerate() {
        let mut fields = Fields::open(value, format!("tools[{index}]"))?;
        let kind_name = fields.needed_string("type")?;
        if kind_name != "function" {
            return Err(ServerError::UnsupportedValue {
                param: fields.name("type"),
                found: format!("`{kind_name}`"),
                reason: "tools are of type `function`".into(),
            });
        }
        let Some(mut function) = fields.object("function")? else {
            return Err(ServerError::Missing { param: fields.name("function") });
        };
        let name = function.needed_string("name")?;
        if name.is_empty() {
            return Err(ServerError::InvalidValue { param: function.name("name"), reason: "must not be empty".into() });
        }
        let description = function.string("description")?;
        let parameters = match function.take("parameters") {
            None => serde_json::json!({"type": "object", "properties": {}}),
            Some(object @ Value::Object(_)) => object,
            Some(other) => {
                return Err(ServerError::InvalidType {
                    param: function.name("parameters"),
                    expected: "a JSON Schema object",
                    found: kind(&other),
                });
            }
        };
        if function.boolean("strict")? == Some(true) {
            read.warnings.push(format!("tools[{index}].function.strict: arguments are not constrained to the schema"));
        }
        note_unknown(function, "tools[].function", &mut notes);
        note_unknown(fields, "tools[]", &mut notes);
        read.tools.push(Tool { name, description, parameters });
    }
    read.ignored = notes.ignored;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(values: Value) -> Result<ReadMessages, ServerError> {
        let Value::Array(values) = values else { panic!("an array") };
        read_messages(values, Media::Refuse)
    }

    #[test]
    fn a_string_and_a_single_text_part_are_the_same_message() {
        let a = read(json!([{"role": "user", "content": "hi"}])).unwrap();
        let b = read(json!([{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}])).unwrap();
        assert_eq!(a.messages, b.messages);
        assert_eq!(b.ignored, ["messages[].content[].cache_control"]);
    }

    #[test]
    fn a_developer_is_the_system() {
        let read = read(json!([{"role": "developer", "content": "A"}, {"role": "user", "content": "hi"}])).unwrap();
        assert_eq!(read.messages[0], Message::text(Role::System, "A"));
    }

    #[test]
    fn a_billing_line_in_the_system_prompt_takes_no_part() {
        let one = read(json!([{"role": "system", "content": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.93d;"}, {"type": "text", "text": "You help."}]}]));
        let two = read(json!([{"role": "system", "content": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.cf6;"}, {"type": "text", "text": "You help."}]}]));
        assert_eq!(one.unwrap().messages, two.unwrap().messages);
    }

    #[test]
    fn an_assistant_turn_may_have_null_content_and_malformed_arguments() {
        let read = read(json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "reasoning_content": "hm",
             "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{\"path\": "}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]))
        .unwrap();
        assert_eq!(read.messages[1].tool_calls[0].arguments, "{\"path\": ");
        assert_eq!(read.messages[1].reasoning.as_deref(), Some("hm"));
        assert_eq!(read.messages[2].content, "a\nb");
    }

    #[test]
    fn pictures_are_refused_by_name_or_replaced_where_the_preset_says_so() {
        let body = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]);
        let error = read(body.clone()).unwrap_err();
        assert_eq!(error.body()["error"]["code"], "unsupported_content");
        assert_eq!(error.body()["error"]["param"], "messages[0].content[0]");
        let Value::Array(values) = body else { unreachable!() };
        let replaced = read_messages(values, Media::Placeholder).unwrap();
        assert_eq!(replaced.messages[0].content, "[image]");
        assert_eq!(replaced.edits.len(), 1);
    }

    #[test]
    fn any_number_of_unknown_fields_is_read_quickly_and_a_bounded_number_is_named() {
        let mut message = json!({"role": "user", "content": "hi"});
        for field in 0..200_000 {
            message[format!("f{field}")] = json!(1);
        }
        let started = std::time::Instant::now();
        let read = read(json!([message])).unwrap();
        assert_eq!(read.ignored.len(), NAMED_UNKNOWN_LIMIT);
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    }

    #[test]
    fn wrong_messages_are_named() {
        for (body, code, param) in [
            (json!([]), "invalid_value", "messages"),
            (json!(["hi"]), "invalid_type", "messages[0]"),
            (json!([{"content": "hi"}]), "missing_required_parameter", "messages[0].role"),
            (json!([{"role": "function", "content": "hi"}]), "invalid_value", "messages[0].role"),
            (json!([{"role": "user"}]), "missing_required_parameter", "messages[0].content"),
            (json!([{"role": "user", "content": 7}]), "invalid_type", "messages[0].content"),
            (json!([{"role": "user", "content": [7]}]), "invalid_type", "messages[0].content[0]"),
            (json!([{"role": "tool", "content": "x"}]), "missing_required_parameter", "messages[0].tool_call_id"),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]),
                "missing_required_parameter",
                "messages[0].tool_calls[0].function.name",
            ),
        ] {
            let error = read(body).unwrap_err().body();
            assert_eq!((error["error"]["code"].as_str(), error["error"]["param"].as_str()), (Some(code), Some(param)));
        }
    }
}
