//! Client of svc-rewarder.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Method};
use ron_kernel::Deadline;
use ron_proto::rewarder::{
    ApproveRequest, ComputeRequest, EpochList, EpochRun, ImportKind, ManifestSignatures,
    PayoutExplanation, PayoutPage, PayoutProof, PolicyId, PolicyStored, SignedPolicy, SnapshotInfo,
    WithdrawRequest,
};
use ron_proto::{Account, Asset, ContentId, EpochId};
use serde::de::DeserializeOwned;

use crate::call::{Caller, ClientError, Outgoing, encode, read};
use crate::ranged::{Piece, PieceError, piece};
use ron_http::Credential;

/// A run of an epoch that is read.
#[derive(Debug, Clone, Copy)]
pub struct RunRef<'r> {
    pub epoch: &'r EpochId,
    /// Run key of a dry run; without it the live run or, while there is none, the newest dry run.
    pub dry_run: Option<&'r ContentId>,
    /// An asset of an epoch that pays several; without it the first of the policy.
    pub asset: Option<&'r Asset>,
}

impl<'r> From<&'r EpochId> for RunRef<'r> {
    fn from(epoch: &'r EpochId) -> Self {
        Self {
            epoch,
            dry_run: None,
            asset: None,
        }
    }
}

impl RunRef<'_> {
    /// The path of a document of the run, with these parameters of its query.
    fn path(self, document: &str, query: &str) -> String {
        let dry_run = self
            .dry_run
            .map(|key| format!("dry_run={}", encode(&key.to_string())));
        // The run itself is that of all assets.
        let asset = self.asset.filter(|_| !document.is_empty());
        let asset = asset.map(|asset| format!("asset={}", encode(asset.as_str())));
        let query: Vec<&str> = [
            Some(query).filter(|text| !text.is_empty()),
            asset.as_deref(),
            dry_run.as_deref(),
        ]
        .into_iter()
        .flatten()
        .collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!(
            "{}{document}{mark}{}",
            epoch_path(self.epoch),
            query.join("&")
        )
    }
}

#[derive(Debug, Clone)]
pub struct RewarderClient(Caller);

impl RewarderClient {
    /// A client of the rewarder at `base`.
    pub fn new(base: &str, credential: Credential, http: Arc<HttpClient>) -> Self {
        Self(Caller::new(base, credential, http))
    }

    /// Stores a signed policy; storing it again changes nothing.
    pub fn put_policy(
        &self,
        id: &PolicyId,
        policy: &SignedPolicy,
        deadline: Deadline,
    ) -> Result<PolicyStored, ClientError> {
        let json = serde_json::to_vec(policy).map_err(|e| ClientError::NotSent {
            detail: e.to_string(),
        })?;
        self.put(
            &format!("/rewarder/policy/{}", encode(id.as_str())),
            json,
            "application/json",
            deadline,
        )
    }

    /// A stored policy with its signature.
    pub fn policy(&self, id: &PolicyId, deadline: Deadline) -> Result<SignedPolicy, ClientError> {
        self.0.get(
            &format!("/rewarder/policy/{}", encode(id.as_str())),
            deadline,
        )
    }

    /// Stores usage as CSV under the content id of its canonical form; storing it again changes
    /// nothing.
    pub fn put_csv(
        &self,
        cid: &ContentId,
        kind: ImportKind,
        csv: Vec<u8>,
        deadline: Deadline,
    ) -> Result<SnapshotInfo, ClientError> {
        let kind = match kind {
            ImportKind::Totals => "totals",
            ImportKind::Events => "events",
        };
        let path = format!(
            "/rewarder/snapshots/{}?kind={kind}",
            encode(&cid.to_string())
        );
        self.put(&path, csv, "text/csv", deadline)
    }

    /// Stores a sealed snapshot of any size from a file under its content id; storing it again
    /// changes nothing.
    pub fn put_sealed_file(
        &self,
        cid: &ContentId,
        sealed: &std::fs::File,
        deadline: Deadline,
    ) -> Result<SnapshotInfo, ClientError> {
        let path = format!("/rewarder/snapshots/{}", encode(&cid.to_string()));
        let out = Outgoing {
            method: Method::PUT,
            ..Outgoing::get(&path, deadline)
        };
        let reply = self.0.send_file(&out, "application/octet-stream", sealed)?;
        read(&reply)
    }

