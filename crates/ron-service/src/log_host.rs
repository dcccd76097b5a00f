//! Serves a verifiable log over HTTP (C2SP tlog-tiles, notes and proofs), and publishes its
//! checkpoints in time.

pub mod archive;
pub mod asker;
pub mod cosign;
mod failure_log;
pub mod keys;
pub mod note_key;
pub mod witness;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_http::{Need, Request, Response, Route};
use ron_kernel::{
    Counter, Deadline, LockSpec, RankedMutex, Receiver, Registry, Sender, SharedClock, ThreadCtx,
};
use ron_proto::Problem;
use ron_tlog::CheckpointError;
use ron_tlog::append::{Checkpointer, LogReader, ProofError, ReadError};
use ron_tlog::note::{NoteSignature, NoteSigner};
use ron_tlog::tile::{TILE_WIDTH, TilePath};

use crate::ready::ReadyBoard;
use asker::Published;
pub use cosign::CosignedView;
use failure_log::FailureLog;
pub use keys::KeyView;

/// The lock of [`CheckpointRoom`].
pub const CHECKPOINT_LOCK: LockSpec = LockSpec {
    name: "log.checkpointer",
    rank: 911,
    guards: "the checkpointer while no thread holds it",
};
static CHECKPOINT_LOCK_SPEC: LockSpec = CHECKPOINT_LOCK;

/// The path prefix of the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `/audit/v1`, the KMS audit log.
    Audit,
    /// `/log/v1`, the ledger.
    Log,
    /// `/revocations/v1`, the issuer's revocations.
    Revocations,
}

/// The log behind the routes.
#[derive(Clone, Debug)]
pub struct LogHost {
    pub reader: LogReader,
    pub keys: KeyView,
    /// Scope required for entry bundles; everything else is public.
    pub entries_scope: &'static str,
    /// The newest checkpoint cosigned by the witnesses of a policy; proofs refer to it when it
    /// covers the entry.
    pub cosigned: CosignedView,
}

impl LogHost {
    /// The proof that an entry is in the log: under the cosigned checkpoint if that covers it, else
    /// under the published one.
    pub fn proof(&self, index: u64) -> Result<String, ProofError> {
        match self.cosigned.note().filter(|note| index < note.size) {
            Some(note) => self.reader.proof_under(index, &note.text),
            None => self.reader.proof(index),
        }
    }
}

macro_rules! paths {
    ($base:literal) => {
        [
            concat!($base, "/checkpoint"),
            concat!($base, "/vkey"),
            concat!($base, "/keys"),
            concat!($base, "/proof/{index}"),
            concat!($base, "/tile/{*tile}"),
            concat!($base, "/tile/entries/{*bundle}"),
        ]
    };
}

/// The routes `checkpoint`, `vkey`, `keys`, `proof/{index}`, `tile/<level>/<index>[.p/<width>]` and
/// `tile/entries/<index>[.p/<width>]` under the base. Reads continue while the service drains.
pub fn routes(base: Base, host: &LogHost) -> Vec<Route> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const BYTES: &str = "application/octet-stream";
    let [checkpoint, vkey, keys, proof, tile, bundle] = match base {
        Base::Audit => paths!("/audit/v1"),
        Base::Log => paths!("/log/v1"),
        Base::Revocations => paths!("/revocations/v1"),
    };
    let with = |serve: fn(&LogHost, &Request) -> Result<Response, Problem>| {
        let host = host.clone();
        move |request: &Request| serve(&host, request)
    };
    vec![
        Route::get(checkpoint, Need::Public, with(serve_checkpoint))
            .summary("Latest checkpoint, a C2SP signed note")
            .returns_bytes(200, TEXT)
            .errors(&[404])
            .while_draining(),
        Route::get(vkey, Need::Public, with(serve_vkey))
            .summary("Verifier key of the log's checkpoints")
            .returns_bytes(200, TEXT)
            .while_draining(),
        Route::get(keys, Need::Public, with(serve_keys))
            .summary("All keys of the log: the verifier key of the first one, and the cross-signed rotations up to the newest")
            .returns_bytes(200, TEXT)
            .while_draining(),
        Route::get(proof, Need::Public, with(serve_proof))
            .summary("Proof that an entry is in the log, c2sp.org/tlog-proof@v1")
            .returns_bytes(200, TEXT)
            .errors(&[400, 404, 409])
            .while_draining(),
        Route::get(tile, Need::Public, with(serve_tile))
            .summary("Tile of hashes, C2SP tlog-tiles")
            .returns_bytes(200, BYTES)
            .errors(&[404])
            .while_draining(),
        Route::get(bundle, Need::Scope(host.entries_scope), with(serve_bundle))
            .summary("Bundle of entries, C2SP tlog-tiles")
            .returns_bytes(200, BYTES)
            .errors(&[404])
            .while_draining(),
    ]
}

