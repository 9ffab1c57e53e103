//! `GET /v1/context` and `GET /v1/context/{session}`: the meters of live sessions, replies in progress included.

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, Json};
use plimsoll_runtime::budget::Meter;
use plimsoll_runtime::engine::TenantId;
use serde_json::{Value, json};

use super::sessions::{Named, find};
use crate::state::SharedState;
use crate::wire::error::ServerError;

/// All of the tenant's sessions that were asked for since the server started, most recently used first.
pub async fn list(State(state): State<SharedState>, Extension(tenant): Extension<TenantId>) -> Json<Value> {
    let sessions = state.sessions.list(tenant);
    let meters: Vec<Meter> = sessions.iter().filter_map(|session| session.meter()).collect();
    Json(json!({"object": "list", "data": meters}))
}

/// One of them, by its id or by the name its client uses.
pub async fn one(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    uri: Uri,
    name: Named,
) -> Result<Json<Meter>, ServerError> {
    let session = find(&state, tenant, &uri, name)?;
    session.meter().map(Json).ok_or_else(|| ServerError::UnknownSession(session.id().as_str().to_owned()))
}
