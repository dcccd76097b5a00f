//! Rebuilds the state from leaves: every leaf is decided again and must come out byte for byte the
//! same.
//!
//! Used at start (the tail after a snapshot) and by the offline check (everything).

use std::io;
use std::mem;

use ron_kernel::beside;
use ron_proto::Timestamp;
use ron_proto::ledger::TxId;

use crate::core::{Erased, KeyHash, Leaf, Limit, Limits, Op, Place, Refusal, State, Step, Verdict};
use crate::table::{ByHash, Table};

/// Why a leaf contradicts the entries before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq}: {why}")]
pub struct ReplayError {
    pub seq: u64,
    pub why: String,
}

/// Sequences of used keys, by hash.
pub type Keys = ByHash<KeyHash, u64>;

/// Maximum leaves decided in one step, to avoid the cost of a batch per leaf.
const TOGETHER: usize = 256;

#[derive(Debug, Default)]
pub struct Replay {
    state: State,
    keys: Keys,
    /// Leaves read and not yet decided: one timestamp, whole linked commits.
    waiting: Vec<Waiting>,
    /// The batch that the last leaf belongs to.
    batch: Option<TxId>,
}

#[derive(Debug)]
struct Waiting {
    ts: Timestamp,
    place: Place,
    op: Op,
    /// The limit that refused it when it was written; the current limits do not matter.
    limit: Option<Limit>,
    bytes: Vec<u8>,
}

/// A leaf that was read together with its private record, and not yet decided.
#[derive(Debug)]
pub struct Decoded {
    pub seq: u64,
    pub leaf: Leaf,
    bytes: Vec<u8>,
}

impl Decoded {
    /// Checks what can be checked without the entries before it.
    pub fn read(seq: u64, bytes: &[u8], private: &[u8]) -> Result<Self, ReplayError> {
        let fail = |why: String| Err(ReplayError { seq, why });
        let leaf = match Leaf::decode(bytes, private) {
            Ok(leaf) => leaf,
            Err(e) => return fail(format!("the leaf cannot be read: {e}")),
        };
        if let Err(e) = leaf.op.check_private() {
            return fail(e.why);
        }
        Ok(Self {
            seq,
            leaf,
            bytes: bytes.to_vec(),
        })
    }

    /// The bytes of the leaf.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Leaves that pass from one thread to the other at once, and how many such pages may wait.
const PAGE: usize = 256;
const PAGES: usize = 8;

/// Takes leaves in the order of the log and passes them on, read.
pub struct Feed<'a> {
    page: Vec<Decoded>,
    push: &'a mut dyn FnMut(Vec<Decoded>) -> bool,
}

impl Feed<'_> {
    /// Fails when the leaf cannot be read, or when nothing takes leaves any more.
    pub fn leaf(&mut self, seq: u64, bytes: &[u8], private: &[u8]) -> Result<(), ReplayError> {
        self.page.push(Decoded::read(seq, bytes, private)?);
        if self.page.len() == PAGE {
            let full = mem::replace(&mut self.page, Vec::with_capacity(PAGE));
            if !(self.push)(full) {
                let why = "an entry before it was refused".to_owned();
                return Err(ReplayError { seq, why });
            }
        }
        Ok(())
    }
}

