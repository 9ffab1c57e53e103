//! A JSON object read field by field: strict about what is known, honest about what is not.
//!
//! Owns the type and range checks of single fields and the list of fields nobody asked for. `null` is an absent
//! field. Never knows which fields a request has.

use serde_json::{Map, Value};

use super::error::ServerError;

/// An object whose fields are taken one after the other; what is left over at the end was unknown.
#[derive(Debug)]
pub struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Opens an object. `path` is its name in error messages; empty for the body itself.
    pub fn open(value: Value, path: impl Into<String>) -> Result<Self, ServerError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            other => Err(ServerError::InvalidType { param: path, expected: "an object", found: kind(&other) }),
        }
    }

    /// The full name of a field, as errors give it.
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Takes a field of any type; `null` is absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.map.shift_remove(field).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, field: &str, expected: &'static str, found: &Value) -> Result<T, ServerError> {
        Err(ServerError::InvalidType { param: self.name(field), expected, found: kind(found) })
    }

    /// Takes a string.
    pub fn string(&mut self, field: &str) -> Result<Option<String>, ServerError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.wrong(field, "a string", &other),
        }
    }

    /// Takes a string that must be there.
    pub fn needed_string(&mut self, field: &str) -> Result<String, ServerError> {
        self.string(field)?.ok_or_else(|| ServerError::Missing { param: self.name(field) })
    }

    /// Takes a boolean.
    pub fn boolean(&mut self, field: &str) -> Result<Option<bool>, ServerError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => self.wrong(field, "a boolean", &other),
        }
    }

    /// Takes an array.
    pub fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>, ServerError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(other) => self.wrong(field, "an array", &other),
        }
    }

    /// Takes an object.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>, ServerError> {
        let name = self.name(field);
        self.take(field).map(|value| Self::open(value, name)).transpose()
    }

    /// Takes an integer of at least `least`. What is larger than `i64` holds counts as its largest value: callers
    /// clamp or refuse it like any other large number.
    pub fn integer(&mut self, field: &str, least: i64) -> Result<Option<i64>, ServerError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let Some(number) = whole(&value) else { return self.wrong(field, "an integer", &value) };
        if number < least {
            return Err(ServerError::BelowMinimum {
                param: self.name(field),
                least: least.to_string(),
                found: number.to_string(),
            });
        }
        Ok(Some(number))
    }

    /// Takes an integer in `least..=most`.
    pub fn integer_within(&mut self, field: &str, least: i64, most: i64) -> Result<Option<i64>, ServerError> {
        let found = self.integer(field, least)?;
        match found {
            Some(number) if number > most => Err(ServerError::AboveMaximum {
                param: self.name(field),
                most: most.to_string(),
                found: number.to_string(),
            }),
            other => Ok(other),
        }
    }

    /// Takes a number in `least..=most`.
    pub fn number(&mut self, field: &str, least: f64, most: f64) -> Result<Option<f32>, ServerError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return self.wrong(field, "a number", &value) };
        let param = self.name(field);
        if number < least {
            return Err(ServerError::BelowMinimum { param, least: least.to_string(), found: number.to_string() });
        }
        if number > most {
            return Err(ServerError::AboveMaximum { param, most: most.to_string(), found: number.to_string() });
        }
        Ok(Some(number as f32))
    }

    /// Refuses a field that is known and cannot be honoured.
    pub fn refuse(&mut self, field: &str, reason: &str) -> Result<(), ServerError> {
        match self.take(field) {
            None => Ok(()),
            Some(_) => Err(ServerError::UnsupportedParameter { param: self.name(field), reason: reason.to_owned() }),
        }
    }

    /// Names of the fields nobody took; absent (`null`) ones are not named.
    pub fn unknown(self) -> Vec<String> {
        let Self { path, map } = self;
        map.into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(field, _)| if path.is_empty() { field } else { format!("{path}.{field}") })
            .collect()
    }
}

/// The integer that a JSON number is. `1.0` is one, as JSON Schema has it; what is beyond `i64` counts as its nearest.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_u64().map(|_| i64::MAX)).or_else(|| {
        let number = value.as_f64()?;
        // The conversion saturates.
        (number.fract() == 0.0).then_some(number as i64)
    })
}

/// What a JSON value is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) if whole(value).is_none() => "a number with a fraction",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::open(value, "").unwrap()
    }

    #[test]
    fn null_is_an_absent_field_of_any_type() {
        let mut f = fields(json!({"a": null, "b": null, "c": null, "d": null}));
        assert_eq!(f.string("a").unwrap(), None);
        assert_eq!(f.integer("b", 0).unwrap(), None);
        assert_eq!(f.number("c", 0.0, 1.0).unwrap(), None);
        assert!(f.unknown().is_empty());
    }

    #[test]
    fn what_nobody_asked_for_is_named() {
        let mut f = fields(json!({"model": "m", "store": false, "x": {"y": 1}}));
        f.string("model").unwrap();
        assert_eq!(f.unknown(), ["store", "x"]);
    }

    #[test]
    fn numbers_of_any_size_are_read_or_refused_and_never_wrap() {
        for (text, expected) in [
            ("2147483647", 2147483647),
            ("9223372036854775807", i64::MAX),
            ("18446744073709551615", i64::MAX),
            ("1.0", 1),
            ("1e300", i64::MAX),
        ] {
            let mut f = fields(serde_json::from_str(&format!("{{\"n\": {text}}}")).unwrap());
            assert_eq!(f.integer("n", 1).unwrap(), Some(expected));
        }
        for text in ["0", "-1", "-9223372036854775808", "1.5", "-1e300", "\"1\"", "true", "[]"] {
            let mut f = fields(serde_json::from_str(&format!("{{\"n\": {text}}}")).unwrap());
            assert!(f.integer("n", 1).is_err(), "{text}");
        }
        let mut f = fields(json!({"t": 1e300}));
        assert!(f.number("t", 0.0, 2.0).is_err());
    }
}
