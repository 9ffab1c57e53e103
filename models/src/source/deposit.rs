//! The checked, atomic way into the store.
//!
//! A [`Deposit`] is a file `NAME.partial` that grows, with a running SHA-256 beside it. `finish` compares size and
//! checksum, syncs, renames to `NAME`, and syncs the folder; nothing else ever creates `NAME`. A partial file survives
//! an interruption together with a note of the content it belongs to (an etag or a checksum), and is only continued
//! for the same content. Never opens a network connection. The caller holds the store's lock.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::SourceError;
use super::store::{IDENTITY, PARTIAL, create_parent, with_ending};

/// Bytes moved at once.
const CHUNK: usize = 256 * 1024;

/// A file on its way into the store.
#[derive(Debug)]
pub struct Deposit {
    target: PathBuf,
    partial: PathBuf,
    file: File,
    hash: Sha256,
    len: u64,
    needed: u64,
}

/// Why copying into a deposit stopped: the far end or the near end.
#[derive(Debug)]
pub enum CopyError {
    /// The reader failed; what came before is kept.
    Source(std::io::Error),
    /// The disk failed, or more came than there should be.
    Store(SourceError),
}

impl Deposit {
    /// Opens the partial file of `target`. What an earlier attempt left is kept if it was for the same content
    /// (`identity`) and is not longer than `needed` bytes; then it is read once, for the checksum.
    pub fn open(target: &Path, needed: u64, identity: &str) -> Result<Self, SourceError> {
        create_parent(target)?;
        let partial = with_ending(target, PARTIAL);
        let note = with_ending(target, IDENTITY);
        let same = std::fs::read_to_string(&note).is_ok_and(|found| found == identity);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&partial)
            .map_err(|error| SourceError::io("open", &partial, error))?;
        let found = file.metadata().map_err(|error| SourceError::io("read", &partial, error))?.len();
        let mut deposit_hash = Sha256::new();
        let mut len = 0;
        if same && found <= needed {
            len =
                hash_reader(&mut file, &mut deposit_hash).map_err(|error| SourceError::io("read", &partial, error))?;
        } else {
            file.set_len(0).map_err(|error| SourceError::io("empty", &partial, error))?;
            std::fs::write(&note, identity).map_err(|error| SourceError::io("write", &note, error))?;
        }
        Ok(Self { target: target.to_owned(), partial, file, hash: deposit_hash, len, needed })
    }

    /// Bytes that are there.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is there yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the whole file.
    pub fn needed(&self) -> u64 {
        self.needed
    }

    /// Forgets everything after the first `len` bytes.
    pub fn cut(&mut self, len: u64) -> Result<(), SourceError> {
        let fail = |error| SourceError::io("shorten", &self.partial, error);
        if len >= self.len {
            return Ok(());
        }
        self.file.set_len(len).map_err(fail)?;
        self.file.seek(SeekFrom::Start(0)).map_err(fail)?;
        let mut hash = Sha256::new();
        self.len = hash_reader(&mut self.file, &mut hash).map_err(fail)?;
        self.hash = hash;
        Ok(())
    }

    /// Appends everything `reader` gives, telling `moved` the new length after each chunk.
    ///
    /// # Errors
    /// [`CopyError::Source`] if the reader fails; [`CopyError::Store`] if the disk does, or if more than the needed
    /// bytes come.
    pub fn copy_from(&mut self, reader: &mut impl Read, mut moved: impl FnMut(u64)) -> Result<(), CopyError> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = match reader.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(CopyError::Source(error)),
            };
            self.append(&chunk[..read]).map_err(CopyError::Store)?;
            moved(self.len);
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let end = self.len + bytes.len() as u64;
        if end > self.needed {
            return Err(SourceError::WrongSize { what: self.name(), expected: self.needed, found: end });
        }
        self.file.write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                SourceError::DiskFull { path: self.partial.clone(), written: self.len, needed: self.needed }
            }
            _ => SourceError::io("write", &self.partial, error),
        })?;
        self.hash.update(bytes);
        self.len = end;
        Ok(())
    }

    /// Checks the whole file and gives it its final name.
    ///
    /// # Errors
    /// [`SourceError::WrongSize`] if bytes are missing (the partial file stays), [`SourceError::WrongChecksum`] if the
    /// content is another than `sha256` (hexadecimal) says (the partial file goes).
    pub fn finish(self, sha256: Option<&str>) -> Result<PathBuf, SourceError> {
        if self.len != self.needed {
            return Err(SourceError::WrongSize { what: self.name(), expected: self.needed, found: self.len });
        }
        let what = self.name();
        let Self { target, partial, file, hash, .. } = self;
        let note = with_ending(&target, IDENTITY);
        let found = hexadecimal(&hash.finalize());
        if let Some(expected) = sha256.filter(|expected| *expected != found) {
            drop(file);
            for path in [&partial, &note] {
                std::fs::remove_file(path).map_err(|error| SourceError::io("remove", path, error))?;
            }
            return Err(SourceError::WrongChecksum { what, expected: expected.to_owned(), found });
        }
        file.sync_all().map_err(|error| SourceError::io("sync", &partial, error))?;
        drop(file);
        std::fs::rename(&partial, &target).map_err(|error| SourceError::io("rename", &partial, error))?;
        // The rename itself is durable only once the folder is.
        let folder = target.parent().expect("a target lies in a folder, open created it");
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| SourceError::io("sync", folder, error))?;
        // A note without a partial file is harmless, so a failure to remove it is too.
        let _ = std::fs::remove_file(&note);
        Ok(target)
    }

    fn name(&self) -> String {
        self.target.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The SHA-256 of a file, lower-case hexadecimal.
pub fn sha256_of(path: &Path) -> Result<String, SourceError> {
    let fail = |error| SourceError::io("read", path, error);
    let mut hash = Sha256::new();
    hash_reader(&mut File::open(path).map_err(fail)?, &mut hash).map_err(fail)?;
    Ok(hexadecimal(&hash.finalize()))
}

/// Feeds a reader to a hash; the number of bytes.
fn hash_reader(reader: &mut impl Read, hash: &mut Sha256) -> std::io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut len = 0;
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => return Ok(len),
            Ok(read) => {
                hash.update(&chunk[..read]);
                len += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn put(deposit: &mut Deposit, mut bytes: &[u8]) -> Result<(), CopyError> {
        deposit.copy_from(&mut bytes, |_| {})
    }

    #[test]
    fn a_file_appears_only_whole_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a/b.gguf");
        let mut deposit = Deposit::open(&target, 5, "x").unwrap();
        put(&mut deposit, b"hel").unwrap();
        assert!(!target.exists());
        put(&mut deposit, b"lo").unwrap();
        assert!(!target.exists());
        assert_eq!(deposit.finish(Some(HELLO)).unwrap(), target);
        assert_eq!(std::fs::read(&target).unwrap(), b"hello");
        assert_eq!(sha256_of(&target).unwrap(), HELLO);
        assert_eq!(std::fs::read_dir(target.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_partial_file_is_continued_for_the_same_content_only() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("b.gguf");
        put(&mut Deposit::open(&target, 5, "etag-1").unwrap(), b"hel").unwrap();
        let mut again = Deposit::open(&target, 5, "etag-1").unwrap();
        assert_eq!(again.len(), 3);
        put(&mut again, b"lo").unwrap();
        drop(again);
        assert_eq!(Deposit::open(&target, 5, "etag-2").unwrap().len(), 0);
        put(&mut Deposit::open(&target, 5, "etag-2").unwrap(), b"hello").unwrap();
        assert_eq!(Deposit::open(&target, 4, "etag-2").unwrap().len(), 0, "too long to be the same file");
    }

    #[test]
    fn wrong_bytes_are_discarded_and_missing_bytes_are_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("b.gguf");
        let mut deposit = Deposit::open(&target, 5, "x").unwrap();
        put(&mut deposit, b"hell").unwrap();
        let error = deposit.finish(Some(HELLO)).unwrap_err();
        assert!(matches!(error, SourceError::WrongSize { expected: 5, found: 4, .. }), "{error}");
        let mut deposit = Deposit::open(&target, 5, "x").unwrap();
        assert_eq!(deposit.len(), 4);
        put(&mut deposit, b"!").unwrap();
        let error = deposit.finish(Some(HELLO)).unwrap_err();
        assert!(matches!(&error, SourceError::WrongChecksum { expected, .. } if expected == HELLO), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn more_bytes_than_announced_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut deposit = Deposit::open(&folder.path().join("b"), 5, "x").unwrap();
        let error = put(&mut deposit, b"hello!").unwrap_err();
        assert!(matches!(error, CopyError::Store(SourceError::WrongSize { expected: 5, found: 6, .. })));
    }

    #[test]
    fn a_cut_forgets_the_tail_in_the_checksum_too() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("b");
        let mut deposit = Deposit::open(&target, 5, "x").unwrap();
        put(&mut deposit, b"helXX").unwrap();
        deposit.cut(3).unwrap();
        put(&mut deposit, b"lo").unwrap();
        assert_eq!(std::fs::read(deposit.finish(Some(HELLO)).unwrap()).unwrap(), b"hello");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_called_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut deposit = Deposit::open(&folder.path().join("b"), 5, "x").unwrap();
        deposit.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = put(&mut deposit, b"hello").unwrap_err();
        assert!(matches!(error, CopyError::Store(SourceError::DiskFull { written: 0, needed: 5, .. })));
    }
}
