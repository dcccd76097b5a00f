//! The audit log of a node whose keys are in an engine: leaves go there too, and the counters follow what became of them.
//!
//! **Invariant:** while the outcome of an append is not known, the counters have its leaves and nothing else is appended. They are
//! taken back when the leaves are not in the log.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_tlog::append::{EngineError, EngineLog, OnceAppended};
use ron_tlog::store::{Once, Repeat, StoreError};

use super::leaf::Draft;
use super::writer::{Counters, LeafMaker};

/// Pause before an engine that is away is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long after the stop an engine that is away is tried again, so that a drain ends within the default `drain_deadline`, however
/// much of it requests have taken.
const AFTER_STOP: Duration = Duration::from_millis(1_500);

/// When the calls of a writer end.
#[derive(Clone, Debug)]
pub struct AppendEnd {
    /// Maximum time of an append.
    pub within: Duration,
    /// Once it has fired, a start does not wait for an engine that is away.
    pub stop: Shutdown,
}

/// The counters before an append, but for those of keys that it does not touch.
struct Before {
    /// Without the counts of keys.
    counters: Counters,
    keys: Vec<String>,
}

/// The log in an engine, and its counters; owned by the appender thread.
pub struct EngineWriter {
    log: EngineLog,
    leaves: LeafMaker,
    end: AppendEnd,
    /// No call lasts longer, once the thread ends.
    last: Option<Deadline>,
    /// Empty before the stop.
    give_up: Arc<OnceLock<Deadline>>,
    /// Of an append without a known outcome.
    before: Option<Before>,
}

impl EngineWriter {
    /// `log` is claimed.
    pub fn new(log: EngineLog, leaves: LeafMaker, end: AppendEnd) -> Self {
        let give_up = Arc::new(OnceLock::new());
        let stopped = Arc::clone(&give_up);
        end.stop.on_fire(move || {
            stopped.get_or_init(|| Deadline::within(AFTER_STOP));
        });
        Self {
            log,
            leaves,
            end,
            last: None,
            give_up,
            before: None,
        }
    }

    /// The index of the next leaf.
    pub fn size(&self) -> u64 {
        self.log.size()
    }

    /// The epoch under which this process writes; `None` after another one has claimed the log.
    pub fn epoch(&self) -> Option<u64> {
        self.log.epoch()
    }

    fn by(&self) -> Deadline {
        let by = Deadline::within(self.end.within);
        self.last.map_or(by, |last| by.earlier(last))
    }

    /// Ends all calls from now on at `end`.
    pub fn end_at(&mut self, end: Deadline) {
        self.last = Some(end);
    }

    /// Until when an engine that is away is tried again, at the end of the thread.
    pub fn give_up_at(&self) -> Deadline {
        let now = Deadline::within(Duration::ZERO);
        self.give_up.get().copied().unwrap_or(now)
    }

    /// Appends the leaves of `drafts`, once for each id, and only while the keys have `version`. After `Unknown` nothing is
    /// appended before [`EngineWriter::resolve`] has said what became of them; after any other error nothing is in the log.
    pub fn append(
        &mut self,
        drafts: &[&Draft],
        version: Option<u64>,
        once: &[Once],
    ) -> Result<OnceAppended, EngineError> {
        let before = self.before(drafts);
        let now = self.leaves.clock.unix_ms();
        let leaves: Vec<Vec<u8>> = drafts.iter().map(|draft| self.leaf(draft, now)).collect();
        let started = self.leaves.clock.now();
        let by = self.by();
        let done = self.log.append_once(&leaves, version, once, by);
        match &done {
            Ok(OnceAppended::Done(_)) => self.leaves.appended(leaves.len(), started),
            Err(EngineError::Store(StoreError::Unknown(_))) => self.before = Some(before),
            // The engine has the leaves, and the copy does not: only the next start can say what they are.
            Err(EngineError::Copy(_)) => {}
            Ok(OnceAppended::Repeats(_)) | Err(_) => self.take_back(before),
        }
        done
    }

    /// Which of these ids are in use, as long as the keys have `version`; none is taken.
    pub fn find(
        &mut self,
        version: Option<u64>,
        once: &[Once],
    ) -> Result<Vec<Repeat>, EngineError> {
        let by = self.by();
        self.log.find_once(version, once, by)
    }

    /// The indexes of the leaves of an append that was unknown; `None` when they are not in the log and never will be.
    pub fn resolve(&mut self) -> Result<Option<Range<u64>>, EngineError> {
        let started = self.leaves.clock.now();
        let by = self.by();
        let found = self.log.resolve(by)?;
        let before = self.before.take();
        match (&found, before) {
            (Some(range), _) => self
                .leaves
                .appended((range.end - range.start) as usize, started),
            (None, Some(before)) => self.take_back(before),
            (None, None) => {}
        }
        Ok(found)
    }

    /// Appends one leaf, whatever the keys are; an engine that is away is tried again until the deadline, and during a start until
    /// the stop.
    pub fn append_by(&mut self, draft: &Draft, by: Deadline) -> Result<u64, EngineError> {
        let mut is_sent = false;
        loop {
            let done = if self.before.is_some() {
                let found = self.resolve();
                found.map(|range| range.filter(|_| is_sent).map(|range| range.start))
            } else {
                is_sent = true;
                let first = self.log.size();
                self.append(&[draft], None, &[]).map(|_| Some(first))
            };
            match done {
                Ok(Some(index)) => return Ok(index),
                Ok(None) => {}
                Err(EngineError::Store(StoreError::Unknown(_) | StoreError::Refused(_)))
                    if !by.expired() && self.pause() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits before the engine is tried again. False when a start has to end.
    fn pause(&self) -> bool {
        let pause = Deadline::within(AGAIN);
        if self.last.is_none() {
            return !self.end.stop.wait(pause);
        }
        let (_trigger, never) = Shutdown::pair();
        never.wait(pause);
        true
    }

    /// Asks the engine for its head: whether it is there, and whether another process has claimed the log.
    pub fn probe(&mut self) -> Result<(), EngineError> {
        let by = self.by();
        self.log.head(by)?;
        match self.log.epoch() {
            Some(_) => Ok(()),
            None => Err(StoreError::Fenced.into()),
        }
    }

    fn leaf(&mut self, draft: &Draft, now: u64) -> Vec<u8> {
        if let Some(after) = draft.store_version_after {
            // Other nodes have raised the version since the last change of this one.
            self.leaves.set_store_version(after.saturating_sub(1));
        }
        self.leaves.finish(draft.clone(), now)
    }

    fn before(&self, drafts: &[&Draft]) -> Before {
        let counted = drafts.iter().filter(|draft| draft.counted);
        Before {
            counters: self.leaves.counters.without_keys(),
            keys: counted.filter_map(|draft| draft.key.clone()).collect(),
        }
    }

    fn take_back(&mut self, before: Before) {
        let mut keys = std::mem::take(&mut self.leaves.counters.keys);
        for key in before.keys {
            if let Some(count) = keys.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    keys.remove(&key);
                }
            }
        }
        self.leaves.counters = before.counters;
        self.leaves.counters.keys = keys;
    }

    pub fn set_store_version(&mut self, version: u64) {
        self.leaves.set_store_version(version);
    }

    pub fn keep_state(&mut self, now: bool) {
        self.leaves.keep_state(now);
    }
}
