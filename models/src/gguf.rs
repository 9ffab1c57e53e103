//! The validating, memory-mapped GGUF reader.
//!
//! Owns the mapping and an index of the header: where each metadata value and each tensor lies. Values are decoded
//! when they are asked for, so a vocabulary of 250 000 strings is walked in place and never copied as a whole.
//! It never trusts a number in the file: every count, length and offset is compared with the bytes that are there
//! before anything is allocated or read, and whatever is wrong is a [`GgufError`] with the offset and the numbers.
//! It never converts weights; [`GgufTensor::bytes`] are the file's own.
//!
//! Format: the GGUF document of the ggml project, versions 2 and 3, little-endian.
//!
//! ```no_run
//! use plimsoll_models::gguf::{GgufFile, Strings};
//! let file = GgufFile::open(std::path::Path::new("model.gguf"))?;
//! let architecture = file.require::<&str>("general.architecture")?;
//! let window = file.require::<u32>(&format!("{architecture}.context_length"))?;
//! let pieces = file.require::<Strings>("tokenizer.ggml.tokens")?;
//! println!("{architecture}, {window} tokens, {} pieces, {} tensors", pieces.len(), file.tensors().len());
//! # Ok::<(), plimsoll_models::gguf::GgufError>(())
//! ```

mod cursor;
mod error;
mod header;
mod value;
#[cfg(test)]
pub(crate) mod writer;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use plimsoll_kernels::{GgmlType, MappedFile};

pub use error::GgufError;
pub use value::{FromMetadata, MetadataArray, MetadataValue, Strings, ValueType};

use header::{Header, TensorInfo};

/// The most dimensions a tensor may have (`GGML_MAX_DIMS`).
pub const MAX_DIMENSIONS: u32 = 4;

/// An opened GGUF file: its header checked from the first byte to the last, its tensors within the file.
#[derive(Debug)]
pub struct GgufFile {
    backing: Backing,
    header: Header,
    metadata_index: HashMap<String, usize>,
    tensor_index: HashMap<String, usize>,
}

/// Where the bytes live.
#[derive(Debug)]
enum Backing {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

impl Backing {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A tensor as it lies in the file.
#[derive(Clone, Copy, Debug)]
pub struct GgufTensor<'a> {
    /// Its name, for example `blk.0.attn_q.weight`.
    pub name: &'a str,
    /// How its weights are stored.
    pub ggml_type: GgmlType,
    /// Its sizes, the contiguous one first (GGUF order): a `[rows, cols]` matrix has `dims == [cols, rows]`.
    pub dims: &'a [usize],
    /// Its data: exactly the blocks that `dims` needs.
    pub bytes: &'a [u8],
}

impl GgufTensor<'_> {
    /// Weights in one row (the contiguous dimension).
    pub fn cols(&self) -> usize {
        self.dims[0]
    }

    /// Rows: the product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product()
    }
}

impl GgufFile {
    /// Maps a file and checks its header.
    ///
    /// The file must not be changed while it is open; replacing it by renaming another over it is fine.
    ///
    /// # Errors
    /// [`GgufError::Io`] if the file cannot be opened or mapped; every other variant if its content is wrong.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io { path: path.to_path_buf(), source };
        // Looked at before it is opened: opening a pipe waits for a writer, for ever if there is none.
        let kind = std::fs::metadata(path).map_err(io)?;
        if !kind.is_file() && !kind.is_dir() {
            return Err(GgufError::NotAFile { path: path.to_path_buf() });
        }
        let map = MappedFile::open(path).map_err(io)?;
        Self::from_backing(Backing::Mapped(map))
    }

    /// Checks a file that is in memory.
    ///
    /// # Errors
    /// Every variant of [`GgufError`] but `Io`.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_backing(Backing::Owned(bytes))
    }

    fn from_backing(backing: Backing) -> Result<Self, GgufError> {
        let header = Header::read(backing.bytes())?;
        let metadata_index = header.metadata.iter().enumerate().map(|(i, entry)| (entry.key.clone(), i)).collect();
        let tensor_index = header.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(Self { backing, header, metadata_index, tensor_index })
    }

    /// The format version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// The alignment of tensor data in bytes.
    pub fn alignment(&self) -> u64 {
        self.header.alignment
    }

    /// Size of the whole file in bytes.
    pub fn file_bytes(&self) -> usize {
        self.backing.bytes().len()
    }

    /// All metadata in the order of the file.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, MetadataValue<'_>)> {
        self.header.metadata.iter().map(|entry| (entry.key.as_str(), entry.value.decode(self.backing.bytes())))
    }

    /// The raw value of a key, if the file has it.
    pub fn value(&self, key: &str) -> Option<MetadataValue<'_>> {
        let index = *self.metadata_index.get(key)?;
        Some(self.header.metadata[index].value.decode(self.backing.bytes()))
    }

    /// The value of an optional key as `T`; see [`FromMetadata`] for the types and what each accepts.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if the key is there with a value that `T` does not accept.
    pub fn get<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let found = value.describe();
        match T::from_metadata(value) {
            Some(value) => Ok(Some(value)),
            None => Err(GgufError::WrongType { key: key.to_owned(), expected: T::EXPECTED, found }),
        }
    }

    /// The value of a required key as `T`.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], or [`GgufError::WrongType`] as for [`GgufFile::get`].
    pub fn require<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.get(key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned(), expected: T::EXPECTED })
    }

    /// The tensor of this name, if the file has it.
    pub fn tensor(&self, name: &str) -> Option<GgufTensor<'_>> {
        let index = *self.tensor_index.get(name)?;
        Some(self.view(&self.header.tensors[index]))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`].
    pub fn require_tensor(&self, name: &str) -> Result<GgufTensor<'_>, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::MissingTensor { name: name.to_owned() })
    }

    /// All tensors in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = GgufTensor<'_>> {
        self.header.tensors.iter().map(|info| self.view(info))
    }

    fn view<'a>(&'a self, info: &'a TensorInfo) -> GgufTensor<'a> {
        GgufTensor {
            name: &info.name,
            ggml_type: info.ggml_type,
            dims: &info.dims,
            bytes: &self.backing.bytes()[info.start..info.start + info.length],
        }
    }
}
