//! The poll thread of a front, and how a front is started and stopped.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_kernel::atomic::{AtomicBool, AtomicUsize, Ordering};
use ron_kernel::net::Watch;
use ron_kernel::rate::DrainMeter;
use ron_kernel::{
    IdleWorkers, KernelMetrics, LockSpec, QueueSpec, Random, RankedMutex, Registry, SharedClock,
    Shutdown, Supervisor, ThreadCtx, ThreadSpec, queue,
};
use ron_proto::Problem;

use crate::auth::{Authorizer, Principal};
use crate::conn::{After, Conn, Step};
use crate::failures::Failures;
use crate::head::Transport;
use crate::ids::Ids;
use crate::limits::Limits;
use crate::listener::{Accepted, Listen, Listener};
use crate::metrics::{AnswerCounts, HttpMetrics};
use crate::peer::Peer;
use crate::room::{FREE_ROW, Share};
use crate::router::Router;
use crate::shared::{AccessLog, LISTENERS, Shared};
use crate::slots::{ParkedAs, SLOT_ROW, Slots};
use crate::spans::Spans;
use crate::stream::Stream;
use crate::timer::Timer;

/// The rows of a service's topology for the threads and the queue of a front.
#[derive(Clone, Debug)]
pub struct FrontSpec {
    pub poll: &'static ThreadSpec,
    pub workers: &'static ThreadSpec,
    /// The queue between them. It holds tokens of connections; its capacity follows from
    /// `max_conns`.
    pub queue: &'static QueueSpec,
    /// Where the spans of its requests go, if somebody collects them.
    pub spans: Option<Arc<Spans>>,
}

const LISTENER_ROW: LockSpec = LockSpec {
    name: "http_listener",
    rank: 899,
    guards: "the listening sockets, until intake stops",
};
static LISTENER_LOCK: LockSpec = LISTENER_ROW;

/// The rows of the lock table that a front adds to its service's topology.
pub const FRONT_LOCKS: [LockSpec; 3] = [LISTENER_ROW, SLOT_ROW, FREE_ROW];

/// Slots beyond `max_conns`, for connections that are answered 503 and closed.
const REFUSAL_SLOTS: usize = 64;
/// Maximum number of connections accepted in one turn, before other events are handled.
const ACCEPT_TURN: usize = 64;
/// How long accepting pauses when descriptors or memory ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long accepting pauses while there is no room for more connections.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// Number of such pauses that new connections wait for room before they are refused. Clients that
/// are all cut off at once reconnect before the workers have closed their old connections. Pauses
/// are counted, not time: a poll thread that was delayed has checked no more often.
const ROOM_PAUSES: u32 = 20;
/// The longest sleep of the poll thread; every event that matters wakes it earlier.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How often the poll thread looks at the connections while all workers are busy: they wait for a worker anyway, but a client
/// may have gone.
const POLL_EVERY: Duration = Duration::from_millis(10);
/// How long open requests may still take once the front's stage stops.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Listeners with their threads; made by [`Front::start`].
#[derive(Debug)]
pub struct Front;

#[derive(Clone)]
pub struct FrontHandle {
    shared: Arc<Shared>,
    addr: SocketAddr,
    unix: Option<PathBuf>,
}

