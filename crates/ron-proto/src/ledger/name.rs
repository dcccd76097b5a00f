//! The names and texts in an entry: principal, key, memo, reference, metadata, batch tag, transaction
//! id and leaf hash.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::SmolStr;

use super::{MAX_MEMO_BYTES, MAX_METADATA_BYTES, MAX_METADATA_MEMBERS, MAX_REFERENCE_BYTES};
use crate::values::{ValueError, is_control, read_hex, string_value, write_hex};

/// A string type with a validity rule: `FromStr`, `TryFrom`, `Display`, serde as a string, and a
/// schema.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr, $schema:tt) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(SmolStr);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(s: &str) -> Result<Self, ValueError> {
                let good: fn(&str) -> bool = $check;
                if good(s) { Ok(Self(SmolStr::new(s))) } else { Err(ValueError::new($what, concat!("it must be ", $rule))) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        string_value!($name, $what, $schema);
    };
}

fn printable(s: &str, max: usize) -> bool {
    (1..=max).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic())
}

text!(
    /// Principal an entry is made for: 1 to 160 printable ASCII characters without spaces.
    PrincipalName, "principal", "1..160 printable ASCII characters without spaces",
    |s| printable(s, 160),
    { "type": "string", "minLength": 1, "maxLength": 160, "pattern": "^[!-~]+$" }
);

text!(
    /// Idempotency key of an entry, never reused by its principal: 1 to 128 of `[A-Za-z0-9._:/#-]`.
    /// Keys given by callers contain no `#`, which reserves `key#3` for item 3 of a batch.
    EntryKey, "key", "1..128 of [A-Za-z0-9._:/#-]",
    |s| (1..=128).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/#-".contains(&b)),
    { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9._:/#-]+$" }
);

text!(
    /// Free text stored with an entry: at most 256 bytes of UTF-8 without control characters, bidirectional
    /// ones included.
    Memo, "memo", "at most 256 bytes without control characters, bidirectional ones included",
    |s| s.len() <= MAX_MEMO_BYTES && !s.chars().any(is_control),
    { "type": "string", "maxLength": 256 }
);

text!(
    /// The caller's own reference (an order, an invoice): 1 to 128 bytes of UTF-8 without control
    /// characters, bidirectional ones included.
    Reference, "reference", "1..128 bytes without control characters, bidirectional ones included",
    |s| (1..=MAX_REFERENCE_BYTES).contains(&s.len()) && !s.chars().any(is_control),
    { "type": "string", "minLength": 1, "maxLength": 128 }
);

text!(
    /// Label of an account, by which the trial balance sums: at most 32 of `[a-z0-9_-]`; an empty one is none.
    AccountClass, "class", "at most 32 of [a-z0-9_-]",
    |s| s.len() <= 32 && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b)),
    { "type": "string", "maxLength": 32, "pattern": "^[a-z0-9_-]*$" }
);

text!(
    /// Name of an asset for people: 1 to 64 bytes of UTF-8 without control characters, bidirectional
    /// ones included.
    AssetTitle, "title", "1..64 bytes without control characters, bidirectional ones included",
    |s| (1..=64).contains(&s.len()) && !s.chars().any(is_control),
    { "type": "string", "minLength": 1, "maxLength": 64 }
);

/// Members that a caller adds to an entry: at most 16, names of 1 to 64 of `[A-Za-z0-9._-]`, values
/// without control characters, at most 1,024 bytes of names and values together.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Metadata(Arc<BTreeMap<String, String>>);

impl Metadata {
    /// Members in the order of their names' bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl TryFrom<BTreeMap<String, String>> for Metadata {
    type Error = ValueError;

    fn try_from(members: BTreeMap<String, String>) -> Result<Self, ValueError> {
        let bad = |why| Err(ValueError::new("metadata", why));
        let named = |s: &String| {
            (1..=64).contains(&s.len())
                && s.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if members.len() > MAX_METADATA_MEMBERS {
            return bad("it has at most 16 members");
        }
        if !members.keys().all(named) {
            return bad("its names have 1..64 of [A-Za-z0-9._-]");
        }
        if members.values().any(|v| v.chars().any(is_control)) {
            return bad("its values have no control characters, bidirectional ones included");
        }
        if members
            .iter()
            .map(|(k, v)| k.len() + v.len())
            .sum::<usize>()
            > MAX_METADATA_BYTES
        {
            return bad("its names and values have at most 1024 bytes together");
        }
        Ok(Self(Arc::new(members)))
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members = BTreeMap::<String, String>::deserialize(deserializer)?;
        Self::try_from(members).map_err(de::Error::custom)
    }
}

impl JsonSchema for Metadata {
    fn schema_name() -> Cow<'static, str> {
        "Metadata".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "maxProperties": 16,
            "propertyNames": { "pattern": "^[A-Za-z0-9._-]{1,64}$" },
            "additionalProperties": { "type": "string", "maxLength": 1024 }
        })
    }
}

