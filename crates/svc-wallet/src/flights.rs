//! Writes under way: one flight per (principal, key), with everybody who waits for its answer.
//!
//! The first request with a key leads: it goes to the ledger. The same request again waits for the same answer;
//! another request under the key is refused at once. **Invariant:** every waiter leaves the table exactly once,
//! and is answered by whoever takes it out.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_http::Responder;
use ron_kernel::RankedMutex;
use ron_proto::ledger::{Entry, EntryKey, PrincipalName};

use crate::topology::FLIGHTS;

/// Whose key.
pub type FlightKey = (PrincipalName, EntryKey);

/// Somebody who waits for an answer.
#[derive(Debug)]
pub struct Waiter {
    /// Where the answer goes.
    pub responder: Responder,
    /// When the request was accepted.
    pub since: Instant,
    /// May the caller learn the expected nonce?
    pub reads_account: bool,
    /// Operation name, for metrics.
    pub op: &'static str,
}

/// What became of a request that wanted in.
#[derive(Debug)]
pub enum Entered {
    /// It leads: send it to the ledger.
    Leads,
    /// It waits for the one that leads.
    Follows,
    /// The key is under way with another request.
    Differs(Waiter),
}

/// A waiter whose time is over, taken out of the table.
#[derive(Debug)]
pub struct Late {
    /// Of which flight.
    pub key: FlightKey,
    /// The waiter.
    pub waiter: Waiter,
    /// It led the flight.
    pub led: bool,
    /// The flight is with the ledger: its outcome is open.
    pub sent: bool,
}

#[derive(Debug)]
struct Flight {
    request: Arc<[Entry]>,
    leader: Option<Waiter>,
    followers: Vec<Waiter>,
    sent: bool,
}

/// Everybody who waited, the leader first.
#[derive(Debug, Default)]
pub struct Landed {
    /// Who sent it first, unless its time is over.
    pub leader: Option<Waiter>,
    /// Who sent the same again.
    pub followers: Vec<Waiter>,
}

/// The table.
#[derive(Debug)]
pub struct Flights(RankedMutex<BTreeMap<FlightKey, Flight>>);

impl Default for Flights {
    fn default() -> Self {
        Self(RankedMutex::new(&FLIGHTS, BTreeMap::new()))
    }
}

impl Flights {
    /// Enters a request.
    pub fn enter(&self, key: &FlightKey, request: &Arc<[Entry]>, waiter: Waiter) -> Entered {
        #[cfg(mutant = "flight")]
        // looks whether the key is free, lets go, and takes it as if it still were
        if ron_kernel::mutant("flight") && !self.holds(key) {
            self.0.lock().remove(key);
        }
        let mut all = self.0.lock();
        match all.entry(key.clone()) {
            Slot::Vacant(slot) => {
                slot.insert(Flight {
                    request: Arc::clone(request),
                    leader: Some(waiter),
                    followers: Vec::new(),
                    sent: false,
                });
                Entered::Leads
            }
            Slot::Occupied(mut slot) => {
                if !same_request(&slot.get().request, request) {
                    return Entered::Differs(waiter);
                }
                slot.get_mut().followers.push(waiter);
                Entered::Follows
            }
        }
    }

    /// Is the key under way?
    pub fn holds(&self, key: &FlightKey) -> bool {
        self.0.lock().contains_key(key)
    }

