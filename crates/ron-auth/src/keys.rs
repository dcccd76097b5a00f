//! Reads the issuer's keys, at an interval or at once when an unknown key appears, and the policy note that
//! says which of them count. Never in a request's path.

use std::time::Duration;

use ron_kernel::ThreadCtx;
use ron_kernel::loops::{NextRead, read_again};

use crate::authorizer::RonAuthorizer;
use crate::jwks::{JwksError, JwksSnapshot, PqRule};
use crate::policy_note::{Ignored, NoteRefused, PolicyNote};
use crate::refresh::{FETCH_DEADLINE, retry_pauses};
use crate::settings::IssuerConfig;

/// Minimum time between two reads that unknown keys trigger.
const KICK_GAP: Duration = Duration::from_secs(5);

impl RonAuthorizer {
    /// Body of the key thread.
    pub(crate) fn keys_body(&self, ctx: &ThreadCtx) {
        let mut pause = retry_pauses(self.clock.unix_ms());
        let again = || {
            let (after, floor) = match self.refresh_keys_once() {
                None => (Duration::from_secs(60), Duration::ZERO),
                Some(Ok(interval)) => {
                    pause.reset();
                    (interval, KICK_GAP)
                }
                Some(Err(_)) => {
                    self.refresher.retried();
                    let next = pause.next_pause();
                    (next, next.min(KICK_GAP))
                }
            };
            self.report_state();
            NextRead { after, floor }
        };
        read_again(&self.refresher.kicks, &ctx.shutdown, &*self.clock, again);
    }

    /// Reads the keys once. `None` without an issuer, else the pause until the next read.
    pub fn refresh_keys_once(&self) -> Option<Result<Duration, String>> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref()?;
        let reading = self.keys.begin(issuer.clone());
        let outcome = self.read_keys(issuer).and_then(|(keys, ignored)| {
            let none = keys.is_empty();
            if !none {
                // A reload may have configured another issuer in the meantime; then no lookup will
                // match this source.
                self.keys.finish_version(&reading, keys.note(), keys);
            }
            self.refresher.ignored(&ignored, none)
        });
        self.refresher
            .note("keys", &self.refresher.keys_failed, &outcome);
        Some(outcome.map(|()| issuer.refresh))
    }

    /// Reads both key sets or fails: with half of a hybrid's keys the rule would be weaker than
    /// configured. Then reads the policy note, which says which of these keys the issuer vouches
    /// for.
    pub(crate) fn read_keys(
        &self,
        issuer: &IssuerConfig,
    ) -> Result<(JwksSnapshot, Ignored), String> {
        let parsed = |read: Result<JwksSnapshot, JwksError>| {
            read.map_err(|error| {
                let errors = &self.refresher.metrics.parse_errors;
                errors.with_label_values(&["jwks"]).inc();
                error.to_string()
            })
        };
        let bytes = self.refresher.get(&issuer.jwks_url, FETCH_DEADLINE)?;
        let mut keys = parsed(JwksSnapshot::parse(&bytes))?;
        if issuer.pq != PqRule::Off {
            let bytes = self.refresher.get(&issuer.pq_jwks_url, FETCH_DEADLINE)?;
            keys = parsed(keys.with_pq(&bytes, issuer.pq))?;
        }
        if issuer.note_keys.is_empty() {
            return Ok((keys, Ignored::default())); // auth.unpinned
        }
        // The note is read after the keys: a key published between the two reads is then only in
        // the note, and comes with the next read. In the other order it would look like a third
        // party's key.
        let note = self.read_note(issuer)?;
        let ignored = note.narrow(&mut keys, self.now_s());
        Ok((keys, ignored))
    }

    /// The note that is served now; its version and the key of the revocation log are durable when
    /// this returns.
    pub(crate) fn read_note(&self, issuer: &IssuerConfig) -> Result<PolicyNote, String> {
        // Looked up before the request: another read may raise it while this response is in flight.
        let kept = self.seen.of(&issuer.issuer).note;
        let bytes = self
            .refresher
            .get(&issuer.note_url, FETCH_DEADLINE)
            .map_err(|why| format!("the policy note cannot be read: {why}"))?;
        let opened = PolicyNote::open(&bytes, &issuer.issuer, &issuer.note_keys);
        let got = opened.and_then(|note| match note.version {
            got if got < kept => Err(NoteRefused::RolledBack { got, kept }),
            _ => Ok(note),
        });
        let note = got.map_err(|refused| {
            let errors = &self.refresher.metrics.parse_errors;
            errors.with_label_values(&["policy_note"]).inc();
            refused.to_string()
        })?;
        self.seen.record(&issuer.issuer, |seen| {
            if note.version >= seen.note {
                seen.note = note.version;
                seen.log_key = note.log_key.as_ref().map(ToString::to_string);
            }
        })?;
        Ok(note)
    }
}
