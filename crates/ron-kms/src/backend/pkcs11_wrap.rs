//! AES-KWP (RFC 5649) inside a PKCS#11 token.
//!
//! A token wraps keys, not bytes: the plaintext becomes a session object for the time of the call,
//! is wrapped with `C_WrapKey`, and destroyed. The wrapping key itself never leaves the token.
//!
//! What is wrapped is the length of the plaintext (4 bytes, big-endian) and the plaintext, because
//! there are modules (SoftHSM 2.6) whose `C_UnwrapKey` gives the padding back as part of the key.

use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::Session as Raw;
use ron_crypto::secret::SecretBytes;
use ron_proto::values::Alg;
use zeroize::Zeroizing;

use super::line::{Fault, Session as _};
use super::pkcs11::{TokenSession, fault, find};
use crate::keys::PublicKey;

/// What a new key wraps once, to show that it works.
const PROOF: &[u8] = b"ron-kms/v1/new key";

impl TokenSession {
    /// Makes a wrapping key that stays in the token.
    pub(super) fn make_wrapping(&mut self, id: &[u8], label: &str) -> Result<PublicKey, Fault> {
        self.inside(|raw, _| {
            let template = [
                Attribute::Class(ObjectClass::SECRET_KEY),
                Attribute::KeyType(KeyType::AES),
                Attribute::ValueLen(32_u64.into()),
                Attribute::Token(true),
                Attribute::Private(true),
                Attribute::Label(label.as_bytes().to_vec()),
                Attribute::Id(id.to_vec()),
                Attribute::Sensitive(true),
                Attribute::Extractable(false),
                Attribute::Wrap(true),
                Attribute::Unwrap(true),
                Attribute::Encrypt(false),
                Attribute::Decrypt(false),
            ];
            let key = raw
                .generate_key(&Mechanism::AesKeyGen, &template)
                .map_err(fault)?;
            let wanted = [AttributeType::NeverExtractable, AttributeType::Sensitive];
            let held = raw.get_attributes(key, &wanted).map_err(fault)?;
            if held != [Attribute::NeverExtractable(true), Attribute::Sensitive(true)] {
                let _ = raw.destroy_object(key); // refused in any case
                return Err(Fault::Refused(
                    "the token does not keep keys to itself: CKA_NEVER_EXTRACTABLE or CKA_SENSITIVE is false".into(),
                ));
            }
            Ok(())
        })?;
        // A key is not announced before it has wrapped once.
        let wrapped = self.wrap(id, PROOF)?;
        if self.unwrap(id, &wrapped)?.expose() != PROOF {
            return Err(Fault::Refused(
                "the new key does not unwrap what it wrapped".into(),
            ));
        }
        Ok(PublicKey::Hidden(Alg::Aes256Kwp))
    }

    /// RFC 5649 of these bytes.
    pub(super) fn wrap(&mut self, id: &[u8], plaintext: &[u8]) -> Result<Vec<u8>, Fault> {
        self.inside(|raw, objects| {
            let key = find(raw, objects, ObjectClass::SECRET_KEY, id)?;
            let mut template = passing().to_vec();
            template.push(Attribute::Value(framed(plaintext)));
            let made = raw.create_object(&template);
            if let Some(Attribute::Value(copy)) = template.last_mut() {
                zeroize::Zeroize::zeroize(copy);
            }
            let object = made.map_err(fault)?;
            let wrapped = raw.wrap_key(&Mechanism::AesKeyWrapPad, key, object);
            end(raw, object)?;
            wrapped.map_err(fault)
        })
    }

    /// The bytes of RFC 5649 output.
    pub(super) fn unwrap(&mut self, id: &[u8], wrapped: &[u8]) -> Result<SecretBytes, Fault> {
        let opened = self.inside(|raw, objects| {
            let key = find(raw, objects, ObjectClass::SECRET_KEY, id)?;
            let object = raw.unwrap_key(&Mechanism::AesKeyWrapPad, key, wrapped, &passing());
            let object = match object {
                Ok(object) => object,
                Err(error) if may_be_the_text(&error) => return Ok(None),
                Err(error) => return Err(fault(error)),
            };
            let value = raw.get_attributes(object, &[AttributeType::Value]);
            end(raw, object)?;
            match value.map_err(fault)?.pop() {
                Some(Attribute::Value(value)) => Ok(unframed(&Zeroizing::new(value))),
                _ => Err(Fault::Refused(
                    "the token does not show what it unwrapped".into(),
                )),
            }
        })?;
        match opened {
            Some(secret) => Ok(secret),
            // Some modules call a wrong ciphertext a general error, which also a dying device
            // answers: only one that still answers is believed to mean the ciphertext.
            None => self.probe().and(Err(Fault::Mismatch)),
        }
    }
}

/// The length, then the bytes.
fn framed(plaintext: &[u8]) -> Vec<u8> {
    let length = plaintext.len() as u32;
    [&length.to_be_bytes()[..], plaintext].concat()
}

/// What [`framed`] was given, from the same bytes with or without their padding.
fn unframed(value: &[u8]) -> Option<SecretBytes> {
    let (length, rest) = value.split_first_chunk::<4>()?;
    let (plaintext, padding) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let whole = padding.len() < 8 && padding.iter().all(|byte| *byte == 0);
    whole.then(|| SecretBytes::from_slice(plaintext))
}

/// A secret that lives in the session for one call.
fn passing() -> [Attribute; 6] {
    [
        Attribute::Class(ObjectClass::SECRET_KEY),
        Attribute::KeyType(KeyType::GENERIC_SECRET),
        Attribute::Token(false),
        Attribute::Private(true),
        Attribute::Sensitive(false),
        Attribute::Extractable(true),
    ]
}

/// Destroys a passing object. Where that fails the whole session goes, and the object with it.
fn end(raw: &Raw, object: ObjectHandle) -> Result<(), Fault> {
    raw.destroy_object(object)
        .map_err(|_| Fault::Gone("a session object cannot be destroyed".into()))
}

fn may_be_the_text(error: &Error) -> bool {
    matches!(
        error,
        Error::Pkcs11(
            RvError::WrappedKeyInvalid
                | RvError::WrappedKeyLenRange
                | RvError::EncryptedDataInvalid
                | RvError::EncryptedDataLenRange
                | RvError::DataInvalid
                | RvError::DataLenRange
                | RvError::FunctionFailed
                | RvError::GeneralError,
            _
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_survives_padding_and_nothing_else_is_believed() {
        let frame = framed(b"12345");
        let opened = |bytes: &[u8]| unframed(bytes).map(|s| s.expose().to_vec());
        assert_eq!(opened(&frame).as_deref(), Some(&b"12345"[..]));
        let padded = [&frame[..], &[0; 7]].concat();
        assert_eq!(opened(&padded).as_deref(), Some(&b"12345"[..]));
        for bad in [
            frame[..8].to_vec(),
            vec![0, 0],
            [&frame[..], &[0; 8]].concat(),
            [&frame[..], &[1]].concat(),
        ] {
            assert_eq!(opened(&bad), None, "{bad:?}");
        }
    }
}
