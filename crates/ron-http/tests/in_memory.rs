//! A front and a client over connections in memory: the trait of sockets is enough for both, and
//! neither opens a socket of the operating system.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a network of its own, in real time

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ron_http::{Call, ClientConfig, HttpClient, Limits, Listen, Method, Need, Response, Route};
use ron_kernel::Deadline;
use ron_kernel::net::{
    AcceptError, Address, Connection, Direction, Event, Half, ListeningSocket, Net, Poller,
    Readiness, SharedConnection, SharedListener, SharedPoller, SocketId, Watch,
};
use support::{router, serve_on};

/// Bytes that one direction of a connection holds.
const CAPACITY: usize = 4096;

/// A network in which one lock guards everything.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<(Mutex<World>, Condvar)>);

#[derive(Debug, Default)]
struct World {
    /// Numbers of sockets; both ends of a connection, its number and the next.
    next: u64,
    /// Backlogs of listeners by port, each with the listener's number.
    listeners: BTreeMap<u16, (u64, VecDeque<u64>)>,
    /// Bytes that wait at each end of a connection, and whether more can come.
    pipes: BTreeMap<u64, Pipe>,
    pollers: Vec<Watched>,
}

/// What a poller knows.
#[derive(Debug, Default)]
struct Watched {
    /// The token and the watch of each socket that was added.
    tokens: BTreeMap<u64, (u64, Watch)>,
    /// Changes that no thread has taken, by token.
    changes: BTreeMap<u64, Readiness>,
    woken: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    ended: bool,
}

impl World {
    /// Records a change of a socket for its poller.
    fn changed(&mut self, number: u64, readiness: Readiness) {
        for poller in &mut self.pollers {
            if let Some((token, watch)) = poller.tokens.get(&number)
                && let Some(readiness) = watch.of_change(readiness)
            {
                poller.changes.entry(*token).or_default().add(readiness);
            }
        }
    }

    /// The state of a socket when a watch begins counts as a change.
    fn is_watched(&mut self, number: u64) {
        let Some(pipe) = self.pipes.get(&number) else {
            return;
        };
        let other = self.pipes.get(&(number ^ 1));
        let readiness = Readiness {
            input: !pipe.bytes.is_empty() || pipe.ended,
            output: other.is_none_or(|other| other.bytes.len() < CAPACITY),
            ended: pipe.ended,
        };
        self.changed(number, readiness);
    }

    fn take(&mut self, poller: usize, events: &mut Vec<Event>) {
        let poller = &mut self.pollers[poller];
        for (token, readiness) in std::mem::take(&mut poller.changes) {
            events.push(Event { token, readiness });
        }
        for (number, waiting) in self.listeners.values() {
            if let Some((token, Watch::Input)) = poller.tokens.get(number)
                && !waiting.is_empty()
            {
                let readiness = INPUT;
                let token = *token;
                events.push(Event { token, readiness });
            }
        }
    }
}

const INPUT: Readiness = Readiness {
    input: true,
    output: false,
    ended: false,
};
const OUTPUT: Readiness = Readiness {
    input: false,
    output: true,
    ended: false,
};
const ENDED: Readiness = Readiness {
    input: true,
    output: false,
    ended: true,
};

impl Memory {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.0.lock().expect("no thread has panicked")
    }

    /// Changes the world and lets waiting threads look at it again.
    fn change<R>(&self, act: impl FnOnce(&mut World) -> R) -> R {
        let result = act(&mut self.world());
        self.0.1.notify_all();
        result
    }

    /// Waits until `ready` says so; false when the limit has passed.
    fn until(&self, limit: Option<Duration>, mut ready: impl FnMut(&mut World) -> bool) -> bool {
        let limit = limit.unwrap_or(Duration::from_secs(3600));
        let waited = self
            .0
            .1
            .wait_timeout_while(self.world(), limit, |world| !ready(world));
        !waited.expect("no thread has panicked").1.timed_out()
    }
}

fn number(socket: SocketId<'_>) -> u64 {
    match socket {
        SocketId::Number(number) => number,
        SocketId::Descriptor(_) => panic!("a socket of the operating system"),
    }
}

