//! Work for a processor on the way to a prompt: rendering, encoding.

use crate::state::ServerState;
use crate::wire::error::ServerError;

/// Runs work for a processor aside, so that sockets are not kept waiting, a few at a time.
pub async fn prepared<T: Send + 'static>(
    state: &ServerState,
    work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    let _place = state.preparing.acquire().await.map_err(|_| ServerError::Internal)?;
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(panic) => {
            tracing::error!("preparing a prompt panicked: {panic}");
            Err(ServerError::Internal)
        }
    }
}
