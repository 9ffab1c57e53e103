//! Reads a request body as JSON within limits of type, size, time and depth.
//!
//! Owns these limits. Memory grows with the bytes that arrived, never with what a header announces. A body that is
//! over the limit is read to its end and thrown away where that is quick, because most clients look for an answer
//! only after they have sent everything.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde_json::Value;

use crate::wire::error::ServerError;
use crate::wire::fields::Fields;

/// How much of an over-long body is thrown away before the connection is closed on the client, in bytes.
const DISCARD_BYTES: u64 = 512 * 1024 * 1024;
/// How long that may take.
const DISCARD_TIME: Duration = Duration::from_secs(20);

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

/// Reads a JSON object.
pub async fn read_object(headers: &HeaderMap, body: Body, limits: BodyLimits) -> Result<Fields, ServerError> {
    check_content_type(headers)?;
    let bytes = read_bytes(headers, body, limits).await?;
    Fields::open(parse(&bytes)?, "")
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ServerError> {
    let found = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = found.as_deref().and_then(|value| value.split(';').next()).unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    Err(ServerError::NotJson { found: found.unwrap_or_default().into_owned() })
}

async fn read_bytes(headers: &HeaderMap, body: Body, limits: BodyLimits) -> Result<Vec<u8>, ServerError> {
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
        while let Some(chunk) = stream.next().await {
            let chunk: Bytes = chunk.map_err(|_| ServerError::BodyBroken)?;
            if bytes.len() + chunk.len() > limits.bytes {
                return Err(ServerError::BodyTooLarge { limit: limits.bytes });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    let read = tokio::time::timeout(limits.time, reading)
        .await
        .unwrap_or(Err(ServerError::BodyTimeout { seconds: limits.time.as_secs() }));
    if matches!(read, Err(ServerError::BodyTooLarge { .. })) {
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
    serde_json::from_slice(bytes).map_err(|error| {
        let text = error.to_string();
        if text.starts_with("recursion limit") { ServerError::NestedTooDeep } else { ServerError::MalformedJson(text) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
