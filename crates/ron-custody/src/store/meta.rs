//! The metadata of a key, as the store keeps it under a MAC.

use ron_proto::jcs;
use ron_proto::kms::{KeyBackend, KeyState, PayloadPolicy};
use ron_proto::values::{Timestamp, TokenName};
use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::backend::BackendId;
use crate::index::{Rotation, Trim, Waiting};
use crate::labels::Labels;

/// Metadata of a key, stored as canonical JSON under a MAC. Members that were added later are absent while they hold
/// their default, so that the stored bytes of a key that does not use them do not change.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Its policy, its grants, and what waits for approvals.
    #[serde(default, skip_serializing_if = "Access::is_empty")]
    pub access: Access,
    /// Whether its first version was in the device before it was a key here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The device that holds the key; absent for local keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<KeyBackend>,
    /// When the key was made.
    pub created: Timestamp,
    /// Whether `DELETE` under Vault's paths may order its destruction.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_allowed: bool,
    /// Whether each use has a key of its own, derived from a context.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub derived: bool,
    /// When its secrets are (or were) destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_at: Option<Timestamp>,
    /// Whether its secrets are destroyed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub destroyed: bool,
    /// Whether it may be exported, wrapped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exportable: bool,
    /// The version that signs.
    pub head: u32,
    /// When the head began to sign, if it waited before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_since: Option<Timestamp>,
    /// Whether its first version was imported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// Aliases, tags and description.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The oldest version whose secret exists; 0 stands for the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_available: u32,
    /// The oldest version that verifies.
    pub min_verify: u32,
    /// The oldest version that Vault's paths encrypt with; 0 stands for the head alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_wrap: u32,
    /// Size and hex root of the newest checkpoint signed by a `note` key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<(u64, String)>,
    /// Which payloads it may sign.
    pub payload: PayloadPolicy,
    /// Whether it is retired: it verifies and unwraps, but no longer signs or wraps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
    /// Schedule of automatic rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// The name of the PKCS#11 token that holds the key; absent for the token that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenName>,
    /// An ordered destruction of the secrets of old versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<Trim>,
    /// Reserved uses of each version, in order of versions, for keys whose nonces are counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<u32>,
    /// Set while the version above the head is published but does not sign yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Meta {
    /// The metadata of a new key.
    pub fn new(created: Timestamp, backend: BackendId, payload: PayloadPolicy) -> Self {
        Self {
            access: Access::default(),
            adopted: false,
            backend: (!backend.is_local()).then_some(backend.kind),
            created,
            deletion_allowed: false,
            derived: false,
            destroy_at: None,
            destroyed: false,
            exportable: false,
            head: 1,
            head_since: None,
            imported: false,
            labels: Labels::default(),
            min_available: 0,
            min_verify: 1,
            min_wrap: 0,
            note: None,
            payload,
            retired: false,
            rotation: None,
            token: backend.token,
            trim: None,
            uses: Vec::new(),
            waiting: None,
        }
    }

    /// The backend that holds the key; `local` is the local one.
    pub fn backend(&self, local: KeyBackend) -> BackendId {
        self.device().unwrap_or_else(|| local.into())
    }

    /// The device that holds the key; `None` for local keys.
    pub fn device(&self) -> Option<BackendId> {
        self.backend.map(|kind| BackendId {
            kind,
            token: self.token.clone(),
        })
    }

    /// Whether a device has its secrets, which a copy of its records is of no use without.
    pub fn is_held_by_device(&self) -> bool {
        self.backend.is_some_and(|kind| !kind.is_local()) && !self.destroyed
    }

    pub fn state(&self) -> KeyState {
        match (self.destroyed, self.destroy_at, self.retired) {
            (true, ..) => KeyState::Destroyed,
            (_, Some(_), _) => KeyState::PendingDestruction,
            (_, None, true) => KeyState::Retired,
            (_, None, false) => KeyState::Active,
        }
    }

    pub fn versions(&self) -> u32 {
        self.head + u32::from(self.waiting.is_some())
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        jcs::to_vec(self).expect("metadata holds strings and integers only")
    }
}
