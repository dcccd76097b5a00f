//! The parts of Thrift's compact protocol that bound what the Parquet library does with a file: how large a page claims
//! to be (the second and third field of its header), and the types in its header and in the index at the end of the file.
//!
//! The library reads a known field without looking at its type, and passes over an element of a collection of booleans, or
//! beyond the end of the file, without reading a byte: a few bytes could claim billions of elements and keep it busy for minutes.

/// The sizes a page header claims.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageHead {
    /// Bytes of the page after decompression.
    pub unpacked: i64,
    /// Bytes of the page in the file.
    pub packed: i64,
    pub length: usize,
}

/// Why no header could be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The input ends within the header.
    Short,
    /// The bytes are not a page header.
    Bad,
}

/// Maximum nesting of structures; Parquet uses three levels.
const DEPTH_MAX: u32 = 8;

/// A type of the index, as the format defines it.
enum Type {
    Bool,
    Byte,
    I16,
    I32,
    I64,
    Double,
    Binary,
    List(&'static Type),
    Struct(Fields),
}

/// Numbers and types of a structure's fields.
type Fields = &'static [(i64, Type)];

use Type::{Binary, Bool, Byte, Double, I16, I32, I64, List, Struct};

const KEY_VALUE: Type = Struct(&[(1, Binary), (2, Binary)]);
const EMPTY: Type = Struct(&[]);
const TIME: Type = Struct(&[
    (1, Bool),
    (2, Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)])),
]);
const LOGICAL: Type = Struct(&[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, I32), (2, I32)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Struct(&[(1, Byte), (2, Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Struct(&[(1, Byte)])),
    (17, Struct(&[(1, Binary)])),
    (18, Struct(&[(1, Binary), (2, I32)])),
]);
const SCHEMA: Type = Struct(&[
    (1, I32),
    (2, I32),
    (3, I32),
    (4, Binary),
    (5, I32),
    (6, I32),
    (7, I32),
    (8, I32),
    (9, I32),
    (10, LOGICAL),
]);
const STATISTICS: Type = Struct(&[
    (1, Binary),
    (2, Binary),
    (3, I64),
    (4, I64),
    (5, Binary),
    (6, Binary),
    (7, Bool),
    (8, Bool),
    (9, I64),
]);
const BOX: Type = Struct(&[
    (1, Double),
    (2, Double),
    (3, Double),
    (4, Double),
    (5, Double),
    (6, Double),
    (7, Double),
    (8, Double),
]);
const COLUMN: Type = Struct(&[
    (1, I32),
    (2, List(&I32)),
    (3, List(&Binary)),
    (4, I32),
    (5, I64),
    (6, I64),
    (7, I64),
    (8, List(&KEY_VALUE)),
    (9, I64),
    (10, I64),
    (11, I64),
    (12, STATISTICS),
    (13, List(&Struct(&[(1, I32), (2, I32), (3, I32)]))),
    (14, I64),
    (15, I32),
    (16, Struct(&[(1, I64), (2, List(&I64)), (3, List(&I64))])),
    (17, Struct(&[(1, BOX), (2, List(&I32))])),
]);
const CHUNK: Type = Struct(&[
    (1, Binary),
    (2, I64),
    (3, COLUMN),
    (4, I64),
    (5, I32),
    (6, I64),
    (7, I32),
]);
const ROW_GROUP: Type = Struct(&[
    (1, List(&CHUNK)),
    (2, I64),
    (3, I64),
    (4, List(&Struct(&[(1, I32), (2, Bool), (3, Bool)]))),
    (5, I64),
    (6, I64),
    (7, I16),
]);
const INDEX: Fields = &[
    (1, I32),
    (2, List(&SCHEMA)),
    (3, I64),
    (4, List(&ROW_GROUP)),
    (5, List(&KEY_VALUE)),
    (6, Binary),
    (7, List(&Struct(&[(1, EMPTY), (2, EMPTY)]))),
];

const PAGE: Fields = &[
    (1, I32),
    (2, I32),
    (3, I32),
    (4, I32),
    (
        5,
        Struct(&[(1, I32), (2, I32), (3, I32), (4, I32), (5, STATISTICS)]),
    ),
    (6, EMPTY),
    (7, Struct(&[(1, I32), (2, I32), (3, Bool)])),
    (
        8,
        Struct(&[
            (1, I32),
            (2, I32),
            (3, I32),
            (4, I32),
            (5, I32),
            (6, I32),
            (7, Bool),
            (8, STATISTICS),
        ]),
    ),
];

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Reads the header at the front of `bytes`, which must have the types of the format.
pub(super) fn page_header(bytes: &[u8]) -> Result<PageHead, Fault> {
    let mut reader = Reader { bytes, at: 0 };
    reader.structure(PAGE, 0)?;
    reader.at = 0;
    let (mut unpacked, mut packed) = (None, None);
    let mut id = 0;
    while let Some((kind, next)) = reader.field(id)? {
        id = next;
        match id {
            2 => unpacked = Some(reader.zigzag()?),
            3 => packed = Some(reader.zigzag()?),
            _ => reader.skip(kind, 0)?,
        }
    }
    match (unpacked, packed) {
        (Some(unpacked), Some(packed)) => Ok(PageHead {
            unpacked,
            packed,
            length: reader.at,
        }),
        _ => Err(Fault::Bad),
    }
}

/// Checks that the index of a file has the types of the format and no collection of booleans. Fields that the format gets
/// later may have any other type.
pub(super) fn check_index(bytes: &[u8]) -> Result<(), Fault> {
    Reader { bytes, at: 0 }.structure(INDEX, 0)
}

impl Reader<'_> {
    fn structure(&mut self, fields: Fields, depth: u32) -> Result<(), Fault> {
        let mut id = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            // Numbers that jump or go back are written in a longer form, which no writer needs here.
            let step = i64::from(head >> 4);
            if step == 0 {
                return Err(Fault::Bad);
            }
            id += step;
            match fields.iter().find(|(known, _)| *known == id) {
                Some((_, of)) => self.value(of, head & 0x0f, depth + 1)?,
                None => self.pass(head & 0x0f, depth + 1)?,
            }
        }
    }

    /// Passes over a value that must have this type.
    fn value(&mut self, of: &Type, kind: u8, depth: u32) -> Result<(), Fault> {
        if depth > DEPTH_MAX {
            return Err(Fault::Bad);
        }
        match (of, kind) {
            (Struct(fields), 12) => self.structure(fields, depth),
            (List(of), 9) => {
                let (kind, count) = self.collection()?;
                (0..count).try_for_each(|_| self.value(of, kind, depth))
            }
            (Bool, 1 | 2)
            | (Byte, 3)
            | (I16, 4)
            | (I32, 5)
            | (I64, 6)
            | (Double, 7)
            | (Binary, 8) => self.skip(kind, depth),
            _ => Err(Fault::Bad),
        }
    }

    /// Passes over a value of a field that is not known.
    fn pass(&mut self, kind: u8, depth: u32) -> Result<(), Fault> {
        if depth > DEPTH_MAX {
            return Err(Fault::Bad);
        }
        match kind {
            9 | 10 => {
                let (kind, count) = self.collection()?;
                (0..count).try_for_each(|_| self.pass(kind, depth + 1))
            }
            12 => self.structure(&[], depth),
            kind => self.skip(kind, depth),
        }
    }

    /// The element type and length of a list or set. An element takes at least one byte.
    fn collection(&mut self) -> Result<(u8, u64), Fault> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => count.into(),
        };
        let booleans = matches!(head & 0x0f, 1 | 2);
        if count > (self.bytes.len() - self.at) as u64 || (booleans && count > 0) {
            return Err(Fault::Bad);
        }
        Ok((head & 0x0f, count))
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = self.bytes.get(self.at).ok_or(Fault::Short)?;
        self.at += 1;
        Ok(*byte)
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Fault::Bad)
    }

    fn zigzag(&mut self) -> Result<i64, Fault> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn advance(&mut self, count: u64) -> Result<(), Fault> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left {
            return Err(Fault::Short);
        }
        self.at += count as usize;
        Ok(())
    }

    /// The type and number of the next field of a structure; `None` at the structure's end.
    fn field(&mut self, before: i64) -> Result<Option<(u8, i64)>, Fault> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => self.zigzag()?,
            step => before.saturating_add(i64::from(step)),
        };
        Ok(Some((head & 0x0f, id)))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), Fault> {
        if depth > DEPTH_MAX {
            return Err(Fault::Bad);
        }
        match kind {
            1 | 2 => Ok(()), // a boolean in a structure is its type
            3 => self.advance(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.advance(8),
            8 => {
                let length = self.varint()?;
                self.advance(length)
            }
            12 => {
                let mut id = 0;
                while let Some((kind, next)) = self.field(id)? {
                    id = next;
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            // Page headers hold no lists, sets or maps, and the index no maps.
            _ => Err(Fault::Bad),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page of 300 values: type 0, uncompressed 1000, compressed 500, then its own structure
    /// with statistics, as Parquet writers emit it.
    const HEAD: [u8; 26] = [
        0x15, 0x00, 0x15, 0xd0, 0x0f, 0x15, 0xe8, 0x07, 0x2c, 0x15, 0xd8, 0x04, 0x15, 0x00, 0x15,
        0x06, 0x15, 0x06, 0x1c, 0x18, 0x01, 0x61, 0x61, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn sizes_and_end_are_found() {
        let mut bytes = HEAD.to_vec();
        bytes.extend([7; 10]);
        let head = page_header(&bytes).expect("a header");
        assert_eq!(
            head,
            PageHead {
                unpacked: 1000,
                packed: 500,
                length: HEAD.len()
            }
        );
    }

    #[test]
    fn a_page_header_has_the_types_of_the_format() {
        let bad = |at: usize, byte: u8| {
            let mut bytes = HEAD.to_vec();
            bytes[at] = byte;
            bytes.extend([0; 64]);
            assert_eq!(page_header(&bytes), Err(Fault::Bad), "{byte:x} at {at}");
        };
        bad(0, 0x18); // a text in place of a number
        bad(2, 0x16); // another number in place of the size
        bad(8, 0x28); // a text in place of the structure of its kind
        bad(8, 0x29); // a list
        bad(9, 0x1c); // a structure in place of a number in it
        bad(18, 0x19); // a list in place of statistics
        bad(22, 0x11); // a boolean in place of a text
    }

    /// An index of version 1 without columns, with more fields behind.
    fn index(more: &[u8]) -> Vec<u8> {
        let known: &[u8] = &[0x15, 0x02, 0x19, 0x0c, 0x16, 0x00, 0x19, 0x0c];
        [known, more, &[0]].concat()
    }

    #[test]
    fn an_index_has_the_types_of_the_format_and_no_collection_of_booleans() {
        let many = [0xff, 0xff, 0xff, 0xff, 0x07];
        let list = |head: &[u8], element: u8| [head, &[0xf0 | element], &many].concat();
        for good in [
            &[][..],
            &[0x28, 0x01, b'x'],             // the writer's name
            &[0xa9, 0x28, 0x01, b'a', 0x00], // an unknown list of two texts
            &[0xac, 0x15, 0x02, 0x00],       // an unknown structure
            &[0xa9, 0x02],                   // an unknown list of no boolean
        ] {
            assert_eq!(check_index(&index(good)), Ok(()), "{good:x?}");
        }
        for bad in [
            list(&[0xa9], 1),       // billions of booleans in an unknown list
            list(&[0xaa], 2),       // in a set
            list(&[0xac, 0x19], 1), // in a list of an unknown structure
            list(&[0xa9], 5),       // billions of numbers
            vec![0xa9, 0x21],       // two booleans
            vec![0xab, 0x01, 0x11], // a map
            vec![0x18, 0x01, b'x'], // a text in place of a list
            vec![0x05, 0x14, 0x02], // a number of a field in the long form
            [0x1c; 60].to_vec(),    // structures in structures
        ] {
            assert!(check_index(&index(&bad)).is_err(), "{bad:x?}");
        }
    }

    #[test]
    fn every_shorter_one_is_short_and_no_bytes_are_read_beyond() {
        for length in 0..HEAD.len() {
            assert_eq!(page_header(&HEAD[..length]), Err(Fault::Short), "{length}");
        }
        for at in 0..HEAD.len() {
            for flip in [1, 0x10, 0x80, 0xff] {
                let mut bytes = HEAD.to_vec();
                bytes[at] ^= flip;
                if let Ok(head) = page_header(&bytes) {
                    assert!(head.length <= bytes.len());
                }
            }
        }
        let deep = [0x1c; 100];
        assert_eq!(page_header(&deep), Err(Fault::Bad));
    }
}
