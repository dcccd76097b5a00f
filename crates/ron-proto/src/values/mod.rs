//! The small values every API speaks: parsed once at the border, valid ever after.
//!
//! Each type is a newtype with a strict `FromStr`, travels in JSON as a string and carries its
//! own JSON schema. A parse error names the rule that was broken and never repeats the input.

mod amount;
mod content;
mod kid;
mod text;
mod time;

pub use amount::Amount;
pub use content::ContentId;
pub use kid::{Alg, Kid, KidVersion};
pub use text::{Account, Asset, EpochId, IdemKey, OpId, Purpose, RequestId, Tenant};
pub use time::Timestamp;

/// Why a text is not a value of its type. Holds no part of the input, so it may be shown to
/// anyone and written to any log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {what}: {why}")]
pub struct ValueError {
    /// The name of the value, as in `account` or `amount`.
    pub what: &'static str,
    /// The rule that was broken and what would satisfy it.
    pub why: String,
}

impl ValueError {
    /// An error about `what`; `why` must not contain input.
    pub fn new(what: &'static str, why: impl Into<String>) -> Self {
        Self {
            what,
            why: why.into(),
        }
    }
}

/// Gives a type that has `FromStr<Err = ValueError>` and `Display` its string form in serde, its
/// `TryFrom`s and its JSON schema.
macro_rules! string_value {
    ($type:ident, $what:literal, $schema:tt) => {
        impl TryFrom<String> for $type {
            type Error = $crate::values::ValueError;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl TryFrom<&str> for $type {
            type Error = $crate::values::ValueError;
            fn try_from(text: &str) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        out.write_str($what)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}
pub(crate) use string_value;
