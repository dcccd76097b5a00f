//! Rebuilds the state from leaves: every leaf is decided again and must come out byte for byte the
//! same.
//!
//! Used at start (the tail after a snapshot) and by the offline check (everything).

use std::io;
use std::mem;

use ron_kernel::beside;
use ron_proto::Timestamp;
use ron_proto::ledger::TxId;

use crate::core::{
    Batch, Delta, Erased, KeyHash, Leaf, Limit, Limits, Op, Place, Refusal, State, Step, Verdict,
};
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

/// Where decided entries go: a state with the keys that were used.
pub trait Books {
    /// Reads the state as of the last decided leaf.
    fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R;

    /// The first of the keys that was used before, by its position.
    ///
    /// # Errors
    /// The keys cannot be read.
    fn used(&self, keys: impl Iterator<Item = Option<KeyHash>>) -> io::Result<Option<usize>>;

    fn apply(&mut self, delta: Delta, last_seq: u64, ts: Timestamp);
}

/// A state of its own, as it is built at a start and by the offline check.
#[derive(Debug, Default)]
pub struct Own {
    state: State,
    keys: Keys,
}

impl Books for Own {
    fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state)
    }

    fn used(&self, mut keys: impl Iterator<Item = Option<KeyHash>>) -> io::Result<Option<usize>> {
        Ok(keys.position(|key| key.is_some_and(|key| self.keys.get(&key).is_some())))
    }

    fn apply(&mut self, delta: Delta, last_seq: u64, ts: Timestamp) {
        for (key, seq) in delta.keys() {
            self.keys.insert(*key, *seq);
        }
        self.state.apply(delta, last_seq, ts);
    }
}

#[derive(Debug, Default)]
pub struct Replay<B = Own> {
    books: B,
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
        Self::on(Own {
            state,
            keys: Table::default(),
        })
    }

    /// The state as of the last decided leaf.
    pub const fn state(&self) -> &State {
        &self.books.state
    }

    /// Decides the remaining leaves and checks all sums.
    pub fn finish(mut self) -> Result<(State, Keys), ReplayError> {
        self.decide()?;
        let Own { state, keys } = self.books;
        let seq = state.seq();
        state.audit().map_err(|why| ReplayError { seq, why })?;
        Ok((state, keys))
    }
}

impl<B: Books> Replay<B> {
    /// Goes on with these books.
    pub const fn on(books: B) -> Self {
        Self {
            books,
            waiting: Vec::new(),
            batch: None,
        }
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
        let (decided, decided_ts) = self.books.read(|state| (state.seq(), state.ts()));
        let next = decided + 1 + self.waiting.len() as u64;
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
        let last_ts = self.waiting.last().map_or(decided_ts, |w| w.ts);
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

    /// Decides the leaves that were added. The next one must begin a batch of the log.
    pub fn decide(&mut self) -> Result<(), ReplayError> {
        let Some(ts) = self.waiting.first().map(|w| w.ts) else {
            return Ok(());
        };
        let first = self.books.read(State::seq) + 1;
        let keys = self.waiting.iter().map(|w| w.op.key());
        let used = self.books.used(keys).map_err(|e| ReplayError {
            seq: first,
            why: format!("the keys cannot be read: {e}"),
        })?;
        if let Some(at) = used {
            return Err(fail(first, at, "its key was used before"));
        }
        let waiting = &self.waiting;
        let batch = self.books.read(|state| again(state, ts, waiting))?;
        let last = batch.last_seq();
        self.books.apply(batch.delta, last, ts);
        self.waiting.clear();
        Ok(())
    }
}

fn fail(first: u64, at: usize, why: &str) -> ReplayError {
    ReplayError {
        seq: first + at as u64,
        why: why.to_owned(),
    }
}

/// Decides leaves again, and compares what comes out with their bytes.
fn again(state: &State, ts: Timestamp, waiting: &[Waiting]) -> Result<Batch, ReplayError> {
    let first = state.seq() + 1;
    let mut step = Step::new(state, ts);
    step.prepare(waiting.iter().map(|w| &w.op));
    let mut at = 0;
    while at < waiting.len() {
        let n = waiting[at].place.link.map_or(1, |l| l.length as usize);
        let Some(group) = waiting.get(at..at + n) else {
            return Err(fail(first, at, "its linked commit is not complete"));
        };
        for (i, w) in group.iter().enumerate() {
            let place = w
                .place
                .link
                .map(|l| (l.position as usize, l.length as usize));
            if place != (n > 1).then_some((i, n)) {
                let why = "it stands at the wrong place of its linked commit";
                return Err(fail(first, at + i, why));
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
    let batch = step.finish().map_err(|e| fail(first, 0, &e.to_string()))?;
    let same = |(i, w): &(usize, &Waiting)| {
        batch
            .records
            .get(*i)
            .is_some_and(|record| record.leaf == w.bytes)
    };
    if let Some((i, _)) = waiting.iter().enumerate().find(|w| !same(w)) {
        let why = "deciding it again gives another result; it, or one before it, was changed, moved or removed";
        return Err(fail(first, i, why));
    }
    Ok(batch)
}
