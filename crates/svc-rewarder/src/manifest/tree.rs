//! The Merkle-sum tree over a payout table: every node carries what the payouts under it add up
//! to, so a path shows the payee's amount and, step by step, the total.
//!
//! ```text
//! leaf(i)  hash = b3("ron-rewarder/v1/leaf\0" || index (8) || account length (4) || account || amount (16))
//!          sum  = amount
//! node     hash = b3("ron-rewarder/v1/node\0" || left.hash || left.sum (16) || right.hash || right.sum (16))
//!          sum  = left.sum + right.sum, refused above 2^128-1
//! root     b3("ron-rewarder/v1/root\0" || count (8) || total (16) || top.hash)
//! ```
//!
//! Levels are built pairwise; a last node without a partner moves up unchanged. An empty table
//! has the top hash of 32 zero bytes and the total 0.

use rayon::prelude::*;
use ron_proto::rewarder::{Payout, PayoutsRoot, ProofSide, ProofStep};
use ron_proto::values::{Account, Amount, ContentId};

use crate::calculus::trim;
use crate::inputs::snapshot::be128;

const LEAF: &[u8] = b"ron-rewarder/v1/leaf\0";
const NODE: &[u8] = b"ron-rewarder/v1/node\0";
const ROOT: &[u8] = b"ron-rewarder/v1/root\0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    hash: [u8; 32],
    sum: u128,
}

/// A message that is put together on the stack. Hashing it in one piece takes a third less time
/// than feeding a hasher part by part, and there are two messages per payout.
struct Message {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Message {
    /// Size of the leaf with the longest account.
    const MAX: usize = LEAF.len() + 8 + 4 + Account::MAX_LEN + 16;

    fn new(domain: &[u8]) -> Self {
        let empty = Self {
            bytes: [0; Self::MAX],
            len: 0,
        };
        empty.with(domain)
    }

    fn with(mut self, part: &[u8]) -> Self {
        let end = self.len + part.len();
        self.bytes[self.len..end].copy_from_slice(part);
        self.len = end;
        self
    }

    fn hash(&self) -> [u8; 32] {
        *blake3::hash(&self.bytes[..self.len]).as_bytes()
    }
}

/// `account` has at most [`Account::MAX_LEN`] bytes.
fn leaf(index: u64, account: &[u8], amount: u128) -> Node {
    let message = Message::new(LEAF)
        .with(&index.to_be_bytes())
        .with(&(account.len() as u32).to_be_bytes())
        .with(account)
        .with(&amount.to_be_bytes());
    Node {
        hash: message.hash(),
        sum: amount,
    }
}

/// `None` if the sums pass 2^128-1.
fn join(left: &Node, right: &Node) -> Option<Node> {
    let sum = left.sum.checked_add(right.sum)?;
    let message = [left, right].iter().fold(Message::new(NODE), |m, side| {
        m.with(&side.hash).with(&side.sum.to_be_bytes())
    });
    Some(Node {
        hash: message.hash(),
        sum,
    })
}

fn seal(count: u64, top: &Node) -> PayoutsRoot {
    let mut hasher = blake3::Hasher::new();
    hasher.update(ROOT);
    hasher.update(&count.to_be_bytes());
    hasher.update(&top.sum.to_be_bytes());
    hasher.update(&top.hash);
    PayoutsRoot {
        root: ContentId(*hasher.finalize().as_bytes()),
        count,
        total_minor: Amount(top.sum),
    }
}

/// Leaves of one group: a table is hashed, stored and checked in groups of this many records.
pub const GROUP: usize = if cfg!(test) { 4 } else { 8_192 };
/// Bytes of a stored node: hash and sum.
const NODE_BYTES: usize = 48;

fn level_up(nodes: &[Node]) -> Result<Vec<Node>, Overflow> {
    let join_pair = |pair: &[Node]| match pair {
        [left, right] => join(left, right).ok_or(Overflow),
        single => Ok(single[0]),
    };
    nodes.chunks(2).map(join_pair).collect()
}

/// The sums pass 2^128-1. No valid table's sums do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payouts add up to more than 2^128-1")]
pub struct Overflow;

fn top_of(mut nodes: Vec<Node>) -> Result<Node, Overflow> {
    while nodes.len() > 1 {
        nodes = level_up(&nodes)?;
    }
    Ok(nodes.first().copied().unwrap_or(Node {
        hash: [0; 32],
        sum: 0,
    }))
}

/// The upper part of the tree: the top node of every group of [`GROUP`] leaves. It is small and
/// hashes to the root, and with it a few records can be checked without reading the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    count: u64,
    tops: Vec<Node>,
}

