//! A panic while a request is handled becomes a 500 for this request and nothing for the others.

use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use crate::wire::error::ServerError;

/// Middleware: runs the rest of the stack and answers 500 where it panics.
///
/// Handlers share only locks that are never held across code that can panic, so unwinding leaves no broken state.
pub async fn answer_panics(request: Request, next: Next) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => ServerError::Internal.into_response(),
    }
}
