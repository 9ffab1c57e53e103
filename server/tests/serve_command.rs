//! `plimsoll serve` as a process: the lines it prints, the signals it obeys, its exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

struct Server {
    process: Child,
    lines: BufReader<ChildStdout>,
    address: String,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(script: Value, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script.json");
        std::fs::write(&file, script.to_string()).unwrap();
        let mut process = command(&file, flags).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let listening = line(&mut lines);
        let address = listening.strip_prefix("listening http://").expect("the first line says where").to_owned();
        assert_eq!(line(&mut lines), "ready scripted");
        Self { process, lines, address, _folder: folder }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(name).arg(self.process.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    fn open(&self, body: Value) -> TcpStream {
        let body = body.to_string();
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket
    }

    fn ended(&mut self, limit: Duration) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < limit, "the process ends in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(script: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let data = script.with_file_name("data");
    command.args(["serve", "--port", "0", "--data-dir"]).arg(data).arg("--simulate").arg(script).args(flags);
    command.env_remove("PLIMSOLL_API_KEY").stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn line(lines: &mut impl BufRead) -> String {
    let mut text = String::new();
    lines.read_line(&mut text).unwrap();
    text.trim_end().to_owned()
}

fn script(text: &str, tpot_ms: u64) -> Value {
    json!({"model": "scripted", "dialect": "chatml", "window": 4096, "replies": [{"text": text, "tpot_ms": tpot_ms}]})
}

fn ask() -> Value {
    json!({"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": true})
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
    let mut server = Server::start(script(&"x".repeat(100), 5), &[]);
    let mut socket = server.open(ask());
    read_until(&mut socket, "\"content\":\"x\"");
    server.signal("-TERM");
    let mut rest = String::new();
    socket.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"stop\"") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.ended(Duration::from_secs(10)).code(), Some(0));
    assert_eq!(line(&mut server.lines), "");
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut server = Server::start(script(&"x".repeat(3000), 20), &[]);
    let mut socket = server.open(ask());
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
    let mut server = Server::start(broken, &[]);
    let mut socket = server.open(ask());
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("server_error"), "{answer}");
    assert_eq!(server.ended(Duration::from_secs(15)).code(), Some(1));
}

#[test]
fn flags_reach_the_server() {
    let server = Server::start(script("ok", 0), &["--api-key", "secret"]);
    let mut answer = String::new();
    server.open(ask()).read_to_string(&mut answer).unwrap();
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
