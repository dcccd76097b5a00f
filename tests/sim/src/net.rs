//! The simulated network: each host has its own `Net`, so that both ends of a connection know whom they talk to. Segments
//! arrive after a delay that the seed draws, in the order in which they were sent. A connection may be cut at any byte,
//! or fall silent; hosts may be parted, and the sockets of a killed process are dead.
//!
//! Two rules keep libraries above it from blocking each other in the machine, which may hold their own locks at these
//! calls: a wait with a limit of zero, and the end of a socket (drop, shutdown), are no points. The state's lock is never
//! held over an operation of the simulator at which another thread may run.

mod host;
mod poll;
mod sockets;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ron_sim::{Object, fault, time};

pub use host::Host;
use poll::Waiter;
use wire::Pipe;

/// How often the network does what, in a million, and how slow it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Segments that take up to `slow` longer than the usual 50 microseconds.
    pub slow_segments: u32,
    pub slow: Duration,
    /// The host whose segments alone are slow; all hosts when absent.
    pub slow_at: Option<IpAddr>,
    /// Writes after which the connection is lost, at any of their bytes.
    pub cuts: u32,
    /// Writes after which nothing arrives any more, in both directions, and neither end learns it.
    pub half_open: u32,
    /// Connects that are refused.
    pub refusals: u32,
}

/// The usual time of a segment.
const SEGMENT: Duration = Duration::from_micros(50);

/// All hosts and connections of a world.
#[derive(Clone, Debug, Default)]
pub struct SimNet(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    weather: Weather,
    /// Number of the last socket. Both ends of a connection have an even number and the next.
    last: u64,
    /// Segments under way, by their arrival and order: the end that receives them.
    arrivals: BTreeMap<(u64, u64), u64>,
    order: u64,
    /// What each end receives.
    pipes: BTreeMap<u64, Pipe>,
    listeners: BTreeMap<SocketAddr, Backlog>,
    /// By the number of the socket.
    watched: BTreeMap<u64, Arc<Waiter>>,
    parted: BTreeSet<(IpAddr, IpAddr)>,
    port: u16,
    /// What requests begin with that are noted, and those that were sent.
    noted: Option<&'static str>,
    requests: Vec<Sent>,
}

/// A request that a host has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub from: IpAddr,
    pub line: String,
    pub at: Instant,
}

#[derive(Debug)]
struct Backlog {
    number: u64,
    most: usize,
    waiting: Vec<(u64, SocketAddr)>,
}

fn now() -> u64 {
    ns(time::elapsed())
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl SimNet {
    pub fn new(weather: Weather) -> Self {
        let net = Self::default();
        net.state().weather = weather;
        net
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state at the present moment, with everything delivered that has arrived.
    fn now(&self) -> (MutexGuard<'_, State>, u64) {
        let now = now();
        let mut state = self.state();
        state.deliver(now);
        (state, now)
    }

    pub fn host(&self, ip: impl Into<IpAddr>) -> Host {
        Host::new(self.clone(), ip.into())
    }

    /// Changes the weather from now on; connections that fell silent stay so.
    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Requests that begin so are noted from now on.
    pub fn note_requests(&self, begin: &'static str) {
        self.state().noted = Some(begin);
    }

    pub fn requests(&self) -> Vec<Sent> {
        self.state().requests.clone()
    }

    /// Nothing gets from one of the hosts to the other, until [`SimNet::join`].
    pub fn part(&self, a: IpAddr, b: IpAddr) {
        self.state().parted.insert((a.min(b), a.max(b)));
    }

    /// Whether nothing gets from one of the hosts to the other.
    pub fn are_parted(&self, a: IpAddr, b: IpAddr) -> bool {
        self.state().parted.contains(&(a.min(b), a.max(b)))
    }

    /// What was held back between the hosts is on its way.
    pub fn join(&self, a: IpAddr, b: IpAddr) {
        let (mut state, now) = self.now();
        state.parted.remove(&(a.min(b), a.max(b)));
        let between = |pipe: &Pipe| [(a, b), (b, a)].contains(&(pipe.from, pipe.to));
        let ends: Vec<u64> = state
            .pipes
            .iter()
            .filter(|(_, p)| between(p))
            .map(|(n, _)| *n)
            .collect();
        for end in ends {
            state.release(end, now);
        }
    }

    /// The sockets of a host are dead, as those of a process that was killed: its listeners are gone, and the other ends
    /// of its connections learn it when a segment arrives.
    pub fn sever(&self, host: IpAddr) {
        let (mut state, now) = self.now();
        let listeners = state.listeners.extract_if(.., |addr, _| addr.ip() == host);
        let waiting: Vec<u64> = listeners
            .flat_map(|(_, l)| l.waiting)
            .map(|(end, _)| end)
            .collect();
        for end in state.ends_of(host).chain(waiting).collect::<Vec<_>>() {
            state.close(end, now, true);
        }
    }

    /// The connections of a host are lost, and it goes on.
    pub fn cut(&self, host: IpAddr) {
        let (mut state, now) = self.now();
        for end in state.ends_of(host).collect::<Vec<_>>() {
            state.close(end, now, true);
        }
    }

    /// Ends of connections that a host has open.
    pub fn open_ends(&self, host: IpAddr) -> usize {
        self.state().ends_of(host).count()
    }
}

impl State {
    /// The ends of connections that a host has.
    fn ends_of(&self, host: IpAddr) -> impl Iterator<Item = u64> {
        let own = self.pipes.iter().filter(move |(_, pipe)| pipe.to == host);
        own.map(|(number, _)| *number)
    }

    fn note_request(&mut self, from: IpAddr, bytes: &[u8]) {
        if let Some(begin) = self.noted
            && bytes.starts_with(begin.as_bytes())
        {
            let line = bytes.split(|byte| *byte == b'\r').next();
            let line = String::from_utf8_lossy(line.unwrap_or_default());
            self.requests.push(Sent {
                from,
                line: line.into_owned(),
                at: time::now(),
            });
        }
    }
}

/// What happens to the bytes of one write.
enum Fate {
    Arrives,
    /// The connection is lost after so many of its bytes.
    Cut(usize),
    HalfOpen,
}

impl Weather {
    fn fate(&self, length: usize) -> Fate {
        if self.cuts > 0 && fault::happens("a connection is cut", self.cuts) {
            return Fate::Cut(fault::random() as usize % (length + 1));
        }
        if self.half_open > 0 && fault::happens("a connection falls silent", self.half_open) {
            return Fate::HalfOpen;
        }
        Fate::Arrives
    }

    /// How long the next segment takes.
    fn delay(&self, a: IpAddr, b: IpAddr) -> u64 {
        let here = self.slow_at.is_none_or(|host| host == a || host == b);
        let slow = here
            && self.slow_segments > 0
            && fault::happens("a segment is slow", self.slow_segments);
        let more = if slow {
            fault::random() % ns(self.slow).max(1)
        } else {
            0
        };
        ns(SEGMENT) + more
    }
}

/// An object of the simulator that threads wait for, shared by a socket and its state.
fn object(kind: &'static str) -> Arc<Object> {
    Arc::new(Object::new(kind, ""))
}
