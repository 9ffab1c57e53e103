//! Reads and checks the whole header: counts, metadata, tensor descriptions, and that every tensor lies in the file.
//!
//! Owns the rules of the format. The order of the checks matters: nothing is allocated for a count before
//! [`Cursor::check_count`] has seen that the file is long enough to hold that many things.

use std::collections::HashSet;
use std::ops::Range;

use plimsoll_kernels::GgmlType;

use super::MAX_DIMENSIONS;
use super::cursor::Cursor;
use super::error::GgufError;
use super::value::{MetadataValue, StoredValue, ValueType};

/// Most metadata keys and tensors; the largest published models have some hundred keys and a few thousand tensors.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 16;

/// Longest key in bytes (format document).
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Longest tensor name in bytes (format document).
const MAX_NAME_BYTES: u64 = 64;

/// Most elements in one array: 250 times the largest vocabulary, and still walked in well under a second.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 26;

/// Arrays in arrays; the known writers emit none at all.
const MAX_NESTING: u32 = 4;

/// Alignment when `general.alignment` is absent (format document), and what is accepted when it is there.
const DEFAULT_ALIGNMENT: u64 = 32;
const SMALLEST_ALIGNMENT: u64 = 8;
const LARGEST_ALIGNMENT: u64 = 1 << 20;

/// Fewest bytes of a metadata entry: an empty key, a type, a one-byte value.
const SMALLEST_ENTRY: u64 = 8 + 4 + 1;

/// Fewest bytes of a tensor description: an empty name, one dimension, a type, an offset.
const SMALLEST_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// A checked header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) alignment: u64,
    pub(super) metadata: Vec<MetadataEntry>,
    pub(super) tensors: Vec<TensorInfo>,
}

#[derive(Debug)]
pub(super) struct MetadataEntry {
    pub(super) key: String,
    pub(super) value: StoredValue,
}

/// A tensor whose data range has been checked against the file.
#[derive(Debug)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    pub(super) ggml_type: GgmlType,
    pub(super) dims: Vec<usize>,
    /// First byte in the file.
    pub(super) start: usize,
    /// Bytes of data.
    pub(super) length: usize,
}

/// A tensor as described, before its place in the file is known.
struct TensorDescription {
    name: String,
    ggml_type: GgmlType,
    dims: Vec<usize>,
    /// Offset from the start of the data section.
    data_offset: u64,
    length: u64,
}

impl Header {
    pub(super) fn read(file: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(file);
        let magic = cursor.bytes4("the magic")?;
        if magic != *b"GGUF" {
            return Err(GgufError::BadMagic { found: magic });
        }
        let version = cursor.u32("the version")?;
        match version {
            2 | 3 => {}
            swapped if matches!(swapped.swap_bytes(), 1..=0xffff) => {
                return Err(GgufError::BigEndian { version: swapped.swap_bytes() });
            }
            version => return Err(GgufError::UnsupportedVersion { version }),
        }

        let (tensor_offset, tensor_count) = (cursor.offset(), cursor.u64("the tensor count")?);
        let (key_offset, key_count) = (cursor.offset(), cursor.u64("the metadata count")?);
        cursor.check_count("the tensor count", tensor_offset, tensor_count, SMALLEST_TENSOR)?;
        cursor.check_count("the metadata count", key_offset, key_count, SMALLEST_ENTRY)?;
        limit("the tensor count", tensor_offset, tensor_count, MAX_TENSORS)?;
        limit("the metadata count", key_offset, key_count, MAX_KEYS)?;

        let metadata = read_metadata(&mut cursor, key_count)?;
        let alignment = alignment(file, &metadata)?;
        let descriptions = read_tensors(&mut cursor, tensor_count)?;
        let tensors = place_tensors(descriptions, cursor.offset(), alignment, file.len() as u64)?;
        Ok(Self { version, alignment, metadata, tensors })
    }
}

