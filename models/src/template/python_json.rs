//! `tojson` as Hugging Face has it: Python's `json.dumps` with `ensure_ascii=False` by default.
//!
//! Models were trained on its spacing (`", "` and `": "`), which differs from that of every Rust writer. The values are
//! the template's own, so depth and size are bounded here: fuel is paid before a byte is written.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting; Python's own limit is its recursion limit of 1000.
const MAX_DEPTH: usize = 200;

/// Widest indentation.
const MAX_INDENT: usize = 64;

/// Bytes that cost one unit of fuel; writing JSON is slower than copying.
const BYTES_PER_FUEL: usize = 16;

/// The filter: `value | tojson(indent=..., ensure_ascii=..., separators=..., sort_keys=...)`.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let indent = kwargs.get::<Option<Value>>("indent")?.or(indent);
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;

    let indent = indent.filter(|value| !value.is_none()).map(|value| indentation(&value)).transpose()?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(other) => return Err(refused(format!("separators has {} entries instead of 2", other.len()))),
    };
    let mut writer = Writer { state, out: String::new(), paid: 0, indent, item, key, ensure_ascii, sort_keys };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        if text.len() > MAX_INDENT {
            return Err(refused(format!("indent has {} characters, the limit is {MAX_INDENT}", text.len())));
        }
        return Ok(text.to_owned());
    }
    let width = value.as_i64().ok_or_else(|| refused(format!("indent is a {}", value.kind())))?;
    // A negative width is no width in Python.
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_INDENT {
        return Err(refused(format!("indent is {width}, the limit is {MAX_INDENT}")));
    }
    Ok(" ".repeat(width))
}

fn refused(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"))
}

struct Writer<'a, 'env, 'vm> {
    state: &'a State<'env, 'vm>,
    out: String,
    /// Bytes of `out` that are paid for.
    paid: usize,
    indent: Option<String>,
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Writer<'_, '_, '_> {
    fn pay(&mut self) -> Result<(), Error> {
        let unpaid = self.out.len() - self.paid;
        self.paid = self.out.len();
        self.state.consume_fuel((unpaid / BYTES_PER_FUEL) as u64 + 1)
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refused(format!("values are nested more than {MAX_DEPTH} deep")));
        }
        self.pay()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => return Err(refused(format!("a value of type {kind} is not JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return Ok(());
        }
        let float = f64::try_from(value.clone())?;
        self.out.push_str(&python_float(float));
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut first = true;
        for item in value.try_iter()? {
            self.out.push_str(if first { "[" } else { &self.item });
            self.line(depth + 1);
            self.value(&item, depth + 1)?;
            first = false;
        }
        self.close(first, depth, '[', ']');
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        let mut first = true;
        for key in keys {
            self.out.push_str(if first { "{" } else { &self.item });
            self.line(depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                    self.out.push('"');
                    self.value(&key, depth + 1)?;
                    self.out.push('"');
                }
                kind => return Err(refused(format!("a key of type {kind} is not JSON"))),
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(&key)?, depth + 1)?;
            first = false;
        }
        self.close(first, depth, '{', '}');
        Ok(())
    }

    fn close(&mut self, empty: bool, depth: usize, open: char, close: char) {
        if empty {
            self.out.push(open);
        } else {
            self.line(depth);
        }
        self.out.push(close);
    }

    /// The line break and indentation of indented output.
    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && (c > '~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python prints it: exponents have a sign and two digits, and non-finite numbers have JavaScript's names.
fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{float:?}");
    match text.split_once('e') {
        None => text,
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_look_as_in_python() {
        for (float, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5e-7, "-2.5e-07"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e100, "1e+100"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (9007199254740993.0, "9007199254740992.0"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(python_float(float), text);
        }
    }
}
