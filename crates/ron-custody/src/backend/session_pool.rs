//! The session pool of a device: threads that own one session each, a keeper thread that probes the device and
//! reconnects, and one mapping of errors. Each backend supplies its own session type.
//!
//! ```text
//!  run(op, deadline, job) ── unavailable? refuse ──> HangPool ──> Seat { session, generation }
//!       │                                                │ Gone: session dropped, device unavailable
//!       │                                                │ hangs: set aside, counted, replaced
//!  keeper ── probe every 2 s, with backoff while down ───┘ up again: new generation, new sessions
//! ```
//!
//! **Invariants.** No call is retried here: retrying a failed signature is up to the caller. Only the keeper calls a
//! device that is unavailable. A refused PIN is not tried again until a reload, because tokens lock themselves after a
//! few wrong PINs.

use ron_proto::kms::{KeyBackend, TokenObject};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_kernel::time::Instant;
use ron_kernel::{
    Backoff, Count, Deadline, HangError, HangPool, HangSpec, SharedClock, Snapshot, Supervisor,
    ThreadCtx, ThreadSpec,
};
use ron_service::ReadyBoard;

use ron_crypto::secret::SecretBytes;
use ron_proto::values::Alg;

use super::metrics::DeviceMetrics;
use super::{BackendId, DeviceError, Handle, NewKey, Presence, TpmEvidence, Wrapping};
use crate::keys::DeviceInput;
use crate::keys::{Input, PublicKey};

/// Interval at which the keeper checks whether a probe is due.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// Maximum time of one probe.
const PROBE: Duration = Duration::from_secs(1);
/// Maximum hanging threads that are replaced at the same time.
const ASIDE_MAX: usize = 4;
/// Maximum calls that wait for a session.
const CALLS: usize = 64;

/// An error of a session's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The session or the device is gone; nothing was done.
    Gone(String),
    /// The device refused the login; a retry could lock it.
    Denied(String),
    /// The device answered with an error.
    Refused(String),
    /// The device no longer has the key.
    Missing(String),
    /// The device does not support the operation.
    Unsupported(String),
    /// The ciphertext to unwrap does not decrypt.
    Mismatch,
    /// The device is overloaded; nothing was done.
    Busy { retry_after_s: u32 },
    /// No answer within the deadline; the session is dropped, its thread is free.
    TimedOut,
}

/// A connection to a device, owned by one thread. The methods are those of [`super::Device`]; a method that the device lacks
/// keeps its default and is no name of [`Session::OPS`].
pub trait Session: Sized + 'static {
    const KIND: KeyBackend;
    /// Names of its calls in metrics: `probe`, and `<kind>_<call>` for each call that it supports.
    const OPS: &'static [&'static str];

    /// Whether the device answers.
    fn probe(&mut self) -> Result<(), Fault>;

    /// Makes a key and tests it once. `id` is unique, for devices that do not name keys themselves.
    fn make(&mut self, _: Alg, _id: [u8; 16], _name: &str, _: Deadline) -> Result<NewKey, Fault> {
        Err(Fault::Unsupported("making keys".into()))
    }

    /// The key that is in the device already under this name, after a test.
    fn adopt(&mut self, _: Alg, _: &TokenObject) -> Result<NewKey, Fault> {
        Err(Fault::Unsupported("adopting keys".into()))
    }

    fn destroy(&mut self, _: &Handle, _: Deadline) -> Result<(), Fault> {
        Err(Fault::Unsupported("destroying keys".into()))
    }

    fn sign(&mut self, _: Alg, _: &Handle, _input: &DeviceInput) -> Result<Vec<u8>, Fault> {
        Err(Fault::Unsupported("signing".into()))
    }

    fn wrap(
        &mut self,
        _: &Handle,
        _: &Wrapping,
        _plaintext: &[u8],
        _: Deadline,
    ) -> Result<Vec<u8>, Fault> {
        Err(Fault::Unsupported("wrapping".into()))
    }

    fn unwrap(
        &mut self,
        _: &Handle,
        _: &Wrapping,
        _wrapped: &[u8],
        _: Deadline,
    ) -> Result<SecretBytes, Fault> {
        Err(Fault::Unsupported("unwrapping".into()))
    }

    fn counter(&mut self, _advance: bool) -> Result<u64, Fault> {
        Err(Fault::Unsupported("counting".into()))
    }

    fn seal(&mut self, _secret: &SecretBytes) -> Result<Vec<u8>, Fault> {
        Err(Fault::Unsupported("sealing".into()))
    }

    fn unseal(&mut self, _blob: &[u8]) -> Result<SecretBytes, Fault> {
        Err(Fault::Unsupported("sealing".into()))
    }

    fn attest(&mut self, _: &Handle, _nonce: [u8; 32]) -> Result<TpmEvidence, Fault> {
        Err(Fault::Unsupported("attesting".into()))
    }
}