impl Front {
    /// Starts a front on bound listeners: one poll thread and `workers` workers, spawned by the
    /// supervisor. It ends when the stage of its poll thread is drained.
    ///
    /// # Panics
    /// When two routes have one method and shape.
    #[allow(clippy::too_many_arguments)] // a start-up call with the parts a front is made of
    pub fn start(
        spec: &FrontSpec,
        listen: impl Into<Listen>,
        router: Router,
        authorizer: Arc<dyn Authorizer>,
        limits: Limits,
        workers: usize,
        sup: &Supervisor,
        registry: &Registry,
        km: &KernelMetrics,
        clock: SharedClock,
        random: &dyn Random,
    ) -> io::Result<FrontHandle> {
        let listen = listen.into();
        let (poller, sockets) = (listen.poller()?, listen.poller()?);
        let listeners = Arc::new(listen.open()?);
        let addr = listeners.iter().find_map(Listener::addr);
        let addr = addr.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let unix = listeners.iter().find_map(|l| l.path().map(PathBuf::from));
        let router = router.compile();
        let metrics = HttpMetrics::new(registry, &router.routes);
        let count = limits.max_conns + REFUSAL_SLOTS;
        let slots = Slots::new(
            count,
            Timer::new(clock.now(), poller),
            limits.request_deadline,
            metrics.connections.clone(),
        );
        // Twice the slots: the token of a closed connection may still be queued together with
        // that of the next connection in its slot.
        let (sender, receiver) = queue(spec.queue, 2 * count, km);
        let (done_trigger, done) = Shutdown::pair();
        let shared = Arc::new(Shared {
            router,
            authorizer,
            public: Principal::public(),
            failures: Failures::new(limits.auth_failures_per_second, clock.now()),
            limits,
            clock,
            metrics,
            slots,
            queue: sender,
            idle: IdleWorkers::new(sockets),
            ids: Ids::new(random),
            listeners: RankedMutex::new(&LISTENER_LOCK, Some(listeners)),
            draining: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            access: AccessLog::default(),
            spans: spec.spans.clone(),
            answered: DrainMeter::default(),
            polling: AtomicBool::new(false),
            done: done_trigger,
        });
        let stop = shared.clone();
        sup.stage_token(spec.poll.stage).on_fire(move || {
            if stop.polling.load(Ordering::SeqCst) {
                stop.poller().wake();
            } else {
                stop.end(); // the poll thread, which would do it, has ended
            }
        });
        let (poll, work) = (shared.clone(), shared.clone());
        sup.spawn(spec.poll, move |ctx| Poll::new(&poll).run(ctx));
        sup.spawn_pool(spec.workers, workers.max(1), move |ctx| {
            crate::serve::work(&work, &receiver, &done, ctx);
        });
        Ok(FrontHandle { shared, addr, unix })
    }
}

impl FrontHandle {
    /// The TCP address it listens on; `0.0.0.0:0` when it has Unix sockets only.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The path under which clients reach its first Unix socket.
    pub fn unix_path(&self) -> Option<&std::path::Path> {
        self.unix.as_deref()
    }

    /// Closes the listeners. From here on new requests get 503 `draining`, except on routes that
    /// are served while draining, and every answer closes its connection.
    pub fn stop_intake(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.poller().wake();
    }

    /// Counts of its answers, which go on with it.
    pub fn answers(&self) -> Arc<AnswerCounts> {
        self.shared.metrics.answers.clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.slots.room.used()
    }

    /// Number of requests whose answers a drain waits for; long polls are answered when it begins.
    pub fn in_flight(&self) -> usize {
        self.shared.unanswered()
    }
}

impl std::fmt::Debug for FrontHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "FrontHandle({})", self.addr)
    }
}

/// The state of the poll thread.
struct Poll<'a> {
    shared: &'a Arc<Shared>,
    listeners: Option<Arc<Vec<Listener>>>,
    /// When accepting resumes after descriptors or room ran out.
    resume: Option<Instant>,
    /// Number of pauses for which a connection in the backlog has waited for room.
    waited: u32,
    /// When connections that are still open are closed; set once the front's stage stops.
    give_up: Option<Instant>,
    /// The slot at which the last idle connection was closed to make room.
    hand: usize,
}

impl<'a> Poll<'a> {
    fn new(shared: &'a Arc<Shared>) -> Self {
        let listeners = shared.listeners.lock().clone();
        let mut poll = Self {
            shared,
            listeners,
            resume: None,
            waited: 0,
            give_up: None,
            hand: 0,
        };
        poll.watch_listeners(None);
        poll
    }

