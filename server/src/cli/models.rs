//! `plimsoll models`: the models one can name, and what is on this machine.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use indicatif::HumanBytes;
use plimsoll_models::source::{KnownModel, LocalModel, Sources};
use serde_json::json;

use super::origin::origin_word;

/// List known models and what is on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll models
  plimsoll models --json | jq -r '.[] | select(.path) | .name'

Fetch one with `plimsoll pull NAME`. Beside these names, any GGUF file works by its path, and
any file on the hub as org/repository:file.gguf.")]
pub struct Models {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Models {
    /// Prints the list.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let sources = Sources::from_env()?;
        let known = sources.local_known()?;
        let others: Vec<_> = sources.store().list()?.into_iter().filter(|file| file.name.contains('/')).collect();
        let mut out = std::io::stdout().lock();
        if self.json {
            let known = known.iter().map(|(model, local)| known_json(model, local.as_ref()));
            let others = others.iter().map(|file| {
                json!({"name": file.name, "bytes": file.bytes, "path": file.path.to_string_lossy(), "origin": "store"})
            });
            serde_json::to_writer_pretty(&mut out, &known.chain(others).collect::<Vec<_>>())?;
            writeln!(out)?;
        } else {
            let mut text = String::new();
            for (model, local) in &known {
                let place = local.as_ref().map_or("not here", |local| origin_word(local.origin));
                writeln!(text, "{:<24} {:>11}  {place:<18}  {}", model.name, size(model.bytes), model.about)?;
            }
            for file in &others {
                writeln!(text, "{}  {}  store", file.name, size(file.bytes))?;
            }
            writeln!(text, "\nstore: {}", sources.store().root().display())?;
            out.write_all(text.as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

fn known_json(model: &KnownModel, local: Option<&LocalModel>) -> serde_json::Value {
    json!({
        "name": model.name,
        "aliases": model.aliases,
        "about": model.about,
        "license": model.license,
        "bytes": model.bytes,
        "sha256": model.sha256,
        "hub": model.hub_file().map(|file| file.to_string()),
        "wheels": model.wheels.iter().map(|part| part.requirement).collect::<Vec<_>>(),
        "path": local.map(|local| local.path.to_string_lossy()),
        "origin": local.map(|local| origin_word(local.origin)),
    })
}
