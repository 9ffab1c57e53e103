//! What takes the place of replaced turns: the first request, kept messages of the user, the checkpoint, the tail.
//!
//! Owns the choice of what is kept word for word and what is left to the checkpoint, and says what was left out. Never
//! renders and never writes to a session.

use plimsoll_models::chat::{Message, Role};

use crate::sessions::{Checkpoint, EffectiveForm, History};

/// Tokens of a turn beside its text: its frame in a template.
const FRAME: u32 = 8;
/// Characters of a message that an edit shows.
const SHOWN: usize = 60;

/// What may be kept word for word, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Messages of the user beside the first request.
    pub kept: u32,
    /// The tail.
    pub tail: u32,
}

/// What becomes of results of tools in the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolOutputs {
    /// They stay whole.
    Whole,
    /// Head and tail of a long one stay around a marker.
    Cleared,
}

/// A form, and what a person should know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The form.
    pub form: EffectiveForm,
    /// What was left out or shortened, in sentences.
    pub edits: Vec<String>,
}

/// Builds the form for the messages in front of `cut`, a place in the history. `weigh` counts the tokens of a text.
pub fn build(
    history: &History,
    cut: usize,
    checkpoint: Checkpoint,
    room: Room,
    outputs: ToolOutputs,
    weigh: &dyn Fn(&str) -> u32,
) -> Built {
    let mut edits = Vec::new();
    let own = history.head + usize::from(history.form.is_some());
    let (start, tail) = choose_tail(&history.messages[..cut], own, room.tail, outputs, weigh, &mut edits);

    let user_at = |place: &usize| history.messages[*place].role == Role::User;
    let mut users: Vec<Message> = Vec::new();
    let mut first_request = None;
    if let Some(earlier) = &history.form {
        first_request.clone_from(&earlier.first_request);
        users.extend(earlier.kept.iter().cloned());
    }
    for place in (own..start).filter(user_at) {
        let message = history.without_notice(place);
        match first_request {
            None => first_request = Some(message),
            Some(_) => users.push(message),
        }
    }
    let mut kept = Vec::new();
    let mut left = room.kept;
    for message in users.into_iter().rev() {
        let weight = weigh(&message.content) + FRAME;
        if weight <= left {
            left -= weight;
            kept.push(message);
        } else {
            let shown: String = message.content.trim().chars().take(SHOWN).collect();
            edits.push(format!("a message of the user of {weight} tokens is left to the checkpoint: \"{shown}\""));
        }
    }
    kept.reverse();
    Built { form: EffectiveForm { first_request, kept, checkpoint, tail }, edits }
}

/// The longest end of the messages that begins with an assistant turn and fits; it reaches back to the last call and
/// its results where that fits at all. Returns its place and it.
fn choose_tail(
    messages: &[Message],
    own: usize,
    room: u32,
    outputs: ToolOutputs,
    weigh: &dyn Fn(&str) -> u32,
    edits: &mut Vec<String>,
) -> (usize, Vec<Message>) {
    let end = messages.len();
    let begins: Vec<usize> = (own..end).filter(|place| messages[*place].role == Role::Assistant).collect();
    let last_call = begins.iter().rev().copied().find(|place| !messages[*place].tool_calls.is_empty());
    let mut chosen = end;
    let mut weight = 0;
    let mut from = end;
    for begin in begins.iter().rev() {
        weight += messages[*begin..from].iter().map(|message| weigh_message(message, weigh)).sum::<u32>();
        from = *begin;
        if weight > room {
            break;
        }
        chosen = *begin;
    }
    let wanted = last_call.filter(|call| *call < chosen);
    let Some(wanted) = wanted else { return (chosen, messages[chosen..].to_vec()) };
    let whole = messages[wanted..].to_vec();
    match outputs {
        // The pair goes in whole; whether that is too much is found out by rendering.
        ToolOutputs::Whole => (wanted, whole),
        ToolOutputs::Cleared => {
            let (cleared, left_out) = cleared(whole, room, weigh);
            if cleared.iter().map(|message| weigh_message(message, weigh)).sum::<u32>() <= room {
                edits.push(format!("{left_out} tokens in the middle of tool results of the tail were left out"));
                return (wanted, cleared);
            }
            edits.push("the last call and its results are too long to be kept beside the checkpoint".into());
            (chosen, messages[chosen..].to_vec())
        }
    }
}

fn weigh_message(message: &Message, weigh: &dyn Fn(&str) -> u32) -> u32 {
    let calls: u32 = message.tool_calls.iter().map(|call| weigh(&call.name) + weigh(&call.arguments) + FRAME).sum();
    weigh(&message.content) + message.reasoning.as_deref().map_or(0, weigh) + calls + FRAME
}

