//! Changes the private part of one record of a closed log. Leaf, tree and length stay as they are.

use std::path::Path;

use super::archiver::remove_archived;
use super::errors::OpenError;
use super::layout::{
    BATCH_HEADER, BATCH_TAG, BatchHeader, ENTRY_HEADER, SEGMENT_HEADER, entry_holds, entry_len,
    entry_parts, reseal_entry, segment_name,
};
use super::meta::Meta;
use super::segments;
use ron_files::{Disk, write_atomic};

/// Calls `change` with leaf and private part of the record at `index` and stores what it made of the
/// private part. The segment file is written again beside the old one and takes its place at once, so
/// a power cut leaves the old or the new record. A segment in the archive is taken back, and its compressed file, which has the old
/// record, removed. Takes the log's lock.
pub fn rewrite_private(
    disk: &dyn Disk,
    dir: &Path,
    index: u64,
    change: &mut dyn FnMut(&[u8], &mut [u8]) -> Result<(), String>,
) -> Result<(), OpenError> {
    let lock_path = dir.join("lock");
    let lock = disk
        .lock(&lock_path)
        .map_err(OpenError::io("locking", lock_path))?;
    let _lock = lock.ok_or_else(|| OpenError::InUse(dir.to_owned()))?;
    let damaged = |why: &str| OpenError::Damaged {
        index,
        why: why.to_owned(),
    };
    let meta = Meta::load(disk, dir)?.ok_or_else(|| damaged("the directory holds no log"))?;
    let absent = || OpenError::Refused("there is no such entry in the log".to_owned());
    if meta.is_copy() {
        let why = "the directory is a copy of a log that an engine keeps, where the record would stay as it is: move the log to files first";
        return Err(OpenError::Refused(why.to_owned()));
    }
    let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
    let headers = segments::headers(disk, dir, &meta, &segments::numbers(&names))?;
    if headers.is_empty() {
        return Err(absent());
    }
    let (header, len) = &headers[segments::holding(&headers, index)];
    let name = segment_name(header.number);
    let io = |what| OpenError::io(what, dir.join(&name));
    let is_archived = segments::archived(disk, dir, &meta, header.number).map_err(io("reading"))?;
    if is_archived.is_none() {
        // Left by a crash between the two last steps.
        remove_archived(disk, dir, &meta, header.number)?;
    }
    let file = segments::open(disk, dir, &meta, header.number).map_err(io("reading"))?;
    let mut bytes = vec![0; *len as usize];
    let got = file.read_at(0, &mut bytes).map_err(io("reading"))?;
    bytes.truncate(got);
    let place = find(&bytes, &meta, header.first, index).ok_or_else(absent)?;
    let entry = &mut bytes[place];
    if !entry_holds(entry, &meta.salt, index) {
        return Err(damaged("its checksum does not hold"));
    }
    let private_at = entry.len() - entry_parts(entry).1.len();
    let (head, private) = entry.split_at_mut(private_at);
    change(&head[ENTRY_HEADER..], private).map_err(OpenError::Refused)?;
    reseal_entry(entry, &meta.salt, index);
    write_atomic(disk, dir, &name, &bytes).map_err(io("writing"))?;
    remove_archived(disk, dir, &meta, header.number)
}

/// The place of a record in its segment file, which begins with entry `next`.
fn find(bytes: &[u8], meta: &Meta, mut next: u64, index: u64) -> Option<std::ops::Range<usize>> {
    let mut at = SEGMENT_HEADER;
    while at < bytes.len() {
        if bytes[at] == BATCH_TAG {
            let header = BatchHeader::decode(&bytes[at..], &meta.salt)?;
            if header.first != next {
                return None;
            }
            at += BATCH_HEADER;
            continue;
        }
        let len = entry_len(&bytes[at..])?;
        if next == index {
            return (at + len <= bytes.len()).then_some(at..at + len);
        }
        next += 1;
        at += len;
    }
    None
}
