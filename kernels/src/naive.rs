//! The naive twins of the ops: obviously right, slow, the oracle of the property tests.
//!
//! Nothing here is used in production. Weights are dequantised to f32, activations stay f32, every loop is the
//! formula. A fast device is right when it agrees with these functions within the tolerance of its arithmetic.
//!
//! - [`mod@dequantize`]: GGML blocks to f32.
//! - [`ops`]: every op as a function on slices.
//! - [`device`]: [`NaiveDevice`], the [`Device`](crate::Device) made of them.

pub mod dequantize;
pub mod device;
pub mod ops;

pub use dequantize::dequantize;
pub use device::NaiveDevice;
