//! Values that the loader has accepted, by key.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::key::{Key, Kind, Reload};
use super::secret_file::FROM_ENV;
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
        Kind::Text | Kind::SecretSource => Value::Text(text.to_owned()),
        Kind::Parsed { check, .. } => {
            check(text)?;
            Value::Text(text.to_owned())
        }
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
        Kind::List(_) | Kind::Paths => list(
            text.split(',').map(str::trim).map(str::to_owned).collect(),
            check_of(key.kind),
        )?,
        Kind::Tables(_) => return Err("can only be written in a file, as [[blocks]]".into()),
    };
    in_range(key, value)
}

/// Parses one value from a TOML file in the directory `dir`, where relative paths begin. The loader reads blocks.
pub(super) fn from_toml(key: &Key, found: &DeValue<'_>, dir: &Path) -> Result<Value, String> {
    let below = |path: String| dir.join(path).to_string_lossy().into_owned();
    Ok(match (key.kind, as_typed(key, found)?) {
        (_, Value::Path(path)) => Value::Path(dir.join(path)),
        (Kind::Paths, Value::List(paths)) => Value::List(paths.into_iter().map(below).collect()),
        (Kind::SecretSource, Value::Text(path)) if !path.starts_with(FROM_ENV) => {
            Value::Text(below(path))
        }
        (_, value) => value,
    })
}

fn as_typed(key: &Key, found: &DeValue<'_>) -> Result<Value, String> {
    match (key.kind, found) {
        (Kind::Bool, DeValue::Boolean(value)) => Ok(Value::Bool(*value)),
        (Kind::Count, DeValue::Integer(value)) => {
            let number = u64::from_str_radix(value.as_str(), value.radix())
                .map_err(|_| "must be a whole number, zero or more".to_owned())?;
            in_range(key, Value::Count(number))
        }
        (Kind::List(_) | Kind::Paths, DeValue::Array(items)) => {
            let texts: Option<Vec<String>> = items
                .iter()
                .map(|item| item.get_ref().as_str().map(str::to_owned))
                .collect();
            let texts = texts.ok_or("must be a list of strings, as in [\"a\", \"b\"]")?;
            in_range(key, list(texts, check_of(key.kind))?)
        }
        (Kind::Bool | Kind::Count | Kind::List(_) | Kind::Paths | Kind::Tables(_), _) => Err(
            format!("must be {}, not {}", example(key.kind), found.type_str()),
        ),
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
        Kind::Text | Kind::Parsed { .. } => "text",
        Kind::Choice(_) => "one of the listed words",
        Kind::Bool => "true or false",
        Kind::Count => "a whole number without quotes",
        Kind::Duration => "a duration such as \"5s\"",
        Kind::Size => "a size such as \"1MiB\"",
        Kind::Path => "a path",
        Kind::SecretSource => "the path of a file, or env:NAME",
        Kind::Addr => "an address such as \"127.0.0.1:7440\"",
        Kind::List(_) | Kind::Paths => "a list such as [\"a\", \"b\"]",
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
        Kind::List(_) | Kind::Paths => Ok(Value::List(Vec::new())),
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

/// What is wrong with an item of a list.
fn check_of(kind: Kind) -> fn(&str) -> Result<(), String> {
    match kind {
        Kind::List(check) => check,
        _ => |_| Ok(()),
    }
}

fn list(items: Vec<String>, check: fn(&str) -> Result<(), String>) -> Result<Value, String> {
    // By its number: an item may be a secret that was pasted into the wrong place.
    for (item, number) in items.iter().zip(1..) {
        check(item).map_err(|why| format!("has entry {number}, {why}"))?;
    }
    Ok(Value::List(items))
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
pub fn table_faults(rows: &[Key]) -> Vec<String> {
    let unstated = rows.iter().filter(|key| key.reload == Reload::Unstated);
    let mut faults: Vec<String> = unstated
        .map(|key| format!("{}: say reloadable or restart(Why)", key.name))
        .collect();
    row_faults(rows, &mut faults);
    faults
}

fn row_faults(rows: &[Key], faults: &mut Vec<String>) {
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
            row_faults(inner, faults);
        }
    }
}
