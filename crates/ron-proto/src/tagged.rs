//! Objects whose members depend on one of them, the tag, such as `"kind":"transfer"`. Derived code for enums with a tag reads the
//! object into a tree first, whatever the order of its members. Here the members after the tag are read as they come, and only
//! those before it are kept: writers put the tag first.

use std::fmt;
use std::vec;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer as _, MapAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// An enum of objects with a tag. `read by` repeats its name for the derived code that reads it, which is that of an enum without
/// a tag. Every variant has named members.
macro_rules! tagged {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident, tag $tag:literal, read by $remote:literal as $members:ident { $($variants:tt)* }
    ) => {
        $(#[$attribute])*
        #[derive(serde::Serialize, schemars::JsonSchema)]
        #[serde(tag = $tag, rename_all = "snake_case", deny_unknown_fields)]
        pub enum $name { $($variants)* }

        #[derive(serde::Deserialize)]
        #[serde(remote = $remote, rename_all = "snake_case", deny_unknown_fields)]
        #[allow(clippy::large_enum_variant, dead_code, reason = "no value of it is made")]
        enum $members { $($variants)* }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;

                impl<'de> serde::de::Visitor<'de> for Object {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(f, "an object with the member {}", $tag)
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        $members::deserialize($crate::tagged::Tagged { tag: $tag, map })
                    }
                }

                deserializer.deserialize_map(Object)
            }
        }
    };
}
pub(crate) use tagged;

/// An object whose tag names a variant.
pub(crate) struct Tagged<A> {
    pub tag: &'static str,
    pub map: A,
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for Tagged<A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.map)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> EnumAccess<'de> for Tagged<A> {
    type Error = A::Error;
    type Variant = Members<A>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        mut self,
        seed: S,
    ) -> Result<(S::Value, Members<A>), A::Error> {
        let mut before = Vec::new();
        while let Some(other) = self.map.next_key_seed(NameOf(self.tag))? {
            let Some(name) = other else {
                let variant = self.map.next_value_seed(seed)?;
                let members = Members {
                    before: before.into_iter(),
                    value: None,
                    map: self.map,
                };
                return Ok((variant, members));
            };
            before.push((name, self.map.next_value()?));
        }
        Err(A::Error::missing_field(self.tag))
    }
}

/// Reads the name of a member: none if it is the tag.
struct NameOf(&'static str);

impl<'de> DeserializeSeed<'de> for NameOf {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for NameOf {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok((name != self.0).then(|| name.to_owned()))
    }
}

/// The members beside the tag.
pub(crate) struct Members<A> {
    before: vec::IntoIter<(String, Value)>,
    /// That of the member before the tag whose name was read last.
    value: Option<Value>,
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let Some((name, value)) = self.before.next() else {
            return self.map.next_key_seed(seed);
        };
        self.value = Some(value);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.value.take() {
            Some(value) => seed.deserialize(value).map_err(A::Error::custom),
            None => self.map.next_value_seed(seed),
        }
    }
}

impl<'de, A: MapAccess<'de>> VariantAccess<'de> for Members<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        Err(A::Error::invalid_type(
            Unexpected::Map,
            &"a variant without members",
        ))
    }

    /// A variant of which a member is flattened.
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        seed.deserialize(MapAccessDeserializer::new(self))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _members: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::strict;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    pub struct Note {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    }

    tagged! {
        /// Of each form that the macro has to read.
        #[derive(Debug, PartialEq)]
        pub enum Shape, tag "kind", read by "Shape" as ShapeMembers {
            /// Plain.
            Circle { radius: u64 },
            /// With members of another type among its own.
            WideSquare {
                side: u64,
                #[serde(default, rename = "final", skip_serializing_if = "Option::is_none")]
                ends: Option<bool>,
                #[serde(flatten)]
                note: Note,
            },
        }
    }

    fn read(text: &str) -> Result<Shape, String> {
        let strictly = strict::from_slice::<Shape>(text.as_bytes()).map_err(|e| e.to_string());
        let plainly = serde_json::from_str::<Shape>(text).map_err(|e| e.to_string());
        assert_eq!(strictly.is_ok(), plainly.is_ok(), "{text}");
        strictly
    }

    #[test]
    fn the_tag_may_be_anywhere() {
        let note = Note {
            note: Some("n".to_owned()),
        };
        let square = Shape::WideSquare {
            side: 3,
            ends: Some(true),
            note,
        };
        for text in [
            r#"{"kind":"wide_square","side":3,"final":true,"note":"n"}"#,
            r#"{"side":3,"kind":"wide_square","note":"n","final":true}"#,
            r#"{"note":"n","final":true,"side":3,"kind":"wide_square"}"#,
        ] {
            assert_eq!(read(text).as_ref(), Ok(&square), "{text}");
        }
        let written = json!({"kind": "wide_square", "side": 3, "final": true, "note": "n"});
        assert_eq!(serde_json::to_value(&square).unwrap(), written);
        assert_eq!(
            serde_json::to_string(&square).unwrap().find("\"kind\""),
            Some(1),
            "the tag is the first member"
        );
        assert_eq!(
            read(r#"{"radius":1,"kind":"circle"}"#),
            Ok(Shape::Circle { radius: 1 })
        );
    }

    #[test]
    fn what_is_no_such_object_is_refused() {
        for (text, why) in [
            (r"[]", "an object with the member kind"),
            (r"{}", "missing field `kind`"),
            (r#"{"radius":1}"#, "missing field `kind`"),
            (r#"{"kind":"circle"}"#, "missing field `radius`"),
            (
                r#"{"kind":"oval","radius":1}"#,
                "expected `circle` or `wide_square`",
            ),
            (r#"{"kind":7,"radius":1}"#, "variant identifier"),
            (
                r#"{"kind":"circle","radius":1,"side":2}"#,
                "unknown field, expected `radius`",
            ),
            (
                r#"{"side":2,"kind":"circle","radius":1}"#,
                "unknown field, expected `radius`",
            ),
            (
                r#"{"kind":"wide_square","side":1,"radius":2}"#,
                "unknown field",
            ),
            (r#"{"kind":"circle","radius":1,"radius":1}"#, "twice"),
            (r#"{"kind":"circle","kind":"circle","radius":1}"#, "twice"),
            (r#"{"radius":"1","kind":"circle"}"#, "invalid type"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
