//! Where the batches of a log are kept, when that is an engine with a copy on another host: the
//! contract between the writer of a log and the engine.
//!
//! ```text
//!  claim(seen) ──> Head, epoch + 1      a replicated write first, a read second
//!  append(Owner { epoch }, batch) ──┬─> done      on the standby too
//!                                   ├─> Refused   nothing was changed, nothing will be
//!                                   ├─> Fenced    another holder has claimed the log: stop
//!                                   └─> Unknown   no answer may leave ──> resolve ──> done or not
//!  read_from(first) ──> provisional ──> confirm() ──> final
//! ```
//!
//! **Invariant:** the epoch fences; no lock and no lease does. A holder whose epoch is past changes nothing.
//! **Invariant:** an unknown append is resolved by its place (size and root), never guessed and never repeated blindly.
//! **Invariant:** the store does not read frames. Their bytes, and the tree over their leaves, belong to the caller.

mod transit;

use std::time::Duration;

use ron_kernel::Deadline;

use crate::tree::Hash;
pub use transit::Transit;

/// Where a batch stands in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the first entry: the size of the log before the batch.
    pub first: u64,
    /// Number of entries, at least 1.
    pub count: u32,
    /// Root of the tree before the batch. Compared too: of a tail that vanished with a primary the
    /// size may be reached again by other entries.
    pub before: Hash,
    /// Root of the tree after the batch.
    pub root: Hash,
}

impl Place {
    /// Size of the log after the batch.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// Entries that are appended together: all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub place: Place,
    /// The entries, in the caller's encoding with its own length and checksum.
    pub frame: Vec<u8>,
}

/// The newest state of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub size: u64,
    pub root: Hash,
    /// Raised by each claim; 0 when the log was never claimed.
    pub epoch: u64,
    /// Name of the last claimant; empty when there is none.
    pub holder: String,
}

impl Head {
    /// What a migration does with the log; `None` when nodes may claim it.
    pub fn transit(&self) -> Option<Transit> {
        Transit::of_holder(&self.holder)
    }
}

/// By which right a batch is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// One holder at a time: the epoch that [`LogStore::claim`] gave it is compared.
    Owner { epoch: u64 },
    /// Any number of writers: size and root are compared, and no epoch. Refused while a migration has the log (`Moved`), which the
    /// head says.
    Shared,
}

/// An id that a client gave, which may be used once across all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// Separates services, tenants and principals.
    pub scope: String,
    pub key: String,
    /// Tells a repeated request from another one under the same id.
    pub body_hash: Hash,
    /// What a repeated request is answered with; sealed by the caller.
    pub answer: Vec<u8>,
}

/// An id of an append that was in use already. Its entries have to stay out of the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Position in the list of ids that the caller gave.
    pub at: usize,
    /// False when the id stands for another body: the request is refused.
    pub same_body: bool,
    /// The stored answer of the request that was first.
    pub answer: Vec<u8>,
}

/// An append that is done: the batch is durable on the standby too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// `None` when the caller had nothing left to append.
    pub place: Option<Place>,
    pub repeats: Vec<Repeat>,
}

/// What became of an unknown append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// True: the batch is in the log, durable on the standby too. False: it is not and never will be.
    pub done: bool,
    /// The head, with the epoch under which an owner continues.
    pub head: Head,
}

/// A batch as it was read. Provisional until [`LogStore::confirm`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBatch {
    pub batch: Batch,
    /// Epoch of its writer.
    pub epoch: u64,
}

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The engine could not be reached, or did not answer a read in time. Retry later.
    #[error("the engine is unavailable: {0}")]
    Unavailable(String),
    /// The engine would acknowledge what a lost host takes with it. An operator has to act.
    #[error("the engine is not safe to write to: {0}")]
    Unsafe(String),
    /// An earlier append or claim of this store is unknown: resolve it first.
    #[error("an earlier write of this store has no known outcome yet")]
    Unresolved,
    /// A migration has the log.
    #[error("the log in the engine is not in use: {0}")]
    Transit(String),
    /// The request cannot be carried out as it is.
    #[error("the engine rejects the request: {0}")]
    Rejected(String),
}

