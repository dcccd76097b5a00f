//! Claim trees: the payouts of an epoch as OpenZeppelin's `StandardMerkleTree` has them, so that a
//! contract which is given the root pays whoever brings a proof.
//!
//! ```text
//! leaf      keccak256(keccak256(12 zero bytes || address (20) || amount (32)))
//! node      keccak256(a || b), the smaller of the two children first
//! tree      an array of 2N - 1 nodes: node i has the children 2i + 1 and 2i + 2, the root is 0, and
//!           the leaves, in ascending order, stand from the end backwards
//! ```
//!
//! Payees are 0x addresses and are compared as 20 bytes: an account that has two spellings in one
//! snapshot would have two claims, of which a contract pays one.

use std::io;

use rayon::prelude::*;
use ron_proto::rewarder::{ClaimHash, Payout};
use sha3::{Digest as _, Keccak256};

use crate::calculus::trim;
use crate::inputs::snapshot::be128;

/// Most payees of an epoch with claims. Their tree needs 100 bytes of memory for each while it is
/// made.
pub const PAYEES_MAX: usize = 1 << 22;
/// Places of leaves written at a time.
const PLACES: usize = 1 << 18;

/// A node of the tree.
pub type Hash = [u8; 32];
type Address = [u8; 20];

/// Why an epoch has no claim tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "\"{0}\" has a share and is not an address (0x and 40 hex digits), as pay \"claims\" demands; \
         correct the usage, or admit addresses alone with eligibility.prefixes [\"0x\"]"
    )]
    NotAddress(String),
    #[error(
        "address {0} is misspelt: its upper and lower case letters are not its EIP-55 checksum; \
         correct it, or write it in lower case"
    )]
    Checksum(String),
    #[error("address 0x{0} stands twice in the usage, in two spellings; add its rows up under one")]
    Twice(String),
    #[error(
        "the epoch has more than {PAYEES_MAX} payees, the most that pay \"claims\" allows; split it"
    )]
    TooMany,
}

fn keccak(parts: &[&[u8]]) -> Hash {
    let mut hasher = Keccak256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// The 20 bytes of an address in lower case, upper case, or with the checksum of EIP-55 in its case.
fn address(account: &[u8]) -> Result<Address, ClaimError> {
    let said = || String::from_utf8_lossy(account).into_owned();
    let digits = account.strip_prefix(b"0x");
    let digits = digits.ok_or_else(|| ClaimError::NotAddress(said()))?;
    let mut bytes = [0; 20];
    hex::decode_to_slice(digits, &mut bytes).map_err(|_| ClaimError::NotAddress(said()))?;
    let has = |kind: fn(&u8) -> bool| digits.iter().any(kind);
    if has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) {
        let hash = keccak(&[&digits.to_ascii_lowercase()]);
        // A letter is upper case exactly where the hash of the lower-case digits has a half byte of
        // eight or more.
        let half = |at: usize| (hash[at / 2] >> if at.is_multiple_of(2) { 4 } else { 0 }) & 15;
        let good = |(at, digit): (usize, &u8)| {
            !digit.is_ascii_alphabetic() || digit.is_ascii_uppercase() == (half(at) >= 8)
        };
        if !digits.iter().enumerate().all(good) {
            return Err(ClaimError::Checksum(said()));
        }
    }
    Ok(bytes)
}

fn leaf(payee: &Address, amount: u128) -> Hash {
    let mut encoded = [0; 64];
    encoded[12..32].copy_from_slice(payee);
    encoded[48..].copy_from_slice(&amount.to_be_bytes());
    keccak(&[&keccak(&[&encoded])])
}

fn join(one: &Hash, other: &Hash) -> Hash {
    keccak(&[one.min(other), one.max(other)])
}

/// Addresses, each of which may stand once, in whatever spelling.
#[derive(Debug, Default)]
pub struct Addresses(Vec<Address>);

impl Addresses {
    /// Adds an account; refuses what is no address.
    pub fn add(&mut self, account: &[u8]) -> Result<(), ClaimError> {
        if self.0.len() == PAYEES_MAX {
            return Err(ClaimError::TooMany);
        }
        self.0.push(address(account)?);
        Ok(())
    }

    /// Refuses an address that was added twice.
    pub fn finish(mut self) -> Result<(), ClaimError> {
        self.0.par_sort_unstable();
        match self.0.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ClaimError::Twice(hex::encode(pair[0]))),
            None => Ok(()),
        }
    }
}

/// Collects the payees of a [`Tree`].
#[derive(Debug, Default)]
pub struct Grower {
    payees: Addresses,
    leaves: Vec<Hash>,
}

impl Grower {
    /// Adds records in table order: `size` bytes each, an account padded with NUL and its amount in
    /// the last 16.
    pub fn add(&mut self, records: &[u8], size: usize) -> Result<(), ClaimError> {
        if self.leaves.len() + records.len() / size > PAYEES_MAX {
            return Err(ClaimError::TooMany);
        }
        let one = |record: &[u8]| {
            let (account, amount) = record.split_at(size - 16);
            let payee = address(trim(account))?;
            Ok((payee, leaf(&payee, be128(amount))))
        };
        // The first bad record in table order is reported, on any number of threads.
        let rows = records.par_chunks_exact(size).map(one);
        let read: Vec<Result<_, ClaimError>> = rows.collect();
        for row in read {
            let (payee, leaf) = row?;
            self.payees.0.push(payee);
            self.leaves.push(leaf);
        }
        Ok(())
    }

