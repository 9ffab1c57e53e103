//! What people may write where a model is asked for, and what it means.
//!
//! Owns the grammar: a path, a hub file (`org/repository:file.gguf`, `org/repository@revision:file.gguf`, with or
//! without the prefix `hf:`, or `hf:org/repository/file.gguf`), or a known name. Looks at the file system only to tell
//! whether a path exists; never at a network.

use std::path::PathBuf;

use super::error::SourceError;
use super::known::{HubFile, KnownModel, known_model, known_models};

/// A model as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// A file, or a folder with `config.json` and safetensors.
    Path(PathBuf),
    /// A model of the table.
    Known(&'static KnownModel),
    /// Any file on the hub.
    Hub(HubFile),
}

impl ModelName {
    /// Reads a name. A path that exists wins over everything else.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        let path = PathBuf::from(text);
        if !text.is_empty() && path.exists() {
            return Ok(Self::Path(path));
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return hub_file(text, rest).map(Self::Hub);
        }
        if let Some(model) = known_model(text) {
            return Ok(Self::Known(model));
        }
        if path.is_absolute() || text.starts_with("./") || text.starts_with("../") || text.starts_with("~/") {
            return Err(SourceError::NoSuchFile { path });
        }
        if text.contains('/') && (text.contains(':') || !text.ends_with(".gguf")) {
            return hub_file(text, text).map(Self::Hub);
        }
        if text.ends_with(".gguf") {
            return Err(SourceError::NoSuchFile { path });
        }
        let known = known_models().iter().map(|model| model.name).collect::<Vec<_>>().join(", ");
        Err(SourceError::UnknownName { name: text.to_owned(), known })
    }
}

/// Reads `org/repository[@revision]:file` or `org/repository/file`. `name` is the whole text, for messages.
fn hub_file(name: &str, rest: &str) -> Result<HubFile, SourceError> {
    let bad = |reason| SourceError::BadHubName { name: name.to_owned(), reason };
    let (place, path) = match rest.split_once(':') {
        Some((place, path)) => (place.to_owned(), path),
        None => {
            let mut parts = rest.splitn(3, '/');
            match (parts.next(), parts.next(), parts.next()) {
                (Some(org), Some(repository), Some(path)) => (format!("{org}/{repository}"), path),
                _ => return Err(bad("the file inside the repository is missing")),
            }
        }
    };
    let (repository, revision) = match place.split_once('@') {
        Some((repository, revision)) => (repository, revision),
        None => (place.as_str(), "main"),
    };
    match repository.split_once('/') {
        Some((org, name)) if is_plain_segment(org) && is_plain_segment(name) => {}
        _ => return Err(bad("the repository must be two words with one / between them")),
    }
    if !revision.split('/').all(is_plain_segment) {
        return Err(bad("the revision has characters that no revision has"));
    }
    // The path becomes a path on this machine and a piece of a URL; both want plain segments only.
    if !path.split('/').all(is_plain_segment) {
        return Err(bad("the file's path may hold letters, digits, '.', '-', '_' and '+', and no '..'"));
    }
    Ok(HubFile { repository: repository.to_owned(), revision: revision.to_owned(), path: path.to_owned() })
}

/// Whether a piece of a name is safe as a file name and in a URL as it stands.
fn is_plain_segment(segment: &str) -> bool {
    !segment.is_empty()
        && !segment.starts_with('.')
        && segment.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repository: &str, revision: &str, path: &str) -> ModelName {
        ModelName::Hub(HubFile { repository: repository.into(), revision: revision.into(), path: path.into() })
    }

    #[test]
    fn names_mean_what_they_say() {
        let cases = [
            ("org/repo:file.gguf", hub("org/repo", "main", "file.gguf")),
            ("hf:org/repo:file.gguf", hub("org/repo", "main", "file.gguf")),
            ("hf:org/repo/file.gguf", hub("org/repo", "main", "file.gguf")),
            ("hf:org/repo/sub/file.gguf", hub("org/repo", "main", "sub/file.gguf")),
            ("org/repo@abc123:sub/file.gguf", hub("org/repo", "abc123", "sub/file.gguf")),
            ("org/repo@refs/pr/5:f.gguf", hub("org/repo", "refs/pr/5", "f.gguf")),
        ];
        for (text, expected) in cases {
            assert_eq!(ModelName::parse(text).unwrap(), expected, "{text}");
        }
        for text in ["smollm2", "SmolLM2-135M-Instruct"] {
            assert!(
                matches!(ModelName::parse(text).unwrap(), ModelName::Known(m) if m.name == "smollm2-135m-instruct")
            );
        }
    }

    #[test]
    fn an_existing_path_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.gguf");
        std::fs::write(&path, b"x").unwrap();
        assert_eq!(ModelName::parse(path.to_str().unwrap()).unwrap(), ModelName::Path(path));
        assert!(matches!(ModelName::parse(folder.path().to_str().unwrap()).unwrap(), ModelName::Path(_)));
    }

    #[test]
    fn names_that_lead_out_of_the_store_are_refused() {
        for text in [
            "org/repo:../../etc/passwd",
            "org/repo:/etc/passwd",
            "org/repo:a//b",
            "org/repo:a/../b",
            "../repo:file",
            "hf:../..:file",
            "hf:org/..:file",
            "org/repo@..:file",
            "org/repo@../../x:file",
            "org/repo:file?x=1",
            "org/repo:a b",
            "org/repo:a%2e%2e",
            "org/repo:a\\b",
            "org/repo:",
            "org/repo",
            "hf:repo:file",
            "hf:",
            "hf:a/b/c/../d",
        ] {
            let error = ModelName::parse(text).unwrap_err();
            assert!(
                matches!(error, SourceError::BadHubName { .. } | SourceError::NoSuchFile { .. }),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = ModelName::parse("gpt-17").unwrap_err().to_string();
        assert!(message.contains("smollm2-135m-instruct") && message.contains("qwen3.8-27b"), "{message}");
        assert!(matches!(ModelName::parse(""), Err(SourceError::UnknownName { .. })));
    }

    #[test]
    fn a_missing_file_is_called_missing() {
        for text in ["./nowhere.gguf", "/nowhere/x", "nowhere.gguf", "some/folder/nowhere.gguf"] {
            assert!(matches!(ModelName::parse(text), Err(SourceError::NoSuchFile { .. })), "{text}");
        }
    }
}
