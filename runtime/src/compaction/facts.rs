//! What the engine reads out of a conversation by itself: the user's own lines, paths, the last failing command, jobs.
//!
//! Facts fill a section where a model is too small to write one, and are checked against every summary: what is missing
//! is added to its last section. Reads text by its shape alone and may miss things; it never invents any.

use plimsoll_models::chat::{Message, Role};

use super::instruction::{CRITICAL_CONTEXT, NONE, SECTIONS};

/// Longest fact, in characters.
const FACT_CHARS: usize = 160;
/// Most facts of a kind; the newest are kept.
const MOST_OF_A_KIND: usize = 8;
/// Most bytes of a message that are looked at from each of its ends.
const LOOKED_AT: usize = 64 << 10;

/// Words that a line of a failing command holds.
const FAILURES: [&str; 9] =
    ["error", "failed", "failure", "panicked", "traceback", "exception", "fatal", "not found", "exit code"];
/// Words in front of the name of a job that runs by itself.
const JOBS: [&str; 6] = ["job", "pid", "task", "process", "background", "container"];

/// See the module's text. Lists are oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// First lines of the user's messages.
    pub user_lines: Vec<String>,
    /// Paths of files.
    pub paths: Vec<String>,
    /// Calls of tools: name and arguments.
    pub calls: Vec<String>,
    /// Names of tools that were called.
    pub tools: Vec<String>,
    /// The last call that failed, and the line that says so.
    pub failure: Option<(String, String)>,
    /// Lines that name a job.
    pub jobs: Vec<String>,
    /// The last line the assistant said.
    pub last_said: Option<String>,
}

impl Facts {
    /// The facts of a conversation.
    pub fn of(messages: &[Message]) -> Self {
        let mut facts = Self::default();
        let mut last_call = String::new();
        for message in messages {
            match message.role {
                Role::System => {}
                Role::User => {
                    if let Some(line) = first_line(&message.content) {
                        add(&mut facts.user_lines, line);
                    }
                }
                Role::Assistant => {
                    if let Some(line) = last_line(&message.content) {
                        facts.last_said = Some(line);
                    }
                    for call in &message.tool_calls {
                        last_call = shortened(&format!("{} {}", call.name, call.arguments));
                        add(&mut facts.calls, last_call.clone());
                        add(&mut facts.tools, call.name.clone());
                        facts.find_paths(&call.arguments);
                    }
                }
                Role::Tool => facts.read_result(&message.content, &last_call),
            }
            if message.role != Role::System {
                facts.find_paths(looked_at(&message.content));
            }
        }
        for list in [&mut facts.user_lines, &mut facts.paths, &mut facts.calls, &mut facts.tools, &mut facts.jobs] {
            let surplus = list.len().saturating_sub(MOST_OF_A_KIND);
            list.drain(..surplus);
        }
        facts
    }

    fn read_result(&mut self, result: &str, call: &str) {
        let mut failing = None;
        for line in looked_at(result).lines() {
            let lower = line.to_lowercase();
            if FAILURES.iter().any(|word| lower.contains(word)) && !reports_success(&lower) {
                failing = Some(line);
            }
            if JOBS.iter().any(|word| names_a_job(&lower, word)) {
                add(&mut self.jobs, shortened(line));
            }
        }
        if let Some(line) = failing {
            self.failure = Some((call.to_owned(), shortened(line)));
        }
    }

    fn find_paths(&mut self, text: &str) {
        let separators = |c: char| c.is_whitespace() || "\"'`()[]{}<>,;=|".contains(c);
        // A diff names each file twice, with a letter in front.
        let in_diff = text.contains("--- a/") || text.contains("+++ b/");
        for word in text.split(separators) {
            let word = word.trim_end_matches(['.', ':', '!', '?']);
            let word = word.split(":").next().unwrap_or(word);
            let of_diff = word.strip_prefix("a/").or_else(|| word.strip_prefix("b/"));
            let word = of_diff.filter(|_| in_diff).unwrap_or(word);
            if looks_like_a_path(word) {
                add(&mut self.paths, word.to_owned());
            }
        }
    }

