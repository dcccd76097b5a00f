//! Rebuilding the state from leaves: every leaf is decided again and must come out byte for byte the same.
//!
//! Used at start (the tail after a snapshot) and by the offline check (everything).

use ron_proto::Timestamp;

use crate::core::{Body, KeyHash, Leaf, Limit, Limits, Link, Op, State, Step, Verdict};
use crate::table::{ByHash, Table};

/// Why a leaf is not what the entries before it lead to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq}: {why}")]
pub struct ReplayError {
    /// The entry at fault.
    pub seq: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Keys used, by hash.
pub type Keys = ByHash<KeyHash, u64>;

/// Leaves decided together, to spare the cost of a batch per leaf.
const TOGETHER: usize = 256;

/// A replay under way.
#[derive(Debug, Default)]
pub struct Replay {
    state: State,
    keys: Keys,
    /// Leaves read and not yet decided: one timestamp, whole linked commits.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ts: Timestamp,
    link: Option<Link>,
    op: Op,
    /// The limit that refused it then, whatever the limits are now.
    limit: Option<Limit>,
    bytes: Vec<u8>,
}

impl Replay {
    /// From the first entry.
    pub fn new() -> Self {
        Self::default()
    }

    /// From a state that is known to be right; `keys` are those used after it was taken, none at first.
    pub fn from_state(state: State) -> Self {
        Self {
            state,
            keys: Table::default(),
            waiting: Vec::new(),
        }
    }

    /// The state as of the last decided leaf.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Takes the next leaf.
    pub fn leaf(&mut self, seq: u64, bytes: &[u8]) -> Result<(), ReplayError> {
        let fail = |why: String| Err(ReplayError { seq, why });
        let next = self.state.seq() + 1 + self.waiting.len() as u64;
        if seq != next {
            return fail(format!("expected entry {next}"));
        }
        let leaf = match Leaf::decode(bytes) {
            Ok(leaf) => leaf,
            Err(e) => return fail(format!("the leaf cannot be read: {e}")),
        };
        let Body::Entry { op, verdict } = leaf.body else {
            return fail("a genesis record among the entries".to_owned());
        };
        let starts_group = leaf.link.is_none_or(|l| l.position == 0);
        let last_ts = self.waiting.last().map_or(self.state.ts(), |w| w.ts);
        if leaf.ts < last_ts {
            return fail("its time is before the entry before it".to_owned());
        }
        if starts_group && (leaf.ts != last_ts || self.waiting.len() >= TOGETHER) {
            self.decide()?;
        }
        self.waiting.push(Waiting {
            ts: leaf.ts,
            link: leaf.link,
            op,
            limit: match verdict {
                Verdict::Limited(limit) => Some(limit),
                Verdict::Done(_) | Verdict::Refused { .. } | Verdict::Paid(_) => None,
            },
            bytes: bytes.to_vec(),
        });
        Ok(())
    }

    /// Decides what is left and adds everything up.
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
        let mut at = 0;
        while at < self.waiting.len() {
            let n = self.waiting[at].link.map_or(1, |l| l.length as usize);
            let Some(group) = self.waiting.get(at..at + n) else {
                return fail(at, "its linked commit is not complete");
            };
            for (i, w) in group.iter().enumerate() {
                if w.link.map(|l| (l.position as usize, l.length as usize))
                    != (n > 1).then_some((i, n))
                {
                    return fail(at + i, "it stands at the wrong place of its linked commit");
                }
                if w.op.key().is_some_and(|k| self.keys.get(&k).is_some()) {
                    return fail(at + i, "its key was used before");
                }
            }
            let limit = group.iter().find_map(|w| w.limit);
            step.set_limits(limit.map_or_else(Limits::default, Limits::only));
            if n == 1 {
                step.entry(&group[0].op, None);
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
            match batch.leaves.get(i) {
                Some(leaf) if *leaf == w.bytes => {}
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
