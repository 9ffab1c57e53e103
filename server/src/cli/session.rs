//! `plimsoll session`: the sessions of a running server.
//!
//! Speaks to the server over HTTP like any client. Owns how a session is drawn in the terminal; the numbers are the
//! server's.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use plimsoll_runtime::budget::Meter;
use serde::Deserialize;
use serde_json::{Value, json};

use super::event_client::{Endpoint, EventClient, path_segment};

/// Cells of the drawn window.
const BAR_WIDTH: usize = 64;
/// Characters of a summary line that are shown.
const SHOWN_LINE: usize = 110;

/// List, show, compact, resume or delete the sessions of a running server.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll session list
  plimsoll session show ses_0123456789abcdef0123456789abcdef
  plimsoll session compact my-session --instructions \"Keep every error text.\"
  plimsoll session delete my-session --url http://127.0.0.1:9000

A session is named by its id or by the name its client gave it. With API keys, only the sessions
of the given key are there.")]
pub struct Session {
    #[command(subcommand)]
    action: Action,
    /// The server; http:// only.
    #[arg(long, env = "PLIMSOLL_URL", default_value = "http://127.0.0.1:8080", global = true)]
    url: String,
    /// The key of that server.
    #[arg(long, env = "PLIMSOLL_API_KEY", hide_env_values = true, value_name = "KEY", global = true)]
    api_key: Option<String>,
    /// Print the server's JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all sessions, most recently used first.
    List,
    /// Draw a session's window and list its compactions.
    Show {
        /// The session's id or name.
        session: String,
    },
    /// Summarise a session and put the summary in the place of its history.
    Compact {
        /// The session's id or name.
        session: String,
        /// What the model is told in place of the usual instruction.
        #[arg(long, value_name = "TEXT")]
        instructions: Option<String>,
    },
    /// Let a session go on that was stopped because its compaction failed.
    Resume {
        /// The session's id or name.
        session: String,
    },
    /// Forget a session: its history, its compactions, its place in the cache.
    Delete {
        /// The session's id or name.
        session: String,
    },
}

/// A session in a list.
#[derive(Deserialize)]
struct Listed {
    id: String,
    model: String,
    turns: u64,
    compactions: u64,
    context: Option<Meter>,
}

/// A session in full, as far as it is drawn.
#[derive(Deserialize)]
struct Shown {
    id: String,
    model: String,
    turns: u64,
    stopped: Option<String>,
    automatic_compaction: bool,
    context: Option<Meter>,
    compactions: Vec<Compaction>,
}

/// A compaction's record, as far as it is drawn.
#[derive(Deserialize)]
struct Compaction {
    id: String,
    trigger: String,
    state: String,
    /// Why, where it failed.
    message: Option<String>,
    live: bool,
    tokens_before: u64,
    tokens_after: Option<u64>,
    summary_tokens: u64,
    prefilled_tokens: u64,
    pause_ms: u64,
    summary_ms: u64,
    reprefill_ms: u64,
    summary: Option<String>,
    fallback_sections: Vec<String>,
}

impl Session {
    /// Asks the server and prints its answer.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let client = EventClient::new(Endpoint::parse(&self.url, self.api_key)?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(ask(&client, &self.action))?;
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &answer)?;
            writeln!(out)?;
        } else {
            out.write_all(drawn(&self.action, answer).context("reading the server's answer")?.as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn ask(client: &EventClient, action: &Action) -> anyhow::Result<Value> {
    let path = |session: &str| format!("/v1/sessions/{}", path_segment(session));
    match action {
        Action::List => client.get("/v1/sessions").await,
        Action::Show { session } => client.get(&path(session)).await,
        Action::Compact { session, instructions } => {
            let body = match instructions {
                Some(text) => json!({"instructions": text}),
                None => json!({}),
            };
            client.post(&format!("{}/compact", path(session)), &body).await
        }
        Action::Resume { session } => client.post(&format!("{}/resume", path(session)), &json!({})).await,
        Action::Delete { session } => client.delete(&path(session)).await,
    }
}

fn drawn(action: &Action, mut answer: Value) -> anyhow::Result<String> {
    Ok(match action {
        Action::List => list(&serde_json::from_value::<Vec<Listed>>(answer["data"].take())?),
        Action::Show { .. } => serde_json::from_value::<Shown>(answer)?.drawn(),
        Action::Compact { .. } => serde_json::from_value::<Compaction>(answer)?.drawn(),
        Action::Resume { .. } => {
            format!("{} goes on with its next request\n", answer["id"].as_str().unwrap_or("the session"))
        }
        Action::Delete { .. } => format!("{} is forgotten\n", answer["id"].as_str().unwrap_or("the session")),
    })
}

fn list(sessions: &[Listed]) -> String {
    if sessions.is_empty() {
        return "no sessions\n".to_owned();
    }
    let mut text =
        format!("{:<36}  {:<24} {:>6} {:>12}  {:>15}  zone\n", "session", "model", "turns", "compactions", "tokens");
    for session in sessions {
        let (tokens, zone) = match &session.context {
            Some(meter) => (format!("{}/{}", meter.used(), meter.window), meter.zone.name()),
            None => ("-".to_owned(), "-"),
        };
        let Listed { id, model, turns, compactions, .. } = session;
        writeln!(text, "{id:<36}  {model:<24} {turns:>6} {compactions:>12}  {tokens:>15}  {zone}")
            .expect("a string takes everything");
    }
    text
}

impl Shown {
    fn drawn(&self) -> String {
        let mut text = format!("{} · model {} · {} turns\n\n", self.id, self.model, self.turns);
        match &self.context {
            Some(meter) => text.push_str(&meter.bar(BAR_WIDTH)),
            None => text.push_str("no request of it since the server started"),
        }
        text.push('\n');
        if let Some(reason) = &self.stopped {
            text.push_str(&format!("\nstopped: {reason}; `plimsoll session resume {}` lets it go on\n", self.id));
        }
        if !self.automatic_compaction {
            text.push_str(
                "\nautomatic compaction is off for it after failures in a row; `session compact` resets that\n",
            );
        }
        for compaction in &self.compactions {
            text.push('\n');
            text.push_str(&compaction.drawn());
        }
        text
    }
}

impl Compaction {
    fn drawn(&self) -> String {
        let state = match &self.message {
            Some(message) => format!("{}: {message}", self.state),
            None => self.state.clone(),
        };
        let after = self.tokens_after.map_or("-".to_owned(), |tokens| tokens.to_string());
        let source = if self.live { "the live cache" } else { "the history, read again" };
        let mut text = format!(
            "{} · {} · {state} · from {source}\n  {} -> {after} tokens · summary {} tokens · {} fed for it · pause {} ms \
             (summary {} ms, reading again {} ms)\n",
            self.id,
            self.trigger,
            self.tokens_before,
            self.summary_tokens,
            self.prefilled_tokens,
            self.pause_ms,
            self.summary_ms,
            self.reprefill_ms,
        );
        if !self.fallback_sections.is_empty() {
            writeln!(text, "  filled with extracted facts: {}", self.fallback_sections.join(", "))
                .expect("a string takes everything");
        }
        for line in self.summary.iter().flat_map(|summary| summary.lines()) {
            let line: String = line.chars().filter(|character| !character.is_control()).take(SHOWN_LINE).collect();
            writeln!(text, "  | {line}").expect("a string takes everything");
        }
        text
    }
}
