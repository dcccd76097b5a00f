//! A signature that is being made or verified: what is collected from the program, and what the key is asked to sign.

use std::sync::Arc;

use cryptoki_sys::{
    CKR_DATA_INVALID, CKR_DATA_LEN_RANGE, CKR_KEY_TYPE_INCONSISTENT, CKR_SIGNATURE_INVALID,
    CKR_SIGNATURE_LEN_RANGE,
};
use ron_crypto::ecdsa::verify_ecdsa_hash;
use ron_crypto::hash::Hasher;
use ron_crypto::rsa::digest_info;
use ron_crypto::sign::verify_ed25519_strict;
use ron_crypto::{Hashed, RsaPadding, Sha2};
use ron_proto::kms::{HashAlg, MESSAGE_BYTES_MAX, Prehash, Scheme, SignRequest};

use crate::key::{Key, Public};
use crate::mechanism::Mechanism;
use crate::rv::Rv;

/// Maximum bytes of a hash or a `DigestInfo` of the program; that of SHA-512 has 83.
const HASH_BYTES_MAX: usize = 128;
const HASHES: [Sha2; 3] = [Sha2::Sha256, Sha2::Sha384, Sha2::Sha512];

/// Begun by `C_SignInit` or `C_VerifyInit`.
#[derive(Debug)]
pub struct Operation {
    pub key: Arc<Key>,
    mechanism: Mechanism,
    input: Input,
    /// Whether the program gives its data in parts.
    pub in_parts: bool,
}

enum Input {
    Hashed(Hasher),
    Whole(Vec<u8>),
}

impl std::fmt::Debug for Input {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Hashed(_) => "Hashed",
            Self::Whole(_) => "Whole",
        })
    }
}

/// What a key signs.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload {
    Hash(Hashed, Padding),
    Message(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    Ecdsa,
    Rsa(RsaPadding),
}

impl Operation {
    /// `CKR_KEY_TYPE_INCONSISTENT` when the mechanism takes other keys.
    pub fn new(key: Arc<Key>, mechanism: Mechanism) -> Result<Self, Rv> {
        if key.kind() != mechanism.key_kind() {
            return Err(Rv(CKR_KEY_TYPE_INCONSISTENT));
        }
        let input = match mechanism.hashes() {
            Some(by) => Input::Hashed(Hasher::new(by)),
            None => Input::Whole(Vec::new()),
        };
        Ok(Self {
            key,
            mechanism,
            input,
            in_parts: false,
        })
    }

    /// `CKR_DATA_LEN_RANGE` for more data than is signed without hashing it here.
    pub fn update(&mut self, part: &[u8]) -> Result<(), Rv> {
        let max = match self.mechanism {
            Mechanism::Eddsa => MESSAGE_BYTES_MAX,
            _ => HASH_BYTES_MAX,
        };
        match &mut self.input {
            Input::Hashed(hasher) => hasher.update(part),
            Input::Whole(data) if part.len() <= max - data.len() => data.extend_from_slice(part),
            Input::Whole(_) => return Err(Rv(CKR_DATA_LEN_RANGE)),
        }
        Ok(())
    }

    /// The end of the data.
    pub fn finish(self) -> Result<(Arc<Key>, Payload), Rv> {
        let padding = match self.mechanism {
            Mechanism::Ecdsa(_) | Mechanism::Eddsa => Padding::Ecdsa,
            Mechanism::RsaPkcs1(_) => Padding::Rsa(RsaPadding::Pkcs1),
            Mechanism::RsaPss { .. } => Padding::Rsa(RsaPadding::Pss),
        };
        let payload = match (self.input, self.mechanism) {
            (Input::Hashed(hasher), _) => Payload::Hash(hasher.finish(), padding),
            (Input::Whole(data), Mechanism::Eddsa) => Payload::Message(data),
            (Input::Whole(data), Mechanism::RsaPkcs1(_)) => {
                let hash = parse_digest_info(&data).ok_or(Rv(CKR_DATA_INVALID))?;
                Payload::Hash(hash, padding)
            }
            (Input::Whole(data), Mechanism::RsaPss { by, .. }) => {
                let hash = Hashed::new(by, &data).ok_or(Rv(CKR_DATA_LEN_RANGE))?;
                Payload::Hash(hash, padding)
            }
            (Input::Whole(data), Mechanism::Ecdsa(_)) => {
                // ECDSA signs a number, so only the length of the hash matters, not its function.
                let hash = HASHES.into_iter().find_map(|by| Hashed::new(by, &data));
                Payload::Hash(hash.ok_or(Rv(CKR_DATA_LEN_RANGE))?, padding)
            }
        };
        Ok((self.key, payload))
    }
}

