//! Reads the JSON that models write, which is not always JSON.
//!
//! Accepts, beside JSON: single-quoted strings, Python's `True`, `False` and `None`, commas before a closing bracket, line
//! breaks inside strings, and backslashes before characters that need none. Each of them can mean one thing only. It
//! reads one value from the front of a text, says where it ended, and if it did not end, what is missing. Never an error,
//! never recursion beyond [`MAX_DEPTH`].

use std::ops::Range;

use serde_json::{Map, Number, Value};

/// Deepest nesting (`serde_json` has the same limit).
const MAX_DEPTH: usize = 128;

/// A value at the front of a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parsed {
    pub(super) value: Value,
    /// First byte after it.
    pub(super) end: usize,
    /// Where the values of the outermost object's fields stand.
    fields: Vec<(String, Range<usize>)>,
}

impl Parsed {
    /// Where the value of a field of the outermost object stands.
    pub(super) fn field(&self, key: &str) -> Option<Range<usize>> {
        // Of a key that is written twice the last one counts, as for the value.
        self.fields.iter().rev().find(|(name, _)| name == key).map(|(_, range)| range.clone())
    }
}

/// What stands at the front of a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Complete(Parsed),
    /// The text ends inside a string.
    EndsInString,
    /// The text ends after a whole value inside brackets; these would close them.
    Missing(String),
    Invalid,
}

/// Why reading stopped.
enum Stop {
    EndsInString,
    Missing,
    Invalid,
}

