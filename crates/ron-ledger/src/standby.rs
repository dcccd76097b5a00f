//! What the writer's thread does on a node of a shared ledger beside committing: it follows the holder, takes over from it, and
//! finds out what became of a commit without a known outcome.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, Receiver, SharedClock};
use ron_proto::Timestamp;
use ron_service::log_host::cosign::Witnesses;
use ron_tlog::append::EngineError as LogError;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::store::{Refusal, StoreError};

use crate::copies::{CopyError, Resolved};
use crate::core::State;
use crate::engine::{CommitError, Committed, Engine, Request};
use crate::health::Health;
use crate::ledger::{BROKEN, Decided, LOST, POISONED, Reply};
use crate::role::Role;

/// Maximum time of a call to the engine, in which no commit is taken.
const CALL: Duration = Duration::from_secs(1);
/// How often the engine is asked who holds the log.
const POLL: Duration = Duration::from_secs(1);
/// Pause between two reads of what the holder has written.
pub(crate) const FOLLOW: Duration = Duration::from_millis(50);

/// Why a node neither writes nor follows any more.
pub(crate) struct Stop {
    /// The state of the gate from now on.
    pub gate: u8,
    pub why: String,
}

/// What a node of a shared ledger has beside its books.
pub struct NodeParts {
    pub role: Arc<Role>,
    /// From the thread that watches the holder: it is silent.
    pub claims: Receiver<()>,
    /// Asked for their heads at a takeover; `None` when the ledger has none.
    pub witnesses: Option<Witnesses>,
}

/// What a migration does with the log, if that is why its head is not shown.
fn transit_of<T>(outcome: &Result<T, CopyError>) -> Option<String> {
    match outcome {
        Err(CopyError::Log(LogError::Store(StoreError::Refused(Refusal::Transit(why))))) => {
            Some(why.clone())
        }
        _ => None,
    }
}

/// What the writer knows beside the books.
pub(crate) struct Node {
    role: Arc<Role>,
    claims: Receiver<()>,
    witnesses: Option<Witnesses>,
    clock: SharedClock,
    health: Arc<dyn Health>,
    /// A commit without a known outcome, with its callers.
    held: Option<(Vec<Request>, Vec<Reply>)>,
    claiming: Option<Claiming>,
    poll_at: Deadline,
}

/// A claim of the log that has no outcome yet.
struct Claiming {
    /// The epoch that is claimed.
    seen: u64,
    /// The heads that the witnesses had before.
    known: Vec<Checkpoint>,
    /// It may be in the engine.
    is_unknown: bool,
}

impl Node {
    pub fn new(parts: NodeParts, clock: SharedClock, health: Arc<dyn Health>) -> Self {
        Self {
            role: parts.role,
            claims: parts.claims,
            witnesses: parts.witnesses,
            clock,
            health,
            held: None,
            claiming: None,
            poll_at: Deadline::within(Duration::ZERO),
        }
    }

    /// Whether nothing can be committed before an earlier commit has an outcome.
    pub const fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Keeps the callers of a commit without a known outcome.
    pub fn hold(&mut self, requests: Vec<Request>, replies: Vec<Reply>) {
        self.held = Some((requests, replies));
    }

    /// Asks the engine once more what became of the commit that is held.
    pub fn settle(&mut self, engine: &mut Engine) -> Option<Decided> {
        self.held.as_ref()?;
        let resolved = engine.resolve(Deadline::within(CALL));
        self.report_role(engine);
        let result = match resolved {
            Ok(Resolved::Done(committed)) => Ok(committed),
            Ok(Resolved::NotDone | Resolved::Nothing) => Err(CommitError::Unavailable(
                "the engine of the log did not take the entries".to_owned(),
            )),
            #[cfg(mutant = "fenced")] // whoever is fenced has written nothing
            Err(CommitError::Standby) if ron_kernel::mutant("fenced") => Err(
                CommitError::Unavailable("another node was first".to_owned()),
            ),
            // The new holder's log has them or not.
            Err(CommitError::Standby) => Err(CommitError::Undecided(
                "another node holds the ledger now".to_owned(),
            )),
            Err(error @ (CommitError::Undecided(_) | CommitError::Unavailable(_))) => {
                self.health.engine(Some(&error.to_string()));
                return None;
            }
            Err(error) => Err(error),
        };
        self.end_hold(result)
    }

    /// At the end of the thread: the callers of a commit without a known outcome are told so.
    pub fn give_up(&mut self) -> Option<Decided> {
        let why = "the ledger is stopping".to_owned();
        self.end_hold(Err(CommitError::Undecided(why)))
    }

    fn end_hold(&mut self, result: Result<Committed, CommitError>) -> Option<Decided> {
        let (requests, replies) = self.held.take()?;
        Some(Decided {
            requests,
            replies,
            result,
        })
    }

