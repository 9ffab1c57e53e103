//! How a server ends.

use std::time::Duration;

use plimsoll_runtime::engine::EngineConfig;
use plimsoll_server::serving::{BoundServer, Ended, ServingOptions};
use serde_json::{Value, json};

use crate::wire_client::{always, start, start_with};

fn slow(text: &str, tpot_ms: u64) -> Value {
    let mut script = always("ok");
    script["replies"] = json!([{"text": text, "tpot_ms": tpot_ms}]);
    script
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_refuses_what_comes() {
    let mut server = start(slow(&"x".repeat(100), 5)).await;
    let mut stream = server.open_stream(json!({})).await;
    stream.wait_for("\"content\":\"x\"").await;
    server.stop.take().unwrap().send(()).unwrap();
    while server.state.readiness().is_ok() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ready = server.get("/ready").await;
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("draining")));
    assert_eq!(server.get("/health").await.status, 200);
    let refused = server.chat(json!({})).await;
    assert_eq!(refused.error(), (503, "draining".into(), None));
    assert!(refused.header("retry-after").is_some());
    let events = stream.rest().await.events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!(server.ended.await.unwrap(), Ended::Asked);
}

#[tokio::test]
async fn what_does_not_finish_in_time_ends_with_an_error_event() {
    let options = ServingOptions { drain: Duration::from_millis(100), ..ServingOptions::default() };
    let mut server = start_with(slow(&"x".repeat(1000), 20), options, EngineConfig::default()).await;
    let mut stream = server.open_stream(json!({})).await;
    stream.wait_for("\"content\":\"x\"").await;
    server.stop.take().unwrap().send(()).unwrap();
    let events = stream.rest().await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "draining");
    let ended = tokio::time::timeout(Duration::from_secs(5), server.ended).await.expect("it ends in time");
    assert_eq!(ended.unwrap(), Ended::Asked);
}

#[tokio::test]
async fn a_broken_engine_is_not_ready_and_ends_the_server() {
    for fault in ["error_at_step", "panic_at_step"] {
        let mut script = always(&"x".repeat(1000));
        script["faults"] = json!({fault: 10});
        let server = start(script).await;
        let events = server.chat(json!({"stream": true})).await.events();
        assert_eq!(events.last().unwrap()["error"]["type"], "server_error");
        let ready = server.get("/ready").await;
        assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("poisoned")));
        assert_eq!(server.chat(json!({})).await.error(), (503, "poisoned".into(), None));
        let ended = tokio::time::timeout(Duration::from_secs(10), server.ended).await.expect("it ends in time");
        assert_eq!(ended.unwrap(), Ended::EngineBroke);
    }
}

#[tokio::test]
async fn a_server_that_loads_says_so() {
    let bound = BoundServer::bind(ServingOptions { port: 0, ..ServingOptions::default() }).await.unwrap();
    let address = bound.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        bound.run(std::future::pending::<Result<_, std::convert::Infallible>>(), |_| {}, stopped).await
    });
    let url_free_get = |path: &'static str| async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(url_free_get("/health").await.starts_with("HTTP/1.1 200"));
    let ready = url_free_get("/ready").await;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("loading"), "{ready}");
    let models = url_free_get("/v1/models").await;
    assert!(models.starts_with("HTTP/1.1 503") && models.contains("retry-after"), "{models}");
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().unwrap(), Ended::Asked);
}
