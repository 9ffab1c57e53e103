//! What a model has written of a summary so far.
//!
//! Shared between the engine thread, where the writer appends, and the transaction, which reads it when the generation
//! has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::instruction::{NONE, SECTIONS, echoes};

/// Lines and counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// Complete lines by section.
    pub sections: [Vec<String>; SECTIONS.len()],
    /// All text, where no sections are asked for.
    pub free: String,
    /// Lines that were kept.
    pub kept: usize,
    /// Lines that repeated an earlier one or the instruction, and were dropped.
    pub repeated: usize,
    /// Whether the model opened a tool call.
    pub tool_call: bool,
}

impl Draft {
    /// Takes up a complete line. False: an earlier line or the instruction says the same, and it was dropped.
    pub fn push(&mut self, section: usize, line: &str) -> bool {
        let says_nothing = is_none(line);
        let said = || self.sections.iter().flatten().any(|known| known == line) || echoes(line);
        if !says_nothing && said() {
            self.repeated += 1;
            return false;
        }
        self.sections[section].push(line.to_owned());
        self.kept += 1;
        true
    }
}

/// Whether a line says that there is nothing to say.
pub fn is_none(line: &str) -> bool {
    let bare = line.trim().trim_start_matches(['-', '*', ' ']).trim_end_matches('.');
    bare.eq_ignore_ascii_case(NONE) || bare.eq_ignore_ascii_case("none")
}

/// A draft as both sides hold it.
#[derive(Clone, Debug, Default)]
pub struct SharedDraft(Arc<Mutex<Draft>>);

impl SharedDraft {
    /// The draft is plain text and numbers, valid whatever happened while it was locked.
    pub fn lock(&self) -> MutexGuard<'_, Draft> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
