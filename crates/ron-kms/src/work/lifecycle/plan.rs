//! Decides a change of a key before anything is written: from the present metadata and the request to
//! the new metadata, or to a refusal.

mod access;
mod approvals;
mod labels;

use std::net::IpAddr;

use ron_crypto::SecretBytes;
use ron_custody::index::Key;
use ron_custody::index::{Rotation, Trim, Waiting, not_active};
use ron_custody::keys::SecretKey;
use ron_custody::store::KeyStore;
use ron_custody::store::Meta;
use ron_custody::store::{Change, Erase, PlanError};
use ron_custody::{Cause, Refusal};
use ron_http::Principal;
use ron_kernel::Random;
use ron_proto::kms::{DestroyKey, KeyState, Period, RotateEvery, UpdateKey};
use ron_proto::values::{Kid, OpId, Timestamp};

use crate::audit::leaf::Op;
use crate::settings::LifecycleSettings;
use crate::work::CallContext;
use crate::work::key_request::KeyRequest;
use labels::{delete_alias, describe, tag};

pub use approvals::approved;

/// The shortest `rotate_every`, in seconds.
pub const ROTATE_EVERY_S_MIN: u64 = 60;

pub struct Plan {
    pub change: Change,
    pub context: Option<String>,
}

impl Plan {
    /// A plan whose leaf has no `context`.
    pub fn of(change: Change) -> Self {
        Self {
            change,
            context: None,
        }
    }
}

/// The inputs of a decision.
pub struct Planner<'a> {
    pub store: &'a KeyStore,
    pub settings: LifecycleSettings,
    pub random: &'a dyn Random,
    pub now: Timestamp,
}

/// Who asks for a change, and its operation id.
#[derive(Clone, Copy)]
pub struct By<'a> {
    pub caller: &'a Principal,
    /// `None` over a Unix socket.
    pub peer: Option<IpAddr>,
    pub op_id: OpId,
}

impl<'a> By<'a> {
    pub fn of(call: &'a CallContext, op_id: OpId) -> Self {
        Self {
            caller: &call.caller,
            peer: call.peer,
            op_id,
        }
    }
}

