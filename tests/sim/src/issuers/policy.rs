//! Changes of the signed issuer policy: a client whose rule comes and goes, and an operator who now and then puts an old policy back.

use std::time::{Duration, Instant};

use ron_client::ClientError;
use ron_proto::passport::IssueRequest;
use ron_sim::{ensure, fault, time};

use super::actors::{Actor, Observations, SUBJECTS};
use super::services::{AUDIENCE, put_policy};
use crate::chance::{below, ms};

/// Within which a policy is in force on a good network: two polls of two seconds, with their jitter.
const IN_FORCE: Duration = Duration::from_secs(5);

/// A version of the policy, and whether it has the client.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub version: u64,
    pub guest: bool,
    /// Since when its file was there; and since when it was not replaced by an older one.
    pub at: Instant,
    pub stands: Instant,
}

impl Change {
    /// The policy with which a world begins.
    pub fn first() -> Self {
        let now = time::now();
        Self {
            version: 1,
            guest: true,
            at: now,
            stands: now,
        }
    }
}

/// A request of the client, and whether the policy let it have a token.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    pub began: Instant,
    pub ended: Instant,
    pub given: bool,
}

impl Actor {
    /// The client asks for a token; whether the policy let it have one.
    pub fn visit(&self) -> Option<bool> {
        let request = IssueRequest {
            subject_ref: SUBJECTS[below(3) as usize].to_owned(),
            audience: AUDIENCE.to_owned(),
            ttl_s: Some(600),
            scope: None,
            caveats: Vec::new(),
            accept_algs: Vec::new(),
            proof: None,
        };
        let call = |until| self.guest.issue(&request, until);
        let (answer, began) = self.call("a visit", call);
        let given = match &answer {
            Ok(_) => true,
            Err(ClientError::Refused { status: 403, .. }) => false,
            Err(_) => return None,
        };
        ron_sim::note(&format!("the guest is given a token: {given}"));
        let ended = time::now();
        self.seen().visits.push(Visit {
            began,
            ended,
            given,
        });
        // Its log has the signature: the token is one of those that were given.
        if let Ok(answer) = answer {
            self.keep(&answer, began);
        }
        Some(given)
    }

    /// The next policy; now and then an old one is put back for a while.
    pub fn change_policy(&self) {
        let newest = self.seen().policies.last().copied();
        let Some(Change { version, guest, .. }) = newest else {
            return;
        };
        if below(2) == 0 && self.shows(guest) && self.put_an_old_policy() {
            self.visit_for(500 + below(5_000));
            return self.put_the_newest_policy();
        }
        fault::happened("a policy changes");
        let at = time::now();
        self.seen().policies.push(Change {
            version: version + 1,
            guest: !guest,
            at,
            stands: at,
        });
        put_policy(&self.keys.policy, version + 1, !guest);
    }

    /// Whether the policy that says this of the guest comes into force soon: only then an older one would be seen to replace it.
    fn shows(&self, guest: bool) -> bool {
        let by = time::now() + ms(5_000);
        while time::now() < by {
            if self.visit() == Some(guest) {
                return true;
            }
            time::sleep(ms(below(500)));
        }
        false
    }

    /// Visits for so many milliseconds.
    pub fn visit_for(&self, long_ms: u64) {
        let until = time::now() + ms(long_ms);
        while time::now() < until {
            self.visit();
            time::sleep(ms(below(500)));
        }
    }

    /// One of those that say the opposite of the newest is put in its place, if there is one.
    pub fn put_an_old_policy(&self) -> bool {
        let version = self.seen().policies.last().map_or(0, |last| last.version);
        if version < 2 {
            return false;
        }
        fault::happened("an old policy is put back");
        let old = version - 1 - 2 * below(version / 2);
        let had = self.seen().policies[old as usize - 1].guest;
        put_policy(&self.keys.policy, old, had);
        true
    }

    pub fn put_the_newest_policy(&self) {
        let newest = self.seen().policies.last().copied();
        let Some(Change { version, guest, .. }) = newest else {
            return;
        };
        put_policy(&self.keys.policy, version, guest);
        let stands = time::now();
        if let Some(newest) = self.seen().policies.last_mut() {
            newest.stands = stands;
        }
    }

    /// The newest policy is in force before this moment.
    pub fn policy_is_in_force_before(&self, at: Instant) {
        let newest = self.seen().policies.last().copied();
        let Some(newest) = newest else { return };
        while self.visit() != Some(newest.guest) {
            ensure(time::now() < at, &format!("{newest:?} is not in force"));
            time::sleep(ms(200));
        }
    }
}

/// What the client was told is what a policy says that may have been in force, and none comes back after a newer one.
pub fn check(seen: &Observations, calm: bool) {
    let mut visits = seen.visits.clone();
    visits.sort_by_key(|visit| visit.ended);
    // By what was seen: at this moment this version was in force, or a newer one.
    let mut least: Vec<(Instant, u64)> = Vec::new();
    for visit in visits {
        let known = least.iter().filter(|(at, _)| *at <= visit.began);
        let known = known.map(|(_, version)| *version).max().unwrap_or(1);
        let in_time = seen.policies.iter().filter(|policy| {
            let next = seen
                .policies
                .iter()
                .find(|p| p.version == policy.version + 1);
            let end = next.map_or(visit.began, |next| next.at.min(visit.began));
            calm && policy.stands + IN_FORCE < end
        });
        let known = in_time.map(|p| p.version).max().unwrap_or(1).max(known);
        let mut may_be = seen.policies.iter().filter(|policy| {
            let says = policy.guest == visit.given;
            says && policy.version >= known && policy.at <= visit.ended
        });
        let first = may_be.next();
        let text = format!(
            "from version {known} on no policy says {visit:?}: {:?}",
            seen.policies
        );
        ensure(first.is_some(), &text);
        least.extend(first.map(|policy| (visit.ended, policy.version)));
    }
}
