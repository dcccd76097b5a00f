//! Refused authentications by client and reason, in memory: a metric cannot have a label for each client. Totals by reason are in
//! `auth_failures_total`, and lines with peers in the log.

use std::collections::BTreeMap;

use ron_http::Peer;
use ron_kernel::{RankedMutex, SharedClock};
use ron_proto::Timestamp;
use ron_proto::passport::{RefusedClient, RefusedClients};

use crate::topology::REFUSED;

/// Maximum pairs of client and reason that are counted. With more, the pair that was refused longest ago is dropped.
const PAIRS_MAX: usize = 4096;

#[derive(Debug)]
pub struct ClientRefusals {
    counts: RankedMutex<BTreeMap<(String, &'static str), Count>>,
    since: Timestamp,
    clock: SharedClock,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    refused: u64,
    last: Timestamp,
    peer: Peer,
}

impl ClientRefusals {
    pub fn new(clock: SharedClock) -> Self {
        Self {
            counts: RankedMutex::new(&REFUSED, BTreeMap::new()),
            since: Timestamp(clock.unix_ms()),
            clock,
        }
    }

    /// Counts a refusal. `client` is a name of the configuration or the policy, never text of the caller alone.
    pub fn note(&self, client: &str, reason: &'static str, peer: Peer) {
        let last = Timestamp(self.clock.unix_ms());
        let mut counts = self.counts.lock();
        let pair = (client.to_owned(), reason);
        if counts.len() >= PAIRS_MAX && !counts.contains_key(&pair) {
            let oldest = counts.iter().min_by_key(|(_, count)| count.last);
            if let Some(oldest) = oldest.map(|(pair, _)| pair.clone()) {
                counts.remove(&oldest);
            }
        }
        let count = counts.entry(pair).or_insert(Count {
            refused: 0,
            last,
            peer,
        });
        (count.refused, count.last, count.peer) = (count.refused + 1, last, peer);
    }

    pub fn list(&self) -> RefusedClients {
        let counts = self.counts.lock().clone();
        let one = |((client, reason), count): ((String, &'static str), Count)| RefusedClient {
            client_id: client,
            reason: reason.to_owned(),
            count: count.refused,
            last: count.last,
            peer: count.peer.to_string(),
        };
        let mut refused: Vec<RefusedClient> = counts.into_iter().map(one).collect();
        refused.sort_by_key(|one| std::cmp::Reverse(one.last));
        RefusedClients {
            since: self.since,
            refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ron_kernel::ManualClock;

    use super::*;

    #[test]
    fn refusals_are_counted_by_client_and_reason_within_a_bound() {
        let clock = ManualClock::at(1_000);
        let refusals = ClientRefusals::new(clock.clone());
        let peer = |n: u8| Peer::V4([10, 0, 0, n].into());
        refusals.note("ci", "client_secret", peer(1));
        refusals.note("shop", "client_secret", peer(1));
        clock.advance(Duration::from_secs(1));
        refusals.note("ci", "client_secret", peer(2));
        let list = refusals.list();
        let brief = |one: &RefusedClient| (one.client_id.clone(), one.count, one.peer.clone());
        let all: Vec<_> = list.refused.iter().map(brief).collect();
        let named = |name: &str, n, peer: &str| (name.to_owned(), n, peer.to_owned());
        assert_eq!(
            all,
            [named("ci", 2, "10.0.0.2"), named("shop", 1, "10.0.0.1")]
        );
        assert_eq!(
            (list.since, list.refused[0].last),
            (Timestamp(1_000), Timestamp(2_000))
        );

        for n in 0..PAIRS_MAX {
            clock.advance(Duration::from_millis(1));
            refusals.note(&format!("c{n}"), "client_secret", peer(3));
        }
        let list = refusals.list();
        assert_eq!(list.refused.len(), PAIRS_MAX);
        assert_eq!(list.refused[0].client_id, format!("c{}", PAIRS_MAX - 1));
        assert!(list.refused.iter().all(|one| one.client_id != "shop"));
    }
}
