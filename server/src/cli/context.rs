//! `plimsoll context`: the window's arithmetic on the command line.
//!
//! `budget` divides a window and prints the token counts, or refuses; `level` says how full a window is, from a count,
//! from a usage that somebody else measured, or from the size of a transcript. Owns how the words on the command line
//! and in the environment become numbers; the arithmetic is the runtime's.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_models::preset::PresetLibrary;
use plimsoll_runtime::budget::{
    Budget, BudgetConfig, Counted, Counts, DEFAULT_EMERGENCY, Level, Meter, Policy, Ratio, Tokens, Usage,
};
use serde_json::{Map, Value, json};

use crate::preset_budget::preset_budget;

/// Bytes of a transcript that count as a full window, unless `CONSERVE_CONTEXT_WINDOW_BYTES` says otherwise.
const TRANSCRIPT_BYTES: u64 = 800_000;
/// An estimate from a file's size never claims more than this.
const MOST_ESTIMATED: Ratio = Ratio::new(95, 2);
/// Cells of the drawn window.
const BAR_WIDTH: usize = 64;

/// Divide a window, or say how full one is.
#[derive(Debug, clap::Args)]
pub struct Context {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Budget(BudgetArguments),
    Level(LevelArguments),
}

/// Divide a window into thresholds and reserves, in exact tokens.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll context budget --window 64000
  plimsoll context budget --window 64000 --set compaction=0.65 --set summary=3000 --json
  plimsoll context budget --preset local-robust-9b

Quantities: economy, checkpoint, compaction, response, summary, summary_min, safety, retain;
values below 1 are shares of the window, others tokens. Full keys of the budget section of a
preset (compaction_ratio, automatic_compaction, ...) are taken as they are. A division that
breaks an invariant is refused with the numbers and exit code 2.")]
struct BudgetArguments {
    /// Tokens of the window, prompt and reply together.
    #[arg(long, value_name = "TOKENS", required_unless_present = "preset")]
    window: Option<u32>,
    /// Start from the budget of this preset.
    #[arg(long)]
    preset: Option<String>,
    /// Change one quantity.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Say how full a window is: ok, warning, critical or emergency.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll context level --tokens 31000 --window 64000
  plimsoll context level --usage 0.62
  plimsoll context level --transcript session.jsonl --json

Without arguments the usage is read from CLAUDE_CONTEXT_USAGE. CONSERVE_EMERGENCY_THRESHOLD
moves the emergency level. A transcript's size is an estimate (CONSERVE_CONTEXT_WINDOW_BYTES is
a full window, CONSERVE_CONTEXT_ESTIMATION=0 switches it off); an estimate never says more than
warning.")]
struct LevelArguments {
    /// Tokens in use, prompt and reply together.
    #[arg(long, conflicts_with_all = ["usage", "transcript"])]
    tokens: Option<u32>,
    /// Tokens of the window that --tokens is in; divided with the default ratios.
    #[arg(long, value_name = "TOKENS", requires = "tokens")]
    window: Option<u32>,
    /// The preset whose window --tokens is in.
    #[arg(long, requires = "tokens", conflicts_with = "window")]
    preset: Option<String>,
    /// Usage of the reduced window, from 0 to 1.
    #[arg(long, value_name = "SHARE", conflicts_with = "transcript", allow_negative_numbers = true)]
    usage: Option<String>,
    /// Estimate the usage from the size of this file.
    #[arg(long, value_name = "FILE")]
    transcript: Option<PathBuf>,
    /// The number is an estimate: never say more than warning.
    #[arg(long)]
    estimated: bool,
    /// From this usage on it is an emergency.
    #[arg(long, value_name = "SHARE", env = "CONSERVE_EMERGENCY_THRESHOLD")]
    emergency: Option<String>,
    /// Print JSON instead of a word.
    #[arg(long)]
    json: bool,
}

/// What the user got wrong, as a sentence.
#[derive(Debug, PartialEq, Eq)]
struct Misuse(String);

impl<E: std::error::Error> From<E> for Misuse {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl Context {
    /// Prints what was asked for; exit code 2 with the reason if it cannot be.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (json, answer) = match self.action {
            Action::Budget(arguments) => (arguments.json, arguments.answer()),
            Action::Level(arguments) => (arguments.json, arguments.answer(|name| std::env::var(name).ok())),
        };
        let mut out = std::io::stdout().lock();
        match answer {
            Ok(text) => {
                out.write_all(text.as_bytes())?;
                Ok(ExitCode::SUCCESS)
            }
            Err(Misuse(reason)) => {
                if json {
                    writeln!(out, "{}", json!({"error": reason}))?;
                }
                eprintln!("plimsoll: {reason}");
                Ok(ExitCode::from(2))
            }
        }
    }
}

