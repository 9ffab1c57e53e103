//! The numbers as they are published, and the window drawn as a bar.
//!
//! A [`Meter`] is the `context` object of an answer. It is computed from a budget and counts and holds no state.

use serde::{Deserialize, Serialize};

use super::{Budget, Counted, DEFAULT_EMERGENCY, Level, Tokens, Zone};

/// What the engine counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of the rendered prompt.
    pub prompt: Tokens,
    /// Of these, tokens that were not prefilled.
    pub cached: Tokens,
    /// Tokens of the reply so far.
    pub completion: Tokens,
}

/// Tokens set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// For one reply.
    pub response: Tokens,
    /// For a summary.
    pub summary: Tokens,
    /// For nothing.
    pub safety: Tokens,
}

/// Where the zones begin, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Thresholds {
    pub economy: Tokens,
    pub checkpoint: Tokens,
    pub compaction: Tokens,
}

/// What the last compaction did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCompaction {
    /// Its record (`cmp_...`).
    pub id: String,
    /// Tokens of the session before.
    pub tokens_before: Tokens,
    /// Tokens after.
    pub tokens_after: Tokens,
    /// Tokens of the summary.
    pub summary_tokens: Tokens,
    /// Tokens that had to be prefilled for it.
    pub prefilled_tokens: Tokens,
    /// How long the session stood still, in milliseconds.
    pub pause_ms: u64,
    /// Of this, making the summary.
    pub summary_ms: u64,
    /// Of this, reading the new prompt.
    pub reprefill_ms: u64,
    /// Whether the summary was made ahead of time.
    pub prepared: bool,
    /// Sections of the summary that hold extracted facts, because the model wrote no usable line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback_sections: Vec<String>,
}

/// The `context` object of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// Whose window it is.
    pub session: String,
    /// Tokens of the window.
    pub window: Tokens,
    /// Tokens of the reduced window: what percentages refer to.
    pub effective: Tokens,
    /// Tokens of the rendered prompt.
    pub prompt: Tokens,
    /// Of these, tokens that were not prefilled.
    pub cached: Tokens,
    /// Tokens of the reply so far.
    pub completion: Tokens,
    /// Tokens set aside.
    pub reserved: Reserved,
    /// `effective - prompt - completion`, at least 0.
    pub remaining: Tokens,
    /// The highest threshold that prompt and reply together have reached.
    pub zone: Zone,
    /// How full the reduced window is.
    pub level: Level,
    /// Where the zones begin.
    pub thresholds: Thresholds,
    /// Compactions of the session so far.
    pub compactions: u32,
    /// The numbers of the last one.
    pub last_compaction: Option<LastCompaction>,
    /// The cap that was granted in place of the requested one.
    pub clamped_max_tokens: Option<u32>,
    /// What the server changed in the request's content, a sentence each.
    pub edits: Vec<String>,
}

impl Meter {
    /// The meter of a session without compactions, clamp or edits; those fields are set by who knows them.
    #[must_use]
    pub fn new(session: impl Into<String>, budget: &Budget, counts: Counts) -> Self {
        let used = counts.prompt.saturating_add(counts.completion);
        Self {
            session: session.into(),
            window: budget.window,
            effective: budget.effective,
            prompt: counts.prompt,
            cached: counts.cached.min(counts.prompt),
            completion: counts.completion,
            reserved: Reserved { response: budget.response, summary: budget.summary, safety: budget.safety },
            remaining: budget.effective.saturating_sub(used),
            zone: budget.zone(used),
            level: budget.level(used, DEFAULT_EMERGENCY, Counted::Measured),
            thresholds: Thresholds {
                economy: budget.economy,
                checkpoint: budget.checkpoint,
                compaction: budget.compaction,
            },
            compactions: 0,
            last_compaction: None,
            clamped_max_tokens: None,
            edits: Vec::new(),
        }
    }

    /// Tokens of prompt and reply.
    #[must_use]
    pub fn used(&self) -> Tokens {
        self.prompt.saturating_add(self.completion)
    }

