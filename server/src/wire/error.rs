//! Everything that can go wrong for a request, and the one place where it becomes an OpenAI error object.
//!
//! Owns the [`ServerError`] enum and its mapping to status, type, code and headers. Never decides whether something
//! is an error. Clients search 4xx texts for words that mean "the window is full" and then compact; therefore only
//! the overflow message may contain them (see [`WINDOW_WORDS`]). Envelope and codes: OpenAI's API reference, as its
//! Python client parses them.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use plimsoll_runtime::compaction::CompactionError;
use plimsoll_runtime::engine::Reject;
use plimsoll_runtime::model_text::TextError;
use plimsoll_runtime::sessions::{CompactionState, StoreError};
use serde_json::{Value, json};

/// Words by which coding agents recognise a full window, in lower case. No error but the overflow contains one.
pub const WINDOW_WORDS: [&str; 6] =
    ["exceeds", "too long", "max_tokens", "token count", "context length", "rate limit"];

/// The longest time a client is asked to wait, in seconds: beyond it the official clients do not retry at all.
const RETRY_AFTER_LIMIT_S: u32 = 120;

/// Why `/ready` says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The model is being fetched or loaded.
    Loading,
    /// The engine thread broke or stopped answering.
    Poisoned,
    /// The server is finishing its last requests.
    Draining,
}

impl NotReady {
    /// The word `/ready` answers with.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Poisoned => "poisoned",
            Self::Draining => "draining",
        }
    }
}

/// What is wrong with a request, or with the server.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ServerError {
    #[error("The request needs {}.", quoted(.param))]
    Missing { param: String },
    #[error("{} must be {expected}, found {found}.", start(.param))]
    InvalidType { param: String, expected: &'static str, found: &'static str },
    #[error("{} {reason}.", start(.param))]
    InvalidValue { param: String, reason: String },
    #[error("{} must be at least {least}, found {found}.", start(.param))]
    BelowMinimum { param: String, least: String, found: String },
    #[error("{} must be at most {most}, found {found}.", start(.param))]
    AboveMaximum { param: String, most: String, found: String },
    #[error("{} is not supported yet: {reason}.", start(.param))]
    UnsupportedParameter { param: String, reason: String },
    #[error("{} does not accept {found} yet: {reason}.", start(.param))]
    UnsupportedValue { param: String, found: String, reason: String },
    #[error("{} is a `{kind}` part; this server reads text parts alone.", start(.param))]
    UnsupportedContent { param: String, kind: String },
    #[error("The body is not JSON: {0}.")]
    MalformedJson(String),
    #[error("The body nests deeper than 127 levels of JSON.")]
    NestedTooDeep,
    #[error("The body must be JSON (content-type: application/json), found {}.", .found.as_ref().map_or("no content-type".to_owned(), |found| format!("`{found}`")))]
    NotJson { found: Option<String> },
    #[error("The body is larger than the limit of {limit} bytes.")]
    BodyTooLarge { limit: usize },
    #[error("The body holds more than {limit} JSON values.")]
    TooManyValues { limit: usize },
    #[error("The server is busy reading other large bodies.")]
    BodiesInTheWay,
    #[error("The body did not arrive within {seconds} s.")]
    BodyTimeout { seconds: u64 },
    #[error("The connection broke while the body was read.")]
    BodyBroken,
    #[error("The model `{model}` does not exist or you do not have access to it. This server has: {known}.")]
    UnknownModel { model: String, known: String },
    #[error("There is no session `{0}`.")]
    UnknownSession(String),
    #[error("The session is stopped: {reason}. A person can resume it with POST /v1/sessions/{session}/resume.")]
    SessionStopped { session: String, reason: String },
    #[error("The session is compacted at this moment; try again when that has ended.")]
    CompactionRuns,
    #[error("A request of the session runs; compact it when that has ended.")]
    SessionRuns,
    #[error("The session has no finished turn that a summary could take the place of.")]
    NothingToCompact,
    #[error("The session was not compacted and its history is what it was: {message}.")]
    CompactionFailed { reason: String, compaction: String, message: String },
    #[error("The session could not be written: {0}.")]
    Store(String),
    #[error("There is no route {method} {path}.")]
    UnknownRoute { method: String, path: String },
    #[error("The method {method} is not allowed for {path}.")]
    MethodNotAllowed { method: String, path: String },
    #[error("No API key was given. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.")]
    MissingKey,
    #[error("Incorrect API key provided: it is none of the keys this server was started with.")]
    WrongKey,
    #[error("The host `{found}` is not served here; start the server with --allowed-host to allow it.")]
    ForeignHost { found: String },
    #[error("Requests from the origin `{found}` are refused; start the server with --allowed-host to allow it.")]
    ForeignOrigin { found: String },
    // `limit` is the longest prompt that is admitted, `window` the whole window. Clients parse the sentence.
    #[error(
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {prompt} tokens. Please reduce the length of the messages."
    )]
    Overflow { limit: u32, window: u32, prompt: u32 },
    #[error("The messages cannot be rendered with this model's chat template: {0}.")]
    Template(String),
    #[error("The server is not ready: {}.", .0.as_str())]
    NotReady(NotReady),
    #[error("The request was not admitted: {0}.")]
    Rejected(Reject),
    #[error("The engine failed: {0}.")]
    Engine(String),
    #[error("The server was shut down before the reply was complete.")]
    ShutDown,
    #[error("The server made a mistake while it handled this request; its log says more.")]
    Internal,
}

