//! The policy of one step: decodes first, prefill chunks in what is left.
//!
//! It sees counts and returns counts; it holds no sequence and knows no page. Chunks are sized by measurement: a step
//! that both decodes and prefills is kept below the stall limit, a step that only prefills below the longer step limit.
//! Between tenants the first chunk of a step goes round; within a tenant the oldest prompt comes first.
//!
//! The idea of chunked prefill is Sarathi-Serve's (Agrawal et al. 2024).

use std::time::Duration;

use super::request::TenantId;

/// Rows of a chunk before anything was measured, and the least of a step that only prefills: one page, enough to be
/// worth a pass over the weights.
const FIRST_CHUNK: usize = 32;
/// The least rows of a chunk beside decodes, whatever was measured: prompts make progress on any hardware.
const LEAST_CHUNK: usize = 8;
/// Steps with fewer prefill rows say more about the cost of a pass over the weights than about the cost of a row.
const LEAST_SAMPLE: usize = 8;
/// Part of a limit that is planned for; the rest absorbs noise.
const PLANNED: f64 = 0.8;
/// How fast measured costs follow an increase and a decrease, per step. Costs rise fast (a stall is felt at once) and
/// fall slowly (one quick step proves little).
const RISE: f64 = 0.5;
const FALL: f64 = 0.1;

/// A request that still reads its prompt, in order of arrival.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefilling {
    /// Where the caller finds it.
    pub request: usize,
    pub tenant: TenantId,
    pub rows_left: usize,
}

/// Rows of one prompt in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub request: usize,
    pub rows: usize,
}

#[derive(Debug)]
pub(super) struct Scheduler {
    step_rows: usize,
    /// Seconds that a step may take with decodes in it, and without.
    stall_limit: f64,
    step_limit: f64,
    /// Seconds of a step that only decodes: what any step costs before its first prefill row.
    decode: Option<f64>,
    /// Seconds per prefill row.
    row: Option<f64>,
    /// The tenant whose prompt came first in the last step with prefill.
    last_turn: Option<TenantId>,
}

fn follow(estimate: &mut Option<f64>, measured: f64) {
    let old = estimate.unwrap_or(measured);
    let pace = if measured > old { RISE } else { FALL };
    *estimate = Some(old + (measured - old) * pace);
}

impl Scheduler {
    pub fn new(step_rows: usize, stall_limit: Duration, step_limit: Duration) -> Self {
        let (stall_limit, step_limit) = (stall_limit.as_secs_f64(), step_limit.as_secs_f64());
        Self { step_rows, stall_limit, step_limit, decode: None, row: None, last_turn: None }
    }

    /// The most rows of a step.
    pub fn step_rows(&self) -> usize {
        self.step_rows
    }

    /// Rows that prefill may have in a step with so many decodes.
    fn prefill_rows(&self, decodes: usize) -> usize {
        let room = self.step_rows.saturating_sub(decodes);
        let (limit, least) =
            if decodes == 0 { (self.step_limit, FIRST_CHUNK) } else { (self.stall_limit, LEAST_CHUNK) };
        let Some(row) = self.row else { return room.min(FIRST_CHUNK) };
        let time = limit * PLANNED - self.decode.unwrap_or(0.0);
        let rows = (time / row.max(1e-9)).max(0.0) as usize;
        room.min(rows.max(least))
    }

    /// The prefill chunks of the next step, beside `decodes` decodes.
    pub fn plan(&mut self, decodes: usize, prefilling: &[Prefilling]) -> Vec<Chunk> {
        let mut room = self.prefill_rows(decodes);
        let mut order = prefilling.to_vec();
        // Tenants after the last one served come first; the sort is stable, so arrival decides within a tenant.
        order.sort_by_key(|p| (self.last_turn.is_some_and(|last| p.tenant <= last), p.tenant));
        let mut chunks = Vec::new();
        for prompt in order {
            let rows = prompt.rows_left.min(room);
            if rows == 0 {
                break;
            }
            if chunks.is_empty() {
                self.last_turn = Some(prompt.tenant);
            }
            chunks.push(Chunk { request: prompt.request, rows });
            room -= rows;
        }
        chunks
    }

