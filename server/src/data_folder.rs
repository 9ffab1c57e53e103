//! Where a server keeps what outlives it: sessions, compactions, the key they are digested with.
//!
//! Owns the default place and the word for none. Never opens anything.

use std::path::{Path, PathBuf};

/// What `--data-dir` says for: keep nothing.
const IN_MEMORY: &str = ":memory:";

/// The folder of a server's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DataFolder {
    /// None: everything ends with the process.
    #[default]
    Memory,
    /// This one; it is made where it is missing.
    At(PathBuf),
}

/// No folder was named and the system names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no folder for sessions: neither XDG_DATA_HOME nor HOME is set; give --data-dir, or `--data-dir :memory:` to keep sessions in memory"
)]
pub struct NoDataFolder;

impl DataFolder {
    /// What a path on the command line means: `:memory:` is no folder.
    pub fn named(path: PathBuf) -> Self {
        if path.as_os_str() == IN_MEMORY { Self::Memory } else { Self::At(path) }
    }

    /// The platform's: `plimsoll` under `XDG_DATA_HOME`, else under `~/.local/share`.
    ///
    /// # Errors
    /// If neither variable names a folder.
    pub fn platform() -> Result<Self, NoDataFolder> {
        Self::platform_from(|name| std::env::var_os(name).map(PathBuf::from))
    }

    fn platform_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, NoDataFolder> {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let base = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
        base.map(|base| Self::At(base.join("plimsoll"))).ok_or(NoDataFolder)
    }

    /// The folder, where there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory => None,
            Self::At(path) => Some(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platforms_folder_is_the_first_that_is_named() {
        let of = |set: &[(&str, &str)]| {
            DataFolder::platform_from(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, path)| PathBuf::from(path))
            })
        };
        let at = |path: &str| Ok(DataFolder::At(path.into()));
        assert_eq!(of(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]), at("/d/plimsoll"));
        assert_eq!(of(&[("XDG_DATA_HOME", "relative"), ("HOME", "/h")]), at("/h/.local/share/plimsoll"));
        assert_eq!(of(&[]), Err(NoDataFolder));
    }

    #[test]
    fn one_word_means_no_folder() {
        assert_eq!(DataFolder::named(":memory:".into()), DataFolder::Memory);
        assert_eq!(DataFolder::named("/x".into()).path(), Some(Path::new("/x")));
    }
}
