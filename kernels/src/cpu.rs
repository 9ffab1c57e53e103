//! The CPU implementation of the op contract.
//!
//! Weights are packed once into tiles that one stream reads ([`pack`](PackedMatrix)); activations of quantised
//! matrices are rounded to 8 bits; everything else is f32. Kernels are written once over sixteen lanes (`lanes`) and
//! compiled for AVX-512 VNNI, AVX2 and plain Rust, chosen at run time (`isa`). Work is spread by a small spinning
//! pool (`thread_pool`). Every kernel fixes the order of a row's operations by the row's shape and position alone, so
//! results are the same bits for any batch and any number of threads, and for both x86 instruction sets.
//!
//! - [`device`]: [`CpuDevice`], the ops with their checks.
//! - `pack`, `linear`, `linear_blocks`, `linear_float`, `quantize_row`: matrix products.
//! - `kv_pages`, `attention`: the cache and what reads it.
//! - `rms_norm`, `rope`, `swiglu`, `vector_exp`: the rest of a layer.
//! - [`logits`]: scans over a row of logits, for samplers.
//! - `memory`, `buffer`, `thread_pool`, `isa`, `lanes`: what they stand on.

// Loops over registers and lanes run several arrays by one index.
#![allow(clippy::needless_range_loop)]

mod attention;
mod buffer;
pub mod device;
mod isa;
mod kv_pages;
mod lanes;
mod linear;
mod linear_blocks;
mod linear_float;
pub mod logits;
mod memory;
mod pack;
mod quantize_row;
mod rms_norm;
mod rope;
mod swiglu;
mod thread_pool;
mod vector_exp;

pub use buffer::{CpuBuffer, CpuVector};
pub use device::{CpuDevice, CpuOptions};
pub use isa::Isa;
pub use kv_pages::CpuPages;
pub use pack::PackedMatrix;