/// The budget section of a preset.
fn preset_section(name: &str) -> Result<Map<String, Value>, Misuse> {
    let library = PresetLibrary::load()?;
    let preset = library.get(name).ok_or_else(|| Misuse(format!("no preset is called {name:?}")))?;
    Ok(preset.budget.0.clone())
}

impl BudgetArguments {
    fn answer(&self) -> Result<String, Misuse> {
        let mut section = self.preset.as_deref().map_or_else(|| Ok(Map::new()), preset_section)?;
        for setting in &self.set {
            set(&mut section, setting)?;
        }
        let config: BudgetConfig = serde_json::from_value(Value::Object(section))?;
        let budget = Budget::resolve(self.window.map(Tokens), &config)?;
        if self.json {
            return Ok(serde_json::to_string_pretty(&budget)? + "\n");
        }
        Ok(table(&budget))
    }
}

/// Puts one `KEY=VALUE` into a budget section.
fn set(section: &mut Map<String, Value>, setting: &str) -> Result<(), Misuse> {
    let (key, text) = setting
        .split_once('=')
        .map(|(key, value)| (key.trim(), value.trim()))
        .ok_or_else(|| Misuse(format!("--set {setting}: expected KEY=VALUE, like compaction=0.65")))?;
    const QUANTITIES: [&str; 8] =
        ["economy", "checkpoint", "compaction", "response", "summary", "summary_min", "safety", "retain"];
    if !QUANTITIES.contains(&key) {
        // A full key: its value is JSON, or a bare word.
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
        section.insert(key.to_owned(), value);
        return Ok(());
    }
    let (ratio_key, tokens_key) = (format!("{key}_ratio"), format!("{key}_tokens"));
    let number: f64 = text
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
        .ok_or_else(|| Misuse(format!("--set {key}={text}: expected a share below 1 or a number of tokens")))?;
    if number < 1.0 {
        section.insert(ratio_key, json!(number));
    } else {
        let tokens: u32 =
            text.parse().map_err(|_| Misuse(format!("--set {key}={text}: expected a whole number of tokens")))?;
        // A ratio in the preset would win over the tokens that were asked for.
        section.remove(&ratio_key);
        section.insert(tokens_key, json!(tokens));
    }
    Ok(())
}

fn table(budget: &Budget) -> String {
    let mut text = String::new();
    let mut row = |name: &str, tokens: Tokens, what: &str| {
        let share = f64::from(tokens.0) / f64::from(budget.window.0) * 100.0;
        writeln!(text, "{name:<12} {:>8}  {share:>5.1} %  {what}", tokens.0).expect("a string takes everything");
    };
    row("window", budget.window, "prompt and reply together");
    row("effective", budget.effective, "window - summary - safety: what levels refer to");
    row("economy", budget.economy, "from here the model is told to be frugal");
    row("checkpoint", budget.checkpoint, "from here it is told to keep its facts in order");
    row("compaction", budget.compaction, "from here a session will be summarised (not in this version)");
    row("response", budget.response, "cap of one reply");
    row("summary", budget.summary, "most output of a summary");
    row("summary_min", budget.summary_min, "least output of a summary");
    row("safety", budget.safety, "never used");
    row("retain", budget.retain, "verbatim tail of a compaction that keeps one");
    if let Some(blocking) = budget.blocking {
        row("blocking", blocking, "a prompt of this many tokens is refused");
    }
    let policy = match budget.policy {
        Policy::Ratio => "ratio",
        Policy::Absolute => "absolute",
    };
    writeln!(text, "policy {policy}, automatic compaction {}", budget.automatic_compaction)
        .expect("a string takes everything");
    for warning in &budget.warnings {
        writeln!(text, "warning: {warning}").expect("a string takes everything");
    }
    text + "\n" + &Meter::new("", budget, Counts::default()).bar(BAR_WIDTH) + "\n"
}

