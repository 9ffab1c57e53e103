//! What would take the place of the turns, and whether it may.
//!
//! Owns the sizes that acceptance asks for. Never persists.

use std::sync::Arc;

use plimsoll_models::chat::{Message, Role};

use super::super::acceptance::{self, Rejection, Written};
use super::super::draft::SharedDraft;
use super::super::facts::Facts;
use super::super::form_builder::{self, Built, Room, ToolOutputs};
use super::{Transaction, tokens};
use crate::budget::{Ratio, Tokens};
use crate::model_text::Ending;
use crate::sessions::{Checkpoint, EffectiveForm, FailureReason, History};

/// The part of the way from the head to the compaction threshold that a new prompt may take.
const NEW_PROMPT_SHARE: Ratio = Ratio::new(4, 1);
/// The part of the window that kept messages of the user may take.
const KEPT_SHARE: Ratio = Ratio::new(5, 2);

/// A summary with its place, measured.
pub(super) struct Accepted {
    pub(super) form: EffectiveForm,
    pub(super) edits: Vec<String>,
    pub(super) fallback_sections: Vec<String>,
}

impl Transaction<'_> {
    /// Judges a draft and builds what it would put in the place of the turns.
    pub(super) async fn accept(
        &mut self,
        draft: &SharedDraft,
        cap: Tokens,
        outputs: ToolOutputs,
    ) -> Result<Accepted, Rejection> {
        let draft = draft.lock().clone();
        let custom = self.task.instructions.is_some();
        let fallback = self.compactor.fallback;
        let spoken = spoken_by_both_sides(&self.history, self.cut());
        let evidence = if custom { draft.free.clone() } else { format!("{:?}", draft.sections) };
        let written = self
            .compactor
            .aside(move |text| -> Result<Written, Rejection> {
                let facts = Facts::of(&spoken);
                let fits = |summary: &str| text.encode_part(summary).len() <= cap.0 as usize;
                if custom {
                    acceptance::free(&draft, &facts, fits)
                } else {
                    acceptance::in_sections(&draft, &facts, fallback, fits)
                }
            })
            .await;
        let written = match written {
            Ok(written) => written,
            Err(rejection) => {
                self.record.summary = Some(evidence);
                return Err(rejection);
            }
        };
        self.record.summary = Some(written.text.clone());
        let checkpoint = Checkpoint { id: self.record.id.clone(), text: written.text.clone() };

        let budget = self.compactor.budget.clone();
        let head = self.head_tokens().await?;
        let allowed = head.saturating_add(NEW_PROMPT_SHARE.of(budget.compaction.saturating_sub(head)));
        let replaced = tokens(self.settled.base.len()).saturating_sub(head);
        // In a window that is hardly filled the shares of the window would keep everything.
        let kept = KEPT_SHARE.of(budget.window).min(Tokens(replaced.0 / 4));
        let (history, cut) = (self.history.clone(), self.cut());
        let later = self.record.tokens_before.saturating_sub(tokens(self.settled.base.len()));
        let for_tail = allowed.saturating_sub(head).saturating_sub(later).min(Tokens(replaced.0 / 2));
        let (summary, built) = {
            let (history, checkpoint, text) = (history.clone(), checkpoint.clone(), written.text.clone());
            self.compactor
                .aside(move |model| {
                    let weigh = |text: &str| model.encode_part(text).len() as u32;
                    let summary = weigh(&text);
                    // The first request, the kept messages and the checkpoint go before the tail.
                    let bare = form_builder::build(
                        &history,
                        cut,
                        checkpoint.clone(),
                        Room { kept: kept.0, tail: 0 },
                        ToolOutputs::Cleared,
                        &weigh,
                    );
                    let user_turn = weigh(&bare.form.messages()[0].content);
                    let left = for_tail.0.saturating_sub(user_turn);
                    let room = Room { kept: kept.0, tail: budget.retain.0.min(left) };
                    (summary, form_builder::build(&history, cut, checkpoint, room, outputs, &weigh))
                })
                .await
        };
        let Built { form, edits } = built;
        if Tokens(summary) >= replaced {
            let message = format!("a summary of {summary} tokens is not smaller than the {replaced} it replaces");
            return Err(Rejection::new(FailureReason::NotSmaller, message));
        }
        let new = self.new_history(&form);
        let places = new.head + new.form_messages;
        let rendered = self.compactor.render(&self.task, &Arc::new(new), places, Ending::History).await;
        let length = rendered.map_err(|error| Rejection::new(FailureReason::Engine, error.to_string()))?.len();
        if tokens(length) > allowed {
            let message = format!("the new prompt would have {length} tokens, at most {allowed} are allowed");
            return Err(Rejection::new(FailureReason::TooLarge, message));
        }
        if length >= self.settled.base.len() {
            let message =
                format!("the new prompt of {length} tokens is not smaller than the {} before", self.settled.base.len());
            return Err(Rejection::new(FailureReason::NotSmaller, message));
        }
        Ok(Accepted { form, edits, fallback_sections: written.fallback_sections })
    }

    /// Tokens in front of the first turn.
    async fn head_tokens(&self) -> Result<Tokens, Rejection> {
        // Two conversations that part in their first turn have the head in common.
        let with = |word: &str| {
            let mut history = (*self.history).clone();
            history.messages.truncate(history.head);
            history.messages.push(Message::text(Role::User, word));
            history.spoken = vec![None; history.messages.len()];
            Arc::new(history)
        };
        let mut rendered = Vec::new();
        for word in ["a", "b"] {
            let history = with(word);
            let tokens = self.compactor.render(&self.task, &history, history.messages.len(), Ending::History).await;
            rendered.push(tokens.map_err(|error| Rejection::new(FailureReason::Engine, error.to_string()))?);
        }
        Ok(tokens(rendered[0].iter().zip(&rendered[1]).take_while(|(one, other)| one == other).count()))
    }

    /// The history with the form in the place of the turns.
    fn new_history(&self, form: &EffectiveForm) -> History {
        let old = &self.history;
        let of_form = form.messages();
        let mut messages = old.messages[..old.head].to_vec();
        let mut spoken = vec![None; old.head + of_form.len()];
        let form_messages = of_form.len();
        messages.extend(of_form);
        messages.extend_from_slice(&old.messages[self.cut()..]);
        spoken.extend_from_slice(&old.spoken[self.cut()..]);
        History {
            messages,
            spoken,
            noticed: Vec::new(),
            head: old.head,
            form: Some(Arc::new(form.clone())),
            form_messages,
            replaced_turns: self.settled.turns,
            edits: Vec::new(),
        }
    }
}

/// Who said what, for the facts: an earlier form as the messages it keeps, its checkpoint as something that was said.
fn spoken_by_both_sides(history: &History, cut: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut from = history.head;
    if let Some(form) = &history.form {
        messages.extend(form.first_request.clone());
        messages.push(Message::text(Role::Assistant, form.checkpoint.text.clone()));
        messages.extend(form.kept.iter().cloned());
        from += 1;
    }
    messages.extend((from..cut).map(|place| history.without_notice(place)));
    messages
}
