//! The types that a configuration key can have. A type decides how a value is written in a file, how
//! it is checked when it is loaded, and what the settings struct holds.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ron_auth::PqRule;
use ron_proto::ledger::PrincipalName;
use ron_proto::values::{Kid, Purpose, Tenant, TokenName};
use ron_proto::{Amount, Timestamp};

use super::key::{Key, Kind, Reload};
use super::problem::{ConfigProblem, Origin};
pub use super::values::{SubTable, Value};
use crate::pinned::{KeyRing, PinnedKey};

/// The type of a key's value.
pub trait Setting: Sized {
    /// The form in a file. The loader parses and checks by it, so that a problem is reported with
    /// the line where the key was set.
    const KIND: Kind;
    /// Whether a key of this type may be without a value; otherwise a key without a default must
    /// be set.
    const OPTIONAL: bool = false;

    /// The value that the loader has accepted. An error says what is wrong with it, without the
    /// key's name: for example that the key is not set and its type does not allow that.
    fn from_value(value: &Value) -> Result<Self, String>;
}

/// A struct whose fields are configuration keys; implemented by [`settings!`](crate::settings).
pub trait Settings: Sized {
    /// The keys of the fields, in the order of the documentation.
    const KEYS: &'static [Key];
    /// [`Self::KEYS`], then the keys of each included group.
    const GROUPS: &'static [&'static [Key]];
    /// Reads the fields from values that the loader has accepted. An error names a key that is not
    /// in the table of these values.
    fn read(values: &SubTable) -> Result<Self, ConfigProblem>;
}

impl Key {
    /// A key with values of this type, without a default; [`crate::settings!`] makes the rows.
    pub const fn of<T: Setting>(name: &'static str, meaning: &'static str) -> Self {
        Self {
            name,
            kind: T::KIND,
            default: "",
            min: "",
            max: "",
            reload: Reload::Unstated,
            secret: false,
            required: !T::OPTIONAL,
            meaning,
        }
    }
}

impl SubTable {
    /// The value of a key, for [`crate::settings!`].
    pub fn get<T: Setting>(&self, key: &'static str) -> Result<T, ConfigProblem> {
        let read = match self.values.get(key) {
            Some(value) => T::from_value(value),
            None => Err("is not a key of this table".to_owned()),
        };
        read.map_err(|why| ConfigProblem {
            origin: Origin::Default,
            key: key.to_owned(),
            why,
        })
    }
}

/// Path of a file with a secret, or `env:NAME`; [`secret_from_env_or_file`](super::secret_from_env_or_file) reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretSource(pub String);

/// A number of bytes, written `64KiB` or `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// For the size of a buffer in memory.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A list of paths; it may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths(pub Vec<PathBuf>);

/// The user id of a process, written as text: `"1000"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uid(pub u32);

impl FromStr for Uid {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse();
        number
            .map(Self)
            .map_err(|_| "which is no user id; list numbers, as in [\"1000\"]")
    }
}

/// `[[blocks]]` of a file, each read into one `T`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks<T>(pub Vec<T>);

impl<T> Deref for Blocks<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// The name of a log and of its key: no spaces, control characters and plus signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteName(pub String);

impl FromStr for NoteName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !ron_tlog::note::valid_name(text) {
            return Err("must be a key name: no spaces, control characters and plus signs");
        }
        Ok(Self(text.to_owned()))
    }
}

fn other<T>(value: &Value) -> Result<T, String> {
    Err(match value {
        Value::Unset => "is not set".to_owned(),
        found => format!("has the unexpected value {}", found.to_toml()),
    })
}

macro_rules! setting {
    ($($type:ty, $kind:expr, $pattern:pat => $read:expr;)*) => {$(
        impl Setting for $type {
            const KIND: Kind = $kind;
            fn from_value(value: &Value) -> Result<Self, String> {
                match value {
                    $pattern => $read,
                    found => other(found),
                }
            }
        }
    )*};
}

