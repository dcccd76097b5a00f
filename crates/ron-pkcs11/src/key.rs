//! One version of a key of the service, as programs see it.

use cryptoki_sys::{CK_KEY_TYPE, CKK_EC, CKK_EC_EDWARDS, CKK_RSA};
use ron_crypto::rsa::RsaPublic;
use ron_crypto::{Curve, der};
use ron_proto::kms::{KeyDoc, PayloadPolicy};
use ron_proto::{Alg, Kid};

/// Object identifiers of the curves, in DER.
const P256: &[u8] = &[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 5, 0x2b, 0x81, 0x04, 0x00, 0x22];
const SECP256K1: &[u8] = &[0x06, 5, 0x2b, 0x81, 0x04, 0x00, 0x0a];
const ED25519: &[u8] = &[0x06, 3, 0x2b, 0x65, 0x70];

/// The version that was the head when the keys were listed. After a rotation it signs no more, so a program that has
/// a certificate for it never gets signatures of another key.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    pub kid: Kid,
    pub version: u32,
    pub label: String,
    pub public: Public,
    /// Whether the service made the key itself.
    pub local: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Public {
    /// `04 || x || y`.
    Ec(Curve, Vec<u8>),
    Ed25519([u8; 32]),
    /// `RSAPublicKey` in DER, which [`RsaPublic`] reads.
    Rsa(Vec<u8>),
}

impl Key {
    /// A key for tests, whose label is `tls`.
    #[cfg(test)]
    pub fn sample(alg: &str, public: Public) -> Self {
        let kid = format!("default/web/{alg}/018f8e9e-0000-7000-8000-000000000001");
        Self {
            kid: kid.parse().expect("a key id"),
            version: 1,
            label: "tls".to_owned(),
            public,
            local: true,
        }
    }

    /// The key of a document with its head version; `None` for keys that no mechanism of this module can use.
    pub fn of(doc: &KeyDoc, label: Option<&String>) -> Option<Self> {
        if !usable(doc) {
            return None;
        }
        let head = doc.head_version()?;
        let bytes = head.public_key.0.clone();
        let on = |curve: Curve| {
            let whole = bytes.len() == curve.public_len();
            whole.then(|| Public::Ec(curve, bytes.clone()))
        };
        let public = match doc.key.alg {
            Alg::EcdsaP256 => on(Curve::P256)?,
            Alg::EcdsaP384 => on(Curve::P384)?,
            Alg::EcdsaSecp256k1 => on(Curve::Secp256k1)?,
            Alg::Ed25519 => Public::Ed25519(bytes.try_into().ok()?),
            _ => {
                RsaPublic::read(&bytes)?.size()?;
                Public::Rsa(bytes)
            }
        };
        let usual = || format!("{}/{}", doc.key.alg.as_str(), doc.key.id.as_hyphenated());
        Some(Self {
            label: label.cloned().unwrap_or_else(usual),
            version: doc.head,
            public,
            local: !doc.imported,
            kid: doc.key.clone(),
        })
    }

    /// `CKA_ID`: the 16 bytes of the key's UUID, the same for all versions.
    pub fn id(&self) -> &[u8] {
        self.kid.id.as_bytes()
    }

    pub fn kind(&self) -> CK_KEY_TYPE {
        match self.public {
            Public::Ec(..) => CKK_EC,
            Public::Ed25519(_) => CKK_EC_EDWARDS,
            Public::Rsa(_) => CKK_RSA,
        }
    }

    /// Bytes of a signature.
    pub fn signature_len(&self) -> usize {
        match &self.public {
            Public::Ec(curve, _) => 2 * curve.size(),
            Public::Ed25519(_) => 64,
            Public::Rsa(_) => self.rsa().map_or(0, |public| public.n.len()),
        }
    }

    pub fn rsa(&self) -> Option<RsaPublic<'_>> {
        match &self.public {
            Public::Rsa(text) => RsaPublic::read(text),
            Public::Ec(..) | Public::Ed25519(_) => None,
        }
    }

    /// `CKA_EC_PARAMS` and `CKA_EC_POINT`, both in DER.
    pub fn ec(&self) -> Option<(&'static [u8], Vec<u8>)> {
        let (curve, point): (_, &[u8]) = match &self.public {
            Public::Ec(Curve::P256, point) => (P256, point),
            Public::Ec(Curve::P384, point) => (P384, point),
            Public::Ec(Curve::Secp256k1, point) => (SECP256K1, point),
            Public::Ed25519(point) => (ED25519, point),
            Public::Rsa(_) => return None,
        };
        Some((curve, der::tagged(der::OCTET_STRING, point)))
    }
}

/// Whether a key signs what programs ask for: ECDSA and RSA keys a hash that the program made, Ed25519 keys any message.
pub fn usable(doc: &KeyDoc) -> bool {
    let alg = doc.key.alg;
    match &doc.payload {
        PayloadPolicy::Prehash => alg.is_ecdsa() || alg.is_rsa(),
        PayloadPolicy::Any => alg == Alg::Ed25519,
        PayloadPolicy::Digest | PayloadPolicy::Note(_) | PayloadPolicy::Jwt(_) => false,
    }
}
