//! The role of this node of a ledger whose log is in an engine: the holder, which writes, or a standby, which follows. Also the
//! thread that gives the holder's sign of life, or watches for it.
//!
//! ```text
//!  led-beat: the holder counts up each second; a standby sees the same count for `takeover_after` ──> led-writer: claim
//! ```
//!
//! **Invariant:** no clock of another machine is read. What fences a holder is the epoch, not the beat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_kernel::{Deadline, Registry, Sender, SharedClock, Snapshot, ThreadCtx};
use ron_proto::ledger::{Closed, ClosedCause};
use ron_service::log_node::LogNode;
use ron_tlog::store::{Head, LogBeat};

/// How often the holder counts up.
const BEAT: Duration = Duration::from_secs(1);
/// How often a standby looks.
const POLL: Duration = Duration::from_millis(250);
/// Maximum time of a call of this thread.
const CALL: Duration = Duration::from_secs(2);
/// Readiness cause: the engine of the log.
pub const ENGINE: &str = "engine";

/// What this node is, for all threads.
#[derive(Debug)]
pub struct Role {
    /// URL under which clients reach this node.
    node: String,
    active: AtomicBool,
    /// URL of the node that writes, as the engine showed it last.
    holder: Snapshot<Option<String>>,
    /// What operators see of it.
    pub(crate) shown: Arc<LogNode>,
    /// What a migration does with the log, if it has it.
    transit: Snapshot<Option<String>>,
}

impl Role {
    pub fn standby(node: &str, registry: &Registry) -> Self {
        Self {
            node: node.to_owned(),
            active: AtomicBool::new(false),
            holder: Snapshot::new(None),
            shown: LogNode::new(registry, node),
            transit: Snapshot::new(None),
        }
    }

    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// Returns whether this node was active before.
    pub(crate) fn set_active(&self, active: bool) -> bool {
        self.active.swap(active, Ordering::SeqCst)
    }

    /// Notes the head of a log of which this node has `size` entries, and its holder. True when that is an earlier process of this
    /// node, which has ended: two cannot have the data directory.
    pub(crate) fn see(&self, head: &Head, size: u64) -> bool {
        let url = head.holder.rsplit_once('#').map(|(url, _)| url.to_owned());
        let own = url.as_ref() == Some(&self.node);
        let behind = head.size.saturating_sub(size);
        self.shown.follows(head.epoch, url.clone(), behind);
        if self.holder.with(|known| *known != url) {
            self.holder.store(url);
        }
        own
    }

    /// Notes why the engine shows no holder, when a migration has the log.
    pub(crate) fn set_transit(&self, why: Option<String>) {
        self.transit.store(why);
    }

    /// What this node is while it is not active.
    pub(crate) fn standing(&self) -> String {
        let what = match (self.other(), self.transit.with(Clone::clone)) {
            (_, Some(why)) => format!("a standby: {why}"),
            (Some(url), None) => format!("a standby of {url}"),
            (None, None) => "a standby, and no node is known to be active".to_owned(),
        };
        format!("this node of the ledger is {what}")
    }

    /// URL of the node that writes, if that is known to be another.
    fn other(&self) -> Option<String> {
        let is_moved = self.transit.with(Option::is_some);
        let holder = self.holder.with(Clone::clone);
        holder.filter(|url| *url != self.node && !is_moved)
    }

    /// Why this node writes nothing, or `None` for the holder.
    pub(crate) fn closed(&self) -> Option<Closed> {
        if self.is_active() {
            return None;
        }
        let (cause, why) = (ClosedCause::NotActive, self.standing());
        let hint = cause.hint();
        Some(Closed {
            cause,
            detail: format!("{why}: nothing was done; {hint}"),
            active: self.other(),
        })
    }
}

/// Whether a standby has seen the same count for long enough.
#[derive(Debug, Default)]
struct SameBeat {
    /// The count, and since when successful reads have shown it.
    seen: Option<(u64, Instant)>,
}

impl SameBeat {
    /// A read that failed says nothing of the holder: the watch begins again.
    fn observe(&mut self, beat: Option<u64>, now: Instant, after: Duration) -> bool {
        match (beat, self.seen) {
            (Some(beat), Some((same, since))) if beat == same => now.duration_since(since) >= after,
            (Some(beat), _) => {
                self.seen = Some((beat, now));
                false
            }
            (None, _) => {
                self.seen = None;
                false
            }
        }
    }
}

/// The body of led-beat.
pub fn run_beat(
    ctx: &ThreadCtx,
    mut beat: Box<dyn LogBeat>,
    role: &Role,
    claims: &Sender<()>,
    takeover_after: Duration,
    clock: &SharedClock,
) {
    let mut same = SameBeat::default();
    let mut pause = POLL;
    while !ctx.shutdown.wait(Deadline::within(pause)) {
        let by = Deadline::within(CALL);
        if role.is_active() {
            pause = BEAT;
            same = SameBeat::default();
            // A lost beat delays nothing but a takeover that is not wanted; the writer reports the engine.
            let _ = beat.beat(by);
            continue;
        }
        pause = POLL;
        let seen = beat.observe(by).ok();
        if same.observe(seen, clock.now(), takeover_after) {
            same = SameBeat::default();
            let _ = claims.try_send(()); // full: a claim is wanted already
        }
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Clock as _, SystemClock};
    use ron_service::log_engine::holder_name;
    use ron_tlog::tree::empty_root;

    use super::*;

    #[test]
    fn a_holder_is_silent_when_successful_reads_show_the_same_count_long_enough() {
        let begin = SystemClock.now();
        let at = |ms| begin + Duration::from_millis(ms);
        let after = Duration::from_secs(3);
        let mut same = SameBeat::default();
        assert!(!same.observe(Some(7), at(0), after));
        assert!(!same.observe(Some(7), at(2_900), after));
        assert!(same.observe(Some(7), at(3_000), after));
        assert!(!same.observe(Some(8), at(3_100), after));
        assert!(!same.observe(None, at(6_000), after));
        assert!(
            !same.observe(Some(8), at(6_100), after),
            "the watch began again"
        );
        assert!(same.observe(Some(8), at(9_100), after));
    }

    #[test]
    fn a_standby_names_the_node_that_writes() {
        let role = Role::standby("http://10.0.0.1:7460", &Registry::new("t"));
        let held_by = |url: &str| Head {
            size: 0,
            root: empty_root(),
            epoch: 1,
            holder: holder_name(url, 5),
        };
        let closed = role.closed().unwrap();
        assert_eq!(
            (closed.cause, closed.active),
            (ClosedCause::NotActive, None)
        );
        assert!(!role.see(&held_by("http://10.0.0.2:7460"), 0));
        let closed = role.closed().unwrap();
        assert_eq!(closed.active.as_deref(), Some("http://10.0.0.2:7460"));
        assert_eq!(closed.problem().code, "not_active");
        role.set_transit(Some("it was moved to the files at a:/x".to_owned()));
        let closed = role.closed().unwrap();
        assert!(closed.detail.contains("moved to the files at a:/x"));
        role.set_transit(None);
        assert!(role.see(&held_by("http://10.0.0.1:7460"), 0));
        assert_eq!(role.closed().unwrap().active, None, "it is not active now");
        role.set_active(true);
        assert_eq!(role.closed(), None);
    }
}