    /// Ends the input; refuses an address that two records have.
    pub fn finish(self) -> Result<Tree, ClaimError> {
        self.payees.finish()?;
        Ok(Tree::over(&self.leaves))
    }
}

/// A claim tree, and the place of each payee's leaf in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: Vec<Hash>,
    /// By row of the payout table.
    places: Vec<u32>,
}

impl Tree {
    fn over(leaves: &[Hash]) -> Self {
        let count = leaves.len();
        // [`PAYEES_MAX`] is far below 2^31, so rows and places fit 32 bits.
        let mut order: Vec<u32> = (0..count as u32).collect();
        order.par_sort_unstable_by_key(|row| leaves[*row as usize]);
        let mut tree = Self {
            nodes: vec![[0; 32]; (2 * count).saturating_sub(1)],
            places: vec![0; count],
        };
        let size = tree.nodes.len();
        for (rank, row) in order.into_iter().enumerate() {
            let place = size - 1 - rank;
            tree.nodes[place] = leaves[row as usize];
            tree.places[row as usize] = place as u32;
        }
        // Level by level from the bottom: level d has the nodes 2^d - 1 to 2^(d+1) - 2.
        let inner = count.saturating_sub(1);
        let mut below = inner.next_power_of_two().max(1) * 2 - 1;
        while below > 0 {
            let first = below / 2;
            let (above, children) = tree.nodes.split_at_mut(below.min(size));
            let last = inner.min(below);
            if let Some(level) = above.get_mut(first..last) {
                level.par_iter_mut().enumerate().for_each(|(at, node)| {
                    let left = 2 * (first + at) + 1 - below;
                    *node = join(&children[left], &children[left + 1]);
                });
            }
            below = first;
        }
        tree
    }

    /// The root; 32 zero bytes for no payees.
    pub fn root(&self) -> ClaimHash {
        ClaimHash(self.nodes.first().copied().unwrap_or([0; 32]))
    }

    /// The siblings from the leaf of `row` up to the root; `None` for a row that there is not.
    pub fn path(&self, row: usize) -> Option<Vec<ClaimHash>> {
        let mut at = *self.places.get(row)? as usize;
        let mut path = Vec::new();
        while at > 0 {
            path.push(ClaimHash(self.nodes[sibling(at)]));
            at = (at - 1) / 2;
        }
        Some(path)
    }

    /// Passes the stored form to `put`: the nodes, then the place of each row's leaf (4 bytes).
    pub fn each_stored(&self, put: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut put = put;
        put(self.nodes.as_flattened())?;
        for places in self.places.chunks(PLACES) {
            let bytes: Vec<u8> = places.iter().flat_map(|at| at.to_be_bytes()).collect();
            put(&bytes)?;
        }
        Ok(())
    }

    /// Every node, from the root down.
    pub fn nodes(&self) -> &[Hash] {
        &self.nodes
    }

    /// The number of the node of a row's leaf.
    pub fn place(&self, row: usize) -> Option<u32> {
        self.places.get(row).copied()
    }
}

const fn sibling(at: usize) -> usize {
    if at.is_multiple_of(2) { at - 1 } else { at + 1 }
}

/// The path of `row` in a stored tree of `count` payees, of which `read` returns `len` bytes from an
/// offset; `None` if the stored bytes cannot have it. The caller checks the path: the file is a
/// shortcut and is not trusted.
pub fn stored_path(
    count: usize,
    row: usize,
    read: impl Fn(u64, usize) -> Option<Vec<u8>>,
) -> Option<Vec<ClaimHash>> {
    let nodes = 2 * count as u64 - 1;
    let place = read(nodes * 32 + row as u64 * 4, 4)?;
    let place = u32::from_be_bytes(place.try_into().ok()?);
    let mut at = usize::try_from(place).ok()?;
    if u64::from(place) >= nodes {
        return None;
    }
    let mut path = Vec::new();
    while at > 0 {
        let node = read(sibling(at) as u64 * 32, 32)?;
        path.push(ClaimHash(node.try_into().ok()?));
        at = (at - 1) / 2;
    }
    Some(path)
}

/// Why a claim's path does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimPathError {
    #[error("the payee's account is not an address")]
    NotAddress,
    #[error("the claim's path does not end in the root of the claim tree")]
    Root,
}

/// Checks that `payout` is under `root`, as a claim contract does.
pub fn check_path(
    payout: &Payout,
    path: &[ClaimHash],
    root: &ClaimHash,
) -> Result<(), ClaimPathError> {
    let payee = address(payout.account.as_str().as_bytes());
    let payee = payee.map_err(|_| ClaimPathError::NotAddress)?;
    let from = leaf(&payee, payout.amount_minor.0);
    let top = path.iter().fold(from, |node, step| join(&node, &step.0));
    if top == root.0 {
        Ok(())
    } else {
        Err(ClaimPathError::Root)
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
