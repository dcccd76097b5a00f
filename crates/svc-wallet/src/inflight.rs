//! In-flight writes: one record per key of a tenant's principal, with all waiters for its answer.
//!
//! The first request with a key is the leader and goes to the ledger. A repeated request waits for
//! the same answer; a different request under the same key is refused at once. **Invariant:** every
//! waiter leaves the table exactly once, and the thread that removes it answers it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_http::Responder;
use ron_kernel::RankedMutex;
use ron_proto::ledger::{Entry, RequestKey};

use crate::topology::IN_FLIGHT;

/// A request that waits for an answer.
#[derive(Debug)]
pub struct Waiter {
    pub responder: Responder,
    /// When the request was accepted.
    pub since: Instant,
    /// Whether the caller may learn the expected nonce.
    pub reads_account: bool,
    /// Operation name, for metrics.
    pub op: &'static str,
}

/// How a request was admitted to the table.
#[derive(Debug)]
pub enum Admission {
    /// First with its key: the caller must send it to the ledger.
    Leader,
    /// Waits for the answer of the leader.
    Follower,
    /// The key is in flight with a different request; the waiter is returned.
    Mismatch(Waiter),
}

/// A waiter whose deadline is reached, removed from the table.
#[derive(Debug)]
pub struct LateWaiter {
    pub key: RequestKey,
    pub waiter: Waiter,
    /// Whether it was the leader.
    pub led: bool,
    /// Whether the request was sent to the ledger, so that its outcome is unknown.
    pub sent: bool,
}

#[derive(Debug)]
struct InFlightRequest {
    request: Arc<[Entry]>,
    leader: Option<Waiter>,
    followers: Vec<Waiter>,
    sent: bool,
}

/// The waiters of a finished request.
#[derive(Debug, Default)]
pub struct FinishedRequest {
    /// The waiter of the first request, unless its deadline has passed.
    pub leader: Option<Waiter>,
    /// The waiters of repeated requests.
    pub followers: Vec<Waiter>,
}

#[derive(Debug)]
pub struct InFlightTable(RankedMutex<BTreeMap<RequestKey, InFlightRequest>>);

impl Default for InFlightTable {
    fn default() -> Self {
        Self(RankedMutex::new(&IN_FLIGHT, BTreeMap::new()))
    }
}

impl InFlightTable {
    pub fn enter(&self, key: &RequestKey, request: &Arc<[Entry]>, waiter: Waiter) -> Admission {
        #[cfg(mutant = "in_flight")]
        // checks whether the key is free, releases the lock, and takes the key as if it still were
        if ron_kernel::mutant("in_flight") && !self.holds(key) {
            self.0.lock().remove(key);
        }
        let mut all = self.0.lock();
        match all.entry(key.clone()) {
            Slot::Vacant(slot) => {
                slot.insert(InFlightRequest {
                    request: Arc::clone(request),
                    leader: Some(waiter),
                    followers: Vec::new(),
                    sent: false,
                });
                Admission::Leader
            }
            Slot::Occupied(mut slot) => {
                if !same_request(&slot.get().request, request) {
                    return Admission::Mismatch(waiter);
                }
                slot.get_mut().followers.push(waiter);
                Admission::Follower
            }
        }
    }

    /// Whether the key is in flight.
    pub fn holds(&self, key: &RequestKey) -> bool {
        self.0.lock().contains_key(key)
    }

    /// Whether any key is in flight.
    pub fn has_any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Marks requests as sent. `false` for one without waiters: it is removed and must not be sent.
    pub fn send(&self, keys: &[&RequestKey]) -> Vec<bool> {
        let mut all = self.0.lock();
        keys.iter()
            .map(|key| match all.get_mut(*key) {
                Some(f) if f.leader.is_some() || !f.followers.is_empty() => {
                    #[cfg(mutant = "sent")]
                    // the ledger receives it, and the watch thread does not know
                    if ron_kernel::mutant("sent") {
                        return true;
                    }
                    f.sent = true;
                    true
                }
                _ => {
                    all.remove(*key);
                    false
                }
            })
            .collect()
    }

    /// Removes requests and returns their remaining waiters, in the order of `keys`.
    pub fn finish(&self, keys: &[&RequestKey]) -> Vec<FinishedRequest> {
        #[cfg(mutant = "complete")]
        // the waiters are removed first and the request later: a waiter that arrives in between is
        // lost
        if ron_kernel::mutant("complete") {
            let out = |f: &mut InFlightRequest| FinishedRequest {
                leader: f.leader.take(),
                followers: std::mem::take(&mut f.followers),
            };
            let taken = |key: &&RequestKey| self.0.lock().get_mut(*key).map(out);
            let finished = keys.iter().map(|k| taken(k).unwrap_or_default()).collect();
            keys.iter().for_each(|k| drop(self.0.lock().remove(*k)));
            return finished;
        }
        let mut all = self.0.lock();
        keys.iter()
            .map(|key| {
                all.remove(*key)
                    .map_or_else(FinishedRequest::default, |f| FinishedRequest {
                        leader: f.leader,
                        followers: f.followers,
                    })
            })
            .collect()
    }