fn serve_checkpoint(host: &LogHost, _: &Request) -> Result<Response, Problem> {
    let text = host
        .reader
        .checkpoint()
        .ok_or_else(|| Problem::not_found("the log has no checkpoint yet"))?;
    Ok(Response::text(200, text.to_string()).cache("no-cache"))
}

#[allow(clippy::unnecessary_wraps)] // the signature of a handler
fn serve_vkey(host: &LogHost, _: &Request) -> Result<Response, Problem> {
    Ok(Response::text(200, format!("{}\n", host.keys.vkey())).cache("public, max-age=60"))
}

#[allow(clippy::unnecessary_wraps)] // the signature of a handler
fn serve_keys(host: &LogHost, _: &Request) -> Result<Response, Problem> {
    Ok(Response::text(200, host.keys.chain().to_string()).cache("public, max-age=60"))
}

fn serve_proof(host: &LogHost, request: &Request) -> Result<Response, Problem> {
    let text = request.param("index");
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let index: u64 = text
        .parse()
        .ok()
        .filter(|_| plain && (text == "0" || !text.starts_with('0')))
        .ok_or_else(|| Problem::bad_request("the index is a whole number without leading zeros"))?;
    match host.proof(index) {
        Ok(proof) => Ok(Response::text(200, proof).cache("no-cache")),
        Err(error @ ProofError::NotFound { .. }) => Err(Problem::not_found(error.to_string())),
        Err(error @ ProofError::NotYetCovered { .. }) => Err(not_yet_covered(&error)),
        Err(error) => Err(broken(&error)),
    }
}

/// 409: the entry is durable, and its proof comes with the next checkpoint.
pub fn not_yet_covered(error: &ProofError) -> Problem {
    let title = "No checkpoint covers the entry yet";
    Problem::new(409, "not_yet_covered", title, error.to_string())
        .retryable(true)
        .with_retry_after(1)
}

fn serve_tile(host: &LogHost, request: &Request) -> Result<Response, Problem> {
    // Hashes only: any spelling of `entries` in this path must not bypass its scope.
    match TilePath::parse(&format!("tile/{}", request.param("tile"))) {
        Some(TilePath::Hashes {
            level,
            index,
            width,
        }) => tile(host.reader.tile(level, index, width), width),
        _ => Err(Problem::not_found("no such tile")),
    }
}

fn serve_bundle(host: &LogHost, request: &Request) -> Result<Response, Problem> {
    match TilePath::parse(&format!("tile/entries/{}", request.param("bundle"))) {
        Some(TilePath::Entries { index, width }) => {
            tile(host.reader.entry_bundle(index, width), width)
        }
        _ => Err(Problem::not_found("no such bundle")),
    }
}

fn tile(read: Result<Vec<u8>, ReadError>, width: u16) -> Result<Response, Problem> {
    match read {
        Ok(bytes) => {
            let response = Response::bytes(200, "application/octet-stream", bytes);
            // A full tile never changes; a partial one of a given width does not change either, but
            // is removed later.
            let full = u64::from(width) == TILE_WIDTH;
            Ok(response.cache(if full {
                "private, max-age=31536000, immutable"
            } else {
                "private, max-age=60"
            }))
        }
        Err(error @ ReadError::NotFound { .. }) => Err(Problem::not_found(error.to_string())),
        Err(error) => Err(broken(&error)),
    }
}

fn broken(error: &dyn std::fmt::Display) -> Problem {
    tracing::error!(event = "log_read_failed", error = %error);
    Problem::internal("the log could not be read; see the service's log")
}

/// When checkpoints are due.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointPlan {
    /// Maximum time from a new entry to the checkpoint that covers it.
    pub every: Duration,
    /// Number of entries after which it is made sooner.
    pub entries: u64,
    /// Readiness goes off when no checkpoint covers an entry for this long.
    pub late: Duration,
}

impl Default for CheckpointPlan {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            entries: 5_000,
            late: Duration::from_secs(2),
        }
    }
}