/// Builds a [`Tree`] group by group.
#[derive(Clone, Debug, Default)]
pub struct Grower {
    count: u64,
    tops: Vec<Node>,
}

impl Grower {
    /// Adds records in table order: `size` bytes each, an account padded with NUL and its amount in
    /// the last 16. All calls but the last must pass whole groups.
    pub fn add(&mut self, records: &[u8], size: usize) -> Result<(), Overflow> {
        debug_assert!(self.count.is_multiple_of(GROUP as u64));
        let first = self.count;
        let mut tops = records
            .par_chunks(GROUP * size)
            .enumerate()
            .map(|(group, records)| top_of(leaves(first + (group * GROUP) as u64, records, size)))
            .collect::<Result<Vec<_>, _>>()?;
        self.tops.append(&mut tops);
        self.count += (records.len() / size) as u64;
        Ok(())
    }

    /// Ends the input; a partial last group becomes a node.
    pub fn finish(self) -> Tree {
        Tree {
            count: self.count,
            tops: self.tops,
        }
    }
}

fn leaves(first: u64, records: &[u8], size: usize) -> Vec<Node> {
    let leaf_of = |(index, record): (u64, &[u8])| {
        let (account, amount) = record.split_at(size - 16);
        leaf(index, trim(account), be128(amount))
    };
    (first..)
        .zip(records.chunks_exact(size))
        .map(leaf_of)
        .collect()
}

impl Tree {
    /// The root over all records.
    pub fn root(&self) -> Result<PayoutsRoot, Overflow> {
        Ok(seal(self.count, &top_of(self.tops.clone())?))
    }

    /// The stored form of the tree: one node (hash, sum) per group.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.tops.len() * NODE_BYTES);
        for node in &self.tops {
            bytes.extend_from_slice(&node.hash);
            bytes.extend_from_slice(&node.sum.to_be_bytes());
        }
        bytes
    }

    /// A stored tree, if it hashes to `root`.
    pub fn from_bytes(bytes: &[u8], root: &PayoutsRoot) -> Option<Self> {
        if !bytes.len().is_multiple_of(NODE_BYTES) {
            return None;
        }
        let node = |bytes: &[u8]| {
            let mut hash = [0; 32];
            hash.copy_from_slice(&bytes[..32]);
            let sum = be128(&bytes[32..]);
            Node { hash, sum }
        };
        let tree = Self {
            count: root.count,
            tops: bytes.chunks_exact(NODE_BYTES).map(node).collect(),
        };
        let groups = root.count.div_ceil(GROUP as u64);
        let good = tree.tops.len() as u64 == groups && tree.root() == Ok(*root);
        good.then_some(tree)
    }

    /// True if these are the records of `group`, of `size` bytes each.
    pub fn has_group(&self, group: usize, records: &[u8], size: usize) -> Result<bool, Overflow> {
        let top = top_of(leaves((group * GROUP) as u64, records, size))?;
        Ok(self.tops.get(group) == Some(&top))
    }

    /// The path to the root of record `row`, which must be one of `records`, the records of its
    /// group, of `size` bytes each.
    pub fn path(
        &self,
        row: usize,
        records: &[u8],
        size: usize,
    ) -> Result<Vec<ProofStep>, Overflow> {
        let group = row / GROUP;
        Ok(self.paths()?.group(group, records, size)?.path(row % GROUP))
    }

    /// The paths of many records.
    pub fn paths(&self) -> Result<Paths, Overflow> {
        Levels::over(self.tops.clone()).map(Paths)
    }
}

