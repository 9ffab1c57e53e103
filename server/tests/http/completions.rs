//! `POST /v1/completions`.

use serde_json::{Value, json};

use crate::wire_client::{always, settled, start};

#[tokio::test]
async fn a_raw_completion_has_the_documented_form() {
    let server = start(always("Once.")).await;
    let answer = server.post("/v1/completions", json!({"model": "scripted", "prompt": "Tell", "logprobs": 0})).await;
    assert_eq!(answer.status, 200);
    let mut json = settled(answer.json());
    json["choices"][0]["logprobs"]["token_logprobs"] = Value::Null;
    insta::assert_json_snapshot!(json);
}

#[tokio::test]
async fn several_prompts_make_consecutive_choices_and_one_usage() {
    let server = start(always("same")).await;
    for stream in [false, true] {
        let body = json!({"model": "scripted", "prompt": ["a", "bb"], "n": 2, "stream": stream, "max_tokens": 2,
            "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null }});
        let answer = server.post("/v1/completions", body).await;
        let objects = if stream { answer.events() } else { vec![answer.json()] };
        let mut texts = vec![String::new(); 4];
        for object in &objects {
            for choice in object["choices"].as_array().unwrap() {
                texts[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
            }
        }
        assert!(texts.iter().all(|text| text.len() == 2), "{texts:?}");
        let usage = &objects.last().unwrap()["usage"];
        assert_eq!((usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()), (Some(3), Some(8)));
    }
}

#[tokio::test]
async fn token_prompts_are_taken_as_they_are() {
    let server = start(always("ok")).await;
    let json = server.post("/v1/completions", json!({"model": "scripted", "prompt": [104, 105]})).await.json();
    assert_eq!(json["usage"]["prompt_tokens"], 2);
    let answer = server.post("/v1/completions", json!({"model": "scripted", "prompt": ""})).await;
    assert_eq!(answer.error(), (400, "invalid_value".into(), Some("prompt".into())));
}

#[tokio::test]
async fn tokens_and_text_convert_into_each_other() {
    let server = start(always("ok")).await;
    let json = server.post("/tokenize", json!({"prompt": "hé"})).await.json();
    assert_eq!(json, json!({"count": 3, "tokens": [104, 195, 169]}));
    let json = server.post("/detokenize", json!({"tokens": [104, 195, 169, 257]})).await.json();
    assert_eq!(json, json!({"prompt": "hé<|im_end|>"}));
    let answer = server.post("/detokenize", json!({"tokens": [259]})).await;
    assert_eq!(answer.error(), (400, "invalid_value".into(), Some("tokens[0]".into())));
}
