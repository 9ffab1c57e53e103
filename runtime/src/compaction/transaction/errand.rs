//! What a compaction asks of the engine: its requests, and how they end.
//!
//! Never judges what was generated.

use super::super::acceptance::Rejection;
use super::super::step::Cancel;
use super::Transaction;
use crate::engine::{
    CachePolicy, Event, FinishReason, Generation, GenerationRequest, Guide, Purpose, SamplingParams, TenantId,
    Terminal, Usage,
};
use crate::sessions::FailureReason;

/// A generation that did not end well.
pub(super) enum Ended {
    Cancelled,
    Engine(String),
}

impl Transaction<'_> {
    pub(super) fn request(
        &self,
        prompt: Vec<u32>,
        cap: u32,
        purpose: Purpose,
        guide: Option<Box<dyn Guide>>,
    ) -> GenerationRequest {
        GenerationRequest {
            id: self.compactor.ids.next(),
            tenant: self.tenant(),
            prompt,
            reply_cap: cap,
            reserve_beyond: 0,
            n: 1,
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            end_tokens: Vec::new(),
            min_tokens: 0,
            ignore_end: false,
            banned: self.compactor.text.banned().to_vec(),
            cache: CachePolicy::Default,
            purpose,
            guide,
        }
    }

    pub(super) fn tenant(&self) -> TenantId {
        self.task.session.tenant()
    }

    /// Reads a prompt into the prefix cache.
    pub(super) async fn read_into_cache(&mut self, prompt: Vec<u32>) -> Result<Usage, Ended> {
        let request = self.request(prompt, 1, Purpose::Warm, None);
        let generation = self.compactor.engine.submit(request);
        ended(generation, Some(&mut self.cancel)).await.map(|(usage, _, _)| usage)
    }
}

/// Waits for the end of a generation; also returns the tokens of its reply and why it ended.
pub(super) async fn ended(
    mut generation: Generation,
    mut cancel: Option<&mut Cancel>,
) -> Result<(Usage, Vec<u32>, Option<FinishReason>), Ended> {
    let mut spoken = Vec::new();
    let mut finish = None;
    loop {
        let event = match &mut cancel {
            None => generation.next().await,
            Some(cancel) => tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(Ended::Cancelled),
                event = generation.next() => event,
            },
        };
        match event {
            Some(Event::Token { token, .. }) => spoken.push(token.token),
            Some(Event::ChoiceFinished { reason, .. }) => finish = Some(reason),
            Some(Event::Done(Terminal::Finished(usage))) => return Ok((usage, spoken, finish)),
            Some(Event::Done(Terminal::Cancelled(_))) => return Err(Ended::Cancelled),
            Some(Event::Done(Terminal::Rejected(reject))) => return Err(Ended::Engine(reject.to_string())),
            Some(Event::Done(Terminal::Failed(error))) => return Err(Ended::Engine(error)),
            Some(Event::Admitted { .. } | Event::Prefill { .. }) => {}
            None => return Err(Ended::Engine("it let go of the request".into())),
        }
    }
}

pub(super) fn rejected(ended: Ended) -> Rejection {
    match ended {
        Ended::Cancelled => Rejection::new(FailureReason::Cancelled, "cancelled while the engine was at work for it"),
        Ended::Engine(error) => Rejection::new(FailureReason::Engine, format!("the engine failed: {error}")),
    }
}
