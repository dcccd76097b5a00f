//! What the rewarder needs of the ledger and of the KMS: three calls and a signature.
//!
//! Traits, so that settlement can run over any ledger that keeps the rules, including a simulated
//! one in the same process.

use ron_client::{ClientError, KmsClient, LedgerClient};
use ron_kernel::Deadline;
use ron_proto::kms::{Digest, DigestAlg, SignRequest};
use ron_proto::ledger::{AccountDoc, CommitAnswer, CommitRequest, Entry, EpochDoc};
use ron_proto::rewarder::ManifestSig;
use ron_proto::values::{Account, Asset, ContentId, EpochId, Kid, OpId, Tenant};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The service was not reached, did not answer in time, or was not ready; a retry can help.
    #[error("{0}")]
    Unavailable(String),
    /// The service refused, and would refuse a retry as well.
    #[error("{code}: {detail}")]
    Refused { code: String, detail: String },
}

pub trait Ledger: Send + Sync {
    /// Whether the ledger answers.
    fn answers(&self, by: Deadline) -> Result<(), PortError>;
    /// An account's balances.
    fn account(&self, account: &Account, by: Deadline) -> Result<AccountDoc, PortError>;
    /// The settlement of an asset of an epoch, if it was ever opened.
    fn epoch(
        &self,
        tenant: &Tenant,
        epoch: &EpochId,
        asset: &Asset,
        by: Deadline,
    ) -> Result<Option<EpochDoc>, PortError>;
    /// Commits settlement entries. Idempotent, so any caller may repeat it. Linked ones are all done or
    /// none.
    fn commit(
        &self,
        entries: &[Entry],
        linked: bool,
        by: Deadline,
    ) -> Result<CommitAnswer, PortError>;
}

pub trait Signer: Send + Sync {
    /// A signature over a manifest's commitment. The same commitment may be signed again.
    fn sign(&self, commitment: &ContentId, by: Deadline) -> Result<ManifestSig, PortError>;
}

impl From<ClientError> for PortError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused {
                problem, status, ..
            } if !problem.retryable && status < 500 => Self::Refused {
                code: problem.code,
                detail: problem.detail,
            },
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl Ledger for LedgerClient {
    fn answers(&self, by: Deadline) -> Result<(), PortError> {
        self.active_head(by)?;
        Ok(())
    }

    fn account(&self, account: &Account, by: Deadline) -> Result<AccountDoc, PortError> {
        Ok(LedgerClient::account(self, account, by)?)
    }

    fn epoch(
        &self,
        tenant: &Tenant,
        epoch: &EpochId,
        asset: &Asset,
        by: Deadline,
    ) -> Result<Option<EpochDoc>, PortError> {
        match LedgerClient::epoch(self, tenant, epoch, asset, by) {
            Ok(epoch) => Ok(Some(epoch)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn commit(
        &self,
        entries: &[Entry],
        linked: bool,
        by: Deadline,
    ) -> Result<CommitAnswer, PortError> {
        Ok(LedgerClient::commit(
            self,
            &CommitRequest {
                entries: entries.iter().collect::<Vec<&Entry>>(),
                linked,
                batch: false,
            },
            by,
        )?)
    }
}

/// Signs with a key of the KMS.
pub struct KmsSigner {
    pub kms: KmsClient,
    /// The signing key; its payload policy must allow digests.
    pub key: Kid,
}

impl Signer for KmsSigner {
    fn sign(&self, commitment: &ContentId, by: Deadline) -> Result<ManifestSig, PortError> {
        let digest = Digest::new(DigestAlg::Blake3, &commitment.0);
        let request = SignRequest {
            // The operation id follows from the manifest, so a repeated call returns the same
            // answer.
            op_id: Some(OpId::from_name(&format!("rewarder/manifest/{commitment}"))),
            ..SignRequest::digest(self.key.clone(), digest)
        };
        let answer = self.kms.sign(&request, by)?;
        let [signature] = answer.signatures.as_slice() else {
            let detail = "the KMS gave more than one signature; the manifest key must be ed25519";
            return Err(PortError::Refused {
                code: "unsupported".into(),
                detail: detail.into(),
            });
        };
        Ok(ManifestSig {
            alg: signature.alg.as_str().to_owned(),
            key: format!("{}#v{}", answer.key, answer.version),
            value: signature.signature.to_string(),
            receipt: Some(answer.receipt),
        })
    }
}
