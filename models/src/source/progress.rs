//! What a person who waits for a download sees.
//!
//! Owns the choice between a moving bar (a terminal), plain lines (a log), and silence. Writes to stderr only, past the
//! test harness's capture, so that a test that is skipped or waits for a download says so visibly. Never decides what
//! is worth saying.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Time between two plain lines of one download.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// How to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// A bar that moves; for terminals.
    Bar,
    /// Lines, at most one in ten seconds; for logs.
    Lines,
    /// Nothing.
    Silent,
}

impl Report {
    /// A bar if stderr is a terminal, else lines.
    pub fn for_stderr() -> Self {
        if std::io::stderr().is_terminal() { Self::Bar } else { Self::Lines }
    }

    /// Says one line.
    pub fn say(self, line: &str) {
        if self != Self::Silent {
            // A log that cannot be written to is no reason to fail a download.
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        }
    }

    /// Starts the report of one transfer of `total` bytes (0 if that is not known).
    pub fn start(self, label: &str, total: u64) -> Progress {
        let bar = (self == Self::Bar).then(|| {
            let bar = ProgressBar::new(total);
            let template = if total == 0 {
                "{spinner} {msg} {bytes} {bytes_per_sec}"
            } else {
                "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
            };
            bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
            bar.set_message(label.to_owned());
            bar
        });
        self.say_if(bar.is_none(), || match total {
            0 => format!("{label}: starting"),
            _ => format!("{label}: {}", HumanBytes(total)),
        });
        Progress { report: self, bar, label: label.to_owned(), total, position: 0, last_line: Instant::now() }
    }

    fn say_if(self, condition: bool, line: impl FnOnce() -> String) {
        if condition {
            self.say(&line());
        }
    }
}

/// The report of one transfer.
#[derive(Debug)]
pub struct Progress {
    report: Report,
    bar: Option<ProgressBar>,
    label: String,
    total: u64,
    position: u64,
    last_line: Instant,
}

impl Progress {
    /// Moves to `position` bytes.
    pub fn set(&mut self, position: u64) {
        self.position = position;
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            let total = if self.total == 0 { String::new() } else { format!(" of {}", HumanBytes(self.total)) };
            self.report.say(&format!("{}: {}{total}", self.label, HumanBytes(position)));
        }
    }

    /// Says one line without disturbing the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.report.say(line)),
            None => self.report.say(line),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
