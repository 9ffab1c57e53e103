//! `POST /v1/chat/completions`.

use std::future::ready;
use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream::once;
use futures_util::{FutureExt, StreamExt};
use plimsoll_models::chat::{Message, Role, ToolCall};
use plimsoll_runtime::engine::TenantId;
use plimsoll_runtime::sessions::Asked;
use serde_json::Value;

use super::answer::{About, answer};
use crate::generate::deliver::{Delivery, ReplyFormat};
use crate::generate::reply::Counted;
use crate::generate::turn::TurnTask;
use crate::http::json_body::read_object;
use crate::session_name::named_session;
use crate::state::{SharedState, unix_seconds, wire_id};
use crate::wire::chat_request::{self, ChatRequest};
use crate::wire::chat_response::ChatHead;
use crate::wire::error::ServerError;
use crate::wire::reply::{ChoiceUpdate, Progress, Tail, WholeChoice};

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

    drop(body);

    let name = named_session(&headers, &request.extensions);
    let asked = Asked { tenant, model: &served.id, name: name.as_deref(), messages: &request.messages };
    let open = Arc::new(state.sessions.session(asked));
    let turn = Arc::new(OnceLock::new());
    let task = TurnTask {
        state: state.clone(),
        served: served.clone(),
        request: request.clone(),
        open: open.clone(),
        turn: turn.clone(),
    };
    let mut starting = Box::pin(task.start());
    let steps = match request.delivery {
        chat_request::Delivery::Whole => starting.await?.into_steps(0),
        chat_request::Delivery::Stream { .. } => {
            // A compaction takes its time; from here on it is keep-alives that say that the server lives.
            match tokio::time::timeout(state.options.silence, &mut starting).await {
                Ok(reply) => reply?.into_steps(0),
                Err(_) => starting
                    .map(|reply| match reply {
                        Ok(reply) => reply.into_steps(0),
                        Err(error) => once(ready(Err(error))).boxed(),
                    })
                    .flatten_stream()
                    .boxed(),
            }
        }
    };
    let about = About { session: open.session.clone(), reading: turn.get().map(|turn| turn.reading.clone()) };

    let include_usage = matches!(request.delivery, chat_request::Delivery::Stream { include_usage: true });
    let head = ChatHead { id: wire_id("chatcmpl-"), created: unix_seconds(), model: model_id, include_usage };
    let ending = {
        let (state, request, open) = (state.clone(), request.clone(), open.clone());
        Box::new(move |counted: &[Counted], first: &WholeChoice| {
            let turn = turn.get();
            if let Some(turn) = turn {
                let mut said = request.messages.clone();
                said.push(assistant_message(first));
                turn.settle(&state, &open, &said);
            }
            let about = About { session: open.session.clone(), reading: turn.map(|turn| turn.reading.clone()) };
            about.tail(counted, &request.extensions, &request.warnings)
        })
    };
    let delivery = Delivery {
        steps: vec![steps],
        choices: request.parameters.n,
        format: Box::new(ChatFormat { head }),
        ending,
        guard: Box::new((running, open)),
    };
    answer(&state, delivery, request.delivery, &about, &request.ignored).await
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
