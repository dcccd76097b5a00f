//! Follows the issuer's revocation feed by long poll, and checks that its events are the leaves of one log that only
//! grows.

use std::time::Duration;

use ron_kernel::{Deadline, ThreadCtx};
use ron_proto::passport::RevocationPage;
use ron_proto::strict;
use ron_tlog::checkpoint::Checkpoint;

use crate::authorizer::RonAuthorizer;
use crate::refresh::{FETCH_DEADLINE, retry_pauses};
use crate::revocation::{HistoryLost, LogAlarm, RevocationView};
use crate::revocation_log;
use crate::settings::IssuerConfig;

/// How long the issuer may hold a poll open; a drain cuts it short by closing the client.
const POLL_WAIT_S: u64 = 20;
/// Minimum time between two polls.
const FEED_GAP: Duration = Duration::from_millis(250);
/// Events in a full page; a shorter page is the last.
const PAGE_EVENTS: usize = 1000;

/// Why a read of the feed gave no view.
enum FeedRefused {
    Failed(String),
    Alarm(LogAlarm),
    /// The log's key has signed another history; its revocations count in addition.
    History(HistoryLost, Box<RevocationView>),
}

impl From<String> for FeedRefused {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl RonAuthorizer {
    /// Body of the feed thread.
    pub(crate) fn feed_body(&self, ctx: &ThreadCtx) {
        let mut pause = retry_pauses(self.clock.unix_ms() ^ 1);
        while !ctx.shutdown.is_set() {
            let started = self.clock.now();
            let pause = match self.read_feed_once(POLL_WAIT_S) {
                None => Duration::from_secs(1),
                Some(Ok(())) => {
                    pause.reset();
                    // An issuer that does not hold polls open must not be polled in a tight loop.
                    FEED_GAP.saturating_sub(self.clock.now().saturating_duration_since(started))
                }
                Some(Err(_)) => {
                    self.refresher.retried();
                    pause.next_pause()
                }
            };
            self.report_state();
            if !pause.is_zero() && ctx.shutdown.wait(Deadline::within(pause)) {
                return;
            }
        }
    }

    /// Reads the feed up to its end; the last request may wait `wait_s` seconds at the issuer for
    /// new events. `None` without an issuer.
    pub fn read_feed_once(&self, wait_s: u64) -> Option<Result<(), String>> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref()?;
        // Looked up before the feed is read: every later response reaches at least that far.
        let note_event = if issuer.note_keys.is_empty() {
            0 // no note is required
        } else {
            self.seen.of(&issuer.issuer).note
        };
        let reading = self.revoked.begin(issuer.clone());
        let old = self.revoked_of(issuer).unwrap_or_default();
        let read = self.read_feed(issuer, &old, wait_s);
        let outcome = match read {
            Ok((mut view, checkpoint)) => check_reaches_note(&view, note_event).and_then(|()| {
                view.absorb(&old);
                let new_keys = view.key_changes() != old.key_changes();
                #[cfg(mutant = "notice")] // the interval reads the keys that the feed announces
                let new_keys = new_keys && !ron_kernel::mutant("notice");
                self.revoked.finish(&reading, view);
                self.refresher.raise(None);
                if new_keys {
                    // The issuer delays signing with its next key until services that follow the
                    // feed have it. Also after the first read: the keys may have been read before
                    // the change that it announces.
                    if let Some(Err(_)) = self.refresh_keys_once() {
                        // It has recorded its outcome; the key thread repeats it, and not only after the interval.
                        self.refresher.kick();
                    }
                }
                // In force before it is remembered: a revocation does not wait for a slow disk.
                self.seen
                    .record(&issuer.issuer, |seen| seen.checkpoint = Some(checkpoint))
            }),
            Err(FeedRefused::Failed(why)) => Err(why),
            Err(FeedRefused::Alarm(alarm)) => {
                let why = alarm.to_string();
                self.refresher.raise(Some(alarm));
                Err(why)
            }
            Err(FeedRefused::History(lost, other)) => {
                if old.synced() {
                    let mut both = (*old).clone();
                    both.absorb(&other);
                    self.revoked.finish(&reading, both);
                }
                let alarm = LogAlarm::History(lost);
                let why = alarm.to_string();
                self.refresher.raise(Some(alarm));
                Err(why)
            }
        };
        self.refresher
            .note("events", &self.refresher.feed_failed, &outcome);
        Some(outcome)
    }