/// Shortens results of tools, the longest first, until all fits or nothing is left to shorten. Also returns how many
/// tokens were left out.
fn cleared(mut messages: Vec<Message>, room: u32, weigh: &dyn Fn(&str) -> u32) -> (Vec<Message>, u32) {
    /// A result is not shortened below this.
    const LEAST_CHARS: usize = 160;
    let mut left_out = 0;
    let mut shortened = vec![false; messages.len()];
    loop {
        let total: u32 = messages.iter().map(|message| weigh_message(message, weigh)).sum();
        if total <= room {
            return (messages, left_out);
        }
        let longest = (0..messages.len())
            .filter(|at| messages[*at].role == Role::Tool && !shortened[*at])
            .max_by_key(|at| messages[*at].content.len());
        let Some(longest) = longest else { return (messages, left_out) };
        shortened[longest] = true;
        let content = &messages[longest].content;
        let before = weigh(content);
        let fair = before.saturating_sub(total - room) as usize;
        let chars = content.chars().count();
        let keep = (chars * fair / before.max(1) as usize).saturating_sub(LEAST_CHARS / 2).max(LEAST_CHARS);
        if keep >= chars {
            continue;
        }
        let head: String = content.chars().take(keep / 2).collect();
        let tail: String = content.chars().skip(chars - keep / 2).collect();
        let gone = before.saturating_sub(weigh(&head) + weigh(&tail));
        messages[longest].content = format!("{head}\n[{gone} tokens left out]\n{tail}");
        left_out += gone;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::CompactionId;
    use plimsoll_models::chat::ToolCall;
    use std::sync::Arc;

    const AMPLE: Room = Room { kept: 10_000, tail: 10_000 };

    fn weigh(text: &str) -> u32 {
        text.len() as u32
    }

    fn history(messages: Vec<Message>, form: Option<EffectiveForm>) -> History {
        let head = messages.iter().take_while(|message| message.role == Role::System).count();
        let form_messages = form.as_ref().map_or(0, |form| form.messages().len());
        History {
            spoken: vec![None; messages.len()],
            noticed: Vec::new(),
            head,
            form: form.map(Arc::new),
            form_messages,
            replaced_turns: 0,
            edits: Vec::new(),
            messages,
        }
    }

    fn talk() -> Vec<Message> {
        let call = ToolCall { id: "1".into(), name: "read".into(), arguments: "{}".into() };
        vec![
            Message::text(Role::System, "head"),
            Message::text(Role::User, "first"),
            Message::text(Role::Assistant, "one"),
            Message::text(Role::User, "second"),
            Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "look") },
            Message::text(Role::Tool, "result ".repeat(100)),
            Message::text(Role::Assistant, "seen"),
        ]
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint { id: CompactionId::random(), text: "so far".into() }
    }

    fn built(history: &History, room: Room, outputs: ToolOutputs) -> Built {
        build(history, history.messages.len(), checkpoint(), room, outputs, &weigh)
    }

    #[test]
    fn the_tail_begins_with_an_assistant_turn_and_what_it_holds_is_not_kept_twice() {
        let history = history(talk(), None);
        let Built { form, edits } = built(&history, AMPLE, ToolOutputs::Whole);
        assert_eq!(form.tail, history.messages[2..]);
        assert_eq!(form.first_request.unwrap().content, "first");
        assert_eq!((form.kept, edits), (vec![], vec![]));
        let short = built(&history, Room { tail: 760, ..AMPLE }, ToolOutputs::Whole).form;
        assert_eq!(short.tail, history.messages[4..]);
        assert_eq!(short.kept, [history.messages[3].clone()]);
    }

    #[test]
    fn the_last_call_and_its_result_stay_and_are_shortened_where_they_must() {
        let history = history(talk(), None);
        let room = Room { tail: 400, kept: 5 };
        let whole = built(&history, room, ToolOutputs::Whole).form;
        assert_eq!(whole.tail, history.messages[4..]);
        let Built { form, edits } = built(&history, room, ToolOutputs::Cleared);
        assert_eq!(form.tail.len(), 3);
        assert!(form.tail[1].content.contains("tokens left out]"), "{}", form.tail[1].content);
        assert!(form.tail.iter().map(|message| weigh_message(message, &weigh)).sum::<u32>() <= 400);
        assert_eq!(edits.len(), 2, "the result and the user's message: {edits:?}");
        let none = built(&history, Room { tail: 20, kept: 5 }, ToolOutputs::Cleared);
        assert_eq!(none.form.tail, history.messages[6..]);
    }

    #[test]
    fn an_earlier_form_hands_on_its_first_request_and_kept_messages_and_no_checkpoint() {
        let earlier = EffectiveForm {
            first_request: Some(Message::text(Role::User, "first")),
            kept: vec![Message::text(Role::User, "kept before")],
            checkpoint: checkpoint(),
            tail: vec![Message::text(Role::Assistant, "tail before")],
        };
        let mut messages = vec![Message::text(Role::System, "head")];
        messages.extend(earlier.messages());
        messages.push(Message::text(Role::User, "later"));
        messages.push(Message::text(Role::Assistant, "answer"));
        let history = history(messages, Some(earlier));
        let form = built(&history, Room { tail: 20, ..AMPLE }, ToolOutputs::Whole).form;
        assert_eq!(form.first_request.unwrap().content, "first");
        assert_eq!(form.kept.iter().map(|m| m.content.as_str()).collect::<Vec<_>>(), ["kept before", "later"]);
        assert_eq!(form.tail.iter().map(|m| m.content.as_str()).collect::<Vec<_>>(), ["answer"]);
        assert_eq!(form.checkpoint.text, "so far");
    }
}
