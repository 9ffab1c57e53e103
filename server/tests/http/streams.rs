//! Server-sent events.

use std::time::Duration;

use plimsoll_runtime::engine::EngineConfig;
use plimsoll_server::serving::ServingOptions;
use serde_json::{Value, json};

use crate::wire_client::{Answer, TestServer, always, settled, start, start_with};

/// Text, tool calls, reasons and log-probabilities of each choice of a stream, put together.
fn collected(events: &[Value]) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let at = choice["index"].as_u64().unwrap() as usize;
        while choices.len() <= at {
            choices.push(json!({"content": "", "logprobs": [], "finish_reason": null}));
        }
        let whole = &mut choices[at];
        let more = choice["delta"]["content"].as_str().unwrap_or_default();
        whole["content"] = format!("{}{more}", whole["content"].as_str().unwrap()).into();
        if let Some(tokens) = choice["logprobs"]["content"].as_array() {
            whole["logprobs"].as_array_mut().unwrap().extend(tokens.clone());
        }
        if !choice["finish_reason"].is_null() {
            assert!(whole["finish_reason"].is_null(), "a choice ends once");
            whole["finish_reason"] = choice["finish_reason"].clone();
        }
    }
    choices
}

async fn both(script: Value, fields: Value) -> (Value, Answer) {
    let whole = start(script.clone()).await.chat(fields.clone()).await.json();
    let mut fields = fields;
    fields["stream"] = true.into();
    fields["stream_options"] = json!({"include_usage": true});
    let stream = start(script).await.chat(fields).await;
    (whole, stream)
}

#[tokio::test]
async fn a_stream_has_the_documented_form() {
    let server = start(always("Hi.")).await;
    let answer = server.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    insta::assert_json_snapshot!(settled(answer.events().into()));
}

#[tokio::test]
async fn without_include_usage_the_context_rides_on_the_last_choice_chunk() {
    let server = start(always("Hi.")).await;
    let events = server.chat(json!({"stream": true})).await.events();
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["context"]["completion"], 4);
    assert!(events[..events.len() - 1].iter().all(|event| event.get("context").is_none()));
}

#[tokio::test]
async fn a_stream_equals_the_whole_answer() {
    for fields in [
        json!({}),
        json!({"n": 3}),
        json!({"stop": ["ö STOP", "zzz"]}),
        json!({"max_tokens": 5, "logprobs": true, "top_logprobs": 1}),
        json!({"max_tokens": 9, "stop": "😀!x"}),
    ] {
        let (whole, stream) = both(always("näive 😀 text ö STOP and on"), fields.clone()).await;
        let events = stream.events();
        let choices = collected(&events);
        for (choice, streamed) in whole["choices"].as_array().unwrap().iter().zip(&choices) {
            assert_eq!(choice["message"]["content"], streamed["content"], "{fields}");
            assert_eq!(choice["finish_reason"], streamed["finish_reason"], "{fields}");
            let logprobs = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
            assert_eq!(json!(logprobs), streamed["logprobs"], "{fields}");
        }
        assert_eq!(whole["usage"], events.last().unwrap()["usage"], "{fields}");
    }
}

#[tokio::test]
async fn no_chunk_cuts_a_character_and_no_stop_string_leaks_wherever_tokens_are_cut() {
    // The simulated engine has one token per byte: every cut there is.
    let text = "a👨‍👩‍👧b日本語é̂c";
    let server = start(always(&format!("{text}<END>leak"))).await;
    let events = server.chat(json!({"stream": true, "stop": ["<END>"]})).await.events();
    let choices = collected(&events);
    assert_eq!(choices[0]["content"], text);
    for event in &events {
        assert!(!event.to_string().contains('\u{fffd}'), "{event}");
    }
}

#[tokio::test]
async fn silence_is_broken_by_an_empty_delta_with_the_progress_of_the_prompt() {
    let mut script = always("x");
    script["replies"] = json!([{"text": "slow", "ttft_ms": 700}]);
    let options = ServingOptions { silence: Duration::from_millis(100), ..ServingOptions::default() };
    let server = start_with(script, options, EngineConfig::default()).await;
    let events = server.chat(json!({"stream": true})).await.events();
    let alive: Vec<&Value> = events.iter().filter(|event| event.get("prompt_progress").is_some()).collect();
    assert!(alive.len() >= 3, "{events:?}");
    for event in alive {
        assert_eq!(event["choices"][0]["delta"], json!({}));
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
        let progress = &event["prompt_progress"];
        for field in ["total", "cache", "processed", "time_ms"] {
            assert!(progress[field].is_u64(), "{progress}");
        }
    }
    assert_eq!(collected(&events)[0]["content"], "slow");
}

#[tokio::test]
async fn an_engine_that_breaks_ends_the_stream_with_an_error_event() {
    let mut script = always(&"x".repeat(1000));
    script["faults"] = json!({"error_at_step": 20});
    let server: TestServer = start(script).await;
    let events = server.chat(json!({"stream": true})).await.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["type"], "server_error");
    assert!(error["message"].is_string());
}
