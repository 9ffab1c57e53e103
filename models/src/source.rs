//! How a model name becomes a file on disk.
