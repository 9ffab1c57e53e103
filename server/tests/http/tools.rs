//! Tool calls and reasoning, whole and streamed.

use serde_json::{Value, json};

use crate::wire_client::{always, start};

const CALLS: &str = "<think>\nWhich tool?\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \
                     \"/ü\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"pwd\", \"arguments\": {}}\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}},
           {"type": "function", "function": {"name": "pwd"}}])
}

/// The message a stream adds up to.
fn message_of(events: &[Value]) -> (String, String, Vec<(String, String)>, Option<String>) {
    let (mut text, mut reasoning, mut calls, mut finish) = (String::new(), String::new(), Vec::new(), None);
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let delta = &choice["delta"];
        text.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().unwrap() as usize;
            if at == calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                calls.push((call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
            }
            calls[at].1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        finish = finish.or(choice["finish_reason"].as_str().map(str::to_owned));
    }
    (text, reasoning, calls, finish)
}

#[tokio::test]
async fn calls_and_reasoning_are_told_apart_and_the_stream_says_the_same() {
    let server = start(always(CALLS)).await;
    let json = server.chat(json!({"tools": tools()})).await.json();
    let choice = &json["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me look.");
    assert_eq!(choice["message"]["reasoning_content"].as_str().unwrap().trim(), "Which tool?");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"]["name"], "ls");
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"path": "/ü"}));
    let reasoning = json["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((11..40).contains(&reasoning), "{reasoning}");

    let events = server.chat(json!({"tools": tools(), "stream": true})).await.events();
    let (text, streamed_reasoning, streamed, finish) = message_of(&events);
    assert_eq!(text, "Let me look.");
    assert_eq!(streamed_reasoning, choice["message"]["reasoning_content"]);
    assert_eq!(finish.as_deref(), Some("tool_calls"));
    for (call, (name, arguments)) in calls.iter().zip(&streamed) {
        assert_eq!(call["function"], json!({"name": name, "arguments": arguments}));
    }
}

#[tokio::test]
async fn without_tools_a_call_is_text() {
    let server = start(always("<tool_call>\n{\"name\": \"ls\"}\n</tool_call>")).await;
    for fields in [json!({}), json!({"tools": tools(), "tool_choice": "none"})] {
        let json = server.chat(fields).await.json();
        assert_eq!(json["choices"][0]["finish_reason"], "stop");
        assert!(json["choices"][0]["message"]["content"].as_str().unwrap().contains("<tool_call>"));
    }
}

#[tokio::test]
async fn one_call_alone_is_kept_where_calls_may_not_be_parallel_and_the_rest_is_not_generated() {
    let server = start(always(CALLS)).await;
    let fields = json!({"tools": tools(), "parallel_tool_calls": false});
    let json = server.chat(fields).await.json();
    assert_eq!(json["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(json["choices"][0]["finish_reason"], "tool_calls");
    assert!(json["usage"]["completion_tokens"].as_u64().unwrap() < CALLS.len() as u64);
    server.settles().await;
}

#[tokio::test]
async fn a_call_that_is_cut_by_the_limit_is_not_lost_and_not_an_error() {
    let server = start(always(CALLS)).await;
    let whole_length = CALLS.len();
    for limit in [5, 20, 60, whole_length - 3] {
        let fields = json!({"tools": tools(), "max_tokens": limit});
        let answer = server.chat(fields).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "length", "{limit}");
    }
}

#[tokio::test]
async fn a_tool_loop_stays_in_its_session_whatever_happens_to_ids_and_spacing() {
    let server = start(always(CALLS)).await;
    let first = server.chat(json!({"tools": tools()})).await.json();
    let mut said = first["choices"][0]["message"].clone();
    said["tool_calls"][0]["id"] = "other".into();
    said["tool_calls"][0]["function"]["arguments"] = "{ \"path\" : \"/ü\" }".into();
    said.as_object_mut().unwrap().remove("reasoning_content");
    let again = server
        .chat(json!({"tools": tools(), "messages": [
            {"role": "user", "content": "hi"}, said,
            {"role": "tool", "tool_call_id": "other", "content": "a b c"},
        ]}))
        .await
        .json();
    assert_eq!(again["context"]["session"], first["context"]["session"]);
}

#[tokio::test]
async fn strict_tools_are_served_with_a_warning() {
    let server = start(always("ok")).await;
    let mut tools = tools();
    tools[0]["function"]["strict"] = true.into();
    let json = server.chat(json!({"tools": tools})).await.json();
    assert_eq!(json["warnings"].as_array().unwrap().len(), 1, "{json}");
}
