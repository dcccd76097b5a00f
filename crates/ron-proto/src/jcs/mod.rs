//! Canonical JSON (RFC 8785): one byte string per value, for everything that is hashed or signed.
//!
//! [`to_vec`] serialises the types of this system and rejects floating-point numbers and integers
//! beyond 2^53: signed data must not depend on how a reader rounds. [`canonicalize`] serialises any
//! JSON value, with numbers as ECMAScript prints them.

mod writer;

use std::fmt;

use serde::ser::{self, Serialize};
use serde_json::Value;

use crate::strict::MAX_SAFE_INTEGER;
use writer::Writer;

/// Why a value has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JcsError {
    /// It contains a floating-point number.
    #[error("floating-point numbers are not allowed in signed JSON; use an integer or a string")]
    Float,
    /// It contains an integer beyond 2^53.
    #[error("write integers above 2^53 as strings")]
    IntegerTooLarge,
    /// A map key is not a string.
    #[error("map keys must be strings")]
    KeyNotString,
    /// A key occurs twice in a map.
    #[error("a key occurs twice in a map")]
    DuplicateKey,
    /// The type's own `Serialize` implementation failed.
    #[error("the value cannot be serialised: {0}")]
    Custom(String),
}

impl ser::Error for JcsError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

/// The canonical JSON of a value without floating-point numbers.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, JcsError> {
    let mut out = Vec::with_capacity(256);
    value.serialize(Writer { out: &mut out })?;
    Ok(out)
}

/// The canonical JSON of any JSON value. Numbers become IEEE 754 doubles, as RFC 8785 requires.
pub fn canonicalize(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_value(&mut out, value);
    out
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_value(out, item);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| utf16_order(a.0, b.0));
            out.push(b'{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_string(out, key);
                out.push(b':');
                write_value(out, item);
            }
            out.push(b'}');
        }
    }
}

