//! Key pairs in a PKCS#11 token: how they are made, and how they sign; and MACs.

use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, ObjectClass, ObjectHandle};
use cryptoki::session::Session as Raw;
use ron_crypto::rsa::digest_info;
use ron_crypto::{Curve, Hashed, RsaPadding, der};
use ron_proto::kms::{HashAlg, Scheme};
use ron_proto::values::Alg;

use super::Handle;
use super::pkcs11::{TokenSession, check_protected};
use super::pkcs11_module::fault;
use super::session_pool::Fault;
use crate::keys::{DeviceInput, PublicKey, curve_of, padding_of, sha2_of, size_of};

/// `edwards25519` as a PrintableString, the curve's name in PKCS#11 3.0.
const ED25519_NAME: &[u8] = b"\x13\x0cedwards25519";
/// The object identifier 1.3.101.112, for tokens that accept only that.
const ED25519_OID: &[u8] = &[0x06, 0x03, 0x2b, 0x65, 0x70];
/// Object identifiers of curves.
const P256_OID: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384_OID: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
/// The public exponent of RSA keys.
const EXPONENT: &[u8] = &[1, 0, 1];

/// Algorithms whose key pairs a token is asked for.
pub const ALGS: [Alg; 6] = [
    Alg::Ed25519,
    Alg::EcdsaP256,
    Alg::EcdsaP384,
    Alg::Rsa2048,
    Alg::Rsa3072,
    Alg::Rsa4096,
];

impl TokenSession {
    /// Makes a key pair that cannot leave the token; returns the public key.
    pub(super) fn make_pair(
        &mut self,
        alg: Alg,
        id: &[u8],
        label: &str,
    ) -> Result<PublicKey, Fault> {
        self.inside(|raw, _| {
            let (public, private) = generate(raw, alg, id, label)?;
            if let Err(fault) = check_protected(raw, private) {
                let _ = raw.destroy_object(public);
                return Err(fault);
            }
            read_public(raw, alg, public)
        })
    }

    /// Signs with a private key of the token, or makes a MAC with a secret one.
    pub(super) fn sign_with(
        &mut self,
        alg: Alg,
        handle: &Handle,
        input: &DeviceInput,
    ) -> Result<Vec<u8>, Fault> {
        let class = if alg.is_mac() {
            ObjectClass::SECRET_KEY
        } else {
            ObjectClass::PRIVATE_KEY
        };
        self.with_key(class, handle, |raw, key| signature(raw, key, alg, input))
    }
}

fn signature(
    raw: &Raw,
    key: ObjectHandle,
    alg: Alg,
    DeviceInput { bytes, scheme }: &DeviceInput,
) -> Result<Vec<u8>, Fault> {
    let hash = scheme.map_or(HashAlg::Sha256, Scheme::hash);
    let signed = match alg {
        Alg::Ed25519 => {
            let pure = EddsaParams::new(EddsaSignatureScheme::Pure);
            raw.sign(&Mechanism::Eddsa(pure), key, bytes)
        }
        Alg::EcdsaP256 | Alg::EcdsaP384 => raw.sign(&Mechanism::Ecdsa, key, bytes),
        Alg::Rsa2048 | Alg::Rsa3072 | Alg::Rsa4096 => match padding_of(*scheme) {
            RsaPadding::Pss => raw.sign(&Mechanism::RsaPkcsPss(pss(hash)), key, bytes),
            RsaPadding::Pkcs1 => {
                let hashed = Hashed::new(sha2_of(hash), bytes);
                let hashed = hashed.expect("a hash of the scheme's function");
                raw.sign(&Mechanism::RsaPkcs, key, &digest_info(&hashed))
            }
        },
        Alg::HmacSha256 => raw.sign(&Mechanism::Sha256Hmac, key, bytes),
        Alg::HmacSha384 => raw.sign(&Mechanism::Sha384Hmac, key, bytes),
        Alg::HmacSha512 => raw.sign(&Mechanism::Sha512Hmac, key, bytes),
        other => return Err(not_here(other)),
    };
    signed.map_err(fault)
}

