//! The one writer of the log: turns drafts into leaves and makes a batch durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_crypto::ct;
use ron_crypto::hash::hmac_sha256;
use ron_crypto::secret::Secret32;
use ron_files::Dir;
use ron_kernel::SharedClock;
use ron_kernel::time::Instant;
use ron_proto::strict;
use ron_tlog::append::{AppendError, Log};
use serde::{Deserialize, Serialize};

use super::leaf::{Draft, Leaf, Op, Place};
use crate::metrics::Metrics;
use crate::replay::Answered;

/// New leaves after which the counters are written beside the log.
const STATE_EVERY: u64 = 10_000;

/// Counters at a log size. Kept in a file beside the log as a cache: without it the next start rebuilds them.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    pub log_size: u64,
    /// Time of the last of them, Unix milliseconds.
    pub last_ts: u64,
    /// Store version that the last of them states.
    pub store_version: u64,
    pub keys: BTreeMap<String, u64>,
    /// The newest operation whose answer is in the journal, whatever happened since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<Answered>,
    /// Earlier leaves were passed over, so that the count of a key that was not seen yet may be any.
    #[serde(skip)]
    passed_over: bool,
    /// The newest one of the last append. A crash may have come before its answer was in the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unsure: Option<Answered>,
}

/// The counters as their file holds them. The MAC keeps a program without the seal key from hiding leaves from the start.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CountersRecord {
    counters: Counters,
    mac: String,
}

/// The file that keeps the counters between starts.
pub struct StateFile {
    pub dir: Dir,
    pub name: &'static str,
    pub key: Secret32,
}

impl StateFile {
    /// The counters; `None` without a file that this service has written.
    pub fn read(&self) -> Option<Counters> {
        let text = self.dir.read(self.name).ok()??;
        let kept: CountersRecord = strict::from_slice(&text).ok()?;
        let found = hex::decode(&kept.mac).ok()?;
        ct::eq(&self.mac(&kept.counters), &found).then_some(kept.counters)
    }

    fn write(&self, counters: &Counters) -> std::io::Result<()> {
        let kept = CountersRecord {
            counters: counters.clone(),
            mac: hex::encode(self.mac(counters)),
        };
        let text = serde_json::to_vec(&kept).expect("counters are strings and integers");
        self.dir.write(self.name, &text)
    }

    fn mac(&self, counters: &Counters) -> [u8; 32] {
        let text = serde_json::to_vec(counters).expect("counters are strings and integers");
        hmac_sha256(self.key.expose(), &text)
    }
}

impl Counters {
    /// The same but for the counts of keys.
    pub(super) fn without_keys(&self) -> Self {
        Self {
            keys: BTreeMap::new(),
            log_size: self.log_size,
            last_ts: self.last_ts,
            store_version: self.store_version,
            answered: self.answered.clone(),
            passed_over: false,
            unsure: self.unsure.clone(),
        }
    }

    /// Goes on at a leaf without those before it.
    pub fn pass_over(&mut self, index: u64) {
        self.log_size = index;
        self.passed_over = true;
    }

    /// Counts a leaf; refuses one whose time, store version or counter does not follow from the leaves before.
    pub fn follow(&mut self, leaf: &Leaf) -> Result<(), String> {
        if leaf.ts < self.last_ts {
            return Err("its time is before that of the leaf before it".into());
        }
        if leaf.prev_store_version < self.store_version {
            return Err("its store version is lower than that of the leaf before it".into());
        }
        match (&leaf.key, leaf.key_op_counter) {
            (Some(key), Some(counter)) => {
                let unseen = if self.passed_over {
                    counter.saturating_sub(1)
                } else {
                    0
                };
                let count = self.keys.entry(key.clone()).or_insert(unseen);
                if counter != *count + 1 {
                    return Err(format!(
                        "its key_op_counter is {counter}, but {} is expected",
                        *count + 1
                    ));
                }
                *count = counter;
            }
            (None, Some(_)) => return Err("it has a key_op_counter but no key".into()),
            (_, None) => {}
        }
        self.note_answer(leaf);
        self.last_ts = leaf.ts;
        self.store_version = leaf.prev_store_version + u64::from(leaf.changed_store());
        self.log_size += 1;
        Ok(())
    }

    /// Follows which answers are in the journal. A batch is appended after the answers of the one before it are durable, so
    /// a leaf with a later time shows that they are; all leaves of a batch have one time.
    fn note_answer(&mut self, leaf: &Leaf) {
        match leaf.op {
            // The run before may have ended between an append and its answers.
            Op::Start => self.unsure = None,
            Op::ForgetAnswers => (self.answered, self.unsure) = (None, None),
            _ => {}
        }
        let durable = |unsure: &mut Answered| unsure.ts < leaf.ts || leaf.op == Op::Stop;
        if let Some(sure) = self.unsure.take_if(durable) {
            self.answered = Some(sure);
        }
        self.unsure = leaf.answered().or(self.unsure.take());
    }
}

/// Makes leaves of drafts, and counts them.
pub struct LeafMaker {
    pub(super) counters: Counters,
    state_at: u64,
    state: Option<StateFile>,
    pub(super) clock: SharedClock,
    metrics: Arc<Metrics>,
}

