//! The engine thread: commands in, step outputs out.
//!
//! One thread owns the executor and all caches. Everything else holds an engine handle. A request is admitted for
//! its full lifetime, produces events, and is closed by exactly one [`Terminal`].

mod request;

pub use request::{
    CachePolicy, ChoiceIndex, Event, FinishReason, GenerationRequest, Reject, RequestId, SamplingParams, TenantId,
    Terminal, TokenLogprob, TokenOut, Usage,
};
