//! Client of svc-wallet.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Method};
use ron_kernel::Deadline;
use ron_proto::ledger::{
    AccountDoc, AccountPage, AssetDoc, AssetPage, HoldPage, PointInTime, ReceiptFile, TrialBalance,
    TxId,
};
use ron_proto::wallet::{
    AccountEvents, Balance, Batch, BatchAnswer, Budget, Burn, Capture, FoundTransactions,
    FreezeAccount, HistoryPage, Hold, HoldMoney, IssueMoney, Nothing, Operation, Remarks,
    ResumeWebhook, Reverse, SetAccount, SetAsset, Statement, Transaction, Transfer, WebhookDoc,
    Webhooks,
};
use ron_proto::{Account, Asset, IdemKey};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{Caller, ClientError, Outgoing, encode, read, with_query};
use ron_http::Credential;

/// A client of svc-wallet. Every write carries its idempotency key, so all writes are retried.
#[derive(Debug, Clone)]
pub struct WalletClient {
    caller: Caller,
    min_seq: Option<u64>,
}

impl WalletClient {
    /// A client of the wallet at `base`.
    pub fn new(base: &str, credential: Credential, http: Arc<HttpClient>) -> Self {
        Self {
            caller: Caller::new(base, credential, http),
            min_seq: None,
        }
    }

    /// The same client, whose reads know this sequence of the ledger, or are refused.
    #[must_use]
    pub fn knowing(&self, min_seq: Option<u64>) -> Self {
        Self {
            min_seq,
            ..self.clone()
        }
    }

    pub fn issue(
        &self,
        key: &IdemKey,
        request: &IssueMoney,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        self.write("/v1/issue", key, request, deadline)
    }

    pub fn transfer(
        &self,
        key: &IdemKey,
        request: &Transfer,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        self.write("/v1/transfer", key, request, deadline)
    }

    pub fn burn(
        &self,
        key: &IdemKey,
        request: &Burn,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        self.write("/v1/burn", key, request, deadline)
    }

    /// Commits many operations under one key; returns one result per item. A refused linked batch
    /// is an error.
    pub fn batch(
        &self,
        key: &IdemKey,
        request: &Batch,
        deadline: Deadline,
    ) -> Result<BatchAnswer, ClientError> {
        self.write("/v1/batch", key, request, deadline)
    }

    /// Reserves money; the receipt's txid is the hold's id.
    pub fn hold(
        &self,
        key: &IdemKey,
        request: &HoldMoney,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        self.write("/v1/hold", key, request, deadline)
    }

    /// Pays out of a hold.
    pub fn capture(
        &self,
        key: &IdemKey,
        hold: TxId,
        request: &Capture,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        self.write(&format!("/v1/hold/{hold}/capture"), key, request, deadline)
    }

    pub fn reverse(
        &self,
        key: &IdemKey,
        tx: TxId,
        request: &Reverse,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        self.write(&format!("/v1/tx/{tx}/reverse"), key, request, deadline)
    }

    pub fn release(
        &self,
        key: &IdemKey,
        hold: TxId,
        remarks: &Remarks,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        self.write(&format!("/v1/hold/{hold}/release"), key, remarks, deadline)
    }

    /// The current state of a hold.
    pub fn hold_state(&self, hold: TxId, deadline: Deadline) -> Result<Hold, ClientError> {
        self.get(&format!("/v1/hold/{hold}"), &[], deadline)
    }

    /// Freezes sides of an account.
    pub fn freeze(
        &self,
        key: &IdemKey,
        account: &Account,
        request: &FreezeAccount,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        let path = format!("/v1/account/{}/freeze", encode(account.as_str()));
        self.write(&path, key, request, deadline)
    }

    /// Frees sides of an account.
    pub fn unfreeze(
        &self,
        key: &IdemKey,
        account: &Account,
        request: &FreezeAccount,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        let path = format!("/v1/account/{}/unfreeze", encode(account.as_str()));
        self.write(&path, key, request, deadline)
    }

    /// An account with its balances, limits and open holds.
    pub fn account(
        &self,
        account: &Account,
        deadline: Deadline,
    ) -> Result<AccountDoc, ClientError> {
        let path = format!("/v1/account/{}", encode(account.as_str()));
        self.get(&path, &[], deadline)
    }

    /// Opens or closes an account, or sets its class, freeze and limits.
    pub fn set_account(
        &self,
        key: &IdemKey,
        account: &Account,
        request: &SetAccount,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        let path = format!("/v1/account/{}", encode(account.as_str()));
        self.write_by(Method::PUT, &path, key, request, deadline)
    }

    /// Scale and title of an asset.
    pub fn asset(&self, asset: &Asset, deadline: Deadline) -> Result<AssetDoc, ClientError> {
        let path = format!("/v1/assets/{}", encode(asset.as_str()));
        self.get(&path, &[], deadline)
    }

