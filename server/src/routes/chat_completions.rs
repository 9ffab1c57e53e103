//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use plimsoll_models::chat::{Message, Role, ToolCall};
use plimsoll_models::dialect::ToolsOffered;
use plimsoll_runtime::engine::TenantId;
use serde_json::Value;

use super::tokens::prepared;
use crate::generate::deliver::{Delivery, ReplyFormat, stream, whole};
use crate::generate::reply::Counted;
use crate::generate::submit::{Prepared, grant, submit};
use crate::http::json_body::read_object;
use crate::sessions::{Reading, SessionId, named_session};
use crate::state::{SharedState, unix_seconds, wire_id};
use crate::wire::chat_request::{self, ChatRequest};
use crate::wire::chat_response::ChatHead;
use crate::wire::error::ServerError;
use crate::wire::reply::{ChoiceUpdate, Progress, Tail, WholeChoice};
use crate::wire::usage::Usage;
use plimsoll_runtime::model_text::Conversation;

/// Answers a chat completion.
pub async fn handle(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    state.catalog_for_work()?;
    let running = state.drain.request();
    let (mut fields, body) = read_object(&headers, body, state.options.body, &state.bodies).await?;
    let model_id = fields.needed_string("model")?;
    let served = state.catalog_for_work()?.find(&model_id)?;
    let mut request = ChatRequest::read(fields, &served.parameter_defaults(), served.media)?;
    served.complete_variables(&mut request.template_variables);
    let request = Arc::new(request);

    let text = served.model.text.clone();
    let conversation = request.clone();
    let rendered = prepared(&state, move || Ok(text.render(conversation_of(&conversation))?)).await?;
    drop(body);
    let parameters = &request.parameters;
    let granted = grant(
        &state,
        served,
        Prepared {
            tenant,
            prompt: rendered.tokens,
            parameters,
            cache: request.extensions.cache,
            edits: request.edits.clone(),
        },
    )?;
    let reading = granted.reading.clone();
    let tools = if request.tools.is_empty() { ToolsOffered::No } else { ToolsOffered::Yes };
    let reply = submit(&state, served, granted, parameters, request.parallel_calls, || {
        served.model.text.splitter(&rendered.text, tools)
    })
    .await?;

    let name = named_session(&headers, &request.extensions);
    let chain = state.sessions.chain(tenant, &served.id, &request.messages);
    let session = state.sessions.open(tenant, name.as_deref(), &chain);
    state.sessions.admitted(&session, reading.clone());

    let include_usage = matches!(request.delivery, chat_request::Delivery::Stream { include_usage: true });
    let head = ChatHead { id: wire_id("chatcmpl-"), created: unix_seconds(), model: model_id, include_usage };
    let ending = {
        let (state, request, session, reading, model) =
            (state.clone(), request.clone(), session.clone(), reading.clone(), served.id.clone());
        Box::new(move |counted: &[Counted], first: &WholeChoice| {
            let mut said = request.messages.clone();
            said.push(assistant_message(first));
            if let Some(end) = state.sessions.chain(tenant, &model, &said).last() {
                state.sessions.reply_said(&session, tenant, *end);
            }
            tail(&request, &reading, &session, counted)
        })
    };
    let delivery = Delivery {
        steps: vec![reply.into_steps(0)],
        choices: parameters.n,
        format: Box::new(ChatFormat { head }),
        ending,
        guard: Box::new(running),
    };
    let mut response = match request.delivery {
        chat_request::Delivery::Whole => Json(whole(delivery).await?).into_response(),
        chat_request::Delivery::Stream { .. } => event_stream(stream(delivery, state.options.silence)),
    };
    context_headers(response.headers_mut(), &reading, &session);
    ignored_header(response.headers_mut(), &request.ignored);
    Ok(response)
}

fn conversation_of(request: &ChatRequest) -> Conversation<'_> {
    Conversation { messages: &request.messages, tools: &request.tools, variables: &request.template_variables }
}

/// The reply as it will come back in the next request.
fn assistant_message(choice: &WholeChoice) -> Message {
    let mut message = Message::text(Role::Assistant, choice.text.clone());
    message.tool_calls = choice
        .calls
        .iter()
        .map(|(id, name, arguments)| ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.clone() })
        .collect();
    message
}

fn tail(request: &ChatRequest, reading: &Reading, session: &SessionId, counted: &[Counted]) -> Tail {
    Tail {
        usage: usage(counted),
        context: serde_json::to_value(reading.meter(session)).unwrap_or_default(),
        warnings: request.warnings.clone(),
        user: request.extensions.user.clone(),
        metadata: request.extensions.metadata.clone(),
    }
}

/// The sum over all prompts of a request.
pub(super) fn usage(counted: &[Counted]) -> Usage {
    let sum = |number: fn(&Counted) -> u32| counted.iter().map(number).sum();
    Usage::new(
        sum(|counted| counted.prompt),
        sum(|counted| counted.cached),
        sum(|counted| counted.completion),
        sum(|counted| counted.reasoning),
    )
}

/// A body of server-sent events.
pub(super) fn event_stream(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that collect answers would turn a stream into a lump.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// The short form of the meter. On a stream it is the prompt's, since headers go out first.
pub(super) fn context_headers(headers: &mut axum::http::HeaderMap, reading: &Reading, session: &SessionId) {
    let meter = reading.meter(session);
    headers.insert("x-context-used", HeaderValue::from(meter.used().0));
    headers.insert("x-context-window", HeaderValue::from(meter.window.0));
    headers.insert("x-context-zone", HeaderValue::from_static(meter.zone.name()));
    if let Ok(session) = HeaderValue::from_str(session.as_str()) {
        headers.insert("x-session-id", session);
    }
}

/// Most bytes of the header that names ignored fields.
const IGNORED_BYTES: usize = 1024;

/// Names the fields nobody knows.
pub(super) fn ignored_header(headers: &mut axum::http::HeaderMap, ignored: &[String]) {
    if ignored.is_empty() {
        return;
    }
    let names: String = ignored
        .join(", ")
        .chars()
        .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
        .take(IGNORED_BYTES)
        .collect();
    if let Ok(value) = HeaderValue::from_str(&names) {
        headers.insert("x-plimsoll-ignored", value);
    }
}

struct ChatFormat {
    head: ChatHead,
}

impl ReplyFormat for ChatFormat {
    fn opening(&mut self, choice: u32) -> Option<Value> {
        Some(self.head.opening(choice))
    }

    fn update(&mut self, update: ChoiceUpdate) -> Vec<Value> {
        let mut tokens = update.tokens.as_slice();
        let mut chunks = Vec::with_capacity(update.pieces.len() + 1);
        for piece in update.pieces {
            chunks.push(self.head.piece(update.choice, piece, std::mem::take(&mut tokens)));
        }
        if let Some(finish) = update.finish {
            chunks.push(self.head.finish(update.choice, finish, tokens));
        }
        chunks
    }

    fn keep_alive(&self, progress: Progress) -> Value {
        self.head.keep_alive(progress)
    }

    fn usage(&self, tail: &Tail) -> Option<Value> {
        self.head.include_usage.then(|| self.head.usage(tail))
    }

    fn whole(&self, choices: Vec<WholeChoice>, tail: &Tail) -> Value {
        self.head.whole(choices, tail)
    }
}
