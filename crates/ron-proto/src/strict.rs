//! Strict JSON parsing for untrusted input: bounded depth, no duplicate keys, exact integers, and
//! errors that name the position and the rule but never repeat the input.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::{
    Deserialize,
    de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
};

/// Maximum nesting depth of arrays and objects.
pub const MAX_DEPTH: u32 = 32;

/// The largest integer that every JSON reader represents exactly, 2^53.
pub const MAX_SAFE_INTEGER: u64 = 1 << 53;

/// Why a text was rejected. `line` and `column` count from 1; both are 0 when the position is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (line {line}, column {column})")]
pub struct StrictError {
    /// The line, from 1.
    pub line: usize,
    /// Byte in the line, from 1.
    pub column: usize,
    /// The violated rule; contains no input.
    pub reason: String,
}

/// Parses one JSON document. Rejects duplicate keys at any depth, also inside free-form values,
/// nesting beyond [`MAX_DEPTH`], integers beyond 2^53 and data after the document.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StrictError> {
    check(bytes)?;
    serde_json::from_slice(bytes).map_err(|error| StrictError::from(&error))
}

/// Checks the rules without building a value.
pub fn check(bytes: &[u8]) -> Result<(), StrictError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    Rules { depth: 0 }
        .deserialize(&mut reader)
        .and_then(|()| reader.end())
        .map_err(|error| StrictError::from(&error))
}

/// Visits a document and checks the rules; `depth` is the number of open arrays and objects.
#[derive(Clone, Copy)]
struct Rules {
    depth: u32,
}

/// Marks messages of this module, which contain no input; messages of serde are reworded.
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

/// A key with escapes resolved; borrowed from the input when it has none.
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

/// The keys of one object: a list while there are few, a set when there are many, which avoids
/// quadratic time for objects with very many keys.
#[derive(Default)]
struct Seen<'de> {
    few: Vec<Cow<'de, str>>,
    many: BTreeSet<Cow<'de, str>>,
}

impl<'de> Seen<'de> {
    const FEW: usize = 16;

    /// False when the key was already present.
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

/// The reason without input. serde's messages quote the offending field or value between their
/// first words and `, expected`; the rest is fixed text.
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
    // These quote only names of our own types.
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
    "a value does not have the form required here".to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::{Account, Amount};