/// Every outcome of a call that is not `Ok`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed, and nothing will be.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The write may be in the log, may come into it later, or may be lost: nothing of it may be
    /// answered before [`LogStore::resolve`], and for a claim before it was claimed again.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// Another holder has claimed the log, or the epoch given is not the newest. Nothing was
    /// changed. The caller writes nothing more and becomes a standby.
    #[error("the log has another holder")]
    Fenced,
    /// Only for [`Writer::Shared`]: another writer was first, nothing was changed. Read the tail,
    /// compute the root, try again.
    #[error("the log has grown")]
    Moved,
    /// Only with a guard: it has another version. Nothing was changed. The caller decides again, from what the guard stands for.
    #[error("what the entries were decided from has changed")]
    Stale,
    /// What was read is no part of a log: a gap, a broken row. Writes have to stop.
    #[error("the engine's rows are damaged: {0}")]
    Damaged(String),
    /// The engine is behind a size that it has acknowledged, or has another root there: alarm
    /// `engine_lost_data`, and nothing is written or signed.
    #[error("the engine lost data: {0}")]
    Lost(String),
}

/// Makes the batch of an append from the ids that were in use; `None` when nothing is left.
pub type MakeBatch<'a> = dyn FnMut(&[Repeat]) -> Option<Batch> + 'a;

/// One log in an engine, through one session. One thread owns it; each call ends at its deadline.
///
/// Of the calls only [`LogStore::claim`], [`LogStore::append`], [`LogStore::confirm`] and
/// [`LogStore::put_checkpoint`] write, and when they return `Ok` the write is on the standby too.
pub trait LogStore: Send {
    /// The newest head that the engine shows. Provisional, like everything that is read.
    fn head(&mut self, deadline: Deadline) -> Result<Head, StoreError>;

    /// Takes the log over from the holder of epoch `seen`, and returns the head as it was read
    /// after the claim was replicated: nothing in it can be lost any more.
    ///
    /// `Fenced`: the epoch is not `seen` any more. `Unknown`: the claim may come into force later;
    /// calling again with the same `seen` waits for this claim and does not make a second one. Until
    /// then other calls of this store may be refused as `Unresolved`.
    fn claim(&mut self, seen: u64, deadline: Deadline) -> Result<Head, StoreError>;

    /// Appends one batch at its place. First the ids in `once`, sorted by scope and key and
    /// distinct, are taken; then `batch` is called once with those that were in use; then its
    /// batch is appended, all in one transaction. Without ids, `batch` is called with none.
    ///
    /// `Unknown` for an owner: this store refuses every further append as `Unresolved` until the
    /// log is claimed again.
    fn append(
        &mut self,
        writer: Writer,
        once: &[Once],
        batch: &mut MakeBatch<'_>,
        deadline: Deadline,
    ) -> Result<Appended, StoreError> {
        self.append_guarded(None, writer, once, batch, deadline)
    }

    /// As [`LogStore::append`]. With a version, only while the guard has it: the row of a number that each change of other records
    /// in the same engine raises, named when the store was opened. `Stale` when only that is in the way; `Rejected` without a guard.
    /// Where `batch` makes none because ids are in use, the version is compared all the same: what the caller answers from
    /// the repeats may depend on those records.
    ///
    /// So what was decided from those records is in the log only if it was still right: a request that comes after a change was
    /// acknowledged, to any node, is decided from records with that change.
    fn append_guarded(
        &mut self,
        version: Option<u64>,
        writer: Writer,
        once: &[Once],
        batch: &mut MakeBatch<'_>,
        deadline: Deadline,
    ) -> Result<Appended, StoreError>;

