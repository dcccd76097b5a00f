//! The bytes of segment and index files. Pure encoding and decoding; little-endian; every checksum
//! is CRC-32 over the log's salt and the bytes, so that neither a file of another log nor bytes
//! inside an entry are taken for a header.
//!
//! ```text
//! segment header, 128 bytes            batch header, 72 bytes             record, 10 bytes + leaf + private part
//!   0 "RONTLSEG"                         0 B7 "RTB"                         0 E5
//!   8 u32 format                         4 u32 records in the batch         1 u16 length of the leaf
//!  12 u32 records of a block             8 u32 bytes that follow            3 u16 length of the private part
//!  16 u64 segment number                12 u32 0                            5 u32 crc(salt, u64 index, leaf, private part)
//!  24 u64 index of its first record     16 u64 index of its first record    9 00 (RFC 6962 leaf prefix)
//!  32 root of the tree before it        24 root of the tree before it      10 leaf, private part
//!  64 SHA-256 of the origin             56 u64 size of the checkpoint      index header, 128 bytes
//!  96 u64 size of the checkpoint           published by then                 0 "RONTLIDX"
//!     published by then                 64 u32 0                             8 u32 format, 12 u32 entries
//! 104 u64 length of the segment         68 u32 crc(salt, bytes 0..68)       16 u64 block, 24 u64 first index
//!     before it                                                             32 u64 0
//! 112 0                                                                     40 u32 crc of the tile roots
//! 124 u32 crc(salt, bytes 0..124)                                           44 u32 crc of the rest of the body
//!                                                                           48 root of the block
//! index body: 32 * n/256 tile roots (tree level 8),                        124 u32 crc(salt, bytes 0..124)
//!             8 * n/64 offsets of every 64th entry in its segment file,
//!             32 * n leaf hashes
//! ```
//!
//! A segment holds whole batches, so its number of entries varies. A block is a run of entries of a fixed length at a multiple of
//! that length: what one index file describes. In format 2 both were the same.

use std::ops::Range;

use ron_crypto::hash::sha256;

use crate::tile::TILE_WIDTH;
use crate::tree::Hash;

/// Version of all files of this crate.
pub(crate) const FORMAT: u32 = 3;
/// Oldest version that is read: there each segment is one block, and no header knows the length of the segment before it.
pub(crate) const OLDEST: u32 = 2;
pub(crate) const SEGMENT_HEADER: usize = 128;
pub(crate) const BATCH_HEADER: usize = 72;
pub(crate) const ENTRY_HEADER: usize = 10;
pub(crate) const INDEX_HEADER: usize = 128;
/// The file offset of every 64th entry is kept.
pub(crate) const STRIDE: u64 = 64;
/// Maximum bytes of entries (with their headers) in one batch.
pub(crate) const BATCH_BODY_MAX: usize = 64 * 1024 * 1024;
pub(crate) const BATCH_TAG: u8 = 0xB7;
pub(crate) const ENTRY_TAG: u8 = 0xE5;
const BATCH_MAGIC: [u8; 4] = [BATCH_TAG, b'R', b'T', b'B'];

/// The random bytes that start every checksum of one log, with the CRC state after them.
#[derive(Clone)]
pub(crate) struct Salt {
    bytes: [u8; 16],
    start: crc32fast::Hasher,
}

impl Salt {
    pub fn new(bytes: [u8; 16]) -> Self {
        let mut start = crc32fast::Hasher::new();
        start.update(&bytes);
        Self { bytes, start }
    }

    pub fn bytes(&self) -> &[u8; 16] {
        &self.bytes
    }

    pub fn crc(&self, bytes: &[u8]) -> u32 {
        let mut crc = self.start.clone();
        crc.update(bytes);
        crc.finalize()
    }

    /// `parts` are the leaf and the private part, together or one after the other.
    fn entry_crc(&self, index: u64, parts: &[&[u8]]) -> u32 {
        let mut crc = self.start.clone();
        crc.update(&index.to_le_bytes());
        for part in parts {
            crc.update(part);
        }
        crc.finalize()
    }
}