/// The limit of a reply is not named in texts: agents take its name for a sign of a full window.
fn quoted(param: &str) -> String {
    if WINDOW_WORDS.iter().any(|word| param.to_lowercase().contains(word)) {
        "the limit of the reply's tokens".to_owned()
    } else {
        format!("`{param}`")
    }
}

fn start(param: &str) -> String {
    if param.is_empty() {
        return "The body".to_owned();
    }
    let quoted = quoted(param);
    match quoted.strip_prefix("the ") {
        Some(rest) => format!("The {rest}"),
        None => quoted,
    }
}

/// Longest text of an error, in characters. What a request sent wrongly is repeated in the text and can be megabytes.
const MESSAGE_CHARS: usize = 1000;
/// What stands for the middle of a text that is cut.
const ELISION: &str = " … ";

/// A text of at most [`MESSAGE_CHARS`]: the middle is left out, because sentences begin with what is wrong and end with
/// what to do.
fn without_middle(text: String) -> String {
    if text.len() <= MESSAGE_CHARS {
        return text;
    }
    let half = (MESSAGE_CHARS - ELISION.len()) / 2;
    let Some((head_end, _)) = text.char_indices().nth(half) else { return text };
    let Some((tail_start, _)) = text.char_indices().rev().nth(half) else { return text };
    if tail_start <= head_end {
        return text;
    }
    format!("{}{ELISION}{}", &text[..head_end], &text[tail_start..])
}

/// How an error looks on the wire.
struct Shape {
    status: StatusCode,
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after_s: Option<u32>,
}

impl Shape {
    fn invalid(param: Option<&str>, code: &'static str) -> Self {
        Self::request(StatusCode::BAD_REQUEST, param, code)
    }

    fn request(status: StatusCode, param: Option<&str>, code: &'static str) -> Self {
        Self {
            status,
            kind: "invalid_request_error",
            param: param.filter(|p| !p.is_empty()).map(str::to_owned),
            code: Some(code),
            retry_after_s: None,
        }
    }

    fn unavailable(code: &'static str, retry_after_s: u32) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "server_error",
            param: None,
            code: Some(code),
            retry_after_s: Some(retry_after_s),
        }
    }

    fn internal() -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "server_error",
            param: None,
            code: None,
            retry_after_s: None,
        }
    }
}

