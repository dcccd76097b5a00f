//! How completely an authorizer can check passports now, for readiness.

use crate::authorizer::RonAuthorizer;

impl RonAuthorizer {
    /// Why passports cannot be fully checked now; `None` when they can.
    pub fn degraded(&self) -> Option<String> {
        self.config.load().issuer.as_ref()?;
        if let Some(alarm) = &*self.refresher.alarm.load() {
            return Some(format!(
                "the issuer's revocation log cannot be trusted, known revocations stay in force: {alarm}"
            ));
        }
        let (keys, feed) = (&self.refresher.keys_failed, &self.refresher.feed_failed);
        let (what, failures) = if self.keys_now().is_empty() {
            (
                "the issuer's keys have not been read yet; passports get 503",
                keys,
            )
        } else if !self.revoked_now().synced() {
            (
                "the issuer's revocations have not been read yet; passports get 503",
                feed,
            )
        } else if keys.is_degraded() {
            (
                "the issuer's keys cannot be refreshed; the last good ones are in use",
                keys,
            )
        } else if feed.is_degraded() {
            (
                "the issuer's revocations cannot be read; recent ones may be missing",
                feed,
            )
        } else {
            return None;
        };
        Some(format!("{what}{}", failures.reason()))
    }

    pub(crate) fn report_state(&self) {
        self.refusals.flush();
        if let Some(report) = self.refresher.report.get() {
            report(self.degraded());
        }
    }
}
