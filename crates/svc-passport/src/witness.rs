//! The log of revocations and its witnesses: the thread that submits checkpoints, and what stops when a witness contradicts the log.

use std::sync::Arc;
use std::time::Instant;

use ron_kernel::{Sender, ThreadCtx, queue};
use ron_service::log_host::asker::{
    Asker, OpenQuestions, Published, WitnessMetrics, WitnessSettings, Witnessed,
};
use ron_service::log_host::cosign::{WitnessTimes, Witnesses};
use ron_service::log_host::{KeyView, LogHost};
use ron_service::{Chassis, ReadyBoard, StartError};
use ron_tlog::LogReader;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{NoteSignature, VerifierKey};

use crate::revoke::{HeadAge, RevokeEvent};
use crate::topology::{WITNESS, WITNESS_WAKES};

/// Readiness cause: a witness contradicts the log.
pub const LOG_CAUSE: &str = "log";

/// The issuer's side of the witness thread.
struct Log {
    reader: LogReader,
    /// Of a log in an engine: when this node has read its end.
    head: Option<Arc<HeadAge>>,
    ready: ReadyBoard,
    revoke: Sender<RevokeEvent>,
}

impl Witnessed for Log {
    fn is_ok(&self) -> bool {
        // What a node has that cannot read the log says nothing about the log.
        !self.reader.poisoned() && self.head.as_ref().is_none_or(|head| head.check().is_ok())
    }

    fn betrayed(&self, why: &str) {
        self.reader.close_for_writing();
        self.ready.missing(LOG_CAUSE, why);
        tracing::error!(service = "svc-passport", event = "log_contradicted", why);
    }

    fn store(&self, text: &Arc<str>, lines: Vec<NoteSignature>) -> bool {
        let text = Arc::clone(text);
        let cosigned = RevokeEvent::Cosigned { text, lines };
        self.revoke.try_send(cosigned).is_ok()
    }

    fn has_read(&self, seen: Instant) -> bool {
        self.head.as_ref().is_none_or(|head| head.read_since(seen))
    }
}

/// The witnesses of the policy, if there is one.
pub fn of(
    settings: Option<&WitnessSettings>,
    key: &VerifierKey,
    chassis: &Chassis,
) -> Result<Option<Witnesses>, StartError> {
    let keys = KeyView::of(key.clone());
    let witnesses = settings.map(|settings| settings.witnesses(keys, chassis.client.clone()));
    let refused = |why| StartError::config_text(format!("witness.policy_file: {why}"));
    witnesses.transpose().map_err(refused)
}

/// The checkpoints that the witnesses remember. Those that do not answer stop no start: the thread compares the log with them later.
pub fn heads(witnesses: &Witnesses) -> Vec<Checkpoint> {
    let (heads, failures) = witnesses.heads();
    for why in failures {
        tracing::warn!(service = "svc-passport", event = "witness_not_asked", why);
    }
    heads
}

/// Starts the thread that has checkpoints cosigned; without witnesses it only idles, so that the table of threads stays true. The last
/// checkpoint of a run is cosigned at the start of the next one. Returns what wakes it.
pub fn spawn(
    chassis: &Chassis,
    asked: Option<(Witnesses, WitnessTimes)>,
    host: &LogHost,
    head: Option<Arc<HeadAge>>,
    revoke: Sender<RevokeEvent>,
) -> Option<Sender<Published>> {
    let Some((witnesses, times)) = asked else {
        chassis.sup.spawn(&WITNESS, ThreadCtx::wait_for_shutdown);
        return None;
    };
    let (wake, wakes) = queue(&WITNESS_WAKES, WITNESS_WAKES.capacity, &chassis.km);
    let (ended, last_checkpoint) = ron_kernel::Shutdown::pair();
    ended.fire();
    let asker = Asker {
        log: Log {
            reader: host.reader.clone(),
            head,
            ready: chassis.ready.clone(),
            revoke,
        },
        witnesses,
        reader: host.reader.clone(),
        view: host.cosigned.clone(),
        wakes,
        ready: chassis.ready.clone(),
        metrics: WitnessMetrics::new(&chassis.registry),
        clock: chassis.clock.clone(),
        times,
        open: OpenQuestions::default(),
        last_checkpoint,
    };
    // After a panic nothing asks for cosignatures until the next start, which rebuilds the state.
    chassis
        .sup
        .spawn_owner(&WITNESS, asker, |mut asker, ctx| asker.run(ctx), || None);
    Some(wake)
}