impl PartialEq for Salt {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Salt {}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Salt({})", hex::encode(self.bytes))
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn hash_at(bytes: &[u8], at: usize) -> Hash {
    bytes[at..at + 32].try_into().expect("32 bytes")
}

/// Splits bytes into hashes; a rest shorter than a hash is dropped.
pub(crate) fn hashes_of(bytes: &[u8]) -> Vec<Hash> {
    bytes.chunks_exact(32).map(|c| hash_at(c, 0)).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub segment_entries: u64,
    pub number: u64,
    pub first: u64,
    pub root: Hash,
    pub checkpoint_size: u64,
    /// Length of the file of the segment before it; 0 for the first one, and in format 2.
    pub previous_len: u64,
}

impl SegmentHeader {
    pub fn encode(&self, salt: &Salt, origin: &str) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(b"RONTLSEG");
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.segment_entries as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first.to_le_bytes());
        bytes[32..64].copy_from_slice(&self.root);
        bytes[64..96].copy_from_slice(&sha256(origin.as_bytes()));
        bytes[96..104].copy_from_slice(&self.checkpoint_size.to_le_bytes());
        bytes[104..112].copy_from_slice(&self.previous_len.to_le_bytes());
        let crc = salt.crc(&bytes[..124]);
        bytes[124..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes and checks a header; the error text says what is wrong.
    pub fn decode(bytes: &[u8], salt: &Salt, origin: &str) -> Result<Self, String> {
        if bytes.len() < SEGMENT_HEADER || &bytes[..8] != b"RONTLSEG" {
            return Err("the segment file has no header".into());
        }
        // The version before the checksum: another format may place the checksum elsewhere.
        let format = u32_at(bytes, 8);
        if !(OLDEST..=FORMAT).contains(&format) {
            return Err(format!(
                "the segment file has format {format}, this program reads {OLDEST} to {FORMAT}"
            ));
        }
        if salt.crc(&bytes[..124]) != u32_at(bytes, 124)
            || hash_at(bytes, 64) != sha256(origin.as_bytes())
        {
            return Err("the header of the segment file is damaged or of another log".into());
        }
        Ok(Self {
            segment_entries: u64::from(u32_at(bytes, 12)),
            number: u64_at(bytes, 16),
            first: u64_at(bytes, 24),
            root: hash_at(bytes, 32),
            checkpoint_size: u64_at(bytes, 96),
            previous_len: u64_at(bytes, 104),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub count: u32,
    pub body: u32,
    pub first: u64,
    pub root: Hash,
    pub checkpoint_size: u64,
}

impl BatchHeader {
    pub fn encode(&self, salt: &Salt) -> [u8; BATCH_HEADER] {
        let mut bytes = [0; BATCH_HEADER];
        bytes[..4].copy_from_slice(&BATCH_MAGIC);
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..56].copy_from_slice(&self.root);
        bytes[56..64].copy_from_slice(&self.checkpoint_size.to_le_bytes());
        let crc = salt.crc(&bytes[..68]);
        bytes[68..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` when the bytes are not a whole batch header of this log.
    pub fn decode(bytes: &[u8], salt: &Salt) -> Option<Self> {
        if bytes.len() < BATCH_HEADER
            || bytes[..4] != BATCH_MAGIC
            || salt.crc(&bytes[..68]) != u32_at(bytes, 68)
        {
            return None;
        }
        Some(Self {
            count: u32_at(bytes, 4),
            body: u32_at(bytes, 8),
            first: u64_at(bytes, 16),
            root: hash_at(bytes, 24),
            checkpoint_size: u64_at(bytes, 56),
        })
    }
}

/// Appends a record to a batch being built and returns the place of its leaf preimage (a zero byte
/// and the leaf). The stored bytes contain the preimage, so that hashing a leaf copies nothing.
pub(crate) fn push_entry(
    out: &mut Vec<u8>,
    salt: &Salt,
    index: u64,
    leaf: &[u8],
    private: &[u8],
) -> Range<usize> {
    out.push(ENTRY_TAG);
    for part in [leaf, private] {
        let length = u16::try_from(part.len()).expect("the log checks the length before");
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(&salt.entry_crc(index, &[leaf, private]).to_le_bytes());
    let preimage = out.len()..out.len() + 1 + leaf.len();
    out.push(0);
    out.extend_from_slice(leaf);
    out.extend_from_slice(private);
    preimage
}

fn leaf_end(entry: &[u8]) -> usize {
    ENTRY_HEADER + usize::from(u16::from_le_bytes([entry[1], entry[2]]))
}

/// Length of the whole record that starts with these ten bytes; `None` when they are not a record's.
pub(crate) fn entry_len(header: &[u8]) -> Option<usize> {
    let ok = header.len() >= ENTRY_HEADER && header[0] == ENTRY_TAG && header[9] == 0;
    ok.then(|| leaf_end(header) + usize::from(u16::from_le_bytes([header[3], header[4]])))
}

/// Whether these bytes are the whole, undamaged record of `index`. The checksum covers the index, so
/// that a record moved to another place does not match.
pub(crate) fn entry_holds(entry: &[u8], salt: &Salt, index: u64) -> bool {
    entry_len(entry) == Some(entry.len())
        && salt.entry_crc(index, &[&entry[ENTRY_HEADER..]]) == u32_at(entry, 5)
}

/// Writes the checksum of a batch header whose bytes stay.
pub(crate) fn reseal_header(header: &mut [u8], salt: &Salt) {
    let crc = salt.crc(&header[..68]);
    header[68..BATCH_HEADER].copy_from_slice(&crc.to_le_bytes());
}

/// Writes the checksum of a record whose bytes have changed.
pub(crate) fn reseal_entry(entry: &mut [u8], salt: &Salt, index: u64) {
    let crc = salt.entry_crc(index, &[&entry[ENTRY_HEADER..]]);
    entry[5..9].copy_from_slice(&crc.to_le_bytes());
}

/// The leaf preimage and the private part of a whole record.
pub(crate) fn entry_parts(entry: &[u8]) -> (&[u8], &[u8]) {
    let end = leaf_end(entry);
    (&entry[ENTRY_HEADER - 1..end], &entry[end..])
}

/// The derived file of a full block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexHeader {
    pub segment_entries: u64,
    pub number: u64,
    pub root: Hash,
    roots_crc: u32,
    rest_crc: u32,
}

/// Offsets of the parts of an index file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexParts {
    pub offsets: u64,
    pub leaves: u64,
    pub end: u64,
}

impl IndexParts {
    pub fn of(segment_entries: u64) -> Self {
        let offsets = INDEX_HEADER as u64 + segment_entries / TILE_WIDTH * 32;
        let leaves = offsets + segment_entries / STRIDE * 8;
        Self {
            offsets,
            leaves,
            end: leaves + segment_entries * 32,
        }
    }
}

/// Builds a whole index file.
pub(crate) fn encode_index(
    salt: &Salt,
    number: u64,
    root: &Hash,
    tile_roots: &[Hash],
    offsets: &[u64],
    leaves: &[Hash],
) -> Vec<u8> {
    let parts = IndexParts::of(leaves.len() as u64);
    let mut bytes = vec![0; INDEX_HEADER];
    bytes.reserve(parts.end as usize - INDEX_HEADER);
    bytes.extend_from_slice(tile_roots.as_flattened());
    for offset in offsets {
        bytes.extend_from_slice(&offset.to_le_bytes());
    }
    bytes.extend_from_slice(leaves.as_flattened());
    assert_eq!(
        bytes.len() as u64,
        parts.end,
        "the parts of an index have their sizes"
    );
    let roots_crc = salt.crc(&bytes[INDEX_HEADER..parts.offsets as usize]);
    let rest_crc = salt.crc(&bytes[parts.offsets as usize..]);
    bytes[..8].copy_from_slice(b"RONTLIDX");
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[12..16].copy_from_slice(&(leaves.len() as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&number.to_le_bytes());
    bytes[24..32].copy_from_slice(&(number * leaves.len() as u64).to_le_bytes());
    bytes[40..44].copy_from_slice(&roots_crc.to_le_bytes());
    bytes[44..48].copy_from_slice(&rest_crc.to_le_bytes());
    bytes[48..80].copy_from_slice(root);
    let crc = salt.crc(&bytes[..124]);
    bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Decodes the header and the tile roots of an index file; `None` when they are damaged.
pub(crate) fn decode_index_head(bytes: &[u8], salt: &Salt) -> Option<(IndexHeader, Vec<Hash>)> {
    let head = bytes.get(..INDEX_HEADER)?;
    if &head[..8] != b"RONTLIDX"
        || !(OLDEST..=FORMAT).contains(&u32_at(head, 8))
        || salt.crc(&head[..124]) != u32_at(head, 124)
    {
        return None;
    }
    let header = IndexHeader {
        segment_entries: u64::from(u32_at(head, 12)),
        number: u64_at(head, 16),
        root: hash_at(head, 48),
        roots_crc: u32_at(head, 40),
        rest_crc: u32_at(head, 44),
    };
    let roots = bytes.get(INDEX_HEADER..IndexParts::of(header.segment_entries).offsets as usize)?;
    (salt.crc(roots) == header.roots_crc).then(|| (header, hashes_of(roots)))
}

/// Decodes the leaf hashes of a whole index file; `None` when any part of it is damaged.
pub(crate) fn decode_index_leaves(bytes: &[u8], salt: &Salt) -> Option<Vec<Hash>> {
    let (header, _) = decode_index_head(bytes, salt)?;
    let parts = IndexParts::of(header.segment_entries);
    let rest = bytes.get(parts.offsets as usize..)?;
    let whole = bytes.len() as u64 == parts.end && salt.crc(rest) == header.rest_crc;
    whole.then(|| hashes_of(&bytes[parts.leaves as usize..]))
}

/// `00000012.seg`
pub(crate) fn segment_name(number: u64) -> String {
    format!("{number:08}.seg")
}

/// `00000012.idx`
pub(crate) fn index_name(number: u64) -> String {
    format!("{number:08}.idx")
}

/// The number in a segment file's name.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    let number: u64 = digits.parse().ok()?;
    // Only the canonical form: "1.seg" is no file of ours.
    (segment_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt() -> Salt {
        Salt::new([3; 16])
    }

    #[test]
    fn headers_round_trip_and_detect_every_changed_byte() {
        let segment = SegmentHeader {
            segment_entries: 256,
            number: 2,
            first: 512,
            root: [4; 32],
            checkpoint_size: 511,
            previous_len: 70_000,
        };
        let bytes = segment.encode(&salt(), "o");
        assert_eq!(SegmentHeader::decode(&bytes, &salt(), "o"), Ok(segment));
        assert!(SegmentHeader::decode(&bytes, &salt(), "p").is_err());
        assert!(SegmentHeader::decode(&bytes, &Salt::new([9; 16]), "o").is_err());
        for at in 0..bytes.len() {
            let mut changed = bytes;
            changed[at] ^= 0x40;
            assert!(
                SegmentHeader::decode(&changed, &salt(), "o").is_err(),
                "byte {at}"
            );
        }
        let batch = BatchHeader {
            count: 3,
            body: 99,
            first: 515,
            root: [6; 32],
            checkpoint_size: 512,
        };
        let bytes = batch.encode(&salt());
        assert_eq!(BatchHeader::decode(&bytes, &salt()), Some(batch));
        for at in 0..bytes.len() {
            let mut changed = bytes;
            changed[at] ^= 0x40;
            assert_eq!(BatchHeader::decode(&changed, &salt()), None, "byte {at}");
        }
    }

    #[test]
    fn entries_know_their_place() {
        let mut bytes = Vec::new();
        let leaf = push_entry(&mut bytes, &salt(), 7, b"data", b"private");
        assert_eq!(&bytes[leaf], b"\0data");
        assert_eq!(entry_parts(&bytes), (&b"\0data"[..], &b"private"[..]));
        assert!(entry_holds(&bytes, &salt(), 7));
        assert!(!entry_holds(&bytes, &salt(), 8), "another index");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(!entry_holds(&changed, &salt(), 7), "byte {at}");
        }
    }

    #[test]
    fn an_index_round_trips_and_detects_every_changed_byte() {
        let leaves: Vec<Hash> = (0..=255).map(|i| [i; 32]).collect();
        let bytes = encode_index(
            &salt(),
            1,
            &[8; 32],
            &[[8; 32]],
            &[128, 500, 900, 1300],
            &leaves,
        );
        let (header, roots) = decode_index_head(&bytes, &salt()).expect("whole");
        assert_eq!(
            (header.number, header.root, roots),
            (1, [8; 32], vec![[8; 32]])
        );
        assert_eq!(decode_index_leaves(&bytes, &salt()), Some(leaves));
        for at in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert_eq!(decode_index_leaves(&changed, &salt()), None, "byte {at}");
        }
        assert_eq!(segment_number("00000012.seg"), Some(12));
        assert_eq!(
            segment_number(&segment_name(123_456_789)),
            Some(123_456_789)
        );
        for wrong in ["12.seg", "00000012.idx", "-0000012.seg", "00000012.seg.tmp"] {
            assert_eq!(segment_number(wrong), None, "{wrong}");
        }
    }
}