    fn run(&mut self, ctx: &ThreadCtx) {
        self.shared.polling.store(true, Ordering::SeqCst);
        let _polling = PollingFlag(self.shared);
        let mut events = Vec::with_capacity(256);
        loop {
            // The sleep is announced before the wait: a time limit that another thread sets from
            // here on either is seen by this call or wakes the wait.
            let now = self.shared.clock.now();
            let limit = self
                .resume
                .or(self.give_up)
                .map(|at| at.saturating_duration_since(now));
            let cap = limit.map_or(SLEEP_MAX, |limit| limit.min(SLEEP_MAX));
            let sleep = self.shared.slots.timer.fall_asleep(now, cap);
            let all_busy = self.shared.idle.poll_thread_sleeps();
            let sleep = if all_busy {
                sleep.min(POLL_EVERY)
            } else {
                sleep
            };
            self.shared.poller().wait(&mut events, sleep);
            self.shared.slots.timer.woke();
            if self.shared.idle.poll_thread_woke() {
                self.shared.idle.sockets.poll(&mut events);
            }
            // While accepting is paused, listeners report nothing; that says nothing of the
            // backlog.
            let mut called = self.resume.is_some();
            for event in events.drain(..) {
                if event.token >= LISTENERS {
                    called = true;
                    self.accept((event.token - LISTENERS) as usize);
                } else if self.shared.socket_event(event) {
                    self.shared.push(event.token);
                }
            }
            if !called {
                self.waited = 0; // the backlog is empty: level-triggered listeners reported nothing
            }
            let now = self.shared.clock.now();
            if self.shared.slots.timer.is_due(now) {
                let shared = self.shared;
                shared.slots.sweep(now, |lease, parked, answer| {
                    shared.expired(lease, parked, answer);
                });
            }
            if self.resume.is_some_and(|at| at <= now) {
                self.watch_listeners(None);
            }
            // The order of the end: refuse new requests, close the listeners, then wait for what
            // is still open. `draining` may also have been set by `stop_intake`.
            if ctx.shutdown.is_set() {
                self.shared.draining.store(true, Ordering::SeqCst);
            }
            if self.shared.draining() {
                self.stop_accepting();
            }
            if ctx.shutdown.is_set() && self.ended(now) {
                self.shared.end();
                return;
            }
        }
    }

    /// Registers the listeners, or suspends their events for the pause.
    fn watch_listeners(&mut self, pause: Option<Duration>) {
        let Some(listeners) = &self.listeners else {
            return;
        };
        let (watch, resume_after) = match pause {
            None => (Watch::Input, ACCEPT_PAUSE),
            Some(pause) => (Watch::Nothing, pause),
        };
        let poller = self.shared.poller();
        // Listeners are level-triggered: a full front must not spin on a backlog it cannot take.
        let mut all = true;
        for (token, listener) in (LISTENERS..).zip(&**listeners) {
            let known = poller.modify(listener.id(), token, watch);
            let watched = known.or_else(|_| poller.add(listener.id(), token, watch));
            all &= watched.is_ok();
        }
        let resumes = !all || watch == Watch::Nothing;
        self.resume = resumes.then(|| self.shared.clock.now() + resume_after);
    }

    /// Whether the next connection stays in the backlog for now, because there is no room.
    fn waits_for_room(&mut self) -> bool {
        // Once per pause, however many listeners have a connection waiting.
        self.waited += u32::from(self.resume.is_none());
        self.waited <= ROOM_PAUSES
    }

    fn is_full(&self) -> bool {
        self.shared.slots.room.served() >= self.shared.limits.max_conns
    }

    /// Closes an idle connection of the peer; false when it has none.
    fn close_idle(&mut self, peer: Peer) -> bool {
        let Some(lease) = self.shared.slots.seize_idle(peer, &mut self.hand) else {
            return false;
        };
        self.shared.metrics.reject("idle_closed");
        drop(lease);
        true
    }

    /// Whether another connection of the peer is accepted. Above half of `max_conns` the peer with
    /// the most connections loses an idle one for each that it adds, and adds none when none is
    /// idle: so no peer fills a front alone. The first connection of a peer is always accepted.
    fn admits_peer(&mut self, peer: Peer) -> bool {
        let slots = &self.shared.slots;
        if slots.room.served() < self.shared.limits.max_conns / 2 {
            return true;
        }
        let (own, most_of_others) = slots.room.peer_counts(peer);
        own == 0 || own < most_of_others || self.close_idle(peer)
    }

    /// Closes an idle connection of the peer with the most connections; false when it has none.
    fn make_room(&mut self) -> bool {
        let largest_peer = self.shared.slots.room.largest_peer();
        largest_peer.is_some_and(|peer| self.close_idle(peer))
    }

