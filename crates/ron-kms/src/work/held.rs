//! Keys inside devices: their jobs go past the signers to threads that may wait, so that a device
//! that is slow or hangs holds up nobody but those who use it.

use std::time::Duration;

use ron_kernel::{
    Deadline, KernelMetrics, QueueSpec, Receiver, Sender, Supervisor, ThreadCtx, ThreadSpec, queue,
    reply,
};

use super::task::{CheckpointGate, Gate};
use super::{Kms, SignJob, SignWhat, StoreJob};
use crate::backend::{BackendKind, Backends};
use crate::engine::each_job;
use crate::error::{Refusal, Why};
use crate::keys::{Key, note};
use crate::topology::{HELD_PKCS11, HELD_PKCS11_QUEUE, HELD_TPM, HELD_TPM_QUEUE};

/// Threads that wait for a device, beyond one for each of its sessions: those whose call hangs.
const SPARE: usize = 4;

/// Where the jobs of a device's keys wait, and for whom.
pub struct Lane {
    /// The device.
    pub kind: BackendKind,
    /// To the threads that wait for it.
    pub tx: Sender<SignJob>,
}

/// The receiving end of a lane.
pub struct LaneEnd {
    spec: &'static ThreadSpec,
    threads: usize,
    jobs: Receiver<SignJob>,
}

fn rows(kind: BackendKind) -> Option<(&'static ThreadSpec, &'static QueueSpec)> {
    match kind {
        BackendKind::File | BackendKind::Memory => None,
        BackendKind::Pkcs11 => Some((&HELD_PKCS11, &HELD_PKCS11_QUEUE)),
        BackendKind::Tpm => Some((&HELD_TPM, &HELD_TPM_QUEUE)),
    }
}

/// A lane for each configured device, of `capacity` jobs.
pub fn lanes(
    backends: &Backends,
    capacity: usize,
    km: &KernelMetrics,
) -> (Vec<Lane>, Vec<LaneEnd>) {
    let mut lanes = Vec::new();
    let mut ends = Vec::new();
    for device in backends.devices() {
        let kind = device.kind();
        let Some((spec, row)) = rows(kind) else {
            continue;
        };
        let (tx, jobs) = queue(row, capacity, km);
        lanes.push(Lane { kind, tx });
        ends.push(LaneEnd {
            spec,
            threads: device.sessions() + SPARE,
            jobs,
        });
    }
    (lanes, ends)
}

/// Starts the threads of the lanes.
pub fn spawn(sup: &Supervisor, kms: &std::sync::Arc<Kms>, ends: Vec<LaneEnd>) {
    for end in ends {
        let (kms, jobs) = (kms.clone(), end.jobs);
        let run = move |ctx: &ThreadCtx| each_job(&jobs, ctx, |job| kms.sign_job(job));
        sup.spawn_pool(end.spec, end.threads, run);
    }
}

impl Kms {
    /// The queue of the device that holds the job's keys; `None` for the signers.
    pub(super) fn lane(&self, what: &SignWhat) -> Result<Option<&Sender<SignJob>>, Refusal> {
        let index = self.index.load();
        let holder = |kid| index.keys.get(kid).and_then(|key| key.held_by());
        let found = match what {
            SignWhat::One(task) => holder(&task.key),
            SignWhat::Attest(task) => holder(&task.key),
            // No device offers keys for wrapping.
            SignWhat::Envelope(_) => None,
            SignWhat::Batch(tasks) => {
                let mut found = None;
                for kind in tasks.iter().flatten().filter_map(|task| holder(&task.key)) {
                    if found.is_some_and(|other| other != kind) {
                        return Err(Refusal::new(
                            Why::Unsupported,
                            "a batch may use the keys of one device only; send two",
                        ));
                    }
                    found = Some(kind);
                }
                found
            }
        };
        let lane = found.and_then(|kind| self.lanes.iter().find(|lane| lane.kind == kind));
        Ok(lane.map(|lane| &lane.tx))
    }
}

/// Has the store thread remember a checkpoint, and waits for it: only for threads that may wait.
/// The leaf does not state the store's new version, because leaves of other changes may come first.
pub struct AskStore<'a> {
    /// What is shared.
    pub kms: &'a Kms,
    /// When nobody waits any more.
    pub deadline: Deadline,
}

impl CheckpointGate for AskStore<'_> {
    fn pass(&mut self, key: &Key, to: &note::Checkpoint) -> Result<Gate, Refusal> {
        let (answer, waiter) = reply();
        let job = StoreJob::Remember(key.kid.clone(), *to, answer);
        if self.kms.store_tx.try_send(job).is_err() {
            return Err(Refusal::busy(self.kms.store_tx.retry_after_s()));
        }
        let until = self
            .deadline
            .earlier(Deadline::within(Duration::from_secs(5)));
        match waiter.wait(until) {
            Ok(remembered) => remembered.map(|()| Gate::Sign {
                store_version_after: None,
            }),
            Err(_) => Err(Refusal::new(
                Why::DeadlineExceeded,
                "the store did not remember the checkpoint in time; nothing was signed",
            )),
        }
    }
}
