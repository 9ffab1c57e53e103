//! `plimsoll serve`: models behind an OpenAI-compatible API.
//!
//! Prints the memory plan and progress on stderr. On stdout stand two lines for programs:
//! `listening http://ADDRESS:PORT` as soon as the socket is bound, and `ready NAME...` when the models take work.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::serve_options::ServeFlags;
use crate::catalog::Catalog;
use crate::load::load;
use crate::serving::{BoundServer, Ended};

/// Serve models over an OpenAI-compatible API.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  plimsoll serve
  plimsoll serve --preset demo --api-key \"$KEY\"
  plimsoll serve --model ./model.gguf --window 16384 --port 0
  plimsoll serve --simulate script.json
  plimsoll serve --data-dir ~/work/sessions

Sessions and their compactions are kept in the data folder (XDG_DATA_HOME/plimsoll or
~/.local/share/plimsoll) and found again after a restart; one server at a time uses it.

GET /ready answers 200 when requests are taken. SIGTERM drains; a second one ends at once.")]
pub struct Serve {
    #[command(flatten)]
    flags: ServeFlags,
}

impl Serve {
    /// Serves until asked to end.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        start_log();
        let options = self.flags.decide()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            let server = BoundServer::bind(options.serving).await?;
            say(&format!("listening http://{}", server.address()))?;
            let loading = async { anyhow::Ok(tokio::task::spawn_blocking(move || load(&options.load)).await??) };
            let ready = |catalog: &Catalog| {
                let names: Vec<&str> = catalog.models().iter().map(|model| model.id.as_str()).collect();
                if let Err(error) = say(&format!("ready {}", names.join(" "))) {
                    tracing::warn!("nobody reads stdout: {error}");
                }
            };
            server.run(loading, ready, asked_to_end()?).await
        })?;
        // A download that was cut short by the end must not hold the process.
        runtime.shutdown_background();
        Ok(match ended {
            Ended::Asked => ExitCode::SUCCESS,
            Ended::EngineBroke => ExitCode::FAILURE,
        })
    }
}

/// Completes at the first SIGTERM or SIGINT; the second one ends the process.
fn asked_to_end() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        eprintln!("plimsoll: draining; a second signal ends at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            eprintln!("plimsoll: ended at once");
            std::process::exit(1);
        });
    })
}

/// A line for programs; whoever reads it waits for it.
fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// The log on stderr. `RUST_LOG` chooses what it says.
pub(super) fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("plimsoll=info,plimsoll_server=info,warn"));
    // A log that runs already is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