impl Planner<'_> {
    /// Decides what `request` does to the key. The caller may do it; the approvals that it needs are checked here, with the keys from
    /// which it is decided.
    pub fn plan(&self, kid: &Kid, request: &KeyRequest, by: By<'_>) -> Result<Plan, PlanError> {
        let access = &self.store.known(kid)?.access;
        let approvers = match request.op().gated() {
            Some(op) => approved(access, (op, by, self.now), &request.body_hash(kid))?,
            None => None,
        };
        let mut plan = self.decide(kid, request, by)?;
        if let Some(approvers) = approvers {
            // Approvals are for one use.
            plan.change.meta.access.requests.forget(by.op_id);
            let context = plan.context.take().map(|text| text + " ");
            plan.context = Some(context.unwrap_or_default() + &approvers);
        }
        Ok(plan)
    }

    fn decide(&self, kid: &Kid, request: &KeyRequest, by: By<'_>) -> Result<Plan, PlanError> {
        let meta = self.store.known(kid)?.clone();
        if let Some(expected) = request.expected_head()
            && expected != meta.head
        {
            let stale = "the key was rotated since; read it again";
            return Err(Refusal::new(Cause::StaleHead, stale)
                .with_head(meta.head)
                .into());
        }
        match request {
            KeyRequest::Rotate(ask) if ask.publish_first => self.publish_next(kid, meta),
            KeyRequest::Rotate(_) => self.rotate(kid, meta),
            KeyRequest::Update(update) => Ok(self.update(kid, meta, update)?),
            KeyRequest::Retire(_) => {
                active(&meta)?;
                let meta = Meta {
                    retired: true,
                    ..meta
                };
                Ok(Plan::of(Change::of(kid, meta)))
            }
            KeyRequest::Destroy(destroy) => Ok(self.destroy(kid, meta, destroy)?),
            KeyRequest::SetAlias(alias, ask) => Ok(self.set_alias(by, kid, meta, (alias, ask))?),
            KeyRequest::DeleteAlias(alias) => Ok(delete_alias(kid, meta, alias)?),
            KeyRequest::PutPolicy(ask) => Ok(self.plan_policy(by, kid, meta, ask)?),
            KeyRequest::MakeGrant(ask) => Ok(self.plan_grant(by, kid, meta, ask)?),
            KeyRequest::RetireGrant(grant, _) => Ok(self.plan_retire_grant(by, kid, meta, *grant)?),
            KeyRequest::AskApproval(ask) => Ok(self.plan_ask(by, kid, meta, ask)?),
            KeyRequest::Approve(id, ask) => Ok(self.plan_approve(kid, meta, (*id, ask))?),
            KeyRequest::CancelDestroy(_) => {
                if meta.state() != KeyState::PendingDestruction && meta.trim.is_some() {
                    let meta = Meta { trim: None, ..meta };
                    return Ok(Plan {
                        change: Change::of(kid, meta),
                        context: Some("trim".into()),
                    });
                }
                if meta.state() != KeyState::PendingDestruction {
                    let nothing = "no destruction of this key is pending";
                    return Err(Refusal::new(Cause::KeyNotActive, nothing).into());
                }
                let in_device = !meta.backend(self.store.backends().local()).is_local();
                if in_device && meta.destroy_at.is_some_and(|at| at <= self.now) {
                    let late = "its time has come: the device may have destroyed it already";
                    return Err(Refusal::new(Cause::KeyNotActive, late).into());
                }
                let meta = Meta {
                    destroy_at: None,
                    ..meta
                };
                Ok(Plan::of(Change::of(kid, meta)))
            }
        }
    }

    /// Rotates. A version that was published ahead becomes the head instead of a new one: verifiers know it already.
    fn rotate(&self, kid: &Kid, meta: Meta) -> Result<Plan, PlanError> {
        active(&meta)?;
        let mut change = if meta.waiting.is_some() {
            Change::of(kid, promoted(meta, self.now))
        } else {
            self.store.next_version(kid, self.now)?
        };
        self.schedule_next(&mut change.meta);
        Ok(Plan::of(change))
    }

    /// Publishes the next version on request; it becomes the head later, as one of a scheduled rotation.
    fn publish_next(&self, kid: &Kid, meta: Meta) -> Result<Plan, PlanError> {
        active(&meta)?;
        if let Some(Waiting { signs_from }) = meta.waiting {
            let published = format!(
                "the next version is published already, and signs from {signs_from}; `ron kms rotate --now` lets it sign now (in the API: without `publish_first`)"
            );
            return Err(Refusal::new(Cause::StaleHead, published)
                .with_head(meta.head)
                .into());
        }
        let ahead = self.settings.prepublish.as_millis() as u64;
        self.publish(kid, meta, Timestamp(self.now.0 + ahead))
    }

    fn publish(&self, kid: &Kid, mut meta: Meta, signs_from: Timestamp) -> Result<Plan, PlanError> {
        let new = self.store.version_above_head(kid, self.now)?;
        meta.waiting = Some(Waiting { signs_from });
        Ok(Plan {
            change: Change {
                new: Some(new),
                ..Change::of(kid, meta)
            },
            context: Some(format!("signs_from={signs_from}")),
        })
    }

    /// The next version of an imported key, which was made elsewhere too.
    pub fn imported_version(
        &self,
        kid: &Kid,
        version: (SecretKey, &SecretBytes),
        by: &str,
    ) -> Result<Plan, Refusal> {
        let meta = self.store.known(kid)?;
        active(meta)?;
        let refuse = |detail: &str| Err(Refusal::new(Cause::BadRequest, detail));
        if !meta.imported {
            return refuse("only an imported key has imported versions; rotate this one");
        }
        if meta.waiting.is_some() {
            return refuse("a version of this key waits to sign: rotate the key first");
        }
        let mut change = self.store.imported_version(kid, version, self.now)?;
        self.schedule_next(&mut change.meta);
        Ok(Plan {
            change,
            context: Some(format!("wrapped to {by}")),
        })
    }

    fn update(&self, kid: &Kid, mut meta: Meta, update: &UpdateKey) -> Result<Plan, Refusal> {
        let bad = |detail: String| Err(Refusal::new(Cause::BadRequest, detail));
        let mut changes = Vec::new();
        if let Some(version) = update.min_verify_version {
            if !(1..=meta.head).contains(&version) {
                let head = meta.head;
                return bad(format!(
                    "`min_verify_version` must be 1 to the head, {head}"
                ));
            }
            let kept = meta
                .min_available
                .max(meta.trim.map_or(0, |trim| trim.below));
            if version < kept {
                return bad(format!(
                    "`min_verify_version`: the versions below {kept} are destroyed, or about to be; `ron kms cancel` ends an ordered destruction"
                ));
            }
            meta.min_verify = version;
            changes.push(format!("min_verify_version={version}"));
        }
        if let Some(version) = update.min_wrap_version {
            if version > meta.head {
                return bad(format!(
                    "`min_wrap_version` must be 0 to the head, {}",
                    meta.head
                ));
            }
            meta.min_wrap = version;
            changes.push(format!("min_wrap_version={version}"));
        }
        if let Some(flag) = update.deletion_allowed {
            meta.deletion_allowed = flag;
            changes.push(format!("deletion_allowed={flag}"));
        }
        if let Some(every) = update.rotate_every {
            active(&meta)?;
            self.set_rotation(&mut meta, every)?;
            changes.push(format!("rotate_every={every}"));
        }
        match update.exportable {
            Some(true) if !meta.exportable => {
                return bad("`exportable` can be taken back and never given".into());
            }
            Some(flag) => {
                meta.exportable = flag;
                changes.push(format!("exportable={flag}"));
            }
            None => {}
        }
        if let Some(text) = &update.description {
            describe(&mut meta.labels, text)?;
            changes.push("description".to_owned());
        }
        for (name, value) in &update.tags {
            changes.push(tag(&mut meta.labels, name, value.as_ref())?);
        }
        if changes.is_empty() {
            return bad("the request changes nothing; name what to change".into());
        }
        Ok(Plan {
            change: Change::of(kid, meta),
            context: Some(changes.join(" ")),
        })
    }

    fn destroy(&self, kid: &Kid, mut meta: Meta, ask: &DestroyKey) -> Result<Plan, Refusal> {
        let (least, usual) = (self.settings.destroy_delay_min, self.settings.destroy_delay);
        match meta.state() {
            KeyState::Active | KeyState::Retired => {}
            state => return Err(not_active(state)),
        }
        let backend = meta.backend(self.store.backends().local());
        if !backend.is_local()
            && !self
                .store
                .backends()
                .holder(&backend)
                .capabilities()
                .destroys
        {
            return Err(Refusal::new(
                Cause::Unsupported,
                format!(
                    "backend `{backend}` destroys no keys from here; retire the key and delete it with the device's own tools"
                ),
            ));
        }
        if meta.adopted {
            let detail = "an adopted object is destroyed by those who made it, with the device's own tools; retire the key";
            return Err(Refusal::new(Cause::Unsupported, detail));
        }
        let usual_ms = usual.as_millis() as u64;
        let delay_ms = ask.delay.map_or(usual_ms, Period::as_ms);
        if u128::from(delay_ms) < least.as_millis() {
            let least = least.as_secs();
            let detail = format!("`delay` must be at least {least}s here (destroy.delay_min)");
            return Err(Refusal::new(Cause::BadRequest, detail));
        }
        let at = Timestamp(self.now.0 + delay_ms);
        if let Some(below) = ask.below_version {
            let bad = |detail: String| Err(Refusal::new(Cause::BadRequest, detail));
            if !backend.is_local() {
                let detail = "versions of a key in a device are destroyed together with the key; leave `below_version` out";
                return Err(Refusal::new(Cause::Unsupported, detail));
            }
            if below < 2 || below > meta.min_verify {
                return bad(format!(
                    "`below_version` must be 2 to min_verify_version, {}; raise that first, so that it shows who still needs the versions",
                    meta.min_verify
                ));
            }
            if below <= meta.min_available {
                return bad(format!(
                    "the versions below {} are destroyed already",
                    meta.min_available
                ));
            }
            meta.trim = Some(Trim { at, below });
            return Ok(Plan {
                change: Change::of(kid, meta),
                context: Some(format!("below_version={below} destroy_at={at}")),
            });
        }
        meta.destroy_at = Some(at);
        Ok(Plan {
            change: Change::of(kid, meta),
            context: Some(format!("destroy_at={at}")),
        })
    }

    /// Sets or ends the rotation schedule of an existing or new key.
    pub fn set_rotation(&self, meta: &mut Meta, every: RotateEvery) -> Result<(), Refusal> {
        let Some(every) = every.period() else {
            meta.rotation = None;
            return Ok(());
        };
        if every.as_s() < ROTATE_EVERY_S_MIN {
            return Err(Refusal::new(
                Cause::BadRequest,
                format!("`rotate_every` must be at least {ROTATE_EVERY_S_MIN}s"),
            ));
        }
        let due = self.next_due(every);
        meta.rotation = Some(Rotation { due, every });
        Ok(())
    }

    /// When the next version signs: one period from now, minus the jitter. Subtracted, so that keys made together
    /// rotate apart and no version signs for longer than its period.
    fn next_due(&self, every: Period) -> Timestamp {
        let jitter_max = every.as_ms() / 100 * self.settings.jitter_percent;
        let mut bytes = [0_u8; 8];
        self.random.fill(&mut bytes);
        let jitter = u64::from_le_bytes(bytes) % (jitter_max + 1);
        Timestamp(self.now.0 + every.as_ms() - jitter)
    }

    fn schedule_next(&self, meta: &mut Meta) {
        if let Some(Rotation { every, .. }) = meta.rotation {
            let due = self.next_due(every);
            meta.rotation = Some(Rotation { due, every });
        }
    }

    /// Decides the scheduled change that is due for the key now; `None` when there is none.
    pub fn automatic(&self, kid: &Kid) -> Result<Option<(Op, Plan)>, PlanError> {
        let mut meta = self.store.known(kid)?.clone();
        let plan = match due(&Schedule::from(&meta), &self.settings, self.now) {
            None => return Ok(None),
            Some(Due::Publish { signs_from }) => {
                (Op::Publish, self.publish(kid, meta, signs_from)?)
            }
            Some(Due::Activate) => {
                let mut meta = promoted(meta, self.now);
                self.schedule_next(&mut meta);
                (Op::Activate, Plan::of(Change::of(kid, meta)))
            }
            Some(Due::Destroy) => {
                meta.destroyed = true;
                meta.rotation = None;
                meta.trim = None;
                let change = Change {
                    erase: Erase::All,
                    ..Change::of(kid, meta)
                };
                (Op::Destroyed, Plan::of(change))
            }
            Some(Due::Trim { below }) => {
                meta.min_available = below;
                meta.trim = None;
                let change = Change {
                    erase: Erase::Below(below),
                    ..Change::of(kid, meta)
                };
                let context = Some(format!("below_version={below}"));
                (Op::Destroyed, Plan { change, context })
            }
        };
        Ok(Some(plan))
    }
}