/// Publishes checkpoints from its own thread, whose body is [`CheckpointRoom::run`].
/// [`CheckpointRoom::finish`] makes the last one after all writers have ended. An idle log gets
/// none.
pub struct CheckpointRoom {
    /// `Some` while no thread uses it. A thread takes it out, because publishing does I/O and no
    /// lock may be held over that.
    idle: RankedMutex<Option<Checkpointer>>,
    signer: Arc<dyn NoteSigner>,
    reader: LogReader,
    plan: CheckpointPlan,
    ready: ReadyBoard,
    clock: SharedClock,
    late: Counter,
    published_ms: Arc<AtomicI64>,
    witnesses: OnceLock<ToWitnesses>,
}

/// Cosignatures for a published checkpoint, to be stored with it.
pub type CosignedLines = (Arc<str>, Vec<NoteSignature>);

/// The channels to the witness thread.
#[derive(Debug)]
pub struct ToWitnesses {
    /// Wakes the thread after a publication.
    pub wake: Sender<Published>,
    /// Cosignatures from the thread.
    pub lines: Receiver<CosignedLines>,
}

/// How often the thread checks for new entries.
const TICK: Duration = Duration::from_millis(100);
/// The same while every entry is covered and no witness is asked. The age of entries that come meanwhile counts from the check before.
const IDLE_TICK: Duration = Duration::from_millis(250);

impl CheckpointRoom {
    /// Exports `<metric>_checkpoint_age_seconds` and `checkpoint_late_total`.
    #[allow(clippy::too_many_arguments)] // each is used as it is, a struct would only rename them
    pub fn new(
        checkpointer: Checkpointer,
        signer: Arc<dyn NoteSigner>,
        reader: LogReader,
        plan: CheckpointPlan,
        ready: ReadyBoard,
        clock: SharedClock,
        registry: &Registry,
        metric: &str,
    ) -> Arc<Self> {
        ready.declare(&["checkpoint"]);
        let published_ms = Arc::new(AtomicI64::new(now_ms(&clock)));
        let (age, age_clock) = (published_ms.clone(), clock.clone());
        registry.gauge_fn(
            &format!("{metric}_checkpoint_age_seconds"),
            "Seconds since the last checkpoint was published or found up to date.",
            &[],
            move || (now_ms(&age_clock) - age.load(Ordering::Relaxed)) / 1000,
        );
        Arc::new(Self {
            idle: RankedMutex::new(&CHECKPOINT_LOCK_SPEC, Some(checkpointer)),
            signer,
            reader,
            plan,
            ready,
            clock,
            late: registry.counter(
                "checkpoint_late_total",
                "Checkpoints published later than their deadline.",
            ),
            published_ms,
            witnesses: OnceLock::new(),
        })
    }

    /// Connects the witness thread: it is notified of each checkpoint, and its cosignatures are
    /// stored. Call it once, before the threads start.
    pub fn ask(&self, witnesses: ToWitnesses) {
        assert!(self.witnesses.set(witnesses).is_ok(), "called once");
    }

    /// The thread's body.
    pub fn run(&self, ctx: &ThreadCtx) {
        let Some(checkpointer) = self.idle.lock().take() else {
            ctx.shutdown.wait(Deadline::within(Duration::from_secs(1)));
            return;
        };
        let mut held = Loan {
            room: self,
            checkpointer: Some(checkpointer),
            pacer: Pacer::default(),
            failures: FailureLog::default(),
        };
        let mut pause = TICK;
        while !ctx.shutdown.wait(Deadline::within(pause)) {
            held.cosign();
            held.tick();
            let idle = held.pacer.is_idle() && self.witnesses.get().is_none();
            pause = if idle { IDLE_TICK } else { TICK };
        }
    }

    /// Publishes what no checkpoint covers yet; the last step of a drain, after every writer has
    /// ended.
    pub fn finish(&self) {
        let taken = self.idle.lock().take();
        if let Some(checkpointer) = taken {
            let mut held = Loan {
                room: self,
                checkpointer: Some(checkpointer),
                pacer: Pacer::default(),
                failures: FailureLog::default(),
            };
            held.publish();
        }
    }
}

fn now_ms(clock: &SharedClock) -> i64 {
    i64::try_from(clock.unix_ms()).unwrap_or(i64::MAX)
}

/// The checkpointer on loan to a thread. `Drop` returns it also after a panic, so that the
/// restarted thread finds it.
struct Loan<'a> {
    room: &'a CheckpointRoom,
    checkpointer: Option<Checkpointer>,
    pacer: Pacer,
    failures: FailureLog,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let back = self.checkpointer.take();
        *self.room.idle.lock() = back;
    }
}

