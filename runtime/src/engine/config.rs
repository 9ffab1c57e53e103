//! What may be tuned about the engine.

use std::time::Duration;

/// Limits of the engine beyond those of its executor.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Requests that may wait for admission; one more is rejected as [`super::Reject::QueueFull`].
    pub queue_limit: usize,
    /// How long a running reply may wait for its next token because others' prompts are read. Prefill chunks are sized
    /// so that a step with both stays below this; a step of decodes alone may still take longer on slow hardware.
    pub stall_limit: Duration,
    /// How long a step that only reads prompts may take. It bounds how late a cancellation or another request is
    /// noticed, and how old the heartbeat of a healthy engine can be. Slow hardware may take longer over the least chunk.
    pub step_limit: Duration,
    /// The most rows of one step; the executor's own limit if that is lower.
    pub step_rows: usize,
}

impl Default for EngineConfig {
    /// 64 waiting requests, stalls of 80 ms (a reader of streamed text does not notice them), steps of half a second, as
    /// many rows as the executor takes.
    fn default() -> Self {
        Self {
            queue_limit: 64,
            stall_limit: Duration::from_millis(80),
            step_limit: Duration::from_millis(500),
            step_rows: usize::MAX,
        }
    }
}
