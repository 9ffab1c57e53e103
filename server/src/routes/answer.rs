//! The end that both generation endpoints share: replies become a response with its headers.
//!
//! Owns the headers of the meter, of ignored fields and of event streams, and the sum of the usage. Never knows an API's
//! JSON.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::generate::deliver::{self, stream, whole};
use crate::generate::reply::Counted;
use crate::state::ServerState;
use crate::wire::chat_request::{Delivery, Extensions};
use crate::wire::error::ServerError;
use crate::wire::reply::Tail;
use crate::wire::usage::Usage;
use plimsoll_runtime::budget::Meter;
use plimsoll_runtime::sessions::{Reading, Session};

/// What a response says about its session and its request beside the reply.
#[derive(Clone, Debug)]
pub struct About {
    /// Whose conversation it is.
    pub session: Arc<Session>,
    /// The numbers of its meter; `None` while its prompt is not known, because it is being compacted.
    pub reading: Option<Reading>,
}

impl About {
    /// What is said when all choices have ended.
    pub fn tail(&self, counted: &[Counted], extensions: &Extensions, warnings: &[String]) -> Tail {
        Tail {
            usage: usage(counted),
            context: self.meter().and_then(|meter| serde_json::to_value(meter).ok()).unwrap_or_default(),
            warnings: warnings.to_vec(),
            user: extensions.user.clone(),
            metadata: extensions.metadata.clone(),
        }
    }

    fn meter(&self) -> Option<Meter> {
        self.reading.as_ref().map(|reading| self.session.meter_of(reading))
    }

    /// The short form of the meter. On a stream it is the prompt's, since headers go out first.
    fn write_headers(&self, headers: &mut HeaderMap) {
        if let Some(meter) = self.meter() {
            headers.insert("x-context-used", HeaderValue::from(meter.used().0));
            headers.insert("x-context-window", HeaderValue::from(meter.window.0));
            headers.insert("x-context-zone", HeaderValue::from_static(meter.zone.name()));
        }
        if let Ok(session) = HeaderValue::from_str(self.session.id().as_str()) {
            headers.insert("x-session-id", session);
        }
    }
}

/// Delivers a reply in the form that was asked for.
///
/// # Errors
/// What ends a whole answer early. A stream tells of it in an event.
pub async fn answer(
    state: &ServerState,
    delivery: deliver::Delivery,
    form: Delivery,
    about: &About,
    ignored: &[String],
) -> Result<Response, ServerError> {
    let mut response = match form {
        Delivery::Whole => Json(whole(delivery).await?).into_response(),
        Delivery::Stream { .. } => event_stream(stream(delivery, state.options.silence)),
    };
    about.write_headers(response.headers_mut());
    write_ignored(response.headers_mut(), ignored);
    Ok(response)
}

/// The sum over all prompts of a request.
fn usage(counted: &[Counted]) -> Usage {
    let sum = |number: fn(&Counted) -> u32| counted.iter().map(number).sum();
    Usage::new(
        sum(|counted| counted.prompt),
        sum(|counted| counted.cached),
        sum(|counted| counted.completion),
        sum(|counted| counted.reasoning),
    )
}

/// A body of server-sent events.
fn event_stream(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that collect answers would turn a stream into a lump.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// Most bytes of the header that names ignored fields.
const IGNORED_BYTES: usize = 1024;

/// Names the fields nobody knows.
fn write_ignored(headers: &mut HeaderMap, ignored: &[String]) {
    if ignored.is_empty() {
        return;
    }
    let names: String = ignored
        .join(", ")
        .chars()
        .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
        .take(IGNORED_BYTES)
        .collect();
    if let Ok(value) = HeaderValue::from_str(&names) {
        headers.insert("x-plimsoll-ignored", value);
    }
}
