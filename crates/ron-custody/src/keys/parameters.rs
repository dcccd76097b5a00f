//! The parameters of each algorithm in the cryptographic library, and the algorithm of each parameter.

use ron_crypto::hpke::Kem;
use ron_crypto::{Curve, EcdhGroup, MlDsaSet, RsaSize};
use ron_proto::values::Alg;

/// The parameter set of an ML-DSA algorithm.
pub(super) const fn mldsa_set(alg: Alg) -> Option<MlDsaSet> {
    match alg {
        Alg::MlDsa44 => Some(MlDsaSet::L44),
        Alg::MlDsa65 => Some(MlDsaSet::L65),
        Alg::MlDsa87 => Some(MlDsaSet::L87),
        _ => None,
    }
}

pub(super) const fn alg_of(set: MlDsaSet) -> Alg {
    match set {
        MlDsaSet::L44 => Alg::MlDsa44,
        MlDsaSet::L65 => Alg::MlDsa65,
        MlDsaSet::L87 => Alg::MlDsa87,
    }
}

/// The curve of an ECDSA algorithm.
pub const fn curve_of(alg: Alg) -> Option<Curve> {
    match alg {
        Alg::EcdsaP256 => Some(Curve::P256),
        Alg::EcdsaP384 => Some(Curve::P384),
        Alg::EcdsaSecp256k1 => Some(Curve::Secp256k1),
        _ => None,
    }
}

pub(super) const fn alg_of_curve(curve: Curve) -> Alg {
    match curve {
        Curve::P256 => Alg::EcdsaP256,
        Curve::P384 => Alg::EcdsaP384,
        Curve::Secp256k1 => Alg::EcdsaSecp256k1,
    }
}

/// The length of an RSA algorithm's modulus.
pub const fn size_of(alg: Alg) -> Option<RsaSize> {
    match alg {
        Alg::Rsa2048 => Some(RsaSize::Bits2048),
        Alg::Rsa3072 => Some(RsaSize::Bits3072),
        Alg::Rsa4096 => Some(RsaSize::Bits4096),
        _ => None,
    }
}

pub(super) const fn alg_of_size(size: RsaSize) -> Alg {
    match size {
        RsaSize::Bits2048 => Alg::Rsa2048,
        RsaSize::Bits3072 => Alg::Rsa3072,
        RsaSize::Bits4096 => Alg::Rsa4096,
    }
}

/// The modulus of an algorithm that encrypts to an RSA key.
pub const fn oaep_size_of(alg: Alg) -> Option<RsaSize> {
    match alg {
        Alg::RsaOaep2048 => Some(RsaSize::Bits2048),
        Alg::RsaOaep3072 => Some(RsaSize::Bits3072),
        Alg::RsaOaep4096 => Some(RsaSize::Bits4096),
        _ => None,
    }
}

pub(super) const fn alg_of_oaep(size: RsaSize) -> Alg {
    match size {
        RsaSize::Bits2048 => Alg::RsaOaep2048,
        RsaSize::Bits3072 => Alg::RsaOaep3072,
        RsaSize::Bits4096 => Alg::RsaOaep4096,
    }
}

/// The KEM of an HPKE algorithm.
pub const fn kem_of(alg: Alg) -> Option<Kem> {
    match alg {
        Alg::X25519HkdfAes256Gcm => Some(Kem::X25519),
        Alg::X25519MlKem768 => Some(Kem::XWing),
        _ => None,
    }
}

pub(super) const fn alg_of_kem(kem: Kem) -> Alg {
    match kem {
        Kem::X25519 => Alg::X25519HkdfAes256Gcm,
        Kem::XWing => Alg::X25519MlKem768,
    }
}

/// The group of an algorithm for key agreement.
pub const fn group_of(alg: Alg) -> Option<EcdhGroup> {
    match alg {
        Alg::EcdhP256 => Some(EcdhGroup::P256),
        Alg::EcdhP384 => Some(EcdhGroup::P384),
        Alg::EcdhX25519 => Some(EcdhGroup::X25519),
        _ => None,
    }
}

pub(super) const fn alg_of_group(group: EcdhGroup) -> Alg {
    match group {
        EcdhGroup::P256 => Alg::EcdhP256,
        EcdhGroup::P384 => Alg::EcdhP384,
        EcdhGroup::X25519 => Alg::EcdhX25519,
    }
}

/// Bytes of a public key of `alg`, 0 for symmetric keys.
pub const fn public_len(alg: Alg) -> usize {
    match alg {
        Alg::Ed25519 => 32,
        Alg::EcdsaP256 => Curve::P256.public_len(),
        Alg::EcdsaP384 => Curve::P384.public_len(),
        Alg::EcdsaSecp256k1 => Curve::Secp256k1.public_len(),
        Alg::Rsa2048 | Alg::RsaOaep2048 => RsaSize::Bits2048.public_len(),
        Alg::Rsa3072 | Alg::RsaOaep3072 => RsaSize::Bits3072.public_len(),
        Alg::Rsa4096 | Alg::RsaOaep4096 => RsaSize::Bits4096.public_len(),
        Alg::MlDsa44 => MlDsaSet::L44.public_len(),
        Alg::MlDsa65 => MlDsaSet::L65.public_len(),
        Alg::MlDsa87 => MlDsaSet::L87.public_len(),
        Alg::Ed25519MlDsa65 => 32 + MlDsaSet::L65.public_len(),
        Alg::Aes128Gcm
        | Alg::Aes256Gcm
        | Alg::ChaCha20Poly1305
        | Alg::Aes256Kwp
        | Alg::HmacSha256
        | Alg::HmacSha384
        | Alg::HmacSha512
        | Alg::HkdfSha256 => 0,
        Alg::X25519HkdfAes256Gcm => Kem::X25519.public_len(),
        Alg::X25519MlKem768 => Kem::XWing.public_len(),
        Alg::EcdhP256 => EcdhGroup::P256.public_len(),
        Alg::EcdhP384 => EcdhGroup::P384.public_len(),
        Alg::EcdhX25519 => EcdhGroup::X25519.public_len(),
    }
}
