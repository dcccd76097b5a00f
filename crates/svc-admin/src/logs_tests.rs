//! Checks of log heads.

use super::*;
use ron_crypto::sign::Ed25519Key;
use ron_tlog::note::Ed25519NoteSigner;
use ron_tlog::tree::{Frontier as Tree, leaf_hash};

fn signer(name: &str, seed: u8) -> Ed25519NoteSigner {
    Ed25519NoteSigner::new(name, Ed25519Key::from_seed(&[seed; 32])).expect("a valid name")
}

fn unpublished() -> Result<KeyChain, String> {
    Err("answered 404".into())
}

/// A log whose key was rotated: the pinned key leads to the key that signs, and no other key does.
#[test]
fn a_pinned_key_leads_to_the_key_that_signs_now() {
    use ron_tlog::rotation::Rotation;
    let by = |seed| signer("log.example/a", seed);
    let rotation = Rotation {
        number: 2,
        size: 1,
        time_ms: 1,
        old: by(1).verifier().clone(),
        new: by(2).verifier().clone(),
        second: None,
    };
    let mut chain = KeyChain::new(rotation.old.clone());
    let statement = rotation.sign(&by(1), &by(2)).expect("signs");
    chain.push(&statement).expect("follows");
    let note = |seed| note(seed, 3, 0, false).expect("signs");
    let check = |pin: u8, seed: u8, published: Result<KeyChain, String>| {
        let vkey = by(pin).verifier().to_string();
        check_signature(&note(seed), Some(&vkey), &|| published.clone()).map(|c| c.1)
    };
    let verified = Ok(LogVerdict::Verified);
    assert_eq!(check(1, 1, unpublished()), verified);
    assert_eq!(check(1, 2, Ok(chain.clone())), verified);
    assert!(check(1, 2, unpublished()).is_err_and(|why| why.contains("404")));
    assert!(
        check(1, 3, Ok(chain.clone())).is_err(),
        "signed by somebody else"
    );
    assert!(
        check(3, 2, Ok(chain.clone())).is_err(),
        "pinned to somebody else"
    );
    assert!(check(2, 1, Ok(chain)).is_err(), "back to the old key");
}

/// The log's head at `size`; `fork` changes its first entry.
fn note(seed: u8, size: u64, fork: u8, witness: bool) -> Result<String, String> {
    let checkpoint = Checkpoint {
        origin: "log.example/a".into(),
        size,
        root: tree(size, fork).root(),
    };
    let (log, eye) = (signer("log.example/a", seed), signer("eye.example", 9));
    let note = if witness {
        checkpoint.sign(&[&log, &eye])
    } else {
        checkpoint.sign(&[&log])
    };
    Ok(note.expect("signs"))
}

fn leaves(size: u64, fork: u8) -> Vec<Hash> {
    let entry = |n| if n == 0 { vec![fork] } else { vec![n as u8, 1] };
    (0..size).map(|n| leaf_hash(&entry(n))).collect()
}

fn tree(size: u64, fork: u8) -> Tree {
    let mut tree = Tree::new();
    leaves(size, fork)
        .into_iter()
        .for_each(|leaf| tree.push(leaf));
    tree
}

struct Leaves(Vec<Hash>);

impl HashReader for Leaves {
    type Error = String;
    fn node(&self, level: u32, index: u64) -> Result<Hash, String> {
        if level == 0 {
            return self.0.get(index as usize).copied().ok_or_else(String::new);
        }
        let (l, r) = (
            self.node(level - 1, index * 2)?,
            self.node(level - 1, index * 2 + 1)?,
        );
        Ok(node_hash(&l, &r))
    }
}

fn log(pinned: bool, witness: bool) -> LogSpec {
    let vkey = signer("log.example/a", 1).verifier().to_string();
    let eye = signer("eye.example", 9).verifier().to_string();
    LogSpec {
        base_url: String::new(),
        vkey: pinned.then_some(vkey),
        witnesses: if witness { vec![eye] } else { Vec::new() },
    }
}

