//! The same promises on real weights: the smallest model there is a name for.

use std::sync::LazyLock;

use plimsoll_models::source::real_model;
use plimsoll_runtime::engine::EngineConfig;
use plimsoll_server::load::{LoadOptions, Wanted, load};
use plimsoll_server::serving::ServingOptions;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::wire_client::{TestServer, serve_catalog};

const NAME: &str = "smollm2-135m-instruct";

/// One model in memory at a time: tests that need it take turns.
static TURN: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);

async fn server(test: &str) -> Option<TestServer> {
    let path = match tokio::task::spawn_blocking(|| real_model(NAME)).await.unwrap() {
        Ok(path) => path,
        Err(unavailable) => {
            unavailable.skip(test);
            return None;
        }
    };
    let options = LoadOptions {
        wanted: vec![Wanted::Model(path.to_string_lossy().into_owned())],
        threads: None,
        window: Some(4096),
        cache_windows: Some(std::num::NonZeroUsize::new(2).unwrap()),
        engine: EngineConfig::default(),
    };
    let catalog = tokio::task::spawn_blocking(move || load(&options)).await.unwrap().unwrap();
    Some(serve_catalog(catalog, ServingOptions::default()).await)
}

async fn ask(server: &TestServer, fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        "max_tokens": 24, "temperature": 0});
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body["model"] = server.state.catalog().unwrap().models()[0].id.clone().into();
    let answer = server.post("/v1/chat/completions", body.clone()).await;
    assert_eq!(answer.status, 200, "{:?}", String::from_utf8_lossy(&answer.body));
    if body["stream"] == true { answer.events().into() } else { answer.json() }
}

fn text(answer: &Value) -> String {
    match answer.as_array() {
        None => answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
        Some(events) => {
            events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect::<String>()
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_model_answers_the_same_whole_streamed_cached_and_uncached() {
    let _turn = TURN.lock().await;
    let Some(server) = server("a_real_model_answers_the_same_whole_streamed_cached_and_uncached").await else { return };
    let cold = ask(&server, json!({})).await;
    assert!(text(&cold).contains("Paris"), "{cold}");
    assert_eq!(cold["choices"][0]["finish_reason"], "stop");
    assert_eq!(text(&ask(&server, json!({"stream": true})).await), text(&cold));
    let warm = ask(&server, json!({})).await;
    assert_eq!(text(&warm), text(&cold));
    assert!(warm["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    assert_eq!(text(&ask(&server, json!({"plimsoll": {"cache": "bypass"}})).await), text(&cold));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_repeats_a_reply_of_a_real_model_and_another_seed_does_not() {
    let _turn = TURN.lock().await;
    let Some(server) = server("a_seed_repeats_a_reply_of_a_real_model_and_another_seed_does_not").await else { return };
    let fields = |seed: u64| {
        json!({"messages": [{"role": "user", "content": "Tell me a story about the sea."}], "temperature": 1.2, "seed": seed,
            "logprobs": true, "top_logprobs": 2})
    };
    let first = ask(&server, fields(7)).await;
    assert_eq!(text(&first), text(&ask(&server, fields(7)).await));
    assert_ne!(text(&first), text(&ask(&server, fields(8)).await));
    let tokens = first["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8))
        .collect();
    assert_eq!(String::from_utf8_lossy(&bytes), text(&first));
    let choices = ask(&server, json!({"n": 3, "temperature": 1.2, "seed": 7})).await;
    assert_eq!(choices["choices"].as_array().unwrap().len(), 3);
}
