//! What `plimsoll serve` can be told, and by whom.
//!
//! A flag wins over an environment variable (clap reads both), that over the configuration file, that over the
//! default. Owns the names and the merge. Never starts anything.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use plimsoll_runtime::engine::EngineConfig;
use serde::Deserialize;

use crate::data_folder::DataFolder;
use crate::http::json_body::BodyLimits;
use crate::load::{LoadOptions, Wanted};
use crate::serving::ServingOptions;

/// The preset that is served when nothing is named.
pub const DEFAULT_PRESET: &str = "demo";

/// What is loaded, and how: flags of every command that runs a model in its own process.
#[derive(Debug, Default, Args)]
pub struct ModelFlags {
    /// Serve this preset; the first name given is the default model [default: demo].
    #[arg(long, value_name = "NAME")]
    pub preset: Vec<String>,
    /// Serve this model without a preset: a path, a known name, or organisation/repository:file.gguf.
    #[arg(long, value_name = "MODEL")]
    pub model: Vec<String>,
    /// Serve scripted replies instead of a model.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "model"])]
    pub simulate: Option<PathBuf>,
    /// Threads of the kernels [default: one per core].
    #[arg(long, env = "PLIMSOLL_THREADS")]
    pub threads: Option<NonZeroUsize>,
    /// Window of models served without a preset, in tokens [default: what the model was made for, at most 8192].
    #[arg(long, alias = "ctx", value_name = "TOKENS")]
    pub window: Option<u32>,
    /// Full windows the K/V cache has room for [default: 4, fewer where memory is short].
    #[arg(long, value_name = "WINDOWS")]
    pub cache_windows: Option<NonZeroUsize>,
    /// Read options from this file; its keys are the names of the flags of `serve` with underscores.
    #[arg(long, env = "PLIMSOLL_CONFIG_FILE", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Flags of `plimsoll serve`.
#[derive(Debug, Default, Args)]
pub struct ServeFlags {
    #[command(flatten)]
    pub models: ModelFlags,
    /// Keep sessions in this folder, or `:memory:` to keep none [default: plimsoll in XDG_DATA_HOME, else in
    /// ~/.local/share].
    #[arg(long, env = "PLIMSOLL_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1].
    #[arg(long, env = "PLIMSOLL_HOST", value_name = "ADDRESS")]
    pub host: Option<IpAddr>,
    /// Port to listen on; 0 takes a free one [default: 8080].
    #[arg(long, env = "PLIMSOLL_PORT")]
    pub port: Option<u16>,
    /// Ask for this key; may be repeated, each key is a tenant of its own.
    #[arg(long, env = "PLIMSOLL_API_KEY", value_delimiter = ',', hide_env_values = true, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// Serve this host and origin beside loopback and the bound address; may be repeated.
    #[arg(long, value_name = "HOST")]
    pub allowed_host: Vec<String>,
    /// Requests that may wait; one more is answered with 429 [default: 64].
    #[arg(long, value_name = "REQUESTS")]
    pub queue: Option<usize>,
    /// Largest request body, in MiB [default: 16].
    #[arg(long, value_name = "MIB")]
    pub body_limit: Option<NonZeroUsize>,
    /// How long running requests may go on after the end was asked for, in seconds [default: 30].
    #[arg(long, value_name = "SECONDS")]
    pub drain_seconds: Option<u64>,
}

/// The configuration file: the same names, unknown ones are refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ServeFile {
    preset: Vec<String>,
    model: Vec<String>,
    simulate: Option<PathBuf>,
    host: Option<IpAddr>,
    port: Option<u16>,
    api_key: Vec<String>,
    allowed_host: Vec<String>,
    threads: Option<NonZeroUsize>,
    window: Option<u32>,
    cache_windows: Option<NonZeroUsize>,
    queue: Option<usize>,
    body_limit: Option<NonZeroUsize>,
    drain_seconds: Option<u64>,
    data_dir: Option<PathBuf>,
}

/// Everything decided.
#[derive(Debug)]
pub struct ServeOptions {
    /// The server.
    pub serving: ServingOptions,
    /// The models.
    pub load: LoadOptions,
}

impl ModelFlags {
    /// What to load when this command has no server of its own.
    pub fn decide(self) -> anyhow::Result<LoadOptions> {
        let file = self.file()?;
        Ok(self.merged(&file))
    }

    fn file(&self) -> anyhow::Result<ServeFile> {
        self.config.as_deref().map_or_else(|| Ok(ServeFile::default()), read_file)
    }

    fn merged(self, file: &ServeFile) -> LoadOptions {
        // Naming a model by flag replaces what the file names, whichever way it does.
        let from_file = self.preset.is_empty() && self.model.is_empty() && self.simulate.is_none();
        let (presets, models, simulate) = if from_file {
            (file.preset.clone(), file.model.clone(), file.simulate.clone())
        } else {
            (self.preset, self.model, self.simulate)
        };
        let mut wanted: Vec<Wanted> = Vec::new();
        wanted.extend(simulate.map(Wanted::Simulation));
        wanted.extend(presets.into_iter().map(Wanted::Preset));
        wanted.extend(models.into_iter().map(Wanted::Model));
        if wanted.is_empty() {
            wanted.push(Wanted::Preset(DEFAULT_PRESET.to_owned()));
        }
        LoadOptions {
            wanted,
            threads: self.threads.or(file.threads),
            window: self.window.or(file.window),
            cache_windows: self.cache_windows.or(file.cache_windows),
            engine: EngineConfig::default(),
        }
    }
}

