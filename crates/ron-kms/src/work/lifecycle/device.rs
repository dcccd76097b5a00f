//! Changes that need a device, or a local key that takes long to make: the store thread sends the order to the device's queue or
//! to the maker of keys, goes on with other changes, and resumes this one when the key is made.
//!
//! ```text
//!  change ── planned, but the key is not made ──> Order ──> its queue ──> made
//!     ^                                                                    │
//!     └──────── planned again, from the start, with the key made <─────────┘
//! ```
//!
//! The change is planned again because the store may have changed in between. A key that the second
//! plan does not use is destroyed.

use ron_custody::backend::Handle;
use ron_custody::store::{Erase, MadeKey, Order};
use ron_custody::{Cause, Refusal};
use ron_kernel::SendError;
use ron_proto::values::{Kid, Tenant};

use super::Lifecycle;
use super::plan::Plan;
use crate::work::jobs::{DeferredChange, DeferredKind, DeviceJob, KeyMadeJob};
use crate::work::{CallContext, Kms};

/// How long a scheduled change is not started again while a device works on it, in milliseconds.
const DEVICE_BUSY_MS: u64 = 15_000;
/// Maximum local keys of one tenant that are being made at the same time, one after the other.
const MAKING_MAX: usize = 4;
/// Seconds after which a tenant that has so many may ask again.
const MAKING_RETRY_S: u32 = 2;
/// Pause before a retry after a device failed to destroy a key, in milliseconds.
const RETRY_MS: u64 = 3_000;

impl Kms {
    /// Sends an order to the device's queue; gives back the request context and the refusal when there is no room.
    fn order(&self, order: Order, waiting: DeferredChange) -> Result<(), (CallContext, Refusal)> {
        let Some(tx) = self.device_queue(&order.backend) else {
            let detail = "the backend is not configured here";
            return Err((waiting.call, Refusal::new(Cause::Unsupported, detail)));
        };
        match tx.try_send(DeviceJob::Make(order, Box::new(waiting))) {
            Ok(()) => Ok(()),
            Err(SendError::Full(DeviceJob::Make(_, waiting))) => {
                Err((waiting.call, Refusal::busy(tx.retry_after_s())))
            }
            Err(SendError::Closed(DeviceJob::Make(_, waiting))) => {
                Err((waiting.call, Refusal::new(Cause::Draining, "")))
            }
            Err(_) => unreachable!("a failed send gives the same job back"),
        }
    }
}

impl Lifecycle {
    /// Has a key made; [`Self::made`] resumes the change.
    pub(super) fn order(&mut self, order: Order, call: CallContext, what: DeferredKind) {
        let making = order.backend.is_local().then(|| order.kid.tenant.clone());
        if let Some(tenant) = &making {
            let count = self.making.entry(tenant.clone()).or_default();
            if *count >= MAKING_MAX {
                let share = self
                    .kms
                    .metrics
                    .rejects
                    .with_label_values(&["tenant_share"]);
                share.inc();
                return self
                    .kms
                    .refuse_unlogged(call, &Refusal::busy(MAKING_RETRY_S));
            }
            *count += 1;
        }
        if matches!(what, DeferredKind::Due) {
            self.note_device_busy(&order.kid, DEVICE_BUSY_MS);
        }
        if let Err((call, refusal)) = self.kms.order(order, DeferredChange { call, what }) {
            self.end_making(making.as_ref());
            self.kms.refuse_unlogged(call, &refusal);
        }
    }

    fn end_making(&mut self, tenant: Option<&Tenant>) {
        let Some(tenant) = tenant else { return };
        if let Some(count) = self.making.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.making.remove(tenant);
            }
        }
    }

    /// Resumes a change whose key is made, or was refused by its device: plans it again from the start, with the key at hand.
    pub(super) fn made(&mut self, job: KeyMadeJob) {
        let KeyMadeJob {
            order,
            made,
            waiting,
        } = job;
        let DeferredChange { call, what } = waiting;
        let kid = order.kid.clone();
        // The device has answered, so a scheduled change may be started again.
        self.device_busy.remove(&kid);
        let local = order.backend.is_local().then(|| kid.tenant.clone());
        self.end_making(local.as_ref());
        let held = match &made {
            // An adopted object is not this service's to destroy.
            Ok(MadeKey::Device(key)) if order.adopt.is_none() => Some(key.clone()),
            Ok(_) | Err(_) => None,
        };
        self.store.set_made(Some((order.clone(), made)));
        match what {
            DeferredKind::Create(request, purposes) => {
                self.create_as(call, (request, purposes), kid.clone());
            }
            DeferredKind::Adopt(request) => self.adopt_as(call, request, kid.clone()),
            DeferredKind::Change(request) => self.change_key(call, &kid, request),
            DeferredKind::Due => self.due(&kid),
        }
        // Cleared whatever the change did: no later plan may find this answer.
        self.store.set_made(None);
        // The second plan may have refused, or found that another version was made meanwhile.
        if let Some(held) = held
            && !self.store.has_version(&kid, order.number, &held.handle)
        {
            self.kms.discard(held);
        }
    }

    /// Whether a device is working on a scheduled change of this key.
    pub(super) fn device_busy(&self, kid: &Kid) -> bool {
        let now = self.kms.clock.unix_ms();
        self.device_busy.get(kid).is_some_and(|until| now < *until)
    }

    fn note_device_busy(&mut self, kid: &Kid, for_ms: u64) {
        let until = self.kms.clock.unix_ms().saturating_add(for_ms);
        self.device_busy.insert(kid.clone(), until);
    }

    /// Has the device destroy the key first, before the store forgets its handles. True when there is nothing to wait
    /// for: the device has destroyed the key, or no device holds it.
    pub(super) fn gone_from_device(&mut self, kid: &Kid, plan: &Plan) -> Result<bool, Refusal> {
        let backends = self.store.backends();
        let backend = plan.change.meta.backend(backends.local());
        if plan.change.erase != Erase::All || backend.is_local() || self.gone.remove(kid) {
            return Ok(true);
        }
        let mut handles = Vec::new();
        for number in 1..=plan.change.meta.versions() {
            // From the sealed records: only handles of versions that are in use stay in memory.
            let handle = self.reopen(kid, number)?;
            handles.extend(handle.map(|handle| Handle(handle.expose().to_vec())));
        }
        let job = DeviceJob::Destroy(kid.clone(), handles);
        let sent = self
            .kms
            .device_queue(&backend)
            .is_some_and(|tx| tx.try_send(job).is_ok());
        if sent {
            self.note_device_busy(kid, DEVICE_BUSY_MS);
            return Ok(false);
        }
        Err(Refusal::new(
            Cause::StoreUnavailable,
            "the device that holds the key takes no job now; the destruction is tried again",
        ))
    }

    /// The device has destroyed all versions of a key, or has failed to.
    pub(super) fn gone(&mut self, kid: &Kid, done: Result<(), Refusal>) {
        self.device_busy.remove(kid);
        match done {
            Ok(()) => {
                // Set only during `due`, which plans the destruction again and finds the device's part done.
                self.gone.insert(kid.clone());
                self.due(kid);
                self.gone.remove(kid);
            }
            Err(refusal) => {
                tracing::warn!(event = "destruction_waits", reason = refusal.cause.code());
                // The scheduler ticks every second; a failing device is retried less often.
                self.note_device_busy(kid, RETRY_MS);
            }
        }
    }
}
