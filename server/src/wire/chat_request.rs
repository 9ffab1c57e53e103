//! The body of `POST /v1/chat/completions`, read strictly.
//!
//! Owns which fields the endpoint knows. What is known and cannot be honoured is refused; what is unknown is ignored
//! and named. Never renders, never counts.

use plimsoll_models::chat::{Message, Tool};
use plimsoll_runtime::engine::CachePolicy;
use serde_json::{Map, Value};

use super::error::ServerError;
use super::fields::{Fields, kind};
use super::messages::{Media, read_messages, read_tools};
use super::parameters::{LogprobsForm, ParameterDefaults, Parameters};

/// Whether the model may call tools in this reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// It is not told of any.
    None,
}

/// How many calls one reply may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ParallelCalls {
    /// Any number.
    #[default]
    Allowed,
    /// The reply ends after the first complete call.
    One,
}

/// How the reply is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// One JSON object at the end.
    Whole,
    /// Server-sent events.
    Stream {
        /// Whether a last chunk carries the usage.
        include_usage: bool,
    },
}

/// Whether the server may compact the session of this request by itself (`plimsoll.compaction`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CompactionWish {
    /// Where the model's name or `context_management` says so.
    #[default]
    Auto,
    /// Never for this request.
    Off,
}

/// The prompt at which the request wants its session compacted (`context_management`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactAt {
    /// Where the budget of the model says.
    Budget,
    /// At so many tokens of the rendered prompt.
    Tokens(u32),
}

/// What a request says about its conversation beyond the messages: hints for the session, extensions, echoes.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// `plimsoll.session`.
    pub session: Option<String>,
    /// `prompt_cache_key`.
    pub prompt_cache_key: Option<String>,
    /// `metadata.session_id`.
    pub metadata_session: Option<String>,
    /// How the request meets the prefix cache (`plimsoll.cache`).
    pub cache: CachePolicy,
    /// Whether the session may be compacted for it (`plimsoll.compaction`).
    pub compaction: CompactionWish,
    /// `user`, given back as it came.
    pub user: Option<String>,
    /// `metadata`, given back as it came.
    pub metadata: Option<Value>,
}

/// A chat completion request.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// Canonical messages.
    pub messages: Vec<Message>,
    /// Tools; empty when `tool_choice` is `none`.
    pub tools: Vec<Tool>,
    /// One call or several.
    pub parallel_calls: ParallelCalls,
    /// How tokens are chosen and when the reply ends.
    pub parameters: Parameters,
    /// Extra variables of the chat template: `chat_template_kwargs`, `reasoning_effort`, `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// Stream or not.
    pub delivery: Delivery,
    /// Session hints, cache policy, echoes.
    pub extensions: Extensions,
    /// When the request itself asks for compaction.
    pub compact_at: Option<CompactAt>,
    /// What the server changed in the messages.
    pub edits: Vec<String>,
    /// What the server cannot honour to the letter.
    pub warnings: Vec<String>,
    /// Fields nobody knows.
    pub ignored: Vec<String>,
}

impl ChatRequest {
    /// Reads a body from which `model` has been taken.
    pub fn read(mut fields: Fields, defaults: &ParameterDefaults, media: Media) -> Result<Self, ServerError> {
        let Some(messages) = fields.array("messages")? else {
            return Err(ServerError::Missing { param: "messages".into() });
        };
        let mut read = read_messages(messages, media)?;
        let mut tools = read_tools(fields.array("tools")?.unwrap_or_default())?;
        if read_tool_choice(&mut fields)? == ToolChoice::None {
            tools.tools.clear();
        }
        let parallel_calls = match fields.boolean("parallel_tool_calls")? {
            Some(false) => ParallelCalls::One,
            _ => ParallelCalls::Allowed,
        };
        let parameters = Parameters::read(&mut fields, defaults, LogprobsForm::Chat)?;
        let template_variables = read_template_variables(&mut fields)?;
        let delivery = read_delivery(&mut fields)?;
        let mut ignored = std::mem::take(&mut read.ignored);
        ignored.extend(tools.ignored);
        let extensions = read_extensions(&mut fields, &mut ignored)?;
        let compact_at = read_context_management(&mut fields, &mut ignored)?;
        refuse_the_unsupported(&mut fields)?;
        ignored.extend(fields.unknown());
        Ok(Self {
            messages: read.messages,
            tools: tools.tools,
            parallel_calls,
            parameters,
            template_variables,
            delivery,
            extensions,
            compact_at,
            edits: read.edits,
            warnings: tools.warnings,
            ignored,
        })
    }
}