pub(super) fn not_here(alg: Alg) -> Fault {
    Fault::Unsupported(format!("{alg} in a PKCS#11 token"))
}

fn pss(hash: HashAlg) -> PkcsPssParams {
    let (hash_alg, mgf) = match hash {
        HashAlg::Sha256 => (MechanismType::SHA256, PkcsMgfType::MGF1_SHA256),
        HashAlg::Sha384 => (MechanismType::SHA384, PkcsMgfType::MGF1_SHA384),
        HashAlg::Sha512 => (MechanismType::SHA512, PkcsMgfType::MGF1_SHA512),
    };
    let s_len = (hash.size() as u64).into();
    PkcsPssParams {
        hash_alg,
        mgf,
        s_len,
    }
}

fn generate(
    raw: &Raw,
    alg: Alg,
    id: &[u8],
    label: &str,
) -> Result<(ObjectHandle, ObjectHandle), Fault> {
    let pair = |mechanism: &Mechanism<'_>, params: &[Attribute]| {
        let named = |more: &[Attribute]| {
            let mut all = vec![
                Attribute::Token(true),
                Attribute::Label(label.as_bytes().to_vec()),
                Attribute::Id(id.to_vec()),
            ];
            all.extend_from_slice(more);
            all
        };
        let public = [Attribute::Private(false), Attribute::Verify(true)];
        let public = named(&[&public, params].concat());
        let private = named(&[
            Attribute::Private(true),
            Attribute::Sensitive(true),
            Attribute::Extractable(false),
            Attribute::Sign(true),
        ]);
        raw.generate_key_pair(mechanism, &public, &private)
            .map_err(fault)
    };
    let on_curve = |mechanism: &Mechanism<'_>, curve: &[u8]| {
        pair(mechanism, &[Attribute::EcParams(curve.to_vec())])
    };
    if let Some(size) = size_of(alg) {
        let bits = Attribute::ModulusBits((8 * size.modulus_len() as u64).into());
        let exponent = Attribute::PublicExponent(EXPONENT.to_vec());
        return pair(&Mechanism::RsaPkcsKeyPairGen, &[bits, exponent]);
    }
    match (alg, curve_of(alg)) {
        (_, Some(Curve::P256)) => on_curve(&Mechanism::EccKeyPairGen, P256_OID),
        (_, Some(Curve::P384)) => on_curve(&Mechanism::EccKeyPairGen, P384_OID),
        (Alg::Ed25519, _) => {
            let mechanism = Mechanism::EccEdwardsKeyPairGen;
            match on_curve(&mechanism, ED25519_NAME) {
                Err(Fault::Refused(_) | Fault::Unsupported(_)) => on_curve(&mechanism, ED25519_OID),
                made => made,
            }
        }
        (other, _) => Err(not_here(other)),
    }
}

/// The public half of a pair that was made.
pub(super) fn read_public(raw: &Raw, alg: Alg, public: ObjectHandle) -> Result<PublicKey, Fault> {
    let asked: &[AttributeType] = if alg.is_rsa() {
        &[AttributeType::Modulus, AttributeType::PublicExponent]
    } else {
        &[AttributeType::EcPoint]
    };
    let key = match &raw.get_attributes(public, asked).map_err(fault)?[..] {
        [Attribute::EcPoint(point)] => on_curve(alg, point),
        [Attribute::Modulus(n), Attribute::PublicExponent(e)] => {
            PublicKey::from_raw(alg, &der::sequence(&[der::unsigned(n), der::unsigned(e)]))
        }
        _ => return Err(Fault::Refused("the token shows no public key".into())),
    };
    key.ok_or_else(|| Fault::Refused("the token's public key has an unknown encoding".into()))
}

/// The key of a `CKA_EC_POINT`: an OCTET STRING around the point, or the point itself.
fn on_curve(alg: Alg, point: &[u8]) -> Option<PublicKey> {
    let plain = der::only(der::OCTET_STRING, point).unwrap_or(point);
    PublicKey::from_raw(alg, plain).or_else(|| PublicKey::from_raw(alg, point))
}
