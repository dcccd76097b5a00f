//! Whether issuing works, for `/readyz`: the cause `issue` is missing while the keys cannot be read, and while the KMS
//! answers reads but signs nothing. One refused token proves little (its audience may be missing in the payload policy of
//! the key), so the key thread has a probe token signed, like one that was signed before, and discards it. Probes are
//! rare, because each successful one is a leaf in the KMS's log.

use std::time::{Duration, Instant};

use ron_kernel::RankedMutex;
use ron_service::ReadyBoard;

use crate::policy::Grant;
use crate::topology::ISSUE_HEALTH;

/// Name of the readiness cause.
const CAUSE: &str = "issue";
/// Pause between the first two probes after a failure; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Maximum pause between two probes, and the pause between two that only a single refusal caused.
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub struct IssueHealth {
    ready: ReadyBoard,
    state: RankedMutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of changes, so that the readiness board ends up with the newest.
    version: u64,
    /// Why the keys cannot be used.
    keys: Option<String>,
    /// Why the KMS signs nothing.
    signing: Option<String>,
    /// The grant to probe with: one that was signed, otherwise one that was refused.
    sample: Option<Grant>,
    /// Whether `sample` was signed once.
    proven: bool,
    /// Whether a token was refused since the last probe.
    suspect: bool,
    pause: Duration,
    next: Option<Instant>,
}

impl std::fmt::Debug for IssueHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssueHealth").finish_non_exhaustive()
    }
}

impl IssueHealth {
    /// Starts as not working, until the keys are read.
    pub fn new(ready: ReadyBoard) -> Self {
        let health = Self {
            ready,
            state: RankedMutex::new(&ISSUE_HEALTH, State::default()),
        };
        health.keys(Err(
            "the signing keys were not read from the KMS yet".to_owned()
        ));
        health
    }

    /// Records the result of reading the keys.
    pub fn keys(&self, polled: Result<(), String>) {
        self.change(|state| {
            if state.keys.is_some() && polled.is_ok() {
                // The KMS is available again: probe at once what failed during the outage.
                (state.pause, state.next) = (Duration::ZERO, None);
            }
            state.keys = polled.err();
        });
    }

    /// Records that a token for this grant was signed.
    pub fn signed(&self, grant: &Grant) {
        {
            let state = self.state.lock();
            if state.proven && state.signing.is_none() && !state.suspect {
                return;
            }
        }
        self.change(|state| {
            *state = State {
                version: state.version,
                keys: state.keys.take(),
                sample: Some(grant.clone()),
                proven: true,
                next: state.next,
                ..State::default()
            };
        });
    }

    /// Records that the KMS signs nothing: a whole call was refused or not answered.
    pub fn failed(&self, why: &str, grant: &Grant) {
        self.change(|state| state.fail(why, grant));
    }

    /// Records that the KMS has refused this token, while it may sign others.
    pub fn refused(&self, why: &str, grant: &Grant) {
        self.change(|state| {
            if state.proven {
                state.suspect = true;
            } else {
                state.fail(why, grant);
            }
        });
    }

    /// The grant to probe with now, if a probe is due; sets the time of the next one.
    pub fn due(&self, now: Instant) -> Option<Grant> {
        let mut state = self.state.lock();
        let wanted = state.signing.is_some() || state.suspect;
        if state.keys.is_some() || !wanted || state.next.is_some_and(|next| now < next) {
            return None;
        }
        state.suspect = false;
        let pause = match state.signing {
            Some(_) => (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX),
            None => PAUSE_MAX,
        };
        (state.pause, state.next) = (pause, Some(now + pause));
        state.sample.clone()
    }

    /// Time until the next probe is due.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let state = self.state.lock();
        let next = state.next.filter(|_| state.signing.is_some())?;
        Some(
            next.saturating_duration_since(now)
                .max(Duration::from_millis(10)),
        )
    }

    /// Changes the state and updates the readiness board. The board is updated without the lock, because it logs.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let (mut version, mut shown) = {
            let mut state = self.state.lock();
            change(&mut state);
            state.version += 1;
            (state.version, state.why())
        };
        loop {
            match shown {
                Some(why) => self.ready.missing(CAUSE, why),
                None => self.ready.present(CAUSE),
            }
            // Another thread may have changed the state meanwhile and updated the board first: then this update is
            // stale and the board needs the newer state.
            let state = self.state.lock();
            if state.version == version {
                return;
            }
            (version, shown) = (state.version, state.why());
        }
    }
}