impl ServerError {
    fn shape(&self) -> Shape {
        use ServerError as E;
        match self {
            E::Missing { param } => Shape::invalid(Some(param), "missing_required_parameter"),
            E::InvalidType { param, .. } => Shape::invalid(Some(param), "invalid_type"),
            E::InvalidValue { param, .. } => Shape::invalid(Some(param), "invalid_value"),
            E::BelowMinimum { param, .. } => Shape::invalid(Some(param), "integer_below_min_value"),
            E::AboveMaximum { param, .. } => Shape::invalid(Some(param), "integer_above_max_value"),
            E::UnsupportedParameter { param, .. } => Shape::invalid(Some(param), "unsupported_parameter"),
            E::UnsupportedValue { param, .. } => Shape::invalid(Some(param), "unsupported_value"),
            E::UnsupportedContent { param, .. } => Shape::invalid(Some(param), "unsupported_content"),
            E::MalformedJson(_) | E::NestedTooDeep | E::BodyBroken => Shape::invalid(None, "invalid_json"),
            E::NotJson { .. } => Shape::request(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, "unsupported_media_type"),
            E::BodyTooLarge { .. } | E::TooManyValues { .. } => {
                Shape::request(StatusCode::PAYLOAD_TOO_LARGE, None, "request_too_large")
            }
            E::BodiesInTheWay => Shape::unavailable("server_is_overloaded", 2),
            E::BodyTimeout { .. } => Shape::request(StatusCode::REQUEST_TIMEOUT, None, "request_timeout"),
            E::UnknownModel { .. } => Shape::request(StatusCode::NOT_FOUND, Some("model"), "model_not_found"),
            E::UnknownSession(_) => Shape::request(StatusCode::NOT_FOUND, None, "session_not_found"),
            E::SessionStopped { .. } => Shape::request(StatusCode::FORBIDDEN, None, "session_stopped"),
            E::CompactionRuns => Shape::request(StatusCode::CONFLICT, None, "compaction_in_progress"),
            E::SessionRuns => Shape::request(StatusCode::CONFLICT, None, "session_running"),
            E::NothingToCompact => Shape::request(StatusCode::UNPROCESSABLE_ENTITY, None, "nothing_to_compact"),
            E::CompactionFailed { .. } => Shape::request(StatusCode::UNPROCESSABLE_ENTITY, None, "compaction_failed"),
            E::Store(_) => Shape { status: StatusCode::INSUFFICIENT_STORAGE, ..Shape::internal() },
            E::UnknownRoute { .. } => Shape::request(StatusCode::NOT_FOUND, None, "unknown_url"),
            E::MethodNotAllowed { .. } => Shape::request(StatusCode::METHOD_NOT_ALLOWED, None, "method_not_allowed"),
            E::MissingKey | E::WrongKey => Shape::request(StatusCode::UNAUTHORIZED, None, "invalid_api_key"),
            E::ForeignHost { .. } => Shape::request(StatusCode::FORBIDDEN, None, "foreign_host"),
            E::ForeignOrigin { .. } => Shape::request(StatusCode::FORBIDDEN, None, "foreign_origin"),
            E::Overflow { .. } => Shape::invalid(Some("messages"), "context_length_exceeded"),
            E::Template(_) => Shape::invalid(Some("messages"), "invalid_messages"),
            E::NotReady(reason) => Shape::unavailable(reason.as_str(), 5),
            E::Rejected(reject) => match reject {
                Reject::QueueFull { retry_after_s, .. } => Shape {
                    status: StatusCode::TOO_MANY_REQUESTS,
                    kind: "requests",
                    param: None,
                    code: Some("rate_limit_exceeded"),
                    retry_after_s: Some((*retry_after_s).clamp(1, RETRY_AFTER_LIMIT_S)),
                },
                Reject::NeverFits { .. } | Reject::BeyondContext { .. } => Shape::invalid(None, "request_never_fits"),
                Reject::Malformed(_) => Shape::internal(),
                Reject::Draining => Shape::unavailable("draining", 5),
                Reject::EngineDown => Shape::unavailable("poisoned", 30),
            },
            E::ShutDown => Shape::unavailable("draining", 5),
            E::Engine(_) | E::Internal => Shape::internal(),
        }
    }

    /// The status the error is answered with.
    pub fn status(&self) -> StatusCode {
        self.shape().status
    }

    /// The JSON object `{"error": {...}}`, for bodies and for `data:` lines of a stream that has begun.
    pub fn body(&self) -> Value {
        let shape = self.shape();
        let mut error = json!({
            "message": self.message(),
            "type": shape.kind,
            "param": shape.param,
            "code": shape.code,
        });
        if let Self::Overflow { window, prompt, .. } = self {
            error["n_ctx"] = json!(window);
            error["n_prompt_tokens"] = json!(prompt);
        }
        if let Self::CompactionFailed { reason, compaction, .. } = self {
            error["reason"] = json!(reason);
            error["compaction"] = json!(compaction);
        }
        json!({ "error": error })
    }

    /// The sentence for people. Words that would make a client compact its history are taken out of everything but
    /// the overflow: they can only come from text that was quoted from the request, a template or the engine.
    fn message(&self) -> String {
        let message = self.to_string();
        if matches!(self, Self::Overflow { .. }) {
            return message;
        }
        without_window_words(without_middle(message))
    }
}

fn without_window_words(mut text: String) -> String {
    for word in WINDOW_WORDS {
        // ASCII case folding keeps byte offsets, so positions found in the folded text are positions in the text.
        while let Some(at) = text.to_ascii_lowercase().find(word) {
            text.replace_range(at..at + word.len(), "…");
        }
    }
    text
}

