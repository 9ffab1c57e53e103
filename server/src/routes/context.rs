//! `GET /v1/context` and `GET /v1/context/{session}`: the meters of live sessions, replies in progress included.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::{Extension, Json};
use plimsoll_runtime::budget::Meter;
use plimsoll_runtime::engine::TenantId;
use serde_json::{Value, json};

use crate::state::SharedState;
use crate::wire::error::ServerError;

/// All of the tenant's sessions, most recently used first.
pub async fn list(State(state): State<SharedState>, Extension(tenant): Extension<TenantId>) -> Json<Value> {
    Json(json!({"object": "list", "data": state.sessions.meters(tenant)}))
}

/// One of them, by its id or by the name its client uses.
pub async fn one(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    uri: Uri,
    session: Result<Path<String>, PathRejection>,
) -> Result<Json<Meter>, ServerError> {
    let Ok(Path(session)) = session else { return Err(ServerError::UnknownSession(uri.path().to_owned())) };
    state.sessions.meter(tenant, &session).map(Json).ok_or(ServerError::UnknownSession(session))
}
