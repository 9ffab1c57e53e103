//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use plimsoll_models::chat::{Message, Role, ToolCall};
use plimsoll_models::dialect::ToolsOffered;
use plimsoll_runtime::engine::TenantId;
use serde_json::Value;

use super::answer::{About, answer};
use super::tokens::prepared;
use crate::generate::deliver::{Delivery, ReplyFormat};
use crate::generate::reply::Counted;
use crate::generate::submit::{Prepared, grant, submit};
use crate::http::json_body::read_object;
use crate::sessions::named_session;
use crate::state::{SharedState, unix_seconds, wire_id};
use crate::wire::chat_request::{self, ChatRequest};
use crate::wire::chat_response::ChatHead;
use crate::wire::error::ServerError;
use crate::wire::reply::{ChoiceUpdate, Progress, Tail, WholeChoice};
use plimsoll_runtime::model_text::{Conversation, Ending};

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
    let about = About { session, reading };

    let include_usage = matches!(request.delivery, chat_request::Delivery::Stream { include_usage: true });
    let head = ChatHead { id: wire_id("chatcmpl-"), created: unix_seconds(), model: model_id, include_usage };
    let ending = {
        let (state, request, about, model) = (state.clone(), request.clone(), about.clone(), served.id.clone());
        Box::new(move |counted: &[Counted], first: &WholeChoice| {
            let mut said = request.messages.clone();
            said.push(assistant_message(first));
            if let Some(end) = state.sessions.chain(tenant, &model, &said).last() {
                state.sessions.reply_said(&about.session, tenant, *end);
            }
            about.tail(counted, &request.extensions, &request.warnings)
        })
    };
    let delivery = Delivery {
        steps: vec![reply.into_steps(0)],
        choices: parameters.n,
        format: Box::new(ChatFormat { head }),
        ending,
        guard: Box::new(running),
    };
    answer(&state, delivery, request.delivery, &about, &request.ignored).await
}

fn conversation_of(request: &ChatRequest) -> Conversation<'_> {
    Conversation {
        messages: &request.messages,
        tools: &request.tools,
        variables: &request.template_variables,
        spoken: &[],
        ending: Ending::Reply,
    }
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
