//! The Jinja environment of chat templates, as Hugging Face's `apply_chat_template` sets it up.
//!
//! Owns compilation, fuel, the functions and filters that Hugging Face adds, and Python's string and dictionary methods.
//! Reference: `transformers.utils.chat_template_utils._compile_jinja_template`.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::TemplateError;
use super::calendar;
use super::python_json;

/// Largest template source in bytes; the longest published ones have about 30 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Steps any conversation may take. One step is an instruction or 64 bytes of data, so this is also about 64 MB.
const BASE_FUEL: u64 = 1_000_000;

/// Further steps per byte of messages: 32 copies of everything.
const BYTES_PER_EXTRA_FUEL: u64 = 2;

/// Deepest recursion of macros and includes.
const MAX_RECURSION: usize = 100;

/// Longest number in a `str.format` specification: five digits would pad a value to 10 kB or more.
const MAX_FORMAT_DIGITS: usize = 4;

const NAME: &str = "chat_template";

/// A template ready to be rendered.
pub(super) struct CompiledTemplate {
    environment: Environment<'static>,
}

impl fmt::Debug for CompiledTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompiledTemplate")
    }
}

/// The template's own complaint, carried as the source of an engine error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl CompiledTemplate {
    pub(super) fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::TooLarge { found: source.len(), limit: MAX_SOURCE_BYTES });
        }
        let mut environment = Environment::new();
        environment.set_debug(false);
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python_method);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::Syntax { reason: error.to_string() })?);
        environment.add_filter("tojson", python_json::tojson);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, rewrite_generation_blocks(source))
            .map_err(|error| TemplateError::Syntax { reason: describe(&error) })?;
        Ok(Self { environment })
    }

    /// Renders with these variables. `bytes` of messages decide how much fuel there is.
    pub(super) fn render(&self, context: Value, bytes: usize, now: Option<i64>) -> Result<String, TemplateError> {
        let fuel = BASE_FUEL + bytes as u64 / BYTES_PER_EXTRA_FUEL;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        environment.add_function("strftime_now", move |format: &str| {
            calendar::strftime(now.unwrap_or_else(system_seconds), format).map_err(|directive| {
                Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {directive} is not supported"))
            })
        });
        let template = environment.get_template(NAME).map_err(|error| failure(&error, fuel, bytes))?;
        template.render(context).map_err(|error| failure(&error, fuel, bytes))
    }
}

fn system_seconds() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

/// Python's methods of strings, lists and dictionaries.
fn python_method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "format" && value.as_str().is_some_and(|format| !is_modest(format)) {
        // The width of a field is the one size that fuel does not see.
        return Err(Error::new(ErrorKind::InvalidOperation, "str.format: fields this wide are not supported"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// Whether a format string has neither long numbers nor widths that come from arguments.
fn is_modest(format: &str) -> bool {
    let longest = format.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    let mut nested = false;
    let mut in_field = false;
    for c in format.replace("{{", "").replace("}}", "").chars() {
        match c {
            '{' => nested |= std::mem::replace(&mut in_field, true),
            '}' => in_field = false,
            _ => {}
        }
    }
    longest <= MAX_FORMAT_DIGITS && !nested
}

/// Turns an engine error into ours, looking for the template's own complaint along the chain of causes.
fn failure(error: &Error, fuel: u64, bytes: usize) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return TemplateError::Raised { message: message.clone() };
        }
        if let Some(engine) = current.downcast_ref::<Error>()
            && engine.kind() == ErrorKind::OutOfFuel
        {
            return TemplateError::OutOfFuel { fuel, bytes };
        }
        cause = current.source();
    }
    TemplateError::Failed { reason: describe(error) }
}

/// Kind, detail and line of an engine error.
fn describe(error: &Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text.push_str(": ");
        text.push_str(detail);
    }
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    text
}

/// `{% generation %}` marks what a trainer learns from; for rendering it is a block that is always there.
fn rewrite_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inside = &tag[2..end];
        let words = inside.trim_matches(['-', '+']).trim();
        let replacement = match words {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match replacement {
            Some(replacement) => out.push_str(&format!("{{%{}%}}", inside.replace(words, replacement))),
            None => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}
