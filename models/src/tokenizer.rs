//! Tokenizers built from model files.