    /// Lines for a section that the model did not write; at least one.
    pub fn section(&self, section: usize) -> Vec<String> {
        let bullets = |list: &[String]| list.iter().map(|fact| format!("- {fact}")).collect::<Vec<_>>();
        let lines = match SECTIONS[section] {
            "Primary Request and Intent" => bullets(&self.user_lines[..self.user_lines.len().min(1)]),
            "Key Technical Concepts" if !self.tools.is_empty() => {
                vec![format!("- tools in use: {}", self.tools.join(", "))]
            }
            "Files and Code" => bullets(&self.paths),
            "Errors and Fixes" => match &self.failure {
                Some((call, line)) if call.is_empty() => vec![format!("- {line}")],
                Some((call, line)) => vec![format!("- last failing: {call}: {line}")],
                None => Vec::new(),
            },
            "Pending Jobs" => bullets(&self.jobs),
            "Current Work" => match (self.calls.last(), &self.last_said) {
                (Some(call), _) => vec![format!("- last call: {call}")],
                (None, Some(said)) => vec![format!("- last said: {said}")],
                (None, None) => Vec::new(),
            },
            "Next Step" => self.user_lines.last().map(|line| format!("- go on with: {line}")).into_iter().collect(),
            "Critical Context" => bullets(self.user_lines.get(1..).unwrap_or_default()),
            _ => Vec::new(),
        };
        if lines.is_empty() { vec![NONE.to_owned()] } else { lines }
    }

    /// Facts that stand nowhere in a summary, as lines for its last section, most important first.
    pub fn missing_from(&self, summary: &str) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some((call, line)) = &self.failure
            && !summary.contains(line.trim())
        {
            lines.push(if call.is_empty() { format!("- {line}") } else { format!("- last failing: {call}: {line}") });
        }
        let jobs = self.jobs.iter().rev().filter(|job| !summary.contains(job.as_str()));
        lines.extend(jobs.map(|job| format!("- job: {job}")));
        let paths: Vec<&str> =
            self.paths.iter().rev().map(String::as_str).filter(|path| !summary.contains(path)).collect();
        if !paths.is_empty() {
            lines.push(format!("- paths: {}", paths.join(", ")));
        }
        if let Some(call) = self.calls.last()
            && !summary.contains(call.as_str())
        {
            lines.push(format!("- last call: {call}"));
        }
        lines
    }
}

/// The section that facts are added to.
pub const ADDED_TO: usize = CRITICAL_CONTEXT;

/// A fact that is known already becomes the newest.
fn add(list: &mut Vec<String>, fact: String) {
    if let Some(at) = list.iter().position(|known| *known == fact) {
        list.remove(at);
    }
    list.push(fact);
}

fn shortened(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(FACT_CHARS) {
        None => line.replace('\n', " "),
        Some((end, _)) => format!("{}…", line[..end].replace('\n', " ")),
    }
}

fn first_line(text: &str) -> Option<String> {
    text.lines().find(|line| !line.trim().is_empty()).map(shortened)
}

fn last_line(text: &str) -> Option<String> {
    text.lines().rev().find(|line| !line.trim().is_empty()).map(shortened)
}

