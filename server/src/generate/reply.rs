//! The reply to one prompt: all its choices, as the engine generates them.
//!
//! Owns the generation and the pipelines of its choices. Dropping a reply cancels it in the engine. Never writes JSON.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{BoxStream, StreamExt, unfold};
use plimsoll_runtime::engine::{Event, FinishReason, Generation, Terminal, TokenOut};
use plimsoll_runtime::sessions::LiveCounts;

use super::choice::ChoicePipeline;
use crate::http::drain::{Drain, Phase};
use crate::wire::error::ServerError;
use crate::wire::reply::{ChoiceUpdate, Progress, TokenReport};
use plimsoll_runtime::model_text::ModelText;

/// What a reply says next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The prompt has come so far.
    Progress(Progress),
    /// A choice grew or ended.
    Update(ChoiceUpdate),
    /// All choices have ended.
    Done(Counted),
}

/// What a reply used, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The prompt.
    pub prompt: u32,
    /// Of these, from the prefix cache.
    pub cached: u32,
    /// All choices.
    pub completion: u32,
    /// The longest choice.
    pub longest_choice: u32,
    /// Of the completion, reasoning.
    pub reasoning: u32,
}

/// The first choice as tokens, for whoever goes on behind it.
#[derive(Clone, Debug, Default)]
pub struct Spoken(Arc<Mutex<SpokenState>>);

#[derive(Debug, Default)]
struct SpokenState {
    tokens: Vec<u32>,
    ended: Option<FinishReason>,
}

impl Spoken {
    fn with<T>(&self, work: impl FnOnce(&mut SpokenState) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All its tokens, if the engine itself ended it; a reply that was cut by a stop string says less than was
    /// generated.
    pub fn whole(&self) -> Option<Vec<u32>> {
        self.with(|state| {
            let whole = matches!(state.ended, Some(FinishReason::End(_) | FinishReason::Length));
            whole.then(|| std::mem::take(&mut state.tokens))
        })
    }
}

/// Steps until [`Step::Done`] or an error; nothing follows either.
pub type Steps = BoxStream<'static, Result<Step, ServerError>>;

/// One prompt's reply while it is generated.
pub struct Reply {
    generation: Option<Generation>,
    /// Seen while the caller waited for the verdict on admission.
    first: Option<Event>,
    text: Arc<dyn ModelText>,
    choices: Vec<ChoicePipeline>,
    progress: Progress,
    started: Instant,
    drain: Drain,
    /// For the session's meter.
    live: Arc<LiveCounts>,
    spoken: Spoken,
}

impl Reply {
    /// Takes charge of a generation. `choices` has one pipeline per choice, in order.
    pub fn new(
        generation: Generation,
        text: Arc<dyn ModelText>,
        choices: Vec<ChoicePipeline>,
        prompt: u32,
        drain: Drain,
        live: Arc<LiveCounts>,
    ) -> Self {
        Self {
            generation: Some(generation),
            first: None,
            text,
            choices,
            progress: Progress { total: prompt, ..Progress::default() },
            started: Instant::now(),
            drain,
            live,
            spoken: Spoken::default(),
        }
    }

    /// What the first choice says, complete when the reply is.
    pub fn spoken(&self) -> Spoken {
        self.spoken.clone()
    }

    /// Waits a moment for the engine's verdict, so that a refusal can still be an HTTP status. A request that waits in
    /// the queue longer than that is under way.
    pub async fn admitted(&mut self, patience: Duration) -> Result<(), ServerError> {
        let Some(generation) = &mut self.generation else { return Ok(()) };
        match tokio::time::timeout(patience, generation.next()).await {
            Err(_) => Ok(()),
            Ok(None) => Err(ServerError::Engine("it let go of the request".into())),
            Ok(Some(Event::Done(Terminal::Rejected(reject)))) => Err(ServerError::Rejected(reject)),
            Ok(Some(event)) => {
                self.first = Some(event);
                Ok(())
            }
        }
    }

