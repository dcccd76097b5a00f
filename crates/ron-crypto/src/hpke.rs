//! Encryption to a public key: HPKE (RFC 9180), base mode, single shot, with HKDF-SHA256 and
//! AES-256-GCM, over X25519 or over X-Wing (X25519 and ML-KEM-768 together).

use aws_lc_rs::digest;
use aws_lc_rs::kem::{Ciphertext, DecapsulationKey, EncapsulationKey, ML_KEM_768};

use crate::aead::{TAG_LEN, open_aes256_gcm, seal_aes256_gcm};
use crate::ecdh::{x25519, x25519_public};
use crate::hash::hmac_sha256;
use crate::secret::{Secret32, SecretBytes};
use crate::sign::KeyError;
use ron_kernel::Random;

const X25519_LEN: usize = 32;
const MLKEM_PUBLIC_LEN: usize = 1184;
const MLKEM_SECRET_LEN: usize = 2400;
const MLKEM_CIPHERTEXT_LEN: usize = 1088;

/// The key encapsulation mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kem {
    /// DHKEM(X25519, HKDF-SHA256), HPKE KEM 0x0020.
    X25519,
    /// X-Wing: X25519 and ML-KEM-768, HPKE KEM 0x647a. Secure while either of the two is.
    XWing,
}

impl Kem {
    const fn id(self) -> [u8; 2] {
        match self {
            Self::X25519 => [0x00, 0x20],
            Self::XWing => [0x64, 0x7a],
        }
    }

    /// Bytes of a public key.
    #[must_use]
    pub const fn public_len(self) -> usize {
        match self {
            Self::X25519 => X25519_LEN,
            Self::XWing => MLKEM_PUBLIC_LEN + X25519_LEN,
        }
    }

    /// Bytes of the encapsulated key before the ciphertext.
    #[must_use]
    pub const fn encapsulated_len(self) -> usize {
        match self {
            Self::X25519 => X25519_LEN,
            Self::XWing => MLKEM_CIPHERTEXT_LEN + X25519_LEN,
        }
    }
}

/// The private key of a recipient.
pub struct HpkeKey {
    kem: Kem,
    x25519: Secret32,
    /// Expanded ML-KEM key for X-Wing, otherwise empty.
    mlkem: SecretBytes,
    public: Vec<u8>,
}

impl HpkeKey {
    /// A new key. The ML-KEM part always comes from the operating system, not from `random`.
    pub fn generate(kem: Kem, random: &dyn Random) -> Self {
        let mut bytes = SecretBytes::zeroed(X25519_LEN);
        random.fill(bytes.expose_mut());
        if kem == Kem::XWing {
            let part = DecapsulationKey::generate(&ML_KEM_768)
                .and_then(|key| key.key_bytes())
                .expect("key generation fails only without system randomness");
            let mut whole = SecretBytes::zeroed(X25519_LEN + MLKEM_SECRET_LEN);
            whole.expose_mut()[..X25519_LEN].copy_from_slice(bytes.expose());
            whole.expose_mut()[X25519_LEN..].copy_from_slice(part.as_ref());
            bytes = whole;
        }
        Self::from_bytes(kem, &bytes).expect("what was just made is a key")
    }

    /// Reads the bytes of [`HpkeKey::to_bytes`].
    pub fn from_bytes(kem: Kem, bytes: &SecretBytes) -> Result<Self, KeyError> {
        let want = X25519_LEN
            + if kem == Kem::XWing {
                MLKEM_SECRET_LEN
            } else {
                0
            };
        if bytes.len() != want {
            return Err(KeyError);
        }
        let (x, m) = bytes.expose().split_at(X25519_LEN);
        let x25519 = Secret32::from_slice(x.try_into().map_err(|_| KeyError)?);
        let mlkem = SecretBytes::from_slice(m);
        let mut public = Vec::with_capacity(kem.public_len());
        if kem == Kem::XWing {
            let key = DecapsulationKey::new(&ML_KEM_768, m).map_err(|_| KeyError)?;
            // The expanded private key carries its public key (FIPS 203, 7.1).
            public.extend_from_slice(&m[1152..1152 + MLKEM_PUBLIC_LEN]);
            // Both halves are only checked here; `open` and `seal` parse them again.
            EncapsulationKey::new(&ML_KEM_768, &public).map_err(|_| KeyError)?;
            drop(key);
        }
        public.extend_from_slice(&x25519_public(&x25519)?);
        Ok(Self {
            kem,
            x25519,
            mlkem,
            public,
        })
    }

    /// The private bytes, for sealing the key into a store.
    pub fn to_bytes(&self) -> SecretBytes {
        let mut bytes = SecretBytes::zeroed(X25519_LEN + self.mlkem.len());
        bytes.expose_mut()[..X25519_LEN].copy_from_slice(self.x25519.expose());
        bytes.expose_mut()[X25519_LEN..].copy_from_slice(self.mlkem.expose());
        bytes
    }

