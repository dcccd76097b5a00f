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
use ron_proto::values::{Amount, ContentId};

use super::table::Table;

const LEAF: &[u8] = b"ron-rewarder/v1/leaf\0";
const NODE: &[u8] = b"ron-rewarder/v1/node\0";
const ROOT: &[u8] = b"ron-rewarder/v1/root\0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    hash: [u8; 32],
    sum: u128,
}

fn leaf(index: u64, account: &[u8], amount: u128) -> Node {
    let mut hasher = blake3::Hasher::new();
    hasher.update(LEAF);
    hasher.update(&index.to_be_bytes());
    hasher.update(&(account.len() as u32).to_be_bytes());
    hasher.update(account);
    hasher.update(&amount.to_be_bytes());
    Node {
        hash: *hasher.finalize().as_bytes(),
        sum: amount,
    }
}

/// `None` if the sums pass 2^128-1.
fn join(left: &Node, right: &Node) -> Option<Node> {
    let sum = left.sum.checked_add(right.sum)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(NODE);
    for side in [left, right] {
        hasher.update(&side.hash);
        hasher.update(&side.sum.to_be_bytes());
    }
    Some(Node {
        hash: *hasher.finalize().as_bytes(),
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

fn leaves(table: &Table) -> Vec<Node> {
    (0..table.len())
        .into_par_iter()
        .map(|row| leaf(row as u64, table.account(row), table.amount(row)))
        .collect()
}

fn level_up(nodes: &[Node]) -> Vec<Node> {
    nodes
        .par_chunks(2)
        .map(|pair| match pair {
            [left, right] => join(left, right).expect("a checked table adds up below 2^128"),
            single => single[0],
        })
        .collect()
}

/// The root over all records.
pub fn root(table: &Table) -> PayoutsRoot {
    let mut nodes = leaves(table);
    while nodes.len() > 1 {
        nodes = level_up(&nodes);
    }
    let empty = Node {
        hash: [0; 32],
        sum: 0,
    };
    seal(table.len() as u64, nodes.first().unwrap_or(&empty))
}

/// The path of record `row` to the root, or `None` if there is no such record.
pub fn path(table: &Table, row: usize) -> Option<Vec<ProofStep>> {
    if row >= table.len() {
        return None;
    }
    let (mut nodes, mut at, mut path) = (leaves(table), row, Vec::new());
    while nodes.len() > 1 {
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
        nodes = level_up(&nodes);
        at /= 2;
    }
    Some(path)
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
    /// The sums pass 2^128-1, which no true table does.
    #[error("the sums on the path overflow")]
    Overflow,
    /// Right shape, wrong content.
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
