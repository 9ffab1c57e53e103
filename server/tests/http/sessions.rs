//! Sessions and their meters.

use serde_json::json;

use crate::wire_client::{always, start};

#[tokio::test]
async fn a_client_that_knows_nothing_of_sessions_stays_in_one() {
    let server = start(always("Hello.")).await;
    let first = server.chat(json!({"messages": [{"role": "user", "content": "hi"}]})).await.json();
    let again = server
        .chat(json!({"messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
            {"role": "user", "content": "more"},
        ]}))
        .await
        .json();
    let other = server.chat(json!({"messages": [{"role": "user", "content": "another"}]})).await.json();
    assert_eq!(first["context"]["session"], again["context"]["session"]);
    assert_ne!(first["context"]["session"], other["context"]["session"]);
    let list = server.get("/v1/context").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    assert_eq!(list["data"][1], again["context"]);
}

#[tokio::test]
async fn a_stream_is_followed_to_its_reply_as_well() {
    let server = start(always("Hello.")).await;
    let events = server.chat(json!({"stream": true})).await.events();
    let again = server
        .chat(json!({"messages": [
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "?"},
        ]}))
        .await
        .json();
    assert_eq!(events.last().unwrap()["context"]["session"], again["context"]["session"]);
}

#[tokio::test]
async fn the_first_name_that_is_present_names_the_session() {
    let server = start(always("ok")).await;
    let ask = |headers: Vec<(&'static str, &'static str)>, fields: serde_json::Value| {
        let server = &server;
        async move {
            let body = crate::wire_client::chat_body(fields).to_string();
            let mut all = vec![("content-type", "application/json")];
            all.extend(headers);
            let answer = server.request("POST", "/v1/chat/completions", &all, body.as_bytes()).await;
            answer.json()["context"]["session"].as_str().unwrap().to_owned()
        }
    };
    let named = ask(vec![("x-session-id", "a")], json!({})).await;
    assert_eq!(ask(vec![("session-id", "a")], json!({})).await, named);
    assert_eq!(ask(vec![], json!({"prompt_cache_key": "a"})).await, named);
    assert_eq!(ask(vec![("x-claude-code-session-id", "a")], json!({})).await, named);
    assert_eq!(ask(vec![], json!({"metadata": {"session_id": "a"}})).await, named);
    assert_eq!(ask(vec![("x-session-id", "b")], json!({"plimsoll": {"session": "a"}})).await, named);
    assert_ne!(ask(vec![("x-session-id", "b")], json!({"prompt_cache_key": "a"})).await, named);
    assert_eq!(server.get("/v1/context/a").await.json()["session"], named);
    assert_eq!(server.get("/v1/context/nobody").await.error(), (404, "session_not_found".into(), None));
}
