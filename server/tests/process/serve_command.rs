//! `plimsoll serve` as a process: the lines it prints, the signals it obeys, its exit codes.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::serve_process::ServeProcess;

/// A server and the folder of its data.
fn start(script: &Value, flags: &[&str]) -> (ServeProcess, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (ServeProcess::start(folder.path(), script, flags), folder)
}

fn open(server: &ServeProcess) -> TcpStream {
    let body = json!({"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": true});
    server.send("POST", "/v1/chat/completions", &body)
}

fn script(text: &str, tpot_ms: u64) -> Value {
    json!({"model": "scripted", "dialect": "chatml", "window": 4096, "replies": [{"text": text, "tpot_ms": tpot_ms}]})
}

/// Reads until `text` has arrived and returns everything so far.
fn read_until(socket: &mut TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains(text) {
        assert!(socket.read(&mut byte).unwrap() > 0, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn sigterm_lets_a_running_stream_finish_and_the_exit_code_is_zero() {
    let (mut server, _folder) = start(&script(&"x".repeat(100), 5), &[]);
    let mut socket = open(&server);
    read_until(&mut socket, "\"content\":\"x\"");
    server.signal("-TERM");
    let mut rest = String::new();
    socket.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"stop\"") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.ended(Duration::from_secs(10)).code(), Some(0));
    assert_eq!(server.line(), "");
}

#[test]
fn a_second_signal_ends_at_once() {
    let (mut server, _folder) = start(&script(&"x".repeat(3000), 20), &[]);
    let mut socket = open(&server);
    read_until(&mut socket, "\"content\":\"x\"");
    server.signal("-TERM");
    std::thread::sleep(Duration::from_millis(200));
    assert!(server.process.try_wait().unwrap().is_none(), "the first signal drains");
    server.signal("-INT");
    assert_eq!(server.ended(Duration::from_secs(2)).code(), Some(1));
}

#[test]
fn a_broken_engine_ends_the_process_with_a_failure() {
    let mut broken = script(&"x".repeat(500), 0);
    broken["faults"] = json!({"error_at_step": 5});
    let (mut server, _folder) = start(&broken, &[]);
    let mut socket = open(&server);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("server_error"), "{answer}");
    assert_eq!(server.ended(Duration::from_secs(15)).code(), Some(1));
}

#[test]
fn flags_reach_the_server() {
    let (server, _folder) = start(&script("ok", 0), &["--api-key", "secret"]);
    let mut answer = String::new();
    open(&server).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[test]
fn wrong_use_and_missing_files_are_told_apart_by_the_exit_code() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run(&["serve", "--prot", "0"]).0, Some(2));
    let (code, text) = run(&["serve", "--port", "0", "--data-dir", ":memory:", "--simulate", "/nowhere/script.json"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("/nowhere/script.json"), "{text}");
    let (code, text) = run(&["serve", "--port", "0", "--data-dir", ":memory:", "--preset", "nobody"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("nobody") && text.contains("demo"), "{text}");
}
