//! The server side of C2SP tlog-witness: routes, and the single thread that decides, stores and
//! cosigns. Requests queue before it, so nothing can happen between comparing a checkpoint with the
//! last one and storing it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_kernel::{
    ClosedCounter, Count, Deadline, KernelMetrics, Overflow, QueueSpec, Receiver, Recv, Registry,
    SendError, Sender, SharedClock, Snapshot, Stage, Supervisor, ThreadCtx, ThreadSpec, queue,
};
use ron_proto::Problem;
use ron_tlog::append::{CosignError, WitnessStore};
use ron_tlog::rotation::CHAIN_BYTES_MAX;
use ron_tlog::witness::{AddCheckpoint, REQUEST_BYTES_MAX, Refusal, SIZE_TYPE};

use crate::ready::ReadyBoard;

/// The only thread that cosigns.
pub const WITNESS_THREAD: ThreadSpec = ThreadSpec {
    name: "wit-store",
    count: Count::One,
    stage: Stage::Work,
    critical: true,
    job: "compare, store, cosign: one checkpoint at a time",
};
/// Requests that wait for the thread.
pub const WITNESS_QUEUE: QueueSpec = QueueSpec {
    name: "witness",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "http workers",
    to: "wit-store",
    when_full: "429 busy",
};
static THREAD: ThreadSpec = WITNESS_THREAD;
static QUEUE: QueueSpec = WITNESS_QUEUE;

const TEXT: &str = "text/plain; charset=utf-8";
/// Path at which logs submit rotated keys; the client's side is in `cosign`.
const LOG_KEYS_ROUTE: &str = "/log-keys";

/// A request that waits for its decision.
pub(crate) struct Job {
    pub(crate) what: Submission,
    pub(crate) responder: Responder,
}

pub(crate) enum Submission {
    Checkpoint(AddCheckpoint),
    /// The chain of a log's keys.
    Keys(String),
}

pub(crate) type Notes = Arc<Snapshot<BTreeMap<String, Arc<str>>>>;

/// Statuses of the answers to a request to cosign.
pub(crate) const STATUSES: &[&str] = &["200", "400", "403", "404", "409", "422", "503"];

/// State owned by the thread.
pub(crate) struct Room {
    pub(crate) store: WitnessStore,
    pub(crate) jobs: Receiver<Job>,
    pub(crate) notes: Notes,
    pub(crate) clock: SharedClock,
    pub(crate) ready: ReadyBoard,
    pub(crate) asked: ClosedCounter,
}

/// Starts the thread that owns `store` and returns the witness's routes: `POST /add-checkpoint`,
/// `POST /log-keys` for logs that have rotated their key, `GET /{sha256 of an origin}/checkpoint`
/// for monitors, and `GET /vkey`.
pub fn serve(
    store: WitnessStore,
    sup: &Supervisor,
    registry: &Registry,
    km: &KernelMetrics,
    clock: SharedClock,
    ready: ReadyBoard,
) -> Vec<Route> {
    ready.declare(&["witness"]);
    let (to, jobs) = queue(&QUEUE, QUEUE.capacity, km);
    let notes: Notes = Arc::new(Snapshot::new(store.notes()));
    let vkey = store.cosigner().verifier().to_string();
    let room = Room {
        store,
        jobs,
        notes: notes.clone(),
        clock,
        ready: ready.clone(),
        asked: registry.counter_closed(
            "checkpoints_total",
            "Requests to cosign a checkpoint, by status.",
            &[("status", STATUSES)],
        ),
    };
    let handle = sup.clone();
    sup.spawn_owner(
        &THREAD,
        room,
        |mut room, ctx| room.run(ctx),
        move || {
            // The state is not trusted after a panic; a new process reads it from disk again.
            ready.missing("witness", "the thread that cosigns panicked");
            handle.set_fatal("the thread that cosigns panicked");
            None
        },
    );
    routes(to, notes, vkey)
}

fn routes(to: Sender<Job>, notes: Notes, vkey: String) -> Vec<Route> {
    let to_keys = to.clone();
    vec![
        Route::new(
            Method::POST,
            "/add-checkpoint",
            Need::Public,
            move |request, responder| add(&to, &request, responder),
        )
        .summary("Cosign a checkpoint that extends the last one, C2SP tlog-witness")
        .body_bytes(&[])
        .body_cap(REQUEST_BYTES_MAX)
        .returns_bytes(200, TEXT)
        .returns_bytes(409, SIZE_TYPE)
        .errors(&[400, 403, 404, 422, 503]),
        Route::new(
            Method::POST,
            LOG_KEYS_ROUTE,
            Need::Public,
            move |request, responder| learn(&to_keys, &request, responder),
        )
        .summary(
            "Accept the cross-signed chain of a log's keys, starting from a key that is known here",
        )
        .body_bytes(&[])
        .body_cap(CHAIN_BYTES_MAX)
        .returns_bytes(200, TEXT)
        .errors(&[400, 403, 404, 409, 503]),
        Route::get("/{origin}/checkpoint", Need::Public, move |request| {
            let found = notes.with(|n| n.get(request.param("origin")).cloned());
            found
                .map(|text| Response::text(200, text.to_string()).cache("no-cache"))
                .ok_or_else(|| Problem::not_found("no checkpoint of such a log was cosigned here"))
        })
        .summary("Latest cosigned checkpoint of a log, by the hex SHA-256 of its origin")
        .returns_bytes(200, TEXT)
        .errors(&[404])
        .while_draining(),
        Route::get("/vkey", Need::Public, move |_| {
            Ok(Response::text(200, format!("{vkey}\n")))
        })
        .summary("Verifier key of the cosignatures")
        .returns_bytes(200, TEXT)
        .while_draining(),
    ]
}

