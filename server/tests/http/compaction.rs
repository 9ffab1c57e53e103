//! Sessions that outgrow their window, through the API.

use std::time::Duration;

use plimsoll_runtime::compaction::instruction::SECTIONS;
use plimsoll_runtime::engine::EngineConfig;
use plimsoll_server::data_folder::DataFolder;
use plimsoll_server::serving::ServingOptions;
use serde_json::{Value, json};

use crate::wire_client::{TestServer, start, start_with};

/// Prompts count bytes here: the threshold is at 45875 of them.
const WINDOW: u64 = 65536;
/// Bytes of a long message.
const LONG: usize = 8300;

fn summary() -> String {
    SECTIONS.iter().map(|name| format!("## {name}\n- about {name}\n\n")).collect()
}

/// A managed simulation that says `replies`, with these keys beside them.
fn managed(replies: &[&str], keys: Value) -> Value {
    let mut script = json!({"model": "scripted", "dialect": "hermes", "window": WINDOW, "managed": true,
                            "replies": replies, "default": "Later."});
    for (key, value) in keys.as_object().expect("keys") {
        script[key] = value.clone();
    }
    script
}

/// The replies of a conversation that is compacted in its sixth turn by `summary`, and `after`.
fn compacted_in_the_sixth<'a>(summary: &'a str, after: &[&'a str]) -> Vec<&'a str> {
    let mut replies = vec!["Noted."; 5];
    replies.push(summary);
    replies.extend(after);
    replies
}

/// A client that resends its whole history.
struct Client {
    messages: Vec<Value>,
    turn: usize,
}

impl Client {
    fn new() -> Self {
        Self { messages: vec![json!({"role": "system", "content": "You keep notes. ".repeat(30)})], turn: 0 }
    }

    fn says(&mut self, content: impl Into<String>) {
        self.messages.push(json!({"role": "user", "content": content.into()}));
    }

    /// One more long turn.
    fn goes_on(&mut self) {
        self.turn += 1;
        let line = format!("Turn {} has a line in file_{}.rs. ", self.turn, self.turn);
        self.says(line.repeat(LONG / line.len()));
    }

    async fn ask(&mut self, server: &TestServer) -> Value {
        let answer = server.chat(json!({"messages": self.messages})).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        let answer = answer.json();
        let message = &answer["choices"][0]["message"];
        self.messages.push(json!({"role": "assistant", "content": message["content"]}));
        answer
    }

    async fn turns(&mut self, server: &TestServer, count: usize) -> Value {
        let mut last = Value::Null;
        for _ in 0..count {
            self.goes_on();
            last = self.ask(server).await;
        }
        last
    }
}

fn session_path(answer: &Value) -> String {
    format!("/v1/sessions/{}", answer["context"]["session"].as_str().expect("a session"))
}

#[tokio::test]
async fn a_managed_session_is_compacted_at_its_threshold_and_goes_on() {
    let summary = summary();
    let server = start(managed(&compacted_in_the_sixth(&summary, &["After.", "And on."]), json!({}))).await;
    let mut client = Client::new();
    let before = client.turns(&server, 5).await;
    assert_eq!(before["context"]["compactions"], 0);
    let after = client.turns(&server, 1).await;
    assert_eq!(after["choices"][0]["message"]["content"], "After.");
    let context = &after["context"];
    assert_eq!(context["compactions"], 1, "{context}");
    assert!(context["last_compaction"].is_object(), "{context}");
    assert_eq!(context["zone"], "normal");
    assert!(context["prompt"].as_u64() < before["context"]["prompt"].as_u64());
    assert!(after["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 480, "the head is cached");
    let shown = server.get(&session_path(&after)).await.json();
    assert_eq!(shown["turns"], 12);
    let record = &shown["compactions"][0];
    assert_eq!(
        (&record["state"], &record["trigger"], &record["live"]),
        (&json!("replaced"), &json!("threshold"), &json!(true))
    );
    assert_eq!(record["prefilled_tokens"], record["instruction_tokens"], "the conversation itself is not read again");
    let effective = shown["effective"].to_string();
    assert!(effective.contains("about Next Step") && effective.contains("file_1.rs"), "the first request stays");
    assert_eq!(shown["messages"].as_array().unwrap().len(), 13, "what the client said is kept as well");
    assert_eq!(server.get(&format!("{}/compactions", session_path(&after))).await.json()["data"][0], *record);

    let next = client.turns(&server, 1).await;
    assert_eq!(next["choices"][0]["message"]["content"], "And on.");
    assert_eq!(next["context"]["compactions"], 1);
    let meter = server.get(&format!("/v1/context/{}", next["context"]["session"].as_str().unwrap())).await.json();
    assert_eq!(meter, next["context"]);
}

#[tokio::test]
async fn the_model_is_told_of_its_window_once_per_zone_and_what_it_was_told_stays() {
    let server = start(managed(&[], json!({}))).await;
    let mut client = Client::new();
    let told = |shown: &Value| {
        let text = shown["effective"].to_string();
        (text.matches("<context-notice>").count(), text.matches("ACTIVE CONTEXT POLICY:").count())
    };
    let answer = client.turns(&server, 2).await;
    assert_eq!(told(&server.get(&session_path(&answer)).await.json()), (0, 0));
    let answer = client.turns(&server, 2).await;
    assert_eq!(answer["context"]["zone"], "economy");
    let shown = server.get(&session_path(&answer)).await.json();
    assert_eq!(told(&shown), (1, 1), "{}", answer["context"]);
    assert!(!shown["messages"].to_string().contains("context-notice"), "what the client said is what it said");
    client.says("short");
    let answer = client.ask(&server).await;
    assert_eq!(told(&server.get(&session_path(&answer)).await.json()), (1, 1));
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() - cached < 100, "notices leave the cache valid");
}

#[tokio::test]
async fn a_request_may_ask_for_compaction_of_a_raw_model_and_may_forbid_it() {
    let summary = summary();
    let mut raw = managed(&["Noted.", "Noted.", &summary, "After."], json!({}));
    raw["managed"] = false.into();
    let server = start(raw).await;
    let mut client = Client::new();
    client.turns(&server, 2).await;
    client.goes_on();
    let wish = json!([{"type": "compaction", "compact_threshold": 20000}]);
    let answer = server.chat(json!({"messages": client.messages, "context_management": wish})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "After.", "{answer}");
    let shown = server.get(&session_path(&answer)).await.json();
    assert_eq!(shown["compactions"][0]["trigger"], "request", "{shown}");

    let server = start(managed(&[], json!({}))).await;
    let mut client = Client::new();
    let off = json!({"compaction": "off"});
    for _ in 0..6 {
        client.goes_on();
        let answer = server.chat(json!({"messages": client.messages, "plimsoll": off})).await;
        assert_eq!(answer.status, 200);
        client.messages.push(json!({"role": "assistant", "content": "Later."}));
    }
    client.goes_on();
    client.goes_on();
    let answer = server.chat(json!({"messages": client.messages, "plimsoll": off})).await;
    assert_eq!(answer.error().1, "context_length_exceeded");
}

#[tokio::test]
async fn a_person_compacts_a_session_by_hand() {
    let summary = summary();
    let server = start(managed(&["Noted.", "Noted.", &summary, "After."], json!({}))).await;
    let mut client = Client::new();
    let answer = client.turns(&server, 2).await;
    let path = session_path(&answer);
    let record = server.post(&format!("{path}/compact"), json!({})).await;
    assert_eq!(record.status, 200, "{}", record.json());
    let record = record.json();
    assert_eq!((&record["state"], &record["trigger"]), (&json!("replaced"), &json!("hand")));
    let meter = server.get(&path).await.json()["context"].clone();
    assert_eq!(meter["prompt"], record["tokens_after"], "{meter}");
    client.says("Go on.");
    let answer = client.ask(&server).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "After.");
    assert_eq!(answer["context"]["compactions"], 1);
    assert_eq!(server.get("/v1/sessions").await.json()["data"].as_array().unwrap().len(), 1);

    let gone = server.request("DELETE", &path, &[], b"").await;
    assert_eq!((gone.status, &gone.json()["deleted"]), (200, &json!(true)));
    for answer in [server.get(&path).await, server.post(&format!("{path}/compact"), json!({})).await] {
        assert_eq!(answer.error(), (404, "session_not_found".into(), None));
    }
}

#[tokio::test]
async fn what_cannot_be_compacted_is_refused_with_its_reason() {
    let pause = json!({"faults": {"pause_compaction": {"step": "accepted", "ms": 400}}});
    let mut script = managed(&[], pause);
    script["replies"] = json!([{"text": "x".repeat(300), "tpot_ms": 5}, "Noted.", "Noted.", "", summary()]);
    let server = start(script).await;
    let mut client = Client::new();
    client.says("hi");
    let mut stream = server.open_stream(json!({"messages": client.messages, "plimsoll": {"session": "mine"}})).await;
    stream.wait_for("\"content\":\"x\"").await;
    let refused = server.post("/v1/sessions/mine/compact", json!({})).await;
    assert_eq!(refused.error(), (409, "session_running".into(), None));
    drop(stream.rest().await);
    let mut client = Client::new();
    let path = session_path(&client.turns(&server, 2).await);
    let failed = server.post(&format!("{path}/compact"), json!({})).await;
    assert_eq!(failed.error(), (422, "compaction_failed".into(), None));
    assert_eq!(failed.json()["error"]["reason"], "empty");
    let compact = format!("{path}/compact");
    let (first, second) = tokio::join!(server.post(&compact, json!({})), async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        server.post(&compact, json!({})).await
    });
    assert_eq!(first.status, 200, "{}", first.json());
    assert_eq!(second.error(), (409, "compaction_in_progress".into(), None));
    let nothing = server.post(&format!("{path}/compact"), json!({})).await;
    assert_eq!(nothing.error(), (422, "nothing_to_compact".into(), None));
    let wrong = server.post(&format!("{path}/compact"), json!({"instructions": 7})).await;
    assert_eq!(wrong.error(), (400, "invalid_type".into(), Some("instructions".into())));
    let unknown = server.post("/v1/sessions/nobody/resume", json!({})).await;
    assert_eq!(unknown.error(), (404, "session_not_found".into(), None));
}