    #[derive(Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Transfer {
        from: Account,
        amount_minor: Amount,
        #[serde(default)]
        memo: Option<Value>,
    }

    fn refused(text: &str, reason: &str) -> StrictError {
        let error = from_slice::<Transfer>(text.as_bytes()).expect_err(text);
        assert!(error.reason.contains(reason), "{text}: {error}");
        error
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    const MARK: &str = "hunter2";

    #[test]
    fn reads_what_is_right() {
        let text = br#" {"from": "a:b", "amount_minor": "7", "memo": {"k": [1, -2, 0.5, null]}} "#;
        let read: Transfer = from_slice(text).expect("it is right");
        assert_eq!((read.from.as_str(), read.amount_minor), ("a:b", Amount(7)));
    }

    #[test]
    fn duplicate_keys_are_refused_everywhere() {
        let twice = "a key occurs twice";
        refused(r#"{"from":"a","from":"a","amount_minor":"1"}"#, twice);
        refused(
            r#"{"from":"a","amount_minor":"1","memo":{"x":1,"x":1}}"#,
            twice,
        );
        refused(
            r#"{"from":"a","amount_minor":"1","memo":[[{"x":1,"\u0078":2}]]}"#,
            twice,
        );
        assert!(from_slice::<BTreeMap<String, u8>>(br#"{"a":1,"b":2,"a":1}"#).is_err());
        assert!(from_slice::<Value>(br#"{"":1,"":2}"#).is_err());
        let many: Vec<_> = (0..1000).map(|n| format!("\"k{n}\":{n}")).collect();
        let object = |entries: &str| format!("{{{entries}}}");
        assert!(check(object(&many.join(",")).as_bytes()).is_ok());
        for again in [0, 16, 17, 999] {
            let text = object(&format!("{},{}", many.join(","), many[again]));
            assert!(check(text.as_bytes()).is_err(), "key {again} again");
        }
    }

    #[test]
    fn the_depth_is_bounded() {
        let nested = |open: &str, close: &str, levels: usize| {
            format!("{}1{}", open.repeat(levels), close.repeat(levels))
        };
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            assert!(from_slice::<Value>(nested(open, close, 32).as_bytes()).is_ok());
            let error = from_slice::<Value>(nested(open, close, 33).as_bytes()).unwrap_err();
            assert!(error.reason.contains("deeper than 32"), "{error}");
            assert!(from_slice::<Value>(nested(open, close, 100_000).as_bytes()).is_err());
        }
    }

    #[test]
    fn integers_stay_exact() {
        for good in ["9007199254740992", "-9007199254740992", "0", "-1"] {
            assert!(check(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            "9007199254740993",
            "-9007199254740993",
            "18446744073709551615",
        ] {
            let error = check(bad.as_bytes()).expect_err(bad);
            assert!(error.reason.contains("2^53"), "{error}");
        }
    }

    #[test]
    fn one_document_and_nothing_else() {
        for bad in [
            "",
            " ",
            "{} {}",
            "{}x",
            "[1,]",
            "{'a':1}",
            "\u{feff}{}",
            "nul",
            "01",
            "1.",
            "NaN",
        ] {
            assert!(check(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(check(b"\"\xff\"").is_err(), "not UTF-8");
        assert!(check(br#""\ud800""#).is_err(), "half a surrogate pair");
        assert!(check(b"\"\n\"").is_err(), "a raw control character");
    }

    #[test]
    fn errors_say_where_and_why_without_the_input() {
        let error = refused("{\"from\":\"a\",\n \"hunter2\":1}", "unknown field");
        assert_eq!(error.line, 2);
        assert!(error.reason.contains("expected one of `from`"), "{error}");
        refused(
            r#"{"from":"hunter2 x","amount_minor":"1"}"#,
            "not a valid account",
        );
        refused(r#"{"from":"a","amount_minor":12345}"#, "decimal string");
        refused(r#"{"from":"a"}"#, "missing field `amount_minor`");
        refused(
            r#"{"from":["hunter2"],"amount_minor":"1"}"#,
            "invalid type: sequence",
        );
        refused(r#"["hunter2"]"#, "");
        refused(
            r#""hunter2, expected `hunter2`""#,
            "invalid type: string, expected struct Transfer",
        );
        let empty = br#"{"hunter2, expected hunter2":1}"#;
        let error = from_slice::<Nothing>(empty).unwrap_err();
        assert_eq!(error.reason, "unknown field, there are no fields");
        let error = from_slice::<uuid_like::Id>(br#""hunter2""#).unwrap_err();
        assert!(!error.reason.contains(MARK), "{error}");
    }

    /// A foreign type whose messages repeat the input.
    mod uuid_like {
        #[derive(Debug)]
        pub struct Id;
        impl<'de> serde::Deserialize<'de> for Id {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Err(serde::de::Error::custom(format!("bad id {text}")))
            }
        }
    }

    proptest! {
        /// A marker somewhere in an invalid document never appears in the error.
        #[test]
        fn no_error_repeats_its_input(
            shape in 0..8_usize,
            tail in "[ -~]{0,20}",
        ) {
            let text = serde_json::to_string(&format!("{MARK}{tail}")).unwrap();
            let document = match shape {
                0 => format!("{{{text}:1}}"),
                1 => format!(r#"{{"from":{text}}}"#),
                2 => format!(r#"{{"amount_minor":{text}}}"#),
                3 => text.clone(),
                4 => format!("[{text}]"),
                5 => format!(r#"{{"from":{{{text}:{text}}}}}"#),
                6 => text[1..].to_owned(),
                _ => format!(r#"{{"from":"a","from":{text}}}"#),
            };
            let error = from_slice::<Transfer>(document.as_bytes());
            prop_assert!(!error.unwrap_err().to_string().contains(MARK));
        }

        /// Arbitrary bytes never cause a panic; accepted documents parse with serde_json too.
        #[test]
        fn arbitrary_bytes_are_answered(text in "[\\[\\]{}\",:0-9a-b\\\\u .eE+-]{0,40}") {
            if let Ok(value) = from_slice::<Value>(text.as_bytes()) {
                prop_assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap());
            }
        }
    }
}