/// What a new key signs or wraps once as a test; payload policies refuse messages with this prefix.
pub(super) const TEST_MESSAGE: &[u8] = b"ron-kms/v1/new key";

/// A new key must produce a valid signature before it is used.
pub(super) fn check_signature(
    public: &PublicKey,
    sign: impl FnOnce(&DeviceInput) -> Result<Vec<u8>, Fault>,
) -> Result<(), Fault> {
    let test = Input::Message(TEST_MESSAGE);
    let signature = sign(&public.for_device(test, None))?;
    if public.verify(test, None, &signature) {
        return Ok(());
    }
    let why = "the new key's signature does not verify";
    Err(Fault::Refused(why.into()))
}

/// A new key must wrap and unwrap a test value before it is used.
pub(super) fn check_unwrapped(opened: &SecretBytes) -> Result<(), Fault> {
    if opened.expose() == TEST_MESSAGE {
        return Ok(());
    }
    let why = "the new key does not unwrap what it wrapped";
    Err(Fault::Refused(why.into()))
}

type Connect<S> = dyn Fn() -> Result<S, Fault> + Send + Sync;

/// The parameters of a session pool.
pub struct SessionPoolParts {
    /// Threads with a session each.
    pub threads: &'static ThreadSpec,
    /// Queue of calls that wait for a session.
    pub queue: &'static ron_kernel::QueueSpec,
    pub keeper: &'static ThreadSpec,
    pub id: BackendId,
    pub sessions: usize,
    /// Pause between two probes.
    pub probe_every: Duration,
}

/// The handles that every session pool needs.
#[derive(Clone)]
pub struct DeviceHandles {
    pub sup: Supervisor,
    pub metrics: DeviceMetrics,
    /// Where unavailability is reported.
    pub ready: ReadyBoard,
    pub clock: SharedClock,
}

struct Seat<S> {
    session: Option<S>,
    generation: u64,
}

struct State {
    down: Snapshot<Option<Arc<str>>>,
    generation: AtomicU64,
    started: Instant,
    /// Milliseconds from `started` to the last answer.
    seen_ms: AtomicU64,
    /// The login was refused: no probe until a reload.
    login_refused: AtomicBool,
    /// A reload requested a probe.
    nudged: AtomicBool,
    /// Milliseconds between two probes.
    probe_every_ms: AtomicU64,
    /// The device has answered at least once; later recoveries count as reconnections.
    connected_before: AtomicBool,
}

struct Inner<S: Session> {
    threads: HangPool<Seat<S>>,
    connect: Arc<Connect<S>>,
    state: State,
    handles: DeviceHandles,
    id: BackendId,
    /// The same in metrics and on the readiness board.
    name: &'static str,
    sessions: usize,
}

impl State {
    // Relaxed: a pause, with which no other data is published.
    fn probe_every(&self) -> Duration {
        Duration::from_millis(self.probe_every_ms.load(Ordering::Relaxed))
    }