    /// Tells all threads whether this node writes; called after each call that may have changed it.
    pub fn report_role(&mut self, engine: &Engine) {
        let epoch = engine.epoch();
        let was_active = self.role.set_active(epoch.is_some());
        match epoch {
            Some(epoch) => self
                .role
                .shown
                .writes(epoch, Timestamp(self.clock.unix_ms())),
            None => self.role.shown.stopped(),
        }
        match (was_active, epoch) {
            (false, Some(epoch)) => self.health.role("active", Some(epoch)),
            (true, None) => self.health.role("standby", None),
            _ => {}
        }
        if was_active && epoch.is_none() {
            // The holder that was silent once is not the one that has just claimed the log.
            while self.claims.try_recv().is_some() {}
            self.poll_at = Deadline::within(Duration::ZERO);
        }
    }

    /// Of a holder that has nothing to write: whether the engine is there, and whether another node has claimed the log.
    pub fn watch(&mut self, engine: &mut Engine) -> Result<(), Stop> {
        if self.poll_at.expired() {
            self.poll_at = Deadline::within(POLL);
            let seen = engine.log_head(Deadline::within(CALL));
            self.report_role(engine);
            self.judge(seen)?;
        }
        Ok(())
    }

    /// One step of a standby; the number of entries that came.
    pub fn stand_by(&mut self, engine: &mut Engine) -> Result<u64, Stop> {
        let by = || Deadline::within(CALL);
        let followed = engine.follow(by());
        let came = self.judge(followed)?.unwrap_or(0);
        let silent = self.claims.try_recv().is_some();
        if self.claiming.is_none() && (silent || self.poll_at.expired()) {
            self.poll_at = Deadline::within(POLL);
            let seen = engine.log_head(by());
            let transit = transit_of(&seen);
            self.role.set_transit(transit.clone());
            if transit.is_none() {
                let Some(head) = self.judge(seen)? else {
                    return Ok(came);
                };
                let size = engine.shared().reader().size_durable();
                // An earlier process of this node has ended: this one has its directory.
                if self.role.see(&head, size) || silent {
                    self.claiming = Some(Claiming {
                        seen: head.epoch,
                        known: self.witnessed(),
                        is_unknown: false,
                    });
                }
            }
            self.health.standby(Some(&self.role.standing()));
        }
        self.claim(engine)?;
        Ok(came)
    }

    /// The heads that the witnesses have: an engine that is behind one of them has lost entries.
    fn witnessed(&self) -> Vec<Checkpoint> {
        let Some(witnesses) = &self.witnesses else {
            return Vec::new();
        };
        let (heads, failures) = witnesses.heads();
        if !failures.is_empty() {
            let why = failures.join("; ");
            tracing::warn!(event = "head_not_compared", why);
            let why =
                format!("at the takeover not every witness gave the head that it remembers: {why}");
            self.health.not_compared(&why);
        }
        heads
    }

    fn claim(&mut self, engine: &mut Engine) -> Result<(), Stop> {
        let Some(claiming) = &mut self.claiming else {
            return Ok(());
        };
        let now = Timestamp(self.clock.unix_ms());
        let claimed = engine.claim(claiming.seen, &claiming.known, now, Deadline::within(CALL));
        match &claimed {
            // The same claim is waited for.
            Err(CopyError::Log(LogError::Store(StoreError::Unknown(_)))) => {
                claiming.is_unknown = true;
                return Ok(());
            }
            // This call has changed nothing, but the claim before it may be in the engine, which takes no other one until it is known.
            Err(CopyError::Log(LogError::Store(StoreError::Refused(_)))) if claiming.is_unknown => {
                return self.judge(claimed).map(drop);
            }
            Err(CopyError::Log(LogError::Store(StoreError::Fenced))) => {
                self.claiming = None; // another node was first
                return Ok(());
            }
            _ => self.claiming = None,
        }
        if self.judge(claimed)?.is_some() {
            self.clock.resume_after(engine.shared().state(State::ts).0);
            self.report_role(engine);
            self.health.standby(None);
        }
        Ok(())
    }

    /// Reports what a call says of the engine; `None` when it has to be made again.
    fn judge<T>(&self, outcome: Result<T, CopyError>) -> Result<Option<T>, Stop> {
        match outcome {
            Ok(value) => {
                self.health.engine(None);
                Ok(Some(value))
            }
            Err(error) => {
                let why = error.to_string();
                let gate = match &error {
                    // The holder's entries are not those that this program would decide.
                    CopyError::Entry(_) => BROKEN,
                    CopyError::Log(LogError::Store(
                        StoreError::Lost(_) | StoreError::Damaged(_),
                    )) => LOST,
                    CopyError::Log(LogError::Copy(_)) => POISONED,
                    CopyError::Log(_) => {
                        self.health.engine(Some(&why));
                        return Ok(None);
                    }
                };
                Err(Stop { gate, why })
            }
        }
    }
}
