//! `llama`: Llama 2 and 3, SmolLM2 and their relatives.
//!
//! GGUF files of this family hold the rows of q and k permuted, so that rotation turns neighbouring elements. The
//! llama3 rule of long-context rotation arrives as `rope_freqs.weight`.

use plimsoll_kernels::RopeStyle;

use super::config::FamilyTraits;

/// What sets the family apart.
pub const FAMILY: FamilyTraits =
    FamilyTraits { architecture: "llama", rope_style: RopeStyle::Interleaved, qkv_bias: false };
