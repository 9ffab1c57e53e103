//! From tokens to text.
