//! `qwen2`: Qwen2, Qwen2.5 and Qwen2.5-Coder.
//!
//! The Llama shape with biases on q, k and v, and rotation of element `i` with `i + head_dim/2`.

use plimsoll_kernels::RopeStyle;

use super::config::FamilyTraits;

/// What sets the family apart.
pub const FAMILY: FamilyTraits =
    FamilyTraits { architecture: "qwen2", rope_style: RopeStyle::HalfSplit, qkv_bias: true };
