//! Replay protection of signatures and envelope operations: the same `op_id` with the same body
//! gets the same answer for 24 hours, also after a restart or a crash.
//!
//! ```text
//!  signers ── begin(tenant, op_id, body) ──> Table { digest of tenant and op_id -> body, place }
//!     │  new: a ticket                          ^ recorded
//!     └─> job ─> kms-audit: leaves durable ─> Journal: answers durable ─> the answers leave
//! ```
//!
//! The table holds the place of an answer, not the answer; a repetition reads it from the journal's
//! file. The journal is bounded in operations (`replay.capacity`) and in bytes (`replay.bytes_max`):
//! beyond either bound its oldest segment is forgotten, and counted.
//! (Changes of keys keep their answers in the key store, with the change itself.)
//!
//! **Invariants.** An answer to an operation with an `op_id` leaves after its leaf, and then its
//! journal record, are durable. A crash between the two leaves an operation whose answer was never
//! sent; a retry performs it again. No plaintext is ever in the journal. While answers are known to be
//! lost, no new operation id is taken.

mod journal;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ron_crypto::hash::sha256;
use ron_crypto::secret::Secret32;
use ron_custody::store::OP_ID_MS;
use ron_custody::{Cause, Refusal};
use ron_files::{Check, Disk, FileError, Place};
use ron_kernel::{Counter, Gauge, RankedMutex};
use ron_proto::values::{OpId, Tenant};
use serde::{Deserialize, Serialize};

use crate::topology::REPLAY_LOCK;
pub use journal::{Journal, remove};

/// First half of SHA-256 over the tenant, a zero byte and the id.
type OpKey = [u8; 16];

/// An operation's id and the hash of its request, as an engine keeps them that several nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnceId {
    op: OpKey,
    pub body: [u8; 32],
}

impl OnceId {
    /// The id that an engine has under this key; `None` of no id of this service.
    pub fn of_key(key: &str, body: [u8; 32]) -> Option<Self> {
        let mut op = OpKey::default();
        hex::decode_to_slice(key, &mut op).ok()?;
        Some(Self { op, body })
    }

    /// The id, in hex.
    pub fn key(&self) -> String {
        hex::encode(self.op)
    }

    /// What the answer is sealed for.
    pub fn about(&self) -> Vec<u8> {
        [&self.op[..], &self.body].concat()
    }
}

fn op_key(tenant: &str, op_id: OpId) -> OpKey {
    let framed = [tenant.as_bytes(), b"\0", op_id.0.as_bytes()].concat();
    *sha256(&framed).first_chunk().expect("16 of 32 bytes")
}

/// An operation whose leaf says that it was done under an operation id.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Answered {
    pub tenant: String,
    pub op_id: OpId,
    /// Time of its leaf, Unix milliseconds.
    pub ts: u64,
}

impl Answered {
    fn key(&self) -> OpKey {
        op_key(&self.tenant, self.op_id)
    }

    /// Its id, with a body that no request has.
    pub fn id(&self) -> OnceId {
        OnceId {
            op: self.key(),
            body: [0; 32],
        }
    }
}

struct Entry {
    body: [u8; 32],
    /// `None` while the first request is in flight.
    place: Option<Place>,
    made_ms: u64,
}

impl Entry {
    fn is_old(&self, now_ms: u64) -> bool {
        // An operation in flight does not get old: its ticket frees the id.
        self.place.is_some() && self.made_ms.saturating_add(OP_ID_MS) <= now_ms
    }
}

/// The bounds of the journal, and the metrics that show its use.
pub struct Bounds {
    pub capacity: usize,
    /// Maximum bytes on disk.
    pub bytes_max: u64,
    pub remembered: Gauge,
    /// Operations forgotten before 24 hours had passed.
    pub forgotten: Counter,
}

/// The table of operation ids, shared by all threads.
pub struct Replay {
    table: RankedMutex<HashMap<OpKey, Entry>>,
    /// Set once, before the first operation, when answers are lost.
    closed: OnceLock<()>,
}

/// An answer that a migration takes along.
pub struct CarriedAnswer {
    pub id: OnceId,
    /// When it was made, Unix milliseconds.
    pub made_ms: u64,
    /// `None`: it is a day old, and only that it was there is known.
    pub answer: Option<Vec<u8>>,
}

/// The table's answer to [`Replay::begin`].
pub enum Lookup {
    /// A new operation: perform it, then give the ticket with the answer to the journal.
    New(Ticket),
    /// A finished operation: its remembered answer.
    Repeated(Vec<u8>),
}

/// The exclusive right to perform one operation. Dropping it without an answer frees the operation id.
pub struct Ticket {
    replay: Arc<Replay>,
    key: Option<OpKey>,
    body: [u8; 32],
    made_ms: u64,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// A ticket and the answer that every repetition of its operation will get.
pub struct JournalRecord {
    ticket: Ticket,
    answer: Vec<u8>,
}

impl Replay {
    /// Opens the journal in `dir` and builds the table from it. The appender becomes the journal's
    /// only owner.
    pub fn open(
        disk: &Arc<dyn Disk>,
        dir: &std::path::Path,
        key: Secret32,
        bounds: Bounds,
    ) -> Result<(Arc<Self>, Journal), FileError> {
        let replay = Arc::new(Self {
            table: RankedMutex::new(&REPLAY_LOCK, HashMap::new()),
            closed: OnceLock::new(),
        });
        let (disk, check) = (disk.clone(), Check::Mac(key));
        let journal = Journal::open(disk, dir, check, replay.clone(), bounds)?;
        Ok((replay, journal))
    }