impl LevelArguments {
    /// `variable` reads the environment.
    fn answer(&self, variable: impl Fn(&str) -> Option<String>) -> Result<String, Misuse> {
        let emergency = match &self.emergency {
            Some(text) => share("the emergency level", text)?,
            None => DEFAULT_EMERGENCY,
        };
        let mut counted = if self.estimated { Counted::Estimated } else { Counted::Measured };
        let (usage, shown): (Usage, f64) = if let Some(tokens) = self.tokens {
            let budget = match (&self.preset, self.window) {
                (Some(preset), _) => {
                    let library = PresetLibrary::load()?;
                    let preset =
                        library.get(preset).ok_or_else(|| Misuse(format!("no preset is called {preset:?}")))?;
                    preset_budget(preset).map_err(|error| Misuse(error.to_string()))?
                }
                (None, Some(window)) => Budget::resolve(Some(Tokens(window)), &BudgetConfig::default())?,
                (None, None) => return Err(Misuse("--tokens needs --window or --preset".to_owned())),
            };
            let shown = f64::from(tokens) / f64::from(budget.effective.0);
            (Usage::of(Tokens(tokens), budget.effective), shown)
        } else {
            let ratio = match (&self.usage, &self.transcript) {
                (Some(text), _) => Some(share("the usage", text)?),
                (None, Some(path)) => {
                    counted = Counted::Estimated;
                    estimate(path, &variable)?
                }
                (None, None) => from_environment(&variable),
            };
            let ratio = ratio.ok_or_else(|| {
                Misuse("no usage: give --tokens, --usage or --transcript, or set CLAUDE_CONTEXT_USAGE".to_owned())
            })?;
            (Usage::from(ratio), ratio.to_string().parse().unwrap_or(f64::NAN))
        };
        let level = Level::of(usage, emergency, counted)?;
        if self.json {
            let how = match counted {
                Counted::Measured => "measured",
                Counted::Estimated => "estimated",
            };
            let answer = json!({"level": level.name(), "usage": shown, "emergency": emergency, "counted": how});
            return Ok(format!("{answer}\n"));
        }
        Ok(format!("{}\n", level.name()))
    }
}

fn share(what: &str, text: &str) -> Result<Ratio, Misuse> {
    text.trim().parse().map_err(|_| Misuse(format!("{what} is {text:?}, expected a number from 0 to 1")))
}

/// The usage that somebody else measured; what is no number is ignored with a warning.
fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Ratio> {
    let text = variable("CLAUDE_CONTEXT_USAGE").filter(|text| !text.trim().is_empty())?;
    match text.trim().parse() {
        Ok(usage) => Some(usage),
        Err(_) => {
            eprintln!("plimsoll: CLAUDE_CONTEXT_USAGE is {text:?}, which is no number from 0 to 1; ignored");
            None
        }
    }
}