    /// Removes the waiters whose deadline is within `margin`; their requests stay in flight.
    pub fn late(&self, now: Instant, margin: Duration) -> Vec<LateWaiter> {
        let over = |w: &Waiter| w.responder.deadline().at() <= now + margin;
        let mut late = Vec::new();
        let mut all = self.0.lock();
        for (key, request) in all.iter_mut() {
            let sent = request.sent;
            let mut take = |waiter, led| {
                late.push(LateWaiter {
                    key: key.clone(),
                    waiter,
                    led,
                    sent,
                });
            };
            if request.leader.as_ref().is_some_and(over)
                && let Some(waiter) = request.leader.take()
            {
                take(waiter, true);
            }
            for waiter in request.followers.extract_if(.., |w| over(w)) {
                take(waiter, false);
            }
        }
        late
    }
}

/// Whether two requests ask for the same operations. The ceilings that the policy adds are ignored.
pub fn same_request(a: &[Entry], b: &[Entry]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(x, y)| x == y || x.clone().compared() == y.clone().compared())
}

/// The watch thread answers a waiter this long before its deadline, ahead of the HTTP front's own
/// timeout.
pub const MARGIN: Duration = Duration::from_millis(40);

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::Deadline;
    use ron_proto::ledger::Details;

    fn entry(key: &str, amount: u128, ceiling: Option<u128>) -> Arc<[Entry]> {
        Arc::new([Entry::Burn {
            tenant: "t".parse().unwrap(),
            principal: "p".parse().unwrap(),
            key: key.parse().unwrap(),
            from: "a".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: ron_proto::Amount(amount),
            up_to: None,
            nonce: None,
            details: Details::default(),
            batch: None,
            daily_ceiling: ceiling.map(ron_proto::Amount),
            budgets: Vec::new(),
        }])
    }

    fn key(key: &str) -> RequestKey {
        RequestKey {
            tenant: "t".parse().unwrap(),
            principal: "p".parse().unwrap(),
            key: key.parse().unwrap(),
        }
    }

    fn waiter(ms: u64) -> (Waiter, ron_kernel::ReplyWaiter<ron_http::Response>) {
        let (responder, answer) = Responder::detached(Deadline::within(Duration::from_millis(ms)));
        let since = responder.deadline().at();
        let waiter = Waiter {
            responder,
            since,
            reads_account: true,
            op: "issue",
        };
        (waiter, answer)
    }

    #[test]
    fn the_same_request_waits_and_another_is_turned_away() {
        let in_flight = InFlightTable::default();
        let key = key("k");
        let enter = |e: &Arc<[Entry]>| in_flight.enter(&key, e, waiter(1_000).0);
        assert!(matches!(enter(&entry("k", 1, Some(5))), Admission::Leader));
        assert!(matches!(
            enter(&entry("k", 1, Some(9))),
            Admission::Follower
        ));
        assert!(matches!(
            enter(&entry("k", 2, Some(5))),
            Admission::Mismatch(_)
        ));
        assert!(in_flight.holds(&key));
        assert_eq!(in_flight.send(&[&key]), [true]);
        let finished = in_flight.finish(&[&key]).remove(0);
        assert!(finished.leader.is_some() && finished.followers.len() == 1);
        assert!(!in_flight.holds(&key));
        assert!(matches!(enter(&entry("k", 2, None)), Admission::Leader));
    }

    #[test]
    fn late_waiters_leave_once_and_a_request_without_waiters_is_not_sent() {
        let in_flight = InFlightTable::default();
        let key = key("k");
        let request = entry("k", 1, None);
        let (first, _a) = waiter(100);
        let (second, _b) = waiter(10_000);
        let start = first.since.checked_sub(Duration::from_millis(100)).unwrap();
        in_flight.enter(&key, &request, first);
        in_flight.enter(&key, &request, second);
        assert!(in_flight.late(start, MARGIN).is_empty());
        let late = in_flight.late(start + Duration::from_millis(80), MARGIN);
        assert_eq!(late.len(), 1);
        assert!(late[0].led && !late[0].sent);
        assert_eq!(in_flight.send(&[&key]), [true], "the second still waits");
        let late = in_flight.late(start + Duration::from_secs(10), MARGIN);
        assert_eq!((late.len(), late[0].led, late[0].sent), (1, false, true));
        let finished = in_flight.finish(&[&key]).remove(0);
        assert!(finished.leader.is_none() && finished.followers.is_empty());
        in_flight.enter(&key, &request, waiter(0).0);
        in_flight.late(start + Duration::from_mins(1), MARGIN);
        assert_eq!(in_flight.send(&[&key]), [false]);
        assert!(!in_flight.holds(&key));
    }
}
