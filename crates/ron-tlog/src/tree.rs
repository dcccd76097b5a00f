//! The Merkle tree of RFC 6962 over SHA-256: hashing, the growing right edge, proofs and their
//! verification. Pure: no I/O.
//!
//! A node is named by `(level, index)`: it covers the leaves
//! `[index << level, (index + 1) << level)`, and exists once the tree has all of them. A
//! [`HashReader`] returns the hashes of such complete nodes; every proof is built from them.

use ron_crypto::hash::sha256;

/// A SHA-256 hash of a leaf or a node.
pub type Hash = [u8; 32];

/// Hash of one entry: SHA-256 of a zero byte and the entry.
pub fn leaf_hash(entry: &[u8]) -> Hash {
    let mut prefixed = Vec::with_capacity(entry.len() + 1);
    prefixed.push(0);
    prefixed.extend_from_slice(entry);
    sha256(&prefixed)
}

/// Hash of an inner node: SHA-256 of a one byte and both children.
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    let mut bytes = [0u8; 65];
    bytes[0] = 1;
    bytes[1..33].copy_from_slice(left);
    bytes[33..].copy_from_slice(right);
    sha256(&bytes)
}

/// Root of the tree without leaves: SHA-256 of nothing.
pub fn empty_root() -> Hash {
    sha256(b"")
}

/// Root of a complete subtree whose leaves (or equal-level nodes) are `hashes`; their number must
/// be a power of two.
pub fn complete_root(hashes: &[Hash]) -> Hash {
    assert!(
        hashes.len().is_power_of_two(),
        "a complete subtree has 2^n leaves, not {}",
        hashes.len()
    );
    let mut row = hashes.to_vec();
    while row.len() > 1 {
        for pair in 0..row.len() / 2 {
            row[pair] = node_hash(&row[2 * pair], &row[2 * pair + 1]);
        }
        row.truncate(row.len() / 2);
    }
    row[0]
}

/// The right edge of a growing tree: one hash for each set bit of its size, largest subtree first.
/// At most 64 hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    edge: Vec<Hash>,
}

impl Frontier {
    /// The frontier of the empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// The hashes of the complete subtrees that make up the tree, left to right.
    pub fn edge(&self) -> &[Hash] {
        &self.edge
    }

    /// Adds one leaf by its hash.
    pub fn push(&mut self, leaf: Hash) {
        self.push_subtree(0, leaf);
    }

    /// Adds a complete subtree of `2^level` leaves at once. The present size must be a multiple of
    /// `2^level`.
    pub fn push_subtree(&mut self, level: u32, root: Hash) {
        assert!(
            self.size.trailing_zeros() >= level || self.size == 0,
            "a subtree of level {level} does not fit at size {}",
            self.size
        );
        // Like a carry in binary addition: each set bit of the size from `level` up is a subtree to
        // merge.
        let mut hash = root;
        let mut at = level;
        while self.size >> at & 1 == 1 {
            let left = self.edge.pop().expect("a set bit of the size has its hash");
            hash = node_hash(&left, &hash);
            at += 1;
        }
        self.edge.push(hash);
        self.size += 1 << level;
    }

    /// The root hash of the whole tree.
    pub fn root(&self) -> Hash {
        fold_right(&self.edge)
    }
}

/// Root of a tree whose complete subtrees, left to right, are `edge`.
fn fold_right(edge: &[Hash]) -> Hash {
    let mut rest = edge.iter().rev();
    match rest.next() {
        None => empty_root(),
        Some(last) => rest.fold(*last, |right, left| node_hash(left, &right)),
    }
}

/// Returns the hashes of complete nodes of a tree.
pub trait HashReader {
    /// Why a node could not be read.
    type Error;
    /// Hash of the node that covers the leaves `[index << level, (index + 1) << level)`.
    fn node(&self, level: u32, index: u64) -> Result<Hash, Self::Error>;
}

