//! Strict JSON parsing for untrusted input: bounded depth, no duplicate keys, exact integers, and
//! errors that name the position and the rule but never repeat the input.

mod deserializer;

use serde::de::DeserializeOwned;

use deserializer::Strict;

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

/// Marks messages of this module, which contain no input; messages of serde are reworded.
const OURS: &str = "rule: ";

/// Parses one JSON document. Rejects duplicate keys at any depth, also inside free-form values and
/// values that `T` ignores, nesting beyond [`MAX_DEPTH`], integers beyond 2^53 and data after the
/// document. Of several faults the error names the first, but bytes that are no UTF-8 before any other.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StrictError> {
    // Once for the whole document, not for each of its strings.
    let text = std::str::from_utf8(bytes).map_err(|e| not_utf8(&bytes[..e.valid_up_to()]))?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let strict = Strict {
        inner: &mut reader,
        depth: 0,
    };
    T::deserialize(strict)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| StrictError::from(&error))
}

/// The error of a document of which only the start is UTF-8.
fn not_utf8(start: &[u8]) -> StrictError {
    let mut lines = start.rsplit(|byte| *byte == b'\n');
    StrictError {
        column: lines.next().map_or(0, <[u8]>::len) + 1,
        line: lines.count() + 1,
        reason: "not JSON: bytes that are no UTF-8".to_owned(),
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
    use serde::Deserialize;
    use serde::de::IgnoredAny;
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

    /// Checks the rules alone: a value that is ignored is checked too.
    fn check(text: &[u8]) -> Result<IgnoredAny, StrictError> {
        from_slice(text)
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

    /// A type that reads its document in every way that serde has.
    #[derive(Deserialize, Debug)]
    #[expect(dead_code, reason = "the test looks only at what is accepted")]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        Unit,
        Newtype(Box<Shape>),
        Tuple(u64, Option<Value>),
        Struct { a: u64 },
        Open(Open),
        Wide(u128),
        Map(BTreeMap<Word, Account>),
        Tagged(Tagged),
    }

    #[derive(Deserialize, Debug)]
    #[expect(dead_code, reason = "as for `Shape`")]
    struct Open {
        a: Option<f64>,
    }

    #[derive(Deserialize, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        Left,
        Right,
    }

    #[derive(Deserialize, Debug)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    #[expect(dead_code, reason = "as for `Shape`")]
    enum Tagged {
        Inner { shape: Box<Shape> },
    }

    #[test]
    fn the_rules_hold_in_every_shape_of_type() {
        let (twice, exact) = ("a key occurs twice", "2^53");
        let check = |text: &str, want: Result<(), &str>| {
            let found = from_slice::<Shape>(text.as_bytes());
            match (&found, want) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(why)) => assert!(error.reason.contains(why), "{text}: {error}"),
                _ => panic!("{text}: {found:?}"),
            }
        };
        check(r#""unit""#, Ok(()));
        check(r#"{"unit":null}"#, Ok(()));
        check(r#"{"struct":{"a":1}}"#, Ok(()));
        check(r#"{"struct":{"a":1,"a":1}}"#, Err(twice));
        check(r#"{"struct":{"a":9007199254740993}}"#, Err(exact));
        check(r#"{"tuple":[1,{"x":2}]}"#, Ok(()));
        check(r#"{"tuple":[1,{"x":2,"x":2}]}"#, Err(twice));
        check(r#"{"tuple":[9007199254740993,null]}"#, Err(exact));
        check(r#"{"wide":7}"#, Ok(()));
        check(r#"{"wide":9007199254740993}"#, Err(exact));
        check(r#"{"map":{"left":"a:b","right":"a:c"}}"#, Ok(()));
        check(r#"{"map":{"left":"a:b","l\u0065ft":"a:c"}}"#, Err(twice));
        // What the type ignores is checked as well.
        check(r#"{"open":{"a":1,"ignored":[{"b":1}]}}"#, Ok(()));
        check(r#"{"open":{"ignored":[{"b":1,"b":1}]}}"#, Err(twice));
        check(r#"{"open":{"ignored":18446744073709551615}}"#, Err(exact));
        check(r#"{"open":{"a":9007199254740993}}"#, Err(exact));
        // A tagged type reads through a buffer of serde.
        check(r#"{"tagged":{"shape":"unit","kind":"inner"}}"#, Ok(()));
        check(
            r#"{"tagged":{"shape":{"wide":9007199254740993},"kind":"inner"}}"#,
            Err(exact),
        );
        let nested = |inner: &str, levels: usize| {
            format!(
                "{}{inner}{}",
                r#"{"newtype":"#.repeat(levels),
                "}".repeat(levels)
            )
        };
        check(&nested(r#""unit""#, 32), Ok(()));
        check(&nested(r#"{"unit":null}"#, 31), Ok(()));
        check(&nested(r#"{"unit":null}"#, 32), Err("expected a string"));
        let ignored = r#"{"open":{"ignored":[]}}"#;
        check(&nested(ignored, 29), Ok(()));
        check(&nested(ignored, 30), Err("deeper than 32"));
    }

    #[test]
    fn arrays_are_not_read_as_objects() {
        let expected = "invalid type: sequence, expected ";
        let transfer = format!("{expected}struct Transfer");
        refused(r#"["a","1",null]"#, &transfer);
        for (text, expected) in [
            (r#"{"struct":[1]}"#, "struct variant Shape::Struct"),
            (r#"{"open":[1.5]}"#, "struct Open"),
            (
                r#"{"tagged":["inner","unit"]}"#,
                "internally tagged enum Tagged",
            ),
            (
                r#"{"tagged":["inner",{"shape":"unit"}]}"#,
                "internally tagged enum Tagged",
            ),
        ] {
            let error = from_slice::<Shape>(text.as_bytes()).expect_err(text);
            assert!(error.reason.contains(expected), "{text}: {error}");
        }
        // Types that are arrays stay arrays.
        assert!(from_slice::<Vec<Value>>(b"[1,[2]]").is_ok());
        assert!(from_slice::<(u8, u8)>(b"[1,2]").is_ok());
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
        let refused = check(b"{\n\"a\": \"\xff\"}").unwrap_err();
        assert_eq!((refused.line, refused.column), (2, 7), "not UTF-8");
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
