//! Metadata values: how they are stored, how they are decoded in place, and what a caller may ask for.
//!
//! [`StoredValue`] remembers where a value lies once [`super::header`] has checked it; [`MetadataValue`] is the decoded
//! view. Nothing here checks bounds again: the ranges were checked when the header was read, and the bytes of an open
//! file do not change.

use std::ops::Range;

const CHECKED: &str = "the header check has seen these bytes";

/// The types of metadata values, as GGUF numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number, if there is one.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == number)
    }

    /// Size in bytes of a value of fixed size; `None` for strings and arrays.
    pub const fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// The fewest bytes a value of this type takes: an empty string is its length, an empty array its type and length.
    pub(super) const fn smallest_bytes(self) -> u64 {
        match self {
            Self::String => 8,
            Self::Array => 12,
            _ => match self.fixed_bytes() {
                Some(bytes) => bytes as u64,
                None => unreachable!(),
            },
        }
    }

    /// The word for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

/// Where a checked value lies in the file. For strings the range is the text; for arrays it starts at the first element.
#[derive(Clone, Debug)]
pub(super) struct StoredValue {
    pub(super) value_type: ValueType,
    /// Element type and element count; arrays only.
    pub(super) array: Option<(ValueType, u64)>,
    pub(super) range: Range<usize>,
}

impl StoredValue {
    pub(super) fn decode<'a>(&self, file: &'a [u8]) -> MetadataValue<'a> {
        let bytes = &file[self.range.clone()];
        match self.array {
            Some((element, count)) => MetadataValue::Array(MetadataArray { element, count, bytes }),
            None => MetadataValue::decode(self.value_type, bytes),
        }
    }
}

/// A metadata value, decoded; strings and arrays borrow from the file.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum MetadataValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(MetadataArray<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> MetadataValue<'a> {
    /// Decodes a scalar or the text of a string.
    fn decode(value_type: ValueType, bytes: &'a [u8]) -> Self {
        match value_type {
            ValueType::U8 => Self::U8(bytes[0]),
            ValueType::I8 => Self::I8(bytes[0] as i8),
            ValueType::U16 => Self::U16(u16::from_le_bytes(fixed(bytes))),
            ValueType::I16 => Self::I16(i16::from_le_bytes(fixed(bytes))),
            ValueType::U32 => Self::U32(u32::from_le_bytes(fixed(bytes))),
            ValueType::I32 => Self::I32(i32::from_le_bytes(fixed(bytes))),
            ValueType::F32 => Self::F32(f32::from_le_bytes(fixed(bytes))),
            ValueType::Bool => Self::Bool(bytes[0] == 1),
            ValueType::U64 => Self::U64(u64::from_le_bytes(fixed(bytes))),
            ValueType::I64 => Self::I64(i64::from_le_bytes(fixed(bytes))),
            ValueType::F64 => Self::F64(f64::from_le_bytes(fixed(bytes))),
            ValueType::String => Self::String(std::str::from_utf8(bytes).expect(CHECKED)),
            ValueType::Array => unreachable!("arrays are decoded by whoever knows their element type"),
        }
    }

    /// Any integer type, widened.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// Type and value in words, for messages; long texts are cut.
    pub fn describe(&self) -> String {
        match self {
            Self::Bool(v) => format!("the bool {v}"),
            Self::F32(v) => format!("the f32 {v}"),
            Self::F64(v) => format!("the f64 {v}"),
            Self::String(v) => format!("the string {:?}", v.chars().take(40).collect::<String>()),
            Self::Array(v) => format!("an array of {} {} values", v.count, v.element.name()),
            integer => format!("the integer {}", integer.as_integer().expect("every other variant is an integer")),
        }
    }
}

/// An array value; its elements are decoded while they are walked.
#[derive(Clone, Copy, Debug)]
pub struct MetadataArray<'a> {
    element: ValueType,
    count: u64,
    bytes: &'a [u8],
}

impl<'a> MetadataArray<'a> {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> Elements<'a> {
        Elements { element: self.element, left: self.len(), bytes: self.bytes }
    }
}