/// Hash over the leaves `[start, end)`, where `start` is a multiple of a power of two that is at
/// least `end - start`.
fn range_hash<R: HashReader>(reader: &R, start: u64, end: u64) -> Result<Hash, R::Error> {
    let mut edge = Vec::new();
    // From the left: `start` is aligned, so each largest power of two is a complete node.
    let mut at = start;
    while at < end {
        let level = (end - at).ilog2();
        edge.push(reader.node(level, at >> level)?);
        at += 1 << level;
    }
    Ok(fold_right(&edge))
}

/// Root of the tree of the first `size` leaves.
pub fn root_at<R: HashReader>(reader: &R, size: u64) -> Result<Hash, R::Error> {
    range_hash(reader, 0, size)
}

/// The largest power of two smaller than `n` (`n >= 2`).
fn split(n: u64) -> u64 {
    1 << (n - 1).ilog2()
}

/// Inclusion proof of leaf `index` in the tree of `size` leaves, from the leaf's sibling up.
///
/// # Panics
/// When `index >= size`.
pub fn inclusion_proof<R: HashReader>(
    reader: &R,
    index: u64,
    size: u64,
) -> Result<Vec<Hash>, R::Error> {
    assert!(index < size, "leaf {index} is not in a tree of {size}");
    // From the root down, and reversed at the end: proofs are ordered from the leaf up.
    let (mut start, mut end) = (0, size);
    let mut proof = Vec::new();
    while end - start > 1 {
        let middle = start + split(end - start);
        if index < middle {
            proof.push(range_hash(reader, middle, end)?);
            end = middle;
        } else {
            proof.push(range_hash(reader, start, middle)?);
            start = middle;
        }
    }
    proof.reverse();
    Ok(proof)
}

/// Consistency proof from the tree of `old` leaves to the tree of `new` leaves. Empty for
/// `old == new` and for `old == 0`.
///
/// # Panics
/// When `old > new`.
pub fn consistency_proof<R: HashReader>(
    reader: &R,
    old: u64,
    new: u64,
) -> Result<Vec<Hash>, R::Error> {
    assert!(
        old <= new,
        "a tree of {old} is no prefix of a tree of {new}"
    );
    let mut proof = Vec::new();
    if old == 0 || old == new {
        return Ok(proof);
    }
    let (mut start, mut end) = (0, new);
    while end != old {
        let middle = start + split(end - start);
        if old <= middle {
            proof.push(range_hash(reader, middle, end)?);
            end = middle;
        } else {
            proof.push(range_hash(reader, start, middle)?);
            start = middle;
        }
    }
    if start != 0 {
        proof.push(range_hash(reader, start, end)?);
    }
    proof.reverse();
    Ok(proof)
}

/// Why a proof does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofFault {
    /// The index is not below the tree size.
    #[error("index {index} is not in a tree of {size} leaves")]
    IndexOutOfRange {
        /// The index asked for.
        index: u64,
        /// The size of the tree.
        size: u64,
    },
    /// The old tree is larger than the new one.
    #[error("the old tree of {old} leaves is larger than the new one of {new}")]
    Shrinks {
        /// Size of the old tree.
        old: u64,
        /// Size of the new tree.
        new: u64,
    },
    /// An old tree without leaves proves nothing.
    #[error("a consistency proof from an empty tree says nothing")]
    EmptyOld,
    /// The proof has more or fewer hashes than the sizes call for.
    #[error("the proof has a wrong number of hashes ({0})")]
    Length(usize),
    /// The hashes do not lead to the root that is claimed.
    #[error("the proof does not lead to the claimed root")]
    Root,
    /// The hashes do not lead to the old root that is claimed.
    #[error("the proof does not lead to the claimed old root")]
    OldRoot,
}

