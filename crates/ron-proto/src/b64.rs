//! Base64 in the two alphabets in use, decoded strictly: no padding where none is expected, no
//! whitespace, no non-zero trailing bits.

use base64::{
    Engine,
    alphabet::STANDARD as STANDARD_ALPHABET,
    engine::general_purpose::{GeneralPurpose, PAD, STANDARD, URL_SAFE_NO_PAD},
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

/// As [`from_std`] of a text whose last character may have bits that count for nothing, as other programs accept it: for inputs
/// of an API in the format of another.
pub fn from_std_with_trailing_bits(text: &str) -> Result<Vec<u8>, ValueError> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD_ALPHABET,
        PAD.with_decode_allow_trailing_bits(true),
    );
    LENIENT
        .decode(text)
        .map_err(|_| ValueError::new("base64 text", "use A-Z a-z 0-9 + / with padding"))
}

/// [`from_std`] for values of one fixed length.
pub fn from_std_array<const N: usize>(text: &str) -> Result<[u8; N], ValueError> {
    exact("base64 text", &from_std(text)?)
}

fn exact<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<[u8; N], ValueError> {
    <[u8; N]>::try_from(bytes)
        .map_err(|_| ValueError::new(what, format!("it has {} bytes, expected {N}", bytes.len())))
}

/// For `#[serde(with = "ron_proto::b64::b64url_bytes")]` on a `Vec<u8>`; combine it with
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

/// As [`b64url_bytes`], in the standard alphabet with padding; combine it with [`B64Std`].
pub mod b64std_bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the bytes as standard base64 with padding.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::std(bytes))
    }

    /// Reads standard base64 with padding.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        super::from_std(&text).map_err(Error::custom)
    }
}

/// JSON schema of bytes encoded as standard base64 with padding.
pub struct B64Std;

impl schemars::JsonSchema for B64Std {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "B64Std".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "contentEncoding": "base64",
            "pattern": "^[A-Za-z0-9+/]*={0,2}$"
        })
    }
}

/// JSON schema of bytes encoded as URL-safe base64.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug, schemars::JsonSchema)]
    struct Holder {
        #[serde(with = "b64url_bytes")]
        #[schemars(with = "B64Url")]
        must: Vec<u8>,
        #[serde(default, with = "b64url_option")]
        #[schemars(with = "Option<B64Url>")]
        may: Option<Vec<u8>>,
    }

    #[test]
    fn decoding_is_strict() {
        for bad in [
            "A", "AA=", "AA==", "AB", "+A", "/A", "AA ", "A A", "AA\n", "ä",
        ] {
            assert!(from_url(bad).is_err(), "{bad:?}");
        }
        for bad in ["AA", "AB==", "-A==", "AA==\n", "A==="] {
            assert!(from_std(bad).is_err(), "{bad:?}");
        }
        assert_eq!(from_url("-_8").unwrap(), [0xfb, 0xff]);
        assert_eq!(from_std("+/8=").unwrap(), [0xfb, 0xff]);
        let error = from_url_array::<32>("AAAA").unwrap_err().to_string();
        assert!(error.contains("3 bytes") && error.contains("32"), "{error}");
        assert_eq!(from_std_array::<3>("AAAA").unwrap(), [0; 3]);
    }

    #[test]
    fn a_missing_option_is_none() {
        let holder: Holder = serde_json::from_str(r#"{"must":""}"#).unwrap();
        assert_eq!(
            holder,
            Holder {
                must: vec![],
                may: None
            }
        );
        assert!(serde_json::from_str::<Holder>(r#"{"must":"=="}"#).is_err());
        assert!(serde_json::from_str::<Holder>(r#"{"must":[1]}"#).is_err());
    }

    proptest! {
        #[test]
        fn bytes_round_trip(must in any::<Vec<u8>>(), may in any::<Option<Vec<u8>>>()) {
            prop_assert_eq!(from_url(&url(&must)).unwrap(), must.clone());
            prop_assert_eq!(from_std(&std(&must)).unwrap(), must.clone());
            let holder = Holder { must, may };
            let json = serde_json::to_vec(&holder).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Holder>(&json).unwrap(), holder);
        }
    }
}
