//! `POST /v1/chat/completions`, whole answers.

use serde_json::{Value, json};

use crate::wire_client::{always, settled, start};

#[tokio::test]
async fn a_whole_answer_has_the_documented_form() {
    let server = start(always("Hello there.")).await;
    let answer = server.chat(json!({"user": "me", "metadata": {"k": "v"}, "store": false})).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-plimsoll-ignored"), Some("store"));
    assert_eq!(answer.header("x-context-window"), Some("8192"));
    assert_eq!(answer.header("x-context-zone"), Some("normal"));
    for name in ["x-request-id", "request-id", "openai-processing-ms", "x-session-id", "x-context-used"] {
        assert!(answer.header(name).is_some(), "{name}");
    }
    let json = answer.json();
    assert_eq!(json["context"]["session"].as_str(), answer.header("x-session-id"));
    insta::assert_json_snapshot!(settled(json));
}

#[tokio::test]
async fn log_probabilities_come_with_bytes_and_alternatives() {
    let server = start(always("é")).await;
    let json = server.chat(json!({"logprobs": true, "top_logprobs": 2})).await.json();
    let content = json["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 2, "one entry per token: {content:?}");
    assert_eq!(content[0]["bytes"], json!([0xc3]));
    assert_eq!(content[1]["bytes"], json!([0xa9]));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert!(content[0]["logprob"].as_f64().unwrap() <= 0.0);
    let without = server.chat(json!({})).await.json();
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn every_choice_has_its_own_index_and_text_and_usage_counts_them_all() {
    let mut script = always("x");
    script["replies"] = json!(["a", "bb", "ccc"]);
    let server = start(script).await;
    let json = server.chat(json!({"n": 3})).await.json();
    let choices = json["choices"].as_array().unwrap();
    let mut texts: Vec<&str> = choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["a", "bb", "ccc"]);
    assert_eq!(choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    // One token per byte, and the token that ends each choice.
    assert_eq!(json["usage"]["completion_tokens"], 6 + 3);
}

#[tokio::test]
async fn a_stop_string_cuts_the_text_and_the_count() {
    let server = start(always("one two STOP three")).await;
    let json = server.chat(json!({"stop": ["STOP", "never"]})).await.json();
    assert_eq!(json["choices"][0]["message"]["content"], "one two ");
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    assert_eq!(json["usage"]["completion_tokens"], "one two STOP".len());
    server.settles().await;
}

#[tokio::test]
async fn the_limit_of_the_reply_is_kept_to_the_token_and_clamps_are_reported() {
    let server = start(always(&"x".repeat(5000))).await;
    for (asked, granted, clamped) in
        [(1u64, 1, Value::Null), (7, 7, Value::Null), (2147483647, 1536, json!(1536)), (u64::MAX, 1536, json!(1536))]
    {
        let json = server.chat(json!({"max_tokens": asked})).await.json();
        assert_eq!(json["usage"]["completion_tokens"], granted, "{asked}");
        assert_eq!(json["choices"][0]["finish_reason"], "length");
        assert_eq!(json["context"]["clamped_max_tokens"], clamped, "{asked}");
    }
}

#[tokio::test]
async fn null_is_an_absent_parameter() {
    let server = start(always("ok")).await;
    let fields =
        ["temperature", "stop", "n", "seed", "tools", "tool_choice", "logit_bias", "response_format", "stream"];
    let body: serde_json::Map<String, Value> = fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect();
    let answer = server.chat(body.into()).await;
    assert_eq!((answer.status, answer.header("x-plimsoll-ignored")), (200, None));
}

#[tokio::test]
async fn special_tokens_in_user_text_are_counted_as_text() {
    let server = start(always("ok")).await;
    let count = |text: &str| {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        let server = &server;
        async move { server.post("/tokenize", body).await.json()["count"].as_u64().unwrap() }
    };
    let (plain, special) = (count("").await, count("<|im_start|>system").await);
    assert_eq!(special - plain, "<|im_start|>system".len() as u64);
    let usage = server.chat(json!({"messages": [{"role": "user", "content": "<|im_start|>system"}]})).await.json();
    assert_eq!(usage["usage"]["prompt_tokens"], special);
}

#[tokio::test]
async fn late_system_messages_are_rendered_and_never_an_error() {
    let server = start(always("ok")).await;
    let messages = json!([
        {"role": "system", "content": "A"}, {"role": "developer", "content": "B"},
        {"role": "user", "content": "hi"}, {"role": "system", "content": "C"},
    ]);
    let prompt = server.post("/apply-template", json!({"messages": messages})).await.json();
    assert_eq!(
        prompt["prompt"],
        "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>user\n[system message]\nC<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(server.chat(json!({"messages": messages})).await.status, 200);
}

#[tokio::test]
async fn the_same_prompt_again_comes_from_the_cache_unless_it_is_bypassed() {
    let server = start(always("ok")).await;
    let text = "long ".repeat(200);
    let messages = json!([{"role": "user", "content": text}]);
    let cached = |json: &Value| json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let cold = server.chat(json!({"messages": messages})).await.json();
    let warm = server.chat(json!({"messages": messages})).await.json();
    let bypass = server.chat(json!({"messages": messages, "plimsoll": {"cache": "bypass"}})).await.json();
    assert_eq!(cached(&cold), 0);
    assert!(cached(&warm) >= 900, "{warm}");
    assert_eq!(warm["context"]["cached"].as_u64().unwrap(), cached(&warm));
    assert_eq!(cached(&bypass), 0);
}
