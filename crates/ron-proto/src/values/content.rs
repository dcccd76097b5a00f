//! Content ids: the BLAKE3-256 hash of a byte string as its identifier.

use std::{fmt, str::FromStr};

use super::{ValueError, string_value};

const WHAT: &str = "content id";

/// Identifies bytes by their BLAKE3-256 hash; written `b3:` and 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(pub [u8; 32]);

impl ContentId {
    /// The id of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The 32 bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The hash as 64 lower-case hex digits, without the prefix; suitable for file names.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl FromStr for ContentId {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let digits = text
            .strip_prefix("b3:")
            .ok_or_else(|| ValueError::new(WHAT, "it must start with b3:"))?;
        lower_hex(digits)
            .map(Self)
            .ok_or_else(|| ValueError::new(WHAT, "after b3: come 64 lower-case hex digits"))
    }
}

/// Exactly 32 bytes in lower-case hex; accepting upper case would give one value two spellings.
fn lower_hex(digits: &str) -> Option<[u8; 32]> {
    let lower = digits
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut bytes = [0; 32];
    (lower && hex::decode_to_slice(digits, &mut bytes).is_ok()).then_some(bytes)
}

impl fmt::Display for ContentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "b3:{}", self.hex())
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

string_value!(ContentId, "content id", {
    "type": "string",
    "minLength": 67,
    "maxLength": 67,
    "pattern": "^b3:[0-9a-f]{64}$"
});
