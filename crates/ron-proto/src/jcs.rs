//! Canonical JSON (RFC 8785): one byte string per value, for whatever is hashed or signed.
//!
//! [`to_vec`] writes our own types and refuses floats and integers beyond 2^53, so that nothing
//! signed depends on how a reader rounds. [`canonicalize`] writes any JSON value, numbers as
//! ECMAScript prints them.

use std::fmt;

use serde::ser::{self, Serialize};
use serde_json::Value;

use crate::strict::MAX_SAFE_INTEGER;

/// Why a value has no canonical form here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JcsError {
    /// It holds a floating point number.
    #[error("floating point numbers have no place in signed JSON; use an integer or a string")]
    Float,
    /// It holds an integer beyond 2^53.
    #[error("integers above 2^53 are written as strings")]
    IntegerTooLarge,
    /// A map key is not a string.
    #[error("map keys must be strings")]
    KeyNotString,
    /// One key occurs twice in a map.
    #[error("a map has one key twice")]
    DuplicateKey,
    /// The type's own serialisation failed.
    #[error("the value cannot be serialised: {0}")]
    Custom(String),
}

impl ser::Error for JcsError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

/// The canonical JSON of a value without floats.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, JcsError> {
    let mut out = Vec::with_capacity(256);
    value.serialize(Writer { out: &mut out })?;
    Ok(out)
}

/// The canonical JSON of any JSON value. Numbers become IEEE doubles, as the RFC has it.
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
        // A serde_json number always has a double near it, and never NaN or infinity.
        out.extend_from_slice(ecmascript(number.as_f64().unwrap_or_default()).as_bytes());
    }
}

/// A finite double as ECMAScript's `Number::toString` prints it: the shortest digits that read
/// back the same, in plain notation between 1e-7 and 1e21.
fn ecmascript(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{:e}", value.abs());
    let (mantissa, exponent) = scientific.split_once('e').expect("{:e} always writes an e");
    let digits = mantissa.replace('.', "");
    let point = exponent
        .parse::<i32>()
        .expect("{:e} writes a decimal exponent")
        + 1;
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

/// Writes one value in canonical form.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn integer(self, negative: bool, magnitude: u128) -> Result<(), JcsError> {
        if magnitude > u128::from(MAX_SAFE_INTEGER) {
            return Err(JcsError::IntegerTooLarge);
        }
        if negative {
            self.out.push(b'-');
        }
        self.out.extend_from_slice(magnitude.to_string().as_bytes());
        Ok(())
    }
}

macro_rules! integers {
    ($($method:ident: $type:ty, $negative:expr, $magnitude:expr;)*) => {
        $(fn $method(self, value: $type) -> Result<(), JcsError> {
            let (negative, magnitude): (fn($type) -> bool, fn($type) -> u128) =
                ($negative, $magnitude);
            self.integer(negative(value), magnitude(value))
        })*
    };
}

impl<'a> ser::Serializer for Writer<'a> {
    type Ok = ();
    type Error = JcsError;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Entries<'a>;
    type SerializeStructVariant = Entries<'a>;

    integers! {
        serialize_i8: i8, |v| v < 0, |v| v.unsigned_abs().into();
        serialize_i16: i16, |v| v < 0, |v| v.unsigned_abs().into();
        serialize_i32: i32, |v| v < 0, |v| v.unsigned_abs().into();
        serialize_i64: i64, |v| v < 0, |v| v.unsigned_abs().into();
        serialize_i128: i128, |v| v < 0, i128::unsigned_abs;
        serialize_u8: u8, |_| false, u128::from;
        serialize_u16: u16, |_| false, u128::from;
        serialize_u32: u32, |_| false, u128::from;
        serialize_u64: u64, |_| false, u128::from;
        serialize_u128: u128, |_| false, |v| v;
    }

