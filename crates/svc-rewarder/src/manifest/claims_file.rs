//! The claim tree of a payout table, and its file in the form of OpenZeppelin's package.

use std::io::{self, Write as _};

use super::claims::{Grower, Tree};
use super::table::Table;
use super::tree::GROUP;

/// Most payees whose tree is written as one JSON file; larger epochs have proofs by payee alone.
pub const FILE_PAYEES_MAX: usize = 1_000_000;
/// Bytes of JSON written at a time.
const PIECE: usize = 1 << 20;

/// The tree over a payout table, which is read once. The error says what the table has that no claim
/// tree has.
pub fn tree_of(table: &Table) -> Result<Tree, String> {
    let mut grower = Grower::default();
    for first in (0..table.len()).step_by(GROUP) {
        let rows = GROUP.min(table.len() - first);
        let records = table.records(first, rows);
        let records = records.map_err(|error| error.to_string())?;
        let added = grower.add(&records, table.record_size());
        added.map_err(|error| error.to_string())?;
    }
    grower.finish().map_err(|error| error.to_string())
}

/// Passes the tree of `table` to `put` as JSON, as `JSON.stringify(tree.dump())` of OpenZeppelin's
/// package writes it.
pub fn each_json(
    tree: &Tree,
    table: &Table,
    mut put: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut out: Vec<u8> = Vec::with_capacity(PIECE + 1024);
    out.extend_from_slice(
        br#"{"format":"standard-v1","leafEncoding":["address","uint256"],"tree":["#,
    );
    for (at, node) in tree.nodes().iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(out, "{comma}\"0x{}\"", hex::encode(node))?;
        spill(&mut out, PIECE, &mut put)?;
    }
    out.extend_from_slice(br#"],"values":["#);
    for first in (0..table.len()).step_by(GROUP) {
        let rows = GROUP.min(table.len() - first);
        let records = table.records(first, rows)?;
        for (at, record) in records.chunks_exact(table.record_size()).enumerate() {
            let row = first + at;
            let payout = table.payout(row, record).map_err(io::Error::other)?;
            let place = tree.place(row).ok_or(io::ErrorKind::InvalidInput)?;
            let comma = if row == 0 { "" } else { "," };
            let (account, amount) = (&payout.account, payout.amount_minor);
            // Accounts have no character that JSON would escape.
            write!(
                out,
                r#"{comma}{{"value":["{account}","{amount}"],"treeIndex":{place}}}"#
            )?;
        }
        spill(&mut out, PIECE, &mut put)?;
    }
    out.extend_from_slice(b"]}");
    spill(&mut out, 0, &mut put)
}

/// Passes `out` on and empties it, once it has more than `least` bytes.
fn spill(
    out: &mut Vec<u8>,
    least: usize,
    put: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    if out.len() > least {
        put(out)?;
        out.clear();
    }
    Ok(())
}
