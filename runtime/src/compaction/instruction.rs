//! What the model is asked for: the sections of a summary and the words that ask for them.
//!
//! Owns names, order and wording. Never encodes.

use std::sync::OnceLock;

/// The sections of a summary, in their order.
pub const SECTIONS: [&str; 8] = [
    "Primary Request and Intent",
    "Key Technical Concepts",
    "Files and Code",
    "Errors and Fixes",
    "Pending Jobs",
    "Current Work",
    "Next Step",
    "Critical Context",
];

/// Place of the section that holds one line alone.
pub const NEXT_STEP: usize = 6;
/// Place of the section that takes up facts which stand nowhere else.
pub const CRITICAL_CONTEXT: usize = 7;

/// The line of a section that has nothing to say.
pub const NONE: &str = "(none)";

/// The instruction where a request brings none of its own.
pub const INSTRUCTION: &str = "\
Write a state summary of the conversation above. It takes the place of the whole conversation: what it leaves out is lost. \
Do not go on with the work, call no tool, answer no earlier message.

Fill these eight Markdown sections in this order and drop none. Write short lines that begin with \"- \". Where a section \
has nothing, write (none).

## Primary Request and Intent: what the user wants; corrections and constraints word for word
## Key Technical Concepts: technologies, conventions and decisions that matter
## Files and Code: exact paths that were read, made or changed, and what is in them
## Errors and Fixes: exact error texts, what fixed them, approaches that failed
## Pending Jobs: job ids, artifact and log paths with the last observed status; never assume that a pending job has finished
## Current Work: what was done last; uncertain side effects as confirmed, unknown or not started
## Next Step: exactly one
## Critical Context: exact commands, numbers and names needed to go on

Merge an earlier checkpoint into the sections instead of quoting it.";

/// A section's heading as it stands in the text.
pub fn heading(section: usize) -> String {
    format!("## {}\n", SECTIONS[section])
}

/// Words of a part of the instruction from which on repeating it is no accident.
const ECHO_WORDS: usize = 5;

/// Whether a line repeats what the instruction says about a section, as small models do that have nothing to say.
pub fn echoes(line: &str) -> bool {
    static PARTS: OnceLock<Vec<String>> = OnceLock::new();
    let parts = PARTS.get_or_init(|| {
        let hints = INSTRUCTION.lines().filter_map(|line| line.strip_prefix("## ")?.split_once(": "));
        let parts = hints.flat_map(|(_, hint)| hint.split(';')).map(words);
        parts.filter(|part| part.split(' ').count() >= ECHO_WORDS).collect()
    });
    let line = words(line);
    parts.iter().any(|part| line.contains(part))
}

/// The words of a text in lower case, with one space between them.
fn words(text: &str) -> String {
    let words = text.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_names_every_section_in_order() {
        let mut rest = INSTRUCTION;
        for section in SECTIONS {
            let at = rest.find(&format!("\n## {section}: ")).unwrap_or_else(|| panic!("{section}"));
            rest = &rest[at + 1..];
        }
        assert_eq!(SECTIONS[NEXT_STEP], "Next Step");
        assert_eq!(SECTIONS[CRITICAL_CONTEXT], "Critical Context");
    }

    #[test]
    fn a_line_that_only_repeats_the_instruction_is_told_from_one_that_says_something() {
        for echo in [
            "What the user wants; corrections and constraints word for word",
            "- The user wants to know about technologies, conventions and decisions that matter.",
            "exact paths that were read, made or changed, and what is in them",
        ] {
            assert!(echoes(echo), "{echo}");
        }
        for line in ["- src/parser/lexer.rs was read and changed", "- exactly one test fails: case_07", "(none)", ""] {
            assert!(!echoes(line), "{line}");
        }
    }
}
