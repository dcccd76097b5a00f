//! Signatures of third parties, verified only: RSA with SHA-256, in both paddings of JWS. No key of ours is an RSA key.

use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256, RsaPublicKeyComponents,
};

/// Bytes of a modulus: 2048 to 4096 bits. A longer one only costs the verifier time.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=512;
/// Maximum bytes of a public exponent; 65537 has three.
const EXPONENT_BYTES_MAX: usize = 4;

/// How the hash is encoded before the RSA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RsaPadding {
    /// RSASSA-PKCS1-v1_5: `RS256`.
    Pkcs1,
    /// RSASSA-PSS with a salt as long as the hash: `PS256`.
    Pss,
}

/// Whether modulus and exponent, big-endian without leading zeros, are a key that [`verify_rsa`] uses.
#[must_use]
pub fn is_rsa_key(n: &[u8], e: &[u8]) -> bool {
    let minimal = |bytes: &[u8]| bytes.first().is_some_and(|byte| *byte != 0);
    MODULUS_BYTES.contains(&n.len()) && e.len() <= EXPONENT_BYTES_MAX && minimal(n) && minimal(e)
}

/// Verifies an RSA signature over the SHA-256 of `message`.
#[must_use]
pub fn verify_rsa(
    (n, e): (&[u8], &[u8]),
    padding: RsaPadding,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let params = match padding {
        RsaPadding::Pkcs1 => &RSA_PKCS1_2048_8192_SHA256,
        RsaPadding::Pss => &RSA_PSS_2048_8192_SHA256,
    };
    is_rsa_key(n, e)
        && RsaPublicKeyComponents { n, e }
            .verify(params, message, signature)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::{
        KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
    };

    use super::*;

    #[test]
    fn a_signature_counts_in_its_own_padding_under_its_own_key() {
        let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let sign = |padding: &'static dyn RsaEncoding| {
            let mut signature = vec![0; key.public_modulus_len()];
            key.sign(padding, &SystemRandom::new(), b"m", &mut signature)
                .unwrap();
            signature
        };
        let (pkcs1, pss) = (sign(&RSA_PKCS1_SHA256), sign(&RSA_PSS_SHA256));
        // RSAPublicKey (RFC 8017 A.1.1): a sequence of two integers; the first one has a zero before its 256 bytes.
        let der = key.public_key().as_ref();
        let (n, e) = (der[9..265].to_vec(), der[267..].to_vec());
        let check = |padding, message: &[u8], signature: &[u8]| {
            verify_rsa((&n, &e), padding, message, signature)
        };
        assert!(check(RsaPadding::Pkcs1, b"m", &pkcs1) && check(RsaPadding::Pss, b"m", &pss));
        assert!(!check(RsaPadding::Pss, b"m", &pkcs1) && !check(RsaPadding::Pkcs1, b"m", &pss));
        assert!(!check(RsaPadding::Pkcs1, b"n", &pkcs1) && !check(RsaPadding::Pss, b"n", &pss));
        let mut other = n.clone();
        other[9] ^= 1;
        assert!(!verify_rsa((&other, &e), RsaPadding::Pkcs1, b"m", &pkcs1));
        // One encoding per key, and none that is short or costly.
        let padded = [&[0][..], &n].concat();
        for (n, e) in [
            (&padded[..], &e[..]),
            (&n[..128], &e),
            (&n, &[0, 1, 0, 1]),
            (&n, &[1; 5]),
            (&n, &[]),
        ] {
            assert!(!is_rsa_key(n, e));
        }
    }
}
