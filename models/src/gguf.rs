//! The validating, memory-mapped GGUF reader.
