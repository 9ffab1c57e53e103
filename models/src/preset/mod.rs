//! Presets: what the product serves under one name.
//!
//! A preset is a JSON file: which model, which window and how it is divided, how tokens are chosen, how conversations
//! are rendered, where the guard's limits lie, and what happens when the window fills.
//!
//! - [`document`]: the file's shape, with its own checks. Unknown keys are refused.
//! - [`library`]: the presets that come with the program, and those in the user's configuration folder.
//! - [`schema`]: the published JSON Schema, made from the shape.
//!
//! The window's division and the guard's limits are plain data here; their meaning, and what is refused, belongs to the
//! rooms that act on them.

pub mod document;
pub mod library;
pub mod schema;

pub use document::{
    BudgetSection, Compaction, Fallback, GuardSection, Media, Overflow, Preset, PresetError, Rendering, Sampling,
};
pub use library::{PresetLibrary, PresetOrigin, embedded};
