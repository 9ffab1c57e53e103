//! The `plimsoll` command: parses the command line and turns the outcome into an exit code.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong use.

use std::process::ExitCode;

use clap::Parser;
use plimsoll_server::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("plimsoll: {error:#}");
            ExitCode::FAILURE
        }
    }
}