    fn accept(&mut self, which: usize) {
        let Some(listeners) = self.listeners.clone() else {
            return;
        };
        let Some(listener) = listeners.get(which) else {
            return;
        };
        for turn in 0..ACCEPT_TURN {
            if self.is_full() {
                if turn > 0 {
                    return; // level-triggered: the next wait reports the rest of the backlog
                } else if !self.make_room() && self.waits_for_room() {
                    return self.watch_listeners(Some(ROOM_PAUSE));
                }
            }
            match listener.accept() {
                Accepted::Conn(stream, peer, transport) => self.admit(stream, peer, transport),
                Accepted::Gone => {}
                Accepted::Forbidden => self.shared.metrics.reject("unix_user"),
                Accepted::Empty => return,
                Accepted::Exhausted => {
                    self.shared.metrics.reject("accept_resources");
                    return self.watch_listeners(Some(ACCEPT_PAUSE));
                }
            }
        }
    }

    fn admit(&mut self, stream: Stream, addr: SocketAddr, transport: Transport) {
        let shared = self.shared;
        let peer = Peer::of(addr, transport);
        let proxy = shared.limits.trusted_proxies.is_proxy(addr, transport);
        let refused = if self.is_full() {
            Some("max_conns")
        } else if !proxy && !self.admits_peer(peer) {
            Some("peer_conns")
        } else {
            None
        };
        if let Some(reason) = refused {
            shared.metrics.reject(reason);
            // A TLS handshake costs more than the refusal is worth.
            if transport == Transport::Tls || shared.slots.room.refused() >= REFUSAL_SLOTS {
                return;
            }
        }
        let share = match refused {
            Some(_) => Share::Refused,
            None if proxy => Share::Proxy,
            None => Share::Peer(peer),
        };
        let now = shared.clock.now();
        let conn = Conn::new(stream, addr, transport, share, now);
        let Ok(mut lease) = shared.slots.insert(conn) else {
            return; // no slot even for the refusal
        };
        if let Some(reason) = refused {
            lease.after = After::Linger;
            let detail = match reason {
                "peer_conns" => "too many connections of your address",
                _ => "too many connections",
            };
            shared.finish(lease, Problem::unavailable(detail, 1).into());
        } else {
            let limits = &shared.limits;
            let limit = match lease.step {
                Step::Handshake => limits.read_timeout,
                _ => limits.idle_timeout,
            };
            let due = now + limit;
            // A handshake keeps this limit over all of its reads; an idle wait has none to keep.
            lease.due = (lease.step == Step::Handshake).then_some(due);
            shared.arm(lease, due);
        }
    }

    /// Closes the listeners and answers waiting long polls; the second time does nothing.
    fn stop_accepting(&mut self) {
        let Some(listeners) = self.listeners.take() else {
            return;
        };
        let shared = self.shared;
        for listener in &*listeners {
            shared.poller().remove(listener.id());
        }
        let kept = shared.listeners.lock().take();
        drop((kept, listeners)); // outside the lock: this also removes a Unix socket's file
        self.resume = None;
        shared.slots.seize_all(
            |_, parked, long_poll| parked == ParkedAs::Waiting && long_poll,
            |lease, _, answer| {
                shared.finish(lease, answer.unwrap_or_else(|| shared.draining_answer()));
            },
        );
    }

    /// True when no connection is open any more, or those that are have had their time.
    fn ended(&mut self, now: Instant) -> bool {
        let shared = self.shared;
        // Set before the slots are checked: a connection that closes after the check wakes us.
        shared.slots.ending.store(true, Ordering::SeqCst);
        let give_up = *self.give_up.get_or_insert(now + LAST_ANSWERS);
        let late = now >= give_up;
        shared.slots.seize_all(
            // Idle connections and unfinished requests are closed; answers are still sent.
            |conn, parked, _| late || (parked == ParkedAs::Armed && conn.step != Step::Write),
            |lease, _, _| drop(lease),
        );
        late || shared.slots.room.used() == 0
    }
}

/// Clears `polling` when the poll thread's body ends, also by a panic.
struct PollingFlag<'a>(&'a Shared);

impl Drop for PollingFlag<'_> {
    fn drop(&mut self) {
        self.0.polling.store(false, Ordering::SeqCst);
    }
}
