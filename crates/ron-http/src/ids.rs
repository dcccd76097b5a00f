//! Request ids: the client's when well formed, else a UUIDv7; stored inline, without a heap
//! allocation.

use std::sync::atomic::{AtomicU64, Ordering};

use ron_kernel::Random;
use ron_kernel::random::mix;
use uuid::Builder;

/// Longest accepted id in bytes.
pub(crate) const ID_MAX: usize = 64;

/// A request id of 1..=64 bytes `[A-Za-z0-9._-]`.
#[derive(Clone, Copy)]
pub(crate) struct ShortId {
    length: u8,
    bytes: [u8; ID_MAX],
}

impl ShortId {
    /// The id as sent by a client, if it is well formed.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        if text.is_empty() || text.len() > ID_MAX || !text.iter().all(good) {
            return None;
        }
        let mut bytes = [0; ID_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Some(Self {
            length: text.len() as u8,
            bytes,
        })
    }

    /// An id known to be well formed.
    pub(crate) fn of(text: &str) -> Self {
        Self::parse(text.as_bytes()).expect("a well-formed constant")
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length.into()]).expect("only ASCII was let in")
    }
}

impl std::fmt::Debug for ShortId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.as_str())
    }
}

/// Makes ids. They must be unique, not secret: a random start and a mixed counter save a system
/// call per request.
#[derive(Debug)]
pub(crate) struct Ids {
    next: AtomicU64,
    salt: u64,
}

impl Ids {
    pub(crate) fn new(random: &dyn Random) -> Self {
        Self {
            next: AtomicU64::new(random.u64()),
            salt: random.u64(),
        }
    }

    /// A fresh id of this millisecond.
    pub(crate) fn fresh(&self, unix_ms: u64) -> ShortId {
        // Relaxed: only the uniqueness of the value matters. The odd step (2^64 / golden ratio)
        // visits every value before one repeats.
        let count = self
            .next
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mut random = [0; 10];
        random[..8].copy_from_slice(&mix(count).to_le_bytes());
        random[8..].copy_from_slice(&mix(count ^ self.salt).to_le_bytes()[..2]);
        let uuid = Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid();
        let mut bytes = [0; ID_MAX];
        uuid.hyphenated().encode_lower(&mut bytes[..36]);
        ShortId { length: 36, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_version_7_and_carry_their_time() {
        let ids = Ids::new(&ron_kernel::SeededRandom::new(1));
        let made: std::collections::BTreeSet<String> = (0..10_000)
            .map(|_| ids.fresh(1_700_000_000_123).as_str().to_owned())
            .collect();
        assert_eq!(made.len(), 10_000);
        for id in made {
            let uuid: uuid::Uuid = id.parse().expect("a UUID");
            assert_eq!(uuid.get_version_num(), 7);
            assert_eq!(uuid.as_u128() >> 80, 1_700_000_000_123);
        }
    }

    #[test]
    fn client_ids_are_taken_only_when_well_formed() {
        let check = |text: &str, good| assert_eq!(ShortId::parse(text.as_bytes()).is_some(), good);
        check("a.B_c-9", true);
        check(&"x".repeat(64), true);
        check(&"x".repeat(65), false);
        check("", false);
        check("a b", false);
        check("a\"b", false);
        check("é", false);
    }
}
