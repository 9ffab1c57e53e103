//! The op contract of Plimsoll and its implementations.
//!
//! A model is written once against [`Device`]; a device owns packed weights, activation buffers and K/V pages, and
//! executes the ops on them. This crate knows nothing of models, schedulers or file formats.
//!
//! - [`device`]: the contract: what each op computes, on which shapes, and what it promises.
//! - [`weight_format`]: the GGML block types as they lie in files.
//! - [`mapped_file`]: a file's bytes, mapped.
//! - [`naive`]: the obviously right twin of every op, the oracle of the property tests; never used in production.
//! - [`cpu`]: the CPU implementation, chosen at run time (AVX-512 VNNI, AVX2, scalar).

pub mod cpu;
pub mod device;
pub mod mapped_file;
pub mod naive;
pub mod weight_format;

pub use device::{
    AttentionShape, BatchLayout, Device, DeviceError, KvLayout, KvType, MAX_HEAD_DIM, MAX_INPUT_WIDTH, PAGE_TOKENS,
    PageIndex, RopeStyle, RowBuffer, WeightSource,
};
pub use mapped_file::MappedFile;
pub use weight_format::GgmlType;
