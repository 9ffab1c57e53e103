//! `/v1/sessions`: the conversations the server keeps, their compactions, and what a person does with them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::{Extension, Json};
use plimsoll_runtime::engine::TenantId;
use plimsoll_runtime::sessions::Session;
use serde_json::{Value, json};

use crate::generate::turn::{compact_apart, reading_after, task_by_hand};
use crate::http::json_body::read_object;
use crate::state::{ServerState, SharedState};
use crate::wire::error::ServerError;

/// A session's name in a path.
pub(super) type Named = Result<Path<String>, PathRejection>;

/// A tenant's session by its id or its client's name for it.
pub(super) fn find(state: &ServerState, tenant: TenantId, uri: &Uri, name: Named) -> Result<Arc<Session>, ServerError> {
    let Ok(Path(name)) = name else { return Err(ServerError::UnknownSession(uri.path().to_owned())) };
    let models = state.catalog().map(|catalog| catalog.models()).unwrap_or_default();
    let found = state.sessions.find(tenant, &name, models.iter().map(|model| model.id.as_str()));
    found.ok_or(ServerError::UnknownSession(name))
}

fn line(session: &Session) -> Value {
    json!({
        "id": session.id(),
        "object": "session",
        "model": session.model(),
        "turns": session.turns(),
        "compactions": session.compactions(),
        "stopped": session.stopped(),
        "context": session.meter(),
    })
}

/// All sessions of the tenant, most recently used first.
pub async fn list(State(state): State<SharedState>, Extension(tenant): Extension<TenantId>) -> Json<Value> {
    let lines: Vec<Value> = state.sessions.list(tenant).iter().map(|session| line(session)).collect();
    Json(json!({"object": "list", "data": lines}))
}

/// One session in full: what the client said, and what stands for it.
pub async fn one(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    uri: Uri,
    name: Named,
) -> Result<Json<Value>, ServerError> {
    let session = find(&state, tenant, &uri, name)?;
    let messages = session.newest_conversation();
    let history = session.history(&messages, &state.sessions.links(&session, &messages));
    let mut object = line(&session);
    object["automatic_compaction"] = json!(!session.breaker_open());
    object["compactions"] = json!(session.records());
    object["messages"] = json!(messages);
    object["effective"] = json!(history.messages);
    Ok(Json(object))
}

/// The compactions of a session, oldest first.
pub async fn compactions(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    uri: Uri,
    name: Named,
) -> Result<Json<Value>, ServerError> {
    let session = find(&state, tenant, &uri, name)?;
    Ok(Json(json!({"object": "list", "data": session.records()})))
}

/// Compacts a session and answers with the record.
pub async fn compact(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    uri: Uri,
    name: Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ServerError> {
    let (mut fields, _held) = read_object(&headers, body, state.options.body, &state.bodies).await?;
    let instructions = fields.string("instructions")?.filter(|text| !text.trim().is_empty());
    let session = find(&state, tenant, &uri, name)?;
    let served = state.catalog_for_work()?.find(session.model())?.clone();
    if session.is_running() {
        return Err(ServerError::SessionRuns);
    }
    let lock = session.try_compaction_lock().ok_or(ServerError::CompactionRuns)?;
    let task = task_by_hand(&state, &session, instructions);
    let record = compact_apart(&state, served.compactor(&state.request_ids), lock, task).await??;
    if let Some(reading) = reading_after(&served, &record) {
        session.set_reading(reading);
    }
    Ok(Json(json!(record)))
}

/// Lets a stopped session go on.
pub async fn resume(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    uri: Uri,
    name: Named,
) -> Result<Json<Value>, ServerError> {
    let session = find(&state, tenant, &uri, name)?;
    session.resume().await?;
    Ok(Json(line(&session)))
}

/// Forgets a session.
pub async fn delete(
    State(state): State<SharedState>,
    Extension(tenant): Extension<TenantId>,
    uri: Uri,
    name: Named,
) -> Result<Json<Value>, ServerError> {
    let session = find(&state, tenant, &uri, name)?;
    state.sessions.delete(&session).await?;
    Ok(Json(json!({"id": session.id(), "object": "session.deleted", "deleted": true})))
}