    /// Marks flights as sent. `false` for one that nobody waits for any more: it is gone, do not send it.
    pub fn send(&self, keys: &[&FlightKey]) -> Vec<bool> {
        let mut all = self.0.lock();
        keys.iter()
            .map(|key| match all.get_mut(*key) {
                Some(f) if f.leader.is_some() || !f.followers.is_empty() => {
                    #[cfg(mutant = "sent")] // the ledger gets it, and the watch does not know
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

    /// Ends flights; everybody who still waits for them.
    pub fn land(&self, keys: &[&FlightKey]) -> Vec<Landed> {
        #[cfg(mutant = "land")]
        // those who wait are taken out first, the flight later: who comes in between is lost
        if ron_kernel::mutant("land") {
            let out = |f: &mut Flight| Landed {
                leader: f.leader.take(),
                followers: std::mem::take(&mut f.followers),
            };
            let taken = |key: &&FlightKey| self.0.lock().get_mut(*key).map(out);
            let landed = keys.iter().map(|k| taken(k).unwrap_or_default()).collect();
            keys.iter().for_each(|k| drop(self.0.lock().remove(*k)));
            return landed;
        }
        let mut all = self.0.lock();
        keys.iter()
            .map(|key| {
                all.remove(*key).map_or_else(Landed::default, |f| Landed {
                    leader: f.leader,
                    followers: f.followers,
                })
            })
            .collect()
    }

    /// Takes out the waiters whose deadline is within `margin`; their flights go on.
    pub fn late(&self, now: Instant, margin: Duration) -> Vec<Late> {
        let over = |w: &Waiter| w.responder.deadline().at() <= now + margin;
        let mut late = Vec::new();
        let mut all = self.0.lock();
        for (key, flight) in all.iter_mut() {
            let sent = flight.sent;
            let mut take = |waiter, led| {
                late.push(Late {
                    key: key.clone(),
                    waiter,
                    led,
                    sent,
                });
            };
            if flight.leader.as_ref().is_some_and(over)
                && let Some(waiter) = flight.leader.take()
            {
                take(waiter, true);
            }
            for waiter in flight.followers.extract_if(.., |w| over(w)) {
                take(waiter, false);
            }
        }
        late
    }
}

/// Do two requests ask for the same? What the policy adds to them does not count.
pub fn same_request(a: &[Entry], b: &[Entry]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(x, y)| x == y || x.clone().without_ceiling() == y.clone().without_ceiling())
}

/// The deadline margin within which a waiter is answered by the watch instead of the front.
pub const MARGIN: Duration = Duration::from_millis(40);

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::Deadline;

    fn entry(key: &str, amount: u128, ceiling: Option<u128>) -> Arc<[Entry]> {
        Arc::new([Entry::Issue {
            principal: "p".parse().unwrap(),
            key: key.parse().unwrap(),
            to: "a".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: ron_proto::Amount(amount),
            memo: None,
            reference: None,
            daily_ceiling: ceiling.map(ron_proto::Amount),
        }])
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
        let flights = Flights::default();
        let key: FlightKey = ("p".parse().unwrap(), "k".parse().unwrap());
        let enter = |e: &Arc<[Entry]>| flights.enter(&key, e, waiter(1_000).0);
        assert!(matches!(enter(&entry("k", 1, Some(5))), Entered::Leads));
        assert!(matches!(enter(&entry("k", 1, Some(9))), Entered::Follows));
        assert!(matches!(
            enter(&entry("k", 2, Some(5))),
            Entered::Differs(_)
        ));
        assert!(flights.holds(&key));
        assert_eq!(flights.send(&[&key]), [true]);
        let landed = flights.land(&[&key]).remove(0);
        assert!(landed.leader.is_some() && landed.followers.len() == 1);
        assert!(!flights.holds(&key));
        assert!(matches!(enter(&entry("k", 2, None)), Entered::Leads));
    }

    #[test]
    fn late_waiters_leave_once_and_a_flight_nobody_waits_for_is_not_sent() {
        let flights = Flights::default();
        let key: FlightKey = ("p".parse().unwrap(), "k".parse().unwrap());
        let request = entry("k", 1, None);
        let (first, _a) = waiter(100);
        let (second, _b) = waiter(10_000);
        let start = first.since.checked_sub(Duration::from_millis(100)).unwrap();
        flights.enter(&key, &request, first);
        flights.enter(&key, &request, second);
        assert!(flights.late(start, MARGIN).is_empty());
        let late = flights.late(start + Duration::from_millis(80), MARGIN);
        assert_eq!(late.len(), 1);
        assert!(late[0].led && !late[0].sent);
        assert_eq!(flights.send(&[&key]), [true], "the second still waits");
        let late = flights.late(start + Duration::from_secs(10), MARGIN);
        assert_eq!((late.len(), late[0].led, late[0].sent), (1, false, true));
        let landed = flights.land(&[&key]).remove(0);
        assert!(landed.leader.is_none() && landed.followers.is_empty());
        flights.enter(&key, &request, waiter(0).0);
        flights.late(start + Duration::from_mins(1), MARGIN);
        assert_eq!(flights.send(&[&key]), [false]);
        assert!(!flights.holds(&key));
    }
}
