//! The value types of all APIs: validated once when parsed.
//!
//! Each type is a newtype with a strict `FromStr`, is a string in JSON and has its own JSON schema.
//! A parse error names the violated rule and never repeats the input.

use std::fmt;

mod amount;
mod content;
mod key_op;
mod key_ref;
mod kid;
mod text;
mod time;

pub use amount::{Amount, DebitAmount, SignedAmount};
pub use content::ContentId;
pub use key_op::KeyOp;
pub use key_ref::{KeyRef, TagMatch};
pub use kid::{Alg, Kid, KidVersion};
pub use text::{
    Account, Alias, Asset, EpochId, IdemKey, OpId, Purpose, RequestId, TagName, TagValue, Tenant,
    TokenName, is_control,
};
pub use time::Timestamp;

/// Why a text is not a value of its type. Contains no part of the input, so it may be shown to
/// anyone and written to any log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {what}: {why}")]
pub struct ValueError {
    /// Name of the value, such as `account` or `amount`.
    pub what: &'static str,
    /// The violated rule and what would satisfy it.
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

/// Writes the bytes, 32 at most, as lower-case hex digits after a prefix of at most 7 characters: in one piece, because
/// every receipt has several.
pub(crate) fn write_hex(out: &mut fmt::Formatter<'_>, prefix: &str, bytes: &[u8]) -> fmt::Result {
    let mut text = [0; 7 + 64];
    let text = &mut text[..prefix.len() + 2 * bytes.len()];
    let (start, digits) = text.split_at_mut(prefix.len());
    start.copy_from_slice(prefix.as_bytes());
    hex::encode_to_slice(bytes, digits).map_err(|_| fmt::Error)?;
    out.write_str(std::str::from_utf8(text).map_err(|_| fmt::Error)?)
}

/// The bytes of lower-case hex digits; `None` for another number of them and for any other spelling.
pub(crate) fn read_hex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(digits, &mut bytes).ok()?;
    let canonical = !digits.bytes().any(|digit| digit.is_ascii_uppercase());
    canonical.then_some(bytes)
}

/// For a type with `Display` and `FromStr<Err = ValueError>`: implements serde as a string,
/// `TryFrom` and the JSON schema.
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

#[cfg(test)]
mod tests {
    use std::{fmt::Debug, str::FromStr};

    use proptest::prelude::*;
    use serde::{Serialize, de::DeserializeOwned};

    use super::*;

    /// A value survives conversion to text and to JSON, and its schema matches the text.
    fn round_trip<T>(text: &str)
    where
        T: FromStr<Err = ValueError>
            + ToString
            + Serialize
            + DeserializeOwned
            + PartialEq
            + Debug
            + schemars::JsonSchema,
    {
        let value: T = text
            .parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(value.to_string(), text);
        let json = serde_json::to_string(&value).expect("values serialise");
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(
            serde_json::from_str::<T>(&json).expect("values read back"),
            value
        );
        let schema = schemars::schema_for!(T);
        let schema = schema.as_value();
        assert_eq!(schema["type"], "string");
        let bounded = schema["maxLength"]
            .as_u64()
            .map(|max| text.len() as u64 <= max);
        assert!(
            bounded.unwrap_or(schema["enum"].is_array()),
            "{text} fits {schema}"
        );
        assert!(schema["pattern"].is_string() || schema["enum"].is_array());
    }

    /// Rejected as text and as JSON; the error repeats nothing of the input.
    fn refused<T: FromStr<Err = ValueError> + DeserializeOwned + Debug>(text: &str) {
        let error = text.parse::<T>().expect_err(text).to_string();
        assert!(error.starts_with("not a valid "), "{error}");
        assert!(
            text.len() < 8 || !error.contains(text),
            "{error} repeats its input"
        );
        serde_json::from_value::<T>(text.into()).expect_err(text);
        for other in [
            serde_json::json!(1),
            serde_json::json!(null),
            serde_json::json!([text]),
        ] {
            serde_json::from_value::<T>(other).expect_err("only strings are read");
        }
    }

    const UUID: &str = "018f3b4e-7c1a-7d2e-9f00-0123456789ab";

    #[test]
    fn names_are_bounded_and_closed() {
        round_trip::<Account>("acct:pool/epoch_7-A");
        round_trip::<Account>(&"a".repeat(160));
        for bad in [
            "",
            " ",
            "a b",
            "a.b",
            "ä",
            "a\n",
            &"a".repeat(161),
            "a%2F",
            "secret token!",
        ] {
            refused::<Account>(bad);
        }
        round_trip::<Asset>("eth-wei");
        round_trip::<Asset>("EUR");
        let folded = |name: &str| name.parse::<Asset>().expect("an asset").folded();
        assert_eq!(folded("Eth-Wei2"), "eth-wei2");
        assert_eq!(folded("eth-wei2"), "eth-wei2");
        for bad in ["", "eth_wei", "eth.wei", &"a".repeat(33)] {
            refused::<Asset>(bad);
        }
        round_trip::<Tenant>("acme.eu_1-x");
        round_trip::<Purpose>(&"p".repeat(64));
        for bad in ["", "Acme", "a/b", "a#b", ".", "..", &"p".repeat(65)] {
            refused::<Tenant>(bad);
            refused::<Purpose>(bad);
        }
        round_trip::<EpochId>("rp:2024-W07.1_A");
        refused::<EpochId>("a/b");
        round_trip::<IdemKey>("order:17.A_b-c");
        refused::<IdemKey>("order 17");
        round_trip::<RequestId>("abc._-9");
        refused::<RequestId>("a:b");
        assert_eq!(Tenant::default().as_str(), "default");
        assert_eq!(Tenant::system(), "ron");
    }