#[test]
fn heads_are_judged() {
    let prove = |old, new| consistency_proof(&Leaves(leaves(new, 0)), old, new);
    let judge = |log: &LogSpec, last: Option<&LogHead>, base: Option<&SeenHead>, ms, read| {
        let inputs = HeadInputs {
            id: "k",
            log,
            keys: &unpublished,
            last,
            base,
            now: Timestamp(ms),
        };
        judge_head(&inputs, read, &prove)
    };
    let pinned = log(true, false);
    let (first, base) = judge(&pinned, None, None, 1, note(1, 5, 0, false));
    assert_eq!((first.verdict, first.size), (LogVerdict::Verified, Some(5)));
    assert_eq!(first.consistency, LogConsistency::First);
    let base = base.expect("believed");
    let (same, _) = judge(&pinned, Some(&first), Some(&base), 2, note(1, 5, 0, false));
    assert_eq!(same.consistency, LogConsistency::Unchanged);
    assert_eq!(
        (same.read_at, same.unchanged_since),
        (Some(Timestamp(2)), Some(Timestamp(1)))
    );
    let (grown, next) = judge(&pinned, Some(&first), Some(&base), 3, note(1, 9, 0, false));
    assert_eq!(
        grown.consistency,
        LogConsistency::Proven,
        "{}",
        grown.reason
    );
    assert_eq!(grown.compared_with, Some(5));
    assert_eq!(next.map(|base| base.size), Some(9));

    let check = |log: &LogSpec, read, verdict, words: &str| {
        let (got, believed) = judge(log, Some(&first), Some(&base), 3, read);
        assert_eq!(got.verdict, verdict, "{got:?}");
        assert!(got.reason.contains(words), "{words:?} in {got:?}");
        let good = matches!(verdict, LogVerdict::Verified | LogVerdict::Unverified);
        assert_eq!(
            believed.is_some(),
            good,
            "only good heads are compared with"
        );
    };
    check(&pinned, note(2, 9, 0, false), LogVerdict::Failed, "");
    check(
        &log(false, false),
        note(1, 9, 0, false),
        LogVerdict::Unverified,
        "no log_vkey",
    );
    check(
        &pinned,
        note(1, 4, 0, false),
        LogVerdict::Failed,
        "shrank from 5 to 4",
    );
    check(&pinned, note(1, 5, 1, false), LogVerdict::Failed, "forked");
    check(
        &pinned,
        note(1, 9, 1, false),
        LogVerdict::Failed,
        "does not continue",
    );
    check(
        &pinned,
        Err("answered 404".into()),
        LogVerdict::Unreachable,
        "404",
    );
    check(&pinned, Ok("hello".into()), LogVerdict::Failed, "");
    let (lost, _) = judge(&pinned, Some(&first), Some(&base), 3, Err("x".into()));
    assert_eq!(lost.size, Some(5), "the last good head stays");
}

#[test]
fn growth_without_tiles_is_not_called_proven() {
    let base = SeenHead {
        id: "k".into(),
        size: 5,
        root: b64::std(&tree(5, 0).root()),
    };
    let spec = log(true, false);
    let inputs = HeadInputs {
        id: "k",
        log: &spec,
        keys: &unpublished,
        last: None,
        base: Some(&base),
        now: Timestamp(1),
    };
    let (head, believed) = judge_head(&inputs, note(1, 9, 0, false), &|_, _| Err("404".into()));
    assert_eq!(head.consistency, LogConsistency::NotProven);
    assert_eq!(believed, None, "the old head stays the measure");
}

#[test]
fn witnesses_are_named_with_what_they_signed() {
    let spec = log(true, true);
    let inputs = HeadInputs {
        id: "k",
        log: &spec,
        keys: &unpublished,
        last: None,
        base: None,
        now: Timestamp(1),
    };
    let signed = |read| {
        judge_head(&inputs, read, &|_, _| Ok(Vec::new()))
            .0
            .witnesses
    };
    let want = |signed| {
        vec![LogWitness {
            name: "eye.example".into(),
            signed,
        }]
    };
    assert_eq!(signed(note(1, 5, 0, true)), want(true));
    assert_eq!(signed(note(1, 5, 0, false)), want(false));
}
