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
            eprintln!("plimsoll: {}", told_once(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, without the causes that the text before them already ends with.
fn told_once(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if told.is_empty() {
            told = cause;
        } else if !told.ends_with(&cause) {
            told.push_str(": ");
            told.push_str(&cause);
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_the_error_already_tells_is_not_told_again() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read: {0}")]
        struct Read(#[from] std::io::Error);
        let broken = || std::io::Error::other("the disk is gone");
        let error = anyhow::Error::new(Read(broken())).context("loading `x`");
        assert_eq!(told_once(&error), "loading `x`: cannot read: the disk is gone");
        assert_eq!(told_once(&anyhow::Error::new(broken()).context("loading")), "loading: the disk is gone");
    }
}
