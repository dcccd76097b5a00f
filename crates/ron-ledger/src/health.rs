//! What the ledger's threads report: readiness for a service, nothing for an embedder.

/// What the ledger's threads report to.
pub trait Health: Send + Sync + 'static {
    /// Writing is not possible any more.
    fn store_failed(&self, why: &str);
    /// A snapshot failed (`Some`) or worked again (`None`).
    fn snapshot(&self, why: Option<&str>);
}

/// Nobody listens: for embedders without readiness.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHealth;

impl Health for NoHealth {
    fn store_failed(&self, _why: &str) {}
    fn snapshot(&self, _why: Option<&str>) {}
}
