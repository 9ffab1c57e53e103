//! The official `openai` Python client against the server on the simulated engine.
//!
//! The client comes from the Python package index into a virtual environment below the target folder. Without Python,
//! pip or a network the test is skipped with one line that says why.

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_runtime::engine::EngineConfig;
use plimsoll_runtime::simulated::SimulationScript;
use plimsoll_server::catalog::Catalog;
use plimsoll_server::load::simulation_of;
use plimsoll_server::serving::{BoundServer, ServingOptions};
use serde_json::{Value, json};

/// The version whose behaviour the wire formats were written against.
const OPENAI: &str = "openai>=1.60";

#[test]
fn the_official_python_client_streams_calls_tools_and_maps_errors() {
    let python = match client_environment() {
        Ok(python) => python,
        Err(reason) => return skip(&reason),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut urls = serde_json::Map::new();
    for (name, script, keys) in [
        ("plain", script(json!([]), "Grüße, 世界! 👩‍🚀 One two STOP three."), vec![]),
        (
            "tools",
            script(
                json!([]),
                "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 3}}\n\
                 </tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
            ),
            vec![],
        ),
        ("keyed", script(json!([]), "ok"), vec!["secret".to_owned()]),
    ] {
        urls.insert(name.to_owned(), runtime.block_on(serve(script, keys)).into());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/openai_client.py");
    let output = Command::new(python).arg(script).arg(Value::Object(urls).to_string()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.trim_end().ends_with("all passed"), "{out}\n{err}");
}

#[test]
fn the_official_client_holds_sixty_turns_through_two_windows_and_a_restart() {
    let python = match client_environment() {
        Ok(python) => python,
        Err(reason) => return skip(&reason),
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.json");
    // Sections the summaries lack are filled with facts, so that one reply serves for everything.
    let script = json!({"model": "scripted", "dialect": "hermes", "window": 65536, "managed": true,
                        "fallback": "facts", "replies": [], "default": "Noted."});
    std::fs::write(&file, script.to_string()).unwrap();
    let conversation = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/long_conversation.py");
    let mut command = Command::new(python);
    command.arg(conversation).arg(env!("CARGO_BIN_EXE_plimsoll")).arg(&file).arg(folder.path().join("data"));
    let output = command.env_remove("PLIMSOLL_API_KEY").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.starts_with("all passed"), "{out}\n{err}");
}

fn script(replies: Value, default: &str) -> SimulationScript {
    let script =
        json!({"model": "scripted", "dialect": "hermes", "window": 8192, "replies": replies, "default": default});
    SimulationScript::parse(&script.to_string()).unwrap()
}

/// Serves until the test process ends.
async fn serve(script: SimulationScript, api_keys: Vec<String>) -> String {
    let model = simulation_of(&script, EngineConfig::default()).unwrap();
    let options = ServingOptions { port: 0, api_keys, ..ServingOptions::default() };
    let server = BoundServer::bind(options).await.unwrap();
    let (address, state) = (server.address(), server.state());
    let load = async { Ok::<_, std::convert::Infallible>(Catalog::new().with(model.model.engine.clone(), [model])) };
    tokio::spawn(server.run(load, |_| {}, std::future::pending()));
    while state.readiness().is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    format!("http://{address}/v1")
}

/// The interpreter of a virtual environment that has the client.
fn client_environment() -> Result<PathBuf, String> {
    // Two tests want it at the same time.
    static MAKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai-client");
    let python = folder.join("bin/python");
    let has_client = |python: &Path| {
        Command::new(python).args(["-c", "import openai"]).output().is_ok_and(|output| output.status.success())
    };
    if has_client(&python) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder), "python3 -m venv")?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", OPENAI]);
    run(&mut pip, "pip install openai")?;
    if has_client(&python) { Ok(python) } else { Err("the installed client cannot be imported".into()) }
}

fn run(command: &mut Command, what: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{what} failed: {}", text.trim().lines().last().unwrap_or("no reason given")))
}

/// Says past the harness's capture why the test was skipped.
fn skip(reason: &str) {
    use std::io::Write;
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let line = format!("skipped: {name}: {reason}\n");
    let terminal = std::fs::OpenOptions::new().append(true).open("/dev/stderr");
    match terminal {
        Ok(mut terminal) => terminal.write_all(line.as_bytes()).expect("stderr can be written"),
        Err(_) => eprint!("{line}"),
    }
}
