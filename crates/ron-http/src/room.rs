//! Accounting of connection slots and places for long polls and uploads: the free ones, and those of
//! each peer or tenant.

use std::collections::BTreeMap;

use ron_kernel::{LockSpec, RankedMutex};
use ron_proto::Tenant;

use crate::peer::Peer;

/// The lock of the list of free slots: taken when a connection, a long poll or an
/// upload begins or ends.
pub(crate) const FREE_ROW: LockSpec = LockSpec {
    name: "http_free",
    rank: 901,
    guards: "the free connection slots, what each peer has of them and of the long polls, and each tenant's uploads",
};
static FREE_LOCK: LockSpec = FREE_ROW;

/// To whom a connection is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Peer(Peer),
    /// A proxy in front of many clients: counted in the total and for no peer.
    Proxy,
    /// A connection that is answered 503 because there is no room; not counted as served.
    Refused,
}

/// The free slots, and the shares of each peer and tenant.
#[derive(Debug)]
pub(crate) struct Room {
    slots: usize,
    taken: RankedMutex<Places>,
}

#[derive(Debug)]
struct Places {
    free: Vec<u32>,
    peers: BTreeMap<Peer, Shares>,
    /// Connections that hold a slot only to be answered 503.
    refused: usize,
    polls: usize,
    /// Bodies of each tenant that are being written to disk; tenants without any are removed.
    uploads: BTreeMap<Tenant, usize>,
}

/// The connections and long polls of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shares {
    conns: usize,
    polls: usize,
}

impl Places {
    fn change(&mut self, peer: Peer, change: impl FnOnce(&mut Shares)) {
        let shares = self.peers.entry(peer).or_default();
        change(shares);
        // Peers without a share are removed, so that the map is bounded by the slots and polls.
        if *shares == Shares::default() {
            self.peers.remove(&peer);
        }
    }
}

impl Room {
    pub(crate) fn new(slots: usize) -> Self {
        let taken = Places {
            // Reversed because slots are taken from the end: the lowest number first.
            free: (0..slots as u32).rev().collect(),
            peers: BTreeMap::new(),
            refused: 0,
            polls: 0,
            uploads: BTreeMap::new(),
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

    /// Connections that are served: all but those that are answered 503 for want of room.
    pub(crate) fn served(&self) -> usize {
        let taken = self.taken.lock();
        self.slots - taken.free.len() - taken.refused
    }

    /// Number of connections that are being answered 503 for want of room.
    pub(crate) fn refused(&self) -> usize {
        self.taken.lock().refused
    }

    /// Number of connections of the peer, and of the other peer that has the most.
    pub(crate) fn peer_counts(&self, peer: Peer) -> (usize, usize) {
        let taken = self.taken.lock();
        let own = taken.peers.get(&peer).map_or(0, |shares| shares.conns);
        let others = taken.peers.iter().filter(|(other, _)| **other != peer);
        let most = others.map(|(_, shares)| shares.conns).max();
        (own, most.unwrap_or(0))
    }

    /// The peer with the most connections.
    pub(crate) fn largest_peer(&self) -> Option<Peer> {
        let taken = self.taken.lock();
        let most = taken.peers.iter().max_by_key(|(_, shares)| shares.conns);
        most.map(|(peer, _)| *peer)
    }

    /// Takes a place among the long polls: at most `most` in total and `share` for one peer.
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

    /// Frees a place among the long polls.
    pub(crate) fn give_poll(&self, peer: Peer) {
        let mut taken = self.taken.lock();
        taken.polls -= 1;
        taken.change(peer, |shares| shares.polls -= 1);
    }

    /// Takes a place among `most` uploads. A tenant has no more places than are free, so that it
    /// never has more than half of them and another tenant finds one.
    pub(crate) fn take_upload(&self, tenant: &Tenant, most: usize) -> bool {
        let mut taken = self.taken.lock();
        let own = taken.uploads.get(tenant).copied().unwrap_or(0);
        let free = most.saturating_sub(taken.uploads.values().sum());
        let there_is_room = own < free;
        if there_is_room {
            taken.uploads.insert(tenant.clone(), own + 1);
        }
        there_is_room
    }

    /// Frees a place among the uploads.
    pub(crate) fn give_upload(&self, tenant: &Tenant) {
        let mut taken = self.taken.lock();
        if let Some(own) = taken.uploads.get_mut(tenant) {
            *own -= 1;
            if *own == 0 {
                taken.uploads.remove(tenant);
            }
        }
    }

    /// Number of long polls that are not answered yet.
    pub(crate) fn polls(&self) -> usize {
        self.taken.lock().polls
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn shares_of_peers_are_counted_and_freed() {
        let [a, b] = [1, 2].map(|n| Peer::V4(Ipv4Addr::new(10, 0, 0, n)));
        let room = Room::new(4);
        let one = room.take(Share::Peer(a)).expect("free");
        let two = room.take(Share::Peer(a)).expect("free");
        let three = room.take(Share::Peer(b)).expect("free");
        let told = room.take(Share::Refused).expect("free");
        assert_eq!(room.take(Share::Proxy), None);
        assert_eq!((room.used(), room.served(), room.refused()), (4, 3, 1));
        assert_eq!((room.peer_counts(a), room.peer_counts(b)), ((2, 1), (1, 2)));
        assert_eq!(room.largest_peer(), Some(a));
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
        assert!(room.taken.lock().peers.is_empty(), "no peer is remembered");
    }

    #[test]
    fn no_tenant_takes_all_uploads() {
        let room = Room::new(1);
        let fill = |tenant: &str| {
            let tenant: Tenant = tenant.parse().expect("a tenant");
            (0..99).filter(|_| room.take_upload(&tenant, 16)).count()
        };
        assert_eq!(["a", "b", "c", "d", "e"].map(fill), [8, 4, 2, 1, 1]);
        let a: Tenant = "a".parse().expect("a tenant");
        for (tenant, own) in [("a", 8), ("b", 4), ("c", 2), ("d", 1), ("e", 1)] {
            let tenant = tenant.parse().expect("a tenant");
            (0..own).for_each(|_| room.give_upload(&tenant));
        }
        assert!(
            room.taken.lock().uploads.is_empty(),
            "no tenant is remembered"
        );
        assert!(room.take_upload(&a, 1) && !room.take_upload(&a, 1));
    }
}
