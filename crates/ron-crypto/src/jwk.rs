//! JWK thumbprints (RFC 7638, SHA-256): the `kid` of our tokens.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::ecdsa::Curve;
use crate::hash::sha256;
use crate::rsa::RsaPublic;

/// The thumbprint of an Ed25519 public key, in base64url.
#[must_use]
pub fn thumbprint_okp(x: &[u8; 32]) -> String {
    okp("Ed25519", x)
}

/// The thumbprint of an X25519 public key, in base64url.
#[must_use]
pub fn thumbprint_x25519(x: &[u8; 32]) -> String {
    okp("X25519", x)
}

fn okp(crv: &str, x: &[u8; 32]) -> String {
    let x = URL_SAFE_NO_PAD.encode(x);
    thumbprint(&format!(r#"{{"crv":"{crv}","kty":"OKP","x":"{x}"}}"#))
}

/// The thumbprint of a public key on a curve, given as an uncompressed point (`04 || x || y`), in base64url.
#[must_use]
pub fn thumbprint_ec(curve: Curve, point: &[u8]) -> String {
    let (x, y) = coordinates(curve, point);
    let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
    let crv = curve.jwk_name();
    thumbprint(&format!(
        r#"{{"crv":"{crv}","kty":"EC","x":"{x}","y":"{y}"}}"#
    ))
}

/// The coordinates of an uncompressed point, which has the curve's length.
#[must_use]
pub fn coordinates(curve: Curve, point: &[u8]) -> (&[u8], &[u8]) {
    point[1..].split_at(curve.size())
}

/// The thumbprint of an RSA public key, in base64url.
#[must_use]
pub fn thumbprint_rsa(RsaPublic { n, e }: RsaPublic<'_>) -> String {
    let (n, e) = (URL_SAFE_NO_PAD.encode(n), URL_SAFE_NO_PAD.encode(e));
    thumbprint(&format!(r#"{{"e":"{e}","kty":"RSA","n":"{n}"}}"#))
}

/// The thumbprint of an algorithm key pair (`kty` `AKP`, used by ML-DSA): `alg` is the JWS name.
#[must_use]
pub fn thumbprint_akp(alg: &str, public: &[u8]) -> String {
    let public = URL_SAFE_NO_PAD.encode(public);
    thumbprint(&format!(
        r#"{{"alg":"{alg}","kty":"AKP","pub":"{public}"}}"#
    ))
}

/// The thumbprint of a JWK already in its canonical form: only the required members, in
/// lexicographic order, without white space.
#[must_use]
pub fn thumbprint(canonical: &str) -> String {
    URL_SAFE_NO_PAD.encode(sha256(canonical.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> [u8; 32] {
        URL_SAFE_NO_PAD.decode(text).unwrap().try_into().unwrap()
    }

    #[test]
    fn okp_rfc_8037_example() {
        let x = raw("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        assert_eq!(
            thumbprint_okp(&x),
            "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
        );
    }

    #[test]
    fn ec_rfc_9449_example() {
        let x = raw("l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs");
        let y = raw("9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA");
        assert_eq!(
            thumbprint_ec(Curve::P256, &[&[4][..], &x, &y].concat()),
            "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
        );
    }

    #[test]
    fn rfc_7638_example() {
        let canonical = concat!(
            r#"{"e":"AQAB","kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx"#,
            "4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4",
            "Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d",
            "0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPk",
            r#"sINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"}"#
        );
        assert_eq!(
            thumbprint(canonical),
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
        );
    }
}