setting! {
    String, Kind::Text, Value::Text(text) => Ok(text.clone());
    bool, Kind::Bool, Value::Bool(value) => Ok(*value);
    u64, Kind::Count, Value::Count(number) => Ok(*number);
    u32, Kind::Count, Value::Count(number) => u32::try_from(*number).map_err(|e| format!("must be a smaller number: {e}"));
    usize, Kind::Count, Value::Count(number) => usize::try_from(*number).map_err(|e| format!("must be a smaller number: {e}"));
    Duration, Kind::Duration, Value::Duration(time) => Ok(*time);
    ByteSize, Kind::Size, Value::Size(bytes) => Ok(Self(*bytes));
    PathBuf, Kind::Path, Value::Path(path) => Ok(path.clone());
    SocketAddr, Kind::Addr, Value::Addr(addr) => Ok(*addr);
    SecretSource, Kind::SecretSource, Value::Text(text) => Ok(Self(text.clone()));
}

/// Values that are written as text with a syntax of their own.
macro_rules! parsed {
    ($($type:ty, $word:literal;)*) => {$(
        impl Setting for $type {
            const KIND: Kind = Kind::Parsed { word: $word, check: check::<$type> };
            fn from_value(value: &Value) -> Result<Self, String> {
                match value {
                    Value::Text(text) => parse(text),
                    found => other(found),
                }
            }
        }
    )*};
}

parsed! {
    Amount, "amount";
    Kid, "KMS key";
    NoteName, "text";
    PrincipalName, "name";
    Tenant, "name";
    Purpose, "name";
    Timestamp, "time";
    TokenName, "name";
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|why: T::Err| why.to_string())
}

/// Whether a text can be read as a `T`; for [`Kind::Parsed`] and [`Kind::List`].
pub fn check<T: FromStr<Err: Display>>(text: &str) -> Result<(), String> {
    parse::<T>(text).map(drop)
}

/// Text in a file of which an empty value means "not set".
impl<T: Setting> Setting for Option<T> {
    const KIND: Kind = T::KIND;
    const OPTIONAL: bool = true;
    fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::Unset => Ok(None),
            Value::Text(text) if text.is_empty() => Ok(None),
            set => T::from_value(set).map(Some),
        }
    }
}

impl<T: FromStr<Err: Display>> Setting for Vec<T> {
    const KIND: Kind = Kind::List(check::<T>);
    const OPTIONAL: bool = true;
    fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::Unset => Ok(Self::new()),
            Value::List(items) => items.iter().map(|item| parse(item)).collect(),
            found => other(found),
        }
    }
}

impl Setting for Paths {
    const KIND: Kind = Kind::Paths;
    const OPTIONAL: bool = true;
    fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::Unset => Ok(Self(Vec::new())),
            Value::List(paths) => Ok(Self(paths.iter().map(PathBuf::from).collect())),
            found => other(found),
        }
    }
}

impl<T: Settings> Setting for Blocks<T> {
    const KIND: Kind = Kind::Tables(T::KEYS);
    const OPTIONAL: bool = true;
    fn from_value(value: &Value) -> Result<Self, String> {
        let read = |block: &SubTable| T::read(block).map_err(|problem| problem.to_string());
        match value {
            Value::Unset => Ok(Self(Vec::new())),
            Value::Tables(blocks) => blocks.iter().map(read).collect::<Result<_, _>>().map(Self),
            found => other(found),
        }
    }
}

impl Setting for KeyRing {
    const KIND: Kind = Vec::<PinnedKey>::KIND;
    const OPTIONAL: bool = true;
    fn from_value(value: &Value) -> Result<Self, String> {
        Vec::from_value(value).map(Self::new)
    }
}

impl Setting for PqRule {
    const KIND: Kind = Kind::Choice(&Self::WORDS);
    fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::Text(word) => Self::parse(word).ok_or_else(|| format!("has no value {word}")),
            found => other(found),
        }
    }
}
