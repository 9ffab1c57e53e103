//! Which turns a compaction may replace: those in front of a balanced cut.
//!
//! Arithmetic on roles alone. Never renders.

use plimsoll_models::chat::{Message, Role};

/// Numbers of turns behind which a conversation may be cut, newest first: the turn in front of the cut is an answer
/// without calls, or the last result that an answer with calls waited for. Cuts that do not reach beyond the first
/// `replaced` turns are left out.
pub fn balanced_cuts(turns: &[Message], replaced: usize) -> Vec<usize> {
    let mut cuts = Vec::new();
    let mut open = 0usize;
    for (at, turn) in turns.iter().enumerate() {
        let closes = match turn.role {
            Role::Assistant => {
                open = turn.tool_calls.len();
                open == 0
            }
            Role::Tool => {
                open = open.saturating_sub(1);
                open == 0
            }
            // Calls that a user's message comes in between are answered no more.
            Role::User | Role::System => {
                open = 0;
                false
            }
        };
        if closes && at + 1 > replaced {
            cuts.push(at + 1);
        }
    }
    // A result more may follow when as many as there were calls have come.
    cuts.retain(|cut| turns.get(*cut).is_none_or(|next| next.role != Role::Tool));
    cuts.reverse();
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_models::chat::ToolCall;
    use proptest::prelude::*;

    fn turn(kind: char) -> Message {
        match kind {
            'u' => Message::text(Role::User, "u"),
            'a' => Message::text(Role::Assistant, "a"),
            't' => Message::text(Role::Tool, "t"),
            calls => {
                let count = calls.to_digit(10).unwrap() as usize;
                let call = ToolCall { id: "c".into(), name: "n".into(), arguments: "{}".into() };
                Message { tool_calls: vec![call; count], ..Message::text(Role::Assistant, "") }
            }
        }
    }

    fn cuts(kinds: &str, replaced: usize) -> Vec<usize> {
        balanced_cuts(&kinds.chars().map(turn).collect::<Vec<_>>(), replaced)
    }

    #[test]
    fn a_cut_stands_behind_answers_and_behind_the_last_result_of_each_call() {
        assert_eq!(cuts("uau", 0), [2]);
        assert_eq!(cuts("u1tau", 0), [4, 3]);
        assert_eq!(cuts("u2tt", 0), [4]);
        assert_eq!(cuts("u2t", 0), [0; 0], "a call is open");
        assert_eq!(cuts("ua1", 0), [2]);
        assert_eq!(cuts("u1tau", 3), [4]);
        assert_eq!(cuts("u1tt", 0), [4], "a result more than there were calls");
        assert_eq!(cuts("u1ua", 0), [4], "a call that was never answered");
        assert_eq!(cuts("uuu", 0), [0; 0]);
    }

    proptest! {
        #[test]
        fn no_cut_parts_a_call_from_its_result(kinds in "[ua12t]{0,24}") {
            let turns: Vec<Message> = kinds.chars().map(turn).collect();
            for cut in balanced_cuts(&turns, 0) {
                prop_assert!(turns.get(cut).is_none_or(|next| next.role != Role::Tool));
                prop_assert!(turns[cut - 1].role != Role::User && turns[cut - 1].tool_calls.is_empty());
            }
        }
    }
}
