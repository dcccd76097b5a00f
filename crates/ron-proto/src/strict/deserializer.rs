//! A deserializer that checks the rules while another one reads, so that a document is parsed once.
//!
//! It wraps every visitor, and through the visitor every nested deserializer. It counts the open
//! arrays and objects, remembers the keys of each open object, and checks each integer.

use std::{borrow::Cow, collections::BTreeSet, fmt, marker::PhantomData};

use serde::{
    Deserialize,
    de::{
        self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
        Unexpected, VariantAccess, Visitor, value::CowStrDeserializer,
    },
    forward_to_deserialize_any,
};

use super::{MAX_DEPTH, MAX_SAFE_INTEGER, OURS};

/// `inner` with the rules; `depth` is the number of open arrays and objects.
pub(super) struct Strict<D> {
    pub inner: D,
    pub depth: u32,
}

/// The depth inside an array or object that opens at `depth`.
fn deeper<E: de::Error>(depth: u32) -> Result<u32, E> {
    if depth == MAX_DEPTH {
        return Err(E::custom(format_args!(
            "{OURS}nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok(depth + 1)
}

fn integer<E: de::Error>(magnitude: u64) -> Result<(), E> {
    if magnitude > MAX_SAFE_INTEGER {
        return Err(E::custom(format_args!(
            "{OURS}integers above 2^53 must be sent as strings"
        )));
    }
    Ok(())
}

macro_rules! check_with_visitor {
    ($($method:ident($($name:ident: $kind:ty),*) as $inner:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(
            self,
            $($name: $kind,)*
            visitor: V,
        ) -> Result<V::Value, D::Error> {
            let visitor = Checked { visitor, depth: self.depth };
            self.inner.$inner($($name,)* visitor)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    check_with_visitor! {
        deserialize_any() as deserialize_any;
        deserialize_bool() as deserialize_bool;
        deserialize_i8() as deserialize_i8;
        deserialize_i16() as deserialize_i16;
        deserialize_i32() as deserialize_i32;
        deserialize_i64() as deserialize_i64;
        deserialize_u8() as deserialize_u8;
        deserialize_u16() as deserialize_u16;
        deserialize_u32() as deserialize_u32;
        deserialize_u64() as deserialize_u64;
        deserialize_f32() as deserialize_f32;
        deserialize_f64() as deserialize_f64;
        deserialize_char() as deserialize_char;
        deserialize_str() as deserialize_str;
        deserialize_string() as deserialize_string;
        deserialize_option() as deserialize_option;
        deserialize_unit() as deserialize_unit;
        deserialize_unit_struct(name: &'static str) as deserialize_unit_struct;
        deserialize_newtype_struct(name: &'static str) as deserialize_newtype_struct;
        deserialize_seq() as deserialize_seq;
        deserialize_tuple(len: usize) as deserialize_tuple;
        deserialize_tuple_struct(name: &'static str, len: usize) as deserialize_tuple_struct;
        deserialize_map() as deserialize_map;
        deserialize_identifier() as deserialize_identifier;
        // serde_json would read these without the visits that the rules need: 128-bit integers past
        // 64 bits, bytes without a check for UTF-8, ignored values without a check for anything.
        deserialize_i128() as deserialize_any;
        deserialize_u128() as deserialize_any;
        deserialize_bytes() as deserialize_any;
        deserialize_byte_buf() as deserialize_any;
        deserialize_ignored_any() as deserialize_any;
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // serde_json would also read a struct from an array of its values, whose meaning would change
        // with the order of the fields.
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // serde_json does not say whether it reads a variant from a string or from an object, and
        // here an object would be too deep.
        if self.depth == MAX_DEPTH {
            let text = Text::deserialize(self.inner)?;
            return visitor.visit_enum(text.into_deserializer());
        }
        let visitor = Checked {
            visitor,
            depth: self.depth,
        };
        self.inner.deserialize_enum(name, variants, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

struct Checked<V> {
    visitor: V,
    depth: u32,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Checked<V> {
    type Value = V::Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(out)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<V::Value, E> {
        self.visitor.visit_bool(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<V::Value, E> {
        integer(value.unsigned_abs())?;
        self.visitor.visit_i64(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<V::Value, E> {
        integer(value)?;
        self.visitor.visit_u64(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<V::Value, E> {
        self.visitor.visit_f64(value)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<V::Value, E> {
        self.visitor.visit_str(text)
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.visitor.visit_borrowed_str(text)
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let depth = self.depth;
        self.visitor.visit_some(Strict { inner, depth })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let depth = self.depth;
        self.visitor.visit_newtype_struct(Strict { inner, depth })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        // A tagged enum asks for any value and would read its tag and its fields from an array.
        let expected: &dyn de::Expected = &self;
        if expected.to_string().starts_with(TAGGED) {
            return Err(de::Error::invalid_type(Unexpected::Seq, expected));
        }
        let depth = deeper(self.depth)?;
        self.visitor.visit_seq(Strict { inner, depth })
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Object {
            entries,
            depth: deeper(self.depth)?,
            seen: Keys::default(),
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        // A variant with a value is an object of one key; one in a string has no value to be deeper.
        let depth = deeper(self.depth)?;
        self.visitor.visit_enum(Strict { inner, depth })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let depth = self.depth;
        self.inner.deserialize(Strict { inner, depth })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(Strict {
            inner: seed,
            depth: self.depth,
        })
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, inner) = self.inner.variant_seed(seed)?;
        let depth = self.depth;
        Ok((name, Strict { inner, depth }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Strict {
            inner: seed,
            depth: self.depth,
        })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let depth = self.depth;
        self.inner.tuple_variant(len, Checked { visitor, depth })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.newtype_variant_seed(AsStruct(visitor))
    }
}

/// Reads the fields of a struct variant, as [`Strict`] reads those of a struct.
struct AsStruct<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for AsStruct<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        inner.deserialize_map(self.0)
    }
}

/// How serde's derived code begins to name what it expects for an internally tagged enum.
const TAGGED: &str = "internally tagged enum ";

/// The entries of one object, and the keys that were read already.
struct Object<'de, A> {
    entries: A,
    depth: u32,
    seen: Keys<'de>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Object<'de, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let Some(Text(key)) = self.entries.next_key()? else {
            return Ok(None);
        };
        // Before the type sees it, so that all types refuse a second key with the same words.
        if self.seen.contains(&key) {
            return Err(de::Error::custom(format_args!("{OURS}a key occurs twice")));
        }
        let read = seed.deserialize(Key {
            text: &key,
            error: PhantomData,
        })?;
        self.seen.insert(key);
        Ok(Some(read))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.entries.next_value_seed(Strict {
            inner: seed,
            depth: self.depth,
        })
    }
}

/// A string with escapes resolved; borrowed from the input when it has none.
struct Text<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsText;
        impl<'de> Visitor<'de> for AsText {
            type Value = Text<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(AsText)
    }
}

impl<'de, E: de::Error> IntoDeserializer<'de, E> for Text<'de> {
    type Deserializer = CowStrDeserializer<'de, E>;

    fn into_deserializer(self) -> Self::Deserializer {
        self.0.into_deserializer()
    }
}

/// A key that was read, for the type that wants it. Only strings and types made of one string can
/// be keys.
struct Key<'a, 'de, E> {
    text: &'a Cow<'de, str>,
    error: PhantomData<E>,
}

impl<'de, E: de::Error> Deserializer<'de> for Key<'_, 'de, E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        match self.text {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_str(text),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, E> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, E> {
        visitor.visit_enum(self.text.as_ref().into_deserializer())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The keys of one object: a list while there are few, a set when there are many, which avoids
/// quadratic time for objects with very many keys.
#[derive(Default)]
struct Keys<'de> {
    few: Vec<Cow<'de, str>>,
    many: BTreeSet<Cow<'de, str>>,
}

impl<'de> Keys<'de> {
    const FEW: usize = 16;

    fn contains(&self, key: &str) -> bool {
        if self.many.is_empty() {
            self.few.iter().any(|seen| seen == key)
        } else {
            self.many.contains(key)
        }
    }

    fn insert(&mut self, key: Cow<'de, str>) {
        if !self.many.is_empty() {
            self.many.insert(key);
            return;
        }
        if self.few.is_empty() {
            // At once: to grow the list step by step was a tenth of the instructions for a short object.
            self.few.reserve(Self::FEW);
        }
        self.few.push(key);
        if self.few.len() > Self::FEW {
            self.many.extend(self.few.drain(..));
        }
    }
}
