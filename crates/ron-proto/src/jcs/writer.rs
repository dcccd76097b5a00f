//! The serde serialiser behind [`super::to_vec`]: sorted keys, no floating-point numbers, exact
//! integers.

use serde::ser::{self, Serialize};
use serde_json::Value;

use super::{JcsError, utf16_order, write_string};
use crate::strict::MAX_SAFE_INTEGER;

/// Writes one value in canonical form.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut Vec<u8>,
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

/// An array being written; enclosed in `{"Variant": ...}` when it belongs to an enum variant.
pub(super) struct Items<'a> {
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

/// An object being written: values go to a scratch buffer and are written in key order at the end.
pub(super) struct Entries<'a> {
    out: &'a mut Vec<u8>,
    scratch: Vec<u8>,
    /// Each key with the offset of its value in `scratch`; a value ends where the next one starts.
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
        // serde_json converts a string-like key to a JSON string and anything else to another kind
        // of value, which distinguishes the two.
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