impl IntoResponse for ServerError {
    fn into_response(self) -> Response {
        let shape = self.shape();
        if shape.status.is_server_error() {
            tracing::warn!(status = shape.status.as_u16(), "{self}");
        }
        let mut response = (shape.status, Json(self.body())).into_response();
        if let Some(seconds) = shape.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::SessionStopped { .. }) {
            // Asking again changes nothing before a person does.
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if shape.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<CompactionError> for ServerError {
    fn from(error: CompactionError) -> Self {
        match error {
            CompactionError::NothingToReplace => Self::NothingToCompact,
            CompactionError::Busy => Self::CompactionRuns,
            CompactionError::Text(error) => error.into(),
            CompactionError::Failed(record) => match record.state {
                CompactionState::Failed { reason, message } => Self::CompactionFailed {
                    reason: serde_json::to_value(reason)
                        .ok()
                        .and_then(|word| Some(word.as_str()?.to_owned()))
                        .unwrap_or_default(),
                    compaction: record.id.as_str().to_owned(),
                    message,
                },
                _ => Self::Internal,
            },
        }
    }
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

impl From<TextError> for ServerError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::NoTemplate => Self::Template("the model file has none; use /v1/completions".into()),
            TextError::NoToolFormat => Self::UnsupportedParameter { param: "tools".into(), reason: error.to_string() },
            TextError::Template(reason) => Self::Template(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<ServerError> {
        use ServerError as E;
        let param = || "max_tokens".to_owned();
        let text = || "this exceeds the context length, is too long".to_owned();
        vec![
            E::Missing { param: param() },
            E::InvalidType { param: param(), expected: "an integer", found: "a string" },
            E::InvalidValue { param: param(), reason: text() },
            E::BelowMinimum { param: param(), least: "1".into(), found: "0".into() },
            E::AboveMaximum { param: param(), most: "1".into(), found: "2".into() },
            E::UnsupportedParameter { param: param(), reason: text() },
            E::UnsupportedValue { param: param(), found: text(), reason: text() },
            E::UnsupportedContent { param: param(), kind: text() },
            E::MalformedJson(text()),
            E::NestedTooDeep,
            E::NotJson { found: Some(text()) },
            E::NotJson { found: None },
            E::BodyTooLarge { limit: 1 },
            E::TooManyValues { limit: 1 },
            E::BodiesInTheWay,
            E::BodyTimeout { seconds: 30 },
            E::BodyBroken,
            E::UnknownModel { model: text(), known: text() },
            E::UnknownSession(text()),
            E::SessionStopped { session: text(), reason: text() },
            E::CompactionRuns,
            E::SessionRuns,
            E::NothingToCompact,
            E::CompactionFailed { reason: text(), compaction: text(), message: text() },
            E::Store(text()),
            E::UnknownRoute { method: text(), path: text() },
            E::MethodNotAllowed { method: text(), path: text() },
            E::MissingKey,
            E::WrongKey,
            E::ForeignHost { found: text() },
            E::ForeignOrigin { found: text() },
            E::Template("Rate Limit, TOKEN COUNT, ctx".into()),
            E::NotReady(NotReady::Loading),
            E::Rejected(Reject::QueueFull { waiting: 9, retry_after_s: 900 }),
            E::Rejected(Reject::NeverFits { needed: 9, pages: 8 }),
            E::Rejected(Reject::BeyondContext { needed: 9, max_context: 8 }),
            E::Rejected(Reject::Malformed("empty prompt")),
            E::Rejected(Reject::Draining),
            E::Rejected(Reject::EngineDown),
            E::Engine(text()),
            E::ShutDown,
            E::Internal,
        ]
    }

    #[test]
    fn no_error_but_the_overflow_speaks_of_a_full_window() {
        for error in one_of_each() {
            let message = error.body()["error"]["message"].as_str().unwrap().to_lowercase();
            for word in WINDOW_WORDS {
                assert!(!message.contains(word), "{message:?} contains {word:?}");
            }
        }
    }

    #[test]
    fn the_overflow_has_the_words_and_numbers_that_clients_look_for() {
        let body = ServerError::Overflow { limit: 61440, window: 65536, prompt: 70000 }.body();
        assert_eq!(
            body,
            json!({"error": {
                "message": "This model's maximum context length is 61440 tokens. However, your messages resulted in \
                            70000 tokens. Please reduce the length of the messages.",
                "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded",
                "n_ctx": 65536, "n_prompt_tokens": 70000,
            }})
        );
    }

    #[test]
    fn an_error_that_repeats_megabytes_is_short_quick_and_still_says_what_to_do() {
        let started = std::time::Instant::now();
        for piece in ["exceeds", "é", "too long max_tokens "] {
            let error = ServerError::UnknownModel { model: piece.repeat(1 << 20), known: "demo".into() };
            let body = error.body();
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.chars().count() <= MESSAGE_CHARS, "{}", message.chars().count());
            assert!(message.starts_with("The model `"), "{message}");
            assert!(message.ends_with("This server has: demo."), "{message}");
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(5));
    }

    #[test]
    fn nobody_is_asked_to_wait_longer_than_clients_are_willing_to() {
        for error in one_of_each() {
            if let Some(seconds) = error.shape().retry_after_s {
                assert!((1..=RETRY_AFTER_LIMIT_S).contains(&seconds), "{error:?}");
            }
        }
    }
}
