//! Creating, reading and rotating keys.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, PayloadPolicy, RotateEvery, RotationDoc, TrimDoc, WaitingDoc};
use crate::receipt::LogReceipt;
use crate::values::{
    Alg, Alias, Kid, OpId, Purpose, TagName, TagValue, Tenant, Timestamp, TokenName,
};

/// `POST /keys`: create a key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Must be the caller's tenant.
    pub tenant: Tenant,
    /// Purpose of the key; callers can be restricted to `tenant/purpose/` prefixes.
    pub purpose: Purpose,
    /// Algorithm; rejected with `unsupported` when no configured backend offers it.
    pub alg: Alg,
    /// Backend that creates and keeps all versions of the key; the service's own store when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<KeyBackend>,
    /// Name of the PKCS#11 token, where `backend` is `pkcs11` and several tokens are configured. The token without a name, or the
    /// only one, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenName>,
    /// What the key may sign; `any` when absent.
    #[serde(default)]
    pub payload: PayloadPolicy,
    /// Whether the key may be exported in wrapped form; can be withdrawn later, never granted.
    #[serde(default)]
    pub exportable: bool,
    /// Whether each use names a context and has a key of its own, derived from the key and the context: for `aes128-gcm`,
    /// `aes256-gcm` and `chacha20-poly1305`, and used by Vault's paths alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub derived: bool,
    /// Rotation period; no automatic rotation when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_every: Option<RotateEvery>,
    /// Idempotency key: a repetition with the same body returns the same key for 24 hours.
    pub op_id: OpId,
}

/// `POST /keys/adopt`: make a key of an object that a PKCS#11 token has already.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptKey {
    /// Must be the caller's tenant.
    pub tenant: Tenant,
    /// Purpose of the key.
    pub purpose: Purpose,
    /// Algorithm of the object.
    pub alg: Alg,
    /// The object: its private key, and its public key under the same `CKA_ID`; or its AES key.
    pub object: TokenObject,
    /// Name of the token, where several are configured. The token without a name, or the only one, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenName>,
    /// What the key may sign; `any` when absent.
    #[serde(default)]
    pub payload: PayloadPolicy,
    /// Idempotency key: a repetition with the same body returns the same key for 24 hours.
    pub op_id: OpId,
}

/// The name of an object in a token. It must name one object of its class.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenObject {
    /// Its `CKA_LABEL`.
    Label(String),
    /// Its `CKA_ID`, in hex.
    Id(String),
}

impl std::fmt::Display for TokenObject {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Label(label) => write!(out, "label {label}"),
            Self::Id(id) => write!(out, "id {id}"),
        }
    }
}

/// Backend that keeps a key. One that is not configured is rejected with `unsupported`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyBackend {
    /// Sealed in the service's own store.
    File,
    /// In memory, lost when the service stops.
    Memory,
    /// Inside a PKCS#11 token.
    Pkcs11,
    /// Sealed to one TPM, usable only there.
    Tpm,
    /// Inside another key service, which wraps and unwraps.
    Remote,
}

impl KeyBackend {
    pub const ALL: [Self; 5] = [
        Self::File,
        Self::Memory,
        Self::Pkcs11,
        Self::Tpm,
        Self::Remote,
    ];

    /// Whether its private keys are in the service's memory while they are used.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::File | Self::Memory)
    }

    /// The name on the wire and in metrics.
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
    /// Verifies and unwraps; no longer signs or wraps.
    Retired,
    /// As retired, until its secrets are destroyed at `destroy_at`; can be cancelled.
    PendingDestruction,
    /// Its secrets are destroyed. Its signatures can still be verified.
    Destroyed,
}

impl KeyState {
    /// Whether the key stays: its destruction is not ordered.
    pub const fn is_kept(self) -> bool {
        matches!(self, Self::Active | Self::Retired)
    }

    /// Every state.
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

/// A key as the API shows it: everything but the secret.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyDoc {
    /// Name of the key, `tenant/purpose/alg/uuid`.
    pub key: Kid,
    /// What the key may sign.
    pub payload: PayloadPolicy,
    /// The version that signs.
    pub head: u32,
    /// When the head began to sign, if it was published before; otherwise it signs since it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_since: Option<Timestamp>,
    /// The oldest version that still verifies.
    pub min_verify_version: u32,
    /// The oldest version with which Vault's paths encrypt; absent when that is the head alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_wrap_version: u32,
    /// The oldest version whose secret still exists; absent when that is the first one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_available_version: u32,
    /// An ordered destruction of old versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<TrimDoc>,
    /// Whether `DELETE` under Vault's paths may order the destruction of the key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_allowed: bool,
    /// State of the key.
    pub state: KeyState,
    /// Backend that keeps the key: a name of [`KeyBackend`].
    pub backend: String,
    /// Name of the PKCS#11 token that keeps the key; absent for a token that has no name in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenName>,
    /// What can be proven about where the key is kept: `none` for keys of the service's own store,
    /// `statement` for a PKCS#11 token, `adopted` for an object of a token that others made,
    /// `tpm2-certify` for a TPM.
    pub attestation: String,
    /// Whether the key may be exported in wrapped form.
    pub exportable: bool,
    /// Whether its first version was imported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// Whether each use names a context from which its key is derived; only Vault's paths use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub derived: bool,
    /// When the key was created.
    pub created: Timestamp,
    /// Automatic rotation; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationDoc>,
    /// The version after the head, published before it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingDoc>,
    /// When its secrets will be or were destroyed; absent unless destruction was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_at: Option<Timestamp>,
    /// What it is for, in the words of its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its aliases, each without `alias/`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub aliases: BTreeSet<Alias>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, TagValue>,
    /// The head, and the version above it while it waits to be used; absent in lists.
    /// `GET /keys/{tenant}/{purpose}/{alg}/{id}/versions` pages through all versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<KeyVersionDoc>,
    /// Leaf of the audit log that records the creation of the key; only in the response to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<LogReceipt>,
}

