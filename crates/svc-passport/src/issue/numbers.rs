//! Numbers of grants, which the store gives. Signed tokens wait for them, so that no wait is long, and a store that hangs is not asked for
//! each batch: its tokens leave without a slot in the trail.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, Sender, Snapshot, reply};

use crate::revoke::RevokeEvent;
use crate::trail::{Grants, IssuedFor};

/// Maximum wait for the number of a new grant.
const NUMBER_WAIT: Duration = Duration::from_secs(1);
/// How long the store is not asked again after it has not answered.
const PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Numbers {
    grants: Arc<Snapshot<Grants>>,
    store: Sender<RevokeEvent>,
    /// Until when the store is not asked. Issuing threads that overwrite each other's value differ by less than their waits.
    paused: Snapshot<Option<Deadline>>,
}

impl Numbers {
    pub fn new(grants: Arc<Snapshot<Grants>>, store: Sender<RevokeEvent>) -> Self {
        Self {
            grants,
            store,
            paused: Snapshot::new(None),
        }
    }

    /// The number under which a grant is recorded; a new grant is given one by the store.
    pub fn of(&self, what: IssuedFor, until: Deadline) -> Result<u32, String> {
        let grants = self.grants.load();
        let what = grants.recorded(what);
        match grants.number(&what) {
            Some(number) => Ok(number),
            None => self.ask(what, until),
        }
    }

    fn ask(&self, grant: IssuedFor, until: Deadline) -> Result<u32, String> {
        if self
            .paused
            .with(|paused| paused.is_some_and(|end| !end.expired()))
        {
            return Err("the store did not answer shortly before".to_owned());
        }
        let (answer, number) = reply();
        let asked = self.store.try_send(RevokeEvent::Number { grant, answer });
        asked.map_err(|_| "the queue of the store is full".to_owned())?;
        // A caller's own short deadline says nothing about the store, and must not keep the tokens of others out of the trail.
        let patient = until.remaining() >= NUMBER_WAIT / 4;
        let answered = number.wait(until.capped(NUMBER_WAIT));
        let answered = answered.map_err(|_| "the store did not answer in time".to_owned());
        let number = answered.and_then(|number| number.map_err(|problem| problem.detail));
        if number.is_err() && patient {
            self.paused.store(Some(Deadline::within(PAUSE)));
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{KernelMetrics, Registry, queue};

    use super::*;
    use crate::topology::REVOKE_QUEUE;

    fn grant(client: &str) -> IssuedFor {
        let tenant = "default".parse().unwrap();
        IssuedFor::new(client, tenant, "orders", "read")
    }

    #[test]
    fn a_store_that_hangs_costs_one_wait_and_is_not_asked_again_at_once() {
        let km = KernelMetrics::new(&Registry::new("svc_passport"));
        let (store, events) = queue(&REVOKE_QUEUE, REVOKE_QUEUE.capacity, &km);
        let mut known = Grants::default();
        known.add(7, grant("known"));
        let numbers = Numbers::new(Arc::new(Snapshot::new(known)), store);
        let asked = || std::iter::from_fn(|| events.try_recv()).count();
        let long = Deadline::within(Duration::from_secs(60));

        let quick = Deadline::within(NUMBER_WAIT);
        let soon = Deadline::within(Duration::from_millis(20));
        assert!(numbers.of(grant("a"), soon).is_err());
        assert!(!quick.expired(), "the callers' deadline");
        assert_eq!(asked(), 1);

        assert!(numbers.of(grant("a"), long).is_err());
        assert_eq!(asked(), 1, "an impatient caller starts no pause");
        let quick = Deadline::within(NUMBER_WAIT);
        for client in ["a", "b", "c"] {
            assert!(numbers.of(grant(client), long).is_err());
        }
        assert!(!quick.expired(), "no more waits");
        assert_eq!(asked(), 0);
        assert_eq!(numbers.of(grant("known"), long), Ok(7));

        numbers.paused.store(Some(Deadline::within(Duration::ZERO)));
        assert!(numbers.of(grant("a"), soon).is_err());
        assert_eq!(asked(), 1, "after the pause");
    }
}
