//! Keys inside devices: their jobs bypass the signers and go to threads that may block, so that a slow or hanging
//! device delays only requests for its own keys. The same threads have devices make and destroy keys for the store
//! thread, which never waits for a device. Local keys that take long to make, those of RSA, have a thread of their own.

use ron_proto::kms::KeyBackend;
use std::sync::Arc;
use std::time::Duration;

use ron_custody::Refusal;
use ron_custody::backend::{BackendId, Backends, DeviceKey, Handle};
use ron_custody::keys::SecretKey;
use ron_custody::store::{MadeKey, Order};
use ron_kernel::{
    Count, Deadline, KernelMetrics, QueueSpec, Receiver, Sender, Supervisor, ThreadCtx, ThreadSpec,
    queue,
};

use super::jobs::{DeferredChange, DeviceJob, KeyMadeJob};
use super::operation::Work;
use super::{Kms, StoreJob, each_job};
use crate::topology::{
    KEY_MAKER, MAKER_JOBS, PKCS11_CALLERS, PKCS11_JOBS, REMOTE_CALLERS, REMOTE_JOBS, TPM_CALLERS,
    TPM_JOBS,
};

/// Threads per device beyond one for each of its sessions: they replace threads whose call hangs.
const SPARE: usize = 4;
/// Maximum time for a device to make or destroy a key.
const MAKE_WAIT: Duration = Duration::from_secs(2);
/// The same for an RSA key, for which a device searches primes.
const RSA_WAIT: Duration = Duration::from_secs(30);

/// The queue of jobs for the keys of one device.
pub struct DeviceQueue {
    pub id: BackendId,
    /// The sending end; the device's threads receive.
    pub tx: Sender<DeviceJob>,
}

/// The receiving end of a [`DeviceQueue`], and the threads to start for it.
pub struct DeviceQueueEnd {
    spec: &'static ThreadSpec,
    threads: usize,
    jobs: Receiver<DeviceJob>,
    id: BackendId,
}

const fn rows(kind: KeyBackend) -> (&'static ThreadSpec, &'static QueueSpec) {
    match kind {
        KeyBackend::File | KeyBackend::Memory => (&KEY_MAKER, &MAKER_JOBS),
        KeyBackend::Pkcs11 => (&PKCS11_CALLERS, &PKCS11_JOBS),
        KeyBackend::Tpm => (&TPM_CALLERS, &TPM_JOBS),
        KeyBackend::Remote => (&REMOTE_CALLERS, &REMOTE_JOBS),
    }
}

/// One queue of `capacity` jobs for each configured device, and for the maker of local keys.
pub fn device_queues(
    backends: &Backends,
    capacity: usize,
    km: &KernelMetrics,
) -> (Vec<DeviceQueue>, Vec<DeviceQueueEnd>) {
    let mut queues = Vec::new();
    let mut ends = Vec::new();
    let devices = backends.devices().iter();
    let devices = devices.map(|device| {
        let threads = device.presence().sessions() + SPARE;
        (device.id().clone(), threads)
    });
    for (id, threads) in devices.chain([(backends.local().into(), 1)]) {
        let (spec, row) = rows(id.kind);
        let (tx, jobs) = queue(row, capacity, km);
        queues.push(DeviceQueue { id: id.clone(), tx });
        ends.push(DeviceQueueEnd {
            spec,
            threads,
            jobs,
            id,
        });
    }
    (queues, ends)
}

/// Starts the threads that serve the queues.
pub fn spawn(sup: &Supervisor, kms: &Arc<Kms>, ends: Vec<DeviceQueueEnd>) {
    for end in ends {
        let (kms, jobs, id) = (kms.clone(), end.jobs, end.id);
        let run = move |ctx: &ThreadCtx| each_job(&jobs, ctx, |job| kms.device_job(&id, job));
        match end.spec.count {
            Count::One => sup.spawn(end.spec, run),
            Count::Pool(_) => sup.spawn_pool(end.spec, end.threads, run),
        }
    }
}

impl Kms {
    /// The queue of the device that holds the job's keys; `None` sends the job to the signers, which also refuse unknown
    /// keys, with a leaf.
    pub(super) fn queue_for(&self, what: &dyn Work) -> Result<Option<&Sender<DeviceJob>>, Refusal> {
        let holder = what.holder(&self.index.load())?;
        Ok(holder.and_then(|id| self.device_queue(&id)))
    }

    /// The queue of a configured device, or of the maker of local keys.
    pub(super) fn device_queue(&self, id: &BackendId) -> Option<&Sender<DeviceJob>> {
        let found = self.device_queues.iter().find(|queue| queue.id == *id);
        found.map(|queue| &queue.tx)
    }

    fn device_job(&self, id: &BackendId, job: DeviceJob) {
        match job {
            DeviceJob::Use(job) => self.sign_job(*job),
            DeviceJob::Make(order, waiting) => self.make(order, *waiting),
            DeviceJob::Destroy(kid, handles) => {
                let done = self.destroy_in_device(id, &handles);
                self.submit_store(StoreJob::KeyDestroyed(kid, done));
            }
            DeviceJob::Discard(key) => {
                let until = Deadline::within(MAKE_WAIT);
                if let Err(error) = key.device.destroy(&key.handle, until) {
                    tracing::warn!(event = "orphan_key_left", backend = %id, %error);
                }
            }
        }
    }

    /// Makes a key, or has the device make it, and returns it to the store thread with the change that waits for it.
    fn make(&self, order: Order, waiting: DeferredChange) {
        let made = if order.backend.is_local() {
            let (_, raw) = SecretKey::generate(order.kid.alg, self.random.as_ref());
            Ok(MadeKey::Local(Arc::new(raw)))
        } else {
            self.make_in_device(&order, waiting.call.deadline)
        };
        self.submit_store(StoreJob::KeyMade(Box::new(KeyMadeJob {
            order,
            made,
            waiting,
        })));
    }

    fn make_in_device(&self, order: &Order, deadline: Deadline) -> Result<MadeKey, Refusal> {
        let device = self.backends.holder(&order.backend);
        let alg = order.kid.alg;
        let longest = if alg.is_rsa() { RSA_WAIT } else { MAKE_WAIT };
        let until = deadline.earlier(Deadline::within(longest));
        let name = format!("{}#v{}", order.kid, order.number);
        let made = match &order.adopt {
            Some(object) => device.adopt(alg, object, until)?,
            None => device.make(alg, &name, until)?,
        };
        let key = DeviceKey::new(device, made.handle, made.public);
        Ok(MadeKey::Device(key))
    }

    fn destroy_in_device(&self, id: &BackendId, handles: &[Handle]) -> Result<(), Refusal> {
        let device = self.backends.holder(id);
        // Ends at the first failure. Destroying a version that is already gone succeeds, so a retry starts over.
        for handle in handles {
            device.destroy(handle, Deadline::within(MAKE_WAIT))?;
        }
        Ok(())
    }

    /// Has a device destroy a key that no change uses. A failure leaves an orphan in the device and is logged.
    pub(super) fn discard(&self, key: DeviceKey) {
        let id = key.device.id().clone();
        let sent = self
            .device_queue(&id)
            .is_some_and(|tx| tx.try_send(DeviceJob::Discard(key)).is_ok());
        if !sent {
            tracing::warn!(event = "orphan_key_left", backend = %id);
        }
    }
}
