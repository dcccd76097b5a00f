//! Offline verification and proofs, from a run's artifact directory and pinned keys alone.
//!
//! Nothing in the directory is trusted: the policy's signature is checked, the snapshot is re-read,
//! the epoch is computed again, and manifest and payout table must come out identical to the byte.
//! Takes no lock and writes nothing, so it also works beside a running service.

use std::io;

use ron_files::Dir;
use ron_proto::policy::digest_message;
use ron_proto::rewarder::{LedgerEvidence, ManifestSig, PayoutProof, RunManifest, RunStatus};
use ron_proto::values::ContentId;

use super::assets::{self, AssetJob};
use super::claims::{self, ClaimPathError};
use super::claims_file::{self, FILE_PAYEES_MAX};
use super::correction::Earlier;
use super::dir;
use super::files::{must_read, parse, read};
use super::table::{self, Table};
use super::tree::{self, PathError, Tree};
use super::{Adjusts, Computed, commitment};
use crate::calculus::Watch;
use crate::inputs::policy::{self, VerifiedPolicy};
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::{Source, Target};
use ron_service::pinned::{KeyRing, SignatureError};

pub(crate) use super::files::wrong;
pub use super::files::{VerifyError, read_manifest, read_signatures};

/// The keys that an auditor trusts.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    /// Keys that may sign policies.
    pub policy: KeyRing,
    /// Keys that may sign manifests.
    pub manifest: KeyRing,
    /// Accept a run without a manifest signature, as `ron rewarder compute --out` makes it. An
    /// existing signature must still verify.
    pub unsigned: bool,
}

/// A run that passed every check.
#[derive(Clone, Debug)]
pub struct Verified {
    pub manifest: RunManifest,
    /// `None` for a quarantined run, and for an unsigned run where [`Pins::unsigned`] accepts it.
    pub signature: Option<ManifestSig>,
    /// `None` for a quarantined run.
    pub table: Option<Table>,
    /// The further assets of the epoch.
    pub also: Vec<Self>,
}

/// Recomputes the run in `dir` and checks everything in it.
pub fn verify_run_dir(dir: &Dir, pins: &Pins) -> Result<Verified, VerifyError> {
    verify_watched(dir, pins, &())
}

/// The same, with progress and cancellation. The directory of a further asset is verified as a run that pays
/// it alone.
pub fn verify_watched(dir: &Dir, pins: &Pins, watch: &impl Watch) -> Result<Verified, VerifyError> {
    let manifest = read_manifest(dir)?;
    let signature = check_signed(dir, pins, &manifest)?;
    let policy = read_policy(dir, &manifest, &pins.policy)?;
    let mut each = policy.of_each_asset();
    if manifest.asset != policy.policy.asset {
        each.retain(|one| one.policy.asset == manifest.asset);
    }
    let snapshot = open_snapshot(dir, &manifest)?;
    let dirs = assets::of_each_asset(dir, &manifest);
    let mut manifests = vec![manifest.clone()];
    manifests.extend(assets::read_further(dir, &manifest)?);
    let stored = dirs.iter().zip(&manifests);
    let stored = stored.map(|(dir, manifest)| Earlier::stored(dir, manifest));
    let mut stored = stored.collect::<Result<Vec<_>, _>>()?;
    // A manifest that names fewer assets than the policy comes out different, or is quarantined.
    stored.resize_with(each.len(), || None);
    let jobs = each
        .into_iter()
        .zip(&stored)
        .map(|(policy, earlier)| AssetJob {
            policy,
            // The table is only hashed: comparing its header proves that the stored one is equal.
            target: Target::Nowhere,
            adjusts: manifest.adjusts.as_ref().map(|epoch| Adjusts {
                epoch,
                earlier: earlier.as_ref().map(|earlier| (earlier, Target::Nowhere)),
            }),
        });
    let (tenant, epoch) = (&manifest.tenant, &manifest.epoch_id);
    let again = assets::compute_each(tenant, epoch, jobs.collect(), &snapshot, watch)
        .map_err(|error| wrong(dir::RUN, &error))?;
    let mut verified = check_again(dir, (manifest, signature), &again)?;
    for ((dir, manifest), again) in dirs.iter().zip(manifests).skip(1).zip(&again.also) {
        let signature = check_signed(dir, pins, &manifest)?;
        read_policy(dir, &manifest, &pins.policy)?;
        open_snapshot(dir, &manifest)?;
        let further = check_again(dir, (manifest, signature), again)?;
        verified.also.push(further);
    }
    Ok(verified)
}