    pub fn kem(&self) -> Kem {
        self.kem
    }

    /// The public key: X25519, or the ML-KEM-768 key followed by the X25519 key.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Opens the output of [`seal`] for this key; `None` when the key, `info`, `aad` or any bit
    /// differs.
    #[must_use]
    pub fn open(&self, info: &[u8], aad: &[u8], sealed: &[u8]) -> Option<SecretBytes> {
        let length = self.kem.encapsulated_len();
        if sealed.len() < length + TAG_LEN {
            return None;
        }
        let (enc, text) = sealed.split_at(length);
        let shared = match self.kem {
            Kem::X25519 => {
                let dh = x25519(&self.x25519, enc)?;
                dhkem_secret(&dh, enc, &self.public)
            }
            Kem::XWing => {
                let (ct_m, ct_x) = enc.split_at(MLKEM_CIPHERTEXT_LEN);
                let key = DecapsulationKey::new(&ML_KEM_768, self.mlkem.expose()).ok()?;
                let ss_m = key.decapsulate(Ciphertext::from(ct_m)).ok()?;
                let ss_x = x25519(&self.x25519, ct_x)?;
                combine(ss_m.as_ref(), &ss_x, ct_x, &self.public[MLKEM_PUBLIC_LEN..])
            }
        };
        let (key, nonce) = schedule(self.kem, &shared, info);
        open_aes256_gcm(&key, &nonce, aad, text)
    }
}

impl std::fmt::Debug for HpkeKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "HpkeKey({:?}, [secret])", self.kem)
    }
}

/// Encrypts to a public key: the encapsulated key, the ciphertext, its 16-byte tag. `None` when the
/// public key is not valid.
#[must_use]
pub fn seal(
    kem: Kem,
    public: &[u8],
    info: &[u8],
    aad: &[u8],
    plaintext: &[u8],
    random: &dyn Random,
) -> Option<Vec<u8>> {
    if public.len() != kem.public_len() {
        return None;
    }
    // A fresh key for every message: with it the nonce derived below is used only once.
    let ephemeral = Secret32::generate(random);
    let mine = x25519_public(&ephemeral).ok()?;
    let (enc, shared) = match kem {
        Kem::X25519 => {
            let dh = x25519(&ephemeral, public)?;
            (mine.to_vec(), dhkem_secret(&dh, &mine, public))
        }
        Kem::XWing => {
            let (pk_m, pk_x) = public.split_at(MLKEM_PUBLIC_LEN);
            let key = EncapsulationKey::new(&ML_KEM_768, pk_m).ok()?;
            let (ct_m, ss_m) = key.encapsulate().ok()?;
            let ss_x = x25519(&ephemeral, pk_x)?;
            let shared = combine(ss_m.as_ref(), &ss_x, &mine, pk_x);
            ([ct_m.as_ref(), &mine].concat(), shared)
        }
    };
    let (key, nonce) = schedule(kem, &shared, info);
    let text = seal_aes256_gcm(&key, &nonce, aad, plaintext);
    Some([enc, text].concat())
}

/// X-Wing's combiner: SHA3-256 over both secrets, the X25519 share and key, and a label. The ML-KEM
/// ciphertext is not hashed: ML-KEM binds it to its secret already.
fn combine(ss_m: &[u8], ss_x: &Secret32, ct_x: &[u8], pk_x: &[u8]) -> Secret32 {
    let mut hash = digest::Context::new(&digest::SHA3_256);
    for part in [ss_m, ss_x.expose(), ct_x, pk_x, br"\.//^\"] {
        hash.update(part);
    }
    let out = hash.finish();
    Secret32::from_slice(out.as_ref().try_into().expect("SHA3-256 has 32 bytes"))
}

fn extract(suite: &[u8], salt: &[u8], label: &str, ikm: &[u8]) -> Secret32 {
    let message = SecretBytes::new([b"HPKE-v1", suite, label.as_bytes(), ikm].concat());
    Secret32::from_slice(&hmac_sha256(salt, message.expose()))
}

/// HKDF-Expand for at most one block (32 bytes), which is enough here.
fn expand(suite: &[u8], prk: &Secret32, label: &str, info: &[u8], length: u16) -> Secret32 {
    debug_assert!(length <= 32);
    let parts = [
        &length.to_be_bytes(),
        &b"HPKE-v1"[..],
        suite,
        label.as_bytes(),
        info,
        &[1],
    ];
    Secret32::from_slice(&hmac_sha256(prk.expose(), &parts.concat()))
}

/// The shared secret of DHKEM(X25519, HKDF-SHA256).
fn dhkem_secret(dh: &Secret32, enc: &[u8], public: &[u8]) -> Secret32 {
    let suite = [b"KEM", &Kem::X25519.id()[..]].concat();
    let prk = extract(&suite, b"", "eae_prk", dh.expose());
    expand(&suite, &prk, "shared_secret", &[enc, public].concat(), 32)
}

