//! What the store thread does where other nodes change the keys too, and the engine that has them may be away.
//!
//! Before each job, and every half a second, the newest keys are read. A change whose commit has no known outcome is in the store
//! or not after that. A change that is committed stays unfinished until its leaf is durable and it is marked complete, however
//! long the engine is away; until then no other change is begun.
//!
//! **Invariant:** the snapshot is not newer than a change of this node whose leaf is not in the log and which the thread waits for.
//! **Invariant:** leaves of changes are queued and appended in the order of the versions that they make. The one exception is the
//! checkpoint of a `note` key: its leaf is that of a signature, may come behind a later change, and states that one's version then.

use std::time::Duration;

use ron_custody::store::{Pending, StoreError};
use ron_custody::{Cause, Refusal};
use ron_kernel::{Credit, Deadline, ReplyWaiter, Shutdown, WaitError, reply};
use ron_proto::receipt::LogReceipt;

use super::complete::{complete_change, complete_log_key};
use super::{LEAF_WAIT, Lifecycle, store_down};
use crate::audit::entry::{Entry, Items, NotDurable};
use crate::audit::leaf::{Draft, Op};

/// How often the keys are read when there is no job.
pub const POLL: Duration = Duration::from_millis(500);
/// How often a change that another node was faster with is decided again.
pub const MOVES_MAX: usize = 16;
/// How long a change waits for its leaf in an engine before the thread goes on without it.
const ENGINE_LEAF_WAIT: Duration = Duration::from_secs(10);
/// How soon a wait for a leaf notices a drain, and the rest of that wait then.
const LEAF_CHECK: Duration = Duration::from_millis(100);
const DRAIN_LEAF_WAIT: Duration = Duration::from_millis(500);
/// Maximum wait for the leaf of an unfinished change before a job.
const UNFINISHED_WAIT: Duration = Duration::from_millis(50);
/// The readiness cause that the engine of the keys is away, or a change waits.
const STORE: &str = "store";
/// The readiness cause that the issuer policy is not in force.
pub const POLICY: &str = "policy";

/// A change that is committed, and what its completion needs.
pub enum Committed {
    Key(Box<Pending>, Op),
    /// Number of the key, and the leaf.
    LogKey(u32, Box<Draft>),
    Policy,
}

enum LeafState {
    Awaited(ReplyWaiter<Result<LogReceipt, NotDurable>>),
    Durable(LogReceipt),
}

#[derive(Default)]
pub struct Recovery {
    /// Nothing of the store may be used before it was read again.
    is_unread: bool,
    /// When the engine is tried again after a failure.
    retry: Option<Deadline>,
    is_reported: bool,
    unfinished: Option<(Committed, LeafState)>,
    /// Fired when the drain stops the store thread; set when that runs.
    pub(super) shutdown: Option<Shutdown>,
    /// The version of the store at which the outbox was looked into last.
    outbox_seen: Option<u64>,
}

impl Recovery {
    /// Whether the engine or a leaf has to be waited for.
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_unread || self.unfinished.is_some()
    }
}

/// Why a change was not made.
pub enum ChangeError {
    Refusal(Refusal),
    /// Another node has changed the keys since they were read: decide again.
    Moved,
}

impl From<Refusal> for ChangeError {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refusal(refusal) => refusal,
            ChangeError::Moved => moved(),
        }
    }
}

impl Lifecycle {
    /// Before a job: reads what other nodes have changed, and finishes what is unfinished. An error refuses the job.
    pub(super) fn prepare(&mut self) -> Result<(), Refusal> {
        if self.stopped {
            return Err(store_down());
        }
        if self.recovery.is_unread {
            // Jobs that are queued do not each wait for an engine that has just failed.
            if self.recovery.retry.is_some_and(|at| !at.expired()) {
                return Err(engine_silent());
            }
            self.read_again()?;
            self.find_unfinished()?;
        }
        self.finish_change()?;
        self.read_again()?;
        // An earlier process of this node may have committed a change after this one had claimed its log: only the claim of the
        // log stops it, and its change would have no leaf.
        if self.recovery.outbox_seen != Some(self.store.version()) {
            self.find_unfinished()?;
            self.finish_change()?;
            self.recovery.outbox_seen = Some(self.store.version());
        }
        // Before the newest keys are published, so that most results that follow them come behind the leaf.
        self.name_peer_log();
        self.publish_newest();
        if std::mem::take(&mut self.recovery.is_reported) {
            self.ready.present(STORE);
        }
        Ok(())
    }

