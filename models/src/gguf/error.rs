//! What can be wrong with a GGUF file, with the numbers that say so.
//!
//! Offsets are bytes from the start of the file.

use std::path::PathBuf;

/// Why a GGUF file was refused, or a value in it could not be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum GgufError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },

    #[error("{} is a pipe, a socket or a device, not a file", path.display())]
    NotAFile { path: PathBuf },

    #[error("not a GGUF file: it starts with the bytes {found:02x?} instead of \"GGUF\"")]
    BadMagic { found: [u8; 4] },

    #[error("GGUF version {version} at byte 4 is not supported; versions 2 and 3 are")]
    UnsupportedVersion { version: u32 },

    #[error(
        "this GGUF file is big-endian (version {version} with its bytes swapped at byte 4); only little-endian files are supported"
    )]
    BigEndian { version: u32 },

    #[error(
        "the GGUF header ends too early: {what} at byte {offset} needs {needed} bytes, the file has {available} left (truncated download?)"
    )]
    TruncatedHeader { what: &'static str, offset: u64, needed: u64, available: u64 },

    #[error(
        "the file is truncated: its header describes {expected} bytes (tensor {tensor:?} lies at the end), but the file has {actual}; download it again"
    )]
    TruncatedData { tensor: String, expected: u64, actual: u64 },

    #[error(
        "{what} at byte {offset} says {count}, which needs at least {needed} bytes, but only {available} are left in the file"
    )]
    CountBeyondFile { what: &'static str, offset: u64, count: u64, needed: u128, available: u64 },

    #[error("{what} at byte {offset} is {found}, the limit is {limit}")]
    TooMany { what: &'static str, offset: u64, found: u64, limit: u64 },

    #[error("the {what} at byte {offset} is not valid UTF-8 (first bad byte at {bad_byte})")]
    BadUtf8 { what: &'static str, offset: u64, bad_byte: u64 },

    #[error("the bool at byte {offset} is {found}, not 0 or 1")]
    BadBool { offset: u64, found: u8 },

    #[error("unknown metadata value type {number} at byte {offset}")]
    UnknownValueType { number: u32, offset: u64 },

    #[error("the arrays at byte {offset} are nested more than {limit} deep")]
    NestedTooDeep { offset: u64, limit: u32 },

    #[error("metadata key {key:?} at byte {offset} appears twice")]
    DuplicateKey { key: String, offset: u64 },

    #[error("tensor {name:?} at byte {offset} appears twice")]
    DuplicateTensor { name: String, offset: u64 },

    #[error("general.alignment is {found}; it must be a power of two from {smallest} to {largest}")]
    BadAlignment { found: u64, smallest: u64, largest: u64 },

    #[error("tensor {tensor:?} at byte {offset} has {found} dimensions; 1 to {limit} are possible")]
    BadDimensionCount { tensor: String, offset: u64, found: u32, limit: u32 },

    #[error("dimension {dimension} of tensor {tensor:?} at byte {offset} is zero")]
    ZeroDimension { tensor: String, offset: u64, dimension: usize },

    #[error("the size of tensor {tensor:?} at byte {offset} overflows: dimensions {dims:?} of type {ggml_type}")]
    SizeOverflow { tensor: String, offset: u64, dims: Vec<u64>, ggml_type: &'static str },

    #[error("tensor {tensor:?} at byte {offset} has type number {number}{}, which is not supported", name.map(|n| format!(" ({n})")).unwrap_or_default())]
    UnsupportedTensorType { tensor: String, offset: u64, number: u32, name: Option<&'static str> },

    #[error(
        "rows of tensor {tensor:?} have {row} weights, which is no multiple of the {block} weights of a {ggml_type} block"
    )]
    RaggedRow { tensor: String, row: u64, block: usize, ggml_type: &'static str },

    #[error("the data offset {data_offset} of tensor {tensor:?} is no multiple of the alignment {alignment}")]
    UnalignedTensor { tensor: String, data_offset: u64, alignment: u64 },

    #[error("tensor {second:?} starts at byte {start}, inside tensor {first:?}, which ends at byte {end}")]
    OverlappingTensors { first: String, second: String, start: u64, end: u64 },

    #[error("the file has no metadata key {key:?} ({expected} expected)")]
    MissingKey { key: String, expected: &'static str },

    #[error("metadata key {key:?} is {found}, {expected} expected")]
    WrongType { key: String, expected: &'static str, found: String },

    #[error("the file has no tensor {name:?}")]
    MissingTensor { name: String },
}