/// The root computed from an inclusion proof (RFC 9162, section 2.1.3.2).
pub fn root_from_inclusion(
    leaf: &Hash,
    index: u64,
    size: u64,
    proof: &[Hash],
) -> Result<Hash, ProofFault> {
    if index >= size {
        return Err(ProofFault::IndexOutOfRange { index, size });
    }
    let (mut node, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for sibling in proof {
        if last == 0 {
            return Err(ProofFault::Length(proof.len()));
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    if last != 0 {
        return Err(ProofFault::Length(proof.len()));
    }
    Ok(hash)
}

/// Checks that the entry with hash `leaf` is at `index` of the tree of `size` leaves with `root`.
pub fn verify_inclusion(
    leaf: &Hash,
    index: u64,
    size: u64,
    proof: &[Hash],
    root: &Hash,
) -> Result<(), ProofFault> {
    if root_from_inclusion(leaf, index, size, proof)? == *root {
        Ok(())
    } else {
        Err(ProofFault::Root)
    }
}

/// Checks that the tree of `old` leaves with `old_root` is a prefix of the tree of `new` leaves
/// with `new_root`.
///
/// Stricter than the RFC in one point: `old == 0` is refused. Every tree extends the empty one, so
/// such a proof would only hide that nothing was checked.
pub fn verify_consistency(
    old: u64,
    new: u64,
    proof: &[Hash],
    old_root: &Hash,
    new_root: &Hash,
) -> Result<(), ProofFault> {
    if old > new {
        return Err(ProofFault::Shrinks { old, new });
    }
    if old == 0 {
        return Err(ProofFault::EmptyOld);
    }
    if old == new {
        return match (proof.is_empty(), old_root == new_root) {
            (false, _) => Err(ProofFault::Length(proof.len())),
            (true, false) => Err(ProofFault::Root),
            (true, true) => Ok(()),
        };
    }
    // RFC 9162, section 2.1.4.2: start at the largest complete subtree that ends the old tree.
    let shift = (old - 1).trailing_ones();
    let (mut node, mut last) = ((old - 1) >> shift, (new - 1) >> shift);
    let whole = old.is_power_of_two();
    let (first, rest) = match (whole, proof.split_first()) {
        (_, None) => return Err(ProofFault::Length(0)),
        (true, Some(_)) => (old_root, proof),
        (false, Some((first, rest))) => (first, rest),
    };
    let (mut from_old, mut from_new) = (*first, *first);
    for hash in rest {
        if last == 0 {
            return Err(ProofFault::Length(proof.len()));
        }
        if node & 1 == 1 || node == last {
            from_old = node_hash(hash, &from_old);
            from_new = node_hash(hash, &from_new);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            from_new = node_hash(&from_new, hash);
        }
        node >>= 1;
        last >>= 1;
    }
    if last != 0 {
        return Err(ProofFault::Length(proof.len()));
    }
    if from_old != *old_root {
        return Err(ProofFault::OldRoot);
    }
    if from_new != *new_root {
        return Err(ProofFault::Root);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// A tree that hashes everything again each time, written directly from the recursive
    /// definition.
    struct Naive(Vec<Hash>);

    impl Naive {
        fn of(size: u64) -> Self {
            Self((0..size).map(|i| leaf_hash(&i.to_be_bytes())).collect())
        }
        fn mth(leaves: &[Hash]) -> Hash {
            match leaves {
                [] => empty_root(),
                [one] => *one,
                more => {
                    let mut k = 1;
                    while k * 2 < more.len() {
                        k *= 2;
                    }
                    node_hash(&Self::mth(&more[..k]), &Self::mth(&more[k..]))
                }
            }
        }
    }

    impl HashReader for Naive {
        type Error = Infallible;
        fn node(&self, level: u32, index: u64) -> Result<Hash, Infallible> {
            let (from, to) = ((index << level) as usize, ((index + 1) << level) as usize);
            assert!(
                to <= self.0.len(),
                "node ({level}, {index}) is not complete"
            );
            Ok(Self::mth(&self.0[from..to]))
        }
    }

    fn check(size: u64) {
        let tree = Naive::of(size);
        let root = Naive::mth(&tree.0);
        let mut frontier = Frontier::new();
        for leaf in &tree.0 {
            frontier.push(*leaf);
        }
        assert_eq!(frontier.root(), root, "frontier root at {size}");
        assert_eq!(frontier.edge().len(), size.count_ones() as usize);
        assert_eq!(root_at(&tree, size), Ok(root));
        for index in 0..size {
            let proof = inclusion_proof(&tree, index, size).expect("infallible");
            let leaf = tree.0[index as usize];
            assert_eq!(
                verify_inclusion(&leaf, index, size, &proof, &root),
                Ok(()),
                "{index} of {size}"
            );
            assert!(verify_inclusion(&leaf, index + 1, size, &proof, &root).is_err() || size == 1);
            for at in 0..proof.len() {
                let mut wrong = proof.clone();
                wrong[at][0] ^= 1;
                assert_eq!(
                    verify_inclusion(&leaf, index, size, &wrong, &root),
                    Err(ProofFault::Root)
                );
            }
        }
        for old in 1..=size {
            let proof = consistency_proof(&tree, old, size).expect("infallible");
            let old_root = Naive::mth(&tree.0[..old as usize]);
            assert_eq!(
                verify_consistency(old, size, &proof, &old_root, &root),
                Ok(()),
                "{old} to {size}"
            );
            let mut wrong = old_root;
            wrong[31] ^= 1;
            assert!(verify_consistency(old, size, &proof, &wrong, &root).is_err());
            assert!(verify_consistency(old, size, &proof, &old_root, &wrong).is_err());
        }
    }

    #[test]
    fn every_proof_of_every_small_tree_holds() {
        for size in 0..=40 {
            check(size);
        }
    }

    #[test]
    fn subtrees_push_like_their_leaves() {
        let leaves = Naive::of(300).0;
        let mut whole = Frontier::new();
        whole.push_subtree(8, complete_root(&leaves[..256]));
        let mut single = Frontier::new();
        for leaf in &leaves {
            single.push(*leaf);
        }
        for leaf in &leaves[256..] {
            whole.push(*leaf);
        }
        assert_eq!(whole, single);
        assert_eq!(whole.root(), Naive::mth(&leaves));
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_subtree_out_of_place_is_refused() {
        let mut frontier = Frontier::new();
        frontier.push([0; 32]);
        frontier.push_subtree(1, [1; 32]);
    }

    #[test]
    fn known_roots() {
        // The empty root and the root of one empty leaf, as any RFC 6962 implementation prints
        // them.
        assert_eq!(
            hex::encode(empty_root()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(
            hex::encode(leaf_hash(b"")),
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn random_proofs_hold_and_do_not_transfer(size in 2u64..700, a in any::<u64>(), b in any::<u64>(), old in any::<u64>()) {
            let tree = Naive::of(size);
            let root = Naive::mth(&tree.0);
            let (a, b, old) = (a % size, b % size, old % size + 1);
            let proof = inclusion_proof(&tree, a, size).expect("infallible");
            prop_assert_eq!(verify_inclusion(&tree.0[a as usize], a, size, &proof, &root), Ok(()));
            if a != b {
                prop_assert!(verify_inclusion(&tree.0[b as usize], a, size, &proof, &root).is_err());
                prop_assert!(verify_inclusion(&tree.0[a as usize], b, size, &proof, &root).is_err());
            }
            let old_root = Naive::mth(&tree.0[..old as usize]);
            let steps = consistency_proof(&tree, old, size).expect("infallible");
            prop_assert_eq!(verify_consistency(old, size, &steps, &old_root, &root), Ok(()));
        }

        #[test]
        fn verifiers_never_panic(old in any::<u64>(), new in any::<u64>(), n in 0usize..70, fill in any::<u8>()) {
            let proof = vec![[fill; 32]; n];
            prop_assert!(verify_consistency(old, new, &proof, &[1; 32], &[2; 32]).is_err());
            prop_assert!(verify_inclusion(&[1; 32], old, new, &proof, &[2; 32]).is_err());
        }
    }
}