/// Key and nonce of the single message, base mode.
fn schedule(kem: Kem, shared: &Secret32, info: &[u8]) -> (Secret32, [u8; 12]) {
    // KDF 0x0001 is HKDF-SHA256, AEAD 0x0002 is AES-256-GCM.
    let suite = [b"HPKE", &kem.id()[..], &[0, 1], &[0, 2]].concat();
    let psk_id_hash = extract(&suite, b"", "psk_id_hash", b"");
    let info_hash = extract(&suite, b"", "info_hash", info);
    let context = [&[0], &psk_id_hash.expose()[..], info_hash.expose()].concat();
    let secret = extract(&suite, shared.expose(), "secret", b"");
    let key = expand(&suite, &secret, "key", &context, 32);
    let block = expand(&suite, &secret, "base_nonce", &context, 12);
    let nonce = block.expose()[..12].try_into().expect("12 of 32 bytes");
    (key, nonce)
}

#[cfg(test)]
mod tests {
    use hpke::{Deserializable as _, Serializable as _};
    use proptest::prelude::*;

    use super::*;
    use ron_kernel::SeededRandom;

    type Aead = hpke::aead::AesGcm256;
    type Kdf = hpke::kdf::HkdfSha256;

    const INFO: &[u8] = b"info";
    const AAD: &[u8] = b"aad";
    const TEXT: &[u8] = b"a secret";

    /// An independent implementation opens our ciphertexts, and we open its ciphertexts.
    fn agrees<Theirs: hpke::Kem>(kem: Kem) {
        let random = SeededRandom::new(11);
        let (secret, public) = Theirs::gen_keypair();
        let sealed = seal(kem, &public.to_bytes(), INFO, AAD, TEXT, &random).unwrap();
        let (enc, text) = sealed.split_at(kem.encapsulated_len());
        let enc = Theirs::EncappedKey::from_bytes(enc).unwrap();
        let mode = hpke::OpModeR::Base;
        let mut context =
            hpke::setup_receiver::<Aead, Kdf, Theirs>(&mode, &secret, &enc, INFO).unwrap();
        assert_eq!(context.open(text, AAD).unwrap(), TEXT);

        let key = HpkeKey::generate(kem, &random);
        let public = Theirs::PublicKey::from_bytes(key.public()).unwrap();
        let mode = hpke::OpModeS::Base;
        let (enc, mut context) =
            hpke::setup_sender::<Aead, Kdf, Theirs>(&mode, &public, INFO).unwrap();
        let sealed = [&enc.to_bytes()[..], &context.seal(TEXT, AAD).unwrap()].concat();
        assert_eq!(key.open(INFO, AAD, &sealed).unwrap().expose(), TEXT);
    }

    #[test]
    fn another_implementation_agrees() {
        agrees::<hpke::kem::X25519HkdfSha256>(Kem::X25519);
        agrees::<hpke::kem::XWing>(Kem::XWing);
    }

    #[test]
    fn keys_round_trip_and_bad_ones_are_refused() {
        let random = SeededRandom::new(12);
        for kem in [Kem::X25519, Kem::XWing] {
            let key = HpkeKey::generate(kem, &random);
            assert_eq!(key.public().len(), kem.public_len());
            let again = HpkeKey::from_bytes(kem, &key.to_bytes()).unwrap();
            assert_eq!(again.public(), key.public());
            let sealed = seal(kem, key.public(), b"", b"", b"x", &random).unwrap();
            assert_eq!(sealed.len(), kem.encapsulated_len() + 1 + TAG_LEN);
            assert_eq!(again.open(b"", b"", &sealed).unwrap().expose(), b"x");
            assert!(HpkeKey::from_bytes(kem, &SecretBytes::zeroed(7)).is_err());
            assert!(seal(kem, &key.public()[1..], b"", b"", b"x", &random).is_none());
            assert!(!format!("{key:?}").contains("32"));
        }
        let zero = [0; 32];
        assert!(seal(Kem::X25519, &zero, b"", b"", b"x", &random).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn only_the_untouched_text_opens(
            seed in any::<u64>(),
            wing in any::<bool>(),
            text in proptest::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
        ) {
            let kem = if wing { Kem::XWing } else { Kem::X25519 };
            let random = SeededRandom::new(seed);
            let key = HpkeKey::generate(kem, &random);
            let sealed = seal(kem, key.public(), b"i", b"a", &text, &random).expect("a key");
            let opened = key.open(b"i", b"a", &sealed).expect("ours");
            prop_assert_eq!(opened.expose(), &text[..]);
            prop_assert!(key.open(b"j", b"a", &sealed).is_none());
            prop_assert!(key.open(b"i", b"b", &sealed).is_none());
            let mut bad = sealed.clone();
            bad[at.index(sealed.len())] ^= 1;
            prop_assert!(key.open(b"i", b"a", &bad).is_none());
        }
    }
}