/// Identifies the request that a batch item came with: the number of its items and 128 bits of a
/// hash over it, written `items:` and 32 hex digits. A key matches only the identical batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchTag {
    pub items: u32,
    pub digest: [u8; 16],
}

string_value!(BatchTag, "batch", { "type": "string", "maxLength": 43, "pattern": "^[1-9][0-9]{0,9}:[0-9a-f]{32}$" });

impl fmt::Display for BatchTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.items, hex::encode(self.digest))
    }
}

impl FromStr for BatchTag {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::new("batch", "it must be a count, a colon and 32 hex digits");
        let (items, digits) = s.split_once(':').ok_or_else(bad)?;
        let mut digest = [0; 16];
        hex::decode_to_slice(digits, &mut digest).map_err(|_| bad())?;
        let items = items.parse().map_err(|_| bad())?;
        let tag = Self { items, digest };
        // Only the canonical spelling: no sign, leading zeros or upper case.
        (items > 0 && tag.to_string() == s)
            .then_some(tag)
            .ok_or_else(bad)
    }
}

/// RFC 6962 hash of a leaf of the ledger's log, SHA-256 over a zero byte and the leaf; written
/// `sha256:` and 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafHash(pub [u8; 32]);

string_value!(LeafHash, "leaf hash", { "type": "string", "minLength": 71, "maxLength": 71, "pattern": "^sha256:[0-9a-f]{64}$" });

impl fmt::Display for LeafHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, "sha256:", &self.0)
    }
}

impl FromStr for LeafHash {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let bad = || {
            ValueError::new(
                "leaf hash",
                "it must be sha256: and 64 lower-case hex digits",
            )
        };
        let digits = s.strip_prefix("sha256:").ok_or_else(bad)?;
        read_hex(digits).map(Self).ok_or_else(bad)
    }
}

/// Transaction id: `tx_` and 32 hex digits, 16 of the sequence number and the first 16 of the
/// private hash in the entry's leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u128);

string_value!(TxId, "txid", { "type": "string", "pattern": "^tx_[0-9a-f]{32}$" });

impl TxId {
    /// The id of the entry at `seq` whose leaf has this private hash.
    pub fn new(seq: u64, private_hash: &[u8; 32]) -> Self {
        let tag = u64::from_be_bytes(first_eight(private_hash));
        Self((u128::from(seq) << 64) | u128::from(tag))
    }

    /// The sequence number encoded in the id; the entry found there must derive the same id.
    pub const fn seq(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// The hold that a capture or a release names: its transaction id, or `#i` for the hold that entry `i`
/// (from 0) of the same linked commit makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HoldRef {
    Id(TxId),
    /// Only in requests: the ledger replaces it by the id when it decides the commit.
    Item(u32),
}

string_value!(HoldRef, "hold", { "type": "string", "pattern": "^(tx_[0-9a-f]{32}|#(0|[1-9][0-9]{0,2}))$" });

impl HoldRef {
    /// The id; `None` for a hold that is not made yet.
    pub const fn id(self) -> Option<TxId> {
        match self {
            Self::Id(id) => Some(id),
            Self::Item(_) => None,
        }
    }

    /// The entry of the same commit that makes the hold.
    pub const fn item(self) -> Option<u32> {
        match self {
            Self::Id(_) => None,
            Self::Item(i) => Some(i),
        }
    }
}

impl From<TxId> for HoldRef {
    fn from(id: TxId) -> Self {
        Self::Id(id)
    }
}

impl fmt::Display for HoldRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Item(i) => write!(f, "#{i}"),
        }
    }
}

impl FromStr for HoldRef {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let bad = || {
            ValueError::new(
                "hold",
                "it must be a hold's id, tx_ and 32 lower-case hex digits, or #i for item i (0 to 999) of the same linked batch",
            )
        };
        let Some(digits) = s.strip_prefix('#') else {
            return s.parse().map(Self::Id).map_err(|_| bad());
        };
        let plain = digits == "0" || !digits.starts_with('0');
        let number = digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 3;
        match digits.parse() {
            Ok(i) if plain && number => Ok(Self::Item(i)),
            _ => Err(bad()),
        }
    }
}

/// Id of the spending of a token or of a narrowing statement, under which the ledger counts it: 32
/// hex digits of a hash over the token's id or the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetId(pub [u8; 16]);

string_value!(BudgetId, "budget id", { "type": "string", "maxLength": 32, "pattern": "^[0-9a-f]{32}$" });