    fn set_probe_every(&self, every: Duration) {
        let ms = every.as_millis() as u64;
        self.probe_every_ms.store(ms, Ordering::Relaxed);
    }
}

impl<S: Session> Inner<S> {
    /// Time since the start, which no setting of a date changes.
    fn running_for(&self) -> Duration {
        let now = self.handles.clock.now();
        now.saturating_duration_since(self.state.started)
    }
}

/// A session pool; clones share it.
pub struct SessionPool<S: Session>(Arc<Inner<S>>);

impl<S: Session> Clone for SessionPool<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Session> Presence for SessionPool<S> {
    fn unavailable(&self) -> Option<String> {
        self.unavailable_reason().map(|why| why.to_string())
    }

    fn silent_for(&self) -> Duration {
        // Relaxed: a time for age limits, with which no other data is published.
        let seen = Duration::from_millis(self.0.state.seen_ms.load(Ordering::Relaxed));
        self.0.running_for().saturating_sub(seen)
    }

    fn sessions(&self) -> usize {
        self.0.sessions
    }

    fn adopt(&self, probe_every: Duration) {
        self.0.state.set_probe_every(probe_every);
        // Cleared before the probe is requested. In the other order the keeper could probe with a refused PIN and set the
        // flag, and this store would clear it: one more attempt than the reload allows.
        self.0.state.login_refused.store(false, Ordering::SeqCst);
        self.0.state.nudged.store(true, Ordering::SeqCst);
    }
}

impl<S: Session> SessionPool<S> {
    /// Starts the threads. The device may be unavailable at this time.
    pub fn start(
        parts: SessionPoolParts,
        handles: DeviceHandles,
        connect: impl Fn() -> Result<S, Fault> + Send + Sync + 'static,
    ) -> Self {
        let spec = HangSpec {
            threads: parts.threads,
            queue: parts.queue,
            size: parts.sessions,
            capacity: CALLS,
            aside_max: ASIDE_MAX,
            ops: S::OPS,
        };
        // The board knows causes by static names; a device lives as long as its process.
        let name: &'static str = parts.id.to_string().leak();
        handles.ready.declare(&[name]);
        handles.metrics.declare(name);
        let empty = |_: &ThreadCtx| {
            Ok(Seat {
                session: None,
                generation: 0,
            })
        };
        let threads = HangPool::start(&handles.sup, spec, empty);
        let pool = Self(Arc::new(Inner {
            threads,
            connect: Arc::new(connect),
            state: State {
                down: Snapshot::new(Some("it has not answered yet".into())),
                generation: AtomicU64::new(1),
                started: handles.clock.now(),
                seen_ms: AtomicU64::new(0),
                login_refused: AtomicBool::new(false),
                nudged: AtomicBool::new(false),
                probe_every_ms: AtomicU64::new(parts.probe_every.as_millis() as u64),
                connected_before: AtomicBool::new(false),
            },
            handles,
            id: parts.id,
            name,
            sessions: parts.sessions,
        }));
        pool.export_state();
        // The first probe runs here, so that an available device can be used by the first request.
        pool.probe_once();
        let keeper = pool.clone();
        let sup = pool.0.handles.sup.clone();
        let keep = move |ctx: &ThreadCtx| keeper.keep(ctx);
        match parts.keeper.count {
            Count::One => sup.spawn(parts.keeper, keep),
            Count::Pool(_) => sup.spawn_pool(parts.keeper, 1, keep),
        }
        pool
    }

    /// The device that the sessions are with.
    pub fn id(&self) -> &BackendId {
        &self.0.id
    }

    /// Why the device is unavailable; `None` while it answers.
    fn unavailable_reason(&self) -> Option<Arc<str>> {
        self.0.state.down.with(Clone::clone)
    }

