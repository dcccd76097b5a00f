//! The rules of C2SP tlog-witness `add-checkpoint`: the request as text, the keys that must have
//! signed it, and whether a checkpoint follows the last one cosigned. Pure; atomicity and
//! durability are in `append::WitnessStore`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{Checkpoint, CheckpointFault, decimal, hash_base64};
use crate::note::{Note, NoteError, VerifierKey};
use crate::tree::{Hash, empty_root, verify_consistency};

/// Maximum number of hashes in a consistency proof.
pub const PROOF_LINES_MAX: usize = 63;
/// Longest request that is read, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// Content type of a 409, whose body is the size of the last cosigned checkpoint.
pub const SIZE_TYPE: &str = "text/x.tlog.size";

/// The body of an `add-checkpoint` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddCheckpoint {
    /// Size of the last checkpoint that the witness cosigned, as the client knows it.
    pub old: u64,
    /// Consistency proof from that size to the checkpoint's.
    pub proof: Vec<Hash>,
    pub checkpoint: String,
}

/// Why a request is refused; each reason has its HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 400.
    #[error("not an add-checkpoint request: {0}")]
    Malformed(String),
    /// 404.
    #[error("the log `{0}` is not known here")]
    UnknownLog(String),
    /// 403.
    #[error("no known key of the log has signed the checkpoint: {0}")]
    Forbidden(String),
    /// 400.
    #[error("the old size {old} is larger than the checkpoint's {new}")]
    Backwards {
        /// Old size of the request.
        old: u64,
        /// Size of its checkpoint.
        new: u64,
    },
    /// 409 with the size.
    #[error("the last cosigned checkpoint has size {0}")]
    OldSize(u64),
    /// 409 with the size: the log has signed two trees of one size.
    #[error("another root was cosigned for size {0}")]
    OtherRoot(u64),
    /// 422.
    #[error("the consistency proof does not hold: {0}")]
    Inconsistent(String),
    /// 409 without a size: the log's key was rotated to another key before.
    #[error("other keys of the log `{0}` are known here than those of this chain")]
    OtherKeys(String),
}

impl Refusal {
    /// The HTTP status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Malformed(_) | Self::Backwards { .. } => 400,
            Self::Forbidden(_) => 403,
            Self::UnknownLog(_) => 404,
            Self::OldSize(_) | Self::OtherRoot(_) | Self::OtherKeys(_) => 409,
            Self::Inconsistent(_) => 422,
        }
    }

    /// The size in the body of the answer (409).
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::OldSize(size) | Self::OtherRoot(size) => Some(*size),
            _ => None,
        }
    }
}

impl AddCheckpoint {
    /// Parses a request body; the checkpoint stays text.
    pub fn parse(body: &str) -> Result<Self, Refusal> {
        let malformed = |why: &str| Refusal::Malformed(why.to_owned());
        if body.len() > REQUEST_BYTES_MAX {
            return Err(malformed("it is too long"));
        }
        let (head, checkpoint) = body
            .split_once("\n\n")
            .ok_or_else(|| malformed("no empty line before the checkpoint"))?;
        let mut lines = head.split('\n');
        let old = lines
            .next()
            .and_then(|l| l.strip_prefix("old "))
            .and_then(decimal)
            .ok_or_else(|| malformed("the first line is not `old <size>`"))?;
        let mut proof = Vec::new();
        for line in lines {
            if proof.len() == PROOF_LINES_MAX {
                return Err(malformed("more than 63 proof lines"));
            }
            proof.push(
                hash_base64(line)
                    .ok_or_else(|| malformed("a proof line is not 32 bytes of base64"))?,
            );
        }
        Ok(Self {
            old,
            proof,
            checkpoint: checkpoint.to_owned(),
        })
    }
}

impl fmt::Display for AddCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "old {}", self.old)?;
        for hash in &self.proof {
            writeln!(f, "{}", STANDARD.encode(hash))?;
        }
        write!(f, "\n{}", self.checkpoint)
    }
}

/// Parses the body of a 409: the size of the checkpoint that the witness cosigned last.
pub fn parse_size(body: &str) -> Option<u64> {
    decimal(body.strip_suffix('\n')?)
}

