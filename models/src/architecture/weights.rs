//! Which tensors a model needs, and how they reach a device.
//!
//! The list of a model's tensors stands in one place ([`TensorSpec`]s); it is checked against the file before anything
//! is allocated, counted for the memory plan, and loaded. Formats the device has no kernel for are converted here,
//! through candle-core's reader of GGML blocks.

use std::collections::{HashMap, HashSet};

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use plimsoll_kernels::{Device, GgmlType, WeightSource};

use super::LoadError;
use crate::gguf::{GgufFile, GgufTensor};

/// What a tensor is for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    /// A matrix of `rows` output and `cols` input features.
    Matrix {
        /// Output features.
        rows: usize,
        /// Input features.
        cols: usize,
    },
    /// A parameter vector.
    Vector {
        /// Elements.
        len: usize,
    },
}

/// One tensor a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the file.
    pub name: String,
    /// Its shape.
    pub kind: TensorKind,
}

impl TensorSpec {
    /// A matrix.
    pub fn matrix(name: impl Into<String>, rows: usize, cols: usize) -> Self {
        Self { name: name.into(), kind: TensorKind::Matrix { rows, cols } }
    }

    /// A vector.
    pub fn vector(name: impl Into<String>, len: usize) -> Self {
        Self { name: name.into(), kind: TensorKind::Vector { len } }
    }

    /// The tensor in the file, its shape checked.
    fn find<'f>(&self, file: &'f GgufFile) -> Result<GgufTensor<'f>, LoadError> {
        let tensor = file.require_tensor(&self.name)?;
        let expected = match self.kind {
            TensorKind::Matrix { rows, cols } => vec![cols, rows],
            TensorKind::Vector { len } => vec![len],
        };
        if tensor.dims != expected.as_slice() {
            return Err(LoadError::WrongShape { name: self.name.clone(), found: tensor.dims.to_vec(), expected });
        }
        Ok(tensor)
    }
}

/// Checks that every tensor is there, with its shape and in a format that can be loaded, and counts the bytes the device
/// will hold for them.
///
/// # Errors
/// [`LoadError::File`] for a tensor that is missing, [`LoadError::WrongShape`], [`LoadError::UnsupportedFormat`].
pub fn plan<D: Device>(file: &GgufFile, device: &D, specs: &[TensorSpec]) -> Result<usize, LoadError> {
    let mut bytes = 0;
    for spec in specs {
        let tensor = spec.find(file)?;
        let format = tensor.ggml_type;
        let loads_as_it_is = matches!(spec.kind, TensorKind::Matrix { .. }) && device.reads(format);
        if !loads_as_it_is && candle_format(format).is_none() {
            let supported = GgmlType::ALL.into_iter().filter(|f| device.reads(*f) || candle_format(*f).is_some());
            let supported = supported.map(GgmlType::name).collect::<Vec<_>>().join(", ");
            return Err(LoadError::UnsupportedFormat { name: spec.name.clone(), format, supported });
        }
        bytes += match spec.kind {
            TensorKind::Matrix { rows, cols } => device.matrix_bytes(loaded_format(device, format, cols), rows, cols),
            TensorKind::Vector { len } => len * size_of::<f32>(),
        };
    }
    Ok(bytes)
}

/// Refuses a file with a tensor that is not in the list: a bias or a norm that is left out changes what the model
/// computes, and nothing else would tell.
///
/// # Errors
/// [`LoadError::UnusedTensor`].
pub fn refuse_unused(file: &GgufFile, architecture: &'static str, specs: &[TensorSpec]) -> Result<(), LoadError> {
    let used: HashSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    match file.tensors().find(|tensor| !used.contains(tensor.name)) {
        Some(tensor) => Err(LoadError::UnusedTensor { name: tensor.name.to_owned(), architecture }),
        None => Ok(()),
    }
}

/// A model's tensors on a device, taken out one by one as the architecture is put together.
pub struct Weights<D: Device> {
    matrices: HashMap<String, D::Matrix>,
    vectors: HashMap<String, Vec<f32>>,
}

impl<D: Device> Weights<D> {
    /// Loads every tensor of the list.
    pub fn load(file: &GgufFile, device: &D, specs: &[TensorSpec]) -> Result<Self, LoadError> {
        let mut weights = Self { matrices: HashMap::new(), vectors: HashMap::new() };
        let mut converted = 0;
        for spec in specs {
            let tensor = spec.find(file)?;
            match spec.kind {
                TensorKind::Matrix { rows, cols } => {
                    let target = loaded_format(device, tensor.ggml_type, cols);
                    let bytes;
                    let source = if target == tensor.ggml_type {
                        WeightSource { format: target, rows, cols, bytes: tensor.bytes }
                    } else {
                        converted += 1;
                        bytes = convert(spec, &tensor, target)?;
                        WeightSource { format: target, rows, cols, bytes: &bytes }
                    };
                    let matrix = device
                        .matrix(&source)
                        .map_err(|source| LoadError::Device { name: spec.name.clone(), source })?;
                    weights.matrices.insert(spec.name.clone(), matrix);
                }
                TensorKind::Vector { .. } => {
                    weights.vectors.insert(spec.name.clone(), floats(spec, &tensor)?);
                }
            }
        }
        if converted > 0 {
            tracing::info!(converted, "weight formats without a kernel were converted at load");
        }
        Ok(weights)
    }

