//! Client of ron-kms.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Method};
use ron_kernel::Deadline;
use ron_proto::kms::{
    AdoptKey, AttestAnswer, AttestRequest, BackupAnswer, BackupKey, CreateKey, DestroyKey,
    ExportAnswer, ExportKey, ImportKey, IssuerPolicyInForce, KeyChanged, KeyDoc, KeyList,
    KeyVersionDoc, KeyVersions, PutIssuerPolicy, RandomAnswer, RandomRequest, RestoreKey,
    RetireKey, RotateAnswer, RotateLogKey, RotateLogKeyAnswer, RotateRequest, SignAnswer,
    SignBatch, SignBatchAnswer, SignRequest, UpdateKey, VerifyAnswer, VerifyRequest,
    WrappingKeyDoc,
};
use ron_proto::{Alg, Kid};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{Caller, ClientError, encode};
use ron_http::Credential;

/// Versions on a page: the maximum that the service gives.
const PAGE: u32 = 200;

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

    /// Creates a key; safe to repeat with the same `op_id`.
    pub fn create_key(
        &self,
        request: &CreateKey,
        deadline: Deadline,
    ) -> Result<KeyDoc, ClientError> {
        self.0.post("/v1/kms/keys", request, true, deadline)
    }

    pub fn key(&self, kid: &Kid, deadline: Deadline) -> Result<KeyDoc, ClientError> {
        self.0.get(&path(kid), deadline)
    }

    /// One page of the key's versions: at most `limit`, above `after`.
    pub fn versions(
        &self,
        kid: &Kid,
        (after, limit): (u32, u32),
        deadline: Deadline,
    ) -> Result<KeyVersions, ClientError> {
        let query = format!("after={after}&limit={limit}");
        self.0
            .get(&format!("{}/versions?{query}", path(kid)), deadline)
    }

    /// Every version above `after`, read page by page; each page may take as long as `within`.
    pub fn versions_above(
        &self,
        kid: &Kid,
        mut after: u32,
        within: Duration,
    ) -> Result<Vec<KeyVersionDoc>, ClientError> {
        let mut all = Vec::new();
        loop {
            let page = self.versions(kid, (after, PAGE), Deadline::within(within))?;
            all.extend(page.versions);
            match page.next.filter(|next| *next > after) {
                Some(next) => after = next,
                None => return Ok(all),
            }
        }
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

    /// Creates a new head version; safe to repeat when it carries an `op_id`.
    pub fn rotate(
        &self,
        kid: &Kid,
        request: &RotateRequest,
        deadline: Deadline,
    ) -> Result<RotateAnswer, ClientError> {
        self.on_key(kid, "rotate", request, request.op_id.is_some(), deadline)
    }

    /// Evidence of where a key is stored; safe to repeat.
    pub fn attest(
        &self,
        kid: &Kid,
        request: &AttestRequest,
        deadline: Deadline,
    ) -> Result<AttestAnswer, ClientError> {
        self.on_key(kid, "attest", request, true, deadline)
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

    pub fn verify(
        &self,
        request: &VerifyRequest,
        deadline: Deadline,
    ) -> Result<VerifyAnswer, ClientError> {
        self.0.post("/v1/kms/verify", request, true, deadline)
    }

    /// Random bytes; safe to repeat.
    pub fn random(
        &self,
        request: &RandomRequest,
        deadline: Deadline,
    ) -> Result<RandomAnswer, ClientError> {
        self.0.post("/v1/kms/random", request, true, deadline)
    }

    /// One page of keys: `filter` is a query such as `purpose=app&state=active`.
    pub fn keys_where(&self, filter: &str, deadline: Deadline) -> Result<KeyList, ClientError> {
        self.0.get(&format!("/v1/kms/keys?{filter}"), deadline)
    }

    /// Changes a key's settings; safe to repeat.
    pub fn update(
        &self,
        kid: &Kid,
        request: &UpdateKey,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        self.0
            .with_body(Method::PATCH, &path(kid), request, true, deadline)
    }

    /// Ends signing with a key; safe to repeat when it carries an `op_id`.
    pub fn retire(
        &self,
        kid: &Kid,
        request: &RetireKey,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        self.on_key(kid, "retire", request, request.op_id.is_some(), deadline)
    }

    /// Schedules a key's destruction; safe to repeat when it carries an `op_id`.
    pub fn destroy(
        &self,
        kid: &Kid,
        request: &DestroyKey,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        self.on_key(kid, "destroy", request, request.op_id.is_some(), deadline)
    }

    /// Cancels a scheduled destruction; safe to repeat when it carries an `op_id`.
    pub fn cancel_destroy(
        &self,
        kid: &Kid,
        request: &RetireKey,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        let idempotent = request.op_id.is_some();
        self.on_key(kid, "destroy/cancel", request, idempotent, deadline)
    }

    /// The key to which a key is wrapped for import.
    pub fn wrapping_key(
        &self,
        alg: Alg,
        deadline: Deadline,
    ) -> Result<WrappingKeyDoc, ClientError> {
        let alg = encode(alg.as_str());
        self.0
            .get(&format!("/v1/kms/wrapping_key?alg={alg}"), deadline)
    }

    /// Imports a wrapped key; safe to repeat with the same `op_id`.
    pub fn import(&self, request: &ImportKey, deadline: Deadline) -> Result<KeyDoc, ClientError> {
        self.0.post("/v1/kms/keys/import", request, true, deadline)
    }

    /// Exports a version of an exportable key, wrapped to a recipient. Not repeated, because each
    /// export is an audited event.
    pub fn export(
        &self,
        kid: &Kid,
        request: &ExportKey,
        deadline: Deadline,
    ) -> Result<ExportAnswer, ClientError> {
        self.on_key(kid, "export", request, false, deadline)
    }

    /// Makes a key of an object that a token has already; safe to repeat with the same operation id.
    pub fn adopt(&self, request: &AdoptKey, deadline: Deadline) -> Result<KeyDoc, ClientError> {
        self.0.post("/v1/kms/keys/adopt", request, true, deadline)
    }

    /// The key with all its versions, sealed under the seal key of its store. Not repeated, because each backup is an
    /// audited event.
    pub fn backup(
        &self,
        kid: &Kid,
        request: &BackupKey,
        deadline: Deadline,
    ) -> Result<BackupAnswer, ClientError> {
        self.on_key(kid, "backup", request, false, deadline)
    }

    /// Makes a key from a backup; safe to repeat with the same operation id.
    pub fn restore(&self, request: &RestoreKey, deadline: Deadline) -> Result<KeyDoc, ClientError> {
        self.0.post("/v1/kms/keys/restore", request, true, deadline)
    }

    fn on_key<B: Serialize, A: DeserializeOwned>(
        &self,
        kid: &Kid,
        what: &str,
        request: &B,
        idempotent: bool,
        deadline: Deadline,
    ) -> Result<A, ClientError> {
        let path = format!("{}/{what}", path(kid));
        self.0.post(&path, request, idempotent, deadline)
    }

    /// The issuer policy in force at the KMS.
    pub fn issuer_policy(&self, deadline: Deadline) -> Result<IssuerPolicyInForce, ClientError> {
        self.0.get("/v1/kms/issuer_policy", deadline)
    }

    /// Puts a signed issuer policy in force at the KMS; safe to repeat.
    pub fn put_issuer_policy(
        &self,
        request: &PutIssuerPolicy,
        deadline: Deadline,
    ) -> Result<IssuerPolicyInForce, ClientError> {
        let path = "/v1/kms/issuer_policy";
        self.0.with_body(Method::PUT, path, request, true, deadline)
    }

    /// The verifier key line of the audit log.
    pub fn audit_vkey(&self, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text("/audit/v1/vkey", deadline)
    }

    /// All keys of the audit log: the first verifier key line and the cross-signed rotations since.
    pub fn audit_keys(&self, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text("/audit/v1/keys", deadline)
    }

    /// Rotates the signing key of the audit log (`kms:admin`).
    pub fn rotate_log_key(
        &self,
        request: &RotateLogKey,
        deadline: Deadline,
    ) -> Result<RotateLogKeyAnswer, ClientError> {
        let idempotent = request.op_id.is_some();
        self.0
            .post("/v1/kms/log_key/rotate", request, idempotent, deadline)
    }

    /// Proof that a leaf is in the audit log.
    pub fn audit_proof(&self, index: u64, deadline: Deadline) -> Result<String, ClientError> {
        self.0
            .get_text(&format!("/audit/v1/proof/{index}"), deadline)
    }
}
