//! What is free and who has the rest: connection slots and places for long polls, by peer.

use std::collections::BTreeMap;

use ron_kernel::{LockSpec, RankedMutex};

use crate::conn::Share;
use crate::peer::Peer;

/// The lock of the list of free slots: taken when a connection or a long poll begins or ends.
pub(crate) const FREE_ROW: LockSpec = LockSpec {
    name: "http_free",
    rank: 901,
    guards: "the free connection slots, and what each peer has of them and of the long polls",
};
static FREE_LOCK: LockSpec = FREE_ROW;

/// The free slots, and what each peer has.
#[derive(Debug)]
pub(crate) struct Room {
    slots: usize,
    taken: RankedMutex<Taken>,
}

#[derive(Debug)]
struct Taken {
    free: Vec<u32>,
    peers: BTreeMap<Peer, Shares>,
    /// Connections that are told that there is no room.
    refused: usize,
    polls: usize,
}

/// What one peer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shares {
    conns: usize,
    polls: usize,
}

impl Taken {
    fn change(&mut self, peer: Peer, change: impl FnOnce(&mut Shares)) {
        let shares = self.peers.entry(peer).or_default();
        change(shares);
        if *shares == Shares::default() {
            self.peers.remove(&peer);
        }
    }
}

impl Room {
    pub(crate) fn new(slots: usize) -> Self {
        let taken = Taken {
            free: (0..slots as u32).rev().collect(),
            peers: BTreeMap::new(),
            refused: 0,
            polls: 0,
        };
        Self {
            slots,
            taken: RankedMutex::new(&FREE_LOCK, taken),
        }
    }

    /// A free slot for a connection of this share.
    pub(crate) fn take(&self, share: Share) -> Option<u32> {
        let mut taken = self.taken.lock();
        let index = taken.free.pop()?;
        match share {
            Share::Peer(peer) => taken.change(peer, |shares| shares.conns += 1),
            Share::Proxy => {}
            Share::Refused => taken.refused += 1,
        }
        Some(index)
    }

    /// Gives the slot back.
    pub(crate) fn give(&self, index: u32, share: Share) {
        let mut taken = self.taken.lock();
        taken.free.push(index);
        match share {
            Share::Peer(peer) => taken.change(peer, |shares| shares.conns -= 1),
            Share::Proxy => {}
            Share::Refused => taken.refused -= 1,
        }
    }

    /// Slots that are not free.
    pub(crate) fn used(&self) -> usize {
        self.slots - self.taken.lock().free.len()
    }

    /// Connections that are served: all but those that are told that there is no room.
    pub(crate) fn served(&self) -> usize {
        let taken = self.taken.lock();
        self.slots - taken.free.len() - taken.refused
    }

    /// How many connections are told that there is no room.
    pub(crate) fn refused(&self) -> usize {
        self.taken.lock().refused
    }

    /// Connections of the peer, and those of the other peer that has most.
    pub(crate) fn standing(&self, peer: Peer) -> (usize, usize) {
        let taken = self.taken.lock();
        let own = taken.peers.get(&peer).map_or(0, |shares| shares.conns);
        let others = taken.peers.iter().filter(|(other, _)| **other != peer);
        let most = others.map(|(_, shares)| shares.conns).max();
        (own, most.unwrap_or(0))
    }

    /// The peer with most connections.
    pub(crate) fn greediest(&self) -> Option<Peer> {
        let taken = self.taken.lock();
        let most = taken.peers.iter().max_by_key(|(_, shares)| shares.conns);
        most.map(|(peer, _)| *peer)
    }

    /// Takes a place among the long polls, at most `most` in all and `share` of one peer.
    pub(crate) fn take_poll(&self, peer: Peer, most: usize, share: usize) -> bool {
        let mut taken = self.taken.lock();
        let own = taken.peers.get(&peer).map_or(0, |shares| shares.polls);
        let there_is_room = taken.polls < most && own < share;
        if there_is_room {
            taken.polls += 1;
            taken.change(peer, |shares| shares.polls += 1);
        }
        there_is_room
    }

    /// Gives the place back.
    pub(crate) fn give_poll(&self, peer: Peer) {
        let mut taken = self.taken.lock();
        taken.polls -= 1;
        taken.change(peer, |shares| shares.polls -= 1);
    }

    /// Long polls whose answer somebody owes.
    pub(crate) fn polls(&self) -> usize {
        self.taken.lock().polls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn what_peers_take_is_counted_and_given_back() {
        let [a, b] = [1, 2].map(|n| Peer::V4(Ipv4Addr::new(10, 0, 0, n)));
        let room = Room::new(4);
        let one = room.take(Share::Peer(a)).expect("free");
        let two = room.take(Share::Peer(a)).expect("free");
        let three = room.take(Share::Peer(b)).expect("free");
        let told = room.take(Share::Refused).expect("free");
        assert_eq!(room.take(Share::Proxy), None);
        assert_eq!((room.used(), room.served(), room.refused()), (4, 3, 1));
        assert_eq!((room.standing(a), room.standing(b)), ((2, 1), (1, 2)));
        assert_eq!(room.greediest(), Some(a));
        assert!(room.take_poll(b, 2, 1) && !room.take_poll(b, 2, 1));
        assert!(room.take_poll(a, 2, 1) && !room.take_poll(a, 2, 9));
        assert_eq!(room.polls(), 2);
        room.give_poll(a);
        room.give_poll(b);
        room.give(told, Share::Refused);
        for (index, peer) in [(one, a), (two, a), (three, b)] {
            room.give(index, Share::Peer(peer));
        }
        assert_eq!((room.used(), room.served(), room.refused()), (0, 0, 0));
        assert!(room.taken.lock().peers.is_empty(), "nobody is remembered");
    }
}
