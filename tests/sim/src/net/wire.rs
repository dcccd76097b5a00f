//! Bytes under way, and what has arrived.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;

use ron_kernel::net::Readiness;
use ron_sim::Object;

use super::State;

/// Bytes of a direction that are under way or unread.
pub const CAPACITY: usize = 64 << 10;

#[derive(Debug)]
pub enum Segment {
    Bytes(Vec<u8>),
    /// The other end sends no more.
    End,
    /// The connection is lost.
    Reset,
}

/// What one end receives.
#[derive(Debug)]
pub struct Pipe {
    pub from: IpAddr,
    pub to: IpAddr,
    /// Segments with their arrival; `u64::MAX` for one that is held back.
    under_way: VecDeque<(u64, Segment)>,
    bytes: VecDeque<u8>,
    ended: bool,
    /// A write found too little room; the sender is told when there is some.
    pub full: bool,
    pub reset: bool,
    /// Nothing that is sent from now on arrives.
    pub silent: bool,
    /// The sender has ended its half.
    pub closed: bool,
    /// Threads that wait for this end.
    pub waits: Arc<Object>,
}

impl Pipe {
    pub fn new(from: IpAddr, to: IpAddr) -> Self {
        Self {
            from,
            to,
            under_way: VecDeque::new(),
            bytes: VecDeque::new(),
            ended: false,
            full: false,
            reset: false,
            silent: false,
            closed: false,
            waits: super::object("connection"),
        }
    }

    pub fn is_readable(&self) -> bool {
        !self.bytes.is_empty() || self.ended || self.reset
    }

    /// Room for further bytes.
    pub fn room(&self) -> usize {
        let under_way = self.under_way.iter().map(|(_, segment)| match segment {
            Segment::Bytes(bytes) => bytes.len(),
            _ => 0,
        });
        CAPACITY.saturating_sub(self.bytes.len() + under_way.sum::<usize>())
    }

    /// When the next segment arrives.
    pub fn next(&self) -> Option<u64> {
        self.under_way.front().map(|(at, _)| *at)
    }

    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        if self.bytes.is_empty() {
            return match (self.reset, self.ended) {
                (true, _) => Err(ErrorKind::ConnectionReset.into()),
                (_, true) => Ok(Some(0)),
                _ => Ok(None),
            };
        }
        let count = self.bytes.len().min(into.len());
        for (to, byte) in into.iter_mut().zip(self.bytes.drain(..count)) {
            *to = byte;
        }
        Ok(Some(count))
    }

    pub fn readiness(&self, output: bool) -> Readiness {
        Readiness {
            input: self.is_readable(),
            output,
            ended: self.ended || self.reset,
        }
    }
}

impl State {
    /// Puts a segment on its way to `end`; it arrives after `delay`, and after those before it.
    pub fn send(&mut self, end: u64, segment: Segment, now: u64, delay: u64) {
        let Some(pipe) = self.pipes.get_mut(&end) else {
            return;
        };
        if pipe.silent {
            return;
        }
        let pair = (pipe.from.min(pipe.to), pipe.from.max(pipe.to));
        let before = pipe.under_way.back().map_or(0, |(at, _)| *at);
        let at = if self.parted.contains(&pair) {
            u64::MAX
        } else {
            (now + delay).max(before)
        };
        pipe.under_way.push_back((at, segment));
        self.expect(end, at);
    }

    /// Nothing that either end of a connection sends from now on arrives.
    pub fn silence(&mut self, end: u64) {
        for end in [end, end ^ 1] {
            if let Some(pipe) = self.pipes.get_mut(&end) {
                pipe.silent = true;
            }
        }
    }

    /// Lets the threads that wait for `end` know of an arrival.
    fn expect(&mut self, end: u64, at: u64) {
        if at == u64::MAX {
            return;
        }
        self.order += 1;
        self.arrivals.insert((at, self.order), end);
        if let Some(pipe) = self.pipes.get(&end) {
            pipe.waits.wake_all();
        }
        if let Some(waiter) = self.watched.get(&end) {
            waiter.expect(at);
        }
    }

    /// What was held back for `end` is on its way.
    pub fn release(&mut self, end: u64, now: u64) {
        let Some(pipe) = self.pipes.get_mut(&end) else {
            return;
        };
        let held = pipe.under_way.iter_mut().filter(|(at, _)| *at == u64::MAX);
        let at = now + super::ns(super::SEGMENT);
        let count = held.map(|segment| segment.0 = at).count();
        for _ in 0..count {
            self.expect(end, at);
        }
    }

    /// Takes in everything that has arrived.
    pub fn deliver(&mut self, now: u64) {
        while let Some(first) = self.arrivals.first_entry()
            && first.key().0 <= now
        {
            let end = first.remove();
            let Some(pipe) = self.pipes.get_mut(&end) else {
                continue; // the receiving end is gone
            };
            let Some((_, segment)) = pipe.under_way.pop_front() else {
                continue;
            };
            match segment {
                Segment::Bytes(bytes) => pipe.bytes.extend(bytes),
                Segment::End => pipe.ended = true,
                Segment::Reset => pipe.reset = true,
            }
            let output = pipe.reset;
            let readiness = pipe.readiness(output);
            pipe.waits.wake_all();
            self.changed(end, readiness);
        }
    }

    /// An end receives no more, by its own will.
    pub fn stop_receiving(&mut self, end: u64) {
        if let Some(own) = self.pipes.get_mut(&end) {
            own.ended = true;
            own.waits.wake_all();
            let readiness = own.readiness(false);
            self.changed(end, readiness);
        }
    }

    /// An end has read: the other one may write again, if it found too little room.
    pub fn made_room(&mut self, end: u64) {
        let own = self.pipes.get_mut(&end).filter(|own| !own.silent);
        if !own.is_some_and(|own| std::mem::take(&mut own.full)) {
            return;
        }
        let output = Readiness {
            output: true,
            ..Readiness::default()
        };
        self.changed(end ^ 1, output);
        if let Some(other) = self.pipes.get(&(end ^ 1)) {
            other.waits.wake_all();
        }
    }

    /// Reports a change of a socket to its poller.
    pub fn changed(&self, number: u64, readiness: Readiness) {
        if let Some(waiter) = self.watched.get(&number) {
            waiter.changed(number, readiness);
        }
    }

    /// The end is gone: its process has closed it (or was killed: `lost`), and the other end learns it.
    pub fn close(&mut self, end: u64, now: u64, lost: bool) {
        let Some(own) = self.pipes.remove(&end) else {
            return;
        };
        self.watched.remove(&end);
        // Unread bytes make the operating system reset the connection.
        let unread = !own.bytes.is_empty() || !own.under_way.is_empty();
        let segment = if lost || unread {
            Segment::Reset
        } else {
            Segment::End
        };
        let delay = super::ns(super::SEGMENT);
        let ended = self.pipes.get(&(end ^ 1)).is_some_and(|pipe| pipe.closed);
        if !ended || matches!(segment, Segment::Reset) {
            self.send(end ^ 1, segment, now, delay);
        }
        if let Some(other) = self.pipes.get_mut(&(end ^ 1)) {
            other.closed = true;
        }
    }
}
