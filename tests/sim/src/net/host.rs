//! The network as one host sees it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::net::{Address, Net, SharedConnection, SharedListener, SharedPoller};
use ron_sim::{Object, fault, time};

use super::poll::SimPoller;
use super::sockets::{End, Listener};
use super::wire::Pipe;
use super::{Backlog, SimNet, now, ns};

/// How often a connect is tried while nothing answers, as the operating system does.
const RETRY: Duration = Duration::from_secs(1);

/// One host: what a process on it takes for its `Net`.
#[derive(Clone, Debug)]
pub struct Host {
    net: SimNet,
    pub ip: IpAddr,
}

/// What became of a try to connect.
enum Try {
    Connected(u64),
    Refused,
    /// Nothing answers: parted hosts, a full backlog.
    Silent,
}

impl Host {
    pub const fn new(net: SimNet, ip: IpAddr) -> Self {
        Self { net, ip }
    }

    fn attempt(&self, to: SocketAddr) -> Try {
        let (mut state, _) = self.net.now();
        let pair = (self.ip.min(to.ip()), self.ip.max(to.ip()));
        if state.parted.contains(&pair) {
            return Try::Silent;
        }
        let Some(listener) = state.listeners.get(&to) else {
            return Try::Refused;
        };
        if listener.waiting.len() >= listener.most {
            return Try::Silent;
        }
        let listener_number = listener.number;
        let number = state.last + 2;
        state.last = number;
        state.port = state.port.wrapping_add(1) | 0x8000;
        let from = SocketAddr::new(self.ip, state.port);
        state.pipes.insert(number, Pipe::new(to.ip(), self.ip));
        state.pipes.insert(number + 1, Pipe::new(self.ip, to.ip()));
        if let Some(listener) = state.listeners.get_mut(&to) {
            listener.waiting.push((number + 1, from));
        }
        if let Some(waiter) = state.watched.get(&listener_number) {
            waiter.called();
        }
        Try::Connected(number)
    }
}

impl Net for Host {
    fn bind(&self, address: &Address) -> io::Result<SharedListener> {
        let Address::Tcp(addr) = address else {
            return Err(ErrorKind::Unsupported.into());
        };
        let mut state = self.net.state();
        let mut addr = *addr;
        if addr.port() == 0 {
            state.port = state.port.wrapping_add(1) | 0x8000;
            addr.set_port(state.port);
        }
        if state.listeners.contains_key(&addr) {
            return Err(ErrorKind::AddrInUse.into());
        }
        state.last += 2;
        let number = state.last;
        let backlog = Backlog {
            number,
            most: 128,
            waiting: Vec::new(),
        };
        state.listeners.insert(addr, backlog);
        let object = Object::new("listener", "");
        Ok(Arc::new(Listener {
            net: self.net.clone(),
            number,
            addr,
            object,
        }))
    }

    fn connect(&self, address: &Address, limit: Option<Duration>) -> io::Result<SharedConnection> {
        let Address::Tcp(to) = address else {
            return Err(ErrorKind::Unsupported.into());
        };
        let weather = self.net.state().weather;
        let end = limit.map_or(u64::MAX, |limit| now().saturating_add(ns(limit)));
        let sleep_until =
            |at: u64| time::sleep(Duration::from_nanos(at.min(end).saturating_sub(now())));
        loop {
            // A round trip: there and, below, back again.
            sleep_until(now() + weather.delay(self.ip, to.ip()));
            let refused =
                weather.refusals > 0 && fault::happens("a connect is refused", weather.refusals);
            let tried = if refused {
                Try::Refused
            } else {
                self.attempt(*to)
            };
            match tried {
                Try::Silent => sleep_until(now() + ns(RETRY)),
                Try::Refused => {
                    sleep_until(now() + weather.delay(self.ip, to.ip()));
                    return Err(ErrorKind::ConnectionRefused.into());
                }
                Try::Connected(number) => {
                    let connection = Arc::new(End::new(self.net.clone(), number));
                    sleep_until(now() + weather.delay(self.ip, to.ip()));
                    return Ok(connection);
                }
            }
            if now() >= end {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    fn poller(&self) -> io::Result<SharedPoller> {
        Ok(Arc::new(SimPoller::new(self.net.clone())))
    }
}
