//! The event feed over its thread: what it owes at a drain.

use std::time::Duration;

use ron_http::Responder;
use ron_kernel::queue::bare_queue;
use ron_kernel::{Deadline, KernelMetrics, Registry, Shutdown, Supervisor, SystemClock};

use super::threads::{rig, soon};
use crate::feed::{self, Feed, Poll};
use crate::metrics::Metrics;
use crate::reader::Reader;
use crate::topology::{EVENTS, NOTIFY_EVENTS, POLLS, TOPOLOGY};

#[test]
fn a_drained_feed_has_no_polls() {
    let rig = rig();
    let registry = Registry::new("ron-ledger");
    let metrics = Metrics::new(&registry);
    let sup = Supervisor::new(
        &TOPOLOGY,
        KernelMetrics::new(&registry),
        SystemClock::shared(),
    );
    let (sender, polls) = bare_queue(&POLLS, 8);
    let (_notify, notifications) = bare_queue(&NOTIFY_EVENTS, 1);
    let (ledger, of_thread) = (rig.ledger.clone(), metrics.clone());
    sup.spawn(&EVENTS, move |ctx| {
        feed::run(ctx, &polls, &notifications, &ledger, &of_thread);
    });
    let (responder, answer) = Responder::detached(soon());
    let feed = Feed::new(sender);
    feed.park(Poll {
        responder,
        reader: Reader::OfAll,
        after: rig.ledger.head_seq(),
        limit: 1,
        until: soon(),
    });
    let limit = soon();
    let (_never_set, never) = Shutdown::pair();
    while metrics.polls.get() == 0 {
        assert!(!limit.expired(), "the poll is parked");
        never.wait(Deadline::within(Duration::from_millis(1)));
    }
    sup.drain(Duration::from_secs(5));
    assert!(answer.wait(soon()).is_ok(), "it is answered");
    assert_eq!(metrics.polls.get(), 0);
}