    /// Requests the computation of an epoch (and, with auto-settle on, its settlement) and waits up
    /// to `wait` for the end. Repeating the request with the same inputs returns the same run.
    pub fn compute(
        &self,
        epoch: &EpochId,
        request: &ComputeRequest,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<EpochRun, ClientError> {
        let json = serde_json::to_vec(request).map_err(|e| ClientError::NotSent {
            detail: e.to_string(),
        })?;
        let prefer = format!("wait={}", wait.as_secs());
        let reply = self.0.send(&Outgoing {
            method: Method::POST,
            body: Some((json, "application/json")),
            headers: &[("Prefer", &prefer)],
            ..Outgoing::get(&format!("{}/compute", epoch_path(epoch)), deadline)
        })?;
        read(&reply)
    }

    /// Starts the settlement of a sealed run.
    pub fn settle(&self, epoch: &EpochId, deadline: Deadline) -> Result<EpochRun, ClientError> {
        let reply = self.0.send(&Outgoing {
            method: Method::POST,
            ..Outgoing::get(&format!("{}/settle", epoch_path(epoch)), deadline)
        })?;
        read(&reply)
    }

    /// Approves the manifest with this commitment; it pays once it has the approvals that it needs.
    pub fn approve(
        &self,
        epoch: &EpochId,
        commitment: ContentId,
        deadline: Deadline,
    ) -> Result<EpochRun, ClientError> {
        let request = ApproveRequest { commitment };
        let json = serde_json::to_vec(&request).map_err(|e| ClientError::NotSent {
            detail: e.to_string(),
        })?;
        let reply = self.0.send(&Outgoing {
            method: Method::POST,
            body: Some((json, "application/json")),
            ..Outgoing::get(&format!("{}/approve", epoch_path(epoch)), deadline)
        })?;
        read(&reply)
    }

    /// Withdraws the manifest of an epoch that the ledger has not opened. The answer's state says
    /// whether the withdrawal holds already.
    pub fn withdraw(
        &self,
        epoch: &EpochId,
        request: &WithdrawRequest,
        deadline: Deadline,
    ) -> Result<EpochRun, ClientError> {
        let json = serde_json::to_vec(request).map_err(|e| ClientError::NotSent {
            detail: e.to_string(),
        })?;
        let reply = self.0.send(&Outgoing {
            method: Method::POST,
            body: Some((json, "application/json")),
            ..Outgoing::get(&format!("{}/withdraw", epoch_path(epoch)), deadline)
        })?;
        read(&reply)
    }

    /// The state of a run.
    pub fn epoch<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
        deadline: Deadline,
    ) -> Result<EpochRun, ClientError> {
        self.0.get(&run.into().path("", ""), deadline)
    }

    /// The dry runs of an epoch, the newest first.
    pub fn dry_runs(&self, epoch: &EpochId, deadline: Deadline) -> Result<EpochList, ClientError> {
        let path = format!("{}/dry-runs", epoch_path(epoch));
        self.0.get(&path, deadline)
    }

    /// The first page of epochs.
    pub fn epochs(&self, deadline: Deadline) -> Result<EpochList, ClientError> {
        self.0.get("/rewarder/epochs", deadline)
    }

    /// A page of a run's payouts, from row `from` on.
    pub fn payouts<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
        from: u64,
        deadline: Deadline,
    ) -> Result<PayoutPage, ClientError> {
        let path = run.into().path("/payouts", &format!("from={from}"));
        self.0.get(&path, deadline)
    }

    /// Proof of one account's payout; 404 when the epoch pays it nothing.
    pub fn proof<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
        account: &Account,
        deadline: Deadline,
    ) -> Result<PayoutProof, ClientError> {
        let document = format!("/proof/{}", encode(account.as_str()));
        self.0.get(&run.into().path(&document, ""), deadline)
    }

    /// Why an account gets what it gets.
    pub fn explain<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
        account: &Account,
        deadline: Deadline,
    ) -> Result<PayoutExplanation, ClientError> {
        let document = format!("/explain/{}", encode(account.as_str()));
        self.0.get(&run.into().path(&document, ""), deadline)
    }

    /// The manifest of a run, exactly as it was signed.
    pub fn manifest<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
        deadline: Deadline,
    ) -> Result<String, ClientError> {
        self.0.get_text(&run.into().path("/manifest", ""), deadline)
    }

    /// These bytes of what is due to every account of a correction and what it was paid before: a sealed snapshot
    /// with the content id that the manifest names; 404 for an epoch that corrects no other.
    pub fn correction<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
        span: RangeInclusive<u64>,
        deadline: Deadline,
    ) -> Result<Piece, PieceError> {
        let path = run.into().path("/correction", "");
        piece(&self.0, &path, span, deadline)
    }

    /// The claim tree of an epoch with claims, as OpenZeppelin's package reads it; 404 for an epoch that
    /// the ledger pays, and for one with too many payees for one file.
    pub fn claims(&self, epoch: &EpochId, deadline: Deadline) -> Result<String, ClientError> {
        self.0
            .get_text(&format!("{}/claims", epoch_path(epoch)), deadline)
    }

    /// The signatures over an epoch's manifest; none until it is signed.
    pub fn signatures(
        &self,
        epoch: &EpochId,
        deadline: Deadline,
    ) -> Result<ManifestSignatures, ClientError> {
        self.0
            .get(&format!("{}/signatures", epoch_path(epoch)), deadline)
    }

    fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Vec<u8>,
        content_type: &str,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        let reply = self.0.send(&Outgoing {
            method: Method::PUT,
            body: Some((body, content_type)),
            ..Outgoing::get(path, deadline)
        })?;
        read(&reply)
    }
}

fn epoch_path(epoch: &EpochId) -> String {
    format!("/rewarder/epochs/{}", encode(epoch.as_str()))
}
