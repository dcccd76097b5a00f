//! Bodies of the routes `/v1/transit/...`, in the format of HashiCorp Vault's Transit API. Members that are not named here are ignored, as
//! Vault does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize as _;

/// The body of `keys/{name}`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Create {
    /// Type of the key: `aes256-gcm96` (when absent), `aes128-gcm96`, `chacha20-poly1305`, `ed25519`, `ecdsa-p256`, `ecdsa-p384`, `rsa-2048`, `rsa-3072`, `rsa-4096`,
    /// `ml-dsa` or `hmac`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Parameter set of `ml-dsa`: `44`, `65` (when absent) or `87`.
    pub parameter_set: Option<String>,
    /// Bytes of an `hmac` key: absent, 0 or 32.
    pub key_size: Option<u32>,
    /// Whether each use names a `context` from which its key is derived; for types that encrypt with a nonce.
    pub derived: Option<bool>,
    /// Absent or false: convergent encryption is not offered.
    pub convergent_encryption: Option<bool>,
    /// Absent or false: keys are exported only wrapped, through the native API.
    pub exportable: Option<bool>,
    /// Absent or false: plaintext backups are not offered.
    pub allow_plaintext_backup: Option<bool>,
    /// Rotation period: seconds, or a text such as `24h`; 0 (when absent) for none.
    pub auto_rotate_period: Option<Period>,
}

/// A period as clients of Vault write it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(
    untagged,
    expecting = "expected a whole number of seconds, or a text such as `1h30m`"
)]
pub enum Period {
    /// In seconds.
    Seconds(u64),
    /// Whole numbers with the units `s`, `m`, `h` or `d`, one after the other, or a number of seconds.
    Text(String),
}

/// The body of `keys/{name}/config`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Configure {
    /// The oldest version that decrypts and verifies; 0 or absent leaves it unchanged.
    pub min_decryption_version: Option<u32>,
    /// The oldest version that encrypts and makes MACs; 0 for the newest alone; absent leaves it unchanged. Signatures are made
    /// with the newest version.
    pub min_encryption_version: Option<u32>,
    /// Whether the key may be deleted; absent leaves it unchanged.
    pub deletion_allowed: Option<bool>,
    /// Absent or false: keys are exported through the native API, wrapped.
    pub exportable: Option<bool>,
    /// Absent or false: plaintext backups are not offered.
    pub allow_plaintext_backup: Option<bool>,
    /// Rotation period: seconds, or a text such as `24h`; 0 for none; absent leaves it unchanged.
    pub auto_rotate_period: Option<Period>,
}

/// The body of `keys/{name}/trim`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Trim {
    /// The versions below this one are destroyed.
    pub min_available_version: Option<u32>,
}

/// The body of `keys/{name}/import` and `import_version`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Import {
    /// In base64: an AES-256 key under the wrapping key (RSA-OAEP), then the key under that one (AES-KWP). Symmetric keys as they
    /// are, others as PKCS#8.
    pub ciphertext: Option<String>,
    /// Hash function of RSA-OAEP: `SHA256` only.
    pub hash_function: Option<String>,
    /// Type of the key, as in `keys/{name}`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Ignored: every key may be rotated.
    pub allow_rotation: Option<bool>,
    /// Absent or false: keys that come in are not derived.
    pub derived: Option<bool>,
    /// Absent or false: keys are exported only wrapped, through the native API.
    pub exportable: Option<bool>,
    /// Absent or false: plaintext backups are not offered.
    pub allow_plaintext_backup: Option<bool>,
    /// Rotation period: seconds, or a text such as `24h`; 0 (when absent) for none.
    pub auto_rotate_period: Option<Period>,
}

/// The body of `restore`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Restore {
    /// What `backup` returned.
    pub backup: Option<String>,
    /// Ignored: a key that exists is never overwritten.
    pub force: Option<bool>,
}