    /// Takes a matrix of the list.
    pub fn matrix(&mut self, name: &str) -> D::Matrix {
        self.matrices.remove(name).unwrap_or_else(|| panic!("matrix `{name}` is in the model's tensor list, once"))
    }

    /// Takes a vector of the list as numbers.
    pub fn values(&mut self, name: &str) -> Vec<f32> {
        self.vectors.remove(name).unwrap_or_else(|| panic!("vector `{name}` is in the model's tensor list, once"))
    }

    /// Takes a vector of the list, on the device.
    pub fn vector(&mut self, device: &D, name: &str) -> Result<D::Vector, LoadError> {
        let values = self.values(name);
        device.vector(&values).map_err(|source| LoadError::Device { name: name.into(), source })
    }
}

/// The format in which a matrix reaches the device: its own, or the nearest that has a kernel.
fn loaded_format<D: Device>(device: &D, format: GgmlType, cols: usize) -> GgmlType {
    if device.reads(format) {
        format
    } else if cols.is_multiple_of(GgmlType::Q8_0.block_weights()) && device.reads(GgmlType::Q8_0) {
        // Eight bits per weight keep every format with fewer; the plan counts the larger size.
        GgmlType::Q8_0
    } else {
        GgmlType::F32
    }
}

fn convert(spec: &TensorSpec, tensor: &GgufTensor<'_>, target: GgmlType) -> Result<Vec<u8>, LoadError> {
    let values = floats(spec, tensor)?;
    let failed = |e: candle_core::Error| LoadError::Conversion {
        name: spec.name.clone(),
        format: tensor.ggml_type,
        reason: e.to_string(),
    };
    match target {
        GgmlType::F32 => Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        GgmlType::Q8_0 => {
            let cpu = candle_core::Device::Cpu;
            let values = candle_core::Tensor::new(values, &cpu).map_err(failed)?;
            let quantised = QTensor::quantize(&values, GgmlDType::Q8_0).map_err(failed)?;
            Ok(quantised.data().map_err(failed)?.into_owned())
        }
        other => unreachable!("`loaded_format` converts to F32 or Q8_0, not {other}"),
    }
}

/// A tensor's values as f32.
fn floats(spec: &TensorSpec, tensor: &GgufTensor<'_>) -> Result<Vec<f32>, LoadError> {
    let failed = |reason: String| LoadError::Conversion { name: spec.name.clone(), format: tensor.ggml_type, reason };
    let format = candle_format(tensor.ggml_type).ok_or_else(|| failed("no reader for this format".into()))?;
    let cpu = candle_core::Device::Cpu;
    let elements = tensor.dims.iter().product::<usize>();
    let bytes = aligned(tensor.bytes);
    QStorage::from_data(std::borrow::Cow::Borrowed(bytes.as_slice()), &cpu, format)
        .and_then(|storage| QTensor::new(storage, elements))
        .and_then(|quantised| quantised.dequantize(&cpu))
        .and_then(|values| values.to_vec1::<f32>())
        .map_err(|e| failed(e.to_string()))
}

/// A tensor's bytes at an address candle's reader accepts: it asserts the alignment of its block structures, at most
/// that of an f32, and a file may declare a smaller one.
struct Aligned<'a> {
    bytes: std::borrow::Cow<'a, [u8]>,
    start: usize,
    len: usize,
}

impl Aligned<'_> {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

fn aligned(bytes: &[u8]) -> Aligned<'_> {
    let (alignment, len) = (align_of::<f32>(), bytes.len());
    if bytes.as_ptr().align_offset(alignment) == 0 {
        return Aligned { bytes: bytes.into(), start: 0, len };
    }
    let mut copy = vec![0; len + alignment];
    let start = copy.as_ptr().align_offset(alignment);
    copy[start..start + len].copy_from_slice(bytes);
    Aligned { bytes: copy.into(), start, len }
}

fn candle_format(format: GgmlType) -> Option<GgmlDType> {
    Some(match format {
        GgmlType::F32 => GgmlDType::F32,
        GgmlType::F16 => GgmlDType::F16,
        GgmlType::BF16 => GgmlDType::BF16,
        GgmlType::Q4_0 => GgmlDType::Q4_0,
        GgmlType::Q4_1 => GgmlDType::Q4_1,
        GgmlType::Q5_0 => GgmlDType::Q5_0,
        GgmlType::Q5_1 => GgmlDType::Q5_1,
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        GgmlType::Q8_1 => GgmlDType::Q8_1,
        GgmlType::Q2_K => GgmlDType::Q2K,
        GgmlType::Q3_K => GgmlDType::Q3K,
        GgmlType::Q4_K => GgmlDType::Q4K,
        GgmlType::Q5_K => GgmlDType::Q5K,
        GgmlType::Q6_K => GgmlDType::Q6K,
        GgmlType::Q8_K => GgmlDType::Q8K,
        GgmlType::IQ4_NL | GgmlType::IQ4_XS => return None,
    })
}
