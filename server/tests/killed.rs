//! A server that is killed while it compacts: afterwards the history is the old one or the new one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll_runtime::compaction::Step;
use plimsoll_runtime::compaction::instruction::SECTIONS;
use serde_json::{Value, json};

/// Kills at each step.
const KILLS: u32 = 10;

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path, step: Option<Step>) -> Self {
        let summary: String = SECTIONS.iter().map(|name| format!("## {name}\n- about {name}\n\n")).collect();
        let mut script = json!({"model": "scripted", "dialect": "hermes", "window": 65536, "managed": true,
                                "replies": ["Noted.", summary], "default": "Later."});
        if let Some(step) = step {
            script["faults"] = json!({"pause_compaction": {"step": step.as_str(), "ms": 60_000}});
        }
        let file = folder.join("script.json");
        std::fs::write(&file, script.to_string()).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["serve", "--port", "0", "--data-dir"])
            .arg(folder.join("data"))
            .arg("--simulate")
            .arg(&file)
            .env_remove("PLIMSOLL_API_KEY")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let mut line = || {
            let mut text = String::new();
            lines.read_line(&mut text).unwrap();
            text.trim_end().to_owned()
        };
        let address = line().strip_prefix("listening http://").expect("it listens again").to_owned();
        assert_eq!(line(), "ready scripted");
        Self { process, address }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut text = String::new();
        self.send(method, path, body).read_to_string(&mut text).unwrap();
        let at = text.find("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
        serde_json::from_str(&text[at + 4..]).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl Drop for Server {
    /// SIGKILL: nothing is tidied up.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn chat(messages: &[Value]) -> Value {
    json!({"model": "scripted", "messages": messages})
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
    let mut messages = vec![json!({"role": "system", "content": "You keep notes."})];
    messages.push(json!({"role": "user", "content": "The first request."}));
    messages.push(json!({"role": "assistant", "content": "A long reply. ".repeat(2900)}));
    messages.push(json!({"role": "user", "content": "Go on."}));
    let (session, old) = {
        let server = Server::start(folder.path(), Some(step));
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

    let server = Server::start(folder.path(), None);
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