/// The body of `encrypt`, `decrypt`, `rewrap` and `hmac`, and an item of their batches.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Crypt {
    /// The plaintext to encrypt, in base64.
    pub plaintext: Option<PlainText>,
    /// The ciphertext to decrypt or rewrap, as `vault:vN:<base64>`.
    pub ciphertext: Option<String>,
    /// The message of the MAC, in base64.
    pub input: Option<String>,
    /// Associated data in base64, at most the limit of the native API.
    pub associated_data: Option<String>,
    /// The version that encrypts or makes the MAC: absent or 0 for the newest; older ones from `min_encryption_version` on.
    pub key_version: Option<u32>,
    /// Hash function of a MAC: `sha2-256` only.
    pub algorithm: Option<String>,
    /// The context in base64 from which the key of this use is derived; for keys that are `derived`, and only for them.
    pub context: Option<String>,
    /// Absent or empty: convergent encryption is not offered.
    pub nonce: Option<String>,
    /// The type of the key that is made when there is none: `aes256-gcm96` when absent.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Absent or false: convergent encryption is not offered.
    pub convergent_encryption: Option<bool>,
    /// Returned unchanged with the item's result.
    pub reference: Option<String>,
    /// The items of a batch, 1 to 1,000, instead of one value.
    pub batch_input: Option<Vec<Crypt>>,
    /// HTTP status of the answer when an item of the batch fails; 400 when absent.
    pub partial_failure_response_code: Option<u16>,
}

/// Text that is erased when it is dropped.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(transparent)]
pub struct PlainText(pub String);

impl Drop for PlainText {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The body of `datakey`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Datakey {
    /// Bits of the data key: 128, 256 (when absent) or 512.
    pub bits: Option<u32>,
    /// The context in base64 from which the key of this use is derived; for keys that are `derived`, and only for them.
    pub context: Option<String>,
    /// Absent or empty: convergent encryption is not offered.
    pub nonce: Option<String>,
}

/// The body of `random`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Draw {
    /// Number of random bytes; 32 when absent.
    pub bytes: Option<u32>,
    /// `base64` (when absent) or `hex`.
    pub format: Option<String>,
    /// `platform` or `all`: both mean the operating system's generator.
    pub source: Option<String>,
}

/// The body of `hash`.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Hash {
    /// The message to hash, in base64.
    pub input: Option<String>,
    /// `sha2-256` (when absent), `sha2-384` or `sha2-512`; the path may name it too.
    pub algorithm: Option<String>,
    /// `hex` (when absent) or `base64`.
    pub format: Option<String>,
}

/// The length of a salt, as clients of Vault write it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(untagged, expecting = "expected `auto`, `hash` or a number of bytes")]
pub enum SaltLength {
    /// In bytes.
    Bytes(u32),
    /// `auto`, `hash` or a number of bytes.
    Text(String),
}

/// A body without members, which may be missing.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
pub struct Nothing {}

/// The body of `sign` and `verify`, and an item of their batches.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Sign {
    /// Ignored: the path names the key.
    pub name: Option<String>,
    /// The message to sign or verify, in base64.
    pub input: Option<String>,
    /// The signature to verify, as `vault:vN:<base64>`.
    pub signature: Option<String>,
    /// The MAC to verify instead of a signature, as `vault:vN:<base64>`.
    pub hmac: Option<String>,
    /// The version that signs: absent, 0 or the newest; other versions are refused.
    pub key_version: Option<u32>,
    /// Hash function: of ECDSA and RSA `sha2-256` (when absent), `sha2-384` or `sha2-512`; of MACs `sha2-256`; ignored for other
    /// types.
    pub hash_algorithm: Option<String>,
    /// Older name of `hash_algorithm`, with the same rule.
    pub algorithm: Option<String>,
    /// Whether `input` is the hash of the message; for ECDSA and RSA keys.
    pub prehashed: Option<bool>,
    /// Padding of RSA: `pss` (when absent) or `pkcs1v15`.
    pub signature_algorithm: Option<String>,
    /// Of PSS: `auto` (when absent), `hash`, or the number of bytes of the hash; salts are always as long as the hash.
    pub salt_length: Option<SaltLength>,
    /// Encoding of ECDSA signatures: `asn1` (when absent) or `jws`.
    pub marshaling_algorithm: Option<String>,
    /// Absent or empty: derived keys are not offered.
    pub context: Option<String>,
    /// Returned unchanged with the item's result.
    pub reference: Option<String>,
    /// The items of a batch, 1 to 1,000, instead of one value.
    pub batch_input: Option<Vec<Sign>>,
    /// HTTP status of the answer when an item of the batch fails; 400 when absent.
    pub partial_failure_response_code: Option<u16>,
}
