//! Listeners and connections of a host.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::net::{
    AcceptError, Connection, Direction, Half, ListeningSocket, SharedConnection, SocketId,
};
use ron_sim::{Object, note, wait_for};

use super::wire::Segment;
use super::{Fate, SimNet, now, ns};

#[derive(Debug)]
pub struct Listener {
    pub net: SimNet,
    pub number: u64,
    pub addr: SocketAddr,
    pub object: Object,
}

impl ListeningSocket for Listener {
    fn id(&self) -> SocketId<'_> {
        SocketId::Number(self.number)
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.addr)
    }

    fn listen(&self, backlog: u32) -> io::Result<()> {
        let mut state = self.net.state();
        if let Some(own) = state.listeners.get_mut(&self.addr) {
            own.most = backlog as usize;
        }
        Ok(())
    }

    fn accept(&self) -> Result<(SharedConnection, Option<SocketAddr>), AcceptError> {
        self.object.point("accepts at");
        let (mut state, _) = self.net.now();
        let own = state.listeners.get_mut(&self.addr);
        let own = own.filter(|own| own.number == self.number && !own.waiting.is_empty());
        let (number, peer) = own.ok_or(AcceptError::Empty)?.waiting.remove(0);
        if !state.pipes.contains_key(&number) {
            return Err(AcceptError::Gone);
        }
        drop(state);
        Ok((Arc::new(End::new(self.net.clone(), number)), Some(peer)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (mut state, now) = self.net.now();
        let own = state.listeners.get(&self.addr);
        if own.is_none_or(|own| own.number != self.number) {
            return; // the host was severed, and its next process may listen here
        }
        let own = state.listeners.remove(&self.addr);
        for (end, _) in own.into_iter().flat_map(|own| own.waiting) {
            state.close(end, now, true);
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    net: SimNet,
    number: u64,
    object: Object,
}

impl End {
    pub fn new(net: SimNet, number: u64) -> Self {
        let object = Object::new("connection", "");
        Self {
            net,
            number,
            object,
        }
    }

    const fn other(&self) -> u64 {
        self.number ^ 1
    }

    /// Whether a read or a write can make progress; otherwise what to wait for, and until when at most.
    fn progress(&self, direction: Direction) -> Result<(), (Arc<Object>, Option<u64>)> {
        let (state, _) = self.net.now();
        let Some(own) = state.pipes.get(&self.number) else {
            return Ok(()); // lost: the operation fails at once
        };
        let ready = match direction {
            Direction::Read => own.is_readable(),
            Direction::Write => {
                own.reset
                    || state
                        .pipes
                        .get(&self.other())
                        .is_none_or(|other| other.room() > 0)
            }
        };
        let next = own.next().filter(|at| *at < u64::MAX);
        if ready {
            Ok(())
        } else {
            Err((own.waits.clone(), next))
        }
    }
}

/// A short text of bytes for the record of the run: two runs that send other bytes differ there.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Connection for End {
    fn id(&self) -> SocketId<'_> {
        SocketId::Number(self.number)
    }

    fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.object.point("reads from");
        let (mut state, _) = self.net.now();
        let own = state
            .pipes
            .get_mut(&self.number)
            .ok_or(ErrorKind::ConnectionReset)?;
        let count = own.read(into)?;
        // A read of no bytes makes no room: a sender that waits for some is woken by the next read that does.
        if count.is_some_and(|count| count > 0) {
            state.made_room(self.number);
        }
        Ok(count)
    }

    fn write(&self, bytes: &[u8], _: bool) -> io::Result<Option<usize>> {
        self.object.point("writes to");
        let (weather, ends) = {
            let state = self.net.state();
            let own = state.pipes.get(&self.number);
            (state.weather, own.map(|own| (own.from, own.to)))
        };
        let (from, to) = ends.ok_or(ErrorKind::BrokenPipe)?;
        let (fate, delay) = (weather.fate(bytes.len()), weather.delay(from, to));
        let (mut state, now) = self.net.now();
        state.note_request(to, bytes);
        if state.pipes.get(&self.number).is_none_or(|own| own.reset) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let Some(other) = state.pipes.get_mut(&self.other()) else {
            // The other end is gone, which this one learns by an answer to what it sends.
            state.send(self.number, Segment::Reset, now, 2 * delay);
            return Ok(Some(bytes.len()));
        };
        if other.closed {
            return Err(ErrorKind::BrokenPipe.into()); // this end has ended its half
        }
        let count = bytes.len().min(other.room());
        other.full |= count < bytes.len();
        if count == 0 {
            return Ok(None);
        }
        note(&format!(
            "sends {count} bytes, {:016x}",
            sum(&bytes[..count])
        ));
        let (arrive, cut) = match fate {
            Fate::Cut(at) => (at.min(count), true),
            _ => (count, false),
        };
        if let Fate::HalfOpen = fate {
            state.silence(self.number);
        }
        if arrive > 0 {
            let segment = Segment::Bytes(bytes[..arrive].to_vec());
            state.send(self.other(), segment, now, delay);
        }
        if cut {
            state.send(self.other(), Segment::Reset, now, delay);
            state.send(self.number, Segment::Reset, now, delay);
            // What is written before either end learns it must not close the gap.
            state.silence(self.number);
        }
        Ok(Some(count))
    }

    fn wait(&self, direction: Direction, limit: Option<Duration>) -> io::Result<bool> {
        if limit == Some(Duration::ZERO) {
            return Ok(self.progress(direction).is_ok()); // no point, see the module's page
        }
        self.object.point("looks at");
        let end = limit.map(|limit| now().saturating_add(ns(limit)));
        loop {
            let (object, next) = match self.progress(direction) {
                Ok(()) => return Ok(true),
                Err(wait) => wait,
            };
            if end.is_some_and(|end| end <= now()) {
                return Ok(false);
            }
            let until = end.into_iter().chain(next).min();
            wait_for("waits for", &[&object], until);
        }
    }

    fn shutdown(&self, half: Half) {
        let (mut state, now) = self.net.now();
        let delay = ns(super::SEGMENT);
        if let Some(other) = state.pipes.get_mut(&self.other())
            && !std::mem::replace(&mut other.closed, true)
        {
            state.send(self.other(), Segment::End, now, delay);
        }
        if half == Half::Both {
            state.stop_receiving(self.number);
        }
    }

    fn peer_uid(&self) -> io::Result<u32> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let (mut state, now) = self.net.now();
        state.close(self.number, now, false);
    }
}