fn active(meta: &Meta) -> Result<(), Refusal> {
    match meta.state() {
        KeyState::Active => Ok(()),
        state => Err(not_active(state)),
    }
}

/// The waiting version becomes the head.
fn promoted(mut meta: Meta, now: Timestamp) -> Meta {
    meta.head += 1;
    meta.head_since = Some(now);
    meta.waiting = None;
    meta
}

/// The fields of a key that decide when a change is due.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    state: KeyState,
    rotation: Option<Rotation>,
    waiting: Option<Waiting>,
    destroy_at: Option<Timestamp>,
    trim: Option<Trim>,
}

impl From<&Meta> for Schedule {
    fn from(meta: &Meta) -> Self {
        Self {
            state: meta.state(),
            rotation: meta.rotation,
            waiting: meta.waiting,
            destroy_at: meta.destroy_at,
            trim: meta.trim,
        }
    }
}

impl From<&Key> for Schedule {
    fn from(key: &Key) -> Self {
        Self {
            state: key.state,
            rotation: key.rotation,
            waiting: key.waiting,
            destroy_at: key.destroy_at,
            trim: key.trim,
        }
    }
}

/// A scheduled change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Make and publish the next version; it does not sign yet.
    Publish {
        /// From when it may sign.
        signs_from: Timestamp,
    },
    /// The published version becomes the head and begins to sign.
    Activate,
    /// The secrets are erased.
    Destroy,
    /// Those of old versions are.
    Trim {
        /// The oldest version that stays.
        below: u32,
    },
}