/// Reads leaves on a thread of its own (`read`) beside what is done with them (`each`), which is about
/// as much work. Returns what both returned; an error of `each` is the earlier one in the log.
///
/// # Errors
/// The thread cannot be started.
pub fn read_beside<A: Send, E>(
    read: impl FnOnce(&mut Feed<'_>) -> A + Send,
    mut each: impl FnMut(Decoded) -> Result<(), E>,
) -> io::Result<(A, Result<(), E>)> {
    let make = |push: &mut dyn FnMut(Vec<Decoded>) -> bool| {
        let page = Vec::with_capacity(PAGE);
        let mut feed = Feed { page, push };
        let read = read(&mut feed);
        // Also after an error: an entry before it may be at fault.
        (feed.push)(feed.page);
        read
    };
    beside("ledger-decode", PAGES, make, |pages| {
        pages.flatten().try_for_each(&mut each)
    })
}

impl Replay {
    /// Starts with the first entry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts from a trusted state; only keys used after it are known.
    pub fn from_state(state: State) -> Self {
        Self {
            state,
            keys: Table::default(),
            waiting: Vec::new(),
            batch: None,
        }
    }

    /// The state as of the last decided leaf.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Reads the next leaf with its private record and adds it; returns how many of its texts were erased.
    pub fn leaf(&mut self, seq: u64, bytes: &[u8], private: &[u8]) -> Result<Erased, ReplayError> {
        let read = Decoded::read(seq, bytes, private)?;
        let erased = read.leaf.op.erased();
        self.add(read)?;
        Ok(erased)
    }

    /// Adds the next leaf. Errors may concern an earlier one, because leaves are decided in groups.
    pub fn add(&mut self, read: Decoded) -> Result<(), ReplayError> {
        let Decoded { seq, leaf, bytes } = read;
        let fail = |why: String| Err(ReplayError { seq, why });
        let next = self.state.seq() + 1 + self.waiting.len() as u64;
        if seq != next {
            return fail(format!("expected entry {next}"));
        }
        // The first item of a batch names itself, the others follow it directly.
        let batch = leaf.place.batch;
        if batch.is_some_and(|b| b != leaf.txid()) && batch != self.batch {
            return fail("it does not follow the first item of its batch".to_owned());
        }
        self.batch = batch;
        let starts_group = leaf.place.link.is_none_or(|l| l.position == 0);
        let last_ts = self.waiting.last().map_or(self.state.ts(), |w| w.ts);
        if leaf.ts < last_ts {
            return fail("its time is before the entry before it".to_owned());
        }
        // All leaves of one step share a timestamp, and a linked commit is never split.
        if starts_group && (leaf.ts != last_ts || self.waiting.len() >= TOGETHER) {
            self.decide()?;
        }
        self.waiting.push(Waiting {
            ts: leaf.ts,
            place: leaf.place,
            op: leaf.op,
            limit: match leaf.verdict {
                Verdict::Refused(Refusal::Limit(limit)) => Some(limit),
                Verdict::Done(_) | Verdict::Refused(_) => None,
            },
            bytes,
        });
        Ok(())
    }

    /// Decides the remaining leaves and checks all sums.
    pub fn finish(mut self) -> Result<(State, Keys), ReplayError> {
        self.decide()?;
        let seq = self.state.seq();
        self.state.audit().map_err(|why| ReplayError { seq, why })?;
        Ok((self.state, self.keys))
    }

    fn decide(&mut self) -> Result<(), ReplayError> {
        let Some(ts) = self.waiting.first().map(|w| w.ts) else {
            return Ok(());
        };
        let first = self.state.seq() + 1;
        let fail = |at: usize, why: &str| {
            Err(ReplayError {
                seq: first + at as u64,
                why: why.to_owned(),
            })
        };
        let mut step = Step::new(&self.state, ts);
        step.prepare(self.waiting.iter().map(|w| &w.op));
        let mut at = 0;
        while at < self.waiting.len() {
            let n = self.waiting[at].place.link.map_or(1, |l| l.length as usize);
            let Some(group) = self.waiting.get(at..at + n) else {
                return fail(at, "its linked commit is not complete");
            };
            for (i, w) in group.iter().enumerate() {
                if w.place
                    .link
                    .map(|l| (l.position as usize, l.length as usize))
                    != (n > 1).then_some((i, n))
                {
                    return fail(at + i, "it stands at the wrong place of its linked commit");
                }
                if w.op.key().is_some_and(|k| self.keys.get(&k).is_some()) {
                    return fail(at + i, "its key was used before");
                }
            }
            let limit = group.iter().find_map(|w| w.limit);
            // A recorded limit applies to its whole linked commit; without one, only the limits of
            // the format apply.
            step.set_limits(limit.map_or_else(Limits::default, Limits::only));
            if n == 1 {
                step.item(&group[0].op, None, group[0].place.batch);
            } else {
                let ops: Vec<Op> = group.iter().map(|w| w.op.clone()).collect();
                step.linked(&ops, &vec![None; n]);
            }
            at += n;
        }
        let batch = step.finish().map_err(|e| ReplayError {
            seq: first,
            why: e.to_string(),
        })?;
        for (i, w) in self.waiting.iter().enumerate() {
            match batch.records.get(i) {
                Some(record) if record.leaf == w.bytes => {}
                _ => {
                    return fail(
                        i,
                        "deciding it again gives another result; it, or one before it, was changed, moved or removed",
                    );
                }
            }
        }
        let last = batch.last_seq();
        for (key, seq) in batch.delta.keys() {
            self.keys.insert(*key, *seq);
        }
        self.state.apply(batch.delta, last, ts);
        self.waiting.clear();
        Ok(())
    }
}
