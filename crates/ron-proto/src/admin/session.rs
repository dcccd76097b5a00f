//! Sessions of browsers at the console.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::Timestamp;

/// `POST /api/session`: opens a session, whose cookie no script can read. Exactly one member is sent.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRequest {
    /// A passport for this console, as `ron token --audience svc-admin` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A code of `POST /api/session/code`, which `ron console` puts into the page's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl std::fmt::Debug for SessionRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionRequest")
    }
}

/// `POST /api/session/code`: a code that opens one session of the caller's passport.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionCode {
    pub as_of: Timestamp,
    /// Can be used once.
    pub code: String,
    /// Seconds until the code expires.
    pub expires_seconds: u64,
}

impl std::fmt::Debug for SessionCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionCode")
    }
}
