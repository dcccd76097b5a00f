//! The identity of a backend.

use std::fmt;

use ron_proto::kms::KeyBackend;
use ron_proto::values::TokenName;

/// A backend that holds keys. Displays as its name in errors, metrics and readiness: `file`, `pkcs11`, or `pkcs11-old` for
/// the token `old`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendId {
    pub kind: KeyBackend,
    /// The token's name in the configuration; only of PKCS#11 tokens, and not of that of `pkcs11.token`.
    pub token: Option<TokenName>,
}

impl BackendId {
    /// Whether it is the service's own store and no device.
    pub fn is_local(&self) -> bool {
        self.kind.is_local()
    }
}

impl From<KeyBackend> for BackendId {
    fn from(kind: KeyBackend) -> Self {
        Self { kind, token: None }
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.as_str())?;
        match &self.token {
            Some(name) => write!(f, "-{name}"),
            None => Ok(()),
        }
    }
}