/// Iterator over the elements of a [`MetadataArray`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    element: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Elements<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        taken
    }

    fn length(&mut self) -> usize {
        u64::from_le_bytes(fixed(self.take(8))) as usize
    }

    fn next_array(&mut self) -> MetadataArray<'a> {
        let number = u32::from_le_bytes(fixed(self.take(4)));
        let element = ValueType::from_number(number).expect(CHECKED);
        let count = self.length();
        let bytes = match element.fixed_bytes() {
            Some(size) => self.take(size * count),
            None => {
                // Elements of varying size: walk them to find where the array ends.
                let mut walk = Elements { element, left: count, bytes: self.bytes };
                walk.by_ref().for_each(drop);
                self.take(self.bytes.len() - walk.bytes.len())
            }
        };
        MetadataArray { element, count: count as u64, bytes }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = MetadataValue<'a>;

    fn next(&mut self) -> Option<MetadataValue<'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(match (self.element, self.element.fixed_bytes()) {
            (element, Some(size)) => MetadataValue::decode(element, self.take(size)),
            (ValueType::Array, None) => MetadataValue::Array(self.next_array()),
            (element, None) => {
                let length = self.length();
                MetadataValue::decode(element, self.take(length))
            }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

/// An array of strings, walked in place.
#[derive(Clone, Debug)]
pub struct Strings<'a>(Elements<'a>);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        match self.0.next()? {
            MetadataValue::String(text) => Some(text),
            _ => unreachable!("made from an array of strings only"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// What [`super::GgufFile::get`] can return.
///
/// Integers accept any integer type whose value fits, since writers disagree about widths; floats accept both widths;
/// a bool accepts a bool alone. `Vec` accepts an array whose every element is acceptable.
pub trait FromMetadata<'a>: Sized {
    /// What was expected, for messages.
    const EXPECTED: &'static str;

    /// The value, or `None` if it has another type or does not fit.
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self>;
}

macro_rules! integers {
    ($($type:ty: $expected:literal, $many:literal;)*) => {$(
        impl<'a> FromMetadata<'a> for $type {
            const EXPECTED: &'static str = $expected;
            fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }
        }
        impl<'a> FromMetadata<'a> for Vec<$type> {
            const EXPECTED: &'static str = $many;
            fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
                elements(value)
            }
        }
    )*};
}

integers! {
    u32: "an integer from 0 to 2^32-1", "an array of integers from 0 to 2^32-1";
    i32: "an integer from -2^31 to 2^31-1", "an array of integers from -2^31 to 2^31-1";
    u64: "an integer from 0 to 2^64-1", "an array of integers from 0 to 2^64-1";
    usize: "a non-negative integer", "an array of non-negative integers";
}

impl<'a> FromMetadata<'a> for f32 {
    const EXPECTED: &'static str = "a float";
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        match value {
            MetadataValue::F32(v) => Some(v),
            MetadataValue::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for Vec<f32> {
    const EXPECTED: &'static str = "an array of floats";
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        elements(value)
    }
}

impl<'a> FromMetadata<'a> for bool {
    const EXPECTED: &'static str = "a bool";
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        match value {
            MetadataValue::Bool(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for Vec<bool> {
    const EXPECTED: &'static str = "an array of bools";
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        elements(value)
    }
}

impl<'a> FromMetadata<'a> for &'a str {
    const EXPECTED: &'static str = "a string";
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        match value {
            MetadataValue::String(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for Strings<'a> {
    const EXPECTED: &'static str = "an array of strings";
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        match value {
            MetadataValue::Array(array) if array.element == ValueType::String => Some(Strings(array.iter())),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for MetadataArray<'a> {
    const EXPECTED: &'static str = "an array";
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        match value {
            MetadataValue::Array(array) => Some(array),
            _ => None,
        }
    }
}

fn elements<'a, T: FromMetadata<'a>>(value: MetadataValue<'a>) -> Option<Vec<T>> {
    match value {
        MetadataValue::Array(array) => array.iter().map(T::from_metadata).collect(),
        _ => None,
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect(CHECKED)
}