    /// Reads the keys, if another node has changed them.
    pub(super) fn read_again(&mut self) -> Result<(), Refusal> {
        self.store.refresh().map_err(|e| self.store_failed(&e))?;
        (self.recovery.is_unread, self.recovery.retry) = (false, None);
        Ok(())
    }

    /// Publishes the keys as they are in the store, unless a change waits for its leaf.
    pub(super) fn publish_newest(&self) {
        let recovery = &self.recovery;
        let is_new = self.kms.index.with(|index| index.store_version) != self.store.version();
        if is_new && !recovery.is_unread && recovery.unfinished.is_none() {
            self.publish_all();
        }
    }

    pub(in crate::work) fn publish_all(&self) {
        let mut index = self.store.index();
        let settings = self.kms.settings.load();
        index.policy = self.store.policy_in_force(&settings.keys.policy_keys);
        if index.policy.is_some() {
            self.ready.clear(POLICY); // another node may have brought it
        }
        self.kms.metrics.show_keys(&index);
        self.kms.index.store(index);
    }

    /// After a commit without a known outcome: the change that is in the outbox was committed, and gets its leaf now.
    fn find_unfinished(&mut self) -> Result<(), Refusal> {
        if self.recovery.unfinished.is_some() {
            return Ok(());
        }
        let found = self.outbox().map_err(|e| self.store_failed(&e))?;
        let Some((committed, leaf, version_before)) = found else {
            return Ok(());
        };
        let draft = Draft::parse(&leaf);
        let draft = draft.map_err(|why| {
            let why = format!("the outbox: {why}");
            self.store_failed(&StoreError::Tampered(why))
        })?;
        let Some(credit) = self.kms.credits.try_acquire() else {
            self.recovery.is_unread = true;
            return Err(Refusal::busy(self.kms.audit_tx.retry_after_s()));
        };
        let committed = match committed {
            Committed::Key(pending, _) => Committed::Key(pending, draft.op),
            Committed::LogKey(number, _) => Committed::LogKey(number, Box::new(draft.clone())),
            Committed::Policy => Committed::Policy,
        };
        let draft = Draft {
            store_version_after: Some(version_before + 1),
            ..draft
        };
        // Before the leaf is queued, as in the rotation of a log key: a checkpoint over that leaf must carry the new key's line.
        self.show_log_keys()?;
        let (to, from) = reply();
        let drafts = Items::from_buf([draft]);
        self.kms
            .enter(Entry::new(drafts, to, Items::from_buf([credit])));
        self.recovery.unfinished = Some((committed, LeafState::Awaited(from)));
        Ok(())
    }

    /// The change of this node that is committed and not complete, its leaf, and the version before it.
    fn outbox(&mut self) -> Result<Option<(Committed, Vec<u8>, u64)>, StoreError> {
        if let Some(pending) = self.store.pending()? {
            let (leaf, before) = (pending.leaf.clone(), pending.version_before);
            let committed = Committed::Key(Box::new(pending), Op::Create);
            return Ok(Some((committed, leaf, before)));
        }
        if let Some(pending) = self.store.pending_log_key()? {
            let draft = Draft::service(Op::RotateLogKey, "");
            let committed = Committed::LogKey(pending.number, Box::new(draft));
            return Ok(Some((committed, pending.leaf, pending.version_before)));
        }
        let policy = self.store.pending_policy()?;
        Ok(policy.map(|pending| (Committed::Policy, pending.leaf, pending.version_before)))
    }

    fn finish_change(&mut self) -> Result<(), Refusal> {
        let Some((committed, leaf)) = self.recovery.unfinished.take() else {
            return Ok(());
        };
        let receipt = match leaf {
            LeafState::Durable(receipt) => receipt,
            LeafState::Awaited(from) => match from.wait_again(Deadline::within(UNFINISHED_WAIT)) {
                Ok(Ok(receipt)) => receipt,
                Err(WaitError::Timeout) => {
                    self.recovery.unfinished = Some((committed, LeafState::Awaited(from)));
                    return Err(change_waits());
                }
                Ok(Err(NotDurable)) | Err(WaitError::Dropped) => return Err(self.leaf_lost()),
            },
        };
        let done = match &committed {
            Committed::Key(pending, op) => {
                complete_change(&mut self.store, pending, *op, &receipt).map(drop)
            }
            Committed::LogKey(number, draft) => {
                complete_log_key(&mut self.store, *number, receipt.clone(), draft).map(drop)
            }
            Committed::Policy => self.store.complete_policy(receipt.index),
        };
        self.completed(done, || committed, &receipt)?;
        tracing::info!(event = "unfinished_change_completed", leaf = receipt.index);
        self.show_log_keys()
    }