/// Takes `tool_choice`; a call cannot be forced.
pub fn read_tool_choice(fields: &mut Fields) -> Result<ToolChoice, ServerError> {
    let param = fields.name("tool_choice");
    let found = match fields.take("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => return Ok(ToolChoice::Auto),
            "none" => return Ok(ToolChoice::None),
            "required" => "`required`".to_owned(),
            _ => {
                return Err(ServerError::InvalidValue {
                    param,
                    reason: format!("must be auto, none, required or a function, found `{word}`"),
                });
            }
        },
        Some(Value::Object(_)) => "a named function".to_owned(),
        Some(other) => {
            return Err(ServerError::InvalidType { param, expected: "a string or an object", found: kind(&other) });
        }
    };
    Err(ServerError::UnsupportedValue {
        param,
        found,
        reason: "a call cannot be forced by this version; `auto` and `none` work".into(),
    })
}

/// Takes the extra variables of the chat template.
pub fn read_template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ServerError> {
    let param = fields.name("chat_template_kwargs");
    let mut variables = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(ServerError::InvalidType { param, expected: "an object", found: kind(&other) });
        }
    };
    for owned in ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"] {
        if variables.contains_key(owned) {
            return Err(ServerError::InvalidValue {
                param,
                reason: format!("must not set `{owned}`, which the server sets itself"),
            });
        }
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(Value::Bool(false));
        }
        variables.entry("reasoning_effort").or_insert(Value::String(effort));
    }
    if let Some(mut thinking) = fields.object("thinking")? {
        thinking.refuse("budget_tokens", "reasoning cannot be bounded by this version")?;
        if let Some(word) = thinking.string("type")? {
            variables.entry("enable_thinking").or_insert(Value::Bool(word != "disabled"));
        }
    }
    if let Some(think) = fields.boolean("enable_thinking")? {
        variables.insert("enable_thinking".into(), Value::Bool(think));
    }
    Ok(variables)
}

pub(super) fn read_delivery(fields: &mut Fields) -> Result<Delivery, ServerError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    if !stream {
        return match options {
            None => Ok(Delivery::Whole),
            Some(_) => Err(ServerError::InvalidValue {
                param: "stream_options".into(),
                reason: "needs `stream` to be true".into(),
            }),
        };
    }
    let include_usage = match options {
        None => false,
        Some(mut options) => options.boolean("include_usage")?.unwrap_or(false),
    };
    Ok(Delivery::Stream { include_usage })
}

pub(super) fn read_extensions(fields: &mut Fields, ignored: &mut Vec<String>) -> Result<Extensions, ServerError> {
    let mut extensions = Extensions {
        prompt_cache_key: fields.string("prompt_cache_key")?,
        user: fields.string("user")?,
        ..Extensions::default()
    };
    let param = fields.name("metadata");
    extensions.metadata = match fields.take("metadata") {
        None => None,
        Some(object @ Value::Object(_)) => {
            extensions.metadata_session = object.get("session_id").and_then(Value::as_str).map(str::to_owned);
            Some(object)
        }
        Some(other) => {
            return Err(ServerError::InvalidType { param, expected: "an object", found: kind(&other) });
        }
    };
    let Some(mut own) = fields.object("plimsoll")? else { return Ok(extensions) };
    extensions.session = own.string("session")?.filter(|session| !session.is_empty());
    extensions.cache = match own.string("cache")?.as_deref() {
        None | Some("default") => CachePolicy::Default,
        Some("bypass") => CachePolicy::Bypass,
        Some(other) => return Err(one_of(&own, "cache", "default or bypass", other)),
    };
    extensions.compaction = match own.string("compaction")?.as_deref() {
        None | Some("auto") => CompactionWish::Auto,
        Some("off") => CompactionWish::Off,
        Some(other) => return Err(one_of(&own, "compaction", "auto or off", other)),
    };
    match own.string("guard")?.as_deref() {
        None | Some("default") => {}
        Some("off") => {
            return Err(ServerError::UnsupportedValue {
                param: own.name("guard"),
                found: "`off`".into(),
                reason: "this version has no guard to switch off; `default` works".into(),
            });
        }
        Some(other) => return Err(one_of(&own, "guard", "default or off", other)),
    }
    ignored.extend(own.unknown());
    Ok(extensions)
}

fn one_of(fields: &Fields, field: &str, words: &str, found: &str) -> ServerError {
    ServerError::InvalidValue { param: fields.name(field), reason: format!("must be {words}, found `{found}`") }
}

/// Takes `context_management`: at most one `compaction`.
fn read_context_management(fields: &mut Fields, ignored: &mut Vec<String>) -> Result<Option<CompactAt>, ServerError> {
    let param = fields.name("context_management");
    let mut asked = None;
    for (at, entry) in fields.array("context_management")?.unwrap_or_default().into_iter().enumerate() {
        let mut entry = Fields::open(entry, format!("{param}[{at}]"))?;
        let kind_name = entry.needed_string("type")?;
        if kind_name != "compaction" {
            return Err(ServerError::UnsupportedValue {
                param: entry.name("type"),
                found: format!("`{kind_name}`"),
                reason: "this endpoint knows `compaction` alone".into(),
            });
        }
        if asked.is_some() {
            return Err(ServerError::InvalidValue { param, reason: "must hold `compaction` at most once".into() });
        }
        asked = Some(match entry.integer("compact_threshold", 1)? {
            None => CompactAt::Budget,
            Some(tokens) => CompactAt::Tokens(u32::try_from(tokens).unwrap_or(u32::MAX)),
        });
        ignored.extend(entry.unknown());
    }
    Ok(asked)
}

