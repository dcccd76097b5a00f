//! Failed authentications by peer: checking signatures costs more than sending them, so the
//! requests of a peer that fails too often are refused before their credentials are checked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_kernel::TokenBuckets;

use crate::peer::Peer;

/// Maximum number of peers whose failures are counted at one time.
const PEERS_MAX: usize = 4096;

/// Counts failures by peer.
#[derive(Debug)]
pub(crate) struct Failures {
    buckets: Option<TokenBuckets>,
    start: Instant,
    /// Milliseconds since the start until which some peer may be over its rate. While it lies in
    /// the past, no request takes the lock of the buckets. A hint only, hence relaxed: a request
    /// that reads an old value is checked as usual.
    hot_until: AtomicU64,
}

impl Failures {
    /// `per_second` failures a second for each peer, in bursts of twice as many; 0 for no limit.
    pub(crate) fn new(per_second: u32, start: Instant) -> Self {
        let buckets = (per_second > 0)
            .then(|| TokenBuckets::new(per_second, per_second.saturating_mul(2), PEERS_MAX));
        Self {
            buckets,
            start,
            hot_until: AtomicU64::new(0),
        }
    }

    /// The time that the peer must wait, when it failed too often.
    pub(crate) fn wait(&self, peer: impl FnOnce() -> Peer, now: Instant) -> Option<Duration> {
        let hot = self.hot_until.load(Ordering::Relaxed);
        if hot == 0 || self.ms(now) > hot {
            return None;
        }
        self.buckets.as_ref()?.empty(&peer().to_string(), now)
    }

    /// An authentication of the peer failed.
    pub(crate) fn count(&self, peer: Peer, now: Instant) {
        let Some(buckets) = &self.buckets else { return };
        let name = peer.to_string();
        let _ = buckets.take(&name, now); // `wait` refuses the next request, if this was one too many
        if let Some(wait) = buckets.empty(&name, now) {
            let until = self.ms(now + wait) + 1;
            self.hot_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_peer_that_fails_too_often_waits_and_others_do_not() {
        let start = ron_kernel::Clock::now(&ron_kernel::SystemClock);
        let failures = Failures::new(10, start);
        let [bad, good] = [1, 2].map(|n| Peer::V4(Ipv4Addr::new(127, 0, 0, n)));
        for _ in 0..20 {
            assert_eq!(failures.wait(|| bad, start), None);
            failures.count(bad, start);
        }
        assert!(failures.wait(|| bad, start).is_some());
        assert_eq!(failures.wait(|| good, start), None);
        let later = start + Duration::from_millis(150);
        assert_eq!(failures.wait(|| bad, later), None);
        let unlimited = Failures::new(0, start);
        unlimited.count(bad, start);
        assert_eq!(unlimited.wait(|| bad, start), None);
    }
}