#[tokio::test]
async fn a_guarded_session_stops_at_a_failure_until_a_person_resumes_it() {
    let summary = summary();
    let server = start(managed(&compacted_in_the_sixth("", &[&summary, "After."]), json!({"guarded": true}))).await;
    let mut client = Client::new();
    let answer = client.turns(&server, 5).await;
    client.goes_on();
    for _ in 0..2 {
        let stopped = server.chat(json!({"messages": client.messages})).await;
        assert_eq!(stopped.error(), (403, "session_stopped".into(), None));
        assert_eq!(stopped.header("x-should-retry"), Some("false"));
    }
    let path = session_path(&answer);
    assert!(server.get(&path).await.json()["stopped"].is_string());
    let resumed = server.post(&format!("{path}/resume"), json!({})).await;
    assert_eq!((resumed.status, &resumed.json()["stopped"]), (200, &Value::Null));
    let answer = client.ask(&server).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "After.");
    assert_eq!(answer["context"]["compactions"], 1);
}

#[tokio::test]
async fn an_unguarded_session_goes_on_and_after_three_failures_no_longer_tries() {
    let server =
        start(managed(&compacted_in_the_sixth("", &["One.", "", "Two.", "", "Three.", "Four."]), json!({}))).await;
    let mut client = Client::new();
    client.turns(&server, 6).await;
    for expected in ["Two.", "Three.", "Four."] {
        client.says("short");
        let answer = client.ask(&server).await;
        assert_eq!(answer["choices"][0]["message"]["content"], expected);
        assert_eq!(answer["context"]["compactions"], 0);
    }
    let answer = client.messages.len();
    assert_eq!(answer, 19);
    let list = server.get("/v1/sessions").await.json();
    let shown = server.get(&format!("/v1/sessions/{}", list["data"][0]["id"].as_str().unwrap())).await.json();
    assert_eq!(shown["automatic_compaction"], false);
    assert_eq!(shown["compactions"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_stream_says_that_it_lives_while_its_session_is_compacted() {
    let summary = summary();
    let keys = json!({"faults": {"pause_compaction": {"step": "accepted", "ms": 700}}});
    let script = managed(&compacted_in_the_sixth(&summary, &["After."]), keys);
    let options = ServingOptions { silence: Duration::from_millis(100), ..ServingOptions::default() };
    let server = start_with(script, options, EngineConfig::default()).await;
    let mut client = Client::new();
    client.turns(&server, 5).await;
    client.goes_on();
    let answer = server.chat(json!({"messages": client.messages, "stream": true})).await;
    assert!(answer.header("x-session-id").is_some());
    let events = answer.events();
    let alive = events.iter().filter(|event| event["prompt_progress"].is_object()).count();
    assert!(alive >= 3, "{events:?}");
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "After.");
    assert_eq!(events.last().unwrap()["context"]["compactions"], 1);
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_end_a_compaction() {
    let summary = summary();
    let keys = json!({"faults": {"pause_compaction": {"step": "accepted", "ms": 300}}});
    let server = start(managed(&compacted_in_the_sixth(&summary, &["After."]), keys)).await;
    let mut client = Client::new();
    client.turns(&server, 5).await;
    client.goes_on();
    let body = json!({"model": "scripted", "messages": client.messages}).to_string();
    let headers = [("content-type", "application/json")];
    let socket = server.send("POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(socket);
    let answer = client.ask(&server).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "After.", "the summary was not written twice");
    assert_eq!(answer["context"]["compactions"], 1);
}

/// A conversation with reasoning and tool results that has been compacted once, and its server.
async fn compacted(after: &[&str]) -> (TestServer, Client, Value) {
    let summary = summary();
    let after: Vec<&str> = ["After."].iter().chain(after).copied().collect();
    let server = start(managed(&compacted_in_the_sixth(&summary, &after), json!({}))).await;
    let mut client = Client::new();
    for turn in 0..3 {
        client.goes_on();
        client.ask(&server).await;
        let call = json!({"id": "c", "type": "function", "function": {"name": "read", "arguments": format!("{{\"n\": {turn}}}")}});
        client.messages.pop();
        client
            .messages
            .push(json!({"role": "assistant", "content": "Reading.", "reasoning_content": "hm", "tool_calls": [call]}));
        client.messages.push(json!({"role": "tool", "tool_call_id": "c", "content": "result ".repeat(300)}));
    }
    client.ask(&server).await;
    client.turns(&server, 1).await;
    let answer = client.turns(&server, 1).await;
    assert_eq!(answer["context"]["compactions"], 1, "{}", answer["context"]);
    assert_eq!(answer["choices"][0]["message"]["content"], "After.");
    client.says("And now?");
    (server, client, answer)
}

#[tokio::test]
async fn a_client_that_drops_its_reasoning_stays_in_its_compacted_session() {
    let (server, mut client, before) = compacted(&["Next."]).await;
    for message in &mut client.messages {
        message.as_object_mut().unwrap().remove("reasoning_content");
    }
    let answer = client.ask(&server).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "Next.");
    assert_eq!(answer["context"]["session"], before["context"]["session"]);
    assert_eq!(answer["context"]["compactions"], 1);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() < 30_000);
}

#[tokio::test]
async fn a_client_that_changes_its_system_head_keeps_its_compacted_history_under_the_new_head() {
    let (server, mut client, before) = compacted(&["Next."]).await;
    client.messages[0]["content"] = "You are somebody else.".into();
    let answer = client.ask(&server).await;
    assert_eq!(answer["context"]["session"], before["context"]["session"]);
    assert_eq!(answer["context"]["compactions"], 1);
    let effective = server.get(&session_path(&answer)).await.json()["effective"].clone();
    assert_eq!(effective[0]["content"], "You are somebody else.");
    assert!(effective[1]["content"].as_str().unwrap().contains("about Next Step"));
}

#[tokio::test]
async fn a_client_that_prunes_old_tool_results_keeps_the_summary_of_the_originals_and_is_told() {
    let (server, mut client, before) = compacted(&["Next."]).await;
    for message in client.messages.iter_mut().filter(|message| message["role"] == "tool") {
        message["content"] = "[pruned]".into();
    }
    let answer = client.ask(&server).await;
    assert_eq!(answer["context"]["session"], before["context"]["session"]);
    assert_eq!(answer["context"]["compactions"], 1);
    assert!(answer["context"]["edits"].to_string().contains("old tool results differ"), "{}", answer["context"]);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() < 30_000);
}

