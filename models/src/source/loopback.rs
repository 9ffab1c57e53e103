//! A small HTTP server on the loopback interface for the tests of this folder: one thread per connection, one reply
//! per connection, and the faults a network has (a cut, a stall).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request's head.
pub struct Request {
    /// Path and query.
    pub path: String,
    /// The `Host` header.
    pub host: String,
    headers: Vec<(String, String)>,
}

impl Request {
    /// A header's value; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Clone)]
enum Fault {
    None,
    CutAfter(usize),
    StallAfter(usize),
}

/// What is sent back.
#[derive(Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    fault: Fault,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), fault: Fault::None }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn set(&mut self, name: &str, value: &str) {
        for (key, old) in &mut self.headers {
            if key == name {
                *old = value.into();
            }
        }
    }

    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    /// Announces the whole body, sends so many bytes, and closes.
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.fault = Fault::CutAfter(bytes);
        self
    }

    /// Announces the whole body, sends so many bytes, and then nothing for longer than a test's client waits.
    pub fn stall_after(mut self, bytes: usize) -> Self {
        self.fault = Fault::StallAfter(bytes);
        self
    }
}

/// A running server; it stops when dropped.
pub struct Loopback {
    address: std::net::SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Loopback {
    /// `http://127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept call.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves until dropped.
pub fn serve(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Loopback {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let reply = Arc::new(reply);
    let thread = std::thread::spawn({
        let stop = stop.clone();
        move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(connection), reply) = (connection, reply.clone()) else { return };
                std::thread::spawn(move || answer(connection, &*reply));
            }
        }
    });
    Loopback { address, stop, thread: Some(thread) }
}

fn answer(mut connection: TcpStream, reply: &dyn Fn(&Request) -> Reply) {
    let mut reader = BufReader::new(connection.try_clone().unwrap().take(64 * 1024));
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(1..) if !line.trim().is_empty() => lines.push(line.trim().to_owned()),
            _ => break,
        }
    }
    let Some(path) = lines.first().and_then(|line| line.split(' ').nth(1)) else { return };
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let host = headers.iter().find(|(name, _)| name == "host").map_or(String::new(), |(_, value)| value.clone());
    let reply = reply(&Request { path: path.to_owned(), host, headers });
    let mut head = format!("HTTP/1.1 {} Reply\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", reply.body.len());
    let (sent, pause) = match reply.fault {
        Fault::None => (reply.body.len(), Duration::ZERO),
        Fault::CutAfter(bytes) => (bytes.min(reply.body.len()), Duration::ZERO),
        Fault::StallAfter(bytes) => (bytes.min(reply.body.len()), Duration::from_secs(3)),
    };
    // The client may have gone; that is its right.
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&reply.body[..sent]));
    std::thread::sleep(pause);
}
