//! What an engine returns is compared, and not trusted.

use std::collections::VecDeque;

use super::super::frame;
use super::super::layout::Salt;
use super::super::log::Encoded;
use super::{MigrateError, by, refused};
use crate::store::{Batch, LogStore, StoreError};
use crate::tree::Frontier;

/// Bytes of batches that are in memory until they were read back.
const READ_BYTES: usize = 8 << 20;

/// Compares batches with what the engine returns of them, and computes the tree of what it returned.
pub struct ReadBack {
    pub salt: Salt,
    expected: VecDeque<Batch>,
    bytes: usize,
    pub tree: Frontier,
}

impl ReadBack {
    pub fn new(origin: &str) -> Self {
        Self {
            salt: frame::salt_of(origin),
            expected: VecDeque::new(),
            bytes: 0,
            tree: Frontier::new(),
        }
    }

    pub fn expect(&mut self, batch: Batch) {
        self.bytes += batch.frame.len();
        self.expected.push_back(batch);
    }

    pub fn is_due(&self) -> bool {
        self.bytes >= READ_BYTES
    }

    /// Reads everything that is expected.
    pub fn read(&mut self, store: &mut dyn LogStore) -> Result<(), MigrateError> {
        while !self.expected.is_empty() {
            let size = self.tree.size();
            let read = store.read_from(size, READ_BYTES, by())?;
            if read.is_empty() {
                let why = format!("its batch at entry {size} cannot be read back");
                return Err(StoreError::Lost(why).into());
            }
            for stored in read {
                let Some(expected) = self.expected.front() else {
                    break;
                };
                if stored.batch != *expected {
                    return refused(format!(
                        "the log in the database is another one: its batch at entry {size} differs"
                    ));
                }
                let begin = Encoded {
                    leaves: Vec::new(),
                    frontier: self.tree.clone(),
                    root: expected.place.before,
                };
                self.tree = frame::decode(&stored.batch, &self.salt, begin)?.frontier;
                self.bytes -= stored.batch.frame.len();
                self.expected.pop_front();
            }
        }
        Ok(())
    }
}
