//! AES-KWP (RFC 5649) inside a PKCS#11 token.
//!
//! A token wraps keys, not bytes: the plaintext becomes a session object for the time of the call, is wrapped with
//! `C_WrapKey`, and is destroyed. The wrapping key itself never leaves the token.
//!
//! The wrapped bytes are the plaintext's length (4 bytes, big-endian) and the plaintext, because the `C_UnwrapKey` of
//! some modules (SoftHSM 2.6) returns the padding as part of the key.

use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::Session as Raw;
use ron_crypto::secret::SecretBytes;
use zeroize::Zeroizing;

use super::Handle;
use super::pkcs11::TokenSession;
use super::pkcs11_module::{fault, may_be_wrong_ciphertext};
use super::session_pool::Fault;

impl TokenSession {
    /// Wraps these bytes (RFC 5649).
    pub(super) fn wrap_bytes(
        &mut self,
        handle: &Handle,
        plaintext: &[u8],
    ) -> Result<Vec<u8>, Fault> {
        self.with_key(ObjectClass::SECRET_KEY, handle, |raw, key| {
            let mut template = session_secret().to_vec();
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

    /// Unwraps RFC 5649 output; [`Fault::Mismatch`] when it does not decrypt.
    pub(super) fn unwrap_bytes(
        &mut self,
        handle: &Handle,
        wrapped: &[u8],
    ) -> Result<SecretBytes, Fault> {
        let opened = self.with_key(ObjectClass::SECRET_KEY, handle, |raw, key| {
            let object = raw.unwrap_key(&Mechanism::AesKeyWrapPad, key, wrapped, &session_secret());
            let object = match object {
                Ok(object) => object,
                Err(error) if may_be_wrong_ciphertext(&error) => return Ok(None),
                Err(error) => return Err(fault(error)),
            };
            let value = raw.get_attributes(object, &[AttributeType::Value]);
            end(raw, object)?;
            match value.map_err(fault)?.pop() {
                Some(Attribute::Value(value)) => Ok(unframed(&Zeroizing::new(value))),
                _ => Err(Fault::Refused(
                    "the token does not reveal the unwrapped value".into(),
                )),
            }
        })?;
        self.opened(opened)
    }
}

/// The plaintext's length in 4 bytes, then the plaintext.
fn framed(plaintext: &[u8]) -> Vec<u8> {
    let length = plaintext.len() as u32;
    [&length.to_be_bytes()[..], plaintext].concat()
}

/// The plaintext of [`framed`] bytes, with or without up to 7 bytes of zero padding.
fn unframed(value: &[u8]) -> Option<SecretBytes> {
    let (length, rest) = value.split_first_chunk::<4>()?;
    let (plaintext, padding) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let whole = padding.len() < 8 && padding.iter().all(|byte| *byte == 0);
    whole.then(|| SecretBytes::from_slice(plaintext))
}

/// The template of a secret that exists in the session for one call.
fn session_secret() -> [Attribute; 6] {
    [
        Attribute::Class(ObjectClass::SECRET_KEY),
        Attribute::KeyType(KeyType::GENERIC_SECRET),
        Attribute::Token(false),
        Attribute::Private(true),
        Attribute::Sensitive(false),
        Attribute::Extractable(true),
    ]
}

/// Destroys such an object. If that fails, the session is closed, which destroys the object too.
fn end(raw: &Raw, object: ObjectHandle) -> Result<(), Fault> {
    raw.destroy_object(object)
        .map_err(|_| Fault::Gone("a session object cannot be destroyed".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_survives_padding_and_nothing_else_is_accepted() {
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
