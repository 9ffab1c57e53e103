//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use serde_json::Value;

use crate::state::SharedState;
use crate::wire::error::ServerError;
use crate::wire::model_list::{model_list, model_object};

/// All models, in a form in which every client finds its field.
pub async fn list(State(state): State<SharedState>) -> Result<Json<Value>, ServerError> {
    let models = state.catalog()?.models();
    let listed: Vec<_> = models.iter().map(|model| model.listed(state.started_at)).collect();
    Ok(Json(model_list(&listed)))
}

/// One of them. An id may hold slashes.
pub async fn one(
    State(state): State<SharedState>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ServerError> {
    // A name that is not UTF-8 is the name of nothing; it is shown as it came.
    let id = id.map_or_else(|_| uri.path().to_owned(), |Path(id)| id);
    let model = state.catalog()?.find(&id)?;
    Ok(Json(model_object(&model.listed(state.started_at))))
}