fn refuse_the_unsupported(fields: &mut Fields) -> Result<(), ServerError> {
    fields.refuse("functions", "send `tools`")?;
    fields.refuse("function_call", "send `tool_choice`")?;
    fields.refuse("web_search_options", "this server does not search")?;
    fields.refuse("audio", "this server writes text alone")?;
    fields.refuse("thinking_budget", "reasoning cannot be bounded by this version")?;
    if let Some(modalities) = fields.array("modalities")?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(ServerError::UnsupportedValue {
            param: "modalities".into(),
            found: Value::Array(modalities).to_string(),
            reason: "this server writes text alone".into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_runtime::engine::SamplingParams;
    use serde_json::json;

    fn read(extra: Value) -> Result<ChatRequest, ServerError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        let defaults = ParameterDefaults { sampling: SamplingParams::default(), vocab: 100 };
        ChatRequest::read(Fields::open(body, "").unwrap(), &defaults, Media::Refuse)
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (extra, code, param) in [
            (json!({"tool_choice": "required"}), "unsupported_value", "tool_choice"),
            (
                json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
                "unsupported_value",
                "tool_choice",
            ),
            (json!({"tool_choice": "any"}), "invalid_value", "tool_choice"),
            (json!({"context_management": {}}), "invalid_type", "context_management"),
            (
                json!({"context_management": [{"type": "clear_tool_uses_20250919"}]}),
                "unsupported_value",
                "context_management[0].type",
            ),
            (
                json!({"context_management": [{"type": "compaction", "compact_threshold": 0}]}),
                "integer_below_min_value",
                "context_management[0].compact_threshold",
            ),
            (
                json!({"context_management": [{"type": "compaction"}, {"type": "compaction"}]}),
                "invalid_value",
                "context_management",
            ),
            (json!({"plimsoll": {"compaction": "never"}}), "invalid_value", "plimsoll.compaction"),
            (json!({"plimsoll": {"guard": "off"}}), "unsupported_value", "plimsoll.guard"),
            (json!({"plimsoll": {"guard": 1}}), "invalid_type", "plimsoll.guard"),
            (json!({"plimsoll": {"session": 1}}), "invalid_type", "plimsoll.session"),
            (json!({"plimsoll": {"cache": "never"}}), "invalid_value", "plimsoll.cache"),
            (json!({"functions": []}), "unsupported_parameter", "functions"),
            (json!({"modalities": ["text", "audio"]}), "unsupported_value", "modalities"),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 9}}),
                "unsupported_parameter",
                "thinking.budget_tokens",
            ),
            (json!({"stream_options": {"include_usage": true}}), "invalid_value", "stream_options"),
            (json!({"stream": "yes"}), "invalid_type", "stream"),
            (json!({"tools": [{"type": "custom", "custom": {}}]}), "unsupported_value", "tools[0].type"),
            (json!({"chat_template_kwargs": {"messages": []}}), "invalid_value", "chat_template_kwargs"),
        ] {
            let error = read(extra.clone()).unwrap_err().body();
            assert_eq!(
                (error["error"]["code"].as_str(), error["error"]["param"].as_str()),
                (Some(code), Some(param)),
                "{extra}"
            );
        }
    }

    #[test]
    fn a_request_says_when_it_wants_its_session_compacted() {
        let at = |value: Value| read(json!({"context_management": value})).unwrap().compact_at;
        assert_eq!(at(json!([{"type": "compaction", "compact_threshold": 4800}])), Some(CompactAt::Tokens(4800)));
        assert_eq!(at(json!([{"type": "compaction", "compact_threshold": null}])), Some(CompactAt::Budget));
        assert_eq!(at(json!([{"type": "compaction"}])), Some(CompactAt::Budget));
        assert_eq!((at(json!([])), at(Value::Null)), (None, None));
        let wish = |value: Value| read(json!({"plimsoll": value})).unwrap().extensions.compaction;
        assert_eq!(wish(json!({"compaction": "off"})), CompactionWish::Off);
        assert_eq!(
            (wish(json!({"compaction": "auto"})), wish(json!({}))),
            (CompactionWish::Auto, CompactionWish::Auto)
        );
    }

    #[test]
    fn what_is_unknown_is_ignored_and_named() {
        let read =
            read(json!({"store": false, "client_metadata": {}, "plimsoll": {"colour": "red"}, "service_tier": null}));
        assert_eq!(read.unwrap().ignored, ["plimsoll.colour", "store", "client_metadata"]);
    }

    #[test]
    fn the_template_is_told_of_the_reasoning_effort() {
        let variables =
            read(json!({"reasoning_effort": "none", "chat_template_kwargs": {"a": 1}})).unwrap().template_variables;
        assert_eq!(Value::Object(variables), json!({"a": 1, "enable_thinking": false, "reasoning_effort": "none"}));
    }
}