    /// Appends batches that follow each other, all or none, in one transaction: what a migration has many of. Its outcomes are
    /// those of an append of an owner whose place is all of theirs, and it is resolved by that place.
    fn append_run(
        &mut self,
        epoch: u64,
        run: &[Batch],
        deadline: Deadline,
    ) -> Result<(), StoreError>;

    /// Batches in order, the first of which begins at `first`, as many as fit `bytes_max`, and at
    /// least one if there is one. Empty at the end of the log. Provisional: a batch that was read
    /// may vanish with the engine's primary until [`LogStore::confirm`] has returned `Ok`.
    fn read_from(
        &mut self,
        first: u64,
        bytes_max: usize,
        deadline: Deadline,
    ) -> Result<Vec<StoredBatch>, StoreError>;

    /// A replicated write that changes no log. After `Ok` everything that this store has read
    /// before is final, because the engine replicates in order.
    fn confirm(&mut self, deadline: Deadline) -> Result<(), StoreError>;

    /// Keeps a signed checkpoint of `size` entries, or replaces its note by one with more
    /// signatures. `Fenced` for an owner of a past epoch, and for a size that the log does not have.
    fn put_checkpoint(
        &mut self,
        writer: Writer,
        size: u64,
        note: &str,
        deadline: Deadline,
    ) -> Result<(), StoreError>;

    /// Size and note of the newest checkpoint; `None` before the first.
    fn checkpoint(&mut self, deadline: Deadline) -> Result<Option<(u64, String)>, StoreError>;

    /// Finds out what became of an append that returned `Unknown`, by its place.
    ///
    /// An owner claims the log with its own epoch: the engine then refuses what the old session
    /// may still send. A shared writer appends the same batch again: its place is compared, so at
    /// most one of both attempts is in the log.
    ///
    /// `Fenced`: another holder was first; the batch is or is not in its log, and it alone answers.
    fn resolve(
        &mut self,
        writer: Writer,
        once: &[Once],
        batch: &Batch,
        deadline: Deadline,
    ) -> Result<Resolution, StoreError> {
        match writer {
            Writer::Owner { epoch } => by_head(self.claim(epoch, deadline)?, &batch.place),
            Writer::Shared => {
                let mut again =
                    |repeats: &[Repeat]| repeats.is_empty().then(|| Batch::clone(batch));
                let done = match self.append(Writer::Shared, once, &mut again, deadline) {
                    Ok(appended) => appended.place.is_some(),
                    Err(StoreError::Moved) => false,
                    Err(error) => return Err(error),
                };
                let found = self.read_from(batch.place.first, 1, deadline)?;
                let head = self.head(deadline)?;
                // What was read is final only after a write of this store.
                self.confirm(deadline)?;
                let same = found.first().is_some_and(|stored| stored.batch == *batch);
                Ok(Resolution {
                    done: done || same,
                    head,
                })
            }
        }
    }
}

/// What the head after a claim says of an append of the previous epoch at `place`.
fn by_head(head: Head, place: &Place) -> Result<Resolution, StoreError> {
    let done = head.size == place.end() && head.root == place.root;
    // No other holder can have appended in between: the claim compared the epoch.
    let before = head.size == place.first && head.root == place.before;
    if !done && !before {
        return Err(StoreError::Lost(format!(
            "it has {} entries after an append of {} at {}",
            head.size, place.count, place.first
        )));
    }
    Ok(Resolution { done, head })
}

/// Compares a head with sizes and roots that are known from elsewhere (the local newest
/// checkpoint, the witness): `Lost` when the head is behind one of them, or when `root_at`, the
/// root that the head's tree had at a size, is another. Required at a claim and before a
/// checkpoint is signed.
pub fn check_extends(
    head: &Head,
    known: &[(u64, Hash)],
    mut root_at: impl FnMut(u64) -> Option<Hash>,
) -> Result<(), StoreError> {
    for (size, root) in known {
        if head.size < *size {
            return Err(StoreError::Lost(format!(
                "it has {} entries and has acknowledged {size}",
                head.size
            )));
        }
        if root_at(*size).as_ref() != Some(root) {
            return Err(StoreError::Lost(format!(
                "its root at {size} entries is another than the acknowledged one"
            )));
        }
    }
    Ok(())
}

