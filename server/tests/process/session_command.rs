//! `plimsoll session` against a running server: what it draws, and what it does.

use std::process::Command;

use serde_json::{Value, json};

use crate::serve_process::{ServeProcess, chat, long_conversation, summary};

/// Runs the command; the exit code, stdout and stderr.
fn session(server: &ServeProcess, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("session")
        .args(arguments)
        .args(["--url", &format!("http://{}", server.address)])
        .env_remove("PLIMSOLL_API_KEY")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn done(server: &ServeProcess, arguments: &[&str]) -> String {
    let (code, out, err) = session(server, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {out}{err}");
    out
}

#[test]
fn a_session_is_drawn_compacted_resumed_and_forgotten_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let escape = summary().replace("about Current Work", "about \u{1b}[2J\u{7} Current Work");
    let script = json!({"model": "scripted", "dialect": "hermes", "window": 65536, "managed": true, "guarded": true,
                        "replies": ["Noted.", "No summary.", escape], "default": "Later."});
    let server = ServeProcess::start(folder.path(), &script, &[]);
    assert_eq!(done(&server, &["list"]), "no sessions\n");

    let mut messages = long_conversation();
    let answer = server.ask("POST", "/v1/chat/completions", &chat(&messages));
    let id = answer["context"]["session"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(done(&server, &["list"]).contains(id));
    let drawn = done(&server, &["show", id]);
    assert!(drawn.contains("of 65536 tokens in use") && drawn.contains("C compaction 45875"), "{drawn}");

    // Its compaction fails, and so it stops.
    messages.push(json!({"role": "assistant", "content": "Noted."}));
    messages.push(json!({"role": "user", "content": "And now a longer request. ".repeat(400)}));
    let refused = server.ask("POST", "/v1/chat/completions", &chat(&messages));
    assert_eq!(refused["error"]["code"], "session_stopped", "{refused}");
    let drawn = done(&server, &["show", id]);
    assert!(drawn.contains("\nstopped: ") && drawn.contains(&format!("session resume {id}")), "{drawn}");
    assert_eq!(done(&server, &["resume", id]), format!("{id} goes on with its next request\n"));
    assert!(!done(&server, &["show", id]).contains("stopped: "));

    let compacted = done(&server, &["compact", id]);
    assert!(compacted.contains("replaced") && compacted.contains("| - about Next Step"), "{compacted}");
    assert!(compacted.contains("| - about [2J Current Work"), "no control character reaches a terminal: {compacted:?}");
    let record: Value = serde_json::from_str(&done(&server, &["show", id, "--json"])).unwrap();
    assert_eq!(record["compactions"][1]["state"], "replaced", "{record}");

    let (code, out, err) = session(&server, &["compact", id]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("no finished turn"), "{err}");
    assert_eq!(done(&server, &["delete", id]), format!("{id} is forgotten\n"));
    assert_eq!(done(&server, &["list"]), "no sessions\n");
    assert_eq!(session(&server, &["show", id]).0, Some(1));
}