impl BudgetId {
    /// The id of what is called `name`: a token's `jti`, or the hash of a token with statements.
    pub fn derive(name: &str) -> Self {
        let mut h = blake3::Hasher::new();
        h.update(b"ron-ledger/v1/budget\0");
        h.update(name.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&h.finalize().as_bytes()[..16]);
        Self(id)
    }
}

impl fmt::Display for BudgetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, "", &self.0)
    }
}

impl FromStr for BudgetId {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::new("budget id", "it must be 32 lower-case hex digits");
        read_hex(s).map(Self).ok_or_else(bad)
    }
}

fn first_eight(hash: &[u8; 32]) -> [u8; 8] {
    let mut out = [0; 8];
    out.copy_from_slice(&hash[..8]);
    out
}

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, "tx_", &self.0.to_be_bytes())
    }
}

impl FromStr for TxId {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::new("txid", "it must be tx_ and 32 lower-case hex digits");
        let digits = s.strip_prefix("tx_").ok_or_else(bad)?;
        let bytes = read_hex(digits).ok_or_else(bad)?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_shows_what_it_holds() {
        for good in ["", "Straße, 東京, שלום, مرحبا", "👩\u{200d}🚀", "<b>"] {
            assert!(good.parse::<Memo>().is_ok(), "{good}");
        }
        let directs = ['\u{61c}', '\u{200e}', '\u{200f}'];
        let directs = directs.into_iter().chain('\u{202a}'..='\u{202e}');
        for bad in directs
            .chain('\u{2066}'..='\u{2069}')
            .chain(['\n', '\u{85}'])
        {
            let text = format!("pay {bad}1000");
            assert!(text.parse::<Memo>().is_err(), "{}", bad.escape_unicode());
            assert!(text.parse::<Reference>().is_err());
            assert!(text.parse::<PrincipalName>().is_err());
        }
    }

    #[test]
    fn metadata_is_small_flat_and_readable() {
        let read = |json: &str| serde_json::from_str::<Metadata>(json);
        let good = read(r#"{"order":"17","b.c-d_e":"Straße"}"#).unwrap();
        assert_eq!(good.get("order"), Some("17"));
        assert_eq!(
            serde_json::to_string(&good).unwrap(),
            r#"{"b.c-d_e":"Straße","order":"17"}"#
        );
        assert!(read("{}").is_ok());
        let many = |n: usize| {
            let members = (0..n).map(|i| format!(r#""k{i}":"v""#)).collect::<Vec<_>>();
            format!("{{{}}}", members.join(","))
        };
        assert!(read(&many(16)).is_ok());
        let long = |n: usize| format!(r#"{{"k":"{}"}}"#, "v".repeat(n));
        assert!(read(&long(1023)).is_ok());
        for bad in [
            many(17),
            long(1024),
            r#"{"":"v"}"#.to_owned(),
            r#"{"a b":"v"}"#.to_owned(),
            r#"{"k":"a\nb"}"#.to_owned(),
            r#"{"k":"a\u202eb"}"#.to_owned(),
            r#"{"k":1}"#.to_owned(),
            r#"{"k":{}}"#.to_owned(),
            format!(r#"{{"{}":"v"}}"#, "k".repeat(65)),
        ] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_and_hashes_have_one_spelling() {
        let tag = "12:000102030405060708090a0b0c0d0e0f";
        assert_eq!(tag.parse::<BatchTag>().unwrap().to_string(), tag);
        for bad in [
            "0:000102030405060708090a0b0c0d0e0f",
            "012:000102030405060708090a0b0c0d0e0f",
            "12:00",
            "12",
        ] {
            assert!(bad.parse::<BatchTag>().is_err(), "{bad}");
        }
        let hash = LeafHash([0xab; 32]).to_string();
        assert_eq!(hash.parse::<LeafHash>().unwrap(), LeafHash([0xab; 32]));
        for bad in [
            hash.to_uppercase(),
            hash[7..].to_owned(),
            format!("{hash}0"),
        ] {
            assert!(bad.parse::<LeafHash>().is_err(), "{bad}");
        }
    }

    #[test]
    fn txids_carry_their_sequence_and_parse_back() {
        let id = TxId::new(77, &[1; 32]);
        assert_eq!(id.seq(), 77);
        assert_eq!(id.to_string().parse::<TxId>().unwrap(), id);
        assert_eq!(id.to_string(), "tx_000000000000004d0101010101010101");
        for bad in [
            "",
            "tx_",
            "tx_00",
            "TX_0000000000000000000000000000004d",
            "tx_0000000000000000000000000000004D",
        ] {
            assert!(bad.parse::<TxId>().is_err(), "{bad}");
        }
    }
}
