//! Client of ron-ledger.

use std::sync::Arc;
use std::time::Duration;

use ron_http::HttpClient;
use ron_kernel::Deadline;
use ron_proto::ledger::{
    AccountDoc, AccountPage, AssetDoc, AssetPage, BudgetDoc, BudgetId, CommitAnswer, CommitRequest,
    EntryAnswer, EntryPage, EntrySearch, EpochDoc, Event, EventPage, Head, HoldDoc, HoldPage,
    PastBalance, ReceiptFile, RequestKey, ReversalsDoc, StatementPage, TrialBalance, TxId,
};
use ron_proto::{Account, Asset, EpochId, Tenant};
use serde::Serialize;

use crate::call::{Caller, ClientError, encode, with_query};
use ron_http::Credential;

#[derive(Debug, Clone)]
pub struct LedgerClient(Caller);

/// Head of a ledger's log, and the node that has answered, as an index of its URLs.
#[derive(Debug, Clone)]
pub struct ActiveHead {
    pub head: Head,
    pub node: usize,
}

impl LedgerClient {
    /// A client of the ledger at `base`, or of its nodes at several URLs with commas between them.
    pub fn new(base: &str, credential: Credential, http: Arc<HttpClient>) -> Self {
        Self(Caller::new(base, credential, http))
    }

    /// Commits entries; every entry is its own idempotency key, so this is safe to repeat.
    pub fn commit<E: Serialize>(
        &self,
        request: &CommitRequest<E>,
        deadline: Deadline,
    ) -> Result<CommitAnswer, ClientError> {
        self.0.post("/v1/ledger/commit", request, true, deadline)
    }

    /// One attempt of [`LedgerClient::commit`], for callers that pace their attempts themselves.
    pub fn commit_once<E: Serialize>(
        &self,
        request: &CommitRequest<E>,
        deadline: Deadline,
    ) -> Result<CommitAnswer, ClientError> {
        self.0.post("/v1/ledger/commit", request, false, deadline)
    }

    /// The outcome of a key; a key without an entry is permanently abandoned.
    pub fn resolve(
        &self,
        key: &RequestKey,
        deadline: Deadline,
    ) -> Result<EntryAnswer, ClientError> {
        self.0.post("/v1/ledger/resolve", key, true, deadline)
    }

    /// An account's balances, nonce and holds.
    pub fn account(
        &self,
        account: &Account,
        deadline: Deadline,
    ) -> Result<AccountDoc, ClientError> {
        self.0.get(
            &format!("/v1/ledger/accounts/{}", encode(account.as_str())),
            deadline,
        )
    }

    /// Scale and title of an asset; 404 for one that is neither registered nor used.
    pub fn asset(&self, asset: &Asset, deadline: Deadline) -> Result<AssetDoc, ClientError> {
        let path = format!("/v1/ledger/assets/{}", encode(asset.as_str()));
        self.0.get(&path, deadline)
    }

