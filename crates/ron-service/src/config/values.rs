//! Validated values with typed access. Access to a key that is not in the table, or as another
//! type, is a programming error and panics at once with the key's name; every service reads all its
//! keys while it starts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::key::{Key, Kind};
use super::units::{parse_duration, parse_size, show_duration, show_size};

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Not set and not required.
    Unset,
    Text(String),
    Bool(bool),
    Count(u64),
    Duration(Duration),
    /// Bytes.
    Size(u64),
    Path(PathBuf),
    Addr(SocketAddr),
    List(Vec<String>),
    Tables(Vec<SubTable>),
}

/// The values of a table, or of one `[[block]]` in it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SubTable {
    pub(super) values: BTreeMap<&'static str, Value>,
}

impl SubTable {
    fn value(&self, name: &str) -> &Value {
        self.values
            .get(name)
            .unwrap_or_else(|| panic!("no key {name} in this configuration table"))
    }

    /// Text or choice; empty when not set.
    pub fn str(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(text) => text,
            Value::Unset => "",
            other => wrong(name, "text", other),
        }
    }
    /// Text or choice; `None` when not set or empty.
    pub fn str_opt(&self, name: &str) -> Option<&str> {
        Some(self.str(name)).filter(|text| !text.is_empty())
    }
    pub fn bool(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(value) => *value,
            other => wrong(name, "a boolean", other),
        }
    }
    pub fn u64(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Count(value) => *value,
            other => wrong(name, "a number", other),
        }
    }
    /// A count as `usize`, for capacities and thread counts.
    pub fn usize(&self, name: &str) -> usize {
        usize::try_from(self.u64(name)).unwrap_or(usize::MAX)
    }
    pub fn duration(&self, name: &str) -> Duration {
        match self.value(name) {
            Value::Duration(value) => *value,
            other => wrong(name, "a duration", other),
        }
    }
    /// Bytes.
    pub fn size(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Size(value) => *value,
            other => wrong(name, "a size", other),
        }
    }
    pub fn path_opt(&self, name: &str) -> Option<&Path> {
        match self.value(name) {
            Value::Path(value) => Some(value),
            Value::Unset => None,
            other => wrong(name, "a path", other),
        }
    }
    pub fn addr(&self, name: &str) -> SocketAddr {
        self.addr_opt(name)
            .unwrap_or_else(|| panic!("key {name} is not set and has no default"))
    }
    pub fn addr_opt(&self, name: &str) -> Option<SocketAddr> {
        match self.value(name) {
            Value::Addr(value) => Some(*value),
            Value::Unset => None,
            other => wrong(name, "an address", other),
        }
    }
    pub fn list(&self, name: &str) -> &[String] {
        match self.value(name) {
            Value::List(value) => value,
            Value::Unset => &[],
            other => wrong(name, "a list", other),
        }
    }
    pub fn tables(&self, name: &str) -> &[SubTable] {
        match self.value(name) {
            Value::Tables(value) => value,
            Value::Unset => &[],
            other => wrong(name, "blocks", other),
        }
    }
    pub fn is_set(&self, name: &str) -> bool {
        !matches!(self.value(name), Value::Unset)
    }

    /// Everything under `prefix.` as JSON, names without the prefix: for a library that takes its
    /// settings as plain data. Durations are milliseconds, sizes bytes; unset keys are left out.
    pub fn section(&self, prefix: &str) -> serde_json::Value {
        let mut map = serde_json::Map::new();
        for (name, value) in &self.values {
            let Some(rest) = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix('.'))
            else {
                continue;
            };
            if let Some(json) = to_json(value) {
                map.insert(rest.to_owned(), json);
            }
        }
        serde_json::Value::Object(map)
    }
}