/// The end of a log as a follower has it: what is final, and what may still vanish.
#[derive(Debug)]
pub struct Tail {
    size: u64,
    provisional: Vec<StoredBatch>,
    cut: u64,
}

impl Tail {
    /// A follower that has the first `size` entries, all of them final.
    pub fn after(size: u64) -> Self {
        Self {
            size,
            provisional: Vec::new(),
            cut: 0,
        }
    }

    /// Number of final entries: all that may be served.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Entries that were read and have vanished before they were final. No alarm: nobody was
    /// answered from them.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Reads on, makes what was read final by a write of this store, and returns it. On an error
    /// it stays provisional and is read again. `bytes_max` is the same in each call. `Lost`: the
    /// engine is behind what was final.
    pub fn follow(
        &mut self,
        store: &mut dyn LogStore,
        bytes_max: usize,
        deadline: Deadline,
    ) -> Result<Vec<StoredBatch>, StoreError> {
        let head = store.head(deadline)?;
        if head.size < self.size {
            return Err(StoreError::Lost(format!(
                "it has {} entries, and {} were final",
                head.size, self.size
            )));
        }
        let mut read = store.read_from(self.size, bytes_max, deadline)?;
        if read.is_empty() && head.size > self.size {
            // A tail that vanished between the two reads looks like this, and so does a log whose batches end at other sizes
            // than the ones that were final here.
            store.confirm(deadline)?;
            let head = store.head(deadline)?;
            read = store.read_from(self.size, bytes_max, deadline)?;
            if read.is_empty() && head.size > self.size {
                return Err(StoreError::Lost(format!(
                    "it has {} entries, and none of its batches begins at {}, where the final ones end",
                    head.size, self.size
                )));
            }
        }
        let same = self.provisional.iter().zip(&read);
        let same = same.take_while(|(before, now)| before == now).count();
        let vanished = self.provisional[same..].iter();
        self.cut += vanished
            .map(|stored| u64::from(stored.batch.place.count))
            .sum::<u64>();
        self.provisional = read;
        #[cfg(mutant = "provisional")] // what was read counts as final
        if ron_kernel::mutant("provisional") {
            let read = std::mem::take(&mut self.provisional);
            self.size = read.last().map_or(self.size, |b| b.batch.place.end());
            return Ok(read);
        }
        if !self.provisional.is_empty() {
            store.confirm(deadline)?;
        }
        let read = std::mem::take(&mut self.provisional);
        if let Some(last) = read.last() {
            self.size = last.batch.place.end();
        }
        Ok(read)
    }
}

/// The sign of life of a log's holder, through a session of its own: appends may wait for the
/// engine's standby while beats do not. A standby claims when successful reads show the same beat
/// for a time of its own clock; no two machines compare clocks.
pub trait LogBeat: Send {
    /// Counts one up. Not replicated: a lost beat delays nothing but a takeover.
    fn beat(&mut self, deadline: Deadline) -> Result<(), StoreError>;

    /// The newest beat; 0 before the first.
    fn observe(&mut self, deadline: Deadline) -> Result<u64, StoreError>;
}

/// The housekeeping of a log in an engine, through a session of its own. Each node does it; what another has done is done.
pub trait LogUpkeep: Send {
    /// Makes what the log needs, if it is missing.
    fn install(&mut self, deadline: Deadline) -> Result<(), StoreError>;

    /// Makes room ahead of need, removes what has expired, and looks at the engine.
    fn tend(&mut self, deadline: Deadline) -> Result<EngineState, StoreError>;

    /// Keeps ids without a batch, in place of what is kept under them: a migration has their entries. Durable when this returns; after
    /// an unknown outcome it is done again.
    fn carry_ids(&mut self, ids: &[CarriedId], deadline: Deadline) -> Result<(), StoreError>;

