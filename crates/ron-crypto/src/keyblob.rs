//! A private key for transfer to a recipient: wrapped under a fresh AES key (AES-KWP), which is
//! encrypted to the recipient's public key (HPKE).
//!
//! ```text
//! format u8 = 1 | kem u8 (1 X25519, 2 X-Wing)
//! | encapsulated key 32 or 1120 | AES-256 key, encrypted 32 + tag 16      <- HPKE, AAD: the first two bytes
//! | the private key under AES-KWP                                         <- length + 8, padded to 8
//! ```
//! The HPKE `info` names the purpose of the blob, so that a blob made for another purpose does not
//! open.

use crate::aead::TAG_LEN;
use crate::hpke::{HpkeKey, Kem, seal};
use crate::secret::{Secret32, SecretBytes};
use crate::wrap::{unwrap_aes256_kwp, wrap_aes256_kwp};
use ron_kernel::Random;

const FORMAT: u8 = 1;
const KEK_LEN: usize = 32;

const fn code(kem: Kem) -> u8 {
    match kem {
        Kem::X25519 => 1,
        Kem::XWing => 2,
    }
}

/// Wraps `secret` for the holder of `public`. `None` when the public key is not valid, or the
/// secret is empty or too long.
#[must_use]
pub fn wrap_key(
    kem: Kem,
    public: &[u8],
    info: &[u8],
    secret: &[u8],
    random: &dyn Random,
) -> Option<Vec<u8>> {
    let kek = Secret32::generate(random);
    let head = [FORMAT, code(kem)];
    let sealed = seal(kem, public, info, &head, kek.expose(), random)?;
    let wrapped = wrap_aes256_kwp(&kek, secret)?;
    Some([&head[..], &sealed, &wrapped].concat())
}

/// Opens the output of [`wrap_key`] for `key` with the same `info`; `None` for anything else.
#[must_use]
pub fn unwrap_key(key: &HpkeKey, info: &[u8], blob: &[u8]) -> Option<SecretBytes> {
    let (head, rest) = blob.split_at_checked(2)?;
    if head != [FORMAT, code(key.kem())] {
        return None;
    }
    let (sealed, wrapped) =
        rest.split_at_checked(key.kem().encapsulated_len() + KEK_LEN + TAG_LEN)?;
    let kek = Secret32::try_from_bytes(&key.open(info, head, sealed)?)?;
    unwrap_aes256_kwp(&kek, wrapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::SeededRandom;

    #[test]
    fn only_the_recipient_opens_it_and_only_for_its_purpose() {
        let random = SeededRandom::new(1);
        for kem in [Kem::X25519, Kem::XWing] {
            let (mine, other) = (
                HpkeKey::generate(kem, &random),
                HpkeKey::generate(kem, &random),
            );
            for length in [1, 31, 32, 64, 138] {
                let secret = vec![7; length];
                let blob = wrap_key(kem, mine.public(), b"for", &secret, &random).expect("wraps");
                let fixed = 2 + kem.encapsulated_len() + 48;
                assert_eq!(blob.len(), fixed + length.next_multiple_of(8) + 8);
                let opened = unwrap_key(&mine, b"for", &blob).expect("opens");
                assert_eq!(opened.expose(), secret);
                assert!(unwrap_key(&mine, b"from", &blob).is_none());
                assert!(unwrap_key(&other, b"for", &blob).is_none());
                for at in 0..blob.len() {
                    let mut bad = blob.clone();
                    bad[at] ^= 1;
                    assert!(unwrap_key(&mine, b"for", &bad).is_none(), "byte {at}");
                }
                for end in 0..blob.len() {
                    assert!(unwrap_key(&mine, b"for", &blob[..end]).is_none());
                }
            }
            assert!(wrap_key(kem, mine.public(), b"", b"", &random).is_none());
            assert!(wrap_key(kem, &mine.public()[1..], b"", b"x", &random).is_none());
        }
    }
}
