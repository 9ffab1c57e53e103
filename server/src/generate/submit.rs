//! From a prepared prompt to a running reply: the budget's verdict, the session, the engine.
//!
//! Owns the order: nothing reaches a session or the engine before the budget has admitted it.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_runtime::budget::Tokens;
use plimsoll_runtime::engine::{CachePolicy, GenerationRequest, Purpose, TenantId};
use plimsoll_runtime::sessions::{LiveCounts, Reading};
use plimsoll_runtime::stop_strings::StopStrings;

use super::choice::ChoicePipeline;
use super::reply::Reply;
use crate::catalog::ServedModel;
use crate::state::ServerState;
use crate::wire::chat_request::ParallelCalls;
use crate::wire::error::ServerError;
use crate::wire::parameters::Parameters;
use plimsoll_runtime::model_text::Splitter;

/// How long a request may wait for the engine's verdict before it counts as under way.
const VERDICT_PATIENCE: Duration = Duration::from_secs(1);

/// Where a DRY match ends when the request does not say: line breaks and the punctuation of lists and dialogue.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// A prompt that is ready to be generated from.
pub struct Prepared<'a> {
    /// Whose it is.
    pub tenant: TenantId,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The request's parameters.
    pub parameters: &'a Parameters,
    /// How it meets the prefix cache.
    pub cache: CachePolicy,
    /// Tokens of a summary's instruction, where one may have to be paid for behind the reply.
    pub instruction: Tokens,
    /// What the server changed in the messages.
    pub edits: Vec<String>,
}

/// The budget's verdict on a prepared prompt.
pub struct Granted {
    request: GenerationRequest,
    /// What the session's meter shows from here on.
    pub reading: Reading,
}

/// Asks the budget. An overflow is logged with its numbers.
pub fn grant(state: &ServerState, served: &ServedModel, prepared: Prepared<'_>) -> Result<Granted, ServerError> {
    let Prepared { tenant, prompt, parameters, cache, instruction, edits } = prepared;
    if prompt.is_empty() {
        return Err(ServerError::InvalidValue {
            param: "prompt".into(),
            reason: "must hold at least one token".into(),
        });
    }
    let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    let admission = served.budget.admit(Tokens(length), parameters.reply_limit, instruction).map_err(|overflow| {
        let budget = &served.budget;
        tracing::info!(
            model = served.id,
            prompt = length,
            limit = overflow.limit.0,
            window = budget.window.0,
            summary = budget.summary.0,
            safety = budget.safety.0,
            "a prompt does not fit the window"
        );
        ServerError::Overflow { limit: overflow.limit.0, window: budget.window.0, prompt: length }
    })?;
    let text = &served.model.text;
    let mut sampling = parameters.sampling.clone();
    if sampling.dry_multiplier > 0.0 {
        let given: Vec<&str> = parameters.dry_breakers.iter().map(String::as_str).collect();
        let breakers = if given.is_empty() { DRY_BREAKERS.to_vec() } else { given };
        sampling.dry_breakers =
            breakers.iter().filter_map(|breaker| text.encode_part(breaker).first().copied()).collect();
    }
    sampling.validate().map_err(|error| ServerError::InvalidValue {
        param: error.parameter.to_owned(),
        reason: format!("must be {}, found {}", error.expected, error.found),
    })?;
    let mut end_tokens = parameters.stop_tokens.clone();
    if !parameters.ignore_end {
        end_tokens.extend_from_slice(text.end_tokens());
    }
    let request = GenerationRequest {
        id: state.request_ids.next(),
        tenant,
        prompt,
        reply_cap: admission.granted,
        reserve_beyond: admission.reserve_beyond,
        n: parameters.n,
        sampling,
        end_tokens,
        min_tokens: parameters.min_tokens,
        ignore_end: false,
        banned: text.banned().to_vec(),
        cache,
        purpose: Purpose::Reply,
        guide: None,
    };
    let reading = Reading {
        budget: served.budget.clone(),
        prompt: length,
        live: Arc::new(LiveCounts::default()),
        clamped_to: admission.clamped_from.map(|_| admission.granted),
        edits,
    };
    Ok(Granted { request, reading })
}

/// Hands a granted request to the engine and waits a moment for a refusal. `splitter` makes one splitter per choice.
pub async fn submit(
    state: &ServerState,
    served: &ServedModel,
    granted: Granted,
    parameters: &Parameters,
    parallel_calls: ParallelCalls,
    splitter: impl Fn() -> Box<dyn Splitter>,
) -> Result<Reply, ServerError> {
    let choices = (0..parameters.n)
        .map(|choice| {
            let stops = match parameters.stop.as_slice() {
                [] => None,
                stop => Some(StopStrings::new(stop.to_vec()).map_err(|error| ServerError::InvalidValue {
                    param: "stop".into(),
                    reason: format!("is not accepted: {error}"),
                })?),
            };
            Ok(ChoicePipeline::new(choice, stops, splitter(), parallel_calls))
        })
        .collect::<Result<Vec<_>, ServerError>>()?;
    let Granted { request, reading } = granted;
    let generation = served.model.engine.submit(request);
    let text = served.model.text.clone();
    let mut reply = Reply::new(generation, text, choices, reading.prompt, state.drain.clone(), reading.live);
    reply.admitted(VERDICT_PATIENCE).await?;
    Ok(reply)
}
