//! Public keys as `SubjectPublicKeyInfo` in PEM, as OpenSSL and other tools read them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::der;
use crate::ecdsa::Curve;
use crate::mldsa::MlDsaSet;

/// Object identifiers in DER.
const ED25519: &[u8] = &[0x06, 3, 0x2b, 0x65, 0x70];
const X25519: &[u8] = &[0x06, 3, 0x2b, 0x65, 0x6e];
const EC_PUBLIC_KEY: &[u8] = &[0x06, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 5, 0x2b, 0x81, 0x04, 0x00, 0x22];
const SECP256K1: &[u8] = &[0x06, 5, 0x2b, 0x81, 0x04, 0x00, 0x0a];
const RSA: &[u8] = &[
    0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01,
];

/// An Ed25519 public key (RFC 8410).
#[must_use]
pub fn spki_pem_ed25519(public: &[u8; 32]) -> String {
    pem(&[ED25519], public)
}

/// An X25519 public key (RFC 8410).
#[must_use]
pub fn spki_pem_x25519(public: &[u8; 32]) -> String {
    pem(&[X25519], public)
}

/// A public key on a curve, given as an uncompressed point (`04 || x || y`, RFC 5480).
#[must_use]
pub fn spki_pem_ec(curve: Curve, point: &[u8]) -> String {
    let curve = match curve {
        Curve::P256 => P256,
        Curve::P384 => P384,
        Curve::Secp256k1 => SECP256K1,
    };
    pem(&[EC_PUBLIC_KEY, curve], point)
}

/// An RSA public key, given as `RSAPublicKey` in DER (RFC 3279).
#[must_use]
pub fn spki_pem_rsa(public: &[u8]) -> String {
    pem(&[RSA, der::NULL], public)
}

/// The `SubjectPublicKeyInfo` of the same, in DER.
pub(crate) fn spki_rsa(public: &[u8]) -> Vec<u8> {
    spki(&[RSA, der::NULL], public)
}

/// An ML-DSA public key (RFC 9881).
#[must_use]
pub fn spki_pem_mldsa(set: MlDsaSet, public: &[u8]) -> String {
    let arc = match set {
        MlDsaSet::L44 => 0x11,
        MlDsaSet::L65 => 0x12,
        MlDsaSet::L87 => 0x13,
    };
    let oid = [0x06, 9, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, arc];
    pem(&[&oid], public)
}

fn spki(algorithm: &[&[u8]], key: &[u8]) -> Vec<u8> {
    let algorithm = der::tagged(der::SEQUENCE, &algorithm.concat());
    der::sequence(&[algorithm, der::bits(key)])
}

fn pem(algorithm: &[&[u8]], key: &[u8]) -> String {
    let text = STANDARD.encode(spki(algorithm, key));
    let mut out = String::from("-----BEGIN PUBLIC KEY-----\n");
    for start in (0..text.len()).step_by(64) {
        out.push_str(&text[start..text.len().min(start + 64)]);
        out.push('\n');
    }
    out.push_str("-----END PUBLIC KEY-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ed25519_rfc_8410_example() {
        let key = hex::decode("19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1")
            .unwrap();
        assert_eq!(
            spki_pem_ed25519(&key.try_into().unwrap()),
            "-----BEGIN PUBLIC KEY-----\n\
             MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
             -----END PUBLIC KEY-----\n"
        );
    }

    #[test]
    fn p256_has_the_right_length_and_lines() {
        let text = spki_pem_ec(Curve::P256, &[4; 65]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[1].len(), 64);
        let der = STANDARD.decode([lines[1], lines[2]].concat()).unwrap();
        assert_eq!((der.len(), usize::from(der[1])), (91, 89));
        assert_eq!(der[26..], [4; 65]);
    }
}
