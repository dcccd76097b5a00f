//! Client of ron-kms.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Method};
use ron_kernel::Deadline;
use ron_proto::kms::{
    AdoptKey, AliasDoc, AliasList, ApprovalList, Approve, AskApproval, AttestAnswer, AttestRequest,
    BackupAnswer, BackupKey, CreateKey, DeleteAlias, DeriveAnswer, DeriveRequest, DestroyKey,
    ExplainKeyPolicy, ExportAnswer, ExportKey, GrantList, ImportKey, IssuerPolicyInForce,
    KeyChanged, KeyDoc, KeyList, KeyPolicyDoc, KeyPolicyExplained, KeyVersionDoc, KeyVersions,
    MakeGrant, PutIssuerPolicy, PutKeyPolicy, RandomAnswer, RandomRequest, RestoreKey, RetireGrant,
    RetireKey, RotateAnswer, RotateLogKey, RotateLogKeyAnswer, RotateRequest, SetAlias, SignAnswer,
    SignBatch, SignBatchAnswer, SignRequest, UpdateKey, VerifyAnswer, VerifyRequest,
    WrappingKeyDoc,
};
use ron_proto::values::Alias;
use ron_proto::{Alg, Kid, OpId};

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

fn alias_path(alias: &Alias) -> String {
    format!("/v1/kms/aliases/{alias}")
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

    /// Derives a secret and uses it; repeated after an unknown outcome only when it carries an `op_id`.
    pub fn derive(
        &self,
        request: &DeriveRequest,
        deadline: Deadline,
    ) -> Result<DeriveAnswer, ClientError> {
        let idempotent = request.op_id.is_some();
        self.0.post("/v1/kms/derive", request, idempotent, deadline)
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

    /// The key that an alias names.
    pub fn alias(&self, alias: &Alias, deadline: Deadline) -> Result<AliasDoc, ClientError> {
        self.0.get(&alias_path(alias), deadline)
    }

    /// One page of the tenant's aliases, after the given one.
    pub fn aliases(
        &self,
        after: Option<&Alias>,
        deadline: Deadline,
    ) -> Result<AliasList, ClientError> {
        let after = after.map(|after| format!("&after={after}"));
        let query = format!("limit={PAGE}{}", after.unwrap_or_default());
        self.0.get(&format!("/v1/kms/aliases?{query}"), deadline)
    }

    /// Makes or moves an alias; safe to repeat when it carries an `op_id`.
    pub fn set_alias(
        &self,
        alias: &Alias,
        request: &SetAlias,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        let (path, repeats) = (alias_path(alias), request.op_id.is_some());
        self.0
            .with_body(Method::PUT, &path, request, repeats, deadline)
    }

    /// Deletes an alias; the key stays.
    pub fn delete_alias(
        &self,
        alias: &Alias,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        let path = format!("{}/delete", alias_path(alias));
        // Once it is deleted the alias names no key, so that a repetition would be refused.
        self.0.post(&path, &DeleteAlias {}, false, deadline)
    }

    /// The policy of a key.
    pub fn key_policy(&self, kid: &Kid, deadline: Deadline) -> Result<KeyPolicyDoc, ClientError> {
        self.0.get(&format!("{}/policy", path(kid)), deadline)
    }

    /// Sets or removes the policy of a key; safe to repeat when it carries an `op_id`.
    pub fn put_key_policy(
        &self,
        kid: &Kid,
        request: &PutKeyPolicy,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        let (path, repeats) = (format!("{}/policy", path(kid)), request.op_id.is_some());
        self.0
            .with_body(Method::PUT, &path, request, repeats, deadline)
    }

    /// What policy and grants of a key decide about a caller.
    pub fn explain_key_policy(
        &self,
        kid: &Kid,
        request: &ExplainKeyPolicy,
        deadline: Deadline,
    ) -> Result<KeyPolicyExplained, ClientError> {
        self.on_key(kid, "policy/explain", request, true, deadline)
    }

    /// The live grants of a key.
    pub fn grants(&self, kid: &Kid, deadline: Deadline) -> Result<GrantList, ClientError> {
        self.0.get(&format!("{}/grants", path(kid)), deadline)
    }

    /// Makes a grant; safe to repeat when it carries an `op_id`, which is the grant's id.
    pub fn make_grant(
        &self,
        kid: &Kid,
        request: &MakeGrant,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        self.on_key(kid, "grants", request, request.op_id.is_some(), deadline)
    }

    /// Ends a grant; safe to repeat when it carries an `op_id`.
    pub fn retire_grant(
        &self,
        kid: &Kid,
        grant: OpId,
        request: &RetireGrant,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        let what = format!("grants/{grant}/retire");
        self.on_key(kid, &what, request, request.op_id.is_some(), deadline)
    }

    /// The requests of a key that wait for approvals.
    pub fn approvals(&self, kid: &Kid, deadline: Deadline) -> Result<ApprovalList, ClientError> {
        self.0.get(&format!("{}/approvals", path(kid)), deadline)
    }

    /// Asks for approvals of a request. Not repeated: the second one would be refused.
    pub fn ask_approval(
        &self,
        kid: &Kid,
        request: &AskApproval,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        self.on_key(kid, "approvals", request, false, deadline)
    }

    /// Approves a request. Not repeated: the second one would be refused.
    pub fn approve(
        &self,
        kid: &Kid,
        request: OpId,
        approval: &Approve,
        deadline: Deadline,
    ) -> Result<KeyChanged, ClientError> {
        let what = format!("approvals/{request}/approve");
        self.on_key(kid, &what, approval, false, deadline)
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
