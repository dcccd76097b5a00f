//! How fresh the public keys are that verification uses. While the backend that holds a key
//! answers, they are as fresh as can be; while it is away, their age is counted from the last
//! moment it was known to be there, said in every answer, and bounded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ron_kernel::Counter;

use crate::backend::BackendKind;
use crate::config::lifecycle::CacheSettings;
use crate::error::{Refusal, Why};
use crate::metrics::Metrics;

/// The freshness of the keys of one backend.
#[derive(Debug)]
pub struct VerifyCache {
    settings: CacheSettings,
    /// Unix milliseconds of the last moment the backend was there; 0 while it is.
    away_since_ms: AtomicU64,
    expired: Counter,
}

impl VerifyCache {
    /// Of a backend that is there.
    pub fn new(settings: CacheSettings, metrics: &Metrics) -> Self {
        Self {
            settings,
            away_since_ms: AtomicU64::new(0),
            expired: metrics.verify_cache_expired.clone(),
        }
    }

    /// The backend does not answer; `last_seen_ms` is when it last did. The first loss counts.
    pub fn lost(&self, last_seen_ms: u64) {
        let _ = self.away_since_ms.compare_exchange(
            0,
            last_seen_ms.max(1),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }

    /// The backend answers again.
    pub fn found(&self) {
        self.away_since_ms.store(0, Ordering::Release);
    }

    /// Age of the public keys in milliseconds; `None` while the backend is there.
    pub fn age_ms(&self, now_ms: u64) -> Option<u64> {
        match self.away_since_ms.load(Ordering::Acquire) {
            0 => None,
            since => Some(now_ms.saturating_sub(since)),
        }
    }

    /// Whether the keys may still verify: their age for the answer, or the refusal of keys that
    /// are too old. Past the soft limit the use is counted.
    pub fn check(&self, now_ms: u64) -> Result<Option<u64>, Refusal> {
        let Some(age) = self.age_ms(now_ms) else {
            return Ok(None);
        };
        if u128::from(age) > self.settings.soft_ttl.as_millis() {
            self.expired.inc();
        }
        if u128::from(age) > self.settings.hard_ttl.as_millis() {
            let detail = "the backend is away for longer than verify.cache_hard_ttl, so its public keys are not believed any more; see /readyz";
            return Err(Refusal {
                retry_after_s: 5,
                ..Refusal::new(Why::Unavailable, detail)
            });
        }
        Ok(Some(age))
    }
}

/// The freshness of the keys of every backend.
#[derive(Debug)]
pub struct VerifyCaches(BTreeMap<BackendKind, VerifyCache>);

impl VerifyCaches {
    /// Of backends that are all there.
    pub fn new(settings: CacheSettings, metrics: &Metrics) -> Self {
        let one = |kind| (kind, VerifyCache::new(settings, metrics));
        Self(BackendKind::ALL.into_iter().map(one).collect())
    }

    /// That of one backend.
    pub fn of(&self, backend: BackendKind) -> &VerifyCache {
        &self.0[&backend]
    }

    /// Shows the greatest age.
    pub fn show(&self, metrics: &Metrics, now_ms: u64) {
        let ages = self.0.values().filter_map(|cache| cache.age_ms(now_ms));
        let seconds = ages.max().unwrap_or(0) / 1000;
        metrics.verify_cache_age.set(seconds.cast_signed());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ron_kernel::Registry;

    use super::*;

    #[test]
    fn ages_are_said_counted_and_bounded() {
        let registry = Registry::new("t");
        let metrics = Metrics::new(&registry, "file");
        let settings = CacheSettings {
            soft_ttl: Duration::from_secs(300),
            hard_ttl: Duration::from_secs(3600),
        };
        let caches = VerifyCaches::new(settings, &metrics);
        let cache = caches.of(BackendKind::Tpm);
        let mut counted = 0;
        let mut check = |now_s: u64, want: Result<Option<u64>, Why>, counts: bool| {
            counted += u64::from(counts);
            let got = cache.check(now_s * 1000).map_err(|refusal| refusal.why);
            assert_eq!(got, want, "at {now_s}");
            assert_eq!(metrics.verify_cache_expired.get(), counted, "at {now_s}");
        };
        check(1000, Ok(None), false);
        cache.lost(1_000_000);
        check(1000, Ok(Some(0)), false);
        cache.lost(1_200_000); // still the same loss
        check(1300, Ok(Some(300_000)), false);
        check(1301, Ok(Some(301_000)), true);
        check(4600, Ok(Some(3_600_000)), true);
        check(4601, Err(Why::Unavailable), true);
        caches.show(&metrics, 4_601_000);
        assert_eq!(metrics.verify_cache_age.get(), 3601);
        let other = caches.of(BackendKind::File).check(4_601_000);
        assert_eq!(other.map_err(|refusal| refusal.why), Ok(None));
        cache.found();
        check(9999, Ok(None), false);
    }
}
