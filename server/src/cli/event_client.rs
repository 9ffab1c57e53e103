//! A small HTTP client: JSON and server-sent events over plain HTTP/1.1.
//!
//! For the commands that talk to a server. No TLS: Plimsoll serves plain HTTP, and a proxy that adds TLS has clients
//! of its own.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{Method, Request, Response, header};
use futures_util::StreamExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// The largest answer that is not a stream, in bytes.
const ANSWER_LIMIT: usize = 64 * 1024 * 1024;
/// The largest single event, in bytes.
const EVENT_LIMIT: usize = 16 * 1024 * 1024;

/// Where a server is, and the key it wants.
#[derive(Clone, Debug)]
pub struct Endpoint {
    authority: String,
    key: Option<String>,
}

impl Endpoint {
    /// A server at an address.
    pub fn at(address: SocketAddr, key: Option<String>) -> Self {
        Self { authority: address.to_string(), key }
    }

    /// A server by its URL; a path such as `/v1` at its end is dropped.
    pub fn parse(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!("`{url}` is no http:// URL");
        };
        let authority = rest.split('/').next().unwrap_or_default();
        if authority.is_empty() {
            bail!("`{url}` names no host");
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { authority, key })
    }
}

/// Sends requests to one server, each on a connection of its own.
#[derive(Clone, Debug)]
pub struct EventClient {
    endpoint: Endpoint,
}

impl EventClient {
    /// A client of that server.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// `GET` of a JSON object.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        whole(self.send(Method::GET, path, Body::empty()).await?).await
    }

    /// `POST` that is answered with a JSON object.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        whole(self.send(Method::POST, path, Body::from(body.to_string())).await?).await
    }

    /// `DELETE` that is answered with a JSON object.
    pub async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        whole(self.send(Method::DELETE, path, Body::empty()).await?).await
    }

    /// `POST` that is answered with server-sent events.
    pub async fn post_events(&self, path: &str, body: &Value) -> anyhow::Result<Events> {
        let response = self.send(Method::POST, path, Body::from(body.to_string())).await?;
        Ok(Events { stream: response.into_body().into_data_stream(), pending: Vec::new() })
    }

    async fn send(&self, method: Method, path: &str, body: Body) -> anyhow::Result<Response<Body>> {
        let authority = &self.endpoint.authority;
        let socket = TcpStream::connect(authority).await.with_context(|| format!("connecting to {authority}"))?;
        let (mut sender, connection) = http1::handshake::<_, Body>(TokioIo::new(socket)).await?;
        // The connection ends with its last user; how is seen there.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.endpoint.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let response = sender.send_request(request.body(body)?).await?.map(Body::new);
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), ANSWER_LIMIT).await?;
        let message = serde_json::from_slice::<Value>(&body).ok();
        let message = message.as_ref().and_then(|json| json["error"]["message"].as_str());
        bail!("{status}: {}", message.unwrap_or("the answer says no more"))
    }
}

async fn whole(response: Response<Body>) -> anyhow::Result<Value> {
    let body = axum::body::to_bytes(response.into_body(), ANSWER_LIMIT).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// A name as one segment of a path: everything but unreserved characters (RFC 3986) is escaped.
pub fn path_segment(name: &str) -> String {
    let mut segment = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => segment.push(char::from(byte)),
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

/// Events of one answer.
pub struct Events {
    stream: BodyDataStream,
    pending: Vec<u8>,
}

impl Events {
    /// The next event's object; `None` after `[DONE]` or the end.
    pub async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.pending.drain(..end + 2).collect();
                let text = std::str::from_utf8(&event)?.trim_end();
                match text.strip_prefix("data: ") {
                    Some("[DONE]") => return Ok(None),
                    Some(data) => return Ok(Some(serde_json::from_str(data)?)),
                    // Comments and other fields say nothing here.
                    None => continue,
                }
            }
            let Some(bytes) = self.stream.next().await else { return Ok(None) };
            let bytes: Bytes = bytes?;
            self.pending.extend_from_slice(&bytes);
            if self.pending.len() > EVENT_LIMIT {
                bail!("an event is larger than {EVENT_LIMIT} bytes");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_whatever_it_holds() {
        assert_eq!(path_segment("ses_0a-b.c~"), "ses_0a-b.c~");
        assert_eq!(path_segment("my work/ü?"), "my%20work%2F%C3%BC%3F");
    }
}