/// Reads one value.
pub(super) fn parse(text: &str) -> Outcome {
    let mut reader = Reader { text, at: 0, open: Vec::new(), fields: Vec::new() };
    match reader.value() {
        Ok(value) => Outcome::Complete(Parsed { value, end: reader.at, fields: reader.fields }),
        Err(Stop::EndsInString) => Outcome::EndsInString,
        Err(Stop::Missing) => Outcome::Missing(reader.open.iter().rev().collect()),
        Err(Stop::Invalid) => Outcome::Invalid,
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// The brackets that would close what is open.
    open: Vec<char>,
    fields: Vec<(String, Range<usize>)>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn accept(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn value(&mut self) -> Result<Value, Stop> {
        self.skip_space();
        match self.peek() {
            Some('{') => self.object(),
            Some('[') => self.array(),
            Some(quote @ ('"' | '\'')) => self.string(quote).map(Value::String),
            _ => self.word(),
        }
    }

    fn enter(&mut self, closer: char) -> Result<(), Stop> {
        self.at += 1;
        self.open.push(closer);
        if self.open.len() > MAX_DEPTH { Err(Stop::Invalid) } else { Ok(()) }
    }

    /// After an item: whether there may be another one.
    fn more(&mut self, closer: char) -> Result<bool, Stop> {
        self.skip_space();
        if self.accept(',') {
            self.skip_space();
            if self.peek() != Some(closer) {
                return Ok(true);
            }
        }
        if self.accept(closer) {
            self.open.pop();
            return Ok(false);
        }
        Err(if self.rest().is_empty() { Stop::Missing } else { Stop::Invalid })
    }

    fn array(&mut self) -> Result<Value, Stop> {
        self.enter(']')?;
        let mut items = Vec::new();
        self.skip_space();
        if self.accept(']') {
            self.open.pop();
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value()?);
            if !self.more(']')? {
                return Ok(Value::Array(items));
            }
        }
    }

    fn object(&mut self) -> Result<Value, Stop> {
        self.enter('}')?;
        let outermost = self.open.len() == 1;
        let mut fields = Map::new();
        self.skip_space();
        if self.accept('}') {
            self.open.pop();
            return Ok(Value::Object(fields));
        }
        loop {
            self.skip_space();
            let key = match self.peek() {
                Some(quote @ ('"' | '\'')) => self.string(quote)?,
                _ => return Err(Stop::Invalid),
            };
            self.skip_space();
            if !self.accept(':') {
                return Err(Stop::Invalid);
            }
            self.skip_space();
            let start = self.at;
            let value = self.value()?;
            if outermost {
                self.fields.push((key.clone(), start..self.at));
            }
            fields.insert(key, value);
            if !self.more('}')? {
                return Ok(Value::Object(fields));
            }
        }
    }

    fn string(&mut self, quote: char) -> Result<String, Stop> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let Some(c) = self.peek() else { return Err(Stop::EndsInString) };
            self.at += c.len_utf8();
            if c == quote {
                return Ok(out);
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some(escaped) = self.peek() else { return Err(Stop::EndsInString) };
            self.at += escaped.len_utf8();
            match escaped {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'u' => self.unicode(&mut out)?,
                '"' | '\'' | '\\' | '/' => out.push(escaped),
                // A backslash that escapes nothing is a backslash: paths and regular expressions.
                other => out.extend(['\\', other]),
            }
        }
    }

    /// The four digits after `\u`, and the second half of a pair.
    fn unicode(&mut self, out: &mut String) -> Result<(), Stop> {
        let first = self.four_digits()?;
        if (0xd800..0xdc00).contains(&first) && self.rest().starts_with("\\u") {
            self.at += 2;
            let second = self.four_digits()?;
            let units = [first, second];
            out.extend(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)));
            return Ok(());
        }
        if "\\u".starts_with(self.rest()) && (0xd800..0xdc00).contains(&first) {
            return Err(Stop::EndsInString);
        }
        out.push(char::from_u32(first.into()).unwrap_or(char::REPLACEMENT_CHARACTER));
        Ok(())
    }

    fn four_digits(&mut self) -> Result<u16, Stop> {
        let length = self.rest().chars().take(4).take_while(char::is_ascii_hexdigit).count();
        if length < 4 {
            return Err(if self.rest().len() == length { Stop::EndsInString } else { Stop::Invalid });
        }
        let digits = &self.rest()[..4];
        let value = u16::from_str_radix(digits, 16).map_err(|_| Stop::Invalid)?;
        self.at += 4;
        Ok(value)
    }

    /// A number or one of the words of JSON and Python.
    fn word(&mut self) -> Result<Value, Stop> {
        let length = self.rest().find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c)));
        let length = length.unwrap_or(self.rest().len());
        let value = match &self.rest()[..length] {
            "true" | "True" => Value::Bool(true),
            "false" | "False" => Value::Bool(false),
            "null" | "None" => Value::Null,
            number => Value::Number(number.parse::<Number>().map_err(|_| Stop::Invalid)?),
        };
        self.at += length;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn complete(text: &str) -> Value {
        match parse(text) {
            Outcome::Complete(parsed) => parsed.value,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn what_models_write_is_read_where_it_can_mean_one_thing_only() {
        for (text, value) in [
            (r#"{"a": 1, "b": [1, 2.5, null]}"#, json!({"a": 1, "b": [1, 2.5, null]})),
            (
                "{'a': 'it\\'s', 'b': True, 'c': None, 'd': False}",
                json!({"a": "it's", "b": true, "c": null, "d": false}),
            ),
            (r#"{"a": [1, 2,], }"#, json!({"a": [1, 2]})),
            ("{\"code\": \"a\n\tb\"}", json!({"code": "a\n\tb"})),
            (r#"{"path": "C:\dir", "re": "\d+\.\w"}"#, json!({"path": "C:\\dir", "re": "\\d+\\.\\w"})),
            (r#""\u00e9\ud83d\ude00\ud83d""#, json!("é😀\u{fffd}")),
            ("[]", json!([])),
            ("{}", json!({})),
            ("-1.5e3", json!(-1500.0)),
        ] {
            assert_eq!(complete(text), value, "{text}");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(parse(r#"{"a": {"b": [1"#), Outcome::Missing("]}}".into()));
        assert_eq!(parse(r#"{"a": 1 "#), Outcome::Missing("}".into()));
        assert_eq!(parse(r#"{"a": "b"#), Outcome::EndsInString);
        assert_eq!(parse(r#"{"a": "b\"#), Outcome::EndsInString);
        assert_eq!(parse(r#"{"a": "\u00"#), Outcome::EndsInString);
        for text in
            ["", "{", "{\"a\"", "{\"a\":", "{a: 1}", "{\"a\": 1 2}", "[1,", "nul", "hello", "{\"a\": \"\\uzzzz\"}"]
        {
            assert_eq!(parse(text), Outcome::Invalid, "{text}");
        }
        assert_eq!(parse(&"[".repeat(100_000)), Outcome::Invalid);
    }

    #[test]
    fn fields_of_the_outermost_object_are_located() {
        let text = r#" {"name": "f", "arguments": {"x": 1.50, "arguments": 2}} tail"#;
        let Outcome::Complete(parsed) = parse(text) else { panic!("complete") };
        assert_eq!(&text[parsed.field("arguments").unwrap()], r#"{"x": 1.50, "arguments": 2}"#);
        assert_eq!(&text[parsed.end..], " tail");
        assert_eq!(parsed.field("x"), None);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e6..1e6f64).prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((".{0,4}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_json_text_is_read_as_serde_json_reads_it(value in any_json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
            let expected: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(complete(&text), expected);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]{}\"'a:,1\\\\u \\n]{0,24}") {
            let _ = parse(&text);
        }
    }
}
