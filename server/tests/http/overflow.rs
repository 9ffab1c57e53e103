//! The window is a contract: what fits is served, what does not fit is refused with the numbers.

use serde_json::{Value, json};

use crate::wire_client::{TestServer, always, start};

/// Tokens of the template around one user message; the simulation counts one token per byte.
async fn frame(server: &TestServer) -> usize {
    let body = json!({"messages": [{"role": "user", "content": ""}]});
    server.post("/tokenize", body).await.json()["count"].as_u64().unwrap() as usize
}

#[tokio::test]
async fn prompts_up_to_the_limit_are_served_and_longer_ones_refused_to_the_token() {
    let server = start(always(&"y".repeat(3000))).await;
    let frame = frame(&server).await;
    // budget.md: window - instruction - summary - safety - prompt - 1 must leave a token.
    let limit = 8192 - 512 - 256 - 1 - 1;
    for length in limit - 2..=limit + 2 {
        for stream in [false, true] {
            let content = "x".repeat(length - frame);
            let fields = json!({"messages": [{"role": "user", "content": content}], "stream": stream, "max_tokens": 99,
                "plimsoll": {"cache": "bypass"}});
            let answer = server.chat(fields).await;
            if length <= limit {
                assert_eq!(answer.status, 200, "{length}");
                let last = if stream { answer.events().pop().unwrap() } else { answer.json() };
                let room = limit - length + 1;
                assert_eq!(last["context"]["prompt"], length);
                assert_eq!(last["context"]["completion"], room.min(99));
                assert_eq!(last["context"]["clamped_max_tokens"], json!(room));
            } else {
                assert_eq!(answer.status, 400, "{length}");
                assert_eq!(answer.header("content-type"), Some("application/json"));
                let error = answer.json()["error"].clone();
                assert_eq!(
                    error,
                    json!({
                        "message": format!(
                            "This model's maximum context length is {limit} tokens. However, your messages resulted \
                             in {length} tokens. Please reduce the length of the messages."
                        ),
                        "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded",
                        "n_ctx": 8192, "n_prompt_tokens": length,
                    })
                );
            }
        }
    }
    server.settles().await;
}

#[tokio::test]
async fn the_advertised_longest_prompt_is_the_enforced_one() {
    let server = start(always("ok")).await;
    let listed = server.get("/v1/models").await.json();
    let longest = listed["data"][0]["max_input_tokens"].as_u64().unwrap() as usize;
    let frame = frame(&server).await;
    let ask = |length: usize| {
        let server = &server;
        async move {
            let content = "x".repeat(length - frame);
            server.chat(json!({"messages": [{"role": "user", "content": content}]})).await.status
        }
    };
    assert_eq!((ask(longest).await, ask(longest + 1).await), (200, 400));
}

#[tokio::test]
async fn the_overflow_error_satisfies_the_detectors_of_known_clients() {
    let server = start(always("ok")).await;
    let body = json!({"messages": [{"role": "user", "content": "x".repeat(20_000)}]});
    let json: Value = server.chat(body).await.json();
    let text = json["error"]["message"].as_str().unwrap().to_lowercase();
    // opencode, pi, cline: /maximum context length is \d+ tokens/, /reduce the length of the messages/.
    let number = text.split("maximum context length is ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(number.parse::<u32>().is_ok());
    // litellm (aider, mini-swe-agent, OpenHands), goose, qwen-code.
    for phrase in ["this model's maximum context length is", "reduce the length of", "context length", "resulted in"] {
        assert!(text.contains(phrase), "{phrase}");
    }
    assert!(!text.contains("rate limit"));
    assert_eq!(json["error"]["code"], "context_length_exceeded");
}
