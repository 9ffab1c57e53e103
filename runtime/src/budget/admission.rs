//! What a request is granted, and the price of a summary.
//!
//! A request is admitted for its full lifetime: its prompt, its reply up to the granted cap, and, if that may reach the
//! compaction threshold, the summary instruction and the summary. Then neither the reply nor the compaction that may
//! follow can run out of room. The numbers are computed here; pages are the engine's, texts the server's.

use super::{Budget, Tokens};

/// What an admitted request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Admission {
    /// Cap of the reply, in tokens, at least 1.
    pub granted: u32,
    /// The asked-for cap, where another was granted: the answer must say so.
    pub clamped_from: Option<u32>,
    /// Tokens to set aside beyond prompt and reply: the summary instruction and the summary, where they may be needed.
    pub reserve_beyond: u32,
}

/// A prompt that leaves no room for one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prompt has {prompt} tokens, at most {limit} leave room for a reply")]
pub struct Overflow {
    /// Tokens of the prompt.
    pub prompt: Tokens,
    /// The largest prompt that would be granted one token.
    pub limit: Tokens,
}

/// A compaction that cannot be paid for. Nothing was generated, the history is intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "behind {input} tokens, the instruction included, a capacity of {capacity} has room for a summary of {cap} tokens, expected at least {summary_min}"
)]
pub struct SummaryTooSmall {
    /// Tokens of the live sequence and the instruction.
    pub input: Tokens,
    /// Tokens the window and the engine have.
    pub capacity: Tokens,
    /// Tokens that are left for the summary.
    pub cap: Tokens,
    /// The least that is worth generating.
    pub summary_min: Tokens,
}

impl Budget {
    /// Admits a request or says which prompt would have fitted. `requested` is the client's `max_tokens`, `instruction`
    /// the length of the summary instruction.
    ///
    /// The cap is `min(requested or response, response, window - instruction - summary - safety - prompt - 1)`. A
    /// requested 0 is the caller's to refuse; here it counts as 1 and is reported as clamped.
    ///
    /// # Errors
    /// If less than one token could be granted.
    pub fn admit(&self, prompt: Tokens, requested: Option<u32>, instruction: Tokens) -> Result<Admission, Overflow> {
        let room = self.window.wide() - instruction.wide() - self.summary.wide() - self.safety.wide() - 1;
        let left = room - prompt.wide();
        let blocked = self.blocking.is_some_and(|blocking| prompt >= blocking);
        if left < 1 || blocked {
            let limit = self.blocking.map_or(room - 1, |blocking| (room - 1).min(blocking.wide() - 1));
            return Err(Overflow { prompt, limit: Tokens(u32::try_from(limit).unwrap_or(0)) });
        }
        let wanted = requested.unwrap_or(self.response.0).min(self.response.0).max(1);
        let granted = u32::try_from(left).map_or(wanted, |left| left.min(wanted));
        let reached = prompt.wide() + i64::from(granted);
        let may_compact = self.automatic_compaction.is_on() && reached >= self.compaction.wide();
        Ok(Admission {
            granted,
            clamped_from: requested.filter(|&requested| requested != granted),
            reserve_beyond: if may_compact { instruction.saturating_add(self.summary).0 } else { 0 },
        })
    }

    /// The most a summary may say: `min(summary, backend_max, capacity - input - safety - 1)`, so that
    /// `input + cap + safety < capacity`. `input` is the exact length of the live sequence and the summary instruction,
    /// `capacity` what the engine has; the window bounds it too.
    ///
    /// # Errors
    /// If that is less than `summary_min`.
    pub fn summary_cap(
        &self,
        input: Tokens,
        capacity: Tokens,
        backend_max: Option<Tokens>,
    ) -> Result<Tokens, SummaryTooSmall> {
        let capacity = capacity.min(self.window);
        let room = capacity.saturating_sub(input).saturating_sub(self.safety).saturating_sub(Tokens(1));
        let cap = room.min(self.summary).min(backend_max.unwrap_or(self.summary));
        if cap < self.summary_min {
            return Err(SummaryTooSmall { input, capacity, cap, summary_min: self.summary_min });
        }
        Ok(cap)
    }
}