impl Loan<'_> {
    fn tick(&mut self) {
        let Some(checkpointer) = &self.checkpointer else {
            return;
        };
        let room = self.room;
        if room.reader.poisoned() {
            return;
        }
        let uncovered = checkpointer.uncovered();
        let now_ms = room.clock.unix_ms();
        if uncovered == 0 {
            room.published_ms
                .store(i64::try_from(now_ms).unwrap_or(i64::MAX), Ordering::Relaxed);
        }
        match self.pacer.pace(uncovered, now_ms, &room.plan) {
            Pace::Nothing => {}
            Pace::Due => self.publish(),
            Pace::Late { first } => {
                if first {
                    room.late.inc();
                    room.ready
                        .missing("checkpoint", "no checkpoint was published in time");
                }
                self.publish();
            }
        }
    }

    /// Stores cosignatures with their checkpoint, unless a newer one was published in the meantime.
    fn cosign(&mut self) {
        let (Some(to), Some(checkpointer)) = (self.room.witnesses.get(), &mut self.checkpointer)
        else {
            return;
        };
        while let Some((text, lines)) = to.lines.try_recv() {
            match checkpointer.add_signatures(&text, &lines) {
                Ok(_) | Err(CheckpointError::Superseded | CheckpointError::Poisoned) => {}
                Err(error) => tracing::error!(event = "cosignatures_not_stored", %error),
            }
        }
    }

    fn publish(&mut self) {
        let room = self.room;
        let Some(checkpointer) = &mut self.checkpointer else {
            return;
        };
        match checkpointer.publish(&[room.signer.as_ref()]) {
            Ok(_) => {
                room.published_ms
                    .store(now_ms(&room.clock), Ordering::Relaxed);
                self.pacer.published(
                    room.reader.size_durable() - room.reader.checkpoint_size(),
                    room.clock.unix_ms(),
                );
                room.ready.present("checkpoint");
                if self.failures.recovered() {
                    tracing::info!(event = "checkpoint_published_again");
                }
                if let Some(to) = room.witnesses.get() {
                    let _ = to.wake.try_send(Published); // full: a wake-up is already pending
                }
            }
            // The holder of a log in an engine has to sign first. When it does not in time, the pace reports it.
            Err(CheckpointError::NoneYet) => {}
            Err(error) => {
                let (error, now_ms) = (error.to_string(), room.clock.unix_ms());
                if let Some(repeats) = self.failures.failed(&error, now_ms) {
                    tracing::error!(event = "checkpoint_failed", error, repeats);
                }
            }
        }
    }
}

/// Decides when a checkpoint is due. Pure.
#[derive(Debug, Default)]
struct Pacer {
    /// When the oldest uncovered entry was at most made, Unix milliseconds.
    since_ms: Option<u64>,
    /// When every entry was last found covered.
    covered_ms: Option<u64>,
    late_reported: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Pace {
    Nothing,
    Due,
    Late { first: bool },
}

impl Pacer {
    fn pace(&mut self, uncovered: u64, now_ms: u64, plan: &CheckpointPlan) -> Pace {
        if uncovered == 0 {
            *self = Self {
                covered_ms: Some(now_ms),
                ..Self::default()
            };
            return Pace::Nothing;
        }
        let since = self.covered_ms.unwrap_or(now_ms);
        let since = *self.since_ms.get_or_insert(since);
        let age = Duration::from_millis(now_ms.saturating_sub(since));
        if age >= plan.late {
            let first = !std::mem::replace(&mut self.late_reported, true);
            return Pace::Late { first };
        }
        // Two ticks early, so that it is published in time.
        if uncovered >= plan.entries || age + 2 * TICK >= plan.every {
            Pace::Due
        } else {
            Pace::Nothing
        }
    }

    /// Whether every entry is covered, as far as known.
    const fn is_idle(&self) -> bool {
        self.since_ms.is_none()
    }

    /// Starts a new period for entries that were added while the checkpoint was made.
    fn published(&mut self, uncovered: u64, now_ms: u64) {
        *self = Self {
            since_ms: (uncovered > 0).then_some(now_ms),
            covered_ms: (uncovered == 0).then_some(now_ms),
            late_reported: false,
        };
    }
}

#[cfg(test)]
#[path = "log_host_tests.rs"]
mod tests;
