//! Reads a request body as JSON within limits of type, size, time and depth.
//!
//! Owns these limits. Memory grows with the bytes that arrived, never with what a header announces; it is bounded per
//! body, in bytes and in values, and over all bodies together ([`BodyMemory`]). A body that is over the limit is read to
//! its end and thrown away where that is quick, because most clients look for an answer only after they have sent
//! everything.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::wire::error::ServerError;
use crate::wire::fields::Fields;

/// How much of an over-long body is thrown away before the connection is closed on the client, in bytes.
const DISCARD_BYTES: u64 = 512 * 1024 * 1024;
/// How long that may take.
const DISCARD_TIME: Duration = Duration::from_secs(20);

/// Bytes of bodies that may be read and prepared at the same time, over all connections.
const BODY_MEMORY: usize = 256 * 1024 * 1024;

/// Most values (scalars, lists, objects) of one body: a parsed value takes up to a few hundred bytes where the text has
/// two. Twice the tokens of the longest windows, for prompts that are sent as token ids.
const VALUES_LIMIT: usize = 1 << 19;

/// The memory of all bodies together. A body takes its part while it arrives and gives it back when its
/// [`HeldMemory`] is dropped; where nothing is left the request is refused, so that nobody waits for somebody slow.
#[derive(Debug)]
pub struct BodyMemory {
    bytes: Arc<Semaphore>,
}

impl Default for BodyMemory {
    fn default() -> Self {
        Self::new(BODY_MEMORY)
    }
}

impl BodyMemory {
    /// Room for so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))) }
    }
}

/// The part of the memory that one body takes.
#[derive(Debug, Default)]
#[must_use]
pub struct HeldMemory {
    permits: Option<OwnedSemaphorePermit>,
}

