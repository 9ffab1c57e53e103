//! Presets: what the product serves under one name.
