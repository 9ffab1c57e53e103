//! `/health`: the process is up. `/ready`: it takes work. `/version`: which one it is.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::state::SharedState;

/// `GET /health`.
pub async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `GET /ready`: 200 with the load, or 503 with the reason.
pub async fn ready(State(state): State<SharedState>) -> Response {
    match state.readiness() {
        Err(reason) => {
            let body = json!({"status": reason.as_str(), "running": state.drain.running()});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
        Ok(catalog) => {
            let statuses: Vec<_> = catalog.engines().iter().map(|engine| engine.status()).collect();
            let running: usize = statuses.iter().map(|status| status.running).sum();
            let waiting: usize = statuses.iter().map(|status| status.waiting).sum();
            Json(json!({"status": "ready", "running": running, "waiting": waiting})).into_response()
        }
    }
}

/// `GET /version`.
pub async fn version() -> Json<Value> {
    Json(json!({"name": "plimsoll", "version": env!("CARGO_PKG_VERSION")}))
}
