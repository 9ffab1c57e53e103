//! The presets one can name: those that come with the program and those in the user's configuration folder.
//!
//! Owns the search: `presets/*.json` in `PLIMSOLL_CONFIG_DIR`, else in `plimsoll` under `XDG_CONFIG_HOME`, else in
//! `~/.config/plimsoll`. A user's preset hides an embedded one of the same name. A file that cannot be read or is no
//! preset is an error that names it, not a preset that is silently absent.

use std::path::{Path, PathBuf};

use super::document::{Preset, PresetError};

const EMBEDDED: [(&str, &str); 3] = [
    ("demo.json", include_str!("../../presets/demo.json")),
    ("local-robust-9b.json", include_str!("../../presets/local-robust-9b.json")),
    ("local-robust-27b.json", include_str!("../../presets/local-robust-27b.json")),
];

/// Where a preset comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresetOrigin {
    /// It is part of the program.
    Embedded,
    /// A file in the user's folder.
    File(PathBuf),
}

/// All presets that have a name here.
#[derive(Debug, Clone)]
pub struct PresetLibrary {
    presets: Vec<(Preset, PresetOrigin)>,
}

/// The presets that come with the program.
pub fn embedded() -> Vec<Preset> {
    let parse = |(name, text): &(&str, &str)| Preset::parse(text, name).expect("a test reads every embedded preset");
    EMBEDDED.iter().map(parse).collect()
}

/// The user's folder of presets, if there is a place for one. It need not exist.
pub fn user_folder() -> Option<PathBuf> {
    folder_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn folder_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let config = variable("PLIMSOLL_CONFIG_DIR")
        .or_else(|| Some(variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute())?.join("plimsoll")))
        .or_else(|| Some(variable("HOME")?.join(".config/plimsoll")))?;
    Some(config.join("presets"))
}

impl PresetLibrary {
    /// The embedded presets and those of this user.
    pub fn load() -> Result<Self, PresetError> {
        Self::with_folder(user_folder().as_deref())
    }

    /// The embedded presets and those in a folder.
    pub fn with_folder(folder: Option<&Path>) -> Result<Self, PresetError> {
        let mut presets: Vec<_> = embedded().into_iter().map(|preset| (preset, PresetOrigin::Embedded)).collect();
        for path in folder.map_or_else(|| Ok(Vec::new()), json_files)? {
            let origin = path.display().to_string();
            let text =
                std::fs::read_to_string(&path).map_err(|source| PresetError::Io { origin: origin.clone(), source })?;
            let preset = Preset::parse(&text, &origin)?;
            presets.retain(|(known, _)| known.name != preset.name);
            presets.push((preset, PresetOrigin::File(path)));
        }
        Ok(Self { presets })
    }

    /// The preset of this name.
    pub fn get(&self, name: &str) -> Option<&Preset> {
        self.presets.iter().find(|(preset, _)| preset.name == name).map(|(preset, _)| preset)
    }

    /// All presets, the embedded ones first.
    pub fn iter(&self) -> impl Iterator<Item = (&Preset, &PresetOrigin)> {
        self.presets.iter().map(|(preset, origin)| (preset, origin))
    }
}

/// The JSON files of a folder, sorted; none if it does not exist. A schema beside the presets is not one.
fn json_files(folder: &Path) -> Result<Vec<PathBuf>, PresetError> {
    let fail = |source| PresetError::Io { origin: folder.display().to_string(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fail(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(fail)?.path();
        let is_schema = path.file_name().is_some_and(|name| name == "schema.json");
        if path.extension().is_some_and(|ending| ending == "json") && !is_schema {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ModelName;

    #[test]
    fn every_embedded_preset_is_named_like_its_file_and_has_a_known_model() {
        for ((file, text), preset) in EMBEDDED.iter().zip(embedded()) {
            assert_eq!(*file, format!("{}.json", preset.name));
            assert!(matches!(preset.model_name().unwrap(), ModelName::Known(_)), "{file}");
            assert!(preset.budget.0.contains_key("window"), "{file}");
            assert!(text.contains("\"$schema\": \"./schema.json\""), "{file}");
        }
    }

    #[test]
    fn every_preset_file_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets");
        let mut files: Vec<_> = json_files(&folder)
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut names: Vec<_> = EMBEDDED.iter().map(|(name, _)| (*name).to_owned()).collect();
        files.sort();
        names.sort();
        assert_eq!(files, names);
    }

    #[test]
    fn a_users_preset_hides_the_embedded_one_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let mine = r#"{"name": "demo", "about": "mine", "model": "smollm2", "budget": {"window": 4096}}"#;
        std::fs::write(folder.path().join("anything.json"), mine).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "no preset").unwrap();
        let library = PresetLibrary::with_folder(Some(folder.path())).unwrap();
        assert_eq!(library.get("demo").unwrap().about, "mine");
        assert_eq!(library.iter().count(), 3);
        assert!(library.get("nobody").is_none());
    }

    #[test]
    fn a_broken_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("broken.json"), "{").unwrap();
        let error = PresetLibrary::with_folder(Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("broken.json"), "{error}");
        assert_eq!(PresetLibrary::with_folder(Some(Path::new("/nowhere"))).unwrap().iter().count(), 3);
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let at = |set: &[(&str, &str)]| {
            folder_from(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value)))
        };
        let all = [("PLIMSOLL_CONFIG_DIR", "/a"), ("XDG_CONFIG_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(at(&all), Some("/a/presets".into()));
        assert_eq!(at(&all[1..]), Some("/b/plimsoll/presets".into()));
        assert_eq!(at(&all[2..]), Some("/c/.config/plimsoll/presets".into()));
        assert_eq!(at(&[]), None);
    }
}
