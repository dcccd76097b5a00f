//! Byte strings as the API encodes them.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Raw bytes, encoded as base64url without padding.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// The bytes themselves.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(raw: Vec<u8>) -> Self {
        Self(raw)
    }
}

impl From<&[u8]> for Bytes {
    fn from(raw: &[u8]) -> Self {
        Self(raw.to_vec())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl fmt::Debug for Bytes {
    /// Prints only the length: messages of callers do not belong in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Bytes;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("bytes as base64url without padding")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
                let refuse = |_| E::custom("not base64url without padding");
                URL_SAFE_NO_PAD.decode(text).map(Bytes).map_err(refuse)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl JsonSchema for Bytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Base64Url".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[A-Za-z0-9_-]*$",
            "description": "bytes, base64url without padding"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_strict_base64url() {
        let check = |json: &str, want: Option<&[u8]>| {
            let got: Option<Bytes> = serde_json::from_str(json).ok();
            assert_eq!(got.as_ref().map(Bytes::as_slice), want, "{json}");
        };
        check("\"\"", Some(b""));
        check("\"AQID\"", Some(&[1, 2, 3]));
        check("\"_-8\"", Some(&[255, 239]));
        check("\"/+8\"", None);
        check("\"AQ==\"", None);
        check("\"AR\"", None); // non-zero trailing bits: not canonical
        check("\"A Q\"", None);
        check("7", None);
    }
}