    /// Assets in which the caller may read something; `query` as the API has it.
    pub fn assets(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<AssetPage, ClientError> {
        self.get("/v1/assets", query, deadline)
    }

    /// Registers an asset, or changes its title.
    pub fn set_asset(
        &self,
        key: &IdemKey,
        asset: &Asset,
        request: &SetAsset,
        deadline: Deadline,
    ) -> Result<Transaction, ClientError> {
        let path = format!("/v1/assets/{}", encode(asset.as_str()));
        self.write_by(Method::PUT, &path, key, request, deadline)
    }

    /// Credits and debits of an asset by class of account, now or at a point.
    pub fn trial_balance(
        &self,
        asset: &Asset,
        at: Option<PointInTime>,
        deadline: Deadline,
    ) -> Result<TrialBalance, ClientError> {
        let path = format!("/v1/assets/{}/trial-balance", encode(asset.as_str()));
        let query: Vec<_> = at.map(|at| ("at", at.to_string())).into_iter().collect();
        self.get(&path, &query, deadline)
    }

    /// Entries of an account, newest first; `query` has the filters and cursors of the API.
    pub fn history(
        &self,
        account: &Account,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<HistoryPage, ClientError> {
        let path = format!("/v1/account/{}/history", encode(account.as_str()));
        self.get(&path, query, deadline)
    }

    /// Opening balance, entries and closing balance of a range; `query` as the API has it.
    pub fn statement(
        &self,
        account: &Account,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<Statement, ClientError> {
        let path = format!("/v1/account/{}/statement", encode(account.as_str()));
        self.get(&path, query, deadline)
    }

    /// Transactions made with a reference; `query` as the API has it.
    pub fn transactions(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<FoundTransactions, ClientError> {
        self.get("/v1/tx", query, deadline)
    }

    /// Accounts that the caller may read, with their balances; `query` as the API has it.
    pub fn accounts(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<AccountPage, ClientError> {
        self.get("/v1/accounts", query, deadline)
    }

    /// Holds of an account, newest first; `query` as the API has it.
    pub fn holds(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<HoldPage, ClientError> {
        self.get("/v1/holds", query, deadline)
    }

    /// What happened to an account after a sequence, waiting up to `wait` for something.
    pub fn events(
        &self,
        account: &Account,
        after: u64,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<AccountEvents, ClientError> {
        let query = [
            ("account", account.to_string()),
            ("after", after.to_string()),
            ("wait", wait.as_secs().to_string()),
        ];
        self.get("/v1/events", &query, deadline)
    }

    /// Balance of an account in one asset, now or at a point.
    pub fn balance(
        &self,
        account: &Account,
        asset: &Asset,
        at: Option<PointInTime>,
        deadline: Deadline,
    ) -> Result<Balance, ClientError> {
        let mut query = vec![
            ("account", account.to_string()),
            ("asset", asset.to_string()),
        ];
        query.extend(at.map(|at| ("at", at.to_string())));
        self.get("/v1/balance", &query, deadline)
    }

    /// A transaction: its receipt, and what the caller may see of its private side.
    pub fn tx(&self, txid: TxId, deadline: Deadline) -> Result<Transaction, ClientError> {
        self.get(&format!("/v1/tx/{txid}"), &[], deadline)
    }

    /// The receipt of a transaction as a file that verifies alone. Waits up to `wait` until a
    /// checkpoint covers it; the deadline must be later.
    pub fn receipt(
        &self,
        txid: TxId,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptFile, ClientError> {
        let query = [("wait", wait.as_secs().to_string())];
        self.get(&format!("/v1/tx/{txid}/receipt"), &query, deadline)
    }

    /// The outcome of an operation, by its idempotency key.
    pub fn operation(&self, key: &IdemKey, deadline: Deadline) -> Result<Operation, ClientError> {
        self.get(&format!("/v1/ops/{}", encode(key.as_ref())), &[], deadline)
    }

    /// Gives a key up: its operation's outcome if it was committed, else the refusal `abandoned`.
    pub fn abandon(&self, key: &IdemKey, deadline: Deadline) -> Result<Operation, ClientError> {
        let path = format!("/v1/ops/{}/abandon", encode(key.as_ref()));
        self.caller.post(&path, &Nothing {}, true, deadline)
    }

    /// What the client's token may still spend.
    pub fn budget(&self, deadline: Deadline) -> Result<Budget, ClientError> {
        self.get("/v1/budget", &[], deadline)
    }

    /// Webhook endpoints of the caller's tenant.
    pub fn webhooks(&self, deadline: Deadline) -> Result<Webhooks, ClientError> {
        self.caller.get("/v1/webhooks", deadline)
    }

    /// Sends to an endpoint again at once; once more changes nothing.
    pub fn resume_webhook(
        &self,
        name: &str,
        request: &ResumeWebhook,
        deadline: Deadline,
    ) -> Result<WebhookDoc, ClientError> {
        let path = format!("/v1/webhooks/{}/resume", encode(name));
        self.caller.post(&path, request, true, deadline)
    }

    /// A read that may be asked to know a sequence of the ledger.
    fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        let min_seq = self.min_seq.map(|seq| ("min_seq", seq.to_string()));
        let query: Vec<_> = query.iter().cloned().chain(min_seq).collect();
        self.caller.get(&with_query(path, &query), deadline)
    }

    fn write<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        key: &IdemKey,
        body: &B,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        self.write_by(Method::POST, path, key, body, deadline)
    }

    fn write_by<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        key: &IdemKey,
        body: &B,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        let json = serde_json::to_vec(body).map_err(|e| ClientError::NotSent {
            detail: e.to_string(),
        })?;
        let key = key.to_string();
        let reply = self.caller.send(&Outgoing {
            method,
            body: Some((json, "application/json")),
            headers: &[("Idempotency-Key", &key)],
            ..Outgoing::get(path, deadline)
        })?;
        read(&reply)
    }
}
