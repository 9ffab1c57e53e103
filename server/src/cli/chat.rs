//! `plimsoll chat`: a conversation in the terminal, with a server or with a model in this process.
//!
//! Both ways speak HTTP: a model in this process is served on a free loopback port for the length of the conversation,
//! so that what is seen here is what any client would see.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use super::event_client::{Endpoint, EventClient};
use super::in_process::serve_here;
use super::serve_options::ModelFlags;
use crate::data_folder::DataFolder;
use crate::load::load;

/// Talk to a model in the terminal.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  plimsoll chat
  plimsoll chat --url http://127.0.0.1:8080 --system \"Answer in one sentence.\"
  echo \"What is a Plimsoll line?\" | plimsoll chat --preset demo

An empty line or Ctrl-D ends the conversation, /new starts another one.")]
pub struct Chat {
    /// Talk to this server instead of loading a model; http:// only.
    #[arg(long, conflicts_with_all = ["preset", "model", "simulate"])]
    url: Option<String>,
    /// The key of that server.
    #[arg(long, env = "PLIMSOLL_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// The model's name on that server [default: its first].
    #[arg(long, requires = "url", value_name = "ID")]
    id: Option<String>,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of a reply.
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u32>,
    /// 0 is greedy.
    #[arg(long)]
    temperature: Option<f32>,
    /// Keep the session in this folder; a running server has its own folder for itself [default: in memory].
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    models: ModelFlags,
}

impl Chat {
    /// Talks until the input ends.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let outcome = runtime.block_on(self.talk());
        runtime.shutdown_background();
        outcome
    }

    async fn talk(self) -> anyhow::Result<ExitCode> {
        let Self { url, api_key, id, system, max_tokens, temperature, data_dir, models } = self;
        let endpoint = match url {
            Some(url) => Endpoint::parse(&url, api_key)?,
            None => {
                let wanted = models.decide()?;
                serve_here(move || load(&wanted), data_dir.map_or(DataFolder::Memory, DataFolder::named)).await?
            }
        };
        let client = EventClient::new(endpoint);
        let model = match id {
            Some(id) => id,
            None => {
                let list = client.get("/v1/models").await?;
                list["first_id"].as_str().context("the server offers no model")?.to_owned()
            }
        };
        let opening: Vec<Value> = system.into_iter().map(|text| json!({"role": "system", "content": text})).collect();
        let mut messages = opening.clone();
        let interactive = std::io::stdin().is_terminal();
        if interactive {
            eprintln!("Talking to {model}. An empty line ends the conversation, /new starts another one.");
        }
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if interactive {
                eprint!("> ");
            }
            let line = match lines.next().transpose()? {
                Some(line) if !line.trim().is_empty() => line,
                _ => return Ok(ExitCode::SUCCESS),
            };
            if line.trim() == "/new" {
                messages = opening.clone();
                continue;
            }
            messages.push(json!({"role": "user", "content": line}));
            let mut body = json!({"model": model, "messages": messages, "stream": true});
            if let Some(limit) = max_tokens {
                body["max_tokens"] = limit.into();
            }
            if let Some(temperature) = temperature {
                body["temperature"] = temperature.into();
            }
            match say(&client, body).await {
                Ok(reply) => messages.push(json!({"role": "assistant", "content": reply})),
                Err(error) if interactive => {
                    messages.pop();
                    eprintln!("{error:#}");
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Prints a reply as it comes, then its meter line, and returns it.
async fn say(client: &EventClient, body: Value) -> anyhow::Result<String> {
    let started = Instant::now();
    let mut events = client.post_events("/v1/chat/completions", &body).await?;
    let mut reply = String::new();
    let mut context = Value::Null;
    while let Some(event) = events.next().await? {
        if let Some(message) = event["error"]["message"].as_str() {
            bail!("{message}");
        }
        let delta = &event["choices"][0]["delta"];
        if let Some(text) = delta["content"].as_str() {
            reply.push_str(text);
            print!("{text}");
            std::io::stdout().flush()?;
        }
        if !event["context"].is_null() {
            context = event["context"].clone();
        }
    }
    println!();
    let number = |field: &str| context[field].as_u64().unwrap_or(0);
    let completion = number("completion");
    let seconds = started.elapsed().as_secs_f64();
    eprintln!(
        "[{} of {} tokens · {} cached · {} left · zone {} · {completion} tokens in {seconds:.1} s]",
        number("prompt") + completion,
        number("window"),
        number("cached"),
        number("remaining"),
        context["zone"].as_str().unwrap_or("unknown"),
    );
    Ok(reply)
}