impl ServeFlags {
    /// Merges flags, file and defaults.
    pub fn decide(self) -> anyhow::Result<ServeOptions> {
        let file = self.models.file()?;
        let mut load = self.models.merged(&file);
        if let Some(queue) = self.queue.or(file.queue) {
            load.engine.queue_limit = queue;
        }
        let api_keys = if self.api_key.is_empty() { file.api_key } else { self.api_key };
        refuse_unusable_keys(&api_keys)?;
        let defaults = ServingOptions::default();
        let body = BodyLimits::default();
        let body_mib = self.body_limit.or(file.body_limit).map(|mib| mib.get().saturating_mul(1024 * 1024));
        Ok(ServeOptions {
            serving: ServingOptions {
                host: self.host.or(file.host).unwrap_or(defaults.host),
                port: self.port.or(file.port).unwrap_or(defaults.port),
                api_keys,
                allowed_hosts: if self.allowed_host.is_empty() { file.allowed_host } else { self.allowed_host },
                data: data_folder(self.data_dir.or(file.data_dir))?,
                body: BodyLimits { bytes: body_mib.unwrap_or(body.bytes), ..body },
                connections: defaults.connections,
                silence: defaults.silence,
                drain: self.drain_seconds.or(file.drain_seconds).map_or(defaults.drain, Duration::from_secs),
            },
            load,
        })
    }
}

/// An empty path is a variable that was not set: sessions would land wherever the server was started.
fn data_folder(named: Option<PathBuf>) -> anyhow::Result<DataFolder> {
    match named {
        None => Ok(DataFolder::platform()?),
        Some(path) if path.as_os_str().is_empty() => {
            bail!(
                "the data folder's name is empty; give a folder or `:memory:`, or leave out --data-dir and PLIMSOLL_DATA_DIR"
            )
        }
        Some(path) => Ok(DataFolder::named(path)),
    }
}

/// An empty key is a variable that was not set: serving without keys would open the door that was meant to be shut.
/// White space around a key does not survive an HTTP header.
fn refuse_unusable_keys(keys: &[String]) -> anyhow::Result<()> {
    for (at, key) in keys.iter().enumerate() {
        let place = at + 1;
        if key.is_empty() {
            bail!(
                "API key {place} is empty; give a key, or leave out --api-key, PLIMSOLL_API_KEY and api_key to serve without keys"
            );
        }
        if key.bytes().any(|byte| !byte.is_ascii_graphic()) {
            bail!(
                "API key {place} holds white space or characters that are not ASCII, which HTTP headers do not carry"
            );
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> anyhow::Result<ServeFile> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading `{}`", path.display()))?;
    toml::from_str(&text).with_context(|| format!("reading `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str, flags: ServeFlags) -> anyhow::Result<ServeOptions> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plimsoll.toml");
        std::fs::write(&path, text).unwrap();
        ServeFlags { models: ModelFlags { config: Some(path), ..flags.models }, ..flags }.decide()
    }

    #[test]
    fn without_anything_the_demo_preset_is_served_on_loopback() {
        let options = ServeFlags { data_dir: Some(":memory:".into()), ..ServeFlags::default() }.decide().unwrap();
        assert_eq!(options.load.wanted, [Wanted::Preset("demo".into())]);
        assert_eq!((options.serving.host.is_loopback(), options.serving.port), (true, 8080));
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let file = "port = 9000\nqueue = 3\nmodel = [\"a.gguf\"]\napi_key = [\"k\"]\ndrain_seconds = 1\n\
                    data_dir = \"/d\"\n";
        let options = with_file(file, ServeFlags { port: Some(9001), ..ServeFlags::default() }).unwrap();
        assert_eq!(options.serving.port, 9001);
        assert_eq!(options.load.engine.queue_limit, 3);
        assert_eq!(options.serving.api_keys, ["k"]);
        assert_eq!(options.serving.drain, Duration::from_secs(1));
        assert_eq!(options.serving.data, DataFolder::At("/d".into()));
        assert_eq!(options.load.wanted, [Wanted::Model("a.gguf".into())]);
        let models = ModelFlags { preset: vec!["demo".into()], ..ModelFlags::default() };
        let flags = ServeFlags { models, data_dir: Some(":memory:".into()), ..ServeFlags::default() };
        let options = with_file(file, flags).unwrap();
        assert_eq!(options.load.wanted, [Wanted::Preset("demo".into())]);
        assert_eq!(options.serving.data, DataFolder::Memory);
    }

    #[test]
    fn an_empty_data_folder_is_refused_and_never_means_the_working_folder() {
        assert!(with_file("data_dir = \"\"", ServeFlags::default()).is_err());
    }

    #[test]
    fn a_key_that_is_empty_or_cannot_be_sent_is_refused_and_never_means_no_key() {
        for key in ["", " ", " padded", "two words", "schlüssel", "line\n"] {
            let flags = ServeFlags { api_key: vec!["good".into(), key.into()], ..ServeFlags::default() };
            let error = flags.decide().unwrap_err().to_string();
            assert!(error.contains("API key 2"), "{error}");
            assert!(key.is_empty() || !error.contains(key.trim()) || key.trim().is_empty(), "the key is not shown");
        }
        assert!(with_file("api_key = [\"\"]", ServeFlags::default()).is_err());
    }

    #[test]
    fn unknown_keys_and_wrong_values_in_the_file_are_refused_by_name() {
        for (text, word) in [("prot = 1", "prot"), ("port = \"x\"", "port"), ("threads = 0", "threads")] {
            let error = format!("{:#}", with_file(text, ServeFlags::default()).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }
}