/// The signature of a manifest, where it has to have one.
fn check_signed(
    dir: &Dir,
    pins: &Pins,
    manifest: &RunManifest,
) -> Result<Option<ManifestSig>, VerifyError> {
    let unsigned = read(dir, dir::RUN_SIG)?.is_none();
    match manifest.status {
        // The claim that the run is quarantined is accepted only if the recomputation agrees.
        RunStatus::Quarantined if unsigned => Ok(None),
        RunStatus::Ok if pins.unsigned && unsigned => Ok(None),
        _ => check_signature(dir, manifest, &pins.manifest).map(Some),
    }
}

fn read_policy(
    dir: &Dir,
    manifest: &RunManifest,
    keys: &KeyRing,
) -> Result<VerifiedPolicy, VerifyError> {
    let policy = policy::verify_stored(
        &must_read(dir, dir::POLICY)?,
        read(dir, dir::POLICY_SIG)?.as_deref(),
        keys,
    )
    .map_err(|error| wrong(dir::POLICY, &error))?;
    check_policy(policy.hash, manifest)?;
    Ok(policy)
}

/// Checks the files of one asset against what computing it again gives.
fn check_again(
    dir: &Dir,
    (manifest, signature): (RunManifest, Option<ManifestSig>),
    again: &Computed,
) -> Result<Verified, VerifyError> {
    if again.manifest != manifest {
        return Err(wrong(
            dir::RUN,
            &"computing it again gives another manifest",
        ));
    }
    let table = check_table(dir, again.head.as_ref())?;
    check_tree(dir, again.tree.as_ref())?;
    check_claims(dir, &manifest, table.as_ref())?;
    check_evidence(dir, &manifest)?;
    Ok(Verified {
        manifest,
        signature,
        table,
        also: Vec::new(),
    })
}

/// Checks that a run's policy is the one that its manifest names.
pub(super) fn check_policy(hash: ContentId, manifest: &RunManifest) -> Result<(), VerifyError> {
    if hash == manifest.inputs.policy_hash {
        Ok(())
    } else {
        Err(wrong(
            dir::POLICY,
            &"it is not the policy the manifest names",
        ))
    }
}

/// Opens a run's snapshot, which must be the one that its manifest names.
pub(super) fn open_snapshot(dir: &Dir, manifest: &RunManifest) -> Result<Sealed, VerifyError> {
    let snapshot = Sealed::open(&**dir.disk(), &dir.file(dir::SNAPSHOT))
        .map_err(|error| wrong(dir::SNAPSHOT, &error))?;
    if snapshot.cid() == manifest.inputs.snapshot {
        Ok(snapshot)
    } else {
        Err(wrong(
            dir::SNAPSHOT,
            &"it is not the snapshot the manifest names",
        ))
    }
}

/// Compares the stored table with the recomputed one by the header, which identifies the content.
fn check_table(dir: &Dir, head: Option<&[u8; table::HEAD]>) -> Result<Option<Table>, VerifyError> {
    let other = || {
        wrong(
            dir::PAYOUTS,
            &"computing it again gives another payout table",
        )
    };
    let exists = dir.exists(dir::PAYOUTS);
    match (head, exists.map_err(|error| wrong(dir::PAYOUTS, &error))?) {
        (None, false) => Ok(None),
        (None, true) => Err(other()),
        (Some(_), false) => Err(wrong(dir::PAYOUTS, &"it is missing")),
        (Some(head), true) => {
            let table = Table::open(&**dir.disk(), &dir.file(dir::PAYOUTS))
                .map_err(|error| wrong(dir::PAYOUTS, &error))?;
            let found = table.head().map_err(|error| wrong(dir::PAYOUTS, &error))?;
            if found == *head {
                Ok(Some(table))
            } else {
                Err(other())
            }
        }
    }
}

/// The stored tree may be missing, but it must not differ from the recomputed one.
fn check_tree(dir: &Dir, tree: Option<&Tree>) -> Result<(), VerifyError> {
    let stored = read(dir, dir::TREE)?;
    match (stored, tree) {
        (None, _) => Ok(()),
        (Some(bytes), Some(tree)) if tree.to_bytes() == bytes => Ok(()),
        _ => Err(wrong(dir::TREE, &"computing it again gives another tree")),
    }
}

