//! How the ledger's threads report their health: readiness for a service, nothing for an embedder.

pub trait Health: Send + Sync + 'static {
    /// Writing is no longer possible.
    fn store_failed(&self, why: &str);
    /// A snapshot failed (`Some`) or succeeded (`None`).
    fn snapshot(&self, why: Option<&str>);
    /// The engine of the log is away or not safe to write to (`Some`), or well (`None`).
    fn engine(&self, why: Option<&str>);
    /// At a takeover the head that a witness remembers was not compared.
    fn not_compared(&self, why: &str);
    /// This node is a standby of another (`Some`, with what it is), or writes (`None`).
    fn standby(&self, what: Option<&str>);
    /// This node writes from this epoch on (`active`), or writes no more (`standby`).
    fn role(&self, role: &'static str, epoch: Option<u64>);
}

/// Discards all reports, for embedders without readiness.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHealth;

impl Health for NoHealth {
    fn store_failed(&self, _why: &str) {}
    fn snapshot(&self, _why: Option<&str>) {}
    fn engine(&self, _why: Option<&str>) {}
    fn not_compared(&self, _why: &str) {}
    fn standby(&self, _what: Option<&str>) {}
    fn role(&self, _role: &'static str, _epoch: Option<u64>) {}
}
