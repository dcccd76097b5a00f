//! Why a key store cannot be used.

use ron_service::records::RecordError;

use super::seal::SealError;

/// Why the store cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The seal key cannot be read or made.
    #[error("{0}")]
    SealKey(String),
    /// The seal key is readable, but not the one of this store.
    #[error(
        "the seal key is not the one this store was made with; configure the right seal.key_file or seal.passphrase_file"
    )]
    WrongSealKey,
    /// A sealed record does not open.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// Metadata does not match its MAC.
    #[error("the key store was changed from outside: {0}. Restore it from a backup")]
    Tampered(String),
    /// The configured origin differs from the stored one.
    #[error(
        "audit.origin is `{configured}`, but this store's audit log is `{stored}`; an origin cannot change"
    )]
    Origin { configured: String, stored: String },
    /// The audit log of this node has no name.
    #[error(
        "audit.origin is empty: each node with keys in a database needs a name for its audit log"
    )]
    NoOrigin,
    /// Another node has changed the store since it was read: read it again, then decide again.
    #[error("key store: another node has changed it")]
    Moved,
    /// The change may be in the store or come into it later.
    #[error("key store: {0}")]
    Unknown(String),
    /// A migration has the keys.
    #[error("these keys are not in use: {0}")]
    Transit(String),
    /// What a migration wants to fill is in use, or has other keys.
    #[error("{0}")]
    Occupied(&'static str),
    /// A node has committed a change whose leaf is not known to be in its audit log.
    #[error(
        "the node {0} has a change that is not in its audit log yet: wait until it is, or start that node, then try again"
    )]
    Unfinished(String),
    #[error("key store: {0}")]
    Db(String),
}

impl From<RecordError> for StoreError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Unknown(_) => Self::Unknown(error.to_string()),
            error => Self::Db(error.to_string()),
        }
    }
}

impl From<ron_service::StoreError> for StoreError {
    fn from(error: ron_service::StoreError) -> Self {
        Self::Db(error.to_string())
    }
}