/// The files of the claim tree, which are made from the table. The tree itself may be missing, as it is
/// only a shortcut.
fn check_claims(
    dir: &Dir,
    manifest: &RunManifest,
    table: Option<&Table>,
) -> Result<(), VerifyError> {
    let (Some(_), Some(table)) = (&manifest.claims, table) else {
        return Ok(());
    };
    let tree = claims_file::tree_of(table).map_err(|error| wrong(dir::PAYOUTS, &error))?;
    let stored = dir.exists(dir::CLAIMS_TREE);
    if stored.map_err(|error| wrong(dir::CLAIMS_TREE, &error))? {
        check_file(dir, dir::CLAIMS_TREE, |put| tree.each_stored(put))?;
    }
    if table.len() <= FILE_PAYEES_MAX {
        check_file(dir, dir::CLAIMS, |put| {
            claims_file::each_json(&tree, table, put)
        })?;
    }
    Ok(())
}

/// Compares a file with what `write` passes to its argument, piece by piece.
fn check_file(
    dir: &Dir,
    name: &'static str,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
) -> Result<(), VerifyError> {
    let opened = Source::open(&**dir.disk(), &dir.file(name));
    let stored = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => wrong(name, &"it is missing"),
        _ => wrong(name, &error),
    })?;
    let (mut at, mut same) = (0, true);
    let compared = write(&mut |piece| {
        let end = at + piece.len() as u64;
        same = same && end <= stored.len() && *stored.at(at, piece.len())? == *piece;
        at = end;
        Ok(())
    });
    compared.map_err(|error| wrong(name, &error))?;
    if same && at == stored.len() {
        Ok(())
    } else {
        Err(wrong(name, &"computing it again gives another content"))
    }
}

fn check_signature(
    dir: &Dir,
    manifest: &RunManifest,
    keys: &KeyRing,
) -> Result<ManifestSig, VerifyError> {
    let signature: ManifestSig = parse(dir::RUN_SIG, &must_read(dir, dir::RUN_SIG)?)?;
    let message = digest_message("blake3", &manifest.commitment.0);
    keys.verify(&signature.alg, &signature.key, &signature.value, &message)
        .map_err(|error| wrong(dir::RUN_SIG, &error))?;
    Ok(signature)
}

fn check_evidence(dir: &Dir, manifest: &RunManifest) -> Result<(), VerifyError> {
    let Some(bytes) = read(dir, dir::LEDGER)? else {
        return Ok(());
    };
    let evidence: LedgerEvidence = parse(dir::LEDGER, &bytes)?;
    if evidence.account != manifest.pool_account || evidence.asset != manifest.asset {
        return Err(wrong(
            dir::LEDGER,
            &"it names another account or asset than the manifest",
        ));
    }
    Ok(())
}

/// Why a proof does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The commitment is not the hash of the manifest's fields.
    #[error("the manifest was altered: its commitment is not the hash of its fields")]
    Manifest,
    /// A quarantined run pays nothing.
    #[error("the manifest has no payouts")]
    NoPayouts,
    /// The path does not lead to the root.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The path does not lead to the root of the claim tree.
    #[error(transparent)]
    Claim(#[from] ClaimPathError),
    /// A claim's path without a claim tree.
    #[error("the proof has a claim's path, and its manifest has no claim tree")]
    NoClaims,
    /// Nobody has signed the manifest.
    #[error("the manifest is not signed")]
    Unsigned,
    /// No signature over the manifest verifies.
    #[error("no signature over the manifest verifies: {0}")]
    Signature(SignatureError),
}

/// Checks that a proof leads from its payout to the root of its manifest. The manifest may be
/// anybody's: the caller checks its signatures, or that it is one that the caller knows.
pub fn check_proof(proof: &PayoutProof) -> Result<(), ProofError> {
    let manifest = &proof.manifest;
    if commitment(manifest) != manifest.commitment {
        return Err(ProofError::Manifest);
    }
    let root = manifest.payouts.as_ref().ok_or(ProofError::NoPayouts)?;
    tree::check_path(&proof.payout, &proof.path, root)?;
    match &manifest.claims {
        Some(of) => Ok(claims::check_path(&proof.payout, &proof.claim, &of.root)?),
        None if proof.claim.is_empty() => Ok(()),
        None => Err(ProofError::NoClaims),
    }
}

/// The same, and that one of the pinned keys has signed the manifest. Returns that signature.
pub fn check_signed_proof<'p>(
    proof: &'p PayoutProof,
    keys: &KeyRing,
) -> Result<&'p ManifestSig, ProofError> {
    check_proof(proof)?;
    let message = digest_message("blake3", &proof.manifest.commitment.0);
    let mut refused = ProofError::Unsigned;
    for signature in &proof.signatures {
        match keys.verify(&signature.alg, &signature.key, &signature.value, &message) {
            Ok(()) => return Ok(signature),
            Err(error) => refused = ProofError::Signature(error),
        }
    }
    Err(refused)
}
