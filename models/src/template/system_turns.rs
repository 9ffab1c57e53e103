//! System messages where templates accept them: one at the beginning.
//!
//! Clients send several system or developer messages, and some send more in the middle of a conversation. Templates of
//! many families raise on the second. Leading ones become one block; later ones become user turns that say what they
//! are, at their place, so that everything before them renders as before and a cached prefix stays valid.

use crate::chat::{Message, Role};

/// What a later system message begins with, on a line of its own.
pub const LATE_SYSTEM_MARK: &str = "[system message]";

/// The messages with leading system messages merged and later ones as marked user turns.
#[must_use]
pub fn normalise_for_template(messages: &[Message]) -> Vec<Message> {
    let leading = messages.iter().take_while(|message| message.role == Role::System).count();
    let (head, rest) = messages.split_at(leading);
    let mut normal = Vec::with_capacity(rest.len() + 1);
    if !head.is_empty() {
        let texts: Vec<&str> = head.iter().map(|message| message.content.as_str()).filter(|t| !t.is_empty()).collect();
        normal.push(Message::text(Role::System, texts.join("\n\n")));
    }
    normal.extend(rest.iter().map(|message| match message.role {
        Role::System => Message::text(Role::User, format!("{LATE_SYSTEM_MARK}\n{}", message.content)),
        _ => message.clone(),
    }));
    normal
}

/// Consecutive user turns as one, for templates that demand that user and assistant alternate.
#[must_use]
pub fn merge_user_turns(messages: Vec<Message>) -> Vec<Message> {
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match merged.last_mut() {
            Some(last) if last.role == Role::User && message.role == Role::User => {
                last.content.push_str("\n\n");
                last.content.push_str(&message.content);
            }
            _ => merged.push(message),
        }
    }
    merged
}

/// The leading system message in front of the first user turn, for templates that refuse the role.
#[must_use]
pub fn system_into_first_user(mut messages: Vec<Message>) -> Vec<Message> {
    if messages.first().is_none_or(|message| message.role != Role::System) {
        return messages;
    }
    let system = messages.remove(0);
    match messages.first_mut() {
        Some(first) if first.role == Role::User => first.content = format!("{}\n\n{}", system.content, first.content),
        _ => messages.insert(0, Message::text(Role::User, system.content)),
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(turns: &[(Role, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, text)| Message::text(*role, *text)).collect()
    }

    #[test]
    fn leading_system_messages_merge_and_later_ones_become_marked_user_turns() {
        use Role::{Assistant, System, User};
        let messages =
            talk(&[(System, "a"), (System, ""), (System, "b"), (User, "hi"), (Assistant, "yo"), (System, "c")]);
        let expected = talk(&[(System, "a\n\nb"), (User, "hi"), (Assistant, "yo"), (User, "[system message]\nc")]);
        assert_eq!(normalise_for_template(&messages), expected);
    }

    #[test]
    fn user_turns_merge_and_a_system_message_moves_where_a_template_wants_it() {
        use Role::{Assistant, System, User};
        let messages = talk(&[(User, "a"), (User, "b"), (Assistant, "c"), (User, "d"), (User, "e"), (User, "f")]);
        assert_eq!(merge_user_turns(messages), talk(&[(User, "a\n\nb"), (Assistant, "c"), (User, "d\n\ne\n\nf")]));
        let moved = system_into_first_user(talk(&[(System, "s"), (User, "a")]));
        assert_eq!(moved, talk(&[(User, "s\n\na")]));
        assert_eq!(system_into_first_user(talk(&[(System, "s"), (Assistant, "a")]))[0], Message::text(User, "s"));
        assert_eq!(system_into_first_user(talk(&[(User, "a")])), talk(&[(User, "a")]));
    }

    #[test]
    fn a_longer_conversation_keeps_the_prefix_of_a_shorter_one() {
        use Role::{Assistant, System, User};
        let messages = talk(&[(System, "a"), (User, "b"), (System, "c"), (Assistant, "d"), (System, "e"), (User, "f")]);
        let whole = normalise_for_template(&messages);
        for end in 1..=messages.len() {
            assert_eq!(normalise_for_template(&messages[..end]), whole[..end]);
        }
        assert_eq!(normalise_for_template(&[]), []);
        assert_eq!(normalise_for_template(&messages[1..2]), messages[1..2]);
    }
}
