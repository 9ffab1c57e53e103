//! A server in this process: what `chat` and `demo` see is what any client would see.

use anyhow::Context;

use super::event_client::Endpoint;
use crate::catalog::Catalog;
use crate::data_folder::DataFolder;
use crate::serving::{BoundServer, ServingOptions};

/// Serves what `load` makes on a free loopback port for as long as this process lives.
///
/// # Errors
/// Those of `load`; or there is no port, or the data folder cannot be used.
pub(super) async fn serve_here(
    load: impl FnOnce() -> anyhow::Result<Catalog> + Send + 'static,
    data: DataFolder,
) -> anyhow::Result<Endpoint> {
    let server = BoundServer::bind(ServingOptions { port: 0, data, ..ServingOptions::default() }).await?;
    let endpoint = Endpoint::at(server.address(), None);
    let catalog = tokio::task::spawn_blocking(load).await??;
    let (ready, readied) = tokio::sync::oneshot::channel();
    let tell = move |_: &Catalog| {
        // Whoever waited may have gone.
        let _ = ready.send(());
    };
    tokio::spawn(server.run(async { anyhow::Ok(catalog) }, tell, std::future::pending()));
    readied.await.context("the server ended before it was ready")?;
    Ok(endpoint)
}
