//! Sequential reading of a file through one reused buffer.

use std::io;

use ron_files::DiskFile;

/// Minimum number of bytes per read.
const CHUNK: usize = 256 * 1024;

/// A sliding view of the first `end` bytes of a file.
pub(crate) struct Window<'f> {
    file: &'f dyn DiskFile,
    end: u64,
    start: u64,
    buf: Vec<u8>,
    chunk: usize,
}

impl<'f> Window<'f> {
    /// For reading a whole file.
    pub fn new(file: &'f dyn DiskFile, end: u64) -> Self {
        Self::with_chunk(file, end, CHUNK)
    }

    /// For reading a part of about `chunk` bytes.
    pub fn with_chunk(file: &'f dyn DiskFile, end: u64, chunk: usize) -> Self {
        Self {
            file,
            end,
            start: 0,
            buf: Vec::new(),
            chunk,
        }
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// The `n` bytes at `offset`; `None` when they go beyond the end.
    pub fn at(&mut self, offset: u64, n: usize) -> io::Result<Option<&[u8]>> {
        if offset.checked_add(n as u64).is_none_or(|to| to > self.end) {
            return Ok(None);
        }
        let held = offset >= self.start && offset + n as u64 <= self.start + self.buf.len() as u64;
        if !held {
            let wanted = n.max(self.chunk).min((self.end - offset) as usize);
            self.buf.resize(wanted, 0);
            self.start = offset;
            let got = self.file.read_at(offset, &mut self.buf)?;
            self.buf.truncate(got);
            if got < n {
                // The file shrank while it was read: report its end.
                return Ok(None);
            }
        }
        let from = (offset - self.start) as usize;
        Ok(Some(&self.buf[from..from + n]))
    }
}
