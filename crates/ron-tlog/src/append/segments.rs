//! The segment files of a directory, by what their headers say.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archived::{Archived, StandIn, find};
use super::errors::OpenError;
use super::layout::{FORMAT, SEGMENT_HEADER, SegmentHeader, segment_name, segment_number};
use super::meta::Meta;
use ron_files::{Disk, DiskFile};

/// Opens a segment for reading, in the directory of the log or in the archive.
pub(crate) fn open(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    number: u64,
) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open_read(&dir.join(segment_name(number)))?;
    wherever_it_is(disk, dir, meta, number, file)
}

/// As [`open`], and for writing when it is in the directory of the log.
pub(crate) fn open_write(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    number: u64,
) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open_write(&dir.join(segment_name(number)))?;
    wherever_it_is(disk, dir, meta, number, file)
}

/// `file`, unless that only stands for a segment in the archive, which is opened then.
fn wherever_it_is(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    number: u64,
    file: Arc<dyn DiskFile>,
) -> io::Result<Arc<dyn DiskFile>> {
    let Some(stand_in) = StandIn::read(&*file, &meta.salt)? else {
        return Ok(file);
    };
    let packed = disk.open_read(&find(disk, dir, meta, number)?)?;
    Ok(Arc::new(Archived::open(packed, stand_in.len)?))
}

/// The compressed file of a segment that is archived.
pub(crate) fn archived(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    number: u64,
) -> io::Result<Option<PathBuf>> {
    let file = disk.open_read(&dir.join(segment_name(number)))?;
    let stand_in = StandIn::read(&*file, &meta.salt)?;
    stand_in.map(|_| find(disk, dir, meta, number)).transpose()
}

/// The indexes of the entries of an archived segment; `None` of another one.
pub(crate) fn archived_range(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    number: u64,
) -> io::Result<Option<Range<u64>>> {
    let stand_in = |number| match disk.open_read(&dir.join(segment_name(number))) {
        Ok(file) => StandIn::read(&*file, &meta.salt),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    };
    if stand_in(number)?.is_none() {
        return Ok(None);
    }
    let first = |number| -> io::Result<Option<u64>> {
        let (head, _) = head(disk, dir, meta, number)?;
        let header = decode(&head, meta, number).ok();
        Ok(header.map(|header| header.first))
    };
    let (Some(from), Some(to)) = (first(number)?, first(number + 1)?) else {
        return Ok(None);
    };
    Ok(Some(from..to))
}

/// Header and length of a segment. Of an archived one they are in its directory.
fn head(disk: &dyn Disk, dir: &Path, meta: &Meta, number: u64) -> io::Result<(Vec<u8>, u64)> {
    let file = disk.open_read(&dir.join(segment_name(number)))?;
    if let Some(stand_in) = StandIn::read(&*file, &meta.salt)? {
        return Ok((stand_in.head.to_vec(), stand_in.len));
    }
    let mut head = vec![0; SEGMENT_HEADER];
    let got = file.read_at(0, &mut head)?;
    head.truncate(got);
    Ok((head, file.len()?))
}

/// Numbers of the segment files, ascending.
pub(crate) fn numbers(names: &[String]) -> Vec<u64> {
    let mut numbers: Vec<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
    numbers.sort_unstable();
    numbers
}

/// Header and length of every segment file, in order. Their places in the log must fit each other; what the
/// log had before each is not checked here.
pub(crate) fn headers(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    numbers: &[u64],
) -> Result<Vec<(SegmentHeader, u64)>, OpenError> {
    let mut found: Vec<(SegmentHeader, u64)> = Vec::with_capacity(numbers.len());
    for (at, number) in numbers.iter().enumerate() {
        let last = found.last().map(|(header, len)| (header.first, *len));
        // The index of the error: the last one that is known to come before the damage.
        let damaged = |why| OpenError::Damaged {
            index: last.map_or(0, |(first, _)| first),
            why,
        };
        let name = segment_name(at as u64);
        if at as u64 != *number {
            return Err(damaged(format!("the segment file {name} is missing")));
        }
        let path = dir.join(&name);
        let head = head(disk, dir, meta, *number);
        let (head, len) = head.map_err(OpenError::io("reading", &path))?;
        let header = decode(&head, meta, *number).map_err(|fault| match fault {
            Fault::Newer(error) => error,
            Fault::Damaged(why) => damaged(why),
        })?;
        let follows = match last {
            None => header.first == 0,
            // Format 2 does not know the length.
            Some((first, len)) => header.first > first && [0, len].contains(&header.previous_len),
        };
        if !follows {
            return Err(damaged(format!(
                "{name} does not follow the segment before it"
            )));
        }
        found.push((header, len));
    }
    Ok(found)
}

enum Fault {
    Newer(OpenError),
    Damaged(String),
}

fn decode(head: &[u8], meta: &Meta, number: u64) -> Result<SegmentHeader, Fault> {
    let version = head
        .get(8..12)
        .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    if head.starts_with(b"RONTLSEG") && version > FORMAT {
        return Err(Fault::Newer(OpenError::NewerFormat {
            file: segment_name(number),
            found: version,
            known: FORMAT,
        }));
    }
    let header = SegmentHeader::decode(head, &meta.salt, &meta.origin).map_err(Fault::Damaged)?;
    if (header.number, header.segment_entries) != (number, meta.segment_entries) {
        let why = format!("{} holds another segment", segment_name(number));
        return Err(Fault::Damaged(why));
    }
    Ok(header)
}

/// Position of the segment that holds the entry at `index`; the last one also for entries that do not exist. There must
/// be a segment.
pub(crate) fn holding(headers: &[(SegmentHeader, u64)], index: u64) -> usize {
    headers.partition_point(|(header, _)| header.first <= index) - 1
}