fn limit(what: &'static str, offset: u64, found: u64, limit: u64) -> Result<(), GgufError> {
    if found > limit { Err(GgufError::TooMany { what, offset, found, limit }) } else { Ok(()) }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<MetadataEntry>, GgufError> {
    let mut entries = Vec::with_capacity(count as usize);
    let mut seen = HashSet::with_capacity(count as usize);
    for _ in 0..count {
        let offset = cursor.offset();
        let key = cursor.string("metadata key")?;
        limit("the length of a metadata key", offset, key.len() as u64, MAX_KEY_BYTES)?;
        if !seen.insert(key) {
            return Err(GgufError::DuplicateKey { key: key.to_owned(), offset });
        }
        let value_type = read_type(cursor, "metadata value type")?;
        let value = read_value(cursor, value_type)?;
        entries.push(MetadataEntry { key: key.to_owned(), value });
    }
    Ok(entries)
}

fn read_type(cursor: &mut Cursor<'_>, what: &'static str) -> Result<ValueType, GgufError> {
    let offset = cursor.offset();
    let number = cursor.u32(what)?;
    ValueType::from_number(number).ok_or(GgufError::UnknownValueType { number, offset })
}

fn read_value(cursor: &mut Cursor<'_>, value_type: ValueType) -> Result<StoredValue, GgufError> {
    Ok(match value_type {
        ValueType::Array => {
            let (element, count, range) = read_array(cursor, 1)?;
            StoredValue { value_type, array: Some((element, count)), range }
        }
        ValueType::String => {
            let text = cursor.string("metadata string")?;
            let end = cursor.offset() as usize;
            StoredValue { value_type, array: None, range: end - text.len()..end }
        }
        fixed => {
            let start = cursor.offset() as usize;
            skip_fixed(cursor, fixed)?;
            StoredValue { value_type, array: None, range: start..cursor.offset() as usize }
        }
    })
}

fn skip_fixed(cursor: &mut Cursor<'_>, value_type: ValueType) -> Result<(), GgufError> {
    let offset = cursor.offset();
    let bytes = cursor.take("metadata value", value_type.smallest_bytes())?;
    match (value_type, bytes) {
        (ValueType::Bool, [found]) if *found > 1 => Err(GgufError::BadBool { offset, found: *found }),
        _ => Ok(()),
    }
}

/// Checks an array and returns its element type, its count, and the range of its elements.
fn read_array(cursor: &mut Cursor<'_>, depth: u32) -> Result<(ValueType, u64, Range<usize>), GgufError> {
    if depth > MAX_NESTING {
        return Err(GgufError::NestedTooDeep { offset: cursor.offset(), limit: MAX_NESTING });
    }
    let element = read_type(cursor, "array element type")?;
    let count_offset = cursor.offset();
    let count = cursor.count("the array length", element.smallest_bytes())?;
    limit("the array length", count_offset, count, MAX_ARRAY_ELEMENTS)?;
    let start = cursor.offset() as usize;
    match element {
        ValueType::Array => {
            for _ in 0..count {
                read_array(cursor, depth + 1)?;
            }
        }
        ValueType::String => {
            for _ in 0..count {
                cursor.string("array string")?;
            }
        }
        ValueType::Bool => {
            for _ in 0..count {
                skip_fixed(cursor, element)?;
            }
        }
        fixed => {
            cursor.take("array", count * fixed.smallest_bytes())?;
        }
    }
    Ok((element, count, start..cursor.offset() as usize))
}

fn alignment(file: &[u8], metadata: &[MetadataEntry]) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let Some(entry) = metadata.iter().find(|entry| entry.key == KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let value = entry.value.decode(file);
    let MetadataValue::U32(found) = value else {
        return Err(GgufError::WrongType { key: KEY.to_owned(), expected: "a u32", found: value.describe() });
    };
    let found = u64::from(found);
    if !found.is_power_of_two() || !(SMALLEST_ALIGNMENT..=LARGEST_ALIGNMENT).contains(&found) {
        return Err(GgufError::BadAlignment { found, smallest: SMALLEST_ALIGNMENT, largest: LARGEST_ALIGNMENT });
    }
    Ok(found)
}

fn read_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorDescription>, GgufError> {
    let mut tensors = Vec::with_capacity(count as usize);
    let mut seen = HashSet::with_capacity(count as usize);
    for _ in 0..count {
        let offset = cursor.offset();
        let name = cursor.string("tensor name")?;
        limit("the length of a tensor name", offset, name.len() as u64, MAX_NAME_BYTES)?;
        if !seen.insert(name) {
            return Err(GgufError::DuplicateTensor { name: name.to_owned(), offset });
        }
        tensors.push(read_tensor(cursor, name, offset)?);
    }
    Ok(tensors)
}

fn read_tensor(cursor: &mut Cursor<'_>, name: &str, offset: u64) -> Result<TensorDescription, GgufError> {
    let tensor = || name.to_owned();
    let found = cursor.u32("dimension count")?;
    if !(1..=MAX_DIMENSIONS).contains(&found) {
        return Err(GgufError::BadDimensionCount { tensor: tensor(), offset, found, limit: MAX_DIMENSIONS });
    }
    let dims = (0..found).map(|_| cursor.u64("dimension")).collect::<Result<Vec<u64>, _>>()?;
    if let Some(dimension) = dims.iter().position(|size| *size == 0) {
        return Err(GgufError::ZeroDimension { tensor: tensor(), offset, dimension });
    }
    let number = cursor.u32("tensor type")?;
    let ggml_type = GgmlType::from_number(number).ok_or_else(|| GgufError::UnsupportedTensorType {
        tensor: tensor(),
        offset,
        number,
        name: unsupported_type_name(number),
    })?;
    let data_offset = cursor.u64("tensor data offset")?;

    let block = ggml_type.block_weights();
    if !dims[0].is_multiple_of(block as u64) {
        return Err(GgufError::RaggedRow { tensor: tensor(), row: dims[0], block, ggml_type: ggml_type.name() });
    }
    // The number of weights must fit as well as the number of bytes: callers multiply dimensions.
    let length = dims
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size))
        .and_then(|weights| (weights / block as u64).checked_mul(ggml_type.block_bytes() as u64))
        .filter(|bytes| *bytes <= isize::MAX as u64)
        .ok_or_else(|| GgufError::SizeOverflow {
            tensor: tensor(),
            offset,
            dims: dims.clone(),
            ggml_type: ggml_type.name(),
        })?;
    let dims = dims.into_iter().map(|size| size as usize).collect();
    Ok(TensorDescription { name: tensor(), ggml_type, dims, data_offset, length })
}