impl LeafMaker {
    /// Continues after `counters`. `state` keeps them between starts.
    pub fn new(
        counters: Counters,
        state: Option<StateFile>,
        clock: SharedClock,
        metrics: Arc<Metrics>,
    ) -> Self {
        clock.resume_after(counters.last_ts);
        let state_at = counters.log_size;
        Self {
            counters,
            state_at,
            state,
            clock,
            metrics,
        }
    }

    /// Shows an append that began at `started`.
    pub(super) fn appended(&self, leaves: usize, started: Instant) {
        let took = self.clock.now().saturating_duration_since(started);
        self.metrics.fsync_seconds.observe(took.as_secs_f64());
        self.metrics.batch_size.observe(leaves as f64);
        self.metrics.leaves.inc_by(leaves as u64);
        self.metrics
            .log_size
            .set(self.counters.log_size.cast_signed());
    }

    /// The leaf of a draft, behind those before it.
    pub(super) fn finish(&mut self, draft: Draft, now: u64) -> Vec<u8> {
        let counters = &mut self.counters;
        // The wall clock may go back; times in the log never do.
        counters.last_ts = counters.last_ts.max(now);
        counters.log_size += 1;
        let key_op_counter = draft.key.as_ref().filter(|_| draft.counted).map(|key| {
            let count = match counters.keys.get_mut(key) {
                // Looked up before `entry`, which would clone the key's name for every leaf.
                Some(count) => count,
                None => counters.keys.entry(key.clone()).or_default(),
            };
            *count += 1;
            *count
        });
        let place = Place {
            ts: counters.last_ts,
            key_op_counter,
            prev_store_version: counters.store_version,
        };
        let after = draft.store_version_after.unwrap_or(0);
        let leaf = draft.at(place);
        // Never back, and as `Counters::follow` counts it: the checkpoint of a `note` key waits for its signature while the
        // store thread goes on, so that its leaf may come behind those of later changes.
        let stated = leaf.prev_store_version + u64::from(leaf.changed_store());
        counters.store_version = after.max(stated);
        counters.note_answer(&leaf);
        leaf.to_bytes()
    }

    /// Raises the store version that the next leaf states.
    pub fn set_store_version(&mut self, version: u64) {
        let known = &mut self.counters.store_version;
        *known = version.max(*known);
    }

    /// Writes the counters beside the log when `STATE_EVERY` leaves are new, or when `now` is set.
    /// A failure costs only a longer scan at the next start.
    pub fn keep_state(&mut self, now: bool) {
        let new = self.counters.log_size - self.state_at;
        let Some(file) = self
            .state
            .as_ref()
            .filter(|_| new >= STATE_EVERY || (now && new > 0))
        else {
            return;
        };
        // After the append: the file is never ahead of the log, whose leaves are durable by now.
        match file.write(&self.counters) {
            Ok(()) => self.state_at = self.counters.log_size,
            Err(error) => tracing::warn!(event = "audit_state_not_kept", %error),
        }
    }
}

/// The log in files, and its counters; owned by the appender thread.
pub struct AuditWriter {
    log: Log,
    leaves: LeafMaker,
}

impl AuditWriter {
    pub fn new(log: Log, leaves: LeafMaker) -> Self {
        Self { log, leaves }
    }

    /// Makes the drafts durable as consecutive leaves, with one append and one sync. Returns the index of
    /// the first leaf. After an error the log is closed for writing.
    pub fn append(&mut self, drafts: impl Iterator<Item = Draft>) -> Result<u64, AppendError> {
        let now = self.leaves.clock.unix_ms();
        // Advances the counters before the append. After an error the log is closed, so wrong counters are never used;
        // `keep_state` must not be called then.
        let leaves: Vec<Vec<u8>> = drafts.map(|draft| self.leaves.finish(draft, now)).collect();
        let started = self.leaves.clock.now();
        let first = self.log.append(&leaves)?;
        self.leaves.appended(leaves.len(), started);
        Ok(first)
    }

    pub fn set_store_version(&mut self, version: u64) {
        self.leaves.set_store_version(version);
    }

    pub fn keep_state(&mut self, now: bool) {
        self.leaves.keep_state(now);
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Registry, SystemClock};

    use super::*;

    #[test]
    fn leaves_that_come_late_do_not_take_the_store_version_back() {
        let metrics = Metrics::new(&Registry::new("ron-kms"), "file");
        let clock = SystemClock::shared();
        let mut maker = LeafMaker::new(Counters::default(), None, clock, metrics);
        let mut seen = Counters::default();
        let changes = [
            (Op::Create, Some(1)),
            (Op::Sign, Some(3)), // a checkpoint; another node has made version 2
            (Op::ReserveUses, Some(5)),
            (Op::Sign, Some(4)), // a checkpoint before that block
            (Op::Wrap, None),
            (Op::ReserveUses, Some(6)),
            (Op::ReserveUses, Some(6)), // never so, and still no contradiction
            (Op::Stop, None),
        ];
        for (number, (op, after)) in changes.into_iter().enumerate() {
            let draft = Draft {
                store_version_after: after,
                ..Draft::service(op, "")
            };
            let leaf = maker.finish(draft, 1);
            let followed = seen.follow(&Leaf::parse(&leaf).expect("a leaf"));
            assert_eq!(followed, Ok(()), "leaf {number}");
            assert_eq!(seen.log_size, maker.counters.log_size);
        }
    }
}
