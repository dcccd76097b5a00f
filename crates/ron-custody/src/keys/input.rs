//! What a key signs: a message, or a hash that the caller made; and how ECDSA and RSA sign it.

use ron_crypto::{Hashed, RsaPadding, Sha2};
use ron_proto::kms::{HashAlg, Scheme};
use ron_proto::values::Alg;

#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    Message(&'a [u8]),
    /// Of data that the caller has.
    Hash(Hashed),
}

/// What a device signs, which does not hash.
#[derive(Clone, Debug)]
pub struct DeviceInput {
    /// Of ECDSA the number that is computed from the hash, of RSA the hash, of others the message.
    pub bytes: Vec<u8>,
    pub scheme: Option<Scheme>,
}

/// The library's function of this name.
pub const fn sha2_of(hash: HashAlg) -> Sha2 {
    match hash {
        HashAlg::Sha256 => Sha2::Sha256,
        HashAlg::Sha384 => Sha2::Sha384,
        HashAlg::Sha512 => Sha2::Sha512,
    }
}

/// The hash that a key of `alg` signs. A hash of the caller is taken as it is: it is of the scheme's function.
pub fn hash_of(alg: Alg, input: Input<'_>, scheme: Option<Scheme>) -> Hashed {
    match input {
        Input::Hash(hash) => hash,
        Input::Message(message) => {
            let scheme = scheme.or_else(|| Scheme::usual(alg));
            let by = scheme.map_or(HashAlg::Sha256, Scheme::hash);
            Hashed::of(sha2_of(by), message)
        }
    }
}

/// The padding of an RSA scheme; PSS when none is named.
pub const fn padding_of(scheme: Option<Scheme>) -> RsaPadding {
    match scheme {
        Some(Scheme::RsaPkcs1Sha256 | Scheme::RsaPkcs1Sha384 | Scheme::RsaPkcs1Sha512) => {
            RsaPadding::Pkcs1
        }
        _ => RsaPadding::Pss,
    }
}