impl Net for Memory {
    fn bind(&self, address: &Address) -> io::Result<SharedListener> {
        let Address::Tcp(addr) = address else {
            return Err(ErrorKind::Unsupported.into());
        };
        let number = self.change(|world| {
            world.next += 2;
            let listener = (world.next, VecDeque::new());
            world.listeners.insert(addr.port(), listener);
            world.next
        });
        Ok(Arc::new(Listener {
            net: self.clone(),
            number,
            addr: *addr,
        }))
    }

    fn connect(&self, address: &Address, _: Option<Duration>) -> io::Result<SharedConnection> {
        let Address::Tcp(addr) = address else {
            return Err(ErrorKind::Unsupported.into());
        };
        let number = self.change(|world| {
            world.next += 2;
            let number = world.next;
            let listener = world.listeners.get_mut(&addr.port());
            listener
                .ok_or(ErrorKind::ConnectionRefused)?
                .1
                .push_back(number + 1);
            for end in [number, number + 1] {
                world.pipes.insert(end, Pipe::default());
            }
            Ok::<_, io::Error>(number)
        })?;
        Ok(Arc::new(End {
            net: self.clone(),
            number,
        }))
    }

    fn poller(&self) -> io::Result<SharedPoller> {
        let at = self.change(|world| {
            world.pollers.push(Watched::default());
            world.pollers.len() - 1
        });
        let net = self.clone();
        Ok(Arc::new(MemoryPoller { net, at }))
    }
}

#[derive(Debug)]
struct MemoryPoller {
    net: Memory,
    at: usize,
}

#[derive(Debug)]
struct Listener {
    net: Memory,
    number: u64,
    addr: SocketAddr,
}

impl ListeningSocket for Listener {
    fn id(&self) -> SocketId<'_> {
        SocketId::Number(self.number)
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.addr)
    }

    fn listen(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn accept(&self) -> Result<(SharedConnection, Option<SocketAddr>), AcceptError> {
        let mut world = self.net.world();
        let waiting = world.listeners.get_mut(&self.addr.port());
        let number = waiting.and_then(|(_, waiting)| waiting.pop_front());
        let end = End {
            net: self.net.clone(),
            number: number.ok_or(AcceptError::Empty)?,
        };
        Ok((Arc::new(end), Some(self.addr)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.net
            .change(|world| world.listeners.remove(&self.addr.port()));
    }
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    net: Memory,
    number: u64,
}

impl End {
    const fn other(&self) -> u64 {
        self.number ^ 1
    }
}

impl Connection for End {
    fn id(&self) -> SocketId<'_> {
        SocketId::Number(self.number)
    }

    fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.net.change(|world| {
            let pipe = world.pipes.entry(self.number).or_default();
            if pipe.bytes.is_empty() {
                return Ok(pipe.ended.then_some(0));
            }
            let count = pipe.bytes.len().min(into.len());
            for (to, byte) in into.iter_mut().zip(pipe.bytes.drain(..count)) {
                *to = byte;
            }
            world.changed(self.other(), OUTPUT);
            Ok(Some(count))
        })
    }

    fn write(&self, bytes: &[u8], _: bool) -> io::Result<Option<usize>> {
        self.net.change(|world| {
            let pipe = world.pipes.get_mut(&self.other());
            let pipe = pipe.ok_or(ErrorKind::BrokenPipe)?;
            let count = bytes.len().min(CAPACITY - pipe.bytes.len());
            if count == 0 {
                return Ok(None);
            }
            pipe.bytes.extend(&bytes[..count]);
            world.changed(self.other(), INPUT);
            Ok(Some(count))
        })
    }

    fn wait(&self, direction: Direction, limit: Option<Duration>) -> io::Result<bool> {
        Ok(self.net.until(limit, |world| match direction {
            Direction::Read => world
                .pipes
                .get(&self.number)
                .is_none_or(|pipe| pipe.ended || !pipe.bytes.is_empty()),
            Direction::Write => world
                .pipes
                .get(&self.other())
                .is_none_or(|pipe| pipe.bytes.len() < CAPACITY),
        }))
    }

    fn shutdown(&self, half: Half) {
        self.net.change(|world| {
            let ends = [self.other(), self.number];
            for end in &ends[..if half == Half::Write { 1 } else { 2 }] {
                if let Some(pipe) = world.pipes.get_mut(end) {
                    pipe.ended = true;
                }
                world.changed(*end, ENDED);
            }
        });
    }

    fn peer_uid(&self) -> io::Result<u32> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shutdown(Half::Write);
        self.net.change(|world| {
            world.pipes.remove(&self.number);
            for poller in &mut world.pollers {
                poller.tokens.remove(&self.number);
            }
        });
    }
}

