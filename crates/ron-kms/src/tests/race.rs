//! Rotations against signatures: the version that an answer names made the signature, heads only
//! grow, and no version is missing. Once with every interleaving of a few threads (loom over the
//! real index and the real choice of version and key), once with many threads on a whole engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ron_custody::backend::{Attestation, Custody, SecretHalf};
use ron_custody::index::{Key, KeyIndex, Version};
use ron_custody::keys::{Input, SecretKey};
use ron_http::Principal;
use ron_kernel::SeededRandom;
use ron_proto::kms::{KeyBackend, KeyState, PayloadPolicy, RotateRequest, SignRequest};
use ron_proto::values::{Alg, Kid, Timestamp};

use super::{Rig, principal, signed};

fn kid() -> Kid {
    "ron/p/ed25519/0190f0a0-0000-7000-8000-000000000000"
        .parse()
        .expect("kid")
}

/// A key with this many versions.
fn key_of(secrets: &[Arc<SecretHalf>], versions: &[Arc<Version>]) -> Key {
    Key {
        kid: kid(),
        payload: PayloadPolicy::Any,
        created: Timestamp(1),
        state: KeyState::Active,
        destroy_at: None,
        access: Arc::default(),
        labels: Arc::default(),
        exportable: false,
        imported: false,
        derived: false,
        rotation: None,
        waiting: None,
        min_verify: 1,
        min_wrap: 0,
        min_available: 0,
        trim: None,
        deletion_allowed: false,
        head: versions.len() as u32,
        head_since: None,
        versions: versions.to_vec(),
        secret: secrets.get(versions.len() - 1).cloned(),
        backend: KeyBackend::Memory.into(),
        attestation: Attestation::None,
        secrets: BTreeMap::new(),
    }
}

/// One step of a signer: the real choice of version and private key, from the snapshot that it
/// loaded. The version it would name, and the private key it would use.
fn choose<'a>(
    index: &'a KeyIndex,
    caller: &Principal,
    kid: &Kid,
    pinned: Option<u32>,
) -> Option<(u32, &'a Custody)> {
    let (version, secret) = index.find(caller, kid).ok()?.signing(pinned).ok()?;
    Some((version.number, secret))
}

/// `torn` loads the snapshot twice, once for the version and once for the key: a mutant that the model must catch.
fn model(torn: bool) {
    let random = SeededRandom::new(1);
    let made: Vec<_> = (0..3)
        .map(|_| SecretKey::generate(Alg::Ed25519, &random).0)
        .collect();
    let version = |(number, secret): (u32, &SecretKey)| {
        let birth = u64::from(number);
        Arc::new(Version::new(number, Timestamp(1), secret.public(), birth))
    };
    let versions: Vec<Arc<Version>> = (1_u32..).zip(&made).map(version).collect();
    let opened = |secret| Arc::new(SecretHalf::opened(Custody::Local(secret)));
    let secrets: Vec<Arc<SecretHalf>> = made.into_iter().map(opened).collect();
    let caller = principal("ron", None);
    loom::model(move || {
        let first = KeyIndex::default().with(key_of(&secrets, &versions[..1]), 1);
        // What the kernel's snapshot guarantees; its own model is in ron-kernel.
        let shared = loom::sync::Arc::new(loom::sync::Mutex::new(Arc::new(first)));
        let load = |shared: &loom::sync::Mutex<Arc<KeyIndex>>| shared.lock().expect("lock").clone();
        let rotate = {
            let (shared, secrets, versions) = (shared.clone(), secrets.clone(), versions.clone());
            loom::thread::spawn(move || {
                for n in 2..=3 {
                    let next = load(&shared).with(key_of(&secrets, &versions[..n]), n as u64);
                    *shared.lock().expect("lock") = Arc::new(next);
                }
            })
        };
        let signer = {
            let (shared, secrets) = (shared.clone(), secrets.clone());
            let (caller, kid) = (caller.clone(), kid());
            loom::thread::spawn(move || {
                let is_of = |secret: &Custody, number: u32| {
                    std::ptr::eq(secret, secrets[number as usize - 1].open().expect("open"))
                };
                let mut last = 0;
                for _ in 0..2 {
                    let index = load(&shared);
                    let (mut number, secret) =
                        choose(&index, &caller, &kid, None).expect("the head signs");
                    if torn {
                        number = load(&shared).keys[&kid].head().number;
                    }
                    assert!(is_of(secret, number), "another version's key");
                    assert!(number >= last, "the head went back");
                    last = number;
                }
                let index = load(&shared);
                if let Some((number, secret)) = choose(&index, &caller, &kid, Some(2)) {
                    assert!(number == 2 && is_of(secret, 2), "pinned");
                }
            })
        };
        rotate.join().expect("rotates");
        signer.join().expect("signs");
        assert_eq!(load(&shared).keys[&kid()].head().number, 3);
    });
}

#[test]
fn every_interleaving_names_the_version_that_signed() {
    model(false);
}

#[test]
fn the_model_finds_a_torn_read() {
    let found = std::panic::catch_unwind(|| model(true));
    assert!(found.is_err(), "the model did not see it");
}

/// `RON_KMS_STRESS=1000000` is the long run.
#[test]
fn under_load_no_version_is_wrong_missing_or_lower() {
    const SIGNERS: usize = 4;
    let total: u64 = std::env::var("RON_KMS_STRESS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(3000);
    let rig = Rig::memory();
    let key = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let (signed_count, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let seen = ron_kernel::scoped(SIGNERS + 1, |n| {
        let mut seen: Vec<(u32, Vec<u8>)> = Vec::new();
        if n == SIGNERS {
            let mut head = 1;
            while !done.load(Ordering::Relaxed) {
                let ask = RotateRequest {
                    expected_head: Some(head),
                    op_id: None,
                    ..RotateRequest::default()
                };
                let got = rig.rotate(&key, ask);
                assert_eq!(got.status, 200, "{}", got.code());
                head += 1;
            }
            return seen;
        }
        let mut last = 0;
        while signed_count.fetch_add(1, Ordering::Relaxed) < total {
            let got = rig.sign(SignRequest::message(key.clone(), *b"m"));
            if got.status == 429 {
                continue;
            }
            let answer = signed(&got);
            assert!(answer.version >= last, "the head went back");
            if answer.version > last || seen.len() < 50 {
                let raw = answer.signatures[0].signature.0.clone();
                seen.push((answer.version, raw));
            }
            last = answer.version;
        }
        done.store(true, Ordering::Relaxed);
        seen
    });
    let doc = rig.doc(&key);
    let index = rig.engine.kms.index.load();
    let versions = &index.keys[&key].versions;
    for (n, version) in versions.iter().enumerate() {
        assert_eq!(version.number as usize, n + 1, "no gap");
    }
    assert_eq!(doc.head as usize, versions.len());
    let mut checked = 0;
    for (number, signature) in seen.into_iter().flatten() {
        let of = &versions[number as usize - 1];
        assert!(
            of.public.verify(Input::Message(b"m"), None, &signature),
            "version {number}"
        );
        checked += 1;
    }
    assert!(
        checked > 100 && doc.head > 2,
        "{checked} at head {}",
        doc.head
    );
    rig.stop();
}
