//! `plimsoll serve` as a process of its own, with scripted replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use plimsoll_runtime::compaction::instruction::SECTIONS;
use serde_json::{Value, json};

/// A running server. It is killed, without any tidying, when it is dropped.
pub struct ServeProcess {
    pub process: Child,
    lines: BufReader<ChildStdout>,
    pub address: String,
}

impl ServeProcess {
    /// Starts a server whose script and data lie in a folder, and waits until it takes work.
    pub fn start(folder: &Path, script: &Value, flags: &[&str]) -> Self {
        let file = folder.join("script.json");
        std::fs::write(&file, script.to_string()).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["serve", "--port", "0", "--data-dir"])
            .arg(folder.join("data"))
            .arg("--simulate")
            .arg(&file)
            .args(flags)
            .env_remove("PLIMSOLL_API_KEY")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut server = Self { process, lines, address: String::new() };
        let listening = server.line();
        server.address = listening.strip_prefix("listening http://").expect("the first line says where").to_owned();
        assert_eq!(server.line(), "ready scripted");
        server
    }

    /// The next line on stdout; empty at its end.
    pub fn line(&mut self) -> String {
        let mut text = String::new();
        self.lines.read_line(&mut text).unwrap();
        text.trim_end().to_owned()
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(name).arg(self.process.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// Sends a request and leaves the answer to be read.
    pub fn send(&self, method: &str, path: &str, body: &Value) -> TcpStream {
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

    /// Sends a request and reads the JSON of its answer.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut text = String::new();
        self.send(method, path, body).read_to_string(&mut text).unwrap();
        let at = text.find("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
        serde_json::from_str(&text[at + 4..]).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Waits for the process to end by itself.
    pub fn ended(&mut self, limit: Duration) -> ExitStatus {
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

impl Drop for ServeProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn chat(messages: &[Value]) -> Value {
    json!({"model": "scripted", "messages": messages})
}

/// A summary with a line in each section.
pub fn summary() -> String {
    SECTIONS.iter().map(|name| format!("## {name}\n- about {name}\n\n")).collect()
}

/// A conversation that fills most of a window of 65536 tokens with its first reply.
pub fn long_conversation() -> Vec<Value> {
    vec![
        json!({"role": "system", "content": "You keep notes."}),
        json!({"role": "user", "content": "The first request."}),
        json!({"role": "assistant", "content": "A long reply. ".repeat(2900)}),
        json!({"role": "user", "content": "Go on."}),
    ]
}