impl State {
    fn fail(&mut self, why: &str, grant: &Grant) {
        if self.signing.is_none() {
            (self.pause, self.next) = (Duration::ZERO, None);
        }
        self.signing = Some(why.to_owned());
        self.sample.get_or_insert_with(|| grant.clone());
    }

    fn why(&self) -> Option<String> {
        let why = self.keys.as_ref().or(self.signing.as_ref())?;
        Some(format!("issuing is impossible: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Clock as _, ManualClock, Registry};

    use super::*;
    use crate::samples::grant;

    fn health() -> (IssueHealth, ReadyBoard) {
        let ready = ReadyBoard::new(&Registry::new("t"));
        ready.declare(&[CAUSE]);
        let health = IssueHealth::new(ready.clone());
        (health, ready)
    }

    fn missing(ready: &ReadyBoard) -> Option<String> {
        let causes = ready.causes().into_iter();
        causes.map(|(name, _, why)| format!("{name}: {why}")).next()
    }

    #[test]
    fn readiness_follows_keys_and_signing() {
        let (health, ready) = health();
        assert!(missing(&ready).unwrap().contains("not read"));
        health.keys(Ok(()));
        assert_eq!(missing(&ready), None);
        health.failed("the KMS answers audit_down", &grant());
        let said = missing(&ready).unwrap();
        assert_eq!(
            said,
            "issue: issuing is impossible: the KMS answers audit_down"
        );
        health.keys(Ok(()));
        assert!(missing(&ready).is_some(), "reading is not signing");
        health.keys(Err("away".to_owned()));
        health.signed(&grant());
        assert!(missing(&ready).unwrap().contains("away"));
        health.keys(Ok(()));
        assert_eq!(missing(&ready), None);
    }

    #[test]
    fn probes_back_off_and_restart_when_the_kms_is_available_again() {
        let (health, _ready) = health();
        let start = ManualClock::at(0).now();
        let at = |s: u64| start + Duration::from_secs(s);
        health.failed("x", &grant());
        assert_eq!(health.due(at(0)), None, "the keys were not read");
        health.keys(Ok(()));
        let tries = |from: u64, to: u64| -> Vec<u64> {
            let tried = |s: &u64| health.due(at(*s)).is_some();
            (from..to).filter(tried).collect()
        };
        assert_eq!(tries(0, 130), [0, 1, 3, 7, 15, 31, 61, 91, 121]);
        health.failed("still", &grant());
        assert!(tries(130, 151).is_empty());
        assert_eq!(health.pause(at(140)), Some(Duration::from_secs(11)));
        health.keys(Err("away".to_owned()));
        health.keys(Ok(()));
        assert_eq!(tries(140, 144), [140, 141, 143]);
        health.signed(&grant());
        assert_eq!((health.due(at(999)), health.pause(at(999))), (None, None));
    }

    #[test]
    fn one_refused_token_is_no_outage_where_others_were_signed() {
        let (health, ready) = health();
        health.keys(Ok(()));
        health.refused("payload_refused", &grant());
        assert!(missing(&ready).is_some(), "nothing was signed yet");
        health.signed(&grant());
        let mut odd = grant();
        odd.audience = "my-api".to_owned();
        health.refused("payload_refused", &odd);
        assert_eq!(missing(&ready), None);
        let now = ManualClock::at(0).now() + Duration::from_secs(60);
        let tried = health.due(now).unwrap();
        assert_eq!(tried.audience, grant().audience, "what was signed before");
        health.refused("payload_refused", &odd);
        assert_eq!(health.due(now + Duration::from_secs(29)), None);
        assert!(health.due(now + Duration::from_secs(30)).is_some());
        health.failed("payload_refused", &odd);
        assert!(missing(&ready).is_some(), "that is refused too");
    }
}
