//! Base64 in the two alphabets we speak, decoded strictly: no padding where none belongs, no
//! spaces, no stray trailing bits.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};

use crate::ValueError;

/// URL-safe base64 without padding: keys, signatures, messages, tokens.
pub fn url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes of a URL-safe base64 text without padding.
pub fn from_url(text: &str) -> Result<Vec<u8>, ValueError> {
    URL_SAFE_NO_PAD
        .decode(text)
        .map_err(|_| ValueError::new("base64url text", "use A-Z a-z 0-9 - _ without padding"))
}

/// [`from_url`] for values of one fixed length.
pub fn from_url_array<const N: usize>(text: &str) -> Result<[u8; N], ValueError> {
    exact("base64url text", &from_url(text)?)
}

/// Standard base64 with padding: roots, hashes and keys inside C2SP formats.
pub fn std(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a standard base64 text with padding.
pub fn from_std(text: &str) -> Result<Vec<u8>, ValueError> {
    STANDARD
        .decode(text)
        .map_err(|_| ValueError::new("base64 text", "use A-Z a-z 0-9 + / with padding"))
}

/// [`from_std`] for values of one fixed length.
pub fn from_std_array<const N: usize>(text: &str) -> Result<[u8; N], ValueError> {
    exact("base64 text", &from_std(text)?)
}

fn exact<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<[u8; N], ValueError> {
    <[u8; N]>::try_from(bytes).map_err(|_| {
        ValueError::new(
            what,
            format!("it holds {} bytes; {N} are needed", bytes.len()),
        )
    })
}

/// For `#[serde(with = "ron_proto::b64::b64url_bytes")]` on a `Vec<u8>`; pair it with
/// `#[schemars(with = "ron_proto::b64::B64Url")]`.
pub mod b64url_bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the bytes as URL-safe base64 without padding.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::url(bytes))
    }

    /// Reads URL-safe base64 without padding.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        super::from_url(&text).map_err(Error::custom)
    }
}

/// [`b64url_bytes`] for `Option<Vec<u8>>`; add `#[serde(default)]`.
pub mod b64url_option {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the bytes as URL-safe base64 without padding, or null.
    pub fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_some(&super::url(bytes)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads URL-safe base64 without padding, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = <Option<String>>::deserialize(deserializer)?;
        text.map(|text| super::from_url(&text).map_err(Error::custom))
            .transpose()
    }
}

/// The JSON schema of bytes carried as URL-safe base64.
pub struct B64Url;

impl schemars::JsonSchema for B64Url {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "B64Url".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "contentEncoding": "base64url",
            "pattern": "^[A-Za-z0-9_-]*$"
        })
    }
}
