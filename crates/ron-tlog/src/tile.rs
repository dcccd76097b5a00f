//! C2SP tlog-tiles: names of hash tiles and entry bundles, their widths, and the bundle encoding.
//! Pure.
//!
//! A tile holds up to 256 hashes of one tree level that is a multiple of 8; tile level `l` is tree
//! level `8 * l`.

use std::fmt;

/// Hashes (or entries) in a full tile (or bundle).
pub const TILE_WIDTH: u64 = 256;
/// Tree levels that one tile spans.
pub const TILE_HEIGHT: u32 = 8;
/// Largest entry that a bundle can carry, in bytes.
pub const ENTRY_BYTES_MAX: usize = u16::MAX as usize;
/// Tile levels that a tree of u64 size can have: 0..=7.
pub const LEVELS: u8 = 8;

/// The tile or bundle that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TilePath {
    /// `tile/<level>/<index>[.p/<width>]`
    Hashes {
        level: u8,
        /// Position within the level.
        index: u64,
        /// Number of hashes, 1..=256.
        width: u16,
    },
    /// `tile/entries/<index>[.p/<width>]`
    Entries {
        /// Position of the bundle.
        index: u64,
        /// Number of entries, 1..=256.
        width: u16,
    },
}

impl TilePath {
    /// Parses a path below the log's prefix, as in `tile/0/x001/234.p/17`. Each tile has exactly
    /// one accepted spelling.
    pub fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("tile/")?;
        let (kind, rest) = rest.split_once('/')?;
        let (number, width) = match rest.split_once(".p/") {
            None => (rest, 256),
            Some((number, width)) => (
                number,
                small_decimal(width).filter(|w| (1..=255).contains(w))?,
            ),
        };
        let index = parse_index(number)?;
        if kind == "entries" {
            return Some(Self::Entries { index, width });
        }
        let level = small_decimal(kind).filter(|l| *l < 64)? as u8;
        Some(Self::Hashes {
            level,
            index,
            width,
        })
    }

    /// Whether a tree of `size` leaves has this tile (full, or at least that wide).
    pub fn exists_at(&self, size: u64) -> bool {
        let (level, index, width) = match *self {
            Self::Hashes {
                level,
                index,
                width,
            } => (level, index, width),
            Self::Entries { index, width } => (0, index, width),
        };
        if level >= LEVELS || width == 0 || u64::from(width) > TILE_WIDTH {
            return false;
        }
        let nodes = size >> (TILE_HEIGHT * u32::from(level));
        index
            .checked_mul(TILE_WIDTH)
            .and_then(|s| s.checked_add(u64::from(width)))
            .is_some_and(|end| end <= nodes)
    }
}

impl fmt::Display for TilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, width) = match *self {
            Self::Hashes {
                level,
                index,
                width,
            } => {
                write!(f, "tile/{level}/")?;
                (index, width)
            }
            Self::Entries { index, width } => {
                write!(f, "tile/entries/")?;
                (index, width)
            }
        };
        write_index(f, index)?;
        if u64::from(width) < TILE_WIDTH {
            write!(f, ".p/{width}")
        } else {
            Ok(())
        }
    }
}

