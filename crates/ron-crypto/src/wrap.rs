//! AES-256 key wrap with padding (RFC 5649, NIST SP 800-38F KWP): encrypts a secret under another,
//! without a nonce.

use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrapPadded};

use crate::secret::{Secret32, SecretBytes};

/// Maximum length of a wrapped secret in bytes; keys are far shorter.
pub const WRAP_MAX: usize = 16 * 1024;

fn kek(key: &Secret32) -> AesKek {
    AesKek::new(&AES_256, key.expose()).expect("the key has 32 bytes")
}

/// Wraps 1 to [`WRAP_MAX`] bytes; the output is padded to a multiple of 8 and 8 bytes longer.
/// `None` for other lengths.
#[must_use]
pub fn wrap_aes256_kwp(key: &Secret32, secret: &[u8]) -> Option<Vec<u8>> {
    if secret.is_empty() || secret.len() > WRAP_MAX {
        return None;
    }
    let mut wrapped = vec![0; secret.len().next_multiple_of(8) + 8];
    let length = kek(key)
        .wrap_with_padding(secret, &mut wrapped)
        .expect("the length was checked above")
        .len();
    wrapped.truncate(length);
    Some(wrapped)
}

/// Unwraps the output of [`wrap_aes256_kwp`]; `None` when the key or any bit differs.
#[must_use]
pub fn unwrap_aes256_kwp(key: &Secret32, wrapped: &[u8]) -> Option<SecretBytes> {
    let fits =
        wrapped.len() >= 16 && wrapped.len() <= WRAP_MAX + 8 && wrapped.len().is_multiple_of(8);
    if !fits {
        return None;
    }
    let mut secret = SecretBytes::zeroed(wrapped.len());
    let length = kek(key)
        .unwrap_with_padding(wrapped, secret.expose_mut())
        .ok()?
        .len();
    secret.truncate(length);
    Some(secret)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_wrapped_secrets_are_unwrapped(
            key in any::<[u8; 32]>(),
            secret in proptest::collection::vec(any::<u8>(), 1..200),
            at in any::<prop::sample::Index>(),
        ) {
            let key = Secret32::from_slice(&key);
            let wrapped = wrap_aes256_kwp(&key, &secret).expect("1 byte or more");
            prop_assert_eq!(wrapped.len(), secret.len().next_multiple_of(8) + 8);
            let back = unwrap_aes256_kwp(&key, &wrapped).expect("ours");
            prop_assert_eq!(back.expose(), &secret[..]);
            let mut bad = wrapped.clone();
            bad[at.index(wrapped.len())] ^= 1;
            prop_assert!(unwrap_aes256_kwp(&key, &bad).is_none());
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let key = Secret32::from_slice(&[3; 32]);
        assert!(wrap_aes256_kwp(&key, b"").is_none());
        assert!(wrap_aes256_kwp(&key, &vec![0; WRAP_MAX + 1]).is_none());
        for length in [0, 8, 15, 17, WRAP_MAX + 16] {
            assert!(
                unwrap_aes256_kwp(&key, &vec![0; length]).is_none(),
                "{length}"
            );
        }
    }
}