    /// Runs `job` on a session, within the deadline; fails at once while the device is unavailable. `call` is the end of a
    /// name in [`Session::OPS`]; a call that has none there is not supported.
    pub fn run<R: Send + 'static>(
        &self,
        call: &'static str,
        deadline: Deadline,
        job: impl FnOnce(&mut S) -> Result<R, Fault> + Send + 'static,
    ) -> Result<R, DeviceError> {
        if let Some(why) = self.unavailable_reason() {
            return Err(self.unavailable_error(&why));
        }
        let named = |op: &&&str| op.split_once('_').is_some_and(|(_, name)| name == call);
        let op = S::OPS.iter().find(named);
        let op = op.ok_or_else(|| DeviceError::Unsupported(call.to_owned()))?;
        self.call(op, deadline, job)
    }

    fn call<R: Send + 'static>(
        &self,
        op: &'static str,
        deadline: Deadline,
        job: impl FnOnce(&mut S) -> Result<R, Fault> + Send + 'static,
    ) -> Result<R, DeviceError> {
        let inner = &self.0;
        let connect = inner.connect.clone();
        let generation = inner.state.generation.load(Ordering::SeqCst);
        let work = move |seat: &mut Seat<S>| seat.run(&*connect, generation, job);
        let answer = inner.threads.call(op, deadline, work);
        match answer {
            Ok(Ok(done)) => {
                self.answered();
                Ok(done)
            }
            // An error of the device is an answer too: the device is available.
            Ok(Err(Fault::Refused(why))) => {
                self.answered();
                Err(DeviceError::Refused(why))
            }
            Ok(Err(Fault::Missing(why))) => {
                self.answered();
                Err(DeviceError::KeyMissing(why))
            }
            Ok(Err(Fault::Unsupported(why))) => Err(DeviceError::Unsupported(why)),
            Ok(Err(Fault::Mismatch)) => {
                self.answered();
                Err(DeviceError::Mismatch)
            }
            Ok(Err(Fault::Busy { retry_after_s })) => Err(DeviceError::Busy { retry_after_s }),
            Ok(Err(Fault::TimedOut)) => {
                if self.unresponsive() {
                    self.mark_unavailable("it does not answer");
                }
                Err(DeviceError::Hung)
            }
            Ok(Err(Fault::Gone(why))) => Err(self.mark_unavailable(&why)),
            Ok(Err(Fault::Denied(why))) => {
                inner.state.login_refused.store(true, Ordering::SeqCst);
                Err(self.mark_unavailable(&why))
            }
            Err(HangError::Busy { retry_after_s }) => Err(DeviceError::Busy { retry_after_s }),
            Err(HangError::Expired) => Err(DeviceError::Expired),
            Err(HangError::Hung) => {
                // One hanging call does not make the device unavailable: other sessions may answer, and the
                // keeper's probe decides.
                let quarantined = &inner.handles.metrics.quarantined;
                quarantined.with_label_values(&[inner.name]).inc();
                self.export_state();
                Err(DeviceError::Hung)
            }
            Err(HangError::Unavailable) => Err(self.mark_unavailable("all of its sessions hang")),
            Err(HangError::Crashed) => Err(self.mark_unavailable("a session's thread panicked")),
            Err(HangError::NoHandle(why)) => Err(self.mark_unavailable(&why)),
        }
    }

    fn answered(&self) {
        let now = self.0.running_for().as_millis() as u64;
        self.0.state.seen_ms.store(now, Ordering::Relaxed);
    }

    fn unavailable_error(&self, why: &str) -> DeviceError {
        DeviceError::Unavailable {
            backend: self.0.name.to_owned(),
            why: why.to_owned(),
        }
    }

    /// Whether there was no answer for longer than a probe may take.
    fn unresponsive(&self) -> bool {
        self.silent_for() > PROBE
    }

    /// Marks the device as unavailable.
    fn mark_unavailable(&self, why: &str) -> DeviceError {
        let inner = &self.0;
        let was_up = inner.state.down.with(Option::is_none);
        inner.state.down.store(Some(why.into()));
        if was_up {
            tracing::error!(event = "backend_away", backend = inner.name, why);
        }
        self.export_state();
        self.unavailable_error(why)
    }

    /// Exports the state to metrics and readiness.
    fn export_state(&self) {
        let inner = &self.0;
        let backend = inner.name;
        let sessions = &inner.handles.metrics.sessions;
        let hanging = inner.threads.hanging().len() as i64;
        let down = inner.state.down.with(Option::is_some);
        let open = if down {
            0
        } else {
            inner.threads.seated() as i64
        };
        sessions.with_label_values(&[backend, "open"]).set(open);
        sessions
            .with_label_values(&[backend, "hanging"])
            .set(hanging);
        match self.unavailable() {
            Some(why) => inner.handles.ready.degrade(
                backend,
                format!("backend {backend} is unavailable: {why}; its keys verify but do not sign"),
            ),
            None => inner.handles.ready.clear(backend),
        }
    }

    fn keep(&self, ctx: &ThreadCtx) {
        let base = Duration::from_millis(100);
        let seed = self.0.handles.clock.unix_ms();
        let mut backoff = Backoff::new(base, Duration::from_secs(2), base, seed);
        let mut next = Deadline::within(self.0.state.probe_every());
        let mut was_down = self.unavailable().is_some();
        while !ctx.shutdown.wait(Deadline::within(CHECK_EVERY)) {
            let state = &self.0.state;
            let down = state.down.with(Option::is_some);
            // A call has marked the device unavailable since the last check: probe soon.
            if down && !was_down {
                backoff.reset();
                next = Deadline::within(backoff.next_pause());
            }
            was_down = down;
            let nudged = state.nudged.swap(false, Ordering::SeqCst);
            let due = next.expired() && !state.login_refused.load(Ordering::SeqCst);
            if !(due || nudged) {
                continue;
            }
            self.probe_once();
            was_down = self.unavailable().is_some();
            let pause = if was_down {
                backoff.next_pause()
            } else {
                backoff.reset();
                state.probe_every()
            };
            next = Deadline::within(pause);
        }
    }

    /// Probes the device once and updates its availability.
    fn probe_once(&self) {
        let inner = &self.0;
        let down = inner.state.down.with(Option::is_some);
        if down {
            // Sessions from before the outage may be dead: a new generation makes every thread open a new one.
            inner.state.generation.fetch_add(1, Ordering::SeqCst);
        }
        match self.call("probe", Deadline::within(PROBE), Session::probe) {
            Ok(()) if down => {
                inner.state.down.store(None);
                if inner.state.connected_before.swap(true, Ordering::SeqCst) {
                    let reconnects = &inner.handles.metrics.reconnects;
                    reconnects.with_label_values(&[inner.name]).inc();
                }
                tracing::info!(event = "backend_up", backend = inner.name);
            }
            // All sessions are busy. While other calls get answers, that is load and no failure.
            Err(DeviceError::Busy { .. } | DeviceError::Expired) if !self.unresponsive() => {}
            Ok(()) => {}
            Err(error) => {
                self.mark_unavailable(&match error {
                    DeviceError::Unavailable { why, .. } => why,
                    DeviceError::Hung | DeviceError::Busy { .. } | DeviceError::Expired => {
                        "it does not answer".to_owned()
                    }
                    other => other.to_string(),
                });
            }
        }
        self.export_state();
    }
}

impl<S: Session> Seat<S> {
    fn run<R>(
        &mut self,
        connect: &Connect<S>,
        generation: u64,
        job: impl FnOnce(&mut S) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        // The session is older than the last reconnection.
        if self.generation < generation {
            self.session = None;
        }
        if self.session.is_none() {
            self.session = Some(connect()?);
            self.generation = generation;
        }
        let session = self.session.as_mut().expect("connected above");
        let result = job(session);
        // These faults leave the session in an unknown state; the next call connects again.
        if matches!(
            result,
            Err(Fault::Gone(_) | Fault::Denied(_) | Fault::TimedOut)
        ) {
            self.session = None;
        }
        result
    }
}