/// Checks everything that needs no state: form, a known log, its signature, sizes in order. Returns
/// the checkpoint and its note with the lines of known keys only. `keys` are those of all known
/// logs; a key's name is its log's origin.
pub fn admit(request: &AddCheckpoint, keys: &[VerifierKey]) -> Result<(Checkpoint, Note), Refusal> {
    let malformed = |e: &dyn fmt::Display| Refusal::Malformed(e.to_string());
    let mut note = Note::parse(&request.checkpoint).map_err(|e| malformed(&e))?;
    let checkpoint = Checkpoint::parse_text(&note.text).map_err(|e| malformed(&e))?;
    let known: Vec<VerifierKey> = keys
        .iter()
        .filter(|k| k.name() == checkpoint.origin)
        .cloned()
        .collect();
    if known.is_empty() {
        return Err(Refusal::UnknownLog(checkpoint.origin));
    }
    match note.verify(&known) {
        Ok(_) => {}
        Err(fault @ (NoteError::Unverified | NoteError::BadSignature(_))) => {
            return Err(Refusal::Forbidden(fault.to_string()));
        }
        Err(fault) => return Err(malformed(&CheckpointFault::from(fault))),
    }
    // The witness stores and cosigns only lines that it has verified.
    note.signatures.retain(|line| {
        known
            .iter()
            .any(|k| k.name() == line.name && k.key_id() == line.key_id)
    });
    if request.old > checkpoint.size {
        return Err(Refusal::Backwards {
            old: request.old,
            new: checkpoint.size,
        });
    }
    Ok((checkpoint, note))
}