/// A plain decimal of at most three digits.
fn small_decimal(text: &str) -> Option<u16> {
    let plain = (1..=3).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// `1234067` is written `x001/x234/067`.
fn write_index(f: &mut fmt::Formatter<'_>, index: u64) -> fmt::Result {
    let mut groups = vec![index % 1000];
    let mut rest = index / 1000;
    while rest > 0 {
        groups.push(rest % 1000);
        rest /= 1000;
    }
    for group in groups[1..].iter().rev() {
        write!(f, "x{group:03}/")?;
    }
    write!(f, "{:03}", groups[0])
}

fn parse_index(text: &str) -> Option<u64> {
    let mut index: u64 = 0;
    let mut groups = text.split('/').peekable();
    let mut first = true;
    while let Some(group) = groups.next() {
        let last = groups.peek().is_none();
        let digits = if last {
            group
        } else {
            group.strip_prefix('x')?
        };
        // Leading zero groups would be a second spelling of the same index.
        if digits.len() != 3
            || !digits.bytes().all(|b| b.is_ascii_digit())
            || (first && !last && digits == "000")
        {
            return None;
        }
        index = index.checked_mul(1000)?.checked_add(digits.parse().ok()?)?;
        first = false;
    }
    Some(index)
}

/// Number of hashes in the rightmost, partial tile of `level` for a tree of `size`; 0 when that
/// level ends in a full tile.
pub fn partial_width(level: u8, size: u64) -> u16 {
    ((size >> (TILE_HEIGHT * u32::from(level))) % TILE_WIDTH) as u16
}

/// The tiles of a tree of `size` leaves: all hash tiles and entry bundles of a full copy of the
/// log.
pub fn tiles_of(size: u64) -> impl Iterator<Item = TilePath> {
    let hashes = (0..LEVELS).flat_map(move |level| {
        tiles_of_level(level, size).map(move |(index, width)| TilePath::Hashes {
            level,
            index,
            width,
        })
    });
    hashes.chain(tiles_of_level(0, size).map(|(index, width)| TilePath::Entries { index, width }))
}

fn tiles_of_level(level: u8, size: u64) -> impl Iterator<Item = (u64, u16)> {
    let nodes = size >> (TILE_HEIGHT * u32::from(level));
    let partial = partial_width(level, size);
    let full = (0..nodes / TILE_WIDTH).map(|index| (index, 256));
    full.chain((partial > 0).then_some((nodes / TILE_WIDTH, partial)))
}

/// Appends one entry to a bundle: its length as two big-endian bytes, then the entry.
///
/// # Panics
/// When the entry is longer than [`ENTRY_BYTES_MAX`]; the log refuses such entries before.
pub fn push_entry(bundle: &mut Vec<u8>, entry: &[u8]) {
    let length =
        u16::try_from(entry.len()).expect("the log admits entries of at most 65,535 bytes");
    bundle.extend_from_slice(&length.to_be_bytes());
    bundle.extend_from_slice(entry);
}

/// Splits a bundle into its entries; `None` when its lengths do not add up.
pub fn split_bundle(mut bundle: &[u8]) -> Option<Vec<&[u8]>> {
    let mut entries = Vec::new();
    while let Some((length, rest)) = bundle.split_first_chunk::<2>() {
        let (entry, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        entries.push(entry);
        bundle = rest;
    }
    bundle.is_empty().then_some(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(path: &str, tile: TilePath) {
        assert_eq!(tile.to_string(), path);
        assert_eq!(TilePath::parse(path), Some(tile));
    }

    #[test]
    fn paths() {
        let hashes = |level, index, width| TilePath::Hashes {
            level,
            index,
            width,
        };
        check("tile/0/000", hashes(0, 0, 256));
        check("tile/0/x001/x234/067", hashes(0, 1_234_067, 256));
        check("tile/2/005.p/17", hashes(2, 5, 17));
        check(
            "tile/entries/x001/000.p/255",
            TilePath::Entries {
                index: 1000,
                width: 255,
            },
        );
        for wrong in [
            "tile/0/0",
            "tile/0/x000/000",
            "tile/00/000",
            "tile/64/000",
            "tile/0/000.p/0",
            "tile/0/000.p/256",
            "tile/0/000.p/01",
            "tile/0/001/000",
            "tile/0/x001",
            "tile/0/x001/x000",
            "tile/0/",
            "tile/0",
            "tile/data/000",
            "tile/-1/000",
            "tile/0/x999/x999/x999/x999/x999/x999/x999/999",
            "tile/0/000/",
            "/tile/0/000",
            "tile/0/+00",
        ] {
            assert_eq!(TilePath::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_tiles_of_seventy_thousand_leaves() {
        // The example of the specification: 273 full and one partial (112) tile of level 0, one
        // full and one of 17 of level 1, one of 1.
        let hashes: Vec<_> = tiles_of(70_000)
            .filter(|t| matches!(t, TilePath::Hashes { .. }))
            .collect();
        assert_eq!(hashes.len(), 273 + 1 + 1 + 1 + 1);
        assert!(hashes.contains(&TilePath::Hashes {
            level: 0,
            index: 273,
            width: 112
        }));
        assert!(hashes.contains(&TilePath::Hashes {
            level: 1,
            index: 1,
            width: 17
        }));
        assert!(hashes.contains(&TilePath::Hashes {
            level: 2,
            index: 0,
            width: 1
        }));
        assert_eq!(partial_width(1, 256), 1);
        assert_eq!(partial_width(0, 256), 0);
        for size in [0, 1, 255, 256, 257, 65_536, 70_000] {
            for tile in tiles_of(size) {
                assert!(tile.exists_at(size), "{tile} of {size}");
                let wide = match tile {
                    TilePath::Hashes { width, .. } | TilePath::Entries { width, .. } => {
                        u64::from(width)
                    }
                };
                assert!(
                    wide == 256
                        || size == 0
                        || !tile.exists_at(size - 1)
                        || tile.to_string().starts_with("tile/1")
                        || tile.to_string().starts_with("tile/2")
                );
            }
        }
        assert!(
            !TilePath::Hashes {
                level: 0,
                index: u64::MAX,
                width: 256
            }
            .exists_at(u64::MAX)
        );
    }

    proptest! {
        #[test]
        fn every_tile_has_one_path(level in 0u8..64, index in any::<u64>(), width in 1u16..=256, entries in any::<bool>()) {
            let tile = if entries { TilePath::Entries { index, width } } else { TilePath::Hashes { level, index, width } };
            prop_assert_eq!(TilePath::parse(&tile.to_string()), Some(tile));
        }

        #[test]
        fn bundles_split_as_they_were_joined(entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20), cut in 1usize..40) {
            let mut bundle = Vec::new();
            for entry in &entries {
                push_entry(&mut bundle, entry);
            }
            let split = split_bundle(&bundle).expect("whole");
            prop_assert_eq!(&split, &entries.iter().map(Vec::as_slice).collect::<Vec<_>>());
            if !bundle.is_empty() {
                let shorter = &bundle[..bundle.len() - cut.min(bundle.len())];
                let prefix = split_bundle(shorter);
                prop_assert!(prefix.is_none_or(|p| p.len() < entries.len()));
            }
        }
    }
}