    fn serialize_bool(self, value: bool) -> Result<(), JcsError> {
        self.out
            .extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_f32(self, _: f32) -> Result<(), JcsError> {
        Err(JcsError::Float)
    }

    fn serialize_f64(self, _: f64) -> Result<(), JcsError> {
        Err(JcsError::Float)
    }

    fn serialize_char(self, value: char) -> Result<(), JcsError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result<(), JcsError> {
        write_string(self.out, text);
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), JcsError> {
        self.collect_seq(bytes)
    }

    fn serialize_none(self) -> Result<(), JcsError> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), JcsError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), JcsError> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), JcsError> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), JcsError> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), JcsError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), JcsError> {
        self.out.push(b'{');
        write_string(self.out, variant);
        self.out.push(b':');
        value.serialize(Writer { out: self.out })?;
        self.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, JcsError> {
        Ok(Items::open(self.out, None))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a>, JcsError> {
        Ok(Items::open(self.out, None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'a>, JcsError> {
        Ok(Items::open(self.out, None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a>, JcsError> {
        Ok(Items::open(self.out, Some(variant)))
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Entries<'a>, JcsError> {
        Ok(Entries::open(self.out, None, length.unwrap_or(0)))
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Entries<'a>, JcsError> {
        Ok(Entries::open(self.out, None, length))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Entries<'a>, JcsError> {
        Ok(Entries::open(self.out, Some(variant), length))
    }
}

/// An array being written; inside `{"Variant": ...}` when it belongs to an enum variant.
struct Items<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
    wrapped: bool,
}

impl<'a> Items<'a> {
    fn open(out: &'a mut Vec<u8>, variant: Option<&str>) -> Self {
        open_variant(out, variant);
        out.push(b'[');
        Self {
            out,
            first: true,
            wrapped: variant.is_some(),
        }
    }

    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JcsError> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        value.serialize(Writer { out: self.out })
    }

    fn close(self) {
        self.out
            .extend_from_slice(if self.wrapped { b"]}" } else { b"]" });
    }
}

fn open_variant(out: &mut Vec<u8>, variant: Option<&str>) {
    if let Some(variant) = variant {
        out.push(b'{');
        write_string(out, variant);
        out.push(b':');
    }
}

/// An object being written: values go to a scratch buffer and are put in key order at the end.
struct Entries<'a> {
    out: &'a mut Vec<u8>,
    scratch: Vec<u8>,
    /// Key, and where its value starts in `scratch`; it ends where the next one starts.
    starts: Vec<(String, usize)>,
    wrapped: bool,
}

impl<'a> Entries<'a> {
    fn open(out: &'a mut Vec<u8>, variant: Option<&str>, length: usize) -> Self {
        open_variant(out, variant);
        let starts = Vec::with_capacity(length.min(64));
        Self {
            out,
            scratch: Vec::new(),
            starts,
            wrapped: variant.is_some(),
        }
    }

    fn key(&mut self, key: String) {
        self.starts.push((key, self.scratch.len()));
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JcsError> {
        value.serialize(Writer {
            out: &mut self.scratch,
        })
    }

    fn close(self) -> Result<(), JcsError> {
        let ends = self.starts.iter().skip(1).map(|(_, start)| *start);
        let ends = ends.chain([self.scratch.len()]);
        let mut entries: Vec<_> = self
            .starts
            .iter()
            .zip(ends)
            .map(|((key, start), end)| (key.as_str(), &self.scratch[*start..end]))
            .collect();
        entries.sort_by(|a, b| utf16_order(a.0, b.0));
        if entries.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(JcsError::DuplicateKey);
        }
        self.out.push(b'{');
        for (index, (key, value)) in entries.into_iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            write_string(self.out, key);
            self.out.push(b':');
            self.out.extend_from_slice(value);
        }
        self.out
            .extend_from_slice(if self.wrapped { b"}}" } else { b"}" });
        Ok(())
    }
}

macro_rules! sequence {
    ($($trait:ident::$method:ident)*) => {
        $(impl ser::$trait for Items<'_> {
            type Ok = ();
            type Error = JcsError;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JcsError> {
                self.item(value)
            }
            fn end(self) -> Result<(), JcsError> {
                self.close();
                Ok(())
            }
        })*
    };
}
sequence! {
    SerializeSeq::serialize_element
    SerializeTuple::serialize_element
    SerializeTupleStruct::serialize_field
    SerializeTupleVariant::serialize_field
}

macro_rules! object {
    ($($trait:ident)*) => {
        $(impl ser::$trait for Entries<'_> {
            type Ok = ();
            type Error = JcsError;
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), JcsError> {
                self.key(key.to_owned());
                self.value(value)
            }
            fn end(self) -> Result<(), JcsError> {
                self.close()
            }
        })*
    };
}
object! { SerializeStruct SerializeStructVariant }

impl ser::SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = JcsError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), JcsError> {
        // serde_json turns a string-like key into a JSON string and anything else into another
        // kind of value, so it tells the two apart for us.
        match serde_json::to_value(key) {
            Ok(Value::String(key)) => {
                self.key(key);
                Ok(())
            }
            _ => Err(JcsError::KeyNotString),
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JcsError> {
        self.value(value)
    }

    fn end(self) -> Result<(), JcsError> {
        self.close()
    }
}