#[tokio::test]
async fn a_client_that_edits_a_middle_message_gets_its_edited_history_and_a_compaction_of_that() {
    let summary = summary();
    let (server, mut client, _) = compacted(&[&summary, "Compacted again."]).await;
    let place = client.messages.iter().rposition(|message| message["content"].to_string().contains("Turn 4")).unwrap();
    client.messages[place]["content"] = "Turn 4 was something else. ".repeat(400).into();
    client.messages.pop();
    client.says("Does the edit count?");
    let answer = client.ask(&server).await;
    let shown = server.get(&session_path(&answer)).await.json();
    let records = shown["compactions"].as_array().unwrap();
    let last = records.last().unwrap();
    assert_eq!(last["state"], "replaced", "{last}");
    assert_ne!(records[0]["span"]["end"], last["span"]["end"]);
    let effective = shown["effective"].to_string();
    assert!(!effective.contains("Turn 4 has a line"), "nothing of the message before its edit stands in the prompt");
}

#[tokio::test]
async fn a_restart_in_the_middle_changes_nothing_and_writes_no_second_summary() {
    let folder = tempfile::tempdir().unwrap();
    let options = || ServingOptions { data: DataFolder::At(folder.path().into()), ..ServingOptions::default() };
    let summary = summary();
    let script = managed(&compacted_in_the_sixth(&summary, &["After."]), json!({}));
    let mut server = start_with(script, options(), EngineConfig::default()).await;
    let mut client = Client::new();
    let before = client.turns(&server, 6).await;
    let shown = server.get(&session_path(&before)).await.json();
    server.stop.take().unwrap().send(()).unwrap();
    server.ended.await.unwrap();
    drop(server.state);

    let server = start_with(managed(&["Restarted."], json!({})), options(), EngineConfig::default()).await;
    let again = server.get(&session_path(&before)).await.json();
    for key in ["messages", "effective", "compactions", "turns", "stopped"] {
        assert_eq!(again[key], shown[key], "{key}");
    }
    client.says("Go on.");
    let answer = client.ask(&server).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "Restarted.");
    assert_eq!(answer["context"]["session"], before["context"]["session"]);
    assert_eq!(answer["context"]["compactions"], 1);
}

#[tokio::test]
async fn a_notice_never_makes_a_prompt_too_long_that_fits_without_it() {
    let server = start(managed(&[], json!({}))).await;
    let ask = async |length: usize| {
        let messages = json!([{"role": "user", "content": "y".repeat(length)}]);
        server.chat(json!({"messages": messages, "plimsoll": {"compaction": "off"}})).await
    };
    let refused = ask(WINDOW as usize).await.json();
    let message = refused["error"]["message"].as_str().unwrap();
    let limit: usize = message.split(' ').nth(6).unwrap().parse().unwrap();
    let frame = refused["error"]["n_prompt_tokens"].as_u64().unwrap() - WINDOW;
    let longest = limit - frame as usize;

    let answer = ask(longest).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(answer.json()["usage"]["prompt_tokens"], limit, "the notice stays due");
    let roomy = ask(longest - 2000).await.json();
    let told = roomy["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(told > limit as u64 - 2000, "{told}: the notice has its room");
    assert_eq!(ask(longest + 1).await.status, 400);
}
