//! Who may ask: keys, hosts, origins, and clients that dawdle.

use std::time::Duration;

use plimsoll_runtime::engine::EngineConfig;
use plimsoll_server::http::listener::ConnectionLimits;
use plimsoll_server::serving::ServingOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wire_client::{always, chat_body, start, start_with};

#[tokio::test]
async fn a_key_is_needed_where_keys_are_set_and_probes_need_none() {
    let options = ServingOptions { api_keys: vec!["alpha".into(), "beta".into()], ..ServingOptions::default() };
    let server = start_with(always("ok"), options, EngineConfig::default()).await;
    assert_eq!(server.get("/v1/models").await.error(), (401, "invalid_api_key".into(), None));
    assert_eq!(server.get("/nowhere").await.status, 401);
    let wrong = server.request("GET", "/v1/models", &[("authorization", "Bearer alphabet")], b"").await;
    assert_eq!(wrong.error(), (401, "invalid_api_key".into(), None));
    assert_eq!(wrong.header("www-authenticate"), Some("Bearer"));
    for header in [("authorization", "Bearer alpha"), ("x-api-key", "beta")] {
        assert_eq!(server.request("GET", "/v1/models", &[header], b"").await.status, 200);
    }
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/ready").await.status, 200);
}

#[tokio::test]
async fn tenants_see_neither_each_others_sessions_nor_each_others_cache() {
    let options = ServingOptions { api_keys: vec!["alpha".into(), "beta".into()], ..ServingOptions::default() };
    let server = start_with(always("ok"), options, EngineConfig::default()).await;
    let body = chat_body(json!({"messages": [{"role": "user", "content": "long ".repeat(200)}]})).to_string();
    let ask = |key: &'static str| {
        let (server, body) = (&server, &body);
        async move {
            let headers = [("content-type", "application/json"), ("x-api-key", key), ("x-session-id", "work")];
            server.request("POST", "/v1/chat/completions", &headers, body.as_bytes()).await.json()
        }
    };
    ask("alpha").await;
    let mine = ask("alpha").await;
    let yours = ask("beta").await;
    assert!(mine["context"]["cached"].as_u64().unwrap() > 900, "{mine}");
    assert_eq!(yours["context"]["cached"], 0);
    assert_ne!(mine["context"]["session"], yours["context"]["session"]);
    let path = format!("/v1/context/{}", mine["context"]["session"].as_str().unwrap());
    assert_eq!(server.request("GET", &path, &[("x-api-key", "alpha")], b"").await.status, 200);
    let foreign = server.request("GET", &path, &[("x-api-key", "beta")], b"").await;
    assert_eq!(foreign.error(), (404, "session_not_found".into(), None));
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    let options = ServingOptions { allowed_hosts: vec!["box.lan".into()], ..ServingOptions::default() };
    let server = start_with(always("ok"), options, EngineConfig::default()).await;
    for host in ["evil.example", "evil.example:80", "169.254.169.254"] {
        let answer = server.request("GET", "/v1/models", &[("host", host)], b"").await;
        assert_eq!(answer.error(), (403, "foreign_host".into(), None), "{host}");
    }
    for origin in ["http://evil.example", "null"] {
        let answer = server.request("GET", "/v1/models", &[("origin", origin)], b"").await;
        assert_eq!(answer.error(), (403, "foreign_origin".into(), None), "{origin}");
        let json = [("content-type", "application/json"), ("origin", origin)];
        let body = chat_body(json!({})).to_string();
        assert_eq!(server.request("POST", "/v1/chat/completions", &json, body.as_bytes()).await.status, 403);
    }
    for headers in [[("host", "localhost")], [("host", "BOX.lan:8080")], [("origin", "http://localhost:3000")]] {
        assert_eq!(server.request("GET", "/v1/models", &headers, b"").await.status, 200);
    }
}

#[tokio::test]
async fn a_client_that_sends_its_head_byte_by_byte_is_cut_off() {
    let connections = ConnectionLimits { head_time: Duration::from_millis(300), ..ConnectionLimits::default() };
    let options = ServingOptions { connections, ..ServingOptions::default() };
    let server = start_with(always("ok"), options, EngineConfig::default()).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET /health HTTP/1.1\r\nx-slow: ").await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(5), slow.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the connection is closed");
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_full_house_waits_and_does_not_break() {
    let connections =
        ConnectionLimits { connections: 2, head_time: Duration::from_millis(300), ..ConnectionLimits::default() };
    let options = ServingOptions { connections, ..ServingOptions::default() };
    let server = start_with(always("ok"), options, EngineConfig::default()).await;
    let _idle = [TcpStream::connect(server.address).await.unwrap(), TcpStream::connect(server.address).await.unwrap()];
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_default_server_listens_on_loopback_alone() {
    let server = start(always("ok")).await;
    assert!(server.address.ip().is_loopback());
}

#[tokio::test]
async fn a_path_that_is_no_utf_8_names_nothing_and_is_answered_in_the_errors_envelope() {
    let server = start(always("ok")).await;
    assert_eq!(server.get("/v1/context/%ff").await.error(), (404, "session_not_found".into(), None));
    assert_eq!(server.get("/v1/models/%ff").await.error(), (404, "model_not_found".into(), Some("model".into())));
}

#[tokio::test]
async fn a_model_name_made_of_a_full_windows_words_is_answered_at_once() {
    let server = start(always("ok")).await;
    let started = std::time::Instant::now();
    let answer = server.post("/v1/chat/completions", json!({"model": "exceeds".repeat(1 << 20), "messages": []})).await;
    assert_eq!(answer.error(), (404, "model_not_found".into(), Some("model".into())));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}
