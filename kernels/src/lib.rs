//! The op contract of Plimsoll and its implementations.
//!
//! A model is written once against [`Device`]; a device owns packed weights, activation buffers and K/V pages, and
//! executes the ops on them. This crate knows nothing of models, schedulers or files.
//!
//! - [`device`]: the contract: what each op computes, on which shapes, and what it promises.
//! - [`weight_format`]: the GGML block types as they lie in files.
//! - [`naive`]: the obviously right twin of every op, the oracle of the property tests; never used in production.
//! - [`cpu`]: the CPU implementation, chosen at run time (AVX-512 VNNI, AVX2, scalar).

pub mod cpu;
pub mod device;
pub mod naive;
pub mod weight_format;

pub use device::{
    AttentionShape, BatchLayout, Device, DeviceError, KvLayout, KvType, PAGE_TOKENS, PageIndex, RopeStyle, RowBuffer,
    WeightSource,
};
pub use weight_format::GgmlType;