    /// Queues the leaf of a change that is committed, and waits until it is durable.
    pub(in crate::work) fn log_change(
        &mut self,
        draft: Draft,
        credits: Items<Credit>,
        committed: impl FnOnce() -> Committed,
    ) -> Result<LogReceipt, Refusal> {
        let (to, from) = reply();
        self.kms
            .enter(Entry::new(Items::from_buf([draft]), to, credits));
        let waited = if self.kms.is_shared {
            self.wait_for_leaf(&from)
        } else {
            from.wait_again(Deadline::within(LEAF_WAIT))
        };
        match waited {
            Ok(Ok(receipt)) => Ok(receipt),
            Err(WaitError::Timeout) if self.kms.is_shared => {
                self.recovery.unfinished = Some((committed(), LeafState::Awaited(from)));
                self.report("a change waits for its audit leaf");
                Err(change_waits())
            }
            Ok(Err(NotDurable)) | Err(_) => Err(self.leaf_lost()),
        }
    }

    /// Waits for the leaf of a change in an engine; shortly during a drain, since the next start completes the change.
    fn wait_for_leaf(
        &self,
        from: &ReplyWaiter<Result<LogReceipt, NotDurable>>,
    ) -> Result<Result<LogReceipt, NotDurable>, WaitError> {
        let mut end = Deadline::within(ENGINE_LEAF_WAIT);
        loop {
            let waited = from.wait_again(Deadline::within(LEAF_CHECK).earlier(end));
            if !matches!(waited, Err(WaitError::Timeout)) || end.expired() {
                return waited;
            }
            if self.is_draining() {
                end = end.earlier(Deadline::within(DRAIN_LEAF_WAIT));
            }
        }
    }

    fn is_draining(&self) -> bool {
        let shutdown = self.recovery.shutdown.as_ref();
        shutdown.is_some_and(Shutdown::is_set)
    }

    /// The change is committed but its leaf is not known to be durable: the next start completes it from the outbox. A further
    /// change would need the one outbox row.
    fn leaf_lost(&mut self) -> Refusal {
        self.stopped = true;
        self.ready.missing(
            STORE,
            "a change waits for its audit leaf; restart the service to complete it",
        );
        Refusal::audit_down()
    }

    /// The outcome of the completion of a change whose leaf is durable. Where the engine did not take it, it is tried again.
    pub(in crate::work) fn completed<T>(
        &mut self,
        done: Result<T, StoreError>,
        committed: impl FnOnce() -> Committed,
        receipt: &LogReceipt,
    ) -> Result<T, Refusal> {
        done.map_err(|error| {
            if self.kms.is_shared {
                let leaf = LeafState::Durable(receipt.clone());
                self.recovery.unfinished = Some((committed(), leaf));
            }
            self.store_failed(&error)
        })
    }

    fn report(&mut self, why: &str) {
        self.recovery.is_reported = true;
        self.ready.missing(STORE, why);
    }

    /// The engine did not do what it was asked; the keys are read again before anything else.
    pub(super) fn engine_failed(&mut self, error: &StoreError) -> Refusal {
        self.recovery.is_unread = true;
        if matches!(error, StoreError::Moved) {
            return moved();
        }
        self.recovery.retry = Some(Deadline::within(POLL));
        let errors = &self.kms.metrics.io_errors;
        errors.with_label_values(&["store"]).inc();
        if !self.recovery.is_reported {
            tracing::warn!(event = "store_engine_failed", %error);
        }
        self.report(&error.to_string());
        engine_silent()
    }
}

fn engine_silent() -> Refusal {
    let detail = "the database of the keys does not answer; send the request again with the same op_id, because it is not known \
                  whether anything was changed. See /readyz.";
    Refusal {
        retry_after_s: 5,
        ..Refusal::new(Cause::StoreUnavailable, detail)
    }
}

/// Other nodes were faster.
pub(super) fn moved() -> Refusal {
    let detail =
        "other nodes have changed the keys meanwhile; nothing was done: send the request again";
    Refusal::new(Cause::StoreUnavailable, detail)
}

/// Versions become visible in order, so a version above that of another node would be invisible until that node is back.
pub(super) fn unfinished_elsewhere() -> Refusal {
    let detail = "another node has not finished the last change of this key; nothing was done: send the request again";
    Refusal::new(Cause::StoreUnavailable, detail)
}

fn change_waits() -> Refusal {
    let detail = "a change is made and waits until its leaf is in the audit log: send the request again with the same op_id";
    Refusal {
        retry_after_s: 5,
        ..Refusal::new(Cause::StoreUnavailable, detail)
    }
}
