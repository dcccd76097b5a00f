//! The text format `c2sp.org/tlog-proof@v1`: the inclusion proof of one entry with its checkpoint.
//! Pure.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{Checkpoint, CheckpointFault, decimal, hash_base64};
use crate::note::VerifierKey;
use crate::tree::{Hash, ProofFault, leaf_hash, verify_inclusion};

/// First line of every proof.
pub const HEADER: &str = "c2sp.org/tlog-proof@v1";
/// A tree of u64 size is at most 64 levels high.
const HASHES_MAX: usize = 64;

/// A proof that can be checked offline with the entry, the log's verifier key and this text alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlogProof {
    /// Opaque data beside the proof; not authenticated.
    pub extra: Option<Vec<u8>>,
    /// Position of the entry in the log.
    pub index: u64,
    /// Siblings from the leaf up.
    pub hashes: Vec<Hash>,
    /// The signed checkpoint, verbatim.
    pub checkpoint: String,
}

/// Why a proof is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlogProofFault {
    /// The text is not in the format.
    #[error("not a tlog-proof: {0}")]
    Malformed(&'static str),
    /// The checkpoint is not acceptable.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointFault),
    /// The hashes do not connect entry and checkpoint.
    #[error(transparent)]
    Proof(#[from] ProofFault),
}

impl TlogProof {
    /// Parses a proof; checks only the form.
    pub fn parse(text: &str) -> Result<Self, TlogProofFault> {
        let malformed = TlogProofFault::Malformed;
        let (head, checkpoint) = text
            .split_once("\n\n")
            .ok_or(malformed("no blank line before the checkpoint"))?;
        let mut lines = head.split('\n').peekable();
        if lines.next() != Some(HEADER) {
            return Err(malformed("the first line is not `c2sp.org/tlog-proof@v1`"));
        }
        let extra = match lines.next_if(|l| l.starts_with("extra ")) {
            None => None,
            Some(line) => {
                let bytes = STANDARD.decode(&line["extra ".len()..]);
                Some(bytes.map_err(|_| malformed("the extra data is not base64"))?)
            }
        };
        let index = lines
            .next()
            .and_then(|l| l.strip_prefix("index "))
            .and_then(decimal)
            .ok_or(malformed("no plain `index` line"))?;
        let mut hashes = Vec::new();
        for line in lines {
            if hashes.len() == HASHES_MAX {
                return Err(malformed("too many hashes"));
            }
            hashes.push(hash_base64(line).ok_or(malformed("a hash is not 32 bytes of base64"))?);
        }
        Ok(Self {
            extra,
            index,
            hashes,
            checkpoint: checkpoint.to_owned(),
        })
    }

    /// Checks that `entry` is in the log at [`TlogProof::index`]; returns the checkpoint that
    /// covers it.
    pub fn verify(
        &self,
        entry: &[u8],
        keys: &[VerifierKey],
        origin: Option<&str>,
    ) -> Result<Checkpoint, TlogProofFault> {
        self.verify_leaf(&leaf_hash(entry), keys, origin)
    }

    /// As [`TlogProof::verify`], for an entry known by its leaf hash.
    pub fn verify_leaf(
        &self,
        leaf: &Hash,
        keys: &[VerifierKey],
        origin: Option<&str>,
    ) -> Result<Checkpoint, TlogProofFault> {
        let checkpoint = Checkpoint::open(&self.checkpoint, keys, origin)?;
        verify_inclusion(
            leaf,
            self.index,
            checkpoint.size,
            &self.hashes,
            &checkpoint.root,
        )?;
        Ok(checkpoint)
    }
}

impl fmt::Display for TlogProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        if let Some(extra) = &self.extra {
            writeln!(f, "extra {}", STANDARD.encode(extra))?;
        }
        writeln!(f, "index {}", self.index)?;
        for hash in &self.hashes {
            writeln!(f, "{}", STANDARD.encode(hash))?;
        }
        write!(f, "\n{}", self.checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;

    use super::*;
    use crate::note::Ed25519NoteSigner;
    use crate::tree::{Frontier, node_hash};

    fn two_leaves() -> (TlogProof, VerifierKey) {
        let signer =
            Ed25519NoteSigner::new("log.example", Ed25519Key::from_seed(&[5; 32])).expect("name");
        let leaves = [leaf_hash(b"zero"), leaf_hash(b"one")];
        let mut frontier = Frontier::new();
        for leaf in leaves {
            frontier.push(leaf);
        }
        assert_eq!(frontier.root(), node_hash(&leaves[0], &leaves[1]));
        let checkpoint = Checkpoint {
            origin: "log.example".into(),
            size: 2,
            root: frontier.root(),
        };
        let proof = TlogProof {
            extra: None,
            index: 1,
            hashes: vec![leaves[0]],
            checkpoint: checkpoint.sign(&[&signer]).expect("signs"),
        };
        (proof, signer.verifier().clone())
    }

    #[test]
    fn a_proof_round_trips_and_verifies() {
        let (proof, key) = two_leaves();
        for extra in [None, Some(vec![]), Some(b"salt".to_vec())] {
            let proof = TlogProof {
                extra,
                ..proof.clone()
            };
            let parsed = TlogProof::parse(&proof.to_string()).expect("parses");
            assert_eq!(parsed, proof);
            let keys = std::slice::from_ref(&key);
            assert_eq!(
                parsed
                    .verify(b"one", keys, Some("log.example"))
                    .map(|c| c.size),
                Ok(2)
            );
            assert!(parsed.verify(b"two", keys, None).is_err());
            assert!(parsed.verify(b"one", keys, Some("other.example")).is_err());
        }
    }

    #[test]
    fn odd_texts_are_refused() {
        let text = two_leaves().0.to_string();
        for wrong in [
            text.replace("@v1", "@v2"),
            text.replace("index 1", "index 01"),
            text.replace("index 1", "index -1"),
            text.replace("index 1", "extra !\nindex 1"),
            text.replace("index 1\n", ""),
            text.replacen("\n\n", "\nAAAA\n\n", 1),
            String::new(),
        ] {
            assert!(TlogProof::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
