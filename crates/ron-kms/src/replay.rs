//! Replay protection of sign requests: the same `op_id` with the same body gets the same answer.
//!
//! Kept in memory and bounded: the oldest finished entry gives way when the table is full, and
//! everything after 24 hours. (Create and rotate keep theirs in the store.) A restart forgets it:
//! a repeated sign then makes a new leaf and, with Ed25519, the same signature.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ron_kernel::RankedMutex;
use ron_proto::kms::SignAnswer;
use ron_proto::values::{OpId, Tenant};

use crate::error::{Refusal, Why};
use crate::topology::REPLAY_LOCK;

/// How long an operation id is remembered, in milliseconds.
pub const REPLAY_MS: u64 = 24 * 3600 * 1000;

type OpKey = (Tenant, OpId);

struct Entry<T> {
    body: [u8; 32],
    /// `None` while the first request is under way.
    answer: Option<Arc<T>>,
    made_ms: u64,
}

struct Table<T> {
    entries: HashMap<OpKey, Entry<T>>,
    /// Finished entries, oldest first.
    finished: VecDeque<OpKey>,
}

/// The table of operation ids and the answers they got.
pub struct Replay<T> {
    capacity: usize,
    table: RankedMutex<Table<T>>,
}

/// What the table says about a request.
pub enum Seen<T> {
    /// New: do it, then settle the ticket.
    New(Ticket<T>),
    /// Done before.
    Done(Arc<T>),
}

/// The right to do one operation. Dropped without an answer, the operation id is free again.
pub struct Ticket<T> {
    replay: Arc<Replay<T>>,
    key: Option<OpKey>,
}

/// The right to make one signature.
pub type SignTicket = Ticket<SignAnswer>;

impl<T> Replay<T> {
    /// Remembers at most `capacity` finished operations.
    pub fn new(capacity: usize) -> Arc<Self> {
        let table = Table {
            entries: HashMap::new(),
            finished: VecDeque::new(),
        };
        Arc::new(Self {
            capacity,
            table: RankedMutex::new(&REPLAY_LOCK, table),
        })
    }

    /// Looks `op_id` up and, when it is new, marks it as under way.
    pub fn begin(
        self: &Arc<Self>,
        tenant: &Tenant,
        op_id: OpId,
        body: [u8; 32],
        now_ms: u64,
    ) -> Result<Seen<T>, Refusal> {
        let key = (tenant.clone(), op_id);
        let mut table = self.table.lock();
        table.forget_old(now_ms);
        match table.entries.get(&key) {
            Some(entry) if entry.body != body => Err(Refusal::new(
                Why::OpIdMismatch,
                "this op_id was used with another body within 24 hours; use a new one",
            )),
            Some(Entry {
                answer: Some(answer),
                ..
            }) => Ok(Seen::Done(answer.clone())),
            Some(_) => Err(Refusal::new(
                Why::InFlight,
                "the operation with this op_id is running",
            )),
            None => {
                table.entries.insert(
                    key.clone(),
                    Entry {
                        body,
                        answer: None,
                        made_ms: now_ms,
                    },
                );
                drop(table);
                Ok(Seen::New(Ticket {
                    replay: self.clone(),
                    key: Some(key),
                }))
            }
        }
    }
}

impl<T> Table<T> {
    fn forget_old(&mut self, now_ms: u64) {
        while let Some(key) = self.finished.front() {
            let old = |e: &Entry<T>| e.made_ms.saturating_add(REPLAY_MS) <= now_ms;
            if !self.entries.get(key).is_none_or(old) {
                return;
            }
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(key) = self.finished.pop_front() {
            self.entries.remove(&key);
        }
    }
}

impl<T> Ticket<T> {
    /// Records the answer that every repetition will get.
    pub fn settle(mut self, answer: &Arc<T>) {
        let Some(key) = self.key.take() else { return };
        let mut table = self.replay.table.lock();
        if let Some(entry) = table.entries.get_mut(&key) {
            entry.answer = Some(answer.clone());
            table.finished.push_back(key);
        }
        while table.finished.len() > self.replay.capacity {
            table.forget_first();
        }
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.replay.table.lock().entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::receipt::LogReceipt;

    fn answer(index: u64) -> Arc<SignAnswer> {
        Arc::new(SignAnswer {
            proof: None,
            key: "t/p/ed25519/0190f0a0-0000-7000-8000-000000000000"
                .parse()
                .expect("kid"),
            version: 1,
            signatures: vec![],
            receipt: LogReceipt {
                log: "l".into(),
                index,
            },
        })
    }

    fn op(n: u128) -> OpId {
        uuid::Uuid::from_u128(n).to_string().parse().expect("uuid")
    }

    fn begin(
        replay: &Arc<Replay<SignAnswer>>,
        n: u128,
        body: u8,
        now: u64,
    ) -> Result<Seen<SignAnswer>, Refusal> {
        replay.begin(&"t".parse().expect("tenant"), op(n), [body; 32], now)
    }

    #[test]
    fn same_id_same_body_same_answer() {
        let replay = Replay::new(8);
        let Ok(Seen::New(ticket)) = begin(&replay, 1, 1, 0) else {
            panic!("new")
        };
        assert_eq!(
            begin(&replay, 1, 1, 1).err().map(|e| e.why),
            Some(Why::InFlight)
        );
        assert_eq!(
            begin(&replay, 1, 2, 1).err().map(|e| e.why),
            Some(Why::OpIdMismatch)
        );
        ticket.settle(&answer(7));
        let Ok(Seen::Done(again)) = begin(&replay, 1, 1, REPLAY_MS - 1) else {
            panic!("done")
        };
        assert_eq!(again.receipt.index, 7);
        assert_eq!(
            begin(&replay, 1, 2, 2).err().map(|e| e.why),
            Some(Why::OpIdMismatch)
        );
        let other = replay.begin(&"u".parse().expect("tenant"), op(1), [1; 32], 3);
        assert!(
            matches!(other, Ok(Seen::New(_))),
            "another tenant's ids are its own"
        );
        assert!(
            matches!(begin(&replay, 1, 2, REPLAY_MS), Ok(Seen::New(_))),
            "a day later"
        );
    }

    #[test]
    fn a_failed_operation_frees_its_id_and_the_table_is_bounded() {
        let replay = Replay::new(2);
        let Ok(Seen::New(ticket)) = begin(&replay, 1, 1, 0) else {
            panic!("new")
        };
        drop(ticket);
        for n in 1..=3 {
            let Ok(Seen::New(ticket)) = begin(&replay, n, 1, 0) else {
                panic!("new {n}")
            };
            ticket.settle(&answer(n as u64));
        }
        assert!(matches!(begin(&replay, 3, 1, 0), Ok(Seen::Done(_))));
        assert!(matches!(begin(&replay, 2, 1, 0), Ok(Seen::Done(_))));
        assert!(
            matches!(begin(&replay, 1, 1, 0), Ok(Seen::New(_))),
            "the oldest gave way"
        );
    }
}
