//! The engine thread: commands in, step outputs out.
//!
//! One thread owns the executor and all caches. Everything else holds an [`EngineHandle`]. A request is admitted for
//! its full lifetime, produces events, and is closed by exactly one [`Terminal`].
//!
//! - `request`: what goes in and what comes out. `config`: limits. `status`: what the engine says about itself.
//! - `handle`: transport: commands, handles, the receiving end of a request.
//! - `engine_thread`: the loop.
//! - `waiting_queue`, `admission`: who is next, and what a request needs over its whole life.
//! - `continuous_batch`, `sequence`: the requests that run, and their bookkeeping.
//! - `scheduler`: the policy of one step.
//! - `ledger`: one account per request, one terminal.

mod admission;
#[cfg(test)]
mod checking_executor;
mod config;
mod continuous_batch;
mod engine_thread;
mod handle;
mod ledger;
mod request;
mod scheduler;
mod sequence;
mod status;
#[cfg(test)]
mod tests;
mod waiting_queue;

pub use config::EngineConfig;
pub use handle::{DrainReport, Engine, EngineHandle, Generation};
pub use request::{
    CachePolicy, ChoiceIndex, Event, FinishReason, GenerationRequest, Reject, RequestId, SamplingParams, TenantId,
    Terminal, TokenLogprob, TokenOut, Usage,
};
pub use status::{EngineState, EngineStatus, EngineTotals};