fn to_json(value: &Value) -> Option<serde_json::Value> {
    Some(match value {
        Value::Unset => return None,
        Value::Text(text) => text.clone().into(),
        Value::Bool(value) => (*value).into(),
        Value::Count(value) | Value::Size(value) => (*value).into(),
        Value::Duration(value) => u64::try_from(value.as_millis()).unwrap_or(u64::MAX).into(),
        Value::Path(value) => value.to_string_lossy().into_owned().into(),
        Value::Addr(value) => value.to_string().into(),
        Value::List(items) => items.clone().into(),
        Value::Tables(tables) => tables
            .iter()
            .map(|table| {
                let entries = table
                    .values
                    .iter()
                    .filter_map(|(name, value)| Some((*name, to_json(value)?)));
                serde_json::Value::Object(
                    entries
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            })
            .collect(),
    })
}

fn wrong(name: &str, wanted: &str, found: &Value) -> ! {
    let found = match found {
        Value::Unset => "not set",
        Value::Text(_) => "text",
        Value::Bool(_) => "a boolean",
        Value::Count(_) => "a number",
        Value::Duration(_) => "a duration",
        Value::Size(_) => "a size",
        Value::Path(_) => "a path",
        Value::Addr(_) => "an address",
        Value::List(_) => "a list",
        Value::Tables(_) => "blocks",
    };
    panic!("key {name} is {found}, not {wanted}")
}

impl Value {
    /// As typed in a TOML file.
    pub fn to_toml(&self) -> String {
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Value::Unset => "\"\"".into(),
            Value::Text(text) => quote(text),
            Value::Bool(value) => value.to_string(),
            Value::Count(value) => value.to_string(),
            Value::Duration(value) => quote(&show_duration(*value)),
            Value::Size(value) => quote(&show_size(*value)),
            Value::Path(value) => quote(&value.to_string_lossy()),
            Value::Addr(value) => quote(&value.to_string()),
            Value::List(items) => {
                format!(
                    "[{}]",
                    items
                        .iter()
                        .map(|item| quote(item))
                        .collect::<Vec<_>>()
                        .join(", ")
                )
            }
            Value::Tables(tables) => format!("{} blocks", tables.len()),
        }
    }
}

/// Parses one value from the environment or the command line.
pub(super) fn from_text(key: &Key, text: &str) -> Result<Value, String> {
    if text.is_empty() {
        return empty(key);
    }
    let value = match key.kind {
        Kind::Text => Value::Text(text.to_owned()),
        Kind::Choice(words) => Value::Text(choice(words, text)?),
        Kind::Bool => match text {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => return Err("must be true or false".into()),
        },
        Kind::Count => Value::Count(count(text)?),
        Kind::Duration => Value::Duration(parse_duration(text)?),
        Kind::Size => Value::Size(parse_size(text)?),
        Kind::Path => Value::Path(PathBuf::from(text)),
        Kind::Addr => Value::Addr(addr(text)?),
        Kind::List => Value::List(text.split(',').map(|item| item.trim().to_owned()).collect()),
        Kind::Tables(_) => return Err("can only be written in a file, as [[blocks]]".into()),
    };
    in_range(key, value)
}

/// Parses one value from a TOML file. The loader reads blocks.
pub(super) fn from_toml(key: &Key, found: &DeValue<'_>) -> Result<Value, String> {
    match (key.kind, found) {
        (Kind::Bool, DeValue::Boolean(value)) => Ok(Value::Bool(*value)),
        (Kind::Count, DeValue::Integer(value)) => {
            let number = u64::from_str_radix(value.as_str(), value.radix())
                .map_err(|_| "must be a whole number, zero or more".to_owned())?;
            in_range(key, Value::Count(number))
        }
        (Kind::List, DeValue::Array(items)) => {
            let texts: Option<Vec<String>> = items
                .iter()
                .map(|item| item.get_ref().as_str().map(str::to_owned))
                .collect();
            in_range(
                key,
                Value::List(texts.ok_or("must be a list of strings, as in [\"a\", \"b\"]")?),
            )
        }
        (Kind::Bool | Kind::Count | Kind::List | Kind::Tables(_), _) => Err(format!(
            "must be {}, not {}",
            example(key.kind),
            found.type_str()
        )),
        (_, DeValue::String(text)) => from_text(key, text),
        _ => Err(format!(
            "must be {} in quotes, not {}",
            example(key.kind),
            found.type_str()
        )),
    }
}

