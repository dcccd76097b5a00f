//! A batch as an engine keeps it: the bytes of a segment, with the checksums of a salt that all nodes know, because each must give
//! a batch the same bytes. A directory has a salt of its own, so that no byte of an entry passes for a header where a torn end is
//! searched. Of a batch that goes from one to the other, the checksums alone change.

use ron_crypto::hash::sha256;

use super::layout::{
    BATCH_HEADER, BatchHeader, Salt, entry_holds, entry_len, entry_parts, push_entry, reseal_entry,
    reseal_header,
};
use super::log::Encoded;
use crate::store::{Batch, StoreError};

/// The salt of a log in an engine.
pub(crate) fn salt_of(origin: &str) -> Salt {
    let digest = sha256(format!("ron-tlog/v1/engine-salt\0{origin}").as_bytes());
    Salt::new(*digest.first_chunk().expect("32 bytes are more than 16"))
}

/// Gives a whole batch, whose first entry is `first`, the checksums of another salt.
pub(crate) fn reseal(frame: &mut [u8], first: u64, salt: &Salt) {
    let (header, mut rest) = frame.split_at_mut(BATCH_HEADER);
    reseal_header(header, salt);
    for index in first.. {
        let Some(len) = entry_len(rest) else { break };
        let (entry, after) = rest.split_at_mut(len);
        reseal_entry(entry, salt, index);
        rest = after;
    }
}

/// Gives each entry that has no private part the one that `private` makes of its index and leaf. Leaves, and so the tree, stay as they
/// are.
pub(crate) fn with_private(
    batch: &Batch,
    salt: &Salt,
    private: &mut dyn FnMut(u64, &[u8]) -> Result<Vec<u8>, String>,
) -> Result<Batch, String> {
    let header = BatchHeader::decode(&batch.frame, salt).ok_or("its header is damaged")?;
    let mut frame = vec![0; BATCH_HEADER];
    let mut rest = &batch.frame[BATCH_HEADER..];
    for index in batch.place.first..batch.place.end() {
        let entry = entry_len(rest).and_then(|len| rest.split_at_checked(len));
        let (entry, after) = entry.ok_or("an entry is cut")?;
        let (preimage, kept) = entry_parts(entry);
        // The preimage of a leaf is a zero byte and the leaf.
        let leaf = &preimage[1..];
        if kept.is_empty() {
            let made = private(index, leaf)?;
            if made.len() > usize::from(u16::MAX) {
                return Err(format!("the private part of entry {index} is too long"));
            }
            push_entry(&mut frame, salt, index, leaf, &made);
        } else {
            push_entry(&mut frame, salt, index, leaf, kept);
        }
        rest = after;
    }
    let body = (frame.len() - BATCH_HEADER) as u32;
    frame[..BATCH_HEADER].copy_from_slice(&BatchHeader { body, ..header }.encode(salt));
    Ok(Batch {
        place: batch.place,
        frame,
    })
}

/// Checks that the frame of a batch is whole, is that of its place, and gives the tree in `encoded`, which is the one before it, the
/// root that its place says. Returns the tree after it.
pub(crate) fn decode(
    batch: &Batch,
    salt: &Salt,
    mut encoded: Encoded,
) -> Result<Encoded, StoreError> {
    let place = &batch.place;
    let first = place.first;
    let damaged = |why: &str| StoreError::Damaged(format!("the batch of entry {first}: {why}"));
    let header = BatchHeader::decode(&batch.frame, salt);
    let header = header.ok_or_else(|| damaged("its header is damaged"))?;
    let body = &batch.frame[BATCH_HEADER..];
    let says = (
        header.first,
        header.count,
        header.root,
        header.body as usize,
    );
    if says != (first, place.count, place.before, body.len()) {
        return Err(damaged("its header is of another batch"));
    }
    let mut rest = body;
    for index in first..place.end() {
        let at = (batch.frame.len() - rest.len()) as u64;
        let entry = entry_len(rest).and_then(|len| rest.split_at_checked(len));
        let (entry, after) = entry.ok_or_else(|| damaged("an entry is cut"))?;
        if !entry_holds(entry, salt, index) {
            return Err(damaged("the checksum of an entry does not hold"));
        }
        encoded.take(at, sha256(entry_parts(entry).0));
        rest = after;
    }
    if !rest.is_empty() {
        return Err(damaged("bytes follow its last entry"));
    }
    encoded.root = encoded.frontier.root();
    if encoded.root != place.root {
        return Err(damaged(
            "its entries do not have the root that is kept with it",
        ));
    }
    Ok(encoded)
}
