//! Secret keys in a PKCS#11 token: how they are made and tested, AES-GCM, and the choice between it and AES-KWP
//! ([`super::pkcs11_wrap`]). MACs are signatures to a token ([`super::pkcs11_sign`]).

use cryptoki::mechanism::Mechanism;
use cryptoki::mechanism::aead::GcmParams;
use cryptoki::object::{Attribute, KeyType, ObjectClass};
use ron_crypto::secret::SecretBytes;
use ron_proto::values::Alg;
use zeroize::Zeroizing;

use super::pkcs11::{TokenSession, check_protected};
use super::pkcs11_module::{fault, may_be_wrong_ciphertext};
use super::pkcs11_sign::not_here;
use super::session_pool::{Fault, Session as _, TEST_MESSAGE, check_unwrapped};
use super::{Handle, Wrapping};
use crate::keys::envelope::Nonce;
use crate::keys::{DeviceInput, PublicKey, aead_of, mac_of, symmetric_len};

/// Algorithms whose secret keys a token is asked for.
pub const ALGS: [Alg; 6] = [
    Alg::Aes128Gcm,
    Alg::Aes256Gcm,
    Alg::Aes256Kwp,
    Alg::HmacSha256,
    Alg::HmacSha384,
    Alg::HmacSha512,
];
/// Length of an AES-GCM tag.
const TAG_BITS: u64 = 128;
/// The nonce of the test of a new key. It has the number that no use of a key ever has, because numbers end below it.
const TEST_NONCE: Nonce = [0xff; 12];

impl TokenSession {
    /// Makes a secret key that cannot leave the token, and tests it.
    pub(super) fn make_secret(
        &mut self,
        alg: Alg,
        handle: &Handle,
        label: &str,
    ) -> Result<PublicKey, Fault> {
        if !ALGS.contains(&alg) {
            return Err(not_here(alg));
        }
        let length = symmetric_len(alg).unwrap_or_default() as u64;
        let (mechanism, kind) = match mac_of(alg) {
            Some(_) => (Mechanism::GenericSecretKeyGen, KeyType::GENERIC_SECRET),
            None => (Mechanism::AesKeyGen, KeyType::AES),
        };
        // Nothing beyond what the algorithm needs: a key that also encrypts could open what it wraps.
        let (encrypts, macs) = (aead_of(alg).is_some(), mac_of(alg).is_some());
        let wraps = !encrypts && !macs;
        self.inside(|raw, _| {
            let template = [
                Attribute::Class(ObjectClass::SECRET_KEY),
                Attribute::KeyType(kind),
                Attribute::ValueLen(length.into()),
                Attribute::Token(true),
                Attribute::Private(true),
                Attribute::Label(label.as_bytes().to_vec()),
                Attribute::Id(handle.0.clone()),
                Attribute::Sensitive(true),
                Attribute::Extractable(false),
                Attribute::Wrap(wraps),
                Attribute::Unwrap(wraps),
                Attribute::Encrypt(encrypts),
                Attribute::Decrypt(encrypts),
                Attribute::Sign(macs),
                Attribute::Verify(macs),
            ];
            let key = raw.generate_key(&mechanism, &template).map_err(fault)?;
            check_protected(raw, key)
        })?;
        self.test_secret(alg, handle)
    }

    /// Uses a secret key once.
    pub(super) fn test_secret(&mut self, alg: Alg, handle: &Handle) -> Result<PublicKey, Fault> {
        if let Some(hash) = mac_of(alg) {
            let input = DeviceInput {
                bytes: TEST_MESSAGE.to_vec(),
                scheme: None,
            };
            let mac = self.sign_with(alg, handle, &input)?;
            if mac.len() != hash.size() || mac != self.sign_with(alg, handle, &input)? {
                return Err(Fault::Refused("the key's MACs are wrong".into()));
            }
            return Ok(PublicKey::Hidden(alg));
        }
        let how = Wrapping {
            alg,
            nonce: aead_of(alg).map(|_| TEST_NONCE),
            aad: Vec::new(),
        };
        let wrapped = self.wrap_with(handle, &how, TEST_MESSAGE)?;
        check_unwrapped(&self.unwrap_with(handle, &how, &wrapped)?)?;
        Ok(PublicKey::Hidden(alg))
    }

    /// Encrypts with AES-GCM, or wraps with AES-KWP.
    pub(super) fn wrap_with(
        &mut self,
        handle: &Handle,
        how: &Wrapping,
        plaintext: &[u8],
    ) -> Result<Vec<u8>, Fault> {
        let Some(nonce) = how.nonce else {
            return self.wrap_bytes(handle, plaintext);
        };
        self.with_key(ObjectClass::SECRET_KEY, handle, |raw, key| {
            let mut used = nonce;
            let gcm = GcmParams::new(&mut used, &how.aad, TAG_BITS.into()).map_err(fault)?;
            let sealed = raw.encrypt(&Mechanism::AesGcm(gcm), key, plaintext);
            let sealed = sealed.map_err(fault)?;
            if used != nonce {
                let why = "the token makes nonces of its own, so no use is known to have a new one";
                return Err(Fault::Refused(why.into()));
            }
            Ok(sealed)
        })
    }

    /// Recovers the bytes; [`Fault::Mismatch`] when they do not decrypt.
    pub(super) fn unwrap_with(
        &mut self,
        handle: &Handle,
        how: &Wrapping,
        wrapped: &[u8],
    ) -> Result<SecretBytes, Fault> {
        let Some(nonce) = how.nonce else {
            return self.unwrap_bytes(handle, wrapped);
        };
        let opened = self.with_key(ObjectClass::SECRET_KEY, handle, |raw, key| {
            let mut nonce = nonce;
            let gcm = GcmParams::new(&mut nonce, &how.aad, TAG_BITS.into()).map_err(fault)?;
            match raw.decrypt(&Mechanism::AesGcm(gcm), key, wrapped) {
                Ok(plaintext) => Ok(Some(SecretBytes::from_slice(&Zeroizing::new(plaintext)))),
                Err(error) if may_be_wrong_ciphertext(&error) => Ok(None),
                Err(error) => Err(fault(error)),
            }
        })?;
        self.opened(opened)
    }

    /// Some modules report a wrong ciphertext as a general error, which a failing device returns too. Only if the token still
    /// answers a probe is the ciphertext to blame.
    pub(super) fn opened(&mut self, secret: Option<SecretBytes>) -> Result<SecretBytes, Fault> {
        match secret {
            Some(secret) => Ok(secret),
            None => self.probe().and(Err(Fault::Mismatch)),
        }
    }
}
