//! The keys of another issuer, whose tokens a client presents instead of a credential of its own. Pure.

use ron_proto::strict;
use serde_json::Value;

use crate::jwks::{JwksError, KeyUse, VerifyKey};

/// Maximum keys in the set of another issuer.
pub const FOREIGN_KEYS_MAX: usize = 64;

/// The usable keys of another issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignKeys(Vec<(Option<String>, VerifyKey)>);

impl ForeignKeys {
    /// Parses a JWK set (RFC 7517). Keys of other kinds or uses, and malformed ones, are skipped: the set is
    /// another party's, and one odd key must not keep its clients out.
    ///
    /// # Errors
    /// What is no key set, has more than [`FOREIGN_KEYS_MAX`] keys, publishes a private key, or has no usable key.
    pub fn parse(bytes: &[u8], usage: KeyUse) -> Result<Self, JwksError> {
        let tree: Value = strict::from_slice(bytes).map_err(|e| JwksError::Json(e.to_string()))?;
        Self::of_value(&tree, usage)
    }

    /// The same from parsed JSON.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of_value(tree: &Value, usage: KeyUse) -> Result<Self, JwksError> {
        let list = tree.get("keys").and_then(Value::as_array);
        let list = list.ok_or_else(|| JwksError::Json("`keys` is not a list".to_owned()))?;
        if list.len() > FOREIGN_KEYS_MAX {
            return Err(JwksError::TooMany {
                keys: list.len(),
                max: FOREIGN_KEYS_MAX,
            });
        }
        let mut keys = Vec::new();
        for jwk in list {
            match VerifyKey::of_issuer(jwk, usage) {
                Ok(key) => {
                    let kid = jwk.get("kid").and_then(Value::as_str).map(str::to_owned);
                    keys.push((kid, key));
                }
                Err(JwksError::Private) => return Err(JwksError::Private),
                Err(_) => {}
            }
        }
        if keys.is_empty() {
            return Err(JwksError::Empty);
        }
        Ok(Self(keys))
    }

    /// The keys that may have signed a token with this `kid`: those of that name and those without a name, or all
    /// for a token that names none.
    pub fn named<'a>(&'a self, kid: Option<&'a str>) -> impl Iterator<Item = &'a VerifyKey> {
        let fits = move |of: &Option<String>| kid.is_none() || of.is_none() || of.as_deref() == kid;
        self.0
            .iter()
            .filter(move |(of, _)| fits(of))
            .map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use ron_proto::b64;
    use serde_json::json;

    use super::*;
    use crate::jwks::JwsAlg;

    fn parse(keys: &Value, usage: KeyUse) -> Result<ForeignKeys, JwksError> {
        ForeignKeys::parse(json!({ "keys": keys }).to_string().as_bytes(), usage)
    }

    #[test]
    fn usable_keys_are_taken_and_others_passed_over() {
        let (x, y) = (b64::url(&[7; 32]), b64::url(&[8; 48]));
        let n = b64::url(&[0xc1; 256]);
        let keys = json!([
            {"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x, "alg": "Ed25519"},
            {"kty": "RSA", "kid": "r", "n": n, "e": "AQAB", "x5c": ["MII"], "alg": "RS256", "use": "sig"},
            {"kty": "EC", "crv": "P-384", "x": y, "y": y},
            {"kty": "RSA", "kid": "short", "n": "wcHB", "e": "AQAB"},
            {"kty": "RSA", "kid": "other", "n": n, "e": "AQAB", "alg": "RSA-OAEP"},
            {"kty": "EC", "crv": "P-256", "kid": "torn", "x": x},
            {"kty": "OKP", "crv": "Ed25519", "kid": "e", "x": x, "use": "enc"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "svid", "x": x, "use": "jwt-svid"},
            "text"]);
        let all = parse(&keys, KeyUse::Signatures).unwrap();
        assert_eq!(all.0.len(), 3);
        let named = |kid| all.named(kid).count();
        // The key without a name may be any.
        assert_eq!(
            [named(None), named(Some("a")), named(Some("short"))],
            [3, 2, 1]
        );
        let rsa = all.named(Some("r")).next().unwrap();
        assert!(rsa.takes(JwsAlg::Rs256) && !rsa.takes(JwsAlg::Ps256));
        let svid = parse(&keys, KeyUse::JwtSvid).unwrap();
        assert_eq!((svid.0.len(), svid.0[0].0.as_deref()), (1, Some("svid")));
    }

    #[test]
    fn a_set_that_leaks_or_is_none_is_refused() {
        let x = b64::url(&[7; 32]);
        let key = json!({"kty": "OKP", "crv": "Ed25519", "x": x});
        let leaks = json!([key, {"kty": "OKP", "crv": "Ed25519", "x": x, "d": x}]);
        assert_eq!(parse(&leaks, KeyUse::Signatures), Err(JwksError::Private));
        let secret = json!([{"kty": "oct", "k": "AAAA"}]);
        assert_eq!(parse(&secret, KeyUse::Signatures), Err(JwksError::Private));
        assert_eq!(parse(&json!([]), KeyUse::Signatures), Err(JwksError::Empty));
        let many = vec![key; FOREIGN_KEYS_MAX + 1];
        assert!(matches!(
            parse(&many.into(), KeyUse::Signatures),
            Err(JwksError::TooMany { .. })
        ));
        for text in ["", "{}", "[]", r#"{"keys":7}"#, r#"{"keys":[],"keys":[]}"#] {
            assert!(ForeignKeys::parse(text.as_bytes(), KeyUse::Signatures).is_err());
        }
    }
}
