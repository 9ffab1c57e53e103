//! What the model is told about its window, and when.
//!
//! A notice is appended, in a frame, to the newest message of the user or of a tool, and stands there for good: it is
//! kept with the digest of that message and put in again on every render. Owns the wording and the rule when one is
//! due. Never renders.

use crate::budget::{Budget, Zone};

/// What a session has been told so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The highest zone since the last compaction.
    pub zone: Zone,
    /// Whether the policy was explained.
    pub policy: bool,
    /// Whether a compaction has not been spoken of yet.
    pub compaction_untold: bool,
}

/// The notice that is due for a prompt in `zone`, in its frame; `None` where everything was said.
#[must_use]
pub fn due(told: Told, zone: Zone, budget: &Budget) -> Option<String> {
    let enters = zone > told.zone && zone > Zone::Normal;
    if !enters && !told.compaction_untold {
        return None;
    }
    let mut parts = Vec::new();
    if !told.policy {
        parts.push(policy(budget));
    }
    if told.compaction_untold {
        parts.push(COMPACTED.to_owned());
    }
    if enters {
        parts.push(advice(zone, budget));
    }
    Some(format!("\n\n<context-notice>\n{}\n</context-notice>", parts.join("\n")))
}

/// The first notice after a compaction.
const COMPACTED: &str = "The earlier part of this conversation was compacted: a checkpoint stands in its place. If an \
operation with side effects may have been interrupted, check what it did before you repeat it.";

fn policy(budget: &Budget) -> String {
    format!(
        "ACTIVE CONTEXT POLICY: the effective window is {} tokens. From {} tokens on be economical, from {} on keep \
         durable facts in order, at {} the history is compacted. Reserved: {} for a reply, {} for the summary, {} for \
         safety. These values hold for this session, whatever the model's capacity or another policy.",
        budget.effective,
        budget.economy,
        budget.checkpoint,
        budget.compaction,
        budget.response,
        budget.summary,
        budget.safety,
    )
}

fn advice(zone: Zone, budget: &Budget) -> String {
    match zone {
        Zone::Normal => String::new(),
        Zone::Economy => format!(
            "The context has reached {} tokens: use targeted reads, keep results concise, show diffs instead of whole \
             files.",
            budget.economy
        ),
        Zone::Checkpoint | Zone::Compaction => format!(
            "The context has reached {} tokens: keep in order the live objective, constraints, work completed, \
             decisions, changed files, relevant commands and their results, unresolved errors, failed approaches, the \
             current state and one next action.",
            if zone == Zone::Checkpoint { budget.checkpoint } else { budget.compaction }
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{BudgetConfig, Tokens};

    const SILENT: Told = Told { zone: Zone::Normal, policy: false, compaction_untold: false };

    #[test]
    fn each_zone_is_told_once_and_the_policy_first() {
        let budget = Budget::resolve(Some(Tokens(8192)), &BudgetConfig::default()).unwrap();
        assert_eq!(due(SILENT, Zone::Normal, &budget), None);
        let first = due(SILENT, Zone::Economy, &budget).unwrap();
        assert!(
            first.starts_with("\n\n<context-notice>\nACTIVE CONTEXT POLICY: the effective window is 7424"),
            "{first}"
        );
        assert!(first.contains("4096") && first.contains("5120") && first.contains("5734"), "{first}");
        assert!(first.contains("targeted reads"));
        let told = Told { zone: Zone::Economy, policy: true, ..SILENT };
        assert_eq!(due(told, Zone::Economy, &budget), None);
        let second = due(told, Zone::Checkpoint, &budget).unwrap();
        assert!(second.contains("one next action") && !second.contains("POLICY"), "{second}");
        // A higher zone marks the lower ones as told.
        assert_eq!(due(Told { zone: Zone::Checkpoint, ..told }, Zone::Economy, &budget), None);
    }

    #[test]
    fn the_first_notice_after_a_compaction_speaks_of_it_once() {
        let budget = Budget::resolve(Some(Tokens(8192)), &BudgetConfig::default()).unwrap();
        let told = Told { zone: Zone::Normal, policy: true, compaction_untold: true };
        let notice = due(told, Zone::Normal, &budget).unwrap();
        assert!(notice.contains("was compacted") && notice.contains("before you repeat it"), "{notice}");
        assert_eq!(due(Told { compaction_untold: false, ..told }, Zone::Normal, &budget), None);
    }
}
