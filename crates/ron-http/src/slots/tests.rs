//! Events, phases and ownership of connections.

use std::time::Duration;

use ron_kernel::{Net as _, OsNet};

use super::*;
use crate::head::Transport;
use crate::stream::Stream;

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

const LONG: Duration = Duration::from_secs(60);

fn parked(slots: &Slots, wanted: Readiness) -> (u64, bool) {
    let (socket, _) = crate::stream::pair();
    let peer = ([127, 0, 0, 1], 1).into();
    let share = Share::Peer(Peer::of(peer, Transport::Tcp));
    let conn = Conn::new(Stream::new(socket), peer, Transport::Tcp, share, now());
    let lease = slots.insert(conn).expect("room");
    (lease.token, again(lease, wanted))
}

fn now() -> Instant {
    ron_kernel::SystemClock::shared().now()
}

fn again(lease: Lease<'_>, wanted: Readiness) -> bool {
    lease.park_armed(wanted, now() + LONG, now())
}

fn slots() -> Slots {
    let registry = ron_kernel::Registry::new("test");
    let metrics = crate::metrics::HttpMetrics::new(&registry, &[]);
    let poller = OsNet.poller().expect("a poller");
    let timer = Timer::new(ron_kernel::SystemClock::shared().now(), poller);
    Slots::new(4, timer, LONG, metrics.connections.clone())
}

#[test]
fn an_event_for_a_parked_connection_queues_it_once() {
    let slots = slots();
    let (token, met) = parked(&slots, INPUT);
    assert!(!met);
    assert!(!slots.ready(token, OUTPUT, now()), "not what it wants");
    assert!(slots.ready(token, INPUT, now()));
    assert!(!slots.ready(token, INPUT, now()), "it is queued already");
    let lease = slots.take_queued(token).expect("queued");
    assert!(again(lease, INPUT), "the second event was kept");
    let lease = slots.take_queued(token).expect("queued");
    assert!(!again(lease, INPUT), "and is used up");
}

#[test]
fn an_event_during_a_lease_is_kept() {
    let slots = slots();
    let (token, _) = parked(&slots, INPUT);
    slots.ready(token, INPUT, now());
    let lease = slots.take_queued(token).expect("queued");
    assert!(!slots.ready(token, INPUT, now()));
    assert!(!slots.ready(token, OUTPUT, now()));
    assert!(again(lease, OUTPUT), "room came before it was parked for");
    let lease = slots.take_queued(token).expect("queued");
    assert!(again(lease, INPUT), "so did bytes");
    let lease = slots.take_queued(token).expect("queued");
    assert!(!again(lease, OUTPUT));
    assert!(slots.ready(token, OUTPUT, now()));
}

#[test]
fn the_end_of_input_is_reported_until_it_is_read() {
    let slots = slots();
    let (token, _) = parked(&slots, INPUT);
    assert!(slots.ready(token, ENDED, now()));
    for _ in 0..3 {
        let lease = slots.take_queued(token).expect("queued");
        assert!(again(lease, INPUT), "the end has not been read");
    }
    let lease = slots.take_queued(token).expect("queued");
    assert!(!again(lease, OUTPUT), "it says nothing about room");
    let (other, met) = {
        let lease = slots.seize_one(token);
        drop(lease);
        parked(&slots, INPUT)
    };
    assert!(!met && other & 0xffff_ffff == token & 0xffff_ffff);
    assert!(
        !slots.ready(token, INPUT, now()),
        "an event of a closed connection"
    );
}

impl Slots {
    fn seize_one(&self, token: u64) -> Lease<'_> {
        let index = (token & 0xffff_ffff) as usize;
        self.seize(index, |_, _, _| true).expect("parked").0
    }
}
