//! ron-kms.

use std::sync::Arc;

use ron_http::HttpClient;
use ron_kernel::Deadline;
use ron_proto::Kid;
use ron_proto::kms::{
    AttestAnswer, AttestRequest, CreateKey, KeyDoc, KeyList, RotateAnswer, RotateLogKey,
    RotateLogKeyAnswer, RotateRequest, SignAnswer, SignBatch, SignBatchAnswer, SignRequest,
    VerifyAnswer, VerifyRequest,
};

use crate::call::{Caller, ClientError, encode};
use crate::credential::Credential;

/// A client of ron-kms.
#[derive(Debug, Clone)]
pub struct KmsClient(Caller);

fn path(kid: &Kid) -> String {
    format!("/v1/kms/keys/{kid}")
}

impl KmsClient {
    /// A client of the KMS at `base`.
    pub fn new(base: &str, credential: Credential, http: Arc<HttpClient>) -> Self {
        Self(Caller::new(base, credential, http))
    }

    /// Makes a key; safe to repeat with the same `op_id`.
    pub fn create_key(
        &self,
        request: &CreateKey,
        deadline: Deadline,
    ) -> Result<KeyDoc, ClientError> {
        self.0.post("/v1/kms/keys", request, true, deadline)
    }

    /// One key.
    pub fn key(&self, kid: &Kid, deadline: Deadline) -> Result<KeyDoc, ClientError> {
        self.0.get(&path(kid), deadline)
    }

    /// One page of keys, after the given one.
    pub fn keys(&self, after: Option<&str>, deadline: Deadline) -> Result<KeyList, ClientError> {
        match after {
            None => self.0.get("/v1/kms/keys", deadline),
            Some(after) => self
                .0
                .get(&format!("/v1/kms/keys?after={}", encode(after)), deadline),
        }
    }

    /// Makes a new head version; safe to repeat when it carries an `op_id`.
    pub fn rotate(
        &self,
        kid: &Kid,
        request: &RotateRequest,
        deadline: Deadline,
    ) -> Result<RotateAnswer, ClientError> {
        let idempotent = request.op_id.is_some();
        self.0.post(
            &format!("{}/rotate", path(kid)),
            request,
            idempotent,
            deadline,
        )
    }

    /// Evidence of where a key is; safe to repeat.
    pub fn attest(
        &self,
        kid: &Kid,
        request: &AttestRequest,
        deadline: Deadline,
    ) -> Result<AttestAnswer, ClientError> {
        self.0
            .post(&format!("{}/attest", path(kid)), request, true, deadline)
    }

    /// Signs; repeated after an unknown outcome only when it carries an `op_id`.
    pub fn sign(
        &self,
        request: &SignRequest,
        deadline: Deadline,
    ) -> Result<SignAnswer, ClientError> {
        let idempotent = request.op_id.is_some();
        self.0.post("/v1/kms/sign", request, idempotent, deadline)
    }

    /// Signs many; repeated after an unknown outcome only when every item carries an `op_id`.
    pub fn sign_batch(
        &self,
        request: &SignBatch,
        deadline: Deadline,
    ) -> Result<SignBatchAnswer, ClientError> {
        let idempotent = request.items.iter().all(|item| item.op_id.is_some());
        self.0
            .post("/v1/kms/sign_batch", request, idempotent, deadline)
    }

    /// Verifies.
    pub fn verify(
        &self,
        request: &VerifyRequest,
        deadline: Deadline,
    ) -> Result<VerifyAnswer, ClientError> {
        self.0.post("/v1/kms/verify", request, true, deadline)
    }

    /// The verifier key line of the audit log.
    pub fn audit_vkey(&self, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text("/audit/v1/vkey", deadline)
    }

    /// All keys of the audit log: the first verifier key line and the cross-signed rotations since.
    pub fn audit_keys(&self, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text("/audit/v1/keys", deadline)
    }

    /// Makes a new signing key of the audit log (`kms:admin`).
    pub fn rotate_log_key(
        &self,
        request: &RotateLogKey,
        deadline: Deadline,
    ) -> Result<RotateLogKeyAnswer, ClientError> {
        let idempotent = request.op_id.is_some();
        self.0
            .post("/v1/kms/log_key/rotate", request, idempotent, deadline)
    }

    /// The latest checkpoint of the audit log.
    pub fn audit_checkpoint(&self, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text("/audit/v1/checkpoint", deadline)
    }

    /// Proof that a leaf is in the audit log.
    pub fn audit_proof(&self, index: u64, deadline: Deadline) -> Result<String, ClientError> {
        self.0
            .get_text(&format!("/audit/v1/proof/{index}"), deadline)
    }
}