impl KeyDoc {
    /// The head version's document; `None` in lists.
    pub fn head_version(&self) -> Option<&KeyVersionDoc> {
        self.versions.iter().find(|v| v.version == self.head)
    }

    /// The newest version: the one that waits, or the head.
    pub fn newest(&self) -> u32 {
        self.waiting
            .as_ref()
            .map_or(self.head, |waiting| waiting.version)
    }
}

/// One version of a key, with its public key in three forms.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyVersionDoc {
    /// Version number, from 1.
    pub version: u32,
    /// When this version was created.
    pub created: Timestamp,
    /// Ed25519: 32 bytes. ECDSA: uncompressed SEC 1 point. RSA: `RSAPublicKey` in DER. ML-DSA: FIPS 204. Hybrid
    /// signatures: the Ed25519 key followed by the ML-DSA key. X25519: 32 bytes. X-Wing: the
    /// ML-KEM-768 key followed by the X25519 key. Empty for symmetric keys.
    #[serde(default, skip_serializing_if = "no_bytes")]
    pub public_key: Bytes,
    /// `SubjectPublicKeyInfo` in PEM, one block for each component of a hybrid key; empty when the
    /// algorithm has no such form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub public_key_pem: String,
    /// The same key as a JWK, for signatures with a JWS name and for key agreement; its `kid` is the RFC 7638 thumbprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwk: Option<Jwk>,
    /// Leaf of the audit log that records the creation of this version.
    pub receipt: LogReceipt,
    /// Whether its stored record is damaged: it verifies, and neither signs nor decrypts until it is
    /// restored from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn no_bytes(bytes: &Bytes) -> bool {
    bytes.0.is_empty()
}

/// A public key in JWK form (RFC 7517, RFC 8037; ML-DSA as `AKP`).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwk {
    /// Key type: `OKP`, `EC`, `RSA` or `AKP`.
    pub kty: String,
    /// Curve: `Ed25519`, `X25519`, `P-256`, `P-384` or `secp256k1`; absent for `RSA` and `AKP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub crv: String,
    /// Public key or x coordinate, base64url; absent for `RSA` and `AKP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub x: String,
    /// y coordinate, base64url; `EC` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    /// Modulus, base64url; `RSA` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    /// Exponent, base64url; `RSA` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
    /// Public key, base64url; `AKP` only.
    #[serde(default, rename = "pub", skip_serializing_if = "Option::is_none")]
    pub public: Option<String>,
    /// RFC 7638 thumbprint, base64url of SHA-256.
    pub kid: String,
    /// Algorithm: `EdDSA`, `ES256`, `ES384`, `ES256K`, `ML-DSA-44`, `ML-DSA-65` or `ML-DSA-87`; absent for an `RSA` key, which
    /// signs in several ways, and for key agreement.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub alg: String,
    /// Key use: `sig`, or `enc` for key agreement.
    #[serde(rename = "use")]
    pub usage: String,
}

/// Response of `GET /keys/{tenant}/{purpose}/{alg}/{id}/versions`, ordered by version.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyVersions {
    /// One page of the key's versions, oldest first. The last one is above the head while it waits
    /// to be used.
    pub versions: Vec<KeyVersionDoc>,
    /// Value of `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// A key whose stored metadata is damaged: reading it is refused with the code `quarantined`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuarantinedKey {
    /// Its name.
    pub key: Kid,
    /// Out of use.
    pub state: QuarantinedState,
    /// What is damaged, and the remedy.
    pub reason: String,
}

/// The state of a key whose stored state cannot be read.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuarantinedState {
    /// Out of use until the key store is restored from a backup.
    Quarantined,
}

/// Response of `GET /keys`, ordered by key name.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyList {
    /// One page of keys of the caller's tenant, without their versions.
    pub keys: Vec<KeyDoc>,
    /// The keys of this page that are out of use because their stored metadata is damaged; not with a filter by state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<QuarantinedKey>,
    /// Value of `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
