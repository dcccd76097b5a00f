//! Reading JSON from outside: bounded depth, no duplicate keys anywhere, exact integers, and
//! errors that say where and why but never repeat what was sent.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::{
    Deserialize,
    de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
};

/// Deepest accepted nesting of arrays and objects.
pub const MAX_DEPTH: u32 = 32;

/// The largest integer that every JSON reader takes exactly, 2^53.
pub const MAX_SAFE_INTEGER: u64 = 1 << 53;

/// Why a text was refused. `line` and `column` count from 1; both are 0 when the place is not
/// known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (line {line}, column {column})")]
pub struct StrictError {
    /// The line, from 1.
    pub line: usize,
    /// The byte in the line, from 1.
    pub column: usize,
    /// The broken rule; holds no input.
    pub reason: String,
}

/// Reads one JSON document. Refuses duplicate keys at any depth, also inside free-form values,
/// nesting beyond [`MAX_DEPTH`], integers beyond 2^53 and anything after the document.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StrictError> {
    check(bytes)?;
    serde_json::from_slice(bytes).map_err(|error| StrictError::from(&error))
}

/// Only the rules, without making a value.
pub fn check(bytes: &[u8]) -> Result<(), StrictError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    Rules { depth: 0 }
        .deserialize(&mut reader)
        .and_then(|()| reader.end())
        .map_err(|error| StrictError::from(&error))
}

/// Walks a document and checks the rules; `depth` is the number of open arrays and objects.
#[derive(Clone, Copy)]
struct Rules {
    depth: u32,
}

/// Marks our own messages, which hold no input; everything serde words itself is reworded.
const OURS: &str = "rule: ";

impl Rules {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!(
                "{OURS}nested deeper than {MAX_DEPTH} levels"
            )));
        }
        Ok(Self {
            depth: self.depth + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Rules {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

fn integer<E: de::Error>(magnitude: u64) -> Result<(), E> {
    if magnitude > MAX_SAFE_INTEGER {
        return Err(E::custom(format_args!(
            "{OURS}integers above 2^53 must be sent as strings"
        )));
    }
    Ok(())
}

impl<'de> Visitor<'de> for Rules {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        integer(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        integer(value.unsigned_abs())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut seen = Seen::default();
        while let Some(Key(key)) = entries.next_key()? {
            if !seen.insert(key) {
                return Err(de::Error::custom(format_args!("{OURS}a key occurs twice")));
            }
            entries.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A key after escapes are resolved; borrowed from the input when it has none.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// The keys of one object: a list while it is short, a set when it grows, so that an object with
/// very many keys costs no quadratic time.
#[derive(Default)]
struct Seen<'de> {
    few: Vec<Cow<'de, str>>,
    many: BTreeSet<Cow<'de, str>>,
}

impl<'de> Seen<'de> {
    const FEW: usize = 16;

    /// False when the key was there already.
    fn insert(&mut self, key: Cow<'de, str>) -> bool {
        if !self.many.is_empty() {
            return self.many.insert(key);
        }
        if self.few.contains(&key) {
            return false;
        }
        self.few.push(key);
        if self.few.len() > Self::FEW {
            self.many.extend(self.few.drain(..));
        }
        true
    }
}

impl From<&serde_json::Error> for StrictError {
    fn from(error: &serde_json::Error) -> Self {
        Self {
            line: error.line(),
            column: error.column(),
            reason: reword(error),
        }
    }
}

/// The reason without input. serde's own messages quote the offending field or value between
/// their first word and `, expected`; what stands before and after is ours or fixed.
fn reword(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    match error.classify() {
        // The syntax messages of serde_json are fixed texts.
        Category::Syntax | Category::Eof | Category::Io => format!("not JSON: {text}"),
        Category::Data => reword_data(text),
    }
}

fn reword_data(text: &str) -> String {
    if let Some(rule) = text.strip_prefix(OURS) {
        return rule.to_owned();
    }
    // These quote nothing but names from our own types.
    let safe = [
        "not a valid ",
        "missing field ",
        "duplicate field ",
        "data did not match any",
    ];
    if safe.iter().any(|prefix| text.starts_with(prefix)) {
        return text.to_owned();
    }
    let expected = text.rfind(", expected ").max(text.rfind(", there are no "));
    let expected = expected.map_or("", |at| &text[at..]);
    for kind in [
        "unknown field",
        "unknown variant",
        "invalid value",
        "invalid length",
    ] {
        if text.starts_with(kind) {
            return format!("{kind}{expected}");
        }
    }
    if let Some(rest) = text.strip_prefix("invalid type: ") {
        let types = [
            "null",
            "boolean",
            "integer",
            "floating point",
            "string",
            "map",
            "sequence",
        ];
        let found = types
            .into_iter()
            .find(|name| rest.starts_with(name))
            .unwrap_or("value");
        return format!("invalid type: {found}{expected}");
    }
    "a value does not have the form this field needs".to_owned()
}
