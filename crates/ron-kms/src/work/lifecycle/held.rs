//! Changes that need a device: the store thread orders what the device is to do, goes on with
//! others' changes, and takes up this one again when the device has answered.
//!
//! ```text
//!  change ── planned, but the key is not made ──> Order ──> held lane ──> device makes
//!     ^                                                                    │
//!     └──────── planned again, from the start, with the key made <─────────┘
//! ```
//!
//! It is planned again because everything may have changed meanwhile. A key that the second plan
//! does not take is destroyed.

use ron_kernel::SendError;
use ron_proto::kms::CreateKey;
use ron_proto::values::Kid;

use super::plan::{KeyRequest, Plan};
use super::{Lifecycle, store_down};
use crate::backend::{BackendKind, Handle, Held};
use crate::error::{Refusal, Why};
use crate::work::held::HeldJob;
use crate::work::{Asked, Kms};

/// How long a change that time brings is not begun again while a device is at it.
const AT_IT_MS: u64 = 15_000;
/// Pause after a device did not destroy a key.
const AGAIN_MS: u64 = 3_000;

/// A key version that a device is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// For which key.
    pub kid: Kid,
    /// As which version.
    pub number: u32,
    /// Where.
    pub backend: BackendKind,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unplanned {
    /// It cannot be done.
    Refused(Refusal),
    /// A device has to make a key first.
    NotMade(Order),
}

impl From<Refusal> for Unplanned {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A change that waits for a device.
pub struct Waiting {
    /// Who waits for it.
    pub asked: Asked,
    /// What it is.
    pub what: Waits,
}

/// What waits.
pub enum Waits {
    /// `POST /keys`.
    Create(Box<CreateKey>),
    /// A change of a key.
    Change(KeyRequest),
    /// What time brings.
    Due,
}

/// What a device made, or why not, with the change that waits for it.
pub struct MadeJob {
    /// What was ordered.
    pub order: Order,
    /// What came of it.
    pub made: Result<Held, Refusal>,
    /// The change.
    pub waiting: Waiting,
}

impl Kms {
    /// Sends an order to the device's lane; the refusal and who asked when there is no room.
    fn order(&self, order: Order, waiting: Waiting) -> Result<(), (Asked, Refusal)> {
        let Some(tx) = self.lane_of(order.backend) else {
            let detail = "the backend is not configured here";
            return Err((waiting.asked, Refusal::new(Why::Unsupported, detail)));
        };
        match tx.try_send(HeldJob::Make(order, Box::new(waiting))) {
            Ok(()) => Ok(()),
            Err(SendError::Full(HeldJob::Make(_, waiting))) => {
                Err((waiting.asked, Refusal::busy(tx.retry_after_s())))
            }
            Err(SendError::Closed(HeldJob::Make(_, waiting))) => {
                Err((waiting.asked, Refusal::new(Why::Draining, "")))
            }
            Err(_) => unreachable!("what was sent comes back"),
        }
    }
}

impl Lifecycle {
    /// Has a device make a key; the change is taken up again when it has.
    pub(super) fn order(&mut self, order: Order, asked: Asked, what: Waits) {
        if matches!(what, Waits::Due) {
            self.note_at_it(&order.kid, AT_IT_MS);
        }
        if let Err((asked, refusal)) = self.kms.order(order, Waiting { asked, what }) {
            self.kms.refuse_unlogged(asked, &refusal);
        }
    }

    /// The device has answered.
    pub(super) fn made(&mut self, job: MadeJob) {
        let MadeJob {
            order,
            made,
            waiting,
        } = job;
        let Waiting { asked, what } = waiting;
        let kid = order.kid.clone();
        self.at_it.remove(&kid);
        let held = made.as_ref().ok().cloned();
        self.store.hold_ready(Some((order.clone(), made)));
        match what {
            Waits::Create(request) => self.create_as(asked, request, kid.clone()),
            Waits::Change(request) => self.change_key(asked, &kid, request),
            Waits::Due => self.due(&kid),
        }
        self.store.hold_ready(None);
        if let Some(held) = held
            && !self.store.has_version(&kid, order.number, &held.handle)
        {
            self.kms.discard(held);
        }
    }

    /// Whether a device is at work for what time brings for this key.
    pub(super) fn at_it(&self, kid: &Kid) -> bool {
        let now = self.kms.clock.unix_ms();
        self.at_it.get(kid).is_some_and(|until| now < *until)
    }

    fn note_at_it(&mut self, kid: &Kid, for_ms: u64) {
        let until = self.kms.clock.unix_ms().saturating_add(for_ms);
        self.at_it.insert(kid.clone(), until);
    }

    /// What a device holds is destroyed there first. True when there is nothing to wait for: the
    /// device has told that it is done, or no device holds the key.
    pub(super) fn gone_from_device(&mut self, kid: &Kid, plan: &Plan) -> Result<bool, Refusal> {
        let backends = self.store.backends();
        let backend = plan.change.meta.backend(backends.local());
        if !plan.change.erase || backend.is_local() || self.gone.remove(kid) {
            return Ok(true);
        }
        let mut handles = Vec::new();
        for number in 1..=plan.change.meta.versions() {
            let handle = self.store.reopen(kid, number).map_err(|_| store_down())?;
            handles.extend(handle.map(|handle| Handle(handle.expose().to_vec())));
        }
        let job = HeldJob::Destroy(kid.clone(), handles);
        let sent = self
            .kms
            .lane_of(backend)
            .is_some_and(|tx| tx.try_send(job).is_ok());
        if sent {
            self.note_at_it(kid, AT_IT_MS);
            return Ok(false);
        }
        Err(Refusal::new(
            Why::StoreUnavailable,
            "the device that holds the key cannot be asked now",
        ))
    }

    /// The device has destroyed all versions of a key, or has not.
    pub(super) fn gone(&mut self, kid: &Kid, done: Result<(), Refusal>) {
        self.at_it.remove(kid);
        match done {
            Ok(()) => {
                self.gone.insert(kid.clone());
                self.due(kid);
                self.gone.remove(kid);
            }
            Err(refusal) => {
                tracing::warn!(event = "destruction_waits", reason = refusal.why.code());
                // Asked again, but not every second.
                self.note_at_it(kid, AGAIN_MS);
            }
        }
    }
}