    #[test]
    fn ids_have_one_form() {
        round_trip::<OpId>(UUID);
        let upper: OpId = UUID.to_uppercase().parse().expect("either case is read");
        assert_eq!(upper.to_string(), UUID);
        for bad in [
            "",
            &UUID[1..],
            &UUID.replace('-', ""),
            &format!("{{{UUID}}}"),
            "x".repeat(36).as_str(),
        ] {
            refused::<OpId>(bad);
        }
        assert_eq!(OpId::from_name("issuer"), OpId::from_name("issuer"));
        assert_ne!(OpId::from_name("issuer"), OpId::from_name("policy"));
        round_trip::<OpId>(&OpId::from_random([9; 16]).to_string());
        let id = RequestId::from_parts(1_700_000_000_000, &[7; 10]);
        assert!(id.as_str().starts_with("018bcfe5-6800-7"), "{id}");
    }

    #[test]
    fn key_names_are_strict() {
        for alg in Alg::ALL {
            round_trip::<Alg>(alg.as_str());
            round_trip::<Kid>(&format!("ron/issuer/{alg}/{UUID}"));
            assert!(!(alg.signs() && alg.wraps()));
        }
        let longest = format!("{0}/{0}/x25519-hkdf-aes256-gcm/{UUID}", "t".repeat(64));
        assert_eq!(longest.len(), 189);
        round_trip::<Kid>(&longest);
        round_trip::<KidVersion>(&format!("{longest}#v{}", u32::MAX));
        refused::<Alg>("Ed25519");
        refused::<Alg>("rsa");
        let kid = format!("ron/issuer/ed25519/{UUID}");
        for bad in [
            "",
            "ron/issuer/ed25519",
            &format!("{kid}/"),
            &format!("{kid}#v1"),
            &format!("/{kid}"),
            &format!("ron//ed25519/{UUID}"),
            &format!("Ron/issuer/ed25519/{UUID}"),
            &format!("ron/issuer/EdDSA/{UUID}"),
            &format!("ron/issuer/ed25519/{}", UUID.to_uppercase()),
            &format!("ron/issuer/ed25519/{}", UUID.replace('-', "")),
            &format!("ron/issuer/ed25519/urn:uuid:{UUID}"),
        ] {
            refused::<Kid>(bad);
        }
        round_trip::<KidVersion>(&format!("{kid}#v1"));
        for tail in [
            "",
            "#v",
            "#v0",
            "#v01",
            "#v-1",
            "#v+1",
            "#V1",
            "#v1 ",
            "#v1#v2",
            "#v4294967296",
            "#1",
        ] {
            refused::<KidVersion>(&format!("{kid}{tail}"));
        }
        let kid: Kid = kid.parse().expect("a key name");
        assert_eq!(kid.at(3).to_string(), format!("{kid}#v3"));
    }