impl Payload {
    /// The request for its signature by this version of the key and no other.
    pub fn request(self, key: &Key) -> SignRequest {
        let request = match self {
            Self::Message(data) => SignRequest::message(key.kid.clone(), data),
            Self::Hash(hash, padding) => {
                let prehash = Prehash::new(on_the_wire(hash.by()), hash.as_bytes());
                SignRequest {
                    scheme: Some(scheme(hash.by(), padding)),
                    ..SignRequest::prehash(key.kid.clone(), prehash)
                }
            }
        };
        SignRequest {
            version: Some(key.version),
            ..request
        }
    }

    /// Verifies in this process, with the public key that was read when the keys were listed.
    pub fn verify(&self, key: &Key, signature: &[u8]) -> Result<(), Rv> {
        if signature.len() != key.signature_len() {
            return Err(Rv(CKR_SIGNATURE_LEN_RANGE));
        }
        let good = match (self, &key.public) {
            (Self::Hash(hash, Padding::Ecdsa), Public::Ec(curve, point)) => {
                verify_ecdsa_hash(*curve, point, hash, signature)
            }
            (Self::Hash(hash, Padding::Rsa(padding)), Public::Rsa(_)) => {
                let public = key.rsa();
                public.is_some_and(|public| public.verify_hash(*padding, hash, signature))
            }
            (Self::Message(data), Public::Ed25519(public)) => {
                let signature = signature.try_into();
                signature.is_ok_and(|signature| verify_ed25519_strict(public, data, signature))
            }
            // An operation is made only for a key of its mechanism.
            _ => false,
        };
        if good {
            Ok(())
        } else {
            Err(Rv(CKR_SIGNATURE_INVALID))
        }
    }
}

/// The hash in a `DigestInfo` of SHA-2. It must be exactly the encoding that is padded, so that nothing else is ever signed.
fn parse_digest_info(text: &[u8]) -> Option<Hashed> {
    HASHES.into_iter().find_map(|by| {
        let at = text.len().checked_sub(by.size())?;
        let hash = Hashed::new(by, &text[at..])?;
        (digest_info(&hash) == text).then_some(hash)
    })
}

const fn on_the_wire(by: Sha2) -> HashAlg {
    match by {
        Sha2::Sha256 => HashAlg::Sha256,
        Sha2::Sha384 => HashAlg::Sha384,
        Sha2::Sha512 => HashAlg::Sha512,
    }
}

const fn scheme(by: Sha2, padding: Padding) -> Scheme {
    match (padding, by) {
        (Padding::Ecdsa, Sha2::Sha256) => Scheme::EcdsaSha256,
        (Padding::Ecdsa, Sha2::Sha384) => Scheme::EcdsaSha384,
        (Padding::Ecdsa, Sha2::Sha512) => Scheme::EcdsaSha512,
        (Padding::Rsa(RsaPadding::Pkcs1), Sha2::Sha256) => Scheme::RsaPkcs1Sha256,
        (Padding::Rsa(RsaPadding::Pkcs1), Sha2::Sha384) => Scheme::RsaPkcs1Sha384,
        (Padding::Rsa(RsaPadding::Pkcs1), Sha2::Sha512) => Scheme::RsaPkcs1Sha512,
        (Padding::Rsa(RsaPadding::Pss), Sha2::Sha256) => Scheme::RsaPssSha256,
        (Padding::Rsa(RsaPadding::Pss), Sha2::Sha384) => Scheme::RsaPssSha384,
        (Padding::Rsa(RsaPadding::Pss), Sha2::Sha512) => Scheme::RsaPssSha512,
    }
}

#[cfg(test)]
mod tests {
    use ron_crypto::Curve;
    use ron_crypto::{EcKey, Ed25519Key, RsaKey, RsaSize};

    use super::*;

    fn key(alg: &str, public: Public) -> Arc<Key> {
        Arc::new(Key {
            version: 3,
            ..Key::sample(alg, public)
        })
    }

    fn payload(key: &Arc<Key>, mechanism: Mechanism, parts: &[&[u8]]) -> Result<Payload, Rv> {
        let mut operation = Operation::new(key.clone(), mechanism)?;
        for part in parts {
            operation.update(part)?;
        }
        operation.finish().map(|(_, payload)| payload)
    }