/// Whether an admitted checkpoint follows `last`, the one cosigned last for its origin. The caller
/// must decide and store without another request for that origin in between.
pub fn follows(
    request: &AddCheckpoint,
    checkpoint: &Checkpoint,
    last: Option<&Checkpoint>,
) -> Result<(), Refusal> {
    let last_size = last.map_or(0, |c| c.size);
    // The client learns the size from the 409 and repeats its request from there.
    if request.old != last_size {
        return Err(Refusal::OldSize(last_size));
    }
    if checkpoint.size == 0 && checkpoint.root != empty_root() {
        return Err(Refusal::Inconsistent(
            "the empty tree has another root".into(),
        ));
    }
    if request.old == 0 {
        return match request.proof.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::Inconsistent("from size 0 it is empty".into())),
        };
    }
    let last_root = last.map_or_else(empty_root, |c| c.root);
    if request.old == checkpoint.size && checkpoint.root != last_root {
        return Err(Refusal::OtherRoot(last_size));
    }
    verify_consistency(
        request.old,
        checkpoint.size,
        &request.proof,
        &last_root,
        &checkpoint.root,
    )
    .map_err(|fault| Refusal::Inconsistent(fault.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ron_crypto::sign::Ed25519Key;

    use super::*;
    use crate::note::Ed25519NoteSigner;
    use crate::tree::{HashReader, consistency_proof, leaf_hash, root_at};

    fn signer(name: &str, seed: u8) -> Ed25519NoteSigner {
        Ed25519NoteSigner::new(name, Ed25519Key::from_seed(&[seed; 32])).expect("name")
    }

    /// The tree whose leaf `i` is `i`; `fork` changes leaf 2.
    struct Tree(bool);
    impl HashReader for Tree {
        type Error = std::convert::Infallible;
        fn node(&self, level: u32, index: u64) -> Result<Hash, Self::Error> {
            if level == 0 {
                let text = if self.0 && index == 2 {
                    "fork".into()
                } else {
                    index.to_string()
                };
                return Ok(leaf_hash(text.as_bytes()));
            }
            let (l, r) = (
                self.node(level - 1, 2 * index)?,
                self.node(level - 1, 2 * index + 1)?,
            );
            Ok(crate::tree::node_hash(&l, &r))
        }
    }

    fn at(size: u64, fork: bool) -> Checkpoint {
        Checkpoint {
            origin: "log.example".into(),
            size,
            root: if size == 0 {
                empty_root()
            } else {
                root_at(&Tree(fork), size).expect("never fails")
            },
        }
    }

    fn request(old: u64, new: u64, fork: bool) -> AddCheckpoint {
        let proof = if old == 0 || old > new {
            Vec::new()
        } else {
            consistency_proof(&Tree(fork), old, new).expect("never fails")
        };
        AddCheckpoint {
            old,
            proof,
            checkpoint: at(new, fork)
                .sign(&[&signer("log.example", 1)])
                .expect("signs"),
        }
    }

    fn status_of(request: &AddCheckpoint, last: Option<&Checkpoint>) -> u16 {
        let keys = [
            signer("log.example", 1).verifier().clone(),
            signer("b.example", 2).verifier().clone(),
        ];
        let result = admit(request, &keys).and_then(|(c, _)| follows(request, &c, last));
        result.map_or_else(|r| r.status(), |()| 200)
    }

    #[test]
    fn each_rule_has_its_status() {
        let check = |what: &str, request: &AddCheckpoint, last: Option<u64>, status: u16| {
            let last = last.map(|size| at(size, false));
            assert_eq!(status_of(request, last.as_ref()), status, "{what}");
        };
        check("first", &request(0, 5, false), None, 200);
        check("the same again", &request(5, 5, false), Some(5), 200);
        check("larger", &request(5, 9, false), Some(5), 200);
        check("empty log", &request(0, 0, false), None, 200);
        check("stale", &request(3, 9, false), Some(5), 409);
        check("asks for the size", &request(0, 9, false), Some(5), 409);
        check("ahead", &request(7, 9, false), Some(5), 409);
        check("backwards", &request(9, 5, false), Some(9), 400);
        check("forked, larger", &request(5, 9, true), Some(5), 422);
        check("forked, same size", &request(5, 5, true), Some(5), 409);
        let mut odd = request(0, 5, false);
        odd.proof.push([0; 32]);
        check("a proof from 0", &odd, None, 422);
        let mut odd = request(5, 5, false);
        odd.proof.push([0; 32]);
        check("a proof between equals", &odd, Some(5), 422);
        let mut odd = request(5, 9, false);
        odd.proof.pop();
        check("a short proof", &odd, Some(5), 422);
        let forged = |name, seed| AddCheckpoint {
            checkpoint: at(5, false).sign(&[&signer(name, seed)]).expect("signs"),
            ..request(0, 5, false)
        };
        check("an unknown key", &forged("log.example", 3), None, 403);
        check("the key of another log", &forged("b.example", 2), None, 403);
        let mut foreign = at(5, false);
        foreign.origin = "c.example".into();
        let foreign = AddCheckpoint {
            checkpoint: foreign.sign(&[&signer("log.example", 1)]).expect("signs"),
            ..request(0, 5, false)
        };
        check("an unknown log", &foreign, None, 404);
        let mut broken = request(0, 5, false);
        broken.checkpoint = broken.checkpoint.replacen("\n5\n", "\n6\n", 1);
        check("a changed text", &broken, None, 403);
        let empty = Checkpoint {
            root: [1; 32],
            ..at(0, false)
        };
        let empty = AddCheckpoint {
            checkpoint: empty.sign(&[&signer("log.example", 1)]).expect("signs"),
            ..request(0, 0, false)
        };
        check("an empty tree with a root", &empty, None, 422);
    }

    #[test]
    fn bodies_round_trip_and_odd_ones_are_refused() {
        let good = request(5, 9, false);
        assert_eq!(AddCheckpoint::parse(&good.to_string()), Ok(good.clone()));
        let text = good.to_string();
        for wrong in [
            text.replacen("old 5", "old 05", 1),
            text.replacen("old 5", "old +5", 1),
            text.replacen("old 5", "old  5", 1),
            text.replacen("old 5\n", "", 1),
            text.replacen("old 5\n", "old 5\n!\n", 1),
            text.replacen("old 5\n", &format!("old 5\n{}", "AAAA\n".repeat(64)), 1),
            text.replacen("\n\n", "\n", 1),
            String::new(),
        ] {
            let status = AddCheckpoint::parse(&wrong).map(|r| status_of(&r, Some(&at(5, false))));
            assert!(
                matches!(status, Err(Refusal::Malformed(_)) | Ok(400)),
                "{wrong} {status:?}"
            );
        }
        assert_eq!(parse_size("50\n"), Some(50));
        for wrong in ["50", "050\n", "", "\n", "5 0\n", "-1\n"] {
            assert_eq!(parse_size(wrong), None);
        }
    }

    proptest! {
        /// For every sequence of requests, the cosigned checkpoints are successive states of one
        /// tree.
        #[test]
        fn cosigned_checkpoints_never_contradict(steps in proptest::collection::vec((0_u64..12, 0_u64..12, any::<bool>()), 1..40)) {
            let mut last: Option<Checkpoint> = None;
            for (old, new, fork) in steps {
                let r = request(old, new, fork);
                if status_of(&r, last.as_ref()) == 200 {
                    let next = at(new, fork);
                    if let Some(last) = &last {
                        prop_assert!(next.size >= last.size);
                        // Both checkpoints belong to the same tree.
                        let same = [false, true].into_iter().any(|f| at(last.size, f) == *last && at(next.size, f) == next);
                        prop_assert!(same || last.size == 0);
                    }
                    last = Some(next);
                }
            }
        }
    }
}