impl HeldMemory {
    fn grow(&mut self, memory: &BodyMemory, bytes: usize) -> Result<(), ServerError> {
        let bytes = u32::try_from(bytes).map_err(|_| ServerError::BodiesInTheWay)?;
        let more = memory.bytes.clone().try_acquire_many_owned(bytes).map_err(|_| ServerError::BodiesInTheWay)?;
        match &mut self.permits {
            Some(permits) => permits.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

/// Limits of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Most bytes.
    pub bytes: usize,
    /// Time from the request's head to the body's last byte.
    pub time: Duration,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { bytes: 16 * 1024 * 1024, time: Duration::from_secs(60) }
    }
}

/// Reads a JSON object. What is returned beside it stands for the memory of the body; it is to be held as long as the
/// content is, until a prompt was made of it.
pub async fn read_object(
    headers: &HeaderMap,
    body: Body,
    limits: BodyLimits,
    memory: &BodyMemory,
) -> Result<(Fields, HeldMemory), ServerError> {
    check_content_type(headers)?;
    let (bytes, held) = read_bytes(headers, body, limits, memory).await?;
    Ok((Fields::open(parse(&bytes)?, "")?, held))
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ServerError> {
    let found = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = found.as_deref().and_then(|value| value.split(';').next()).unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    Err(ServerError::NotJson { found: found.map(|found| found.into_owned()) })
}

async fn read_bytes(
    headers: &HeaderMap,
    body: Body,
    limits: BodyLimits,
    memory: &BodyMemory,
) -> Result<(Vec<u8>, HeldMemory), ServerError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let waits_for_consent = headers.contains_key(header::EXPECT);
    let mut stream = body.into_data_stream();
    if announced.is_some_and(|length| length > limits.bytes as u64) {
        if !waits_for_consent {
            discard(&mut stream).await;
        }
        return Err(ServerError::BodyTooLarge { limit: limits.bytes });
    }
    let reading = async {
        let mut bytes = Vec::new();
        let mut held = HeldMemory::default();
        while let Some(chunk) = stream.next().await {
            let chunk: Bytes = chunk.map_err(|_| ServerError::BodyBroken)?;
            if bytes.len() + chunk.len() > limits.bytes {
                return Err(ServerError::BodyTooLarge { limit: limits.bytes });
            }
            held.grow(memory, chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        Ok((bytes, held))
    };
    let read = tokio::time::timeout(limits.time, reading)
        .await
        .unwrap_or(Err(ServerError::BodyTimeout { seconds: limits.time.as_secs() }));
    if matches!(read, Err(ServerError::BodyTooLarge { .. } | ServerError::BodiesInTheWay)) {
        discard(&mut stream).await;
    }
    read
}

async fn discard(stream: &mut BodyDataStream) {
    let reading = async {
        let mut thrown = 0u64;
        while let Some(Ok(chunk)) = stream.next().await {
            thrown += chunk.len() as u64;
            if thrown > DISCARD_BYTES {
                break;
            }
        }
    };
    // Running out of time is as good as having read everything: the answer is sent either way.
    let _ = tokio::time::timeout(DISCARD_TIME, reading).await;
}

/// Parses JSON. `serde_json` stops at 127 levels, so that depth cannot overflow a stack here or later.
pub fn parse(bytes: &[u8]) -> Result<Value, ServerError> {
    if values_at_most(bytes) > VALUES_LIMIT {
        return Err(ServerError::TooManyValues { limit: VALUES_LIMIT });
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let text = error.to_string();
        if text.starts_with("recursion limit") { ServerError::NestedTooDeep } else { ServerError::MalformedJson(text) }
    })
}

/// An upper bound of the values in a JSON text: each but the first follows a comma, a colon, or an opening bracket. Text
/// that is no JSON gives some number.
fn values_at_most(bytes: &[u8]) -> usize {
    let mut values = 1;
    let mut in_string = false;
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => {
                rest.next();
            }
            b',' | b'[' | b':' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_body_of_millions_of_tiny_values_is_refused_before_it_is_parsed() {
        for piece in ["[],", "{\"\":0},", "1,"] {
            let text = format!("[{}1]", piece.repeat(1 << 20));
            assert!(matches!(parse(text.as_bytes()), Err(ServerError::TooManyValues { .. })), "{piece}");
        }
        let long_text = format!("\"{}\"", "[1,2]:\\\"{".repeat(1 << 20));
        assert!(parse(long_text.as_bytes()).is_ok());
    }

    #[tokio::test]
    async fn bodies_that_have_no_room_beside_others_are_refused_until_there_is_some() {
        let memory = BodyMemory::new(100);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        let read =
            || read_object(&headers, Body::from(format!("{{{}}}", " ".repeat(58))), BodyLimits::default(), &memory);
        let (_, held) = read().await.unwrap();
        assert!(matches!(read().await, Err(ServerError::BodiesInTheWay)));
        drop(held);
        assert!(read().await.is_ok());
    }

    #[test]
    fn json_nested_a_hundred_thousand_deep_is_an_error_and_not_a_crash() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let text = open.repeat(100_000) + "1" + &close.repeat(100_000);
            assert!(matches!(parse(text.as_bytes()), Err(ServerError::NestedTooDeep)));
            assert!(matches!(parse(open.repeat(100_000).as_bytes()), Err(ServerError::NestedTooDeep)));
        }
        let fits = "[".repeat(100) + &"]".repeat(100);
        assert!(parse(fits.as_bytes()).is_ok());
    }

    #[test]
    fn only_json_content_types_are_read() {
        let check = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            }
            check_content_type(&headers).is_ok()
        };
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(check(Some(good)), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "", "json", "application/json-patch"] {
            assert!(!check(Some(bad)), "{bad}");
        }
        assert!(!check(None));
    }

    fn values(value: &Value) -> usize {
        1 + match value {
            Value::Array(list) => list.iter().map(values).sum(),
            Value::Object(map) => map.values().map(values).sum::<usize>(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn the_bound_of_values_is_never_below_their_number(texts in proptest::collection::vec(any::<String>(), 0..9)) {
            let value = serde_json::json!({"a": texts, "b": [[], {}, [1, texts]], "\"[": texts.first()});
            let text = value.to_string();
            prop_assert!(values_at_most(text.as_bytes()) >= values(&value));
            prop_assert!(values_at_most(text.as_bytes()) <= 3 * values(&value) + 3);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
