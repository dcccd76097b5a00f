//! svc-wallet.

use std::sync::Arc;

use ron_http::{HttpClient, Method};
use ron_kernel::Deadline;
use ron_proto::ledger::{Receipt, TxId};
use ron_proto::wallet::{Balance, Burn, IssueMoney, Operation, Transfer};
use ron_proto::{Account, Asset, IdemKey};
use serde::Serialize;

use crate::call::{Caller, ClientError, Outgoing, encode, read};
use crate::credential::Credential;

/// A client of svc-wallet. Every write carries its idempotency key, so all of them are retried.
#[derive(Debug, Clone)]
pub struct WalletClient(Caller);

impl WalletClient {
    /// A client of the wallet at `base`.
    pub fn new(base: &str, credential: Credential, http: Arc<HttpClient>) -> Self {
        Self(Caller::new(base, credential, http))
    }

    /// Creates money.
    pub fn issue(
        &self,
        key: &IdemKey,
        request: &IssueMoney,
        deadline: Deadline,
    ) -> Result<Receipt, ClientError> {
        self.write("/v1/issue", key, request, deadline)
    }

    /// Moves money.
    pub fn transfer(
        &self,
        key: &IdemKey,
        request: &Transfer,
        deadline: Deadline,
    ) -> Result<Receipt, ClientError> {
        self.write("/v1/transfer", key, request, deadline)
    }

    /// Destroys money.
    pub fn burn(
        &self,
        key: &IdemKey,
        request: &Burn,
        deadline: Deadline,
    ) -> Result<Receipt, ClientError> {
        self.write("/v1/burn", key, request, deadline)
    }

    /// What an account has.
    pub fn balance(
        &self,
        account: &Account,
        asset: &Asset,
        deadline: Deadline,
    ) -> Result<Balance, ClientError> {
        let path = format!(
            "/v1/balance?account={}&asset={}",
            encode(account.as_str()),
            encode(asset.as_str())
        );
        self.0.get(&path, deadline)
    }

    /// The receipt of a transaction.
    pub fn tx(&self, txid: TxId, deadline: Deadline) -> Result<Receipt, ClientError> {
        self.0.get(&format!("/v1/tx/{txid}"), deadline)
    }

    /// Proof that a transaction is in the ledger's log.
    pub fn proof(&self, txid: TxId, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text(&format!("/v1/tx/{txid}/proof"), deadline)
    }

    /// What became of an operation.
    pub fn operation(&self, key: &IdemKey, deadline: Deadline) -> Result<Operation, ClientError> {
        self.0
            .get(&format!("/v1/ops/{}", encode(key.as_ref())), deadline)
    }

    fn write<B: Serialize>(
        &self,
        path: &str,
        key: &IdemKey,
        body: &B,
        deadline: Deadline,
    ) -> Result<Receipt, ClientError> {
        let json = serde_json::to_vec(body).map_err(|e| ClientError::NotSent {
            detail: e.to_string(),
        })?;
        let key = key.to_string();
        let reply = self.0.send(&Outgoing {
            method: Method::POST,
            body: Some((json, "application/json")),
            headers: &[("Idempotency-Key", &key)],
            ..Outgoing::get(path, deadline)
        })?;
        read(&reply)
    }
}