    /// A step with so many prefill rows took so long.
    pub fn observe(&mut self, prefill_rows: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prefill_rows == 0 {
            follow(&mut self.decode, took);
        } else if prefill_rows >= LEAST_SAMPLE {
            let rows = (took - self.decode.unwrap_or(0.0)).max(0.0);
            follow(&mut self.row, rows / prefill_rows as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(request: usize, tenant: u64, rows_left: usize) -> Prefilling {
        Prefilling { request, tenant: TenantId(tenant), rows_left }
    }

    fn rows(chunks: &[Chunk]) -> usize {
        chunks.iter().map(|c| c.rows).sum()
    }

    fn scheduler(step_rows: usize) -> Scheduler {
        Scheduler::new(step_rows, Duration::from_millis(80), Duration::from_millis(500))
    }

    #[test]
    fn prompts_alone_fill_the_step_in_order_of_arrival() {
        let mut scheduler = scheduler(100);
        scheduler.observe(32, Duration::from_millis(1));
        let chunks = scheduler.plan(0, &[prompt(0, 0, 70), prompt(1, 0, 70), prompt(2, 0, 70)]);
        assert_eq!(chunks, [Chunk { request: 0, rows: 70 }, Chunk { request: 1, rows: 30 }]);
    }

    #[test]
    fn tenants_take_turns_at_the_first_chunk() {
        let mut scheduler = scheduler(10);
        let prompts = [prompt(0, 3, 500), prompt(1, 3, 500), prompt(2, 1, 500), prompt(3, 2, 500)];
        let firsts: Vec<usize> = (0..6).map(|_| scheduler.plan(0, &prompts)[0].request).collect();
        assert_eq!(firsts, [2, 3, 0, 2, 3, 0]);
    }

    /// A machine on which a row costs 2 ms and a pass over the weights 20 ms.
    fn cost(rows: usize) -> Duration {
        Duration::from_millis(20 + 2 * rows as u64)
    }

    /// Rows of 50 steps over one endless prompt beside `decodes` decodes.
    fn run(scheduler: &mut Scheduler, decodes: usize) -> Vec<usize> {
        let step = |_| {
            let planned = rows(&scheduler.plan(decodes, &[prompt(0, 0, 100_000)]));
            scheduler.observe(planned, cost(planned));
            planned
        };
        (0..50).map(step).collect()
    }

    #[test]
    fn chunks_settle_below_the_limits_and_use_most_of_them() {
        let mut scheduler = scheduler(512);
        scheduler.observe(0, cost(0));
        for (decodes, limit) in [(0, 500), (4, 80), (0, 500)] {
            let planned = run(&mut scheduler, decodes);
            let most = planned.iter().map(|rows| cost(*rows)).max().unwrap();
            assert!(most <= Duration::from_millis(limit), "{most:?} of {limit} ms");
            let last = cost(planned[49]);
            assert!(last >= Duration::from_millis(limit * 7 / 10), "steps of {last:?} waste the limit of {limit} ms");
        }
    }

    #[test]
    fn a_prompt_of_one_row_says_nothing_about_the_cost_of_a_chunk() {
        let mut scheduler = scheduler(512);
        scheduler.observe(0, cost(0));
        let settled = *run(&mut scheduler, 4).last().unwrap();
        for _ in 0..20 {
            scheduler.observe(1, cost(1));
        }
        assert_eq!(rows(&scheduler.plan(4, &[prompt(0, 0, 100_000)])), settled);
    }

    #[test]
    fn a_prompt_makes_progress_although_decodes_alone_are_too_slow() {
        let mut scheduler = scheduler(512);
        scheduler.observe(0, Duration::from_millis(300));
        scheduler.observe(10, Duration::from_secs(9));
        assert_eq!(rows(&scheduler.plan(1, &[prompt(0, 0, 1000)])), LEAST_CHUNK);
        assert_eq!(rows(&scheduler.plan(0, &[prompt(0, 0, 1000)])), FIRST_CHUNK);
    }
}
