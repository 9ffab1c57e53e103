//! Everything a model is before it runs: its file, its tokenizer, its chat format, its architecture, and where it
//! comes from. Uses `plimsoll-kernels` for weights and ops; knows nothing of pages, schedulers, sessions or HTTP.
//!
//! - [`gguf`]: the validating, memory-mapped GGUF reader.
//! - [`tokenizer`]: text to token ids and back, built from a model file's metadata.
//! - [`chat`]: canonical messages and tools, the values everything else speaks of.
//! - [`template`]: the model's own Jinja chat template, rendered safely.
//! - [`dialect`]: how a family writes tool calls and reasoning, and how its output is split again.
//! - [`architecture`]: one file per family, written once for all devices.
//! - [`preset`]: what the product serves under one name.
//! - [`source`]: how a model name becomes a file on disk.

pub mod architecture;
pub mod chat;
pub mod dialect;
pub mod gguf;
pub mod preset;
pub mod source;
pub mod template;
pub mod tokenizer;
