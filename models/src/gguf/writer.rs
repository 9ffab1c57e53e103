//! Writes small GGUF files for tests, right ones and wrong ones.
//!
//! It checks nothing, since tests need every mistake a real writer could make; production never writes GGUF.

use plimsoll_kernels::GgmlType;

use super::value::ValueType;

/// A metadata value to be written.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    /// Type number and encoded bytes, as they shall stand in the file.
    Raw(u32, Vec<u8>),
}

/// A tensor to be written; `offset` is computed unless it is given.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) type_number: u32,
    pub(crate) offset: Option<u64>,
    pub(crate) data: Vec<u8>,
}

/// The file under construction.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) version: u32,
    pub(crate) alignment: u64,
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { version: 3, alignment: 32, metadata: Vec::new(), tensors: Vec::new() }
    }
}

impl Writer {
    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub(crate) fn with_text(self, key: &str, value: &str) -> Self {
        self.with(key, Value::String(value.to_owned()))
    }

    pub(crate) fn with_tensor(mut self, name: &str, dims: &[u64], ggml_type: GgmlType, data: Vec<u8>) -> Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims: dims.to_vec(),
            type_number: ggml_type as u32,
            offset: None,
            data,
        });
        self
    }

    /// The header and its length, then padding and data.
    pub(crate) fn write(&self) -> (Vec<u8>, usize) {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            push_string(&mut out, key);
            push_value(&mut out, value);
        }
        let mut next = 0u64;
        for tensor in &self.tensors {
            push_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for size in &tensor.dims {
                out.extend(size.to_le_bytes());
            }
            out.extend(tensor.type_number.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(next).to_le_bytes());
            next = (next + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        let header = out.len();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
            out.extend(&tensor.data);
        }
        (out, header)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.write().0
    }
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn push_array<T>(out: &mut Vec<u8>, element: ValueType, items: &[T], push: impl Fn(&mut Vec<u8>, &T)) {
    out.extend((ValueType::Array as u32).to_le_bytes());
    out.extend((element as u32).to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    for item in items {
        push(out, item);
    }
}

fn push_value(out: &mut Vec<u8>, value: &Value) {
    let head = |out: &mut Vec<u8>, value_type: ValueType| out.extend((value_type as u32).to_le_bytes());
    match value {
        Value::U32(v) => {
            head(out, ValueType::U32);
            out.extend(v.to_le_bytes());
        }
        Value::I32(v) => {
            head(out, ValueType::I32);
            out.extend(v.to_le_bytes());
        }
        Value::F32(v) => {
            head(out, ValueType::F32);
            out.extend(v.to_le_bytes());
        }
        Value::Bool(v) => {
            head(out, ValueType::Bool);
            out.push(u8::from(*v));
        }
        Value::String(v) => {
            head(out, ValueType::String);
            push_string(out, v);
        }
        Value::Strings(v) => push_array(out, ValueType::String, v, |out, s| push_string(out, s)),
        Value::F32s(v) => push_array(out, ValueType::F32, v, |out, x| out.extend(x.to_le_bytes())),
        Value::I32s(v) => push_array(out, ValueType::I32, v, |out, x| out.extend(x.to_le_bytes())),
        Value::Raw(number, bytes) => {
            out.extend(number.to_le_bytes());
            out.extend(bytes);
        }
    }
}