    #[test]
    fn ecdsa_takes_hashes_and_data_in_parts() {
        let (ec, _) = EcKey::generate(Curve::P256);
        let key = key("ecdsa-p256", Public::Ec(Curve::P256, ec.public().to_vec()));
        let hash = Hashed::of(Sha2::Sha256, b"hello");
        let raw = payload(&key, Mechanism::Ecdsa(None), &[hash.as_bytes()]).unwrap();
        let hashed = Mechanism::Ecdsa(Some(Sha2::Sha256));
        assert_eq!(payload(&key, hashed, &[b"he", b"llo"]).unwrap(), raw);
        let signature = ec.sign_hash(&hash);
        assert_eq!(raw.verify(&key, &signature), Ok(()));
        let mut wrong = signature.clone();
        wrong[5] ^= 1;
        assert_eq!(raw.verify(&key, &wrong), Err(Rv(CKR_SIGNATURE_INVALID)));
        assert_eq!(
            raw.verify(&key, &wrong[1..]),
            Err(Rv(CKR_SIGNATURE_LEN_RANGE))
        );
        let request = raw.request(&key);
        assert_eq!(
            (request.version, request.scheme),
            (Some(3), Some(Scheme::EcdsaSha256))
        );
        for length in [0, 20, 31, 33, 128, 129] {
            let refused = payload(&key, Mechanism::Ecdsa(None), &[&vec![1; length]]);
            assert_eq!(refused, Err(Rv(CKR_DATA_LEN_RANGE)), "{length}");
        }
        let other = Mechanism::RsaPkcs1(None);
        assert_eq!(
            payload(&key, other, &[]),
            Err(Rv(CKR_KEY_TYPE_INCONSISTENT))
        );
    }

    #[test]
    fn rsa_takes_digest_infos_of_sha_2_alone() {
        let (rsa, _) = RsaKey::generate(RsaSize::Bits2048);
        let key = key("rsa-2048", Public::Rsa(rsa.public().to_vec()));
        for by in HASHES {
            let hash = Hashed::of(by, b"hello");
            let text = digest_info(&hash);
            let raw = payload(&key, Mechanism::RsaPkcs1(None), &[&text]).unwrap();
            assert_eq!(
                raw,
                payload(&key, Mechanism::RsaPkcs1(Some(by)), &[b"hello"]).unwrap()
            );
            assert_eq!(
                raw.verify(&key, &rsa.sign_hash(RsaPadding::Pkcs1, &hash)),
                Ok(())
            );
            let pss = Mechanism::RsaPss { by, hashes: false };
            let pss = payload(&key, pss, &[hash.as_bytes()]).unwrap();
            assert_eq!(
                pss.verify(&key, &rsa.sign_hash(RsaPadding::Pss, &hash)),
                Ok(())
            );
            for refused in [&text[1..], hash.as_bytes(), &[&text[..], &[0]].concat()] {
                let refused = payload(&key, Mechanism::RsaPkcs1(None), &[refused]);
                assert_eq!(refused, Err(Rv(CKR_DATA_INVALID)));
            }
        }
        // SHA-1, and the MD5 and SHA-1 of TLS 1.1.
        let sha1 = hex::decode("3021300906052b0e03021a05000414").unwrap();
        for refused in [[&sha1[..], &[7; 20]].concat(), vec![7; 36]] {
            let refused = payload(&key, Mechanism::RsaPkcs1(None), &[&refused]);
            assert_eq!(refused, Err(Rv(CKR_DATA_INVALID)));
        }
    }

    #[test]
    fn ed25519_takes_messages_up_to_the_bound_of_the_service() {
        let ed = Ed25519Key::from_seed(&[7; 32]);
        let key = key("ed25519", Public::Ed25519(ed.public()));
        let message = payload(&key, Mechanism::Eddsa, &[b"he", b"llo"]).unwrap();
        assert_eq!(message.verify(&key, &ed.sign(b"hello")), Ok(()));
        let long = vec![0; MESSAGE_BYTES_MAX];
        assert!(payload(&key, Mechanism::Eddsa, &[&long]).is_ok());
        let refused = payload(&key, Mechanism::Eddsa, &[&long, b"x"]);
        assert_eq!(refused, Err(Rv(CKR_DATA_LEN_RANGE)));
    }
}
