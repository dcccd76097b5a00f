//! Attestation of where a key is held, as far as an offline verifier needs it: the statement's bytes, the structures of a
//! TPM's evidence, and [`verify`], which checks both.

pub mod tpm_format;
pub mod verify;

use ron_crypto::hash::sha256;
use ron_proto::jcs;
use ron_proto::kms::{STATEMENT_PREFIX, Statement, TPM_NONCE_PREFIX};

/// The bytes that the log's key signs.
pub fn statement_bytes(statement: &Statement) -> Vec<u8> {
    let json = jcs::to_vec(statement).expect("a statement holds strings and integers only");
    [STATEMENT_PREFIX, &json].concat()
}

/// The nonce for the TPM, which binds its evidence to the statement.
pub fn tpm_nonce(statement: &Statement) -> [u8; 32] {
    let json = jcs::to_vec(statement).expect("a statement holds strings and integers only");
    sha256(&[TPM_NONCE_PREFIX, &json].concat())
}
