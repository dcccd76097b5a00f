//! The part of Thrift's compact protocol that tells how large a Parquet page claims to be: the
//! second and third field of its header (uncompressed and compressed size), and where the header
//! ends.

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

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Reads the header at the front of `bytes`.
pub(super) fn page_header(bytes: &[u8]) -> Result<PageHead, Fault> {
    let mut reader = Reader { bytes, at: 0 };
    let (mut unpacked, mut packed) = (None, None);
    let mut id = 0;
    while let Some((kind, next)) = reader.field(id)? {
        id = next;
        match (id, kind) {
            (2, 5) => unpacked = Some(reader.zigzag()?),
            (3, 5) => packed = Some(reader.zigzag()?),
            (2 | 3, _) => return Err(Fault::Bad),
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

impl Reader<'_> {
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
            // Page headers hold no lists, sets or maps.
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
        0x06, 0x15, 0x06, 0x1c, 0x18, 0x01, 0x61, 0x11, 0x00, 0x00, 0x00,
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
