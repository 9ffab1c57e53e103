//! Which turns a compaction replaces, and what the engine has of them.
//!
//! Owns the choice: the newest balanced cut whose summary can be paid for. Never generates.

use std::sync::Arc;

use super::balanced_cuts::balanced_cuts;
use super::compactor::{CompactionError, CompactionTask, Compactor};
use super::instruction::INSTRUCTION;
use crate::model_text::{Ending, TextError};
use crate::sessions::History;

/// The turns that are replaced, as the engine has them.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    /// Turns in front of the cut.
    pub(super) turns: usize,
    /// The conversation up to the cut, without the instruction.
    pub(super) base: Vec<u32>,
    /// Whether its last turn is closed in `base`.
    pub(super) closed: bool,
    /// How many of its first tokens lie in the cache, if the session is live there.
    pub(super) live: Option<usize>,
    /// Whether nothing newer could be paid for.
    pub(super) folded: bool,
}

impl Compactor {
    /// Chooses the turns: the newest balanced cut that a summary can be paid for.
    pub(super) async fn settle(
        &self,
        task: &CompactionTask,
        history: &Arc<History>,
    ) -> Result<Settled, CompactionError> {
        let turns = &task.messages[history.head..];
        let cuts = balanced_cuts(turns, history.replaced_turns);
        let Some(newest) = cuts.first().copied() else { return Err(CompactionError::NothingToReplace) };
        let live = task.session.live();
        let instruction = task.instructions.as_deref().unwrap_or(INSTRUCTION).to_owned();
        let instruction = self.aside(move |text| text.encode_part(&instruction).len()).await;
        let framed = |base: usize, closed: bool| {
            let frame = self.text.turn_frame().map_or(64, |frame| {
                let end = if closed { 0 } else { frame.reply_end.len() };
                end + frame.user_begin.len() + frame.reply_begin.len()
            });
            base + frame + instruction
        };
        let at_live = |turns: usize| {
            let live = live.as_ref().filter(|live| live.end == task.links[turns - 1].end)?;
            (live.closed || self.text.turn_frame().is_some()).then(|| Settled {
                turns,
                base: live.tokens.to_vec(),
                closed: live.closed,
                live: Some(live.tokens.len()),
                folded: false,
            })
        };
        if let Some(settled) = at_live(newest)
            && self.price(framed(settled.base.len(), settled.closed)).is_ok()
        {
            return Ok(settled);
        }
        // Results that have just arrived, or a conversation that is not in the cache.
        let rendered = async |turns: usize| -> Result<Settled, TextError> {
            let base = self.render(task, history, history.place_of_turn(turns), Ending::History).await?;
            let live =
                live.as_ref().map(|live| &live.tokens).filter(|live| base.starts_with(live)).map(|live| live.len());
            Ok(Settled { turns, base, closed: true, live, folded: false })
        };
        let settled = rendered(newest).await?;
        if self.price(framed(settled.base.len(), true)).is_ok() {
            return Ok(settled);
        }
        // The longest part in front of it that leaves room for a whole summary, or else for any.
        for least in [self.budget.summary, self.budget.summary_min] {
            let mut best: Option<Settled> = None;
            let (mut low, mut high) = (1, cuts.len());
            while low < high {
                let middle = low + (high - low) / 2;
                let candidate = match at_live(cuts[middle]) {
                    Some(settled) => settled,
                    None => rendered(cuts[middle]).await?,
                };
                if self.price(framed(candidate.base.len(), candidate.closed)).is_ok_and(|cap| cap >= least) {
                    best = Some(Settled { folded: true, ..candidate });
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            if let Some(best) = best {
                return Ok(best);
            }
        }
        // Where no part can be paid for, the record of the newest says so.
        Ok(settled)
    }
}