    /// The window as a bar of `width` characters (at least 20) with its load lines below and a legend, four lines in all.
    ///
    /// `█` is cached, `▓` in use, `·` free, `r` the room of a reply that begins just before the compaction, `s` the
    /// summary's, `x` the safety. The lines are `E`conomy, `K` for checkpoint, and `C`ompaction.
    #[must_use]
    pub fn bar(&self, width: usize) -> String {
        const NARROWEST: usize = 20;
        let width = width.max(NARROWEST);
        let window = u64::from(self.window.0.max(1));
        let Thresholds { economy, checkpoint, compaction } = self.thresholds;
        let Reserved { response, summary, safety } = self.reserved;
        let used = self.used();
        let reply_end = compaction.saturating_add(response).min(self.effective);
        let summary_end = self.effective.saturating_add(summary);
        let cell = |i: usize| {
            // A cell shows its first token.
            let at = Tokens((i as u64 * window / width as u64) as u32);
            match at {
                at if at < self.cached.min(used) => '█',
                at if at < used => '▓',
                at if at >= summary_end => 'x',
                at if at >= self.effective => 's',
                at if compaction <= at && at < reply_end => 'r',
                _ => '·',
            }
        };
        let bar: String = (0..width).map(cell).collect();
        let mut lines = vec![' '; width];
        for (threshold, mark) in [(economy, 'E'), (checkpoint, 'K'), (compaction, 'C')] {
            let at = u64::from(threshold.0) * width as u64 / window;
            if let Some(place) = lines.get_mut(at as usize) {
                *place = mark;
            }
        }
        let lines: String = lines.into_iter().collect();
        format!(
            "{bar}\n{}\n{used} of {} tokens in use, {} of them cached; {} left · zone {} · level {}\n\
             E economy {economy} · K checkpoint {checkpoint} · C compaction {compaction} · \
             r response {response} · s summary {summary} · x safety {safety}",
            lines.trim_end(),
            self.window,
            self.cached,
            self.remaining,
            self.zone.name(),
            self.level.name(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::budget::BudgetConfig;

    fn budget(window: u32) -> Budget {
        Budget::resolve(Some(Tokens(window)), &BudgetConfig::default()).expect("valid")
    }

    fn counts(prompt: u32, cached: u32, completion: u32) -> Counts {
        Counts { prompt: Tokens(prompt), cached: Tokens(cached), completion: Tokens(completion) }
    }

    #[test]
    fn the_meter_has_the_fields_and_numbers_of_the_wire_format() {
        let mut meter = Meter::new("ses_1", &budget(8192), counts(3010, 2980, 64));
        meter.compactions = 1;
        meter.last_compaction = Some(LastCompaction {
            id: "cmp_1".into(),
            tokens_before: Tokens(5790),
            tokens_after: Tokens(910),
            summary_tokens: Tokens(240),
            prefilled_tokens: Tokens(181),
            pause_ms: 900,
            summary_ms: 700,
            reprefill_ms: 150,
            prepared: false,
            fallback_sections: Vec::new(),
        });
        let want = json!({"session": "ses_1", "window": 8192, "effective": 7424, "prompt": 3010, "cached": 2980,
            "completion": 64, "reserved": {"response": 1536, "summary": 512, "safety": 256}, "remaining": 4350,
            "zone": "normal", "level": "warning",
            "thresholds": {"economy": 4096, "checkpoint": 5120, "compaction": 5734},
            "compactions": 1, "last_compaction": {"id": "cmp_1", "tokens_before": 5790, "tokens_after": 910,
                "summary_tokens": 240, "prefilled_tokens": 181, "pause_ms": 900, "summary_ms": 700,
                "reprefill_ms": 150, "prepared": false},
            "clamped_max_tokens": null, "edits": []});
        assert_eq!(serde_json::to_value(&meter).expect("json"), want);
        assert_eq!(serde_json::from_value::<Meter>(want).expect("a meter"), meter);
    }

    #[test]
    fn the_bar_shows_what_is_loaded_and_where_the_lines_are() {
        let bar = Meter::new("ses_1", &budget(8192), counts(3010, 2500, 64)).bar(64);
        let want = "\
████████████████████▓▓▓▓▓····················rrrrrrrrrrrr·ssssxx
                                E       K   C
3074 of 8192 tokens in use, 2500 of them cached; 4350 left · zone normal · level warning
E economy 4096 · K checkpoint 5120 · C compaction 5734 · r response 1536 · s summary 512 · x safety 256";
        assert_eq!(bar, want);
    }

    proptest! {
        #[test]
        fn a_bar_can_be_drawn_of_anything(
            window in 2048u32..2_000_000,
            prompt: u32,
            cached: u32,
            completion: u32,
            width in 0usize..300,
        ) {
            let meter = Meter::new("", &budget(window), counts(prompt, cached, completion));
            let bar = meter.bar(width);
            let lines: Vec<&str> = bar.lines().collect();
            prop_assert_eq!(lines.len(), 4);
            prop_assert_eq!(lines[0].chars().count(), width.max(20));
            prop_assert!(lines[1].chars().count() <= width.max(20));
            prop_assert_eq!(lines[0].starts_with(['█', '▓']), meter.used() > Tokens(0));
        }
    }
}
