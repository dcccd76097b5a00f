//! Digests to sign, and the policy that restricts what a key may sign.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of a note origin, `iss`, `typ` or `aud` of a payload policy, in bytes.
pub const POLICY_TEXT_BYTES_MAX: usize = 256;
/// Maximum number of entries of `typ` or of `aud` in a [`JwtPolicy`].
pub const POLICY_LIST_MAX: usize = 32;
/// Maximum token lifetime a [`JwtPolicy`] may allow, in seconds (31 days).
pub const JWT_TTL_S_MAX: u64 = 31 * 24 * 3600;

/// Hash function of a [`Digest`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DigestAlg {
    /// BLAKE3 with 256 bits of output.
    Blake3,
    /// SHA-256.
    Sha256,
}

impl DigestAlg {
    /// The name that is signed along with the digest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
        }
    }
}

/// A digest to sign instead of a message. The signed bytes are
/// `"ron-kms/v1/digest\0" || alg || "\0" || 32 bytes`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Digest {
    /// Hash function of the digest.
    pub alg: DigestAlg,
    /// The digest, 64 lower-case hex digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub value: String,
}

impl Digest {
    /// A digest from its 32 raw bytes.
    pub fn new(alg: DigestAlg, raw: &[u8; 32]) -> Self {
        Self {
            alg,
            value: hex::encode(raw),
        }
    }

    /// The 32 raw bytes; `None` unless the value is exactly 64 lower-case hex digits.
    pub fn raw(&self) -> Option<[u8; 32]> {
        let lower = self
            .value
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let mut raw = [0_u8; 32];
        (lower && hex::decode_to_slice(&self.value, &mut raw).is_ok()).then_some(raw)
    }
}

/// What a key may sign; fixed when the key is created. On the wire `"any"`, `"digest"`, `"prehash"`,
/// `{"note": {...}}` or `{"jwt": {...}}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PayloadPolicy {
    /// Any digest, and any message except one that imitates a digest request.
    #[default]
    Any,
    /// Digests only, never a message.
    Digest,
    /// Of ECDSA and RSA keys: hashes that callers made of data of any size, and messages. Signatures have the standard form
    /// that other programs verify, and nothing that this service frames or parses is signed.
    Prehash,
    /// C2SP note texts of one origin; checkpoints among them may only grow.
    Note(NotePolicy),
    /// JWS signing inputs whose header and claims are within the given limits.
    Jwt(JwtPolicy),
}

impl PayloadPolicy {
    /// The policy's name: `any`, `digest`, `prehash`, `note` or `jwt`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Digest => "digest",
            Self::Prehash => "prehash",
            Self::Note(_) => "note",
            Self::Jwt(_) => "jwt",
        }
    }
}

/// Parameters of the payload policy `note`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotePolicy {
    /// The required first line of every note.
    pub origin: String,
}

/// Parameters of the payload policy `jwt`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JwtPolicy {
    /// Allowed header `typ` values, for example `at+jwt`, `statuslist+jwt`.
    pub typ: Vec<String>,
    /// The only `iss` claim allowed.
    pub iss: String,
    /// Allowed `aud` values; for a token with an array, every entry must be listed here. A token of
    /// type `at+jwt` must have an audience. Absent with `issuer_policy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aud: Vec<String>,
    /// Whether tokens of type `at+jwt` must be those that the signed issuer policy in force allows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub issuer_policy: bool,
    /// Maximum of `exp - iat`, in seconds.
    pub max_ttl_s: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_policy_on_the_wire() {
        let check = |json: &str, ok: bool| {
            let got = serde_json::from_str::<PayloadPolicy>(json);
            assert_eq!(got.is_ok(), ok, "{json}: {got:?}");
            if let Ok(policy) = got {
                let again = serde_json::to_string(&policy).expect("serialises");
                assert_eq!(again, json);
            }
        };
        check("\"any\"", true);
        check("\"digest\"", true);
        check("\"prehash\"", true);
        check(r#"{"note":{"origin":"o"}}"#, true);
        check(
            r#"{"jwt":{"typ":["at+jwt"],"iss":"i","aud":["a"],"max_ttl_s":60}}"#,
            true,
        );
        check(
            r#"{"jwt":{"typ":["at+jwt"],"iss":"i","issuer_policy":true,"max_ttl_s":60}}"#,
            true,
        );
        check("\"jwt\"", false);
        check("\"Any\"", false);
        check(r#"{"note":{"origin":"o","more":1}}"#, false);
        check(r#"{"jwt":{"typ":["at+jwt"],"iss":"i","aud":["a"]}}"#, false);
    }

    #[test]
    fn digest_is_lower_hex() {
        let check = |value: &str, ok: bool| {
            let digest = Digest {
                alg: DigestAlg::Sha256,
                value: value.into(),
            };
            assert_eq!(digest.raw().is_some(), ok, "{value}");
        };
        check(&"0a".repeat(32), true);
        check(&"0A".repeat(32), false);
        check(&"0a".repeat(31), false);
        check(&"0g".repeat(32), false);
    }
}
