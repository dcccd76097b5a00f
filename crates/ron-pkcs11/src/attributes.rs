//! Attributes of the objects: each key is a private and a public object with the same `CKA_ID`.

use cryptoki_sys::{
    CK_ATTRIBUTE_TYPE, CK_OBJECT_CLASS, CK_TRUE, CK_ULONG, CKA_ALWAYS_AUTHENTICATE,
    CKA_ALWAYS_SENSITIVE, CKA_CLASS, CKA_COEFFICIENT, CKA_COPYABLE, CKA_DECRYPT, CKA_DERIVE,
    CKA_DESTROYABLE, CKA_EC_PARAMS, CKA_EC_POINT, CKA_ENCRYPT, CKA_END_DATE, CKA_EXPONENT_1,
    CKA_EXPONENT_2, CKA_EXTRACTABLE, CKA_ID, CKA_KEY_TYPE, CKA_LABEL, CKA_LOCAL, CKA_MODIFIABLE,
    CKA_MODULUS, CKA_MODULUS_BITS, CKA_NEVER_EXTRACTABLE, CKA_PRIME_1, CKA_PRIME_2, CKA_PRIVATE,
    CKA_PRIVATE_EXPONENT, CKA_PUBLIC_EXPONENT, CKA_SENSITIVE, CKA_SIGN, CKA_SIGN_RECOVER,
    CKA_START_DATE, CKA_SUBJECT, CKA_TOKEN, CKA_TRUSTED, CKA_UNWRAP, CKA_VALUE, CKA_VERIFY,
    CKA_VERIFY_RECOVER, CKA_WRAP, CKA_WRAP_WITH_TRUSTED, CKO_PRIVATE_KEY, CKO_PUBLIC_KEY,
    CKR_ATTRIBUTE_SENSITIVE, CKR_ATTRIBUTE_TYPE_INVALID,
};

use crate::key::Key;
use crate::rv::Rv;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Private,
    Public,
}

impl Class {
    pub const fn number(self) -> CK_OBJECT_CLASS {
        match self {
            Self::Private => CKO_PRIVATE_KEY,
            Self::Public => CKO_PUBLIC_KEY,
        }
    }
}

/// The value of an attribute: `CKR_ATTRIBUTE_SENSITIVE` for parts of a private key, which are never in this process, and
/// `CKR_ATTRIBUTE_TYPE_INVALID` for what such an object does not have.
pub fn value(key: &Key, class: Class, attribute: CK_ATTRIBUTE_TYPE) -> Result<Vec<u8>, Rv> {
    if let Some(common) = common(key, class, attribute) {
        return Ok(common);
    }
    match class {
        Class::Private => private(key, attribute),
        Class::Public => public(key, attribute),
    }
    .ok_or(Rv(CKR_ATTRIBUTE_TYPE_INVALID))?
}

/// Whether an object has all these values.
pub fn matches(key: &Key, class: Class, template: &[(CK_ATTRIBUTE_TYPE, Vec<u8>)]) -> bool {
    template
        .iter()
        .all(|(attribute, want)| value(key, class, *attribute).as_ref() == Ok(want))
}

fn flag(set: bool) -> Vec<u8> {
    vec![if set { CK_TRUE } else { 0 }]
}

fn number(value: CK_ULONG) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn common(key: &Key, class: Class, attribute: CK_ATTRIBUTE_TYPE) -> Option<Vec<u8>> {
    Some(match attribute {
        CKA_CLASS => number(class.number()),
        CKA_KEY_TYPE => number(key.kind()),
        CKA_LABEL => key.label.clone().into_bytes(),
        CKA_ID => key.id().to_vec(),
        CKA_TOKEN => flag(true),
        CKA_LOCAL => flag(key.local),
        // A login changes nothing, so nothing is hidden before it.
        CKA_PRIVATE | CKA_MODIFIABLE | CKA_COPYABLE | CKA_DESTROYABLE | CKA_DERIVE => flag(false),
        CKA_SUBJECT | CKA_START_DATE | CKA_END_DATE => Vec::new(),
        CKA_MODULUS => key.rsa()?.n.to_vec(),
        CKA_PUBLIC_EXPONENT => key.rsa()?.e.to_vec(),
        CKA_EC_PARAMS => key.ec()?.0.to_vec(),
        CKA_EC_POINT => key.ec()?.1,
        _ => return None,
    })
}

fn private(key: &Key, attribute: CK_ATTRIBUTE_TYPE) -> Option<Result<Vec<u8>, Rv>> {
    Some(Ok(match attribute {
        CKA_SENSITIVE | CKA_SIGN => flag(true),
        CKA_ALWAYS_SENSITIVE | CKA_NEVER_EXTRACTABLE => flag(key.local),
        CKA_EXTRACTABLE
        | CKA_DECRYPT
        | CKA_SIGN_RECOVER
        | CKA_UNWRAP
        | CKA_WRAP_WITH_TRUSTED
        | CKA_ALWAYS_AUTHENTICATE => flag(false),
        CKA_VALUE | CKA_PRIVATE_EXPONENT | CKA_PRIME_1 | CKA_PRIME_2 | CKA_EXPONENT_1
        | CKA_EXPONENT_2 | CKA_COEFFICIENT => return Some(Err(Rv(CKR_ATTRIBUTE_SENSITIVE))),
        _ => return None,
    }))
}

fn public(key: &Key, attribute: CK_ATTRIBUTE_TYPE) -> Option<Result<Vec<u8>, Rv>> {
    Some(Ok(match attribute {
        CKA_VERIFY => flag(true),
        CKA_ENCRYPT | CKA_VERIFY_RECOVER | CKA_WRAP | CKA_TRUSTED => flag(false),
        CKA_MODULUS_BITS => number(8 * key.rsa()?.n.len() as CK_ULONG),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use ron_crypto::{Curve, EcKey};

    use super::*;
    use crate::key::Public;

    #[test]
    fn secrets_are_named_and_never_there() {
        let (ec, _) = EcKey::generate(Curve::P256);
        let key = Key::sample("ecdsa-p256", Public::Ec(Curve::P256, ec.public().to_vec()));
        let check = |class: Class, attribute: CK_ATTRIBUTE_TYPE, want: Result<Vec<u8>, Rv>| {
            assert_eq!(
                value(&key, class, attribute),
                want,
                "{class:?} {attribute:#x}"
            );
        };
        let (private, public) = (Class::Private, Class::Public);
        let no_such = || Err(Rv(CKR_ATTRIBUTE_TYPE_INVALID));
        check(private, CKA_VALUE, Err(Rv(CKR_ATTRIBUTE_SENSITIVE)));
        check(public, CKA_VALUE, no_such());
        check(private, CKA_MODULUS, no_such());
        check(private, CKA_EXTRACTABLE, Ok(vec![0]));
        check(public, CKA_LABEL, Ok(b"tls".to_vec()));
        let point = [&[4, 65], ec.public()].concat();
        check(public, CKA_EC_POINT, Ok(point));
        let template = |want: &[u8]| [(CKA_SIGN, vec![1]), (CKA_ID, want.to_vec())];
        assert!(matches(&key, private, &template(key.id())));
        assert!(!matches(&key, public, &template(key.id())));
        assert!(!matches(&key, private, &template(&[1])));
    }
}