/// The upper part of a tree, with every level of it.
#[derive(Debug)]
pub struct Paths(Levels);

impl Paths {
    /// The paths of the records of a group.
    pub fn group(&self, group: usize, records: &[u8], size: usize) -> Result<GroupPaths, Overflow> {
        let mut above = Vec::new();
        self.0.climb(group, &mut above);
        Ok(GroupPaths {
            levels: Levels::over(leaves((group * GROUP) as u64, records, size))?,
            above,
        })
    }
}

/// The levels of a group, and the steps from its top to the root.
#[derive(Debug)]
pub struct GroupPaths {
    levels: Levels,
    above: Vec<ProofStep>,
}

impl GroupPaths {
    /// The path to the root of a record, counted within its group.
    pub fn path(&self, at: usize) -> Vec<ProofStep> {
        let mut path = Vec::with_capacity(self.levels.0.len() + self.above.len());
        self.levels.climb(at, &mut path);
        path.extend_from_slice(&self.above);
        path
    }
}

/// All levels of a tree, from its leaves up.
#[derive(Debug)]
struct Levels(Vec<Vec<Node>>);

impl Levels {
    fn over(leaves: Vec<Node>) -> Result<Self, Overflow> {
        let mut levels = vec![leaves];
        while let Some(last) = levels.last().filter(|level| level.len() > 1) {
            levels.push(level_up(last)?);
        }
        Ok(Self(levels))
    }

    /// Adds the siblings from node `at` up to the last level.
    fn climb(&self, mut at: usize, path: &mut Vec<ProofStep>) {
        for nodes in &self.0 {
            if let Some(partner) = nodes.get(at ^ 1) {
                path.push(ProofStep {
                    side: if at % 2 == 1 {
                        ProofSide::Left
                    } else {
                        ProofSide::Right
                    },
                    hash: ContentId(partner.hash),
                    sum_minor: Amount(partner.sum),
                });
            }
            at /= 2;
        }
    }
}

/// Why a path does not lead to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The index is not below the count.
    #[error("the payout's index is not below the number of payouts")]
    Index,
    /// Steps missing, left over, or on the wrong side for this index and count.
    #[error("the path has the wrong shape for this index")]
    Shape,
    /// The sums pass 2^128-1. No valid table's sums do.
    #[error("the sums on the path overflow")]
    Overflow,
    /// The shape is right, but the hash differs.
    #[error("the path does not end in the root")]
    Root,
}

/// Checks that `payout` is under `root` and that the path's sums make the root's total.
pub fn check_path(
    payout: &Payout,
    path: &[ProofStep],
    root: &PayoutsRoot,
) -> Result<(), PathError> {
    if payout.index >= root.count {
        return Err(PathError::Index);
    }
    let mut steps = path.iter();
    let mut node = leaf(
        payout.index,
        payout.account.as_str().as_bytes(),
        payout.amount_minor.0,
    );
    let (mut at, mut width) = (payout.index, root.count);
    while width > 1 {
        if at ^ 1 < width {
            let step = steps.next().ok_or(PathError::Shape)?;
            let other = Node {
                hash: step.hash.0,
                sum: step.sum_minor.0,
            };
            let joined = match (step.side, at % 2) {
                (ProofSide::Left, 1) => join(&other, &node),
                (ProofSide::Right, 0) => join(&node, &other),
                _ => return Err(PathError::Shape),
            };
            node = joined.ok_or(PathError::Overflow)?;
        }
        at /= 2;
        width = width.div_ceil(2);
    }
    if steps.next().is_some() {
        return Err(PathError::Shape);
    }
    if seal(root.count, &node) == *root {
        Ok(())
    } else {
        Err(PathError::Root)
    }
}
