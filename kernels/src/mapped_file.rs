//! A file's bytes in memory without reading them: a read-only mapping behind a safe type.
//!
//! Owns the mapping; what the bytes mean is the business of whoever opened it. It lives here because a mapping cannot be
//! made without `unsafe`, and this crate is the only one that has any.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file.
///
/// The file must not be changed while it is open: bytes that change break what was checked about them, and where another
/// process cuts the file off, reading beyond its new end ends this process (`SIGBUS`). Replacing it by renaming another
/// file over it is fine. Every engine that maps weights rests on this; model stores never write into a finished file.
pub struct MappedFile(Option<memmap2::Mmap>);

impl MappedFile {
    /// Maps a whole file. An empty file, which cannot be mapped, has no bytes.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: the mapping is read-only and owned by this value, which hands out nothing that outlives it. That the
        // file does not change meanwhile cannot be enforced; the documentation of the type demands it.
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        Ok(Self(Some(map)))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.len())
    }
}
