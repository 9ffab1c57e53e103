//! The folder that holds what was fetched, and the lock that keeps two processes from fetching the same thing.
//!
//! Owns the layout: `models/<name>/<file>` for known models, `hub/<org>/<repository>/<revision>/<path>` for other hub
//! files, `work/` for what is being unpacked. A file under its final name is whole and was checked when it arrived;
//! unfinished files end in `.partial`. Never removes a finished file.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use super::error::SourceError;
use super::known::{HubFile, KnownModel};

/// Ending of a file that is still arriving.
pub const PARTIAL: &str = "partial";
/// Ending of the note that says which content a partial file belongs to.
pub const IDENTITY: &str = "identity";
/// Ending of a lock file.
const LOCK: &str = "lock";

/// The local store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStore {
    root: PathBuf,
}

/// A finished file in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// What to type to use it: a known name or a hub file.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl ModelStore {
    /// A store in a folder of one's own. The folder need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The store of this user: `PLIMSOLL_CACHE`, else `plimsoll` in `XDG_CACHE_HOME`, else `~/.cache/plimsoll`.
    pub fn default_location() -> Result<Self, SourceError> {
        Self::location_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
    }

    fn location_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, SourceError> {
        // The XDG rule: a relative XDG_CACHE_HOME is invalid and ignored.
        variable("PLIMSOLL_CACHE")
            .or_else(|| Some(variable("XDG_CACHE_HOME").filter(|path| path.is_absolute())?.join("plimsoll")))
            .or_else(|| Some(variable("HOME")?.join(".cache/plimsoll")))
            .map(Self::at)
            .ok_or(SourceError::NoCacheFolder)
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a known model's file is or will be.
    pub fn known_path(&self, model: &KnownModel) -> PathBuf {
        self.root.join("models").join(model.name).join(model.file)
    }

    /// Where a hub file is or will be.
    pub fn hub_path(&self, file: &HubFile) -> PathBuf {
        self.root.join("hub").join(&file.repository).join(file.revision.replace('/', "%2F")).join(&file.path)
    }

    /// A folder for unpacking, unique to `purpose`; whatever an earlier run left there is removed.
    pub fn work_folder(&self, purpose: &str) -> Result<WorkFolder, SourceError> {
        let path = self.root.join("work").join(purpose);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(SourceError::io("clear", &path, error));
            }
            _ => {}
        }
        std::fs::create_dir_all(&path).map_err(|error| SourceError::io("create", &path, error))?;
        Ok(WorkFolder { path })
    }

    /// Waits until no other process works on `target`. Says so through `waiting` if there is something to wait for.
    pub fn lock(target: &Path, waiting: impl FnOnce()) -> Result<StoreLock, SourceError> {
        let path = with_ending(target, LOCK);
        create_parent(&path)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| SourceError::io("open", &path, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().map_err(|error| SourceError::io("lock", &path, error))?;
            }
            Err(TryLockError::Error(error)) => return Err(SourceError::io("lock", &path, error)),
        }
        Ok(StoreLock { _file: file })
    }

    /// All finished files, sorted by name. An absent store is an empty one.
    pub fn list(&self) -> Result<Vec<StoredFile>, SourceError> {
        let mut files = Vec::new();
        for (folder, depth) in [("models", 1), ("hub", 3)] {
            collect(&self.root.join(folder), &mut Vec::new(), depth, &mut files)?;
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }
}

/// Walks a tree of the store without following links. `depth` is the number of folders that form a file's name.
fn collect(
    folder: &Path,
    names: &mut Vec<String>,
    depth: usize,
    files: &mut Vec<StoredFile>,
) -> Result<(), SourceError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(SourceError::io("read", folder, error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| SourceError::io("read", folder, error))?;
        let metadata = entry.metadata().map_err(|error| SourceError::io("read", &entry.path(), error))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let ending = Path::new(&name).extension().and_then(|ending| ending.to_str());
        if metadata.is_dir() {
            names.push(name);
            collect(&entry.path(), names, depth, files)?;
            names.pop();
        } else if metadata.is_file() && ![Some(PARTIAL), Some(LOCK), Some(IDENTITY)].contains(&ending) {
            let name = match names.as_slice() {
                [model] if depth == 1 => model.clone(),
                [org, repository, revision, inner @ ..] if depth == 3 => {
                    let path = inner.iter().map(|name| format!("{name}/")).collect::<String>() + &name;
                    let (repository, revision) = (format!("{org}/{repository}"), revision.replace("%2F", "/"));
                    HubFile { repository, revision, path }.to_string()
                }
                _ => continue,
            };
            files.push(StoredFile { name, path: entry.path(), bytes: metadata.len() });
        }
    }
    Ok(())
}

/// Held while one process fetches. The operating system releases it when the process ends, however it ends.
#[derive(Debug)]
#[must_use]
pub struct StoreLock {
    _file: File,
}

/// A folder that goes away when it is dropped.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
}

impl WorkFolder {
    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // What stays behind is cleared by the next run.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// `path` with `.ending` after its whole name.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

/// Makes the folder that `path` lies in.
pub(crate) fn create_parent(path: &Path) -> Result<(), SourceError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|error| SourceError::io("create", parent, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::known::known_model;

    #[test]
    fn the_cache_folder_follows_the_environment() {
        let location = |set: &[(&str, &str)]| {
            ModelStore::location_from(|name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
            })
            .map(|store| store.root)
        };
        let all = [("PLIMSOLL_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(location(&all).unwrap(), Path::new("/a"));
        assert_eq!(location(&all[1..]).unwrap(), Path::new("/b/plimsoll"));
        assert_eq!(location(&all[2..]).unwrap(), Path::new("/c/.cache/plimsoll"));
        assert_eq!(
            location(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/c")]).unwrap(),
            Path::new("/c/.cache/plimsoll")
        );
        assert!(matches!(location(&[]), Err(SourceError::NoCacheFolder)));
    }

    #[test]
    fn the_list_shows_finished_files_under_the_names_that_find_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = ModelStore::at(folder.path());
        assert_eq!(store.list().unwrap(), []);
        let hub = HubFile { repository: "org/repo".into(), revision: "refs/pr/5".into(), path: "sub/x.gguf".into() };
        let known = store.known_path(known_model("smollm2").unwrap());
        for path in [&known, &store.hub_path(&hub), &with_ending(&known, PARTIAL), &with_ending(&known, LOCK)] {
            create_parent(path).unwrap();
            std::fs::write(path, b"abc").unwrap();
        }
        let names: Vec<_> = store.list().unwrap().into_iter().map(|file| (file.name, file.bytes)).collect();
        assert_eq!(names, [(hub.to_string(), 3), ("smollm2-135m-instruct".into(), 3)]);
    }

    #[test]
    fn a_second_holder_waits_until_the_first_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("deep/file.gguf");
        let first = ModelStore::lock(&target, || panic!("nobody holds it")).unwrap();
        let (waits, done) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn({
            let target = target.clone();
            move || {
                let _lock = ModelStore::lock(&target, || waits.0.send(()).unwrap()).unwrap();
                done.0.send(()).unwrap();
            }
        });
        waits.1.recv().unwrap();
        assert!(done.1.try_recv().is_err(), "the second must wait");
        drop(first);
        done.1.recv().unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn a_work_folder_starts_empty_and_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let store = ModelStore::at(folder.path());
        let left = folder.path().join("work/wheel/left-over");
        create_parent(&left).unwrap();
        std::fs::write(&left, b"x").unwrap();
        let work = store.work_folder("wheel").unwrap();
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0);
        let path = work.path().to_owned();
        drop(work);
        assert!(!path.exists());
    }
}