fn add(to: &Sender<Job>, request: &Request, responder: Responder) {
    let body = std::str::from_utf8(&request.body)
        .map_err(|_| Refusal::Malformed("it is not UTF-8".into()));
    match body.and_then(AddCheckpoint::parse) {
        Err(refusal) => responder.send(refused(&refusal)),
        Ok(request) => hand_over(to, Submission::Checkpoint(request), responder),
    }
}

fn learn(to: &Sender<Job>, request: &Request, responder: Responder) {
    match std::str::from_utf8(&request.body) {
        Err(_) => responder.send(Problem::bad_request("it is not UTF-8")),
        Ok(text) => hand_over(to, Submission::Keys(text.to_owned()), responder),
    }
}

fn hand_over(to: &Sender<Job>, what: Submission, responder: Responder) {
    match to.try_send(Job { what, responder }) {
        Ok(()) => {}
        Err(SendError::Full(job)) => {
            job.responder.send(Problem::busy(to.retry_after_s()));
        }
        Err(SendError::Closed(job)) => {
            job.responder
                .send(Problem::unavailable("the witness is stopping", 2));
        }
    }
}

/// A refusal with its status; a 409 carries the size.
fn refused(refusal: &Refusal) -> Response {
    if let Some(size) = refusal.size() {
        return Response::bytes(409, SIZE_TYPE, format!("{size}\n").into_bytes());
    }
    let why = refusal.to_string();
    let problem = match refusal.status() {
        403 => Problem::forbidden(why),
        404 => Problem::not_found(why),
        409 => Problem::new(409, "other_keys", "The log has other keys", why),
        422 => Problem::new(422, "inconsistent", "The log contradicts itself", why),
        _ => Problem::bad_request(why),
    };
    problem.into()
}

impl Room {
    pub(crate) fn run(&mut self, ctx: &ThreadCtx) {
        loop {
            let due = Deadline::within(Duration::from_secs(1));
            match self.jobs.recv(&ctx.shutdown, due) {
                #[cfg(mutant = "batch")]
                Recv::Item(job) if ron_kernel::mutant("batch") => self.tick_together(job),
                Recv::Item(job) => self.tick(job),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        while let Some(job) = self.jobs.try_recv() {
            self.tick(job);
        }
    }

    fn tick(&mut self, job: Job) {
        let done = match &job.what {
            Submission::Checkpoint(request) => self.checkpoint(request),
            Submission::Keys(text) => self.store.learn(text).map(|keys| {
                tracing::info!(event = "log_keys_learned", keys);
                Response::text(200, format!("{keys}\n"))
            }),
        };
        let (status, response) = match done {
            Ok(response) => ("200", response),
            Err(CosignError::Refused(refusal)) => {
                if let (Submission::Keys(text), Refusal::OtherKeys(_)) = (&job.what, &refusal) {
                    tracing::error!(event = "log_keys_contradict", why = %refusal, chain = %text);
                }
                let status = match refusal.status() {
                    403 => "403",
                    404 => "404",
                    409 => "409",
                    422 => "422",
                    _ => "400",
                };
                (status, refused(&refusal))
            }
            Err(error) => {
                self.ready.missing("witness", error.to_string());
                let problem = Problem::unavailable("the witness cannot store checkpoints", 5);
                ("503", problem.into())
            }
        };
        if matches!(job.what, Submission::Checkpoint(_)) {
            self.asked.with_label_values(&[status]).inc();
        }
        job.responder.send(response);
    }

    /// Compares all waiting requests with the store before any of them changes it.
    #[cfg(mutant = "batch")]
    fn tick_together(&mut self, first: Job) {
        let mut jobs = vec![first];
        while let Some(job) = self.jobs.try_recv() {
            jobs.push(job);
        }
        let requests: Vec<AddCheckpoint> = jobs
            .iter()
            .filter_map(|job| match &job.what {
                Submission::Checkpoint(request) => Some(request.clone()),
                Submission::Keys(_) => None,
            })
            .collect();
        let done = self.store.add_together(&requests, 1);
        for (job, done) in jobs.into_iter().zip(done) {
            let status = if done.is_ok() { 200 } else { 409 };
            job.responder.send(Response::text(status, String::new()));
        }
    }

    fn checkpoint(&mut self, request: &AddCheckpoint) -> Result<Response, CosignError> {
        let now_s = self.clock.unix_ms() / 1000;
        let done = self.store.add(request, now_s);
        match &done {
            Ok(_) => self.notes.store(self.store.notes()),
            // Signed by the log and in contradiction to its own past: the operator of this witness
            // must learn of it.
            Err(CosignError::Refused(why @ (Refusal::OtherRoot(_) | Refusal::Inconsistent(_)))) => {
                tracing::error!(event = "log_contradicts_itself", %why, %request);
            }
            Err(_) => {}
        }
        done.map(|cosigned| Response::text(200, format!("{}\n", cosigned.line)))
    }
}