    /// Ids of a scope that have not expired, in the order of their keys: those behind `after`, as many as `limit`. Final.
    fn ids_after(
        &mut self,
        scope: &str,
        after: &str,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<CarriedId>, StoreError>;

    /// Removes everything that `install` made, with all that is in it; nothing when it is not there. Only for a rehearsal, which has
    /// a place of its own.
    fn remove(&mut self, deadline: Deadline) -> Result<(), StoreError>;
}

/// An id that a migration takes along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedId {
    pub once: Once,
    /// How long it counts from now on.
    pub left: Duration,
}

/// What an operator has to know of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineState {
    /// Address of the server that takes writes.
    pub server: String,
    /// Servers that follow it.
    pub standbys: Vec<EngineStandby>,
    /// Number of transactions since the oldest that the server still has to tell apart.
    pub oldest_transaction: u64,
    /// Number of partitions that are ready beyond the one in use.
    pub partitions_ahead: u32,
}

/// A server that follows the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStandby {
    pub name: String,
    /// Whether writes wait for it.
    pub synchronous: bool,
    /// Bytes that it has not made durable; `None` when this node may not see that.
    pub behind_bytes: Option<u64>,
}

/// What an operator has to know of an engine before a node writes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInspection {
    /// Why a commit may not survive the loss of a host.
    pub unsafe_because: Option<String>,
    pub state: EngineState,
    /// Major version of the server.
    pub version: u64,
    /// Sessions that the user may have; `None` for any number.
    pub sessions_max: Option<u64>,
}

/// The sessions of one node with a log in an engine. Each may wait without the others.
pub struct LogSessions {
    pub batches: Box<dyn LogStore>,
    pub checkpoints: Box<dyn LogStore>,
    pub beat: Box<dyn LogBeat>,
    pub upkeep: Box<dyn LogUpkeep>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(size: u64, root: u8) -> Head {
        Head {
            size,
            root: [root; 32],
            epoch: 2,
            holder: "a".into(),
        }
    }

    #[test]
    fn a_place_is_done_not_done_or_lost() {
        let place = Place {
            first: 10,
            count: 5,
            before: [3; 32],
            root: [7; 32],
        };
        let done = |head| by_head(head, &place).map(|resolution| resolution.done);
        assert_eq!(done(head(15, 7)), Ok(true));
        assert_eq!(done(head(10, 3)), Ok(false));
        for lost in [
            head(15, 8),
            head(10, 4),
            head(9, 3),
            head(16, 7),
            head(12, 7),
        ] {
            assert!(matches!(done(lost), Err(StoreError::Lost(_))));
        }
    }

    #[test]
    fn a_migration_is_read_from_the_holders_name() {
        let held = |holder: &str| {
            let holder = holder.to_owned();
            Head {
                holder,
                ..head(1, 1)
            }
        };
        for transit in [
            Transit::Filling("a:/x".into()),
            Transit::Moved("b:/y#z".into()),
        ] {
            assert_eq!(held(&transit.holder(7)).transit(), Some(transit));
        }
        for holder in ["", "http://10.0.0.1:7460#0000000000000007", "migrated-7"] {
            assert_eq!(held(holder).transit(), None);
        }
    }

    #[test]
    fn a_head_behind_or_beside_what_was_acknowledged_is_lost_data() {
        let root_at = |size: u64| (size <= 15).then_some([size as u8; 32]);
        let check = |known: &[(u64, Hash)]| check_extends(&head(15, 15), known, root_at);
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[(15, [15; 32]), (3, [3; 32])]), Ok(()));
        for (size, root) in [(16, 16), (15, 14), (3, 4)] {
            let found = check(&[(3, [3; 32]), (size, [root; 32])]);
            assert!(matches!(found, Err(StoreError::Lost(_))), "{size}");
        }
    }
}
