//! The engine thread: commands in, step outputs out.
//!
//! One thread owns the executor and all caches. Everything else holds an [`EngineHandle`]. A request is admitted for
//! its full lifetime, produces events, and is closed by exactly one [`Terminal`].
//!
//! ```
//! use plimsoll_runtime::engine::{
//!     CachePolicy, Engine, EngineConfig, Event, GenerationRequest, Purpose, RequestId, SamplingParams, TenantId, Terminal,
//! };
//! use plimsoll_runtime::simulated::{IM_END, SimulatedExecutor, SimulatedLimits, SimulationScript, encode};
//!
//! let script = r#"{"model": "m", "dialect": "chatml", "window": 4096, "replies": ["Aye."]}"#;
//! let script = SimulationScript::parse(script).unwrap();
//! let executor = SimulatedExecutor::new(&script, SimulatedLimits::for_window(script.window));
//! let engine = Engine::start(Box::new(executor), EngineConfig::default());
//!
//! let mut generation = engine.submit(GenerationRequest {
//!     id: RequestId(1),
//!     tenant: TenantId(0),
//!     prompt: encode("<|im_start|>user\nReady?<|im_end|>\n<|im_start|>assistant\n"),
//!     reply_cap: 100,
//!     reserve_beyond: 0,
//!     n: 1,
//!     sampling: SamplingParams::default(),
//!     end_tokens: vec![IM_END],
//!     min_tokens: 0,
//!     ignore_end: false,
//!     banned: vec![],
//!     cache: CachePolicy::Default,
//!     purpose: Purpose::Reply,
//!     guide: None,
//! });
//! let mut reply = Vec::new();
//! while let Some(event) = generation.blocking_next() {
//!     match event {
//!         Event::Token { token, .. } => reply.push(token.token),
//!         Event::Done(Terminal::Finished(usage)) => assert_eq!(usage.completion, 4),
//!         _ => {}
//!     }
//! }
//! assert_eq!(reply, encode("Aye."));
//! assert_eq!(engine.status().totals.finished, 1);
//! ```
//!
//! - `request`: what goes in and what comes out. `config`: limits. `status`: what the engine says about itself.
//! - `handle`: transport: commands, handles, the receiving end of a request.
//! - `guide`: how a reply is written together with the model.
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
mod guide;
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
pub use guide::{Guidance, Guide};
pub use handle::{DrainReport, Engine, EngineHandle, Generation};
pub use request::{
    CachePolicy, ChoiceIndex, Event, FinishReason, GenerationRequest, Purpose, Reject, RequestId, RequestIds,
    SamplingParams, TenantId, Terminal, TokenLogprob, TokenOut, Usage,
};
pub use status::{EngineState, EngineStatus, EngineTotals};
