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