/// Finds where each tensor lies, and refuses offsets that are unaligned, overlap, or leave the file.
fn place_tensors(
    descriptions: Vec<TensorDescription>,
    header_end: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<TensorInfo>, GgufError> {
    let data_start = header_end.next_multiple_of(alignment);
    let mut expected: Option<(u64, &str)> = None;
    let mut ranges = Vec::with_capacity(descriptions.len());
    for tensor in &descriptions {
        if !tensor.data_offset.is_multiple_of(alignment) {
            return Err(GgufError::UnalignedTensor {
                tensor: tensor.name.clone(),
                data_offset: tensor.data_offset,
                alignment,
            });
        }
        let range = data_start
            .checked_add(tensor.data_offset)
            .and_then(|start| Some((start, start.checked_add(tensor.length)?)))
            .ok_or_else(|| GgufError::SizeOverflow {
                tensor: tensor.name.clone(),
                offset: tensor.data_offset,
                dims: tensor.dims.iter().map(|size| *size as u64).collect(),
                ggml_type: tensor.ggml_type.name(),
            })?;
        if expected.is_none_or(|(end, _)| range.1 > end) {
            expected = Some((range.1, &tensor.name));
        }
        ranges.push(range);
    }
    if let Some((expected, name)) = expected.filter(|(end, _)| *end > file_bytes) {
        return Err(GgufError::TruncatedData { tensor: name.to_owned(), expected, actual: file_bytes });
    }

    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|i| ranges[*i]);
    for pair in order.windows(2) {
        let ((_, end), (start, _)) = (ranges[pair[0]], ranges[pair[1]]);
        if start < end {
            return Err(GgufError::OverlappingTensors {
                first: descriptions[pair[0]].name.clone(),
                second: descriptions[pair[1]].name.clone(),
                start,
                end,
            });
        }
    }

    Ok(descriptions
        .into_iter()
        .zip(ranges)
        .map(|(tensor, (start, _))| TensorInfo {
            name: tensor.name,
            ggml_type: tensor.ggml_type,
            dims: tensor.dims,
            start: start as usize,
            length: tensor.length as usize,
        })
        .collect())
}

/// Names of the types in `ggml.h` that this project does not read, so that a refusal can say what the file holds.
fn unsupported_type_name(number: u32) -> Option<&'static str> {
    Some(match number {
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return None,
    })
}
