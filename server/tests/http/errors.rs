//! Every mistake has its status, its code, and a sentence that helps; the server stays up.

use serde_json::{Value, json};

use crate::wire_client::{TestServer, always, chat_body, start};

/// Words by which agents recognise a full window; no other error may contain them.
const WINDOW_WORDS: [&str; 6] = ["exceeds", "too long", "max_tokens", "token count", "context length", "rate limit"];

async fn check(server: &TestServer, body: &[u8], status: u16, code: &str, param: Option<&str>) {
    let answer = server.post_bytes("/v1/chat/completions", body).await;
    let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
    assert_eq!(answer.error(), (status, code.to_owned(), param.map(str::to_owned)), "{shown}");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_lowercase();
    for word in WINDOW_WORDS {
        assert!(!message.contains(word), "{message:?} contains {word:?}");
    }
    assert!(answer.header("x-request-id").is_some());
}

async fn still_works(server: &TestServer) {
    let json = server.chat(json!({})).await.json();
    assert_eq!(json["choices"][0]["message"]["content"], "ok");
}

#[tokio::test]
async fn wrong_requests_are_answered_by_name() {
    let server = start(always("ok")).await;
    let cases: Vec<(Value, u16, &str, Option<&str>)> = vec![
        (json!({"max_tokens": 0}), 400, "integer_below_min_value", Some("max_tokens")),
        (json!({"max_tokens": -1}), 400, "integer_below_min_value", Some("max_tokens")),
        (json!({"max_completion_tokens": 0}), 400, "integer_below_min_value", Some("max_completion_tokens")),
        (json!({"max_tokens": "many"}), 400, "invalid_type", Some("max_tokens")),
        (json!({"messages": []}), 400, "invalid_value", Some("messages")),
        (json!({"messages": "hi"}), 400, "invalid_type", Some("messages")),
        (json!({"messages": null}), 400, "missing_required_parameter", Some("messages")),
        (json!({"model": "nobody"}), 404, "model_not_found", Some("model")),
        (json!({"model": null}), 400, "missing_required_parameter", Some("model")),
        (json!({"model": 7}), 400, "invalid_type", Some("model")),
        (json!({"temperature": 9}), 400, "integer_above_max_value", Some("temperature")),
        (json!({"n": 1000}), 400, "integer_above_max_value", Some("n")),
        (json!({"response_format": {"type": "json_object"}}), 400, "unsupported_value", Some("response_format")),
        (json!({"tool_choice": "required"}), 400, "unsupported_value", Some("tool_choice")),
        (json!({"context_management": {}}), 400, "invalid_type", Some("context_management")),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            400,
            "unsupported_content",
            Some("messages[0].content[0]"),
        ),
    ];
    for (fields, status, code, param) in cases {
        check(&server, chat_body(fields).to_string().as_bytes(), status, code, param).await;
    }
    still_works(&server).await;
}

#[tokio::test]
async fn broken_json_is_an_error_and_not_a_crash() {
    let server = start(always("ok")).await;
    for body in ["", "{", "nonsense", "{\"model\": \"scripted\", }", "\u{0}", "{\"a\": 1e999}"] {
        check(&server, body.as_bytes(), 400, "invalid_json", None).await;
    }
    check(&server, b"{\"model\": \"\xff\"}", 400, "invalid_json", None).await;
    check(&server, b"[]", 400, "invalid_type", None).await;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = open.repeat(100_000) + "1" + &close.repeat(100_000);
        check(&server, deep.as_bytes(), 400, "invalid_json", None).await;
        let inside = format!("{{\"model\": \"scripted\", \"messages\": {}", open.repeat(100_000));
        check(&server, inside.as_bytes(), 400, "invalid_json", None).await;
    }
    still_works(&server).await;
}

#[tokio::test]
async fn a_body_of_a_hundred_megabytes_is_refused_and_costs_nothing() {
    let server = start(always("ok")).await;
    let body = vec![b' '; 100_000_000];
    let answer = server.post_bytes("/v1/chat/completions", &body).await;
    assert_eq!(answer.error(), (413, "request_too_large".into(), None));
    let chunked: &[(&str, &str)] = &[("content-type", "application/json"), ("expect", "100-continue")];
    let answer = server.request("POST", "/v1/chat/completions", chunked, &body[..1]).await;
    assert_eq!(answer.status, 100, "a small body with an expectation is asked for");
    still_works(&server).await;
}

#[tokio::test]
async fn unknown_routes_and_methods_are_answered_in_json() {
    let server = start(always("ok")).await;
    for path in ["/", "/v1", "/v2/models", "/v1/embeddings", "/%00", "/v1/chat/completions/x"] {
        assert_eq!(server.get(path).await.error(), (404, "unknown_url".into(), None), "{path}");
    }
    let answer = server.get("/v1/chat/completions").await;
    assert_eq!(answer.error(), (405, "method_not_allowed".into(), None));
    let answer = server.request("DELETE", "/v1/models", &[], b"").await;
    assert_eq!(answer.error(), (405, "method_not_allowed".into(), None));
    let answer = server.get("/v1/models/nobody").await;
    assert_eq!(answer.error(), (404, "model_not_found".into(), Some("model".into())));
}

#[tokio::test]
async fn posts_that_are_not_json_are_refused() {
    let server = start(always("ok")).await;
    let body = chat_body(json!({})).to_string();
    for headers in
        [&[][..], &[("content-type", "text/plain")], &[("content-type", "application/x-www-form-urlencoded")]]
    {
        let answer = server.request("POST", "/v1/chat/completions", headers, body.as_bytes()).await;
        assert_eq!(answer.error(), (415, "unsupported_media_type".into(), None));
    }
}