/// `min(size / full window, 0.95)`, unless estimates are switched off.
fn estimate(path: &std::path::Path, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Ratio>, Misuse> {
    if variable("CONSERVE_CONTEXT_ESTIMATION").as_deref() == Some("0") {
        return Ok(None);
    }
    let size = std::fs::metadata(path).map_err(|error| Misuse(format!("cannot read {}: {error}", path.display())))?;
    let full = match variable("CONSERVE_CONTEXT_WINDOW_BYTES") {
        Some(text) => text.trim().parse().ok().filter(|&bytes: &u64| bytes > 0).ok_or_else(|| {
            Misuse(format!("CONSERVE_CONTEXT_WINDOW_BYTES is {text:?}, expected a positive number of bytes"))
        })?,
        None => TRANSCRIPT_BYTES,
    };
    // Six decimals of a share are far finer than the estimate.
    let millionths = u128::from(size.len()) * 1_000_000 / u128::from(full);
    let ratio = Ratio::new(u64::try_from(millionths).unwrap_or(u64::MAX), 6);
    Ok(Some(ratio.min(MOST_ESTIMATED)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        context: Context,
    }

    fn answer(line: &str, environment: &[(&str, &str)]) -> Result<String, Misuse> {
        let words = std::iter::once("context").chain(line.split_whitespace());
        let Line { context } = Line::try_parse_from(words).map_err(|error| Misuse(error.to_string()))?;
        let variable =
            |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        match context.action {
            Action::Budget(arguments) => arguments.answer(),
            Action::Level(arguments) => arguments.answer(variable),
        }
    }

    fn budget(line: &str) -> Value {
        serde_json::from_str(&answer(&format!("budget --json {line}"), &[]).unwrap()).unwrap()
    }

    #[test]
    fn a_window_is_divided_by_the_default_ratios() {
        let budget = budget("--window 64000");
        for (key, tokens) in [("economy", 32_000), ("checkpoint", 40_000), ("compaction", 44_800), ("retain", 15_625)] {
            assert_eq!(budget[key], tokens, "{key}");
        }
    }

    #[test]
    fn values_below_one_are_shares_and_others_are_tokens() {
        assert_eq!(budget("--window 64000 --set economy=0.4")["economy"], 25_600);
        assert_eq!(budget("--window 64000 --set economy=20000")["economy"], 20_000);
        assert_eq!(budget("--window 2570 --set automatic_compaction=false")["compaction"], 1799);
        assert_eq!(budget("--preset local-robust-27b --set summary=3000")["summary"], 3000, "over the preset's ratio");
        assert_eq!(budget("--preset local-robust-27b --window 100000")["window"], 100_000);
    }

    #[test]
    fn a_division_that_breaks_an_invariant_is_refused_with_the_numbers() {
        for (line, part) in [
            ("--window 64000 --set compaction=46080", "64080"),
            ("--window 64000 --set compaction_ratio=0.72", "64080"),
            ("--window 64000 --set compaction_ratio=1.0", "compaction_ratio is 1"),
            ("--window 64000 --set economy=500 --set checkpoint=400", "economy 500"),
            ("--window 64000 --set sumary=0.1", "sumary"),
            ("--window 64000 --set compaction", "KEY=VALUE"),
            ("--window 64000 --set compaction=half", "half"),
            ("--window 64000 --set compaction=1.5", "whole number"),
            ("--window 64000 --set compaction=-0.5", "0.5"),
            ("--window 64000 --set compaction=NaN", "NaN"),
            ("--window 100", "2048"),
            ("--preset nobody", "nobody"),
            ("", "--window"),
        ] {
            let Misuse(reason) = answer(&format!("budget {line}"), &[]).unwrap_err();
            assert!(reason.contains(part), "{line}: {reason}");
        }
    }

    #[test]
    fn the_table_shows_every_quantity_and_the_window() {
        insta::assert_snapshot!(answer("budget --window 64000", &[]).unwrap());
    }

    fn level(line: &str, environment: &[(&str, &str)]) -> String {
        answer(&format!("level {line}"), environment).unwrap().trim().to_owned()
    }

    #[test]
    fn levels_follow_the_documented_steps() {
        for (usage, expected) in [
            ("0", "ok"),
            ("0.3999", "ok"),
            ("0.4", "warning"),
            ("0.5", "critical"),
            ("0.8", "emergency"),
            ("1", "emergency"),
        ] {
            assert_eq!(level(&format!("--usage {usage}"), &[]), expected, "{usage}");
        }
        assert_eq!(level("--usage 0.6 --emergency 0.6", &[]), "emergency");
        assert_eq!(level("--usage 0.85 --estimated", &[]), "warning");
        assert_eq!(level("--tokens 29000 --window 64000", &[]), "critical", "of the reduced window of 58000");
        assert_eq!(level("--tokens 28999 --window 64000", &[]), "warning");
        assert_eq!(level("--tokens 29000 --preset local-robust-27b", &[]), "critical");
        for line in ["--usage 1.1", "--usage -0.1", "--usage much", "--tokens 5", "", "--tokens 60000 --window 64000"] {
            assert!(answer(&format!("level {line}"), &[]).is_err(), "{line}");
        }
    }

    #[test]
    fn the_environment_gives_a_usage_where_no_argument_does() {
        let set = [("CLAUDE_CONTEXT_USAGE", "0.55")];
        assert_eq!(level("", &set), "critical");
        assert_eq!(level("--usage 0.1", &set), "ok");
        assert!(answer("level", &[("CLAUDE_CONTEXT_USAGE", "")]).is_err());
        assert!(answer("level", &[("CLAUDE_CONTEXT_USAGE", "half")]).is_err());
    }

    #[test]
    fn a_transcript_is_an_estimate_and_never_more_than_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session.jsonl");
        std::fs::File::create(&path).unwrap().set_len(400_000).unwrap();
        let line = format!("--transcript {} --json", path.display());
        let answer_with =
            |environment: &[(&str, &str)]| -> Value { serde_json::from_str(&level(&line, environment)).unwrap() };
        let half = answer_with(&[]);
        assert_eq!(
            (&half["usage"], &half["level"], &half["counted"]),
            (&json!(0.5), &json!("warning"), &json!("estimated"))
        );
        assert_eq!(answer_with(&[("CONSERVE_CONTEXT_WINDOW_BYTES", "1000")])["usage"], json!(0.95));
        assert!(answer(&format!("level {line}"), &[("CONSERVE_CONTEXT_ESTIMATION", "0")]).is_err());
        assert!(answer(&format!("level {line}"), &[("CONSERVE_CONTEXT_WINDOW_BYTES", "0")]).is_err());
    }
}
