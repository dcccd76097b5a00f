//! The key of an operation on its way from the request to the key: an alias names the key that it names when the operation runs.

use ron_custody::index::KeyIndex;
use ron_custody::{Cause, Refusal};
use ron_kernel::Snapshot;
use ron_proto::values::{Alias, KeyRef, Kid, Tenant};

/// A key as a request names it, and the name of the key.
#[derive(Clone)]
pub struct TaskKey {
    alias: Option<Alias>,
    /// `None` while an alias was not looked up, and when it names no key.
    kid: Option<Kid>,
}

impl TaskKey {
    /// The key's name, as far as it is known.
    pub const fn kid(&self) -> Option<&Kid> {
        self.kid.as_ref()
    }

    /// The alias that the request gives.
    pub const fn alias(&self) -> Option<&Alias> {
        self.alias.as_ref()
    }

    /// Notes that the request names its key by this alias.
    pub fn name_by(&mut self, alias: &Alias) {
        self.alias = Some(alias.clone());
    }

    /// Looks an alias up in `index`, so that the operation goes to the thread of its key.
    pub fn look_up(&mut self, index: &Snapshot<KeyIndex>, tenant: &Tenant) {
        if let Some(alias) = &self.alias {
            self.kid = index.load().named(tenant, alias).ok().cloned();
        }
    }

    /// The key's name, if the alias still names it in `index`, the keys with which the operation runs: a move that was
    /// acknowledged before the request came holds for it, at whichever node.
    pub fn check(&self, index: &KeyIndex, tenant: &Tenant) -> Result<&Kid, Refusal> {
        if let Some(alias) = &self.alias {
            still_names(index.named(tenant, alias)?, self.kid.as_ref())?;
        }
        let unknown = || Refusal::new(Cause::Internal, "an operation without a key");
        self.kid.as_ref().ok_or_else(unknown)
    }
}

impl From<KeyRef> for TaskKey {
    fn from(key: KeyRef) -> Self {
        match key {
            KeyRef::Kid(kid) => kid.into(),
            KeyRef::Alias(alias) => Self {
                alias: Some(alias),
                kid: None,
            },
        }
    }
}

impl From<Kid> for TaskKey {
    fn from(kid: Kid) -> Self {
        Self {
            alias: None,
            kid: Some(kid),
        }
    }
}

/// Refuses an operation whose alias names another key by now than when the request came.
pub fn still_names(now: &Kid, then: Option<&Kid>) -> Result<(), Refusal> {
    if Some(now) == then {
        return Ok(());
    }
    Err(Refusal::new(
        Cause::StoreUnavailable,
        "the alias was moved while the request waited; nothing was done: send the request again",
    ))
}
