//! The run directories on the rewarder's disk, as a verifier finds them after a crash.

use std::path::{Path, PathBuf};

use ron_crypto::sign::verify_ed25519_strict;
use ron_files::SimDisk;
use ron_proto::ledger::{Entry, EntryAnswer, Event};
use ron_proto::rewarder::{LedgerEvidence, ManifestSig, RunManifest};
use ron_proto::{b64, jcs};
use ron_sim::ensure;

use super::formats::{digest_message, payouts, sealed};
use super::kms;
use super::plan::Plan;

const ROOT: &str = "/sim/data/runs/tenant-default";

/// A directory of the rewarder's disk.
struct Artifacts<'d> {
    image: &'d SimDisk,
    dir: PathBuf,
}

impl Artifacts<'_> {
    fn file(&self, name: &str) -> Option<Vec<u8>> {
        self.image.peek(&self.dir.join(name))
    }

    fn has(&self, name: &str, due: &[u8]) {
        let file = self.file(name);
        ensure(
            file.as_deref() == Some(due),
            &format!(
                "{}/{name} has {:?} bytes, due are {}",
                self.dir.display(),
                file.map(|bytes| bytes.len()),
                due.len()
            ),
        );
    }

    /// A directory with a manifest holds all of its run. `None` without one.
    fn check(&self, plan: &Plan, epoch: usize) -> Option<RunManifest> {
        let bytes = self.file("run.json")?;
        let same = |manifest: &RunManifest| jcs::to_vec(manifest).expect("JSON") == bytes;
        let due = plan.find(epoch, same);
        let Some((inputs, manifest)) = due else {
            let text = String::from_utf8_lossy(&bytes);
            ensure(false, &format!("{}: {text}", self.dir.display()));
            return None;
        };
        let of = &plan.inputs[inputs];
        self.has("payouts.bin", &payouts(&of.table));
        self.has("snapshot.bin", &sealed(&of.usage, of.period.as_deref()));
        self.has("policy.json", &jcs::canonicalize(&of.signed.policy));
        if let Some(bytes) = self.file("run.sig.json") {
            let sig: ManifestSig = serde_json::from_slice(&bytes).expect("a signature");
            let value = b64::from_url(&sig.value).expect("base64url");
            let value: [u8; 64] = value.try_into().expect("64 bytes");
            let message = digest_message(&manifest.commitment);
            let good = verify_ed25519_strict(&kms::public(), &message, &value);
            ensure(good, &format!("{} is not signed", self.dir.display()));
        }
        Some(manifest)
    }
}

/// How many epochs have a manifest on the disk.
pub fn manifests(image: &SimDisk, plan: &Plan) -> usize {
    let path = |id| Path::new(ROOT).join(format!("epoch-{id}/run.json"));
    let epochs = plan.epochs.iter().map(|epoch| path(&epoch.id));
    epochs.filter(|path| image.peek(path).is_some()).count()
}

/// Every directory with a manifest is whole, and what the ledger has opened is on the disk, with its signature and with evidence
/// from before.
pub fn check(image: &SimDisk, plan: &Plan, log: &[Event]) {
    for (number, epoch) in plan.epochs.iter().enumerate() {
        let at = |name: String| Artifacts {
            image,
            dir: Path::new(ROOT).join(name),
        };
        for inputs in 0..plan.inputs.len() {
            let run_key = plan.manifest(number, inputs).run_key;
            let name = format!("dry-{}.{}", epoch.id, run_key.hex());
            at(name).check(plan, number);
        }
        let artifacts = at(format!("epoch-{}", epoch.id));
        let manifest = artifacts.check(plan, number);
        let opened = log
            .iter()
            .find_map(|event| match (&event.entry, &event.answer) {
                (
                    Entry::EpochOpen {
                        epoch: of,
                        commitment,
                        ..
                    },
                    EntryAnswer::Done { .. },
                ) if *of == epoch.id => Some((event.seq, *commitment)),
                _ => None,
            });
        let Some((seq, commitment)) = opened else {
            continue;
        };
        let text = format!("{} is opened at {seq}", epoch.id);
        let same = manifest.is_some_and(|manifest| manifest.commitment == commitment);
        ensure(
            same,
            &format!("{text}, and its manifest is not on the disk"),
        );
        let signed = artifacts.file("run.sig.json").is_some();
        ensure(
            signed,
            &format!("{text}, and its signature is not on the disk"),
        );
        let evidence = artifacts.file("ledger.json");
        let evidence = evidence.and_then(|b| serde_json::from_slice::<LedgerEvidence>(&b).ok());
        ensure(
            evidence.as_ref().is_some_and(|of| of.head_seq < seq),
            &format!("{text}, and the evidence is {evidence:?}"),
        );
    }
}
