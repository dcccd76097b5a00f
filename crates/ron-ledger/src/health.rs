//! How the ledger's threads report their health: readiness for a service, nothing for an embedder.

pub trait Health: Send + Sync + 'static {
    /// Writing is no longer possible.
    fn store_failed(&self, why: &str);
    /// A snapshot failed (`Some`) or succeeded (`None`).
    fn snapshot(&self, why: Option<&str>);
}

/// Discards all reports, for embedders without readiness.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHealth;

impl Health for NoHealth {
    fn store_failed(&self, _why: &str) {}
    fn snapshot(&self, _why: Option<&str>) {}
}
