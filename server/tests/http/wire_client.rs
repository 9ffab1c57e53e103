//! A simulated server on a free port and a client that speaks raw HTTP/1.1, so that tests see every byte.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_runtime::engine::{EngineConfig, EngineHandle};
use plimsoll_runtime::sessions::StoreError;
use plimsoll_runtime::simulated::SimulationScript;
use plimsoll_server::catalog::Catalog;
use plimsoll_server::load::simulation_of;
use plimsoll_server::serving::{BindError, BoundServer, Ended, ServingOptions};
use plimsoll_server::state::SharedState;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server; it is asked to end when this is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    pub state: SharedState,
    pub engine: EngineHandle,
    pub stop: Option<oneshot::Sender<()>>,
    pub ended: JoinHandle<Ended>,
}

/// A script in which every generation says `text`.
pub fn always(text: &str) -> Value {
    json!({"model": "scripted", "dialect": "hermes", "window": 8192, "replies": [], "default": text})
}

/// Starts a server on a script.
pub async fn start(script: Value) -> TestServer {
    start_with(script, ServingOptions::default(), EngineConfig::default()).await
}

/// Starts a server on a script, with options; the port is always a free one.
pub async fn start_with(script: Value, options: ServingOptions, engine: EngineConfig) -> TestServer {
    let script = SimulationScript::parse(&script.to_string()).expect("the test's script is one");
    let model = simulation_of(&script, engine).expect("the script can be served");
    serve_catalog(Catalog::new().with(model.model.engine.clone(), [model]), options).await
}

/// Serves a catalogue of one engine; the port is always a free one.
pub async fn serve_catalog(catalog: Catalog, options: ServingOptions) -> TestServer {
    let engine = catalog.engines()[0].clone();
    let mut patience = 500;
    let bound = loop {
        match BoundServer::bind(ServingOptions { port: 0, ..options.clone() }).await {
            // The server before lets go of its store a moment after its end.
            Err(BindError::Store(StoreError::InUse { .. })) if patience > 0 => patience -= 1,
            bound => break bound.expect("a free port and a usable store"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let (address, state) = (bound.address(), bound.state());
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(async move {
        let load = async { Ok::<_, std::convert::Infallible>(catalog) };
        let stopped = async {
            let _ = stopped.await;
        };
        match bound.run(load, |_| {}, stopped).await {
            Ok(ended) => ended,
            Err(never) => match never {},
        }
    });
    while state.readiness().is_err() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    TestServer { address, state, engine, stop: Some(stop), ended }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// Status, code and parameter of an error.
    pub fn error(&self) -> (u16, String, Option<String>) {
        let json = self.json();
        let error = &json["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{json}");
        (self.status, error["code"].as_str().unwrap_or_default().to_owned(), error["param"].as_str().map(str::to_owned))
    }

    /// The objects of an event stream; `[DONE]` must be its end unless an error is.
    pub fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.body).expect("every byte of a stream is UTF-8");
        let mut events = Vec::new();
        let mut done = false;
        for event in text.split_terminator("\n\n") {
            let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {event:?}"));
            assert!(!done, "something follows [DONE]: {data}");
            if data == "[DONE]" {
                done = true;
            } else {
                events.push(serde_json::from_str(data).expect("every event is JSON"));
            }
        }
        let failed = events.last().is_some_and(|last: &Value| !last["error"].is_null());
        assert!(done != failed, "a stream ends with [DONE] or an error: {text}");
        events
    }
}

impl TestServer {
    pub async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"").await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes()).await
    }

    pub async fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        self.request("POST", path, &[("content-type", "application/json")], body).await
    }

    /// A chat completion with one user message and these fields beside it.
    pub async fn chat(&self, fields: Value) -> Answer {
        self.post("/v1/chat/completions", chat_body(fields)).await
    }

    /// A request on a connection of its own.
    pub async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.send(method, path, headers, body).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("an answer");
        parse(&bytes)
    }

    /// Sends a request and leaves the answer on the socket.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut stream = TcpStream::connect(self.address).await.expect("the server listens");
        stream.write_all(head.as_bytes()).await.expect("the server reads");
        stream.write_all(body).await.expect("the server reads");
        stream
    }

    /// Starts a streamed chat completion.
    pub async fn open_stream(&self, fields: Value) -> EventReader {
        let mut body = chat_body(fields);
        body["stream"] = true.into();
        let headers = [("content-type", "application/json")];
        let stream = self.send("POST", "/v1/chat/completions", &headers, body.to_string().as_bytes()).await;
        EventReader { stream, seen: Vec::new() }
    }

    /// Waits until the engine runs nothing, at most a second.
    pub async fn settles(&self) {
        let settled = async {
            loop {
                let status = self.engine.status();
                if status.running + status.waiting == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(1), settled).await.expect("nothing runs after a second");
    }
}

/// The body of a chat completion with one user message and these fields beside it.
pub fn chat_body(fields: Value) -> Value {
    let mut body = json!({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in fields.as_object().expect("fields") {
        body[key] = value.clone();
    }
    body
}

/// Reads a chunked event stream as it arrives.
pub struct EventReader {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl EventReader {
    /// Waits until the raw answer contains `text`.
    pub async fn wait_for(&mut self, text: &str) {
        let arrives = async {
            let mut buffer = [0; 4096];
            while !String::from_utf8_lossy(&self.seen).contains(text) {
                let read = self.stream.read(&mut buffer).await.expect("the stream is readable");
                assert!(read > 0, "the stream ended before {text:?}: {}", String::from_utf8_lossy(&self.seen));
                self.seen.extend_from_slice(&buffer[..read]);
            }
        };
        tokio::time::timeout(Duration::from_secs(10), arrives).await.expect("it arrives in time");
    }

    /// What arrived so far, raw.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Reads to the end.
    pub async fn rest(mut self) -> Answer {
        self.stream.read_to_end(&mut self.seen).await.expect("the stream is readable");
        parse(&self.seen)
    }
}

fn parse(bytes: &[u8]) -> Answer {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no head in {:?}", String::from_utf8_lossy(bytes));
    });
    let head = std::str::from_utf8(&bytes[..at]).expect("a head is ASCII");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let body = &bytes[at + 4..];
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { unchunk(body) } else { body.to_vec() };
    Answer { status, headers, body }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..at]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size.filter(|size| *size > 0 && at + 2 + size <= bytes.len()) else { break };
        body.extend_from_slice(&bytes[at + 2..at + 2 + size]);
        bytes = bytes.get(at + 2 + size + 2..).unwrap_or_default();
    }
    body
}

/// Replaces what differs from run to run: identities and times.
pub fn settled(mut value: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, value) in map.iter_mut() {
                    match key.as_str() {
                        "id" if value.as_str().is_some_and(|id| id.contains('-') || id.starts_with("call_")) => {
                            *value = "[id]".into();
                        }
                        "created" | "created_at" | "time_ms" => *value = "[time]".into(),
                        "session" => *value = "[session]".into(),
                        _ => walk(value),
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut value);
    value
}
