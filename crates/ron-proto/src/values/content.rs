//! Content ids: the BLAKE3-256 hash of a byte string as its identifier.

use std::{fmt, str::FromStr};

use super::{ValueError, read_hex, string_value, write_hex};

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
        read_hex(digits)
            .map(Self)
            .ok_or_else(|| ValueError::new(WHAT, "after b3: come 64 lower-case hex digits"))
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(out, "b3:", &self.0)
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