    /// A page of the assets, by name; `query` as the API has it.
    pub fn assets(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<AssetPage, ClientError> {
        self.0
            .get(&with_query("/v1/ledger/assets", query), deadline)
    }

    /// Credits and debits of an asset by class of account.
    pub fn trial_balance(
        &self,
        asset: &Asset,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<TrialBalance, ClientError> {
        let path = format!("/v1/ledger/assets/{}/trial-balance", encode(asset.as_str()));
        self.0.get(&with_query(&path, query), deadline)
    }

    /// Entries that match, newest first.
    pub fn entries(
        &self,
        search: &EntrySearch,
        deadline: Deadline,
    ) -> Result<EntryPage, ClientError> {
        self.0
            .get(&with_query("/v1/ledger/entries", &search.pairs()), deadline)
    }

    /// Balance of an account at a sequence or time.
    pub fn balance_at(
        &self,
        account: &Account,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<PastBalance, ClientError> {
        let path = format!("/v1/ledger/accounts/{}/balance", encode(account.as_str()));
        self.0.get(&with_query(&path, query), deadline)
    }

    /// Opening balance, entries and closing balance of a range.
    pub fn statement(
        &self,
        account: &Account,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<StatementPage, ClientError> {
        let path = format!("/v1/ledger/accounts/{}/statement", encode(account.as_str()));
        self.0.get(&with_query(&path, query), deadline)
    }

    /// Holds of an account, newest first.
    pub fn holds(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<HoldPage, ClientError> {
        self.0.get(&with_query("/v1/ledger/holds", query), deadline)
    }

    /// Accounts that were ever opened, used or given terms, by name.
    pub fn accounts(
        &self,
        query: &[(&str, String)],
        deadline: Deadline,
    ) -> Result<AccountPage, ClientError> {
        self.0
            .get(&with_query("/v1/ledger/accounts", query), deadline)
    }

    /// An open hold; 404 when it does not exist or has ended.
    pub fn hold(&self, hold: TxId, deadline: Deadline) -> Result<HoldDoc, ClientError> {
        self.0.get(&format!("/v1/ledger/holds/{hold}"), deadline)
    }

    /// What was spent under the budget of a token.
    pub fn budget(&self, id: BudgetId, deadline: Deadline) -> Result<BudgetDoc, ClientError> {
        self.0.get(&format!("/v1/ledger/budgets/{id}"), deadline)
    }

    /// The entry of a key; 404 when there is none.
    pub fn by_key(&self, key: &RequestKey, deadline: Deadline) -> Result<Event, ClientError> {
        let path = format!(
            "/v1/ledger/by-key/{}/{}/{}",
            encode(key.tenant.as_str()),
            encode(key.principal.as_str()),
            encode(key.key.as_str())
        );
        self.0.get(&path, deadline)
    }

    pub fn tx(&self, txid: TxId, deadline: Deadline) -> Result<Event, ClientError> {
        self.0.get(&format!("/v1/ledger/tx/{txid}"), deadline)
    }

    /// What became of a transaction by reversals.
    pub fn reversals(&self, tx: TxId, deadline: Deadline) -> Result<ReversalsDoc, ClientError> {
        self.0
            .get(&format!("/v1/ledger/tx/{tx}/reversals"), deadline)
    }

    /// Entries after a sequence, waiting up to `wait` for the next one; the deadline must be later.
    pub fn events(
        &self,
        after: u64,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<EventPage, ClientError> {
        self.0.get(
            &format!("/v1/ledger/events?after={after}&wait={}", wait.as_secs()),
            deadline,
        )
    }

    /// Head of the log: sequence, size, root.
    pub fn head(&self, deadline: Deadline) -> Result<Head, ClientError> {
        self.0.get("/v1/ledger/head", deadline)
    }

    /// The head as the active node has it, with that node, to which further calls go; or that of a
    /// standby when no node is known to be active.
    pub fn active_head(&self, deadline: Deadline) -> Result<ActiveHead, ClientError> {
        let mut asked = 0;
        loop {
            let head = self.head(deadline)?;
            let node = self.0.node();
            asked += 1;
            if !head.is_of_standby() || asked >= self.0.nodes().len() {
                return Ok(ActiveHead { head, node });
            }
            let active = head.closed.and_then(|closed| closed.active);
            self.0.leave(node, active.as_deref());
        }
    }

    /// State of an epoch's settlement in an asset; 404 when it was never opened.
    pub fn epoch(
        &self,
        tenant: &Tenant,
        epoch: &EpochId,
        asset: &Asset,
        deadline: Deadline,
    ) -> Result<EpochDoc, ClientError> {
        let path = format!(
            "/v1/ledger/epochs/{}/{}?asset={}",
            encode(tenant.as_str()),
            encode(epoch.as_str()),
            encode(asset.as_str())
        );
        self.0.get(&path, deadline)
    }

    /// The verifier key line of the log.
    pub fn log_vkey(&self, deadline: Deadline) -> Result<String, ClientError> {
        self.0.get_text("/log/v1/vkey", deadline)
    }

    /// The receipt file of a transaction with its whole private record; 409 `not_yet_covered` until
    /// a checkpoint covers it.
    pub fn receipt(&self, txid: TxId, deadline: Deadline) -> Result<ReceiptFile, ClientError> {
        self.0
            .get(&format!("/v1/ledger/tx/{txid}/receipt"), deadline)
    }
}
