//! The last accepted policy of a service, in its data directory: after a restart no older one comes
//! into force, and the service starts on it when the policy that it finds is refused.

use std::io;
use std::marker::PhantomData;

use ron_files::Dir;
use ron_proto::passport::IssuerPolicy;
use ron_proto::wallet::WalletPolicy;
use serde::de::DeserializeOwned;

use crate::kept_sum::{with_sum, without_sum};
use crate::pinned::KeyRing;
use crate::signed_policy::{
    POLICY_BYTES_MAX, PolicyError, SignedPolicy, check, parse_signature, signature_bytes,
};

/// First word of the file. The version of the policy, a line with its signature, its bytes, and a
/// line with the sum of all that follow.
const FORMAT: &str = "ron-kept-policy/v2";

/// A policy with a version that only grows.
pub trait Versioned: DeserializeOwned {
    /// The kind under which it is signed; also the name of its file.
    const KIND: &'static str;

    fn version(&self) -> u64;
}

impl Versioned for WalletPolicy {
    const KIND: &'static str = "wallet";

    fn version(&self) -> u64 {
        self.version
    }
}

impl Versioned for IssuerPolicy {
    const KIND: &'static str = "issuer";

    fn version(&self) -> u64 {
        self.version
    }
}

/// The file with the last accepted policy; none in amnesia mode.
#[derive(Clone, Debug)]
pub struct KeptPolicy<T> {
    place: Option<(Dir, String)>,
    of: PhantomData<fn() -> T>,
}

/// What was accepted before.
#[derive(Debug)]
pub struct Known<T> {
    /// Its version; 0 before the first one.
    pub version: u64,
    /// The policy, unless its signature does not verify any more under the pinned keys.
    pub policy: Option<SignedPolicy<T>>,
}

/// The policy that a service starts on.
#[derive(Debug)]
pub struct Started<T> {
    pub policy: SignedPolicy<T>,
    /// Why it is the last accepted one and not the one that was found.
    pub refused: Option<PolicyError>,
}

impl<T: Versioned> KeptPolicy<T> {
    pub fn new(data_dir: Option<Dir>) -> Self {
        let name = format!("{}.accepted", T::KIND);
        Self {
            place: data_dir.map(|dir| (dir, name)),
            of: PhantomData,
        }
    }

