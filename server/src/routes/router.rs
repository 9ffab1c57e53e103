//! Paths, and what every request passes through on its way in and out.
//!
//! From the outside in: identity and time of the answer, the panic guard, the door (host, origin, key), the route.

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::{chat_completions, completions, context, models, probes, sessions, tokens};
use crate::http::panic_guard::answer_panics;
use crate::state::{SharedState, wire_id};
use crate::wire::error::ServerError;

/// Paths that answer without a key: whoever watches the process has none.
const OPEN_PATHS: [&str; 2] = ["/health", "/ready"];

/// The longest part of a path that an error repeats, in characters.
const SHOWN_PATH: usize = 100;

/// The whole server, ready to be served.
pub fn router(state: SharedState) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat_completions::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/context", get(context::list))
        .route("/v1/context/{session}", get(context::one))
        .route("/v1/sessions", get(sessions::list))
        .route("/v1/sessions/{session}", get(sessions::one).delete(sessions::delete))
        .route("/v1/sessions/{session}/compactions", get(sessions::compactions))
        .route("/v1/sessions/{session}/compact", post(sessions::compact))
        .route("/v1/sessions/{session}/resume", post(sessions::resume))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/health", get(probes::health))
        .route("/ready", get(probes::ready))
        .route("/version", get(probes::version))
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state.clone())
        .layer(from_fn_with_state(state, door))
        .layer(from_fn(answer_panics))
        .layer(from_fn(identify))
}

/// Gives every answer an identity and its time, and logs it.
async fn identify(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = wire_id("req_");
    let line = format!("{} {}", request.method(), shown(request.uri()));
    let mut response = next.run(request).await;
    let took = started.elapsed().as_millis() as u64;
    tracing::info!(request = id, status = response.status().as_u16(), ms = took, "{line}");
    let headers = response.headers_mut();
    let id = HeaderValue::from_str(&id).expect("an identity is ASCII");
    headers.insert("x-request-id", id.clone());
    headers.insert("request-id", id);
    headers.insert("openai-processing-ms", HeaderValue::from(took));
    response
}

/// Lets in whom the rules allow, and notes whose request it is.
async fn door(State(state): State<SharedState>, mut request: Request, next: Next) -> Response {
    if let Err(error) = state.options.hosts.check(request.uri(), request.headers()) {
        return error.into_response();
    }
    if !OPEN_PATHS.contains(&request.uri().path()) {
        match state.options.keys.tenant(request.headers()) {
            Ok(tenant) => {
                request.extensions_mut().insert(tenant);
            }
            Err(error) => return error.into_response(),
        }
    }
    next.run(request).await
}

async fn unknown_route(method: Method, uri: Uri) -> ServerError {
    ServerError::UnknownRoute { method: method.to_string(), path: shown(&uri) }
}

async fn method_not_allowed(method: Method, uri: Uri) -> ServerError {
    ServerError::MethodNotAllowed { method: method.to_string(), path: shown(&uri) }
}

fn shown(uri: &Uri) -> String {
    uri.path().chars().take(SHOWN_PATH).collect()
}
