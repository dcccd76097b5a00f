//! Keys: making, reading and rotating them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, PayloadPolicy, RotateEvery, RotationDoc, WaitingDoc};
use crate::receipt::LogReceipt;
use crate::values::{Alg, Kid, OpId, Purpose, Tenant, Timestamp};

/// `POST /keys`: make a key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Must be the caller's tenant.
    pub tenant: Tenant,
    /// What the key is for; callers can be limited to `tenant/purpose/` prefixes.
    pub purpose: Purpose,
    /// Algorithm; one that no configured backend offers is refused with `unsupported`.
    pub alg: Alg,
    /// Where the key is made and kept, with all its versions; the service's own store when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<KeyBackend>,
    /// What the key may sign; `any` when absent.
    #[serde(default)]
    pub payload: PayloadPolicy,
    /// Whether the key may leave, wrapped; can be taken back later, never given.
    #[serde(default)]
    pub exportable: bool,
    /// Make a new version this often; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_every: Option<RotateEvery>,
    /// The same `op_id` with the same body returns the same key.
    pub op_id: OpId,
}

/// Where a key is kept. One that is not configured is refused with `unsupported`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyBackend {
    /// Sealed in the service's own store.
    File,
    /// In memory, lost at the next stop.
    Memory,
    /// Inside a PKCS#11 token.
    Pkcs11,
    /// Usable by one TPM only.
    Tpm,
    /// Inside another key service, which wraps and unwraps.
    Remote,
}

impl KeyBackend {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
            Self::Pkcs11 => "pkcs11",
            Self::Tpm => "tpm",
            Self::Remote => "remote",
        }
    }
}

/// State of a key.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// Signs with its head version, verifies with every version.
    #[default]
    Active,
    /// Verifies and unwraps, signs and wraps no more.
    Retired,
    /// As retired, until its secrets are destroyed at `destroy_at`; can be cancelled.
    PendingDestruction,
    /// Its secrets are gone. What it signed can still be verified.
    Destroyed,
}

impl KeyState {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Active,
        Self::Retired,
        Self::PendingDestruction,
        Self::Destroyed,
    ];

    /// The state's name on the wire and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Retired => "retired",
            Self::PendingDestruction => "pending_destruction",
            Self::Destroyed => "destroyed",
        }
    }
}

impl std::str::FromStr for KeyState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|state| state.as_str() == text);
        named.ok_or_else(|| {
            "a state is active, retired, pending_destruction or destroyed".to_owned()
        })
    }
}

/// A key as the KMS shows it: everything but the secret.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyDoc {
    /// `tenant/purpose/alg/uuid`.
    pub key: Kid,
    /// What it may sign.
    pub payload: PayloadPolicy,
    /// The version that signs.
    pub head: u32,
    /// The oldest version that still verifies.
    pub min_verify_version: u32,
    /// Its state.
    pub state: KeyState,
    /// Backend that holds it: a name of [`KeyBackend`].
    pub backend: String,
    /// What can be proven of where it is: `none` for keys of the service's own store, `statement` for a token,
    /// `tpm2-certify` for a TPM.
    pub attestation: String,
    /// Whether it may leave, wrapped.
    pub exportable: bool,
    /// Whether its first version came from outside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// When it was made.
    pub created: Timestamp,
    /// How it is rotated without being asked; absent when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationDoc>,
    /// The version after the head, published ahead of its use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingDoc>,
    /// When its secrets are destroyed; while it is pending, and afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_at: Option<Timestamp>,
    /// Every version, oldest first; `versions[n].version == n + 1`. The last is above the head
    /// while it waits for its time.
    pub versions: Vec<KeyVersionDoc>,
    /// Leaf of the audit log that records the making of the key; only in the answer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<LogReceipt>,
}

impl KeyDoc {
    /// The given version's document, if there is one.
    pub fn version(&self, version: u32) -> Option<&KeyVersionDoc> {
        self.versions.iter().find(|v| v.version == version)
    }

    /// The head version's document.
    pub fn head_version(&self) -> Option<&KeyVersionDoc> {
        self.version(self.head)
    }
}

/// One version of a key, with its public key in three forms.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyVersionDoc {
    /// From 1.
    pub version: u32,
    /// When it was made.
    pub created: Timestamp,
    /// Ed25519: 32 bytes. P-256: 65 bytes, uncompressed SEC 1 point. ML-DSA: FIPS 204. Hybrid: the
    /// Ed25519 key and the ML-DSA key after it. X25519: 32 bytes. X-Wing: the ML-KEM-768 key and
    /// the X25519 key after it. Empty for symmetric keys.
    #[serde(default, skip_serializing_if = "no_bytes")]
    pub public_key: Bytes,
    /// `SubjectPublicKeyInfo` in PEM, one block for each half of a hybrid; empty where there is no
    /// such form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub public_key_pem: String,
    /// The same key as a JWK, for algorithms that have a JWS name; its `kid` is the RFC 7638
    /// thumbprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwk: Option<Jwk>,
    /// Leaf of the audit log that records its making.
    pub receipt: LogReceipt,
}

fn no_bytes(bytes: &Bytes) -> bool {
    bytes.0.is_empty()
}

/// A public key in JWK form (RFC 7517, RFC 8037; ML-DSA as `AKP`).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwk {
    /// `OKP`, `EC` or `AKP`.
    pub kty: String,
    /// `Ed25519` or `P-256`; absent for `AKP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub crv: String,
    /// Base64url; absent for `AKP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub x: String,
    /// Base64url; P-256 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    /// Base64url; `AKP` only.
    #[serde(default, rename = "pub", skip_serializing_if = "Option::is_none")]
    pub public: Option<String>,
    /// RFC 7638 thumbprint, base64url of SHA-256.
    pub kid: String,
    /// `EdDSA`, `ES256`, `ML-DSA-44`, `ML-DSA-65` or `ML-DSA-87`.
    pub alg: String,
    /// Always `sig`.
    #[serde(rename = "use")]
    pub usage: String,
}

/// Answer of `GET /keys`, ordered by key name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyList {
    /// One page of keys of the caller's tenant.
    pub keys: Vec<KeyDoc>,
    /// Pass as `after` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
