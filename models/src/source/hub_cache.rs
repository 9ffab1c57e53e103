//! The Hugging Face cache on disk, read and never written.
//!
//! Owns the knowledge of its layout (`models--org--name/{refs,snapshots/<commit>/<path>,blobs/<etag>}`, documented by
//! `huggingface_hub`) and of the variables that place it. A file there counts if it has the right size and, where the
//! checksum is known, the right bytes: blobs of large files are named by their SHA-256, others are hashed.

use std::path::{Path, PathBuf};

use super::deposit::sha256_of;
use super::error::SourceError;
use super::known::HubFile;

/// The cache folder of this user: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else `huggingface/hub` in
/// `XDG_CACHE_HOME` or `~/.cache`.
pub fn location() -> Option<PathBuf> {
    location_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

/// Where the access token of the hub lies, by the same rule.
pub fn token_path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("HF_TOKEN_PATH").or_else(|| Some(home_from(variable)?.join("token")))
}

fn location_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    variable("HF_HUB_CACHE").or_else(|| Some(home_from(variable)?.join("hub")))
}

fn home_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    variable("HF_HOME")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("huggingface")))
        .or_else(|| Some(variable("HOME")?.join(".cache/huggingface")))
}

/// What a file must be to count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected<'a> {
    /// Its size in bytes.
    pub bytes: Option<u64>,
    /// Its SHA-256, lower-case hexadecimal.
    pub sha256: Option<&'a str>,
}

/// Looks for a hub file in the cache at `root`. With a known checksum any snapshot will do; without, only the revision
/// that was asked for.
pub fn find(root: &Path, file: &HubFile, expected: Expected<'_>) -> Result<Option<PathBuf>, SourceError> {
    let repository = root.join(format!("models--{}", file.repository.replace('/', "--")));
    let snapshots = repository.join("snapshots");
    let commit = match std::fs::read_to_string(repository.join("refs").join(&file.revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => file.revision.clone(),
    };
    // A ref file is outside data too: it must name a folder here and nothing else.
    let is_commit = !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_hexdigit());
    let mut candidates: Vec<PathBuf> = if is_commit { vec![snapshots.join(commit)] } else { Vec::new() };
    if expected.sha256.is_some() {
        let mut others: Vec<PathBuf> =
            std::fs::read_dir(&snapshots).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        others.sort();
        candidates.extend(others);
    }
    for candidate in candidates {
        let path = candidate.join(&file.path);
        if fits(&path, expected)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn fits(path: &Path, expected: Expected<'_>) -> Result<bool, SourceError> {
    // A dangling link is what a removed blob leaves behind: not there.
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(false) };
    if !metadata.is_file() || expected.bytes.is_some_and(|bytes| bytes != metadata.len()) {
        return Ok(false);
    }
    let Some(sha256) = expected.sha256 else { return Ok(true) };
    let blob = std::fs::canonicalize(path).map_err(|error| SourceError::io("resolve", path, error))?;
    match blob.file_name().and_then(|name| name.to_str()) {
        Some(name) if name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()) => Ok(name == sha256),
        _ => Ok(sha256_of(&blob)? == sha256),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn file(revision: &str) -> HubFile {
        HubFile { repository: "org/name".into(), revision: revision.into(), path: "sub/x.gguf".into() }
    }

    /// A cache with one file, linked to a blob of this name as `huggingface_hub` does it.
    fn cache(blob: &str, content: &[u8]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let repository = root.path().join("models--org--name");
        let snapshot = repository.join("snapshots").join(COMMIT).join("sub");
        for folder in [repository.join("blobs"), repository.join("refs/refs/pr"), snapshot.clone()] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(repository.join("blobs").join(blob), content).unwrap();
        std::os::unix::fs::symlink(format!("../../../blobs/{blob}"), snapshot.join("x.gguf")).unwrap();
        std::fs::write(repository.join("refs/main"), COMMIT).unwrap();
        std::fs::write(repository.join("refs/refs/pr/1"), format!("{COMMIT}\n")).unwrap();
        root
    }

    #[test]
    fn a_file_is_found_by_branch_by_commit_and_by_pull_request() {
        let root = cache("etag", b"hello");
        let expected = root.path().join("models--org--name/snapshots").join(COMMIT).join("sub/x.gguf");
        for revision in ["main", COMMIT, "refs/pr/1"] {
            assert_eq!(find(root.path(), &file(revision), Expected::default()).unwrap().as_ref(), Some(&expected));
        }
        for revision in ["other", "fedcba9876543210fedcba9876543210fedcba98"] {
            assert_eq!(find(root.path(), &file(revision), Expected::default()).unwrap(), None);
        }
        assert_eq!(find(Path::new("/nowhere"), &file("main"), Expected::default()).unwrap(), None);
    }

    #[test]
    fn any_snapshot_with_the_right_bytes_will_do() {
        for blob in [HELLO, "git-object-id"] {
            let root = cache(blob, b"hello");
            let expected = Expected { bytes: Some(5), sha256: Some(HELLO) };
            assert!(find(root.path(), &file("other"), expected).unwrap().is_some(), "{blob}");
            let other = Expected { bytes: Some(5), sha256: Some(&HELLO.replace('2', "3")) };
            assert_eq!(find(root.path(), &file("main"), other).unwrap(), None);
            let longer = Expected { bytes: Some(6), sha256: None };
            assert_eq!(find(root.path(), &file("main"), longer).unwrap(), None);
        }
    }

    #[test]
    fn a_link_without_its_blob_is_no_file() {
        let root = cache(HELLO, b"hello");
        std::fs::remove_file(root.path().join("models--org--name/blobs").join(HELLO)).unwrap();
        assert_eq!(find(root.path(), &file("main"), Expected::default()).unwrap(), None);
    }

    #[test]
    fn a_ref_that_is_no_commit_leads_nowhere() {
        let root = cache("etag", b"hello");
        std::fs::write(root.path().join("models--org--name/refs/main"), format!("../snapshots/{COMMIT}")).unwrap();
        assert_eq!(find(root.path(), &file("main"), Expected::default()).unwrap(), None);
    }

    #[test]
    fn the_cache_is_where_the_variables_say() {
        let at = |set: &[(&str, &str)]| {
            location_from(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value)))
        };
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/d")];
        let expected = ["/a", "/b/hub", "/c/huggingface/hub", "/d/.cache/huggingface/hub"];
        for (skip, path) in expected.into_iter().enumerate() {
            assert_eq!(at(&all[skip..]), Some(PathBuf::from(path)));
        }
        assert_eq!(at(&[]), None);
    }
}