/// The change that is due at `now`. A version is published at least `prepublish` before it signs (half the period,
/// where that is shorter), also when the service was down at the time it should have been published.
pub fn due(schedule: &Schedule, settings: &LifecycleSettings, now: Timestamp) -> Option<Due> {
    if schedule.state == KeyState::PendingDestruction {
        return (schedule.destroy_at? <= now).then_some(Due::Destroy);
    }
    if let Some(trim) = schedule.trim.filter(|trim| trim.at <= now)
        && schedule.state != KeyState::Destroyed
    {
        return Some(Due::Trim { below: trim.below });
    }
    if schedule.state != KeyState::Active {
        return None;
    }
    if let Some(waiting) = schedule.waiting {
        return (waiting.signs_from <= now).then_some(Due::Activate);
    }
    let rotation = schedule.rotation?;
    let ahead = (settings.prepublish.as_millis() as u64).min(rotation.every.as_ms() / 2);
    let signs_from = Timestamp(rotation.due.0.max(now.0 + ahead));
    (rotation.due.0 <= now.0 + ahead).then_some(Due::Publish { signs_from })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn settings(prepublish_s: u64) -> LifecycleSettings {
        LifecycleSettings {
            prepublish: Duration::from_secs(prepublish_s),
            jitter_percent: 0,
            destroy_delay: Duration::from_secs(100),
            destroy_delay_min: Duration::from_secs(10),
        }
    }

    #[test]
    fn nothing_signs_sooner_than_it_was_shown() {
        let check = |every_s, due_s: u64, prepublish_s, now_s: u64, want: Option<u64>| {
            let every = Period::from_s(every_s).expect("a period");
            let schedule = Schedule {
                state: KeyState::Active,
                rotation: Some(Rotation {
                    due: Timestamp(due_s * 1000),
                    every,
                }),
                waiting: None,
                destroy_at: None,
                trim: None,
            };
            let got = due(&schedule, &settings(prepublish_s), Timestamp(now_s * 1000));
            let want = want.map(|s| Due::Publish {
                signs_from: Timestamp(s * 1000),
            });
            assert_eq!(got, want, "due {due_s} at {now_s}");
        };
        check(1000, 1000, 100, 899, None);
        check(1000, 1000, 100, 900, Some(1000));
        check(1000, 1000, 100, 950, Some(1050)); // late: it signs later, not sooner
        check(1000, 1000, 100, 5000, Some(5100));
        check(100, 1000, 600, 949, None); // half the period is the maximum
        check(100, 1000, 600, 950, Some(1000));
    }

    #[test]
    fn only_what_is_due_happens() {
        let rotation = Rotation {
            due: Timestamp(1_000_000),
            every: Period::from_s(1000).expect("a period"),
        };
        let at = |state, waiting_s: Option<u64>, destroy_s: Option<u64>, now_s: u64| {
            let schedule = Schedule {
                state,
                rotation: Some(rotation),
                waiting: waiting_s.map(|s| Waiting {
                    signs_from: Timestamp(s * 1000),
                }),
                destroy_at: destroy_s.map(|s| Timestamp(s * 1000)),
                trim: None,
            };
            due(&schedule, &settings(10), Timestamp(now_s * 1000))
        };
        assert_eq!(at(KeyState::Active, Some(50), None, 49), None);
        assert_eq!(
            at(KeyState::Active, Some(50), None, 50),
            Some(Due::Activate)
        );
        assert_eq!(at(KeyState::Retired, Some(50), None, 50), None);
        assert_eq!(at(KeyState::Retired, None, None, 9999), None);
        assert_eq!(at(KeyState::PendingDestruction, None, Some(70), 69), None);
        assert_eq!(
            at(KeyState::PendingDestruction, None, Some(70), 70),
            Some(Due::Destroy)
        );
        assert_eq!(at(KeyState::Destroyed, None, Some(70), 9999), None);
    }
}
