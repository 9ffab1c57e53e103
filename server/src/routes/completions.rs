//! `POST /v1/completions`: raw prompts, no template, no tools.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use plimsoll_models::chat::{Message, Role};
use plimsoll_runtime::budget::Tokens;
use plimsoll_runtime::engine::TenantId;
use plimsoll_runtime::sessions::Asked;
use serde_json::Value;

use super::answer::{About, answer};
use crate::generate::deliver::{Delivery, ReplyFormat};
use crate::generate::prepare::prepared;
use crate::generate::reply::Counted;
use crate::generate::submit::{Prepared, grant, submit};
use crate::http::json_body::read_object;
use crate::session_name::named_session;
use crate::state::{SharedState, unix_seconds, wire_id};
use crate::wire::chat_request::{self, ParallelCalls};
use crate::wire::completion_request::{CompletionRequest, RawPrompt};
use crate::wire::completion_response::CompletionHead;
use crate::wire::error::ServerError;
use crate::wire::reply::{ChoiceUpdate, Piece, Progress, Tail, WholeChoice};
use plimsoll_runtime::model_text::PlainSplitter;

/// Answers a raw completion. All prompts are admitted by the budget before any of them runs.
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
    let mut request = CompletionRequest::read(fields, &served.parameter_defaults())?;

    // Texts make the chain by which the session is recognised; token prompts have none.
    let mut messages = Vec::new();
    if let [RawPrompt::Text(text)] = request.prompts.as_slice() {
        messages.push(Message::text(Role::User, text.clone()));
    }
    let text = served.model.text.clone();
    let prompts = std::mem::take(&mut request.prompts);
    let request = Arc::new(request);
    let encoded = prepared(&state, move || {
        let encode = |prompt| match prompt {
            RawPrompt::Text(prompt) => text.encode(&prompt),
            RawPrompt::Tokens(tokens) => tokens,
        };
        Ok(prompts.into_iter().map(encode).collect::<Vec<_>>())
    })
    .await?;
    drop(body);
    let parameters = &request.parameters;
    let mut granted = Vec::with_capacity(encoded.len());
    for prompt in encoded {
        let cache = request.extensions.cache;
        granted.push(grant(
            &state,
            served,
            Prepared { tenant, prompt, parameters, cache, instruction: Tokens(0), edits: Vec::new() },
        )?);
    }
    let reading = granted[0].reading.clone();
    let mut steps = Vec::with_capacity(granted.len());
    for (at, granted) in granted.into_iter().enumerate() {
        let reply =
            submit(&state, served, granted, parameters, ParallelCalls::Allowed, || Box::new(PlainSplitter)).await?;
        steps.push(reply.into_steps(at as u32 * parameters.n));
    }
    let choices = steps.len() as u32 * parameters.n;

    let name = named_session(&headers, &request.extensions);
    let asked = Asked { tenant, model: &served.id, name: name.as_deref(), messages: &messages };
    let open = state.sessions.session(asked);
    open.session.set_reading(reading.clone());
    let about = About { session: open.session.clone(), reading: Some(reading) };

    let include_usage = matches!(request.delivery, chat_request::Delivery::Stream { include_usage: true });
    let head = CompletionHead { id: wire_id("cmpl-"), created: unix_seconds(), model: model_id, include_usage };
    let ending = {
        let (request, about) = (request.clone(), about.clone());
        Box::new(move |counted: &[Counted], _: &WholeChoice| about.tail(counted, &request.extensions, &[]))
    };
    let delivery = Delivery {
        steps,
        choices,
        format: Box::new(CompletionFormat { head, written: vec![0; choices as usize] }),
        ending,
        guard: Box::new((running, open)),
    };
    answer(&state, delivery, request.delivery, &about, &request.ignored).await
}

struct CompletionFormat {
    head: CompletionHead,
    /// Characters each choice has, for the offsets of log-probabilities.
    written: Vec<usize>,
}

impl ReplyFormat for CompletionFormat {
    fn opening(&mut self, _choice: u32) -> Option<Value> {
        None
    }

    fn update(&mut self, update: ChoiceUpdate) -> Vec<Value> {
        let mut tokens = update.tokens.as_slice();
        let mut chunks = Vec::with_capacity(update.pieces.len() + 1);
        let written = &mut self.written[update.choice as usize];
        for piece in update.pieces {
            let length = match &piece {
                Piece::Text(text) | Piece::Reasoning(text) => text.chars().count(),
                Piece::CallBegin { .. } | Piece::CallArguments { .. } => 0,
            };
            chunks.push(self.head.piece(update.choice, piece, std::mem::take(&mut tokens), *written));
            *written += length;
        }
        if let Some(finish) = update.finish {
            chunks.push(self.head.finish(update.choice, finish, tokens, *written));
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