    /// The reply as a stream of steps. `offset` is added to the numbers of its choices.
    pub fn into_steps(self, offset: u32) -> Steps {
        unfold(Some(self), move |reply| async move {
            let mut reply = reply?;
            let step = reply.next().await;
            match step {
                Ok(Step::Update(mut update)) => {
                    update.choice += offset;
                    Some((Ok(Step::Update(update)), Some(reply)))
                }
                Ok(Step::Progress(_)) => Some((step, Some(reply))),
                Ok(Step::Done(_)) | Err(_) => Some((step, None)),
            }
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Step, ServerError> {
        loop {
            if self.choices.iter().all(ChoicePipeline::ended) {
                // Letting go of the generation frees its pages although the engine may still be at it.
                self.generation = None;
                return Ok(Step::Done(self.counted()));
            }
            let Some(generation) = &mut self.generation else {
                return Err(ServerError::Engine("it let go of the request".into()));
            };
            let event = match self.first.take() {
                Some(event) => Some(event),
                None => tokio::select! {
                    biased;
                    event = generation.next() => event,
                    () = self.drain.reached(Phase::Closing) => return Err(ServerError::ShutDown),
                },
            };
            let Some(event) = event else {
                return Err(ServerError::Engine("it let go of the request".into()));
            };
            if let Some(step) = self.take(event)? {
                return Ok(step);
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<Option<Step>, ServerError> {
        match event {
            Event::Admitted { cached } => {
                self.progress.cached = cached;
                self.live.cached.store(cached, Ordering::Relaxed);
                self.progress.processed = cached;
                Ok(Some(self.progress()))
            }
            Event::Prefill { processed, total } => {
                self.progress.processed = processed;
                self.progress.total = total;
                Ok(Some(self.progress()))
            }
            Event::Token { choice, token } => Ok(self.token(choice, &token)),
            Event::ChoiceFinished { choice, reason } => {
                let Some(pipeline) = self.choices.get_mut(choice as usize) else { return Ok(None) };
                if choice == 0 && !pipeline.ended() {
                    self.spoken.with(|spoken| spoken.ended = Some(reason));
                }
                let update = pipeline.finish(reason);
                self.live.completion.fetch_max(pipeline.generated(), Ordering::Relaxed);
                Ok(update.map(Step::Update))
            }
            Event::Done(Terminal::Finished(_)) => Err(ServerError::Engine("it ended before all choices did".into())),
            Event::Done(Terminal::Cancelled(_)) => Err(ServerError::ShutDown),
            Event::Done(Terminal::Rejected(reject)) => Err(ServerError::Rejected(reject)),
            Event::Done(Terminal::Failed(reason)) => Err(ServerError::Engine(reason)),
        }
    }

    fn token(&mut self, choice: u32, token: &TokenOut) -> Option<Step> {
        let pipeline = self.choices.get_mut(choice as usize)?;
        if choice == 0 {
            self.spoken.with(|spoken| spoken.tokens.push(token.token));
        }
        let bytes = self.text.token_bytes(token.token);
        let report = token.logprob.map(|logprob| TokenReport {
            bytes: bytes.clone(),
            logprob,
            top: token.top.iter().map(|other| (self.text.token_bytes(other.token), other.logprob)).collect(),
        });
        let update = pipeline.token(&bytes, report);
        self.live.completion.fetch_max(pipeline.generated(), Ordering::Relaxed);
        update.map(Step::Update)
    }

    fn progress(&mut self) -> Step {
        self.progress.time_ms = self.started.elapsed().as_millis() as u64;
        Step::Progress(self.progress)
    }

    fn counted(&self) -> Counted {
        Counted {
            prompt: self.progress.total,
            cached: self.progress.cached,
            completion: self.choices.iter().map(ChoicePipeline::generated).sum(),
            longest_choice: self.choices.iter().map(ChoicePipeline::generated).max().unwrap_or(0),
            reasoning: self.choices.iter().map(ChoicePipeline::reasoning_tokens).sum(),
        }
    }
}
