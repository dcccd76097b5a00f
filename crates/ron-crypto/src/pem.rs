//! Public keys as `SubjectPublicKeyInfo` in PEM, as OpenSSL and other tools read them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::mldsa::MlDsaSet;

/// The DER prefix of a raw Ed25519 public key (RFC 8410).
const ED25519_HEAD: &[u8] = &[
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0,
];

/// The DER prefix of a raw X25519 public key (RFC 8410).
const X25519_HEAD: &[u8] = &[
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x03, 0x21, 0,
];

/// The DER prefix of an uncompressed P-256 point (RFC 5480).
const P256_HEAD: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// An Ed25519 public key.
#[must_use]
pub fn spki_pem_ed25519(public: &[u8; 32]) -> String {
    pem(ED25519_HEAD, public)
}

/// An X25519 public key.
#[must_use]
pub fn spki_pem_x25519(public: &[u8; 32]) -> String {
    pem(X25519_HEAD, public)
}

/// A P-256 public key given as an uncompressed point (`04 || x || y`).
#[must_use]
pub fn spki_pem_p256(public: &[u8; 65]) -> String {
    pem(P256_HEAD, public)
}

/// An ML-DSA public key (RFC 9881).
#[must_use]
pub fn spki_pem_mldsa(set: MlDsaSet, public: &[u8]) -> String {
    let arc = match set {
        MlDsaSet::L44 => 0x11,
        MlDsaSet::L65 => 0x12,
        MlDsaSet::L87 => 0x13,
    };
    let oid = [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, arc];
    let algorithm = [&[0x30, 0x0b, 0x06, 0x09][..], &oid].concat();
    let bits = public.len() + 1; // the first byte counts the unused bits of the last one: none
    let inner = algorithm.len() + 4 + bits;
    let long = |tag: u8, length: usize| {
        let [.., high, low] = length.to_be_bytes();
        [tag, 0x82, high, low]
    };
    let head = [&long(0x30, inner)[..], &algorithm, &long(0x03, bits), &[0]].concat();
    pem(&head, public)
}

fn pem(head: &[u8], key: &[u8]) -> String {
    let text = STANDARD.encode([head, key].concat());
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
        let text = spki_pem_p256(&[4; 65]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[1].len(), 64);
        let der = STANDARD.decode([lines[1], lines[2]].concat()).unwrap();
        assert_eq!((der.len(), usize::from(der[1])), (91, 89));
        assert_eq!(der[26..], [4; 65]);
    }
}