    /// A table of the operations in flight at this node alone: the answers are in an engine.
    pub fn in_engine() -> Arc<Self> {
        Arc::new(Self {
            table: RankedMutex::new(&REPLAY_LOCK, HashMap::new()),
            closed: OnceLock::new(),
        })
    }

    /// Takes no new operation id from now on: with answers lost, it could be one that was used before.
    pub fn close(&self) {
        let _ = self.closed.set(()); // set already means closed already
    }

    /// Whether the answer to this operation is kept.
    fn has(&self, key: &OpKey) -> bool {
        let table = self.table.lock();
        table.get(key).is_some_and(|entry| entry.place.is_some())
    }

    /// Looks `op_id` up and, when it is new, marks it as in flight.
    pub fn begin(
        self: &Arc<Self>,
        tenant: &Tenant,
        op_id: OpId,
        body: [u8; 32],
        now_ms: u64,
    ) -> Result<Lookup, Refusal> {
        let key = op_key(tenant.as_str(), op_id);
        // The lock ends with this block: reading the answer below is I/O, and no lock is held over I/O.
        let place = {
            let mut table = self.table.lock();
            match table.get(&key).filter(|entry| !entry.is_old(now_ms)) {
                Some(entry) if entry.body != body => return Err(other_body()),
                Some(entry) => entry.place.clone().ok_or_else(|| {
                    Refusal::new(Cause::InFlight, "the operation with this op_id is running")
                })?,
                None if self.closed.get().is_some() => {
                    return Err(Refusal::new(
                        Cause::AnswersLost,
                        "answers to earlier operations are damaged or missing, so this op_id may have been used before: send the request \
                         without op_id, or wait until an operator has restored the answers or accepted their loss (see `replay` in /readyz)",
                    ));
                }
                None => {
                    let entry = Entry {
                        body,
                        place: None,
                        made_ms: now_ms,
                    };
                    table.insert(key, entry);
                    // Unlocked before the ticket exists, because dropping a ticket takes this lock.
                    drop(table);
                    return Ok(Lookup::New(Ticket {
                        replay: self.clone(),
                        key: Some(key),
                        body,
                        made_ms: now_ms,
                    }));
                }
            }
        };
        journal::answer(&place)
            .map(Lookup::Repeated)
            .map_err(|why| {
                tracing::error!(event = "replay_unreadable", %why);
                unreadable_answer()
            })
    }

    /// The answers that are not a day old, oldest first, each read when it is asked for.
    pub fn carried(
        &self,
        now_ms: u64,
    ) -> impl Iterator<Item = Result<CarriedAnswer, FileError>> + use<> {
        let table = self.table.lock();
        let entries = table.iter().filter(|(_, entry)| !entry.is_old(now_ms));
        let places = entries.filter_map(|(op, entry)| {
            let (op, body) = (*op, entry.body);
            Some((entry.made_ms, OnceId { op, body }, entry.place.clone()?))
        });
        let mut places: Vec<_> = places.collect();
        drop(table);
        places.sort_by_key(|(made_ms, id, _)| (*made_ms, *id));
        places.into_iter().map(|(made_ms, id, place)| {
            Ok(CarriedAnswer {
                id,
                made_ms,
                answer: Some(journal::answer(&place)?),
            })
        })
    }

    /// Keeps answers that a migration brings along.
    pub fn take_over(
        self: &Arc<Self>,
        journal: &mut Journal,
        answers: Vec<CarriedAnswer>,
        now_ms: u64,
    ) -> Result<(), FileError> {
        let records = answers.into_iter().map(|carried| {
            let ticket = Ticket {
                replay: self.clone(),
                key: Some(carried.id.op),
                body: carried.id.body,
                made_ms: carried.made_ms,
            };
            ticket.with(carried.answer.unwrap_or_default())
        });
        journal.keep(records.collect(), now_ms)
    }

    fn record(&self, key: OpKey, entry: Entry) {
        self.table.lock().insert(key, entry);
    }

    /// Removes the operations of `segment` from the table; returns their number.
    fn forget(&self, keys: &[OpKey], segment: u64) -> u64 {
        let mut table = self.table.lock();
        let mut count = 0;
        for key in keys {
            // An id may have been used again after its day, and then belongs to a later segment.
            let there = |entry: &Entry| entry.place.as_ref().is_some_and(|p| p.id() == segment);
            if table.get(key).is_some_and(there) {
                table.remove(key);
                count += 1;
            }
        }
        count
    }
}

/// The refusal of an operation id that stands for another request.
pub fn other_body() -> Refusal {
    let detail = "this op_id was used with another body within 24 hours; use a new one";
    Refusal::new(Cause::OpIdMismatch, detail)
}

/// The refusal of a repeated operation whose answer is damaged.
pub fn unreadable_answer() -> Refusal {
    let detail = "the operation was done, but its remembered answer cannot be read";
    Refusal::new(Cause::Internal, detail)
}

impl Ticket {
    /// The operation's id and the hash of its request.
    pub fn id(&self) -> OnceId {
        OnceId {
            op: self.key.expect("present until the answer is recorded"),
            body: self.body,
        }
    }

    /// Adds the answer to remember.
    pub fn with(self, answer: Vec<u8>) -> JournalRecord {
        JournalRecord {
            ticket: self,
            answer,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // No answer was recorded, so the operation may be done again.
        if let Some(key) = self.key.take() {
            self.replay.table.lock().remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
