//! The ledger's log and its witnesses: the thread that submits checkpoints, where cosignatures go,
//! and what stops when a witness contradicts the log.

use std::sync::Arc;

use ron_kernel::{Sender, ThreadCtx, queue};
use ron_service::log_host::asker::{
    Asker, OpenQuestions, WitnessMetrics, WitnessSettings, Witnessed, compare,
};
use ron_service::log_host::cosign::Witnesses;
use ron_service::log_host::{CheckpointRoom, CosignedLines, CosignedView, KeyView, ToWitnesses};
use ron_service::{Chassis, ReadyBoard, StartError};
use ron_tlog::LogReader;
use ron_tlog::note::NoteSignature;

use crate::role::Role;
use crate::topology::{COSIGNED, WITNESS, WITNESS_WAKES};

/// The ledger's side of the witness thread.
struct Log {
    reader: LogReader,
    /// Of a ledger whose log is in an engine: the active node has its checkpoints cosigned.
    role: Option<Arc<Role>>,
    ready: ReadyBoard,
    store: Sender<CosignedLines>,
}

impl Log {
    fn close(reader: &LogReader, ready: &ReadyBoard, why: &str) {
        reader.close_for_writing();
        ready.missing("log", why);
        tracing::error!(event = "log_contradicted", why);
    }
}

impl Witnessed for Log {
    fn is_ok(&self) -> bool {
        !self.reader.poisoned() && self.role.as_ref().is_none_or(|role| role.is_active())
    }

    fn betrayed(&self, why: &str) {
        Self::close(&self.reader, &self.ready, why);
    }

    fn store(&self, text: &Arc<str>, lines: Vec<NoteSignature>) -> bool {
        self.store.try_send((Arc::clone(text), lines)).is_ok()
    }
}

/// What the other threads get of the witnesses.
#[derive(Default)]
pub struct OfWitnesses {
    pub cosigned: CosignedView,
    /// Asked for their heads when this node takes a shared log over.
    pub heads: Option<Witnesses>,
}

/// Compares the log with what its witnesses remember, before anything is written, and starts the
/// thread that has checkpoints cosigned. A log that a witness contradicts stays readable and takes
/// no entries. The last checkpoint of a run is cosigned at the start of the next one. A node of a
/// shared log may be behind its witnesses until it takes the log over, and is compared then.
pub fn spawn(
    chassis: &Chassis,
    settings: Option<&WitnessSettings>,
    role: Option<Arc<Role>>,
    keys: &KeyView,
    reader: &LogReader,
    room: &CheckpointRoom,
) -> Result<OfWitnesses, StartError> {
    let Some(settings) = settings else {
        // The thread only idles, so that the topology table stays true.
        chassis.sup.spawn(&WITNESS, ThreadCtx::wait_for_shutdown);
        return Ok(OfWitnesses::default());
    };
    let view = CosignedView::default();
    let refused = |why| StartError::config_text(format!("witness.policy_file: {why}"));
    let witnesses = || {
        let witnesses = settings.witnesses(keys.clone(), chassis.client.clone());
        witnesses.map_err(refused)
    };
    let heads = role.as_ref().map(|_| witnesses()).transpose()?;
    let mut witnesses = witnesses()?;
    if role.is_none()
        && let Err(why) = compare(&mut witnesses, reader)
    {
        Log::close(reader, &chassis.ready, &why);
    }
    let (wake, wakes) = queue(&WITNESS_WAKES, WITNESS_WAKES.capacity, &chassis.km);
    let (store, lines) = queue(&COSIGNED, COSIGNED.capacity, &chassis.km);
    room.ask(ToWitnesses { wake, lines });
    let (ended, last_checkpoint) = ron_kernel::Shutdown::pair();
    ended.fire();
    let asker = Asker {
        log: Log {
            reader: reader.clone(),
            role,
            ready: chassis.ready.clone(),
            store,
        },
        witnesses,
        reader: reader.clone(),
        view: view.clone(),
        wakes,
        ready: chassis.ready.clone(),
        metrics: WitnessMetrics::new(&chassis.registry),
        clock: chassis.clock.clone(),
        times: settings.times.clone(),
        open: OpenQuestions::default(),
        last_checkpoint,
    };
    // After a panic nothing asks for cosignatures until the next start, which rebuilds the state.
    chassis
        .sup
        .spawn_owner(&WITNESS, asker, |mut asker, ctx| asker.run(ctx), || None);
    Ok(OfWitnesses {
        cosigned: view,
        heads,
    })
}
