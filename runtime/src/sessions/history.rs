//! A conversation as it is rendered: the system head, the form that stands for its compacted part, and the rest.
//!
//! Types only; [`super::session`] finds which form applies.

use std::sync::Arc;

use plimsoll_models::chat::Message;

use super::effective_form::EffectiveForm;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct History {
    /// All messages, in order.
    pub messages: Vec<Message>,
    /// Tokens of assistant turns that the model generated itself, by place in `messages`.
    pub spoken: Vec<Option<Arc<[u32]>>>,
    /// Where notices stand: the place in `messages`, and the bytes of the message's own text in front of the notice.
    pub noticed: Vec<(usize, usize)>,
    /// Leading system messages.
    pub head: usize,
    /// What stands for the compacted part.
    pub form: Option<Arc<EffectiveForm>>,
    /// Messages of the form; they follow the head.
    pub form_messages: usize,
    /// Turns of the client's conversation that the form stands for.
    pub replaced_turns: usize,
    /// What the client should know about how its history was read, a sentence each.
    pub edits: Vec<String>,
}

impl History {
    /// The place in `messages` of the client's turn number `turn`; it must not be one that the form stands for.
    pub fn place_of_turn(&self, turn: usize) -> usize {
        debug_assert!(turn >= self.replaced_turns);
        self.head + self.form_messages + turn - self.replaced_turns
    }

    /// A message without the notice that was appended to it.
    pub fn without_notice(&self, place: usize) -> Message {
        let mut message = self.messages[place].clone();
        if let Some((_, own)) = self.noticed.iter().find(|(noticed, _)| *noticed == place) {
            message.content.truncate(*own);
        }
        message
    }
}
