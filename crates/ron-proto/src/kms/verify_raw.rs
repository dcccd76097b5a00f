//! Verification with a public key given in the request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, Scheme};
use crate::values::Alg;

/// `POST /verify/raw`: check one signature with a public key that need not belong to this service.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRawRequest {
    /// An algorithm that signs; the components of a hybrid key are verified one by one.
    pub alg: Alg,
    /// How the signature was made, as in [`super::SignRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Public key as in key documents: Ed25519 32 bytes; ECDSA the uncompressed point; RSA `RSAPublicKey` in DER; ML-DSA as FIPS
    /// 204.
    pub public_key: Bytes,
    /// The signed bytes, at most [`super::MESSAGE_BYTES_MAX`].
    pub message: Bytes,
    /// Signature to check, as in [`super::Signature`].
    pub signature: Bytes,
}

/// Response of `POST /verify/raw`. An invalid signature gives `ok: false`, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRawAnswer {
    /// Whether the signature is valid.
    pub ok: bool,
}
