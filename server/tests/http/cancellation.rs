//! A client that goes away takes its request with it.

use std::time::Duration;

use plimsoll_runtime::engine::EngineConfig;
use plimsoll_server::serving::ServingOptions;
use serde_json::json;

use crate::wire_client::{always, chat_body, start, start_with};

fn slow(text: &str) -> serde_json::Value {
    let mut script = always("ok");
    script["replies"] = json!([{"text": text, "tpot_ms": 5}]);
    script
}

#[tokio::test]
async fn a_closed_stream_stops_the_generation_within_a_second() {
    let server = start(slow(&"x".repeat(1000))).await;
    let mut stream = server.open_stream(json!({})).await;
    stream.wait_for("\"content\":\"x\"").await;
    assert_eq!(server.engine.status().running, 1);
    drop(stream);
    server.settles().await;
    assert_eq!(server.state.drain.running(), 0);
    assert_eq!(server.chat(json!({})).await.json()["choices"][0]["message"]["content"], "ok");
}

#[tokio::test]
async fn a_closed_connection_stops_a_whole_answer_too() {
    let server = start(slow(&"x".repeat(1000))).await;
    let body = chat_body(json!({})).to_string();
    let headers = [("content-type", "application/json")];
    let socket = server.send("POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
    while server.engine.status().running == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    drop(socket);
    server.settles().await;
}

#[tokio::test]
async fn five_hundred_clients_that_go_away_at_any_moment_leave_nothing_behind() {
    let server = start(always(&"word ".repeat(60))).await;
    let free = server.engine.status().pages;
    for round in 0u64..500 {
        let mut body = chat_body(json!({"plimsoll": {"cache": "bypass"}}));
        body["stream"] = round.is_multiple_of(2).into();
        let headers = [("content-type", "application/json")];
        let socket = server.send("POST", "/v1/chat/completions", &headers, body.to_string().as_bytes()).await;
        tokio::time::sleep(Duration::from_micros(round * 137 % 4000)).await;
        drop(socket);
    }
    server.settles().await;
    let pages = server.engine.status().pages;
    assert_eq!((pages.free, pages.promised), (free.free, free.promised));
    assert_eq!(server.chat(json!({"max_tokens": 4})).await.json()["choices"][0]["message"]["content"], "word");
}

#[tokio::test]
async fn a_full_queue_is_429_with_a_time_to_wait_before_any_stream_byte() {
    let mut script = always("ok");
    script["replies"] = vec![json!({"text": "x".repeat(400), "tpot_ms": 5}); 12].into();
    // The simulated pool holds four windows, so that a few long requests fill it; the queue has no places.
    let engine = EngineConfig { queue_limit: 0, ..EngineConfig::default() };
    let server = start_with(script, ServingOptions::default(), engine).await;
    let content = "x".repeat(7000);
    let mut busy = Vec::new();
    let mut refused = None;
    for _ in 0..12 {
        let fields = json!({"messages": [{"role": "user", "content": content}], "plimsoll": {"cache": "bypass"}});
        let mut stream = server.open_stream(fields).await;
        stream.wait_for("\r\n\r\n").await;
        if !stream.seen().starts_with("HTTP/1.1 200") {
            refused = Some(stream.rest().await);
            break;
        }
        busy.push(stream);
    }
    let refused = refused.expect("a queue without places refuses at some time");
    assert_eq!(refused.error(), (429, "rate_limit_exceeded".into(), None));
    let seconds: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=120).contains(&seconds));
}
