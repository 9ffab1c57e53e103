//! `POST /tokenize`, `/detokenize`, `/apply-template`: what a prompt is, in tokens and as text.
//!
//! They read the fields that generation reads, so that counts are the same to the token.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Serialize;
use serde_json::{Value, json};

use crate::catalog::ServedModel;
use crate::generate::prepare::prepared;
use crate::http::json_body::{HeldMemory, read_object};
use crate::state::{ServerState, SharedState};
use crate::wire::chat_request::{ToolChoice, read_template_variables, read_tool_choice};
use crate::wire::error::ServerError;
use crate::wire::fields::Fields;
use crate::wire::messages::{read_messages, read_tools};
use crate::wire::parameters::read_tokens;
use plimsoll_runtime::model_text::{Conversation, Ending, Rendered};

/// A body and the model it names, or the default one. The memory stands for the body while the answer is made.
async fn question<'a>(
    state: &'a ServerState,
    headers: &HeaderMap,
    body: Body,
) -> Result<(&'a ServedModel, Fields, HeldMemory), ServerError> {
    let (mut fields, held) = read_object(headers, body, state.options.body, &state.bodies).await?;
    let catalog = state.catalog_for_work()?;
    let served = match fields.string("model")? {
        Some(id) => catalog.find(&id)?,
        None => catalog.default_model().ok_or(ServerError::Internal)?,
    };
    Ok((served, fields, held))
}

async fn render(state: &ServerState, served: &ServedModel, mut fields: Fields) -> Result<Rendered, ServerError> {
    let messages = fields.array("messages")?.ok_or(ServerError::Missing { param: "messages".into() })?;
    let messages = read_messages(messages, served.media)?.messages;
    let mut tools = read_tools(fields.array("tools")?.unwrap_or_default())?.tools;
    if read_tool_choice(&mut fields)? == ToolChoice::None {
        tools.clear();
    }
    let mut variables = read_template_variables(&mut fields)?;
    served.complete_variables(&mut variables);
    let text = served.model.text.clone();
    prepared(state, move || {
        Ok(text.render(Conversation {
            messages: &messages,
            tools: &tools,
            variables: &variables,
            spoken: &[],
            ending: Ending::Reply,
        })?)
    })
    .await
}

/// The answer of `/tokenize`, written without a detour over JSON values: a prompt may have millions of tokens.
#[derive(Debug, Serialize)]
pub struct Tokenized {
    count: usize,
    tokens: Vec<u32>,
}

/// `{model?, prompt | messages, tools?}` -> `{tokens, count}`.
pub async fn tokenize(
    State(state): State<SharedState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Tokenized>, ServerError> {
    let (served, mut fields, _body) = question(&state, &headers, body).await?;
    let tokens = match fields.string("prompt")? {
        None => render(&state, served, fields).await?.tokens,
        Some(prompt) => {
            let text = served.model.text.clone();
            prepared(&state, move || Ok(text.encode(&prompt))).await?
        }
    };
    Ok(Json(Tokenized { count: tokens.len(), tokens }))
}

/// `{model?, tokens}` -> `{prompt}`.
pub async fn detokenize(
    State(state): State<SharedState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ServerError> {
    let (served, mut fields, _body) = question(&state, &headers, body).await?;
    let text = served.model.text.clone();
    let tokens = read_tokens(&mut fields, "tokens", text.vocab())?;
    let tokens = tokens.ok_or(ServerError::Missing { param: "tokens".into() })?;
    let prompt = prepared(&state, move || Ok(text.decode(&tokens))).await?;
    Ok(Json(json!({"prompt": prompt})))
}

/// `{model?, messages, tools?}` -> `{prompt}`.
pub async fn apply_template(
    State(state): State<SharedState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ServerError> {
    let (served, fields, _body) = question(&state, &headers, body).await?;
    let rendered = render(&state, served, fields).await?;
    Ok(Json(json!({"prompt": rendered.text})))
}