    /// The view after the feed's last event, and the checkpoint that covers it. It continues `old`,
    /// or, where that fails, begins again and leads through the newest head that was seen.
    fn read_feed(
        &self,
        issuer: &IssuerConfig,
        old: &RevocationView,
        wait_s: u64,
    ) -> Result<(RevocationView, String), FeedRefused> {
        // After an outage the issuer may have returned with a different history of the same length:
        // read all of it again, while the current view stays in force.
        if old.synced() && !self.refresher.feed_failed.any() {
            let mut view = old.clone().retaining(self.retention_s());
            if let Some(checkpoint) = self.follow_feed(issuer, &mut view, wait_s)?
                && self.check_head(issuer, &view, &checkpoint)?.is_none()
            {
                return Ok((view, checkpoint));
            }
            tracing::warn!(event = "auth_feed_restarted", after = old.after());
        }
        let known = self.seen.of(&issuer.issuer).head();
        let view = RevocationView::through(known.as_ref());
        let mut view = view.retaining(self.retention_s());
        let checkpoint = self.follow_feed(issuer, &mut view, wait_s)?;
        let checkpoint = checkpoint.ok_or_else(|| "the revocation feed has gaps".to_owned())?;
        if let Some(altered) = self.check_head(issuer, &view, &checkpoint)? {
            return Err(FeedRefused::Alarm(altered));
        }
        match view.history() {
            Ok(()) => Ok((view, checkpoint)),
            Err(lost) => Err(FeedRefused::History(lost, Box::new(view))),
        }
    }

    /// Applies the rest of the feed and returns the checkpoint of its last page; `None` if the feed
    /// does not continue the view.
    fn follow_feed(
        &self,
        issuer: &IssuerConfig,
        view: &mut RevocationView,
        wait_s: u64,
    ) -> Result<Option<String>, String> {
        loop {
            // The first read must not wait: passports are refused until it is complete.
            let wait_s = if view.synced() { wait_s } else { 0 };
            let url = format!("{}?after={}&wait={wait_s}", issuer.events_url, view.after());
            let within = FETCH_DEADLINE + Duration::from_secs(wait_s);
            let bytes = self.refresher.get_events(issuer, &url, within)?;
            let page: RevocationPage = strict::from_slice(&bytes).map_err(|error| {
                self.refresher
                    .metrics
                    .parse_errors
                    .with_label_values(&["revocations"])
                    .inc();
                error.to_string()
            })?;
            let last = page.events.len() < PAGE_EVENTS;
            if view.apply(&page, last, self.now_s()).is_err() {
                return Ok(None);
            }
            if last {
                return Ok(Some(page.checkpoint));
            }
        }
    }

    /// Checks the checkpoint's signature, and that it covers exactly the view's events; otherwise
    /// says what is wrong with them.
    fn check_head(
        &self,
        issuer: &IssuerConfig,
        view: &RevocationView,
        checkpoint: &str,
    ) -> Result<Option<LogAlarm>, FeedRefused> {
        let origin = revocation_log::origin(&issuer.issuer);
        let head = if issuer.note_keys.is_empty() {
            Checkpoint::read_unverified(checkpoint, Some(&origin))
        } else {
            let known = self.seen.of(&issuer.issuer).log_key();
            let open = |key| Checkpoint::open(checkpoint, &[key], Some(&origin));
            if let Some(Ok(head)) = known.map(open) {
                Ok(head)
            } else {
                // The key is not known yet, or has changed.
                let note = self.read_note(issuer)?;
                let key = note.log_key.ok_or_else(|| {
                    "the policy note names no key of the revocation log".to_owned()
                })?;
                open(key)
            }
        };
        let head = head.map_err(|e| FeedRefused::Alarm(LogAlarm::Unsigned(e.to_string())))?;
        let same = head.size == view.after() && head.root == view.root();
        #[cfg(mutant = "altered")] // events count that are not those of the signed log
        let same = same || ron_kernel::mutant("altered");
        Ok((!same).then_some(LogAlarm::Altered { size: head.size }))
    }
}

/// A policy note's version is the number of the last feed event when it was signed, so a feed that
/// ends before it lacks revocations: it comes from a third party, or from an issuer restored to an
/// older state.
fn check_reaches_note(view: &RevocationView, note_event: u64) -> Result<(), String> {
    if view.after() >= note_event {
        return Ok(());
    }
    Err(format!(
        "the feed ends at event {}, but the policy note covers event {note_event}; if the issuer was restored from a backup, accept it with `ron issuer trust`",
        view.after()
    ))
}