impl Poller for MemoryPoller {
    fn add(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()> {
        self.net.change(|world| {
            let number = number(socket);
            world.pollers[self.at].tokens.insert(number, (token, watch));
            world.is_watched(number);
        });
        Ok(())
    }

    fn modify(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()> {
        self.net.change(|world| {
            let number = number(socket);
            let known = world.pollers[self.at].tokens.get_mut(&number);
            *known.ok_or(ErrorKind::NotFound)? = (token, watch);
            world.is_watched(number);
            Ok(())
        })
    }

    fn remove(&self, socket: SocketId<'_>) {
        let number = number(socket);
        self.net
            .change(|world| world.pollers[self.at].tokens.remove(&number));
    }

    fn wait(&self, events: &mut Vec<Event>, limit: Duration) {
        self.net.until(Some(limit), |world| {
            world.take(self.at, events);
            std::mem::take(&mut world.pollers[self.at].woken) || !events.is_empty()
        });
    }

    fn poll(&self, events: &mut Vec<Event>) {
        self.net.world().take(self.at, events);
    }

    fn wake(&self) {
        self.net.change(|world| world.pollers[self.at].woken = true);
    }
}

#[test]
fn a_front_and_a_client_work_over_connections_in_memory() {
    let sockets = || {
        let open = std::fs::read_dir("/proc/self/fd").expect("procfs");
        let targets = open
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let is_socket = |target: &std::path::PathBuf| {
            let name = target.to_string_lossy();
            name.starts_with("socket:") || name.contains("eventpoll")
        };
        targets.filter(is_socket).count()
    };
    let before = sockets();
    let net = Memory::default();
    let addr = SocketAddr::from(([192, 0, 2, 1], 80));
    let listener = net.bind(&Address::Tcp(addr)).expect("a free port");
    let echo = Route::post("/echo", Need::Public, |request| {
        Ok(Response::bytes(
            200,
            "application/octet-stream",
            request.body.clone(),
        ))
    });
    let shared = Arc::new(net.clone());
    let served = serve_on(
        Listen::on(shared.clone()).tcp(listener, None),
        router().add(echo.body_bytes(&[])),
        Limits::default(),
        2,
    );
    assert_eq!(served.addr(), addr);
    let client = HttpClient::new(ClientConfig {
        net: shared,
        ..ClientConfig::default()
    });
    let url = format!("http://{addr}/echo");
    // More bytes than a connection holds: both ends wait for room and are woken by it.
    let body: Vec<u8> = (0..10 * CAPACITY).map(|at| at as u8).collect();
    let began = Instant::now();
    for _ in 0..3 {
        let reply = client
            .call(Call {
                body: Some(body.clone()),
                method: Method::POST,
                content_type: Some("application/octet-stream"),
                ..Call::get(&url, Deadline::within(Duration::from_secs(20)))
            })
            .expect("an answer");
        assert_eq!((reply.status, reply.body == body), (200, true));
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "no wait was lost"
    );
    assert_eq!(sockets(), before, "no socket of the operating system");
    let url = "http://192.0.2.2:81/";
    let refused = client.call(Call::get(url, Deadline::within(Duration::from_secs(5))));
    assert!(refused.is_err());
    drop(client);
    served.sup.drain(Duration::from_secs(5));
    assert!(net.world().pipes.is_empty(), "every connection is closed");
}