/// The end of a text that is too long to be looked at as a whole: what went wrong is said last.
fn looked_at(text: &str) -> &str {
    let mut from = text.len().saturating_sub(LOOKED_AT);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// `0 failed`, `no errors`: the word stands there, the thing does not.
fn reports_success(lower: &str) -> bool {
    ["0 failed", "0 errors", "0 failures", "no error", "exit code 0", "exit code: 0", "errors: 0"]
        .iter()
        .any(|good| lower.contains(good))
}

/// The word, and a number or a name with digits behind it.
fn names_a_job(lower: &str, word: &str) -> bool {
    let Some(at) = lower.find(word) else { return false };
    let begins = lower[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric());
    let behind = lower[at + word.len()..].trim_start_matches([':', '=', '#', '-', '_', ' ']);
    let name: String = behind.chars().take_while(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect();
    begins && name.chars().any(|c| c.is_ascii_digit())
}

/// A word with a slash or a known ending, and nothing that paths do not have.
fn looks_like_a_path(word: &str) -> bool {
    const ENDINGS: [&str; 24] = [
        "rs", "py", "ts", "tsx", "js", "go", "c", "h", "cpp", "cu", "java", "toml", "json", "yaml", "yml", "md", "txt",
        "log", "sh", "sql", "html", "css", "lock", "cfg",
    ];
    if word.len() < 3 || word.len() > 200 || word.starts_with("//") || word.contains("//") {
        return false;
    }
    let well_formed = word.chars().all(|c| c.is_alphanumeric() || "/._-+@~".contains(c));
    let letters = word.chars().any(char::is_alphabetic);
    let name = word.rsplit('/').next().unwrap_or(word);
    let ending = name.rsplit_once('.').is_some_and(|(stem, ending)| !stem.is_empty() && ENDINGS.contains(&ending));
    let rooted = word.starts_with('/') && word.len() > 2 && !word.ends_with('/');
    well_formed && letters && (ending || rooted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_models::chat::ToolCall;
    use proptest::prelude::*;

    fn conversation() -> Vec<Message> {
        let call = ToolCall { id: "1".into(), name: "bash".into(), arguments: r#"{"cmd":"cargo test"}"#.into() };
        vec![
            Message::text(Role::User, "Fix the parser in src/parser.rs.\nDo not touch the tests."),
            Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "Running the tests.") },
            Message::text(
                Role::Tool,
                "test a ... ok\nerror: expected `;` at src/lexer.rs:41\nstarted job 4711 in /tmp/out.log",
            ),
            Message::text(Role::User, "Keep the public API."),
        ]
    }

    #[test]
    fn facts_are_what_stands_there() {
        let facts = Facts::of(&conversation());
        assert_eq!(facts.user_lines, ["Fix the parser in src/parser.rs.", "Keep the public API."]);
        assert_eq!(facts.paths, ["src/parser.rs", "src/lexer.rs", "/tmp/out.log"]);
        let (call, line) = facts.failure.clone().unwrap();
        assert_eq!(call, r#"bash {"cmd":"cargo test"}"#);
        assert_eq!(line, "error: expected `;` at src/lexer.rs:41");
        assert_eq!(facts.jobs, ["started job 4711 in /tmp/out.log"]);
        assert_eq!(facts.section(3), [format!("- last failing: {call}: {line}")]);
        assert_eq!(facts.section(6), ["- go on with: Keep the public API."]);
    }

    #[test]
    fn a_diff_names_its_file_once() {
        let diff = "--- a/src/lexer.rs\n+++ b/src/lexer.rs\n@@ -1 +1 @@\n-x\n+y";
        let facts = Facts::of(&[Message::text(Role::Tool, diff)]);
        assert_eq!(facts.paths, ["src/lexer.rs"]);
        let facts = Facts::of(&[Message::text(Role::Tool, "wrote a/src/lexer.rs")]);
        assert_eq!(facts.paths, ["a/src/lexer.rs"]);
    }

    #[test]
    fn a_success_is_no_failure_and_prose_is_no_path() {
        let facts = Facts::of(&[Message::text(Role::Tool, "test result: ok. 5 passed; 0 failed; and/or 3/4 either.")]);
        assert_eq!((facts.failure, facts.paths), (None, vec![]));
    }

    #[test]
    fn what_a_summary_says_is_not_added_to_it() {
        let facts = Facts::of(&conversation());
        let all = facts.missing_from("").join("\n");
        assert!(all.contains("4711") && all.contains("src/lexer.rs:41") && all.contains("src/parser.rs"));
        assert_eq!(facts.missing_from(&all), [""; 0]);
    }

    proptest! {
        #[test]
        fn any_text_has_facts_of_bounded_size(text in "(\\PC|\n|error|job 1|a/b.rs){0,80}") {
            let message = |role| Message::text(role, text.clone());
            let facts = Facts::of(&[message(Role::User), message(Role::Assistant), message(Role::Tool)]);
            for section in 0..SECTIONS.len() {
                let lines = facts.section(section);
                prop_assert!(!lines.is_empty() && lines.len() <= MOST_OF_A_KIND);
                prop_assert!(lines.iter().all(|line| !line.contains('\n')));
            }
            prop_assert!(facts.missing_from(&text).len() <= MOST_OF_A_KIND + 3);
        }
    }
}
