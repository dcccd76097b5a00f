//! Answers that are read while they are sent, and their progress.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;

/// The bytes of a large answer, read piece by piece as the client reads them. A read must not wait
/// for anything slower than a local disk: it runs on a worker.
pub trait Source: Send + Sync {
    /// The number of bytes, if known; otherwise they are sent chunked.
    fn len(&self) -> Option<u64>;

    /// Reads bytes from `offset` on into the front of `into` and returns their number; 0 only at
    /// the end. Called with growing offsets, without gaps, by one thread at a time.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// True when there are certainly no bytes.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

/// A file from its start, with its present length.
impl Source for File {
    fn len(&self) -> Option<u64> {
        self.metadata().ok().map(|meta| meta.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, into, offset)
    }
}

impl Source for crate::spool::Upload {
    fn len(&self) -> Option<u64> {
        Some(self.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file().read_at(offset, into)
    }
}

/// Bytes read ahead of the socket.
const PIECE: usize = 64 << 10;
/// Room for the size line of a chunk.
const SIZE_LINE: usize = 10;

/// The unsent rest of a source.
pub(crate) struct Sending {
    source: Arc<dyn Source>,
    offset: u64,
    /// Bytes that must still come; `None` while the answer is chunked.
    left: Option<u64>,
    /// True when the end is marked by closing the connection instead of a last chunk.
    bare: bool,
    done: bool,
}

impl Sending {
    /// `left` is the announced length. Without one, the bytes are chunked unless `bare`.
    pub(crate) fn new(source: Arc<dyn Source>, left: Option<u64>, bare: bool) -> Self {
        Self {
            source,
            offset: 0,
            done: left == Some(0),
            left,
            bare,
        }
    }

    /// Replaces `out` by the next piece, framed; false when there is none.
    pub(crate) fn next(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        out.clear();
        if self.done {
            return Ok(false);
        }
        let chunked = self.left.is_none() && !self.bare;
        let start = if chunked { SIZE_LINE } else { 0 };
        let most = self.left.map_or(PIECE, |left| {
            usize::try_from(left).unwrap_or(usize::MAX).min(PIECE)
        });
        out.resize(start + most, 0);
        let count = self.source.read_at(self.offset, &mut out[start..])?;
        out.truncate(start + count.min(most));
        self.offset += count as u64;
        if let Some(left) = &mut self.left {
            if count == 0 {
                // Shorter than announced: only a closed connection tells the client.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            *left -= count as u64;
            self.done = *left == 0;
            return Ok(true);
        }
        self.done = count == 0;
        if chunked && self.done {
            out.clear();
            out.extend_from_slice(b"0\r\n\r\n");
        } else if chunked {
            let mut line = &mut out[..SIZE_LINE];
            // Leading zeros keep the line's length, so that the bytes need not move.
            write!(line, "{count:08x}\r\n").expect("ten bytes fit");
            out.extend_from_slice(b"\r\n");
        }
        Ok(!out.is_empty())
    }
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Sending({} sent, {:?} left)", self.offset, self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Vec<u8>, Option<u64>);

    impl Source for Bytes {
        fn len(&self) -> Option<u64> {
            self.1
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
            let rest = &self.0[(offset as usize).min(self.0.len())..];
            let count = rest.len().min(into.len()).min(1000);
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }
    }

    fn all(sending: &mut Sending) -> io::Result<Vec<u8>> {
        let (mut all, mut piece) = (Vec::new(), Vec::new());
        while sending.next(&mut piece)? {
            all.extend_from_slice(&piece);
        }
        assert!(!sending.next(&mut piece)?, "the end stays the end");
        Ok(all)
    }

    #[test]
    fn sources_are_framed_by_length_by_chunks_or_by_the_end() {
        let bytes: Vec<u8> = (0..2500_u32).map(|i| i as u8).collect();
        let source = || Arc::new(Bytes(bytes.clone(), None));
        let mut exact = Sending::new(source(), Some(2500), false);
        assert_eq!(all(&mut exact).expect("all there"), bytes);
        let mut part = Sending::new(source(), Some(1200), false);
        assert_eq!(all(&mut part).expect("all there"), bytes[..1200]);
        let mut bare = Sending::new(source(), None, true);
        assert_eq!(all(&mut bare).expect("all there"), bytes);
        let mut chunked = Sending::new(source(), None, false);
        let mut want = Vec::new();
        for chunk in bytes.chunks(1000) {
            write!(want, "{:08x}\r\n", chunk.len()).expect("a Vec");
            want.extend_from_slice(chunk);
            want.extend_from_slice(b"\r\n");
        }
        want.extend_from_slice(b"0\r\n\r\n");
        assert_eq!(all(&mut chunked).expect("all there"), want);
        let mut none = Sending::new(Arc::new(Bytes(Vec::new(), None)), Some(0), false);
        assert_eq!(all(&mut none).expect("nothing"), b"");
        let mut short = Sending::new(source(), Some(2501), false);
        assert!(all(&mut short).is_err(), "shorter than announced");
    }
}