/// RFC 8785 sorts keys by UTF-16 code units, which differs from UTF-8 order above U+FFFF.
fn utf16_order(a: &str, b: &str) -> std::cmp::Ordering {
    if a.is_ascii() && b.is_ascii() {
        a.cmp(b)
    } else {
        a.encode_utf16().cmp(b.encode_utf16())
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

fn write_number(out: &mut Vec<u8>, number: &serde_json::Number) {
    let exact = match (number.as_u64(), number.as_i64()) {
        (Some(value), _) => value <= MAX_SAFE_INTEGER,
        (None, Some(value)) => value.unsigned_abs() <= MAX_SAFE_INTEGER,
        (None, None) => false,
    };
    if exact {
        out.extend_from_slice(number.to_string().as_bytes());
    } else {
        // A serde_json number always converts to a finite double, never to NaN or infinity.
        out.extend_from_slice(ecmascript(number.as_f64().unwrap_or_default()).as_bytes());
    }
}

/// A finite double as ECMAScript's `Number::toString` prints it: the shortest digits that read back
/// the same, in plain notation between 1e-7 and 1e21.
fn ecmascript(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let (digits, point) = shortest_digits(value.abs());
    let count = i32::try_from(digits.len()).expect("a double has at most 17 digits");
    let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or(0));
    let text = if count <= point && point <= 21 {
        digits + &zeros(point - count)
    } else if 0 < point && point <= 21 {
        let (whole, fraction) = digits.split_at(point.unsigned_abs() as usize);
        format!("{whole}.{fraction}")
    } else if -6 < point && point <= 0 {
        format!("0.{}{digits}", zeros(-point))
    } else {
        let (first, rest) = digits.split_at(1);
        let dot = if rest.is_empty() { "" } else { "." };
        format!("{first}{dot}{rest}e{:+}", point - 1)
    };
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// The shortest digits that read back as the double, without leading and trailing zeros, and the
/// position of the decimal point counted from their start. Uses the printer of serde_json, which
/// rounds ties to the even digit as ECMAScript does and `{:e}` does not.
fn shortest_digits(value: f64) -> (String, i32) {
    let text = serde_json::Number::from_f64(value)
        .expect("only finite doubles come here")
        .to_string();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i32 = exponent.parse().expect("an exponent is a decimal number");
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_start_matches('0');
    let leading = digits.len() - significant.len();
    let places = i32::try_from(whole.len()).expect("a double prints in under 400 characters")
        - i32::try_from(leading).expect("a double prints in under 400 characters");
    (
        significant.trim_end_matches('0').to_owned(),
        places + exponent,
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Serialize;
    use serde_json::json;

    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("canonical JSON is UTF-8")
    }

    /// RFC 8785 section 3.2.2 and 3.2.3, and appendix B for numbers.
    #[test]
    fn rfc_8785_examples() {
        let input = r#"{
            "numbers": [0, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        let mut value: Value = serde_json::from_str(input).unwrap();
        // Without this, serde_json may read the last digit of a long fraction differently.
        value["numbers"][0] = "333333333.33333329".parse::<f64>().unwrap().into();
        assert_eq!(
            text(canonicalize(&value)),
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        let keys = json!({
            "\u{20ac}": "Euro Sign",
            "\r": "Carriage Return",
            "\u{fb33}": "Hebrew Letter Dalet With Dagesh",
            "1": "One",
            "\u{1f600}": "Emoji: Grinning Face",
            "\u{80}": "Control",
            "\u{f6}": "Latin Small Letter O With Diaeresis",
        });
        let order: Vec<_> = [
            "\r",
            "1",
            "\u{80}",
            "\u{f6}",
            "\u{20ac}",
            "\u{1f600}",
            "\u{fb33}",
        ]
        .iter()
        .map(|key| format!("{}:{}", json!(key), keys[*key]))
        .collect();
        let expected = format!("{{{}}}", order.join(","));
        assert_eq!(text(canonicalize(&keys)), expected);
        assert_eq!(text(to_vec(&keys).unwrap()), expected);
    }

    #[test]
    fn rfc_8785_number_samples() {
        for (bits, expected) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(ecmascript(f64::from_bits(bits)), expected, "{bits:016x}");
        }
    }

    #[derive(Serialize)]
    enum Shape {
        Unit,
        Newtype(u8),
        Tuple(u8, i8),
        Struct { z: bool, a: char },
    }

    #[test]
    fn every_shape_is_written_in_order() {
        #[derive(Serialize)]
        struct All {
            z: u8,
            b: Option<u8>,
            a: (u8, &'static str),
            shapes: [Shape; 4],
            map: BTreeMap<u16, bool>,
            big: u128,
        }
        let shapes = [
            Shape::Unit,
            Shape::Newtype(1),
            Shape::Tuple(2, -3),
            Shape::Struct { z: true, a: 'ä' },
        ];
        let all = All {
            z: 0,
            b: None,
            a: (1, "x\u{7f}"),
            shapes,
            map: BTreeMap::new(),
            big: 1 << 53,
        };
        assert_eq!(
            text(to_vec(&all).unwrap()),
            "{\"a\":[1,\"x\u{7f}\"],\"b\":null,\"big\":9007199254740992,\"map\":{},\
             \"shapes\":[\"Unit\",{\"Newtype\":1},{\"Tuple\":[2,-3]},{\"Struct\":{\"a\":\"ä\",\"z\":true}}],\
             \"z\":0}"
        );
    }

    #[test]
    fn what_cannot_be_exact_is_refused() {
        #[derive(Serialize)]
        struct One<T>(T);
        assert_eq!(to_vec(&One(0.5)), Err(JcsError::Float));
        assert_eq!(to_vec(&One(1.0_f32)), Err(JcsError::Float));
        assert_eq!(to_vec(&vec![f64::NAN]), Err(JcsError::Float));
        assert_eq!(to_vec(&json!({"a": [1, 2.0]})), Err(JcsError::Float));
        assert_eq!(to_vec(&u64::MAX), Err(JcsError::IntegerTooLarge));
        assert_eq!(to_vec(&i64::MIN), Err(JcsError::IntegerTooLarge));
        assert_eq!(to_vec(&((1_u64 << 53) + 1)), Err(JcsError::IntegerTooLarge));
        assert_eq!(
            to_vec(&BTreeMap::from([((1, 2), 3)])),
            Err(JcsError::KeyNotString)
        );
        let pairs = PairMap(vec![("k", 1), ("j", 2), ("k", 1)]);
        assert_eq!(to_vec(&pairs), Err(JcsError::DuplicateKey));
    }

    /// A map that may contain a key twice.
    struct PairMap(Vec<(&'static str, u8)>);

    impl Serialize for PairMap {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().copied())
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-(1_i64 << 53)..=1 << 53).prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Both serialisers agree; the output parses to the same value and serialises to the same
        /// bytes.
        #[test]
        fn canonical_is_a_fixed_point(value in any_value()) {
            let bytes = canonicalize(&value);
            prop_assert_eq!(&to_vec(&value).unwrap(), &bytes);
            let again: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(&again, &value);
            prop_assert_eq!(canonicalize(&again), bytes);
        }

        /// Any double reads back as itself.
        #[test]
        fn numbers_read_back(value in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
            let written = ecmascript(value);
            prop_assert!((written.parse::<f64>().unwrap() - value).abs() == 0.0, "{}", written);
        }
    }
}
