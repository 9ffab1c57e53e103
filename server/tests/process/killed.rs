//! A server that is killed while it compacts: afterwards the history is the old one or the new one.

use std::path::Path;
use std::time::Duration;

use plimsoll_runtime::compaction::Step;
use serde_json::{Value, json};

use crate::serve_process::{ServeProcess, chat, long_conversation, summary};

/// Kills at each step.
const KILLS: u32 = 10;

/// A server that waits for a minute at a step of its compaction.
fn start(folder: &Path, step: Option<Step>) -> ServeProcess {
    let mut script = json!({"model": "scripted", "dialect": "hermes", "window": 65536, "managed": true,
                            "replies": ["Noted.", summary()], "default": "Later."});
    if let Some(step) = step {
        script["faults"] = json!({"pause_compaction": {"step": step.as_str(), "ms": 60_000}});
    }
    ServeProcess::start(folder, &script, &[])
}

/// What stands in the file says that it is whole.
fn check_integrity(folder: &Path) {
    let store = rusqlite::Connection::open(folder.join("data/sessions.sqlite")).unwrap();
    let verdict: String = store.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    let dangling = store.prepare("PRAGMA foreign_key_check").unwrap().exists([]).unwrap();
    assert!(!dangling, "a row refers to one that is not there");
}

/// How far a compaction had come by the files that a kill left.
#[derive(PartialEq)]
enum Found {
    Nothing,
    Interrupted,
    Replaced,
}

fn killed_at(step: Step, kill: u32) -> Found {
    let folder = tempfile::tempdir().unwrap();
    let mut messages = long_conversation();
    let (session, old) = {
        let server = start(folder.path(), Some(step));
        let answer = server.ask("POST", "/v1/chat/completions", &chat(&messages));
        messages.push(json!({"role": "assistant", "content": answer["choices"][0]["message"]["content"]}));
        messages.push(json!({"role": "user", "content": "And now a longer request. ".repeat(400)}));
        let session = answer["context"]["session"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        let old = server.ask("GET", &format!("/v1/sessions/{session}"), &Value::Null)["effective"].clone();
        let socket = server.send("POST", "/v1/chat/completions", &chat(&messages));
        std::thread::sleep(Duration::from_millis(u64::from(30 + 25 * kill)));
        drop(server);
        drop(socket);
        (session, old)
    };
    check_integrity(folder.path());

    let server = start(folder.path(), None);
    let shown = server.ask("GET", &format!("/v1/sessions/{session}"), &Value::Null);
    let records = shown["compactions"].as_array().unwrap();
    let effective = shown["effective"].as_array().unwrap();
    let text = shown["effective"].to_string();
    let at = format!("killed at {step} for the {kill}. time: {records:?}");
    let found = match records.last() {
        Some(record) if record["state"] == "replaced" => {
            assert!(step >= Step::Replaced, "{at}");
            assert!(text.contains("about Next Step") && text.contains("The first request."), "{at}");
            assert_eq!(text.matches(record["id"].as_str().unwrap()).count(), 1, "{at}");
            assert!(!text.contains(&"A long reply. ".repeat(2000)), "{at}");
            Found::Replaced
        }
        record => {
            assert!(record.is_none_or(|record| record["reason"] == "interrupted"), "{at}");
            assert!(!text.contains("<record:checkpoint"), "{at}");
            // Every turn that reached the disk stands as it was said.
            let old = old.as_array().unwrap();
            assert!(old.iter().zip(effective).all(|(old, now)| old == now), "{at}");
            if record.is_some() { Found::Interrupted } else { Found::Nothing }
        }
    };
    // The client resends what it has, and goes on.
    let answer = server.ask("POST", "/v1/chat/completions", &chat(&messages));
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{at}: {answer}");
    assert_eq!(answer["context"]["session"], session.as_str(), "{at}");
    drop(server);
    check_integrity(folder.path());
    found
}

#[test]
fn ten_kills_at_each_step_leave_the_old_history_or_the_new_one_and_a_whole_store() {
    // Servers wait more than they work.
    std::thread::scope(|scope| {
        for steps in Step::ALL.chunks(3) {
            scope.spawn(move || {
                for step in steps {
                    let found: Vec<Found> = (0..KILLS).map(|kill| killed_at(*step, kill)).collect();
                    // Whether the kills met the step that they were meant for.
                    let expected = match *step {
                        step if step >= Step::Replaced => Found::Replaced,
                        step if step >= Step::Started => Found::Interrupted,
                        _ => Found::Nothing,
                    };
                    assert!(found.contains(&expected), "no kill met the step {step}");
                }
            });
        }
    });
}
