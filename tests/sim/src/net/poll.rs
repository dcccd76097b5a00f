//! Readiness of many sockets: edge-triggered for connections, level-triggered for listeners.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ron_kernel::net::{Event, Poller, Readiness, SocketId, Watch};
use ron_sim::{Object, wait_for};

use super::{SimNet, State, now, ns};

/// What a poller knows; shared with the sockets that it watches.
#[derive(Debug)]
pub struct Waiter {
    object: Object,
    seen: Mutex<PollState>,
}

#[derive(Debug, Default)]
struct PollState {
    watched: BTreeMap<u64, (u64, Watch)>,
    /// Changes that no thread has taken, by token.
    changes: BTreeMap<u64, Readiness>,
    /// Arrivals for its sockets that may still be under way.
    expected: Vec<u64>,
    woken: bool,
}

impl Waiter {
    fn seen(&self) -> MutexGuard<'_, PollState> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment for one of its sockets is under way.
    pub fn expect(&self, at: u64) {
        self.seen().expected.push(at);
        self.object.wake_all();
    }

    pub fn changed(&self, number: u64, readiness: Readiness) {
        let mut seen = self.seen();
        if let Some((token, watch)) = seen.watched.get(&number).copied()
            && let Some(readiness) = watch.of_change(readiness)
        {
            seen.changes.entry(token).or_default().add(readiness);
            drop(seen);
            self.object.wake_all();
        }
    }

    /// A listener has a connection.
    pub fn called(&self) {
        self.object.wake_all();
    }

    /// Appends what is ready, up to the capacity of `events`.
    fn take(&self, state: &State, events: &mut Vec<Event>) {
        let mut seen = self.seen();
        while events.len() < events.capacity()
            && let Some((token, readiness)) = seen.changes.pop_first()
        {
            events.push(Event { token, readiness });
        }
        for listener in state.listeners.values().filter(|l| !l.waiting.is_empty()) {
            if events.len() < events.capacity()
                && let Some((token, Watch::Input)) = seen.watched.get(&listener.number)
            {
                let readiness = Readiness {
                    input: true,
                    ..Readiness::default()
                };
                events.push(Event {
                    token: *token,
                    readiness,
                });
            }
        }
    }
}

#[derive(Debug)]
pub struct SimPoller {
    net: SimNet,
    waiter: Arc<Waiter>,
}

impl SimPoller {
    pub fn new(net: SimNet) -> Self {
        let waiter = Waiter {
            object: Object::new("poller", ""),
            seen: Mutex::default(),
        };
        Self {
            net,
            waiter: Arc::new(waiter),
        }
    }

    /// The state when a watch begins counts as a change, and what is under way will be one.
    fn is_watched(&self, state: &State, number: u64) {
        if let Some(pipe) = state.pipes.get(&number) {
            let output = state
                .pipes
                .get(&(number ^ 1))
                .is_none_or(|other| other.room() > 0);
            self.waiter.changed(number, pipe.readiness(output));
            if let Some(at) = pipe.next().filter(|at| *at < u64::MAX) {
                self.waiter.expect(at);
            }
        }
    }

    fn take(&self, events: &mut Vec<Event>) {
        let (state, _) = self.net.now();
        self.waiter.take(&state, events);
    }
}

fn number(socket: SocketId<'_>) -> u64 {
    match socket {
        SocketId::Number(number) => number,
        SocketId::Descriptor(_) => panic!("a socket of the operating system"),
    }
}

impl Poller for SimPoller {
    fn add(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()> {
        self.waiter.object.point("adds a socket to");
        let number = number(socket);
        let (mut state, _) = self.net.now();
        state.watched.insert(number, self.waiter.clone());
        self.waiter.seen().watched.insert(number, (token, watch));
        self.is_watched(&state, number);
        Ok(())
    }

    fn modify(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()> {
        self.waiter.object.point("changes a socket of");
        let number = number(socket);
        let (state, _) = self.net.now();
        let mut seen = self.waiter.seen();
        let known = seen.watched.get_mut(&number);
        *known.ok_or(io::ErrorKind::NotFound)? = (token, watch);
        drop(seen);
        self.is_watched(&state, number);
        self.waiter.object.wake_all();
        Ok(())
    }
    fn remove(&self, socket: SocketId<'_>) {
        let number = number(socket);
        self.net.state().watched.remove(&number);
        self.waiter.seen().watched.remove(&number);
    }

    fn wait(&self, events: &mut Vec<Event>, limit: Duration) {
        self.waiter.object.point("polls");
        let end = now().saturating_add(ns(limit));
        loop {
            self.take(events);
            let now = now();
            let mut seen = self.waiter.seen();
            let woken = std::mem::take(&mut seen.woken);
            if woken || !events.is_empty() || now >= end {
                return;
            }
            seen.expected.retain(|at| *at > now);
            let until = seen.expected.iter().copied().chain([end]).min();
            drop(seen);
            wait_for("waits for sockets of", &[&self.waiter.object], until);
        }
    }

    fn poll(&self, events: &mut Vec<Event>) {
        self.waiter.object.point("looks at");
        self.take(events);
    }

    fn wake(&self) {
        self.waiter.object.point("wakes");
        self.waiter.seen().woken = true;
        self.waiter.object.wake_all();
    }
}
