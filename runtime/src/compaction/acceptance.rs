//! Whether a draft is a summary, and the text it becomes.
//!
//! Owns the rules that look at the draft alone; sizes are the transaction's. Never writes to a session.

use plimsoll_models::preset::Fallback;

use super::draft::Draft;
use super::facts::{ADDED_TO, Facts};
use super::instruction::{NONE, SECTIONS, heading};
use crate::sessions::FailureReason;

/// A summary that may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its text.
    pub text: String,
    /// Sections that hold facts because the model wrote nothing usable.
    pub fallback_sections: Vec<String>,
}

/// Why a draft is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The kind.
    pub reason: FailureReason,
    /// For people, with numbers.
    pub message: String,
}

impl Rejection {
    /// With its words.
    pub fn new(reason: FailureReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// A draft in sections. Facts that it lacks are added as far as `fits` allows, which is asked about the whole text.
///
/// # Errors
/// It calls a tool, is empty, repeats itself, or lacks a section and nothing may fill it.
pub fn in_sections(
    draft: &Draft,
    facts: &Facts,
    fallback: Fallback,
    fits: impl Fn(&str) -> bool,
) -> Result<Written, Rejection> {
    let failed: Vec<usize> = (0..SECTIONS.len()).filter(|section| draft.sections[*section].is_empty()).collect();
    if fallback == Fallback::None {
        if draft.tool_call {
            return Err(Rejection::new(FailureReason::ToolCall, "the summary opened a tool call"));
        }
        if draft.kept == 0 {
            return Err(Rejection::new(FailureReason::Empty, "the summary holds no complete line"));
        }
        if draft.repeated > draft.kept {
            let Draft { kept, repeated, .. } = draft;
            return Err(Rejection::new(
                FailureReason::Repetition,
                format!("{repeated} lines of the summary repeat one of its {kept} others"),
            ));
        }
        if !failed.is_empty() {
            return Err(Rejection::new(
                FailureReason::MissingSection,
                format!("no complete line in {}", names(&failed).join(", ")),
            ));
        }
    }
    let mut sections: Vec<Vec<String>> = draft.sections.to_vec();
    for section in &failed {
        sections[*section].push(NONE.to_owned());
    }
    for section in &failed {
        let mut filled: Vec<String> = Vec::new();
        for line in facts.section(*section) {
            filled.push(line);
            let instead = std::mem::replace(&mut sections[*section], filled.clone());
            if !fits(&joined(&sections)) {
                sections[*section] = instead;
                break;
            }
        }
    }
    for line in facts.missing_from(&joined(&sections)) {
        let before = sections[ADDED_TO].clone();
        sections[ADDED_TO].retain(|known| known != NONE);
        sections[ADDED_TO].push(line);
        if !fits(&joined(&sections)) {
            sections[ADDED_TO] = before;
        }
    }
    Ok(Written { text: joined(&sections), fallback_sections: names(&failed) })
}

/// A draft without sections, as instructions of a request ask for it.
///
/// # Errors
/// It calls a tool, is empty, or repeats itself.
pub fn free(draft: &Draft, facts: &Facts, fits: impl Fn(&str) -> bool) -> Result<Written, Rejection> {
    if draft.tool_call {
        return Err(Rejection::new(FailureReason::ToolCall, "the summary opened a tool call"));
    }
    let text = draft.free.trim();
    if text.is_empty() {
        return Err(Rejection::new(FailureReason::Empty, "the summary is empty"));
    }
    if draft.repeated > 0 {
        return Err(Rejection::new(FailureReason::Repetition, "the summary says the same line over and over"));
    }
    let mut text = text.to_owned();
    let mut added = false;
    for line in facts.missing_from(&text) {
        let with = format!("{text}{}{line}", if added { "\n" } else { "\n\n" });
        if fits(&with) {
            text = with;
            added = true;
        }
    }
    Ok(Written { text, fallback_sections: Vec::new() })
}

fn names(sections: &[usize]) -> Vec<String> {
    sections.iter().map(|section| SECTIONS[*section].to_owned()).collect()
}

fn joined(sections: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (at, lines) in sections.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        text.push_str(&heading(at));
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_models::chat::{Message, Role};

    fn draft() -> Draft {
        let mut draft = Draft::default();
        for section in 0..SECTIONS.len() {
            assert!(draft.push(section, &format!("- line of {section}")));
        }
        draft
    }

    fn rejected(draft: &Draft) -> FailureReason {
        in_sections(draft, &Facts::default(), Fallback::None, |_| true).unwrap_err().reason
    }

    #[test]
    fn a_whole_draft_is_a_summary_with_every_heading() {
        let written = in_sections(&draft(), &Facts::default(), Fallback::None, |_| true).unwrap();
        assert!(written.text.starts_with("## Primary Request and Intent\n- line of 0\n\n## Key Technical Concepts\n"));
        assert!(written.text.ends_with("## Critical Context\n- line of 7\n"));
        assert_eq!(written.fallback_sections, [""; 0]);
    }

    #[test]
    fn every_defect_has_its_reason() {
        assert_eq!(rejected(&Draft::default()), FailureReason::Empty);
        let mut missing = draft();
        missing.sections[4].clear();
        assert_eq!(rejected(&missing), FailureReason::MissingSection);
        let mut repeats = draft();
        while repeats.repeated <= repeats.kept {
            assert!(!repeats.push(0, "- line of 0"));
        }
        assert_eq!(rejected(&repeats), FailureReason::Repetition);
        assert_eq!(rejected(&Draft { tool_call: true, ..draft() }), FailureReason::ToolCall);
        assert_eq!(free(&Draft::default(), &Facts::default(), |_| true).unwrap_err().reason, FailureReason::Empty);
    }

    #[test]
    fn facts_fill_what_failed_and_are_added_as_far_as_they_fit() {
        let facts =
            Facts::of(&[Message::text(Role::User, "Mend src/a.rs"), Message::text(Role::Tool, "fatal: no b.rs")]);
        let mut lacking = draft();
        lacking.sections[2].clear();
        let written = in_sections(&lacking, &facts, Fallback::Facts, |_| true).unwrap();
        assert_eq!(written.fallback_sections, ["Files and Code"]);
        assert!(written.text.contains("## Files and Code\n- src/a.rs\n- b.rs\n"), "{}", written.text);
        assert!(written.text.ends_with("- line of 7\n- fatal: no b.rs\n"), "{}", written.text);
        let room = written.text.len() - 1;
        let shorter = in_sections(&lacking, &facts, Fallback::Facts, |text| text.len() <= room).unwrap();
        assert!(shorter.text.len() <= room && shorter.text.ends_with("- line of 7\n"));
        let all = in_sections(&Draft::default(), &facts, Fallback::Facts, |_| true).unwrap();
        assert_eq!(all.fallback_sections.len(), SECTIONS.len());
    }
}
