//! The names in an entry: principal, key, memo, reference and transaction id.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::MAX_MEMO_BYTES;
use crate::values::{ValueError, is_control, string_value};

/// A string type with a validity rule: `FromStr`, `TryFrom`, `Display`, serde as a string, and a
/// schema.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr, $schema:tt) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

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
                if good(s) { Ok(Self(Arc::from(s))) } else { Err(ValueError::new($what, concat!("it must be ", $rule))) }
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
    /// The caller's own reference (an order, an invoice): 1 to 128 printable ASCII characters
    /// without spaces.
    Reference, "ref", "1..128 printable ASCII characters without spaces",
    |s| printable(s, 128),
    { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$" }
);

/// Transaction id: `tx_` and 32 hex digits, 16 of the sequence number and 16 of a hash over
/// sequence number and request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u128);

string_value!(TxId, "txid", { "type": "string", "pattern": "^tx_[0-9a-f]{32}$" });

impl TxId {
    /// The id of the entry at `seq` whose canonical request bytes are `request`.
    pub fn derive(seq: u64, request: &[u8]) -> Self {
        let mut h = blake3::Hasher::new();
        h.update(b"ron-ledger/v1/txid\0");
        h.update(&seq.to_be_bytes());
        h.update(request);
        let tag = u64::from_be_bytes(first_eight(h.finalize().as_bytes()));
        Self((u128::from(seq) << 64) | u128::from(tag))
    }

    /// The sequence number encoded in the id; the entry found there must derive the same id.
    pub const fn seq(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

fn first_eight(hash: &[u8; 32]) -> [u8; 8] {
    let mut out = [0; 8];
    out.copy_from_slice(&hash[..8]);
    out
}

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tx_{:032x}", self.0)
    }
}

impl FromStr for TxId {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::new("txid", "it must be tx_ and 32 lower-case hex digits");
        let hex = s.strip_prefix("tx_").ok_or_else(bad)?;
        if hex.len() != 32 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad());
        }
        u128::from_str_radix(hex, 16).map(Self).map_err(|_| bad())
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
    fn txids_carry_their_sequence_and_parse_back() {
        let id = TxId::derive(77, b"request");
        assert_eq!(id.seq(), 77);
        assert_eq!(id.to_string().parse::<TxId>().unwrap(), id);
        assert_ne!(id, TxId::derive(77, b"other"));
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
