//! Delivers a reply: as one object at the end, or as server-sent events while it grows.
//!
//! Owns the order of events, the keep-alives and the end of a stream. Never knows an API's JSON: a [`ReplyFormat`]
//! writes it. A client that goes away is noticed in both forms (the future or the body is dropped), and with it the
//! reply is dropped, which cancels it.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use futures_util::FutureExt;
use futures_util::stream::{StreamExt, unfold};
use serde_json::Value;
use tokio::sync::mpsc;

use super::reply::{Counted, Step, Steps};
use crate::wire::error::ServerError;
use crate::wire::reply::{ChoiceUpdate, Progress, Tail, WholeChoice};

/// Chunks that may wait for a slow reader before generation is no longer read.
const CHUNKS_IN_FLIGHT: usize = 64;

/// How long a client may read nothing at all while there is something to read.
const READER_PATIENCE: Duration = Duration::from_secs(120);

/// An API's JSON.
pub trait ReplyFormat: Send {
    /// The first chunk of a choice, where the API has one.
    fn opening(&mut self, choice: u32) -> Option<Value>;
    /// Chunks of an update, in order; the last one says that the choice ended where it did.
    fn update(&mut self, update: ChoiceUpdate) -> Vec<Value>;
    /// A chunk that says nothing but that the server is at work.
    fn keep_alive(&self, progress: Progress) -> Value;
    /// The chunk with the usage after all choices, where it was asked for.
    fn usage(&self, tail: &Tail) -> Option<Value>;
    /// The one object.
    fn whole(&self, choices: Vec<WholeChoice>, tail: &Tail) -> Value;
}

/// Makes the tail when all is said: from the numbers of each prompt's reply and from the first choice.
pub type Ending = Box<dyn FnOnce(&[Counted], &WholeChoice) -> Tail + Send>;

/// A reply that is ready to be delivered.
pub struct Delivery {
    /// The steps of each prompt's reply.
    pub steps: Vec<Steps>,
    /// Choices over all prompts, at least 1.
    pub choices: u32,
    /// The API's JSON.
    pub format: Box<dyn ReplyFormat>,
    /// Called once, when all is said.
    pub ending: Ending,
    /// Held until the delivery ends.
    pub guard: Box<dyn Send>,
}

/// Collects the whole reply.
pub async fn whole(delivery: Delivery) -> Result<Value, ServerError> {
    let Delivery { steps, choices, format, ending, guard } = delivery;
    let _guard = guard;
    let mut collected = vec![WholeChoice::default(); choices as usize];
    let mut counted = Vec::with_capacity(steps.len());
    let mut steps = futures_util::stream::select_all(steps);
    while let Some(step) = steps.next().await {
        match step? {
            Step::Progress(_) => {}
            Step::Update(update) => {
                if let Some(choice) = collected.get_mut(update.choice as usize) {
                    choice.take(update);
                }
            }
            Step::Done(numbers) => counted.push(numbers),
        }
    }
    let tail = ending(&counted, &collected[0]);
    Ok(format.whole(collected, &tail))
}

/// Streams the reply. While nothing else flows, a keep-alive goes out every `silence`.
pub fn stream(delivery: Delivery, silence: Duration) -> Body {
    let (sender, receiver) = mpsc::channel::<Bytes>(CHUNKS_IN_FLIGHT);
    tokio::spawn(async move {
        let events = Events { sender };
        // A panic in here must still tell the client that the reply is not complete.
        let ended = AssertUnwindSafe(run(delivery, silence, &events)).catch_unwind().await;
        let ended = ended.unwrap_or(Err(Stopped::Error(ServerError::Internal)));
        match ended {
            Ok(()) => events.send_text("data: [DONE]\n\n".into()).await.unwrap_or(()),
            Err(Stopped::ReaderGone) => tracing::debug!("the client closed the stream"),
            Err(Stopped::Error(error)) => {
                tracing::warn!("a stream ended early: {error}");
                events.send(&error.body()).await.unwrap_or(());
            }
        }
    });
    Body::from_stream(unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|bytes| (Ok::<_, Infallible>(bytes), receiver))
    }))
}

enum Stopped {
    ReaderGone,
    Error(ServerError),
}

struct Events {
    sender: mpsc::Sender<Bytes>,
}

impl Events {
    async fn send(&self, chunk: &Value) -> Result<(), Stopped> {
        self.send_text(format!("data: {chunk}\n\n")).await
    }

    async fn send_text(&self, text: String) -> Result<(), Stopped> {
        match tokio::time::timeout(READER_PATIENCE, self.sender.send(text.into())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Stopped::ReaderGone),
        }
    }
}

async fn run(delivery: Delivery, silence: Duration, events: &Events) -> Result<(), Stopped> {
    let Delivery { steps, choices, mut format, ending, guard } = delivery;
    let _guard = guard;
    for choice in 0..choices {
        if let Some(chunk) = format.opening(choice) {
            events.send(&chunk).await?;
        }
    }
    let started = Instant::now();
    let mut counted = Vec::with_capacity(steps.len());
    let mut first_choice = WholeChoice::default();
    let mut steps = futures_util::stream::select_all(steps);
    let mut progress = Progress::default();
    let mut last_sent = tokio::time::Instant::now();
    // The end of the last choice is held back until the tail can ride on it.
    let mut held: Option<Value> = None;
    loop {
        let step = tokio::select! {
            biased;
            () = events.sender.closed() => return Err(Stopped::ReaderGone),
            step = steps.next() => step,
            () = tokio::time::sleep_until(last_sent + silence) => {
                progress.time_ms = started.elapsed().as_millis() as u64;
                events.send(&format.keep_alive(progress)).await?;
                last_sent = tokio::time::Instant::now();
                continue;
            }
        };
        match step.transpose().map_err(Stopped::Error)? {
            None => break,
            Some(Step::Progress(seen)) => progress = seen,
            Some(Step::Done(numbers)) => counted.push(numbers),
            Some(Step::Update(update)) => {
                let ends = update.finish.is_some();
                if update.choice == 0 {
                    first_choice.take(update.clone());
                }
                let mut chunks = format.update(update);
                let end = if ends { chunks.pop() } else { None };
                for chunk in held.take().into_iter().chain(chunks) {
                    events.send(&chunk).await?;
                }
                held = end;
                last_sent = tokio::time::Instant::now();
            }
        }
    }
    let tail = ending(&counted, &first_choice);
    let mut last = Vec::new();
    last.extend(held);
    last.extend(format.usage(&tail));
    if let Some(chunk) = last.last_mut() {
        tail.write(chunk);
    }
    for chunk in &last {
        events.send(chunk).await?;
    }
    Ok(())
}