    fn refuse(&self, why: impl Into<String>) -> PolicyError {
        let path = self.place.as_ref().map(|(dir, name)| dir.file(name));
        PolicyError {
            file: path.unwrap_or_default().display().to_string(),
            why: why.into(),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read or parsed. A service must not start then: it would not know which versions
    /// are too old.
    pub fn read(&self, pinned: &KeyRing) -> Result<Known<T>, PolicyError> {
        let none = Known {
            version: 0,
            policy: None,
        };
        let Some((dir, name)) = &self.place else {
            return Ok(none);
        };
        let bytes = dir
            .read_small(name, 2 * POLICY_BYTES_MAX)
            .map_err(|e| self.refuse(format!("cannot be read: {e}")))?;
        let Some(bytes) = bytes else { return Ok(none) };
        let damaged = || {
            let why = "is damaged, or of a newer version; it holds the last accepted policy: restore it, or remove it and \
                       the present policy file is accepted whatever its version";
            self.refuse(why)
        };
        let bytes = without_sum(&bytes).ok_or_else(damaged)?;
        let (head, rest) = split_line(bytes).ok_or_else(damaged)?;
        let (sig, policy) = split_line(rest).ok_or_else(damaged)?;
        let head = std::str::from_utf8(head).map_err(|_| damaged())?;
        let version = head
            .strip_prefix(FORMAT)
            .and_then(|rest| rest.strip_prefix(' ')?.parse().ok())
            .ok_or_else(damaged)?;
        let sig = parse_signature(&[sig, b"\n"].concat()).map_err(|_| damaged())?;
        let policy = check::<T>(T::KIND, policy, &sig, pinned).ok();
        Ok(Known { version, policy })
    }

    /// Makes a policy the last accepted one; durable on return.
    pub fn write(&self, policy: &SignedPolicy<T>) -> Result<(), PolicyError> {
        let Some((dir, name)) = &self.place else {
            return Ok(());
        };
        let sig = signature_bytes(&policy.sig).map_err(|e| self.refuse(e))?;
        let head = format!("{FORMAT} {}\n", policy.policy.version());
        let bytes = with_sum(&[head.as_bytes(), &sig, &policy.bytes].concat());
        dir.write(name, &bytes)
            .map_err(|e: io::Error| self.refuse(format!("cannot be written: {e}")))
    }

    /// Chooses the policy to start on: the one that was found, if it is acceptable, or else the last
    /// accepted one. The one that was found is kept before it is returned.
    pub fn start(
        &self,
        found: Result<SignedPolicy<T>, PolicyError>,
        pinned: &KeyRing,
    ) -> Result<Started<T>, PolicyError> {
        let known = self.read(pinned)?;
        let old = known.policy.as_ref();
        let taken = found.and_then(|new| {
            if replaces(&new, old, known.version)? {
                self.write(&new)?;
            }
            Ok(new)
        });
        match (taken, known.policy) {
            (Ok(policy), _) => Ok(Started {
                policy,
                refused: None,
            }),
            (Err(why), Some(policy)) => Ok(Started {
                policy,
                refused: Some(why),
            }),
            (Err(why), None) => Err(why),
        }
    }
}

/// Whether `new` must replace the policy in force, `old`; an error when it is older than `version`,
/// or another policy of the same version.
pub fn replaces<T: Versioned>(
    new: &SignedPolicy<T>,
    old: Option<&SignedPolicy<T>>,
    version: u64,
) -> Result<bool, PolicyError> {
    let (kind, is) = (T::KIND, new.policy.version());
    let refuse = |why: String| PolicyError {
        file: format!("{kind}.json"),
        why,
    };
    let was = old.map_or(version, |old| old.policy.version().max(version));
    #[cfg(mutant = "replaced")] // whatever is found is newer
    let was = if ron_kernel::mutant("replaced") {
        0
    } else {
        was
    };
    if is < was {
        return Err(refuse(format!(
            "has version {is}, older than {was} which was in force"
        )));
    }
    match old.filter(|old| old.policy.version() == is) {
        Some(old) if old.hash != new.hash => Err(refuse(format!(
            "differs from the one in force but has the same version {is}: raise it"
        ))),
        same => Ok(same.is_none()),
    }
}

/// The bytes before the first line feed, and those after it.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

#[cfg(test)]
pub(crate) mod tests {
    use ron_crypto::sign::Ed25519Key;
    use ron_proto::b64;
    use ron_proto::policy::{PolicySig, policy_message};

    use super::*;
    use crate::pinned::PinnedKey;

    fn signed(key: &Ed25519Key, version: u64, principal: &str) -> SignedPolicy<WalletPolicy> {
        let rule = format!(
            r#"{{"accounts":["a"],"actions":["read"],"assets":["*"],"principal":"{principal}"}}"#
        );
        let bytes = format!(r#"{{"rules":[{rule}],"version":{version}}}"#);
        let sig = PolicySig {
            alg: "ed25519".to_owned(),
            key: "test".to_owned(),
            value: b64::url(&key.sign(&policy_message("wallet", bytes.as_bytes()))),
        };
        check("wallet", bytes.as_bytes(), &sig, &ring(key)).unwrap()
    }

    /// A signed policy of this version.
    pub(crate) fn wallet_policy(version: u64) -> SignedPolicy<WalletPolicy> {
        signed(&Ed25519Key::from_seed(&[7; 32]), version, "a")
    }

    fn ring(key: &Ed25519Key) -> KeyRing {
        KeyRing::new(vec![PinnedKey::new(Some("test".into()), key.public())])
    }

    #[test]
    fn a_service_starts_on_the_newest_policy_that_it_ever_accepted() {
        let key = Ed25519Key::from_seed(&[7; 32]);
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptPolicy::<WalletPolicy>::new(Some(Dir::os(dir.path())));
        let start = |found: Result<_, PolicyError>| {
            kept.start(found, &ring(&key))
                .map(|got| (got.policy.policy.version, got.refused.map(|e| e.why)))
        };
        let unreadable = || {
            Err(PolicyError {
                file: "wallet.json".into(),
                why: "cannot be read".into(),
            })
        };
        assert!(start(unreadable()).is_err(), "a first start needs one");
        assert_eq!(start(Ok(signed(&key, 3, "a"))), Ok((3, None)));
        assert_eq!(start(Ok(signed(&key, 3, "a"))), Ok((3, None)));
        let (version, why) = start(unreadable()).unwrap();
        assert_eq!((version, why.as_deref()), (3, Some("cannot be read")));
        let (version, why) = start(Ok(signed(&key, 2, "a"))).unwrap();
        assert!(version == 3 && why.unwrap().contains("older than 3"));
        let (version, why) = start(Ok(signed(&key, 3, "b"))).unwrap();
        assert!(version == 3 && why.unwrap().contains("raise it"));
        assert_eq!(start(Ok(signed(&key, 4, "b"))), Ok((4, None)));
        assert!(start(Ok(signed(&key, 3, "a"))).unwrap().1.is_some());
        // With another key pinned the old policy is no longer in force, but its version still counts.
        let other = Ed25519Key::from_seed(&[8; 32]);
        let next = |version| kept.start(Ok(signed(&other, version, "c")), &ring(&other));
        assert!(next(3).unwrap_err().why.contains("older than 4"));
        assert_eq!(next(4).unwrap().policy.policy.version, 4);
    }

    #[test]
    fn a_damaged_file_is_refused_by_name() {
        let key = Ed25519Key::from_seed(&[7; 32]);
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptPolicy::<WalletPolicy>::new(Some(Dir::os(dir.path())));
        kept.write(&signed(&key, 3, "a")).unwrap();
        let path = dir.path().join("wallet.accepted");
        let good = std::fs::read(&path).unwrap();
        // The digits of the version are not under the policy's signature.
        let flipped = (0..good.len()).map(|at| {
            let mut flipped = good.clone();
            flipped[at] ^= 1;
            flipped
        });
        let cut = (0..good.len()).map(|len| good[..len].to_vec());
        let newer = String::from_utf8(without_sum(&good).unwrap().to_vec()).unwrap();
        let newer = with_sum(newer.replace("/v2 ", "/v3 ").as_bytes());
        for bad in flipped.chain(cut).chain([newer]) {
            std::fs::write(&path, bad).unwrap();
            let why = kept.read(&ring(&key)).unwrap_err();
            assert!(why.file.ends_with("wallet.accepted"), "{why}");
        }
        let none = KeptPolicy::<WalletPolicy>::new(None);
        none.write(&signed(&key, 3, "a")).unwrap();
        assert_eq!(none.read(&ring(&key)).unwrap().version, 0);
    }
}