    #[test]
    fn amounts_are_whole_unsigned_strings() {
        for good in [
            "0",
            "1",
            "50000000000000000000",
            "340282366920938463463374607431768211455",
        ] {
            round_trip::<Amount>(good);
        }
        let why = |text: &str, part: &str| {
            let error = text.parse::<Amount>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        why("", "empty");
        why("-1", "sign");
        why("+1", "sign");
        why("00", "leading zeros");
        why("007", "leading zeros");
        why("1.5", "fraction");
        why("1,000", "fraction");
        why("1e9", "digits 0 to 9");
        why("0x10", "digits 0 to 9");
        why(" 1", "digits 0 to 9");
        why("٣", "digits 0 to 9");
        why("340282366920938463463374607431768211456", "2^128-1");
        why(&"9".repeat(40), "40 digits");
        why(&"1".repeat(4000), "4000 digits");
        for number in ["5", "-5", "5.5", "1e40", "0"] {
            let error = serde_json::from_str::<Amount>(number)
                .expect_err(number)
                .to_string();
            assert!(error.contains("write it as a decimal string"), "{error}");
        }
        for other in ["null", "true", "[]", "{}"] {
            serde_json::from_str::<Amount>(other).expect_err(other);
        }
    }

    #[test]
    fn amounts_never_wrap() {
        let one = Amount(1);
        assert_eq!(Amount::MAX.checked_add(one), None);
        assert_eq!(Amount::ZERO.checked_sub(one), None);
        assert_eq!(Amount::checked_sum([Amount::MAX, one]), None);
        assert_eq!(Amount::checked_sum([one, one]), Some(Amount(2)));
        assert!(Amount::ZERO.is_zero() && !one.is_zero());
    }

    #[test]
    fn content_ids_name_bytes() {
        // The BLAKE3 hash of the empty input, from its specification.
        let empty = "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(ContentId::of(b"").to_string(), empty);
        round_trip::<ContentId>(empty);
        for bad in [
            "",
            &empty[3..],
            &empty[..66],
            &empty.to_uppercase(),
            &empty.replace("af", "AF"),
        ] {
            refused::<ContentId>(bad);
        }
        refused::<ContentId>(&format!("{empty}0"));
        refused::<ContentId>(&empty.replace("13", "1g"));
    }

    #[test]
    fn times_are_read_with_or_without_milliseconds() {
        for good in [
            "1970-01-01T00:00:00.000Z",
            "2000-02-29T23:59:59.999Z",
            "2025-03-01T12:00:00.001Z",
            "9999-12-31T23:59:59.999Z",
        ] {
            round_trip::<Timestamp>(good);
        }
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(Timestamp(u64::MAX).to_string(), Timestamp::MAX.to_string());
        for bad in [
            "",
            "2025-03-02T12:00:00",
            "2025-03-01T12:00:00.Z",
            "2025-03-01T12:00:00.0Z",
            "2025-03-01T12:00:00.000000Z",
            "2016-12-31T23:59:60Z",
            "2025-03-01T12:00Z",
            "2025-03-01T12:00:00.000+00:00",
            "2025-03-01t12:00:00.000z",
            "2025-03-01 12:00:00.000Z",
            "2025-02-29T00:00:00.000Z",
            "2100-02-29T00:00:00.000Z",
            "2025-04-31T00:00:00.000Z",
            "2025-00-01T00:00:00.000Z",
            "2025-13-01T00:00:00.000Z",
            "2025-01-00T00:00:00.000Z",
            "2025-01-01T24:00:00.000Z",
            "2025-01-01T00:60:00.000Z",
            "2016-12-31T23:59:60.000Z",
            "1969-12-31T23:59:59.999Z",
            "+025-01-01T00:00:00.000Z",
        ] {
            refused::<Timestamp>(bad);
        }
        let whole: Timestamp = "2025-03-01T12:00:00Z".parse().expect("whole seconds");
        assert_eq!(whole.to_string(), "2025-03-01T12:00:00.000Z");
        let noon = Timestamp(1_740_830_400_123);
        assert_eq!(noon.unix_s(), 1_740_830_400);
        assert_eq!(
            noon.saturating_add(std::time::Duration::MAX),
            Timestamp::MAX
        );
        assert_eq!(
            noon.saturating_since(Timestamp::MAX),
            std::time::Duration::ZERO
        );
    }

    proptest! {
        #[test]
        fn any_amount_round_trips(minor in any::<u128>()) {
            round_trip::<Amount>(&minor.to_string());
        }

        #[test]
        fn any_time_round_trips(ms in 0..=Timestamp::MAX.0) {
            let text = Timestamp(ms).to_string();
            prop_assert_eq!(text.parse::<Timestamp>().unwrap(), Timestamp(ms));
            round_trip::<Timestamp>(&text);
        }

        #[test]
        fn names_within_their_alphabet_round_trip(
            account in "[A-Za-z0-9:/_-]{1,160}",
            asset in "[A-Za-z0-9-]{1,32}",
            tenant in "[a-z0-9._-]{1,64}",
            epoch in "[A-Za-z0-9:._-]{1,64}",
            alg in 0..Alg::ALL.len(),
            id in any::<[u8; 16]>(),
            version in 1..=u32::MAX,
        ) {
            prop_assume!([&tenant, &epoch].iter().all(|name| !matches!(name.as_str(), "." | "..")));
            round_trip::<Account>(&account);
            round_trip::<Asset>(&asset);
            round_trip::<Tenant>(&tenant);
            round_trip::<EpochId>(&epoch);
            round_trip::<IdemKey>(&epoch);
            let id = OpId::from_random(id);
            let kid = format!("{tenant}/{tenant}/{}/{id}", Alg::ALL[alg]);
            round_trip::<Kid>(&kid);
            round_trip::<KidVersion>(&format!("{kid}#v{version}"));
        }

        /// Accepted text is written back unchanged: no value has two spellings.
        #[test]
        fn accepted_text_is_canonical(text in "\\PC{0,50}|[0-9T:.Z+-]{20,28}|[a-z0-9/#-]{40,60}") {
            fn check<T: FromStr + ToString>(text: &str) -> Result<(), TestCaseError> {
                if let Ok(value) = text.parse::<T>() {
                    prop_assert_eq!(value.to_string(), text);
                }
                Ok(())
            }
            check::<Account>(&text)?;
            check::<Asset>(&text)?;
            check::<Tenant>(&text)?;
            check::<Amount>(&text)?;
            check::<Timestamp>(&text)?;
            check::<Kid>(&text)?;
            check::<KidVersion>(&text)?;
            check::<ContentId>(&text)?;
        }
    }
}