fn example(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "text",
        Kind::Choice(_) => "one of the listed words",
        Kind::Bool => "true or false",
        Kind::Count => "a whole number without quotes",
        Kind::Duration => "a duration such as \"5s\"",
        Kind::Size => "a size such as \"1MiB\"",
        Kind::Path => "a path",
        Kind::Addr => "an address such as \"127.0.0.1:7440\"",
        Kind::List => "a list such as [\"a\", \"b\"]",
        Kind::Tables(_) => "one or more [[blocks]]",
    }
}

/// An empty text unsets a key without a default; for any other key it is a mistake and is reported.
fn empty(key: &Key) -> Result<Value, String> {
    if key.required {
        return Err("is required and must not be empty".into());
    }
    match key.kind {
        Kind::Text if key.min.is_empty() => Ok(Value::Text(String::new())),
        Kind::List => Ok(Value::List(Vec::new())),
        Kind::Tables(_) => Ok(Value::Tables(Vec::new())),
        _ if key.default.is_empty() => Ok(Value::Unset),
        _ => Err(format!("must not be empty; the default is {}", key.default)),
    }
}

/// The value of a key that nothing sets. A test of the tables proves that every default parses.
pub(super) fn default_of(key: &Key) -> Result<Value, String> {
    if key.required && key.default.is_empty() {
        return Err("is required".into());
    }
    from_text(key, key.default)
}

fn choice(words: &[&str], text: &str) -> Result<String, String> {
    if words.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("must be one of {}", words.join(", ")))
}

fn count(text: &str) -> Result<u64, String> {
    let digits = text.replace('_', "");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("must be a whole number, zero or more".into());
    }
    digits.parse().map_err(|_| "the number is too large".into())
}

fn addr(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "must be an IP address and port, as in 127.0.0.1:7440 or [::1]:7440".into())
}

/// Bounds are inclusive: the value of numbers, durations and sizes; the length of text and lists.
fn in_range(key: &Key, value: Value) -> Result<Value, String> {
    let measure = match &value {
        Value::Count(number) | Value::Size(number) => *number,
        Value::Duration(duration) => u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        Value::Text(text) => text.len() as u64,
        Value::List(items) => items.len() as u64,
        _ => return Ok(value),
    };
    let bound = |text: &str| -> Option<u64> {
        match key.kind {
            _ if text.is_empty() => None,
            Kind::Duration => parse_duration(text)
                .ok()
                .and_then(|d| u64::try_from(d.as_millis()).ok()),
            Kind::Size => parse_size(text).ok(),
            _ => count(text).ok(),
        }
    };
    let low = bound(key.min).is_none_or(|min| measure >= min);
    let high = bound(key.max).is_none_or(|max| measure <= max);
    if low && high {
        return Ok(value);
    }
    let what = if matches!(value, Value::Text(_)) {
        "must have a length"
    } else {
        "must be"
    };
    Err(match (key.min, key.max) {
        (min, "") => format!("{what} at least {min}"),
        ("", max) => format!("{what} at most {max}"),
        (min, max) => format!("{what} between {min} and {max}"),
    })
}

/// Checks that every default and bound of a table parses; one line per fault. For the tables'
/// tests.
pub fn table_faults(rows: &[&'static Key]) -> Vec<String> {
    let mut faults = Vec::new();
    for key in rows {
        if !(key.required && key.default.is_empty())
            && let Err(why) = default_of(key)
        {
            faults.push(format!("{}: default {:?} {why}", key.name, key.default));
        }
        let numeric = matches!(key.kind, Kind::Duration | Kind::Size);
        for bound in [key.min, key.max]
            .into_iter()
            .filter(|bound| !bound.is_empty() && numeric)
        {
            if parse_duration(bound).is_err() && parse_size(bound).is_err() {
                faults.push(format!("{}: bound {bound:?} does not parse", key.name));
            }
        }
        if key.meaning.is_empty() || !key.meaning.ends_with('.') {
            faults.push(format!(
                "{}: the meaning must be a sentence that ends with a full stop",
                key.name
            ));
        }
        if let Kind::Tables(inner) = key.kind {
            faults.extend(table_faults(&inner.iter().collect::<Vec<_>>()));
        }
    }
    faults
}
