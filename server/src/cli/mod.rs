//! The command line: one file per command, each with its arguments (`clap::Args`) and a `run`.
//!
//! A command prints results on stdout, everything for people's eyes (progress, hints, the log) on stderr, and
//! returns its exit code: 0 done, 1 failed, 2 wrong use.

mod bench;
mod chat;
mod context;
mod demo;
mod doctor;
mod event_client;
mod in_process;
mod models;
mod origin;
mod presets;
mod pull;
mod serve;
mod serve_options;
mod session;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An inference server for local models that budgets the context window to the token.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Serve(serve::Serve),
    Chat(chat::Chat),
    Pull(pull::Pull),
    Models(models::Models),
    Presets(presets::Presets),
    Session(session::Session),
    Context(context::Context),
    Doctor(doctor::Doctor),
    Verify(verify::Verify),
    Bench(bench::Bench),
}

impl Cli {
    /// Runs the chosen command to its end.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Demo(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Chat(command) => command.run(),
            Command::Pull(command) => command.run(),
            Command::Models(command) => command.run(),
            Command::Presets(command) => command.run(),
            Command::Session(command) => command.run(),
            Command::Context(command) => command.run(),
            Command::Doctor(command) => command.run(),
            Command::Verify(command) => command.run(),
            Command::Bench(command) => command.run(),
        }
    }
}
