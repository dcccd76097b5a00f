//! The intent emitter: has a sealed run's manifest signed, then pays it through the ledger.
//!
//! `signature -> ledger evidence -> epoch_open -> payouts in index order -> epoch_close`, each for every asset
//! of the run, and the opening of all in one linked commit; a run that
//! is withdrawn takes the one step `epoch_void` instead. Every
//! step can be repeated: the ledger binds an epoch to one manifest for ever and knows each payout
//! by (tenant, epoch, asset, index). After any crash the emitter therefore repeats the whole sequence,
//! starting at the ledger's own cursor.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_http::TraceScope;
use ron_kernel::{Backoff, Deadline, Receiver, Recv, Sender, SharedClock, Shutdown, ThreadCtx};
use ron_proto::ledger::{Entry, EntryAnswer, EpochState, MAX_ENTRIES, PrincipalName, RefusalCode};
use ron_proto::policy::digest_message;
use ron_proto::rewarder::{
    LedgerEvidence, ManifestSig, Payout, RunManifest, RunReason, RunState, SettlementSeqs,
};
use ron_proto::strict;
use ron_proto::values::{Amount, ContentId, EpochId, Timestamp};

use super::ports::{Ledger, PortError, Signer};
use super::worker::{Fuse, crashed, hand_on};
use super::{Intent, Run, RunEvent, Update, reason};
use crate::errors::{WITHDRAWN, usage_paid_detail as usage_paid};
use crate::inline;
use crate::manifest::reader::Reader;
use crate::manifest::{assets, claims_payout, dir, ledger_payouts, source, verify};
use crate::metrics::Metrics;
use ron_service::pinned::KeyRing;

/// How often the ledger is asked, between two runs, whether it answers.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Attempts of one upstream call before the run is held.
const TRIES: u32 = 3;

/// State of the rew-emit thread.
pub struct Emitter {
    /// Root of the run directories.
    pub root: Dir,
    /// Runs to sign and settle.
    pub intents: Receiver<Intent>,
    pub updates: Sender<Update>,
    pub ledger: Arc<dyn Ledger>,
    /// Signs manifests: the KMS, or a test's key.
    pub signer: Arc<dyn Signer>,
    /// Keys that a manifest's signature must verify under before anything is paid.
    pub pinned: KeyRing,
    /// The name of this service in the ledger.
    pub principal: PrincipalName,
    /// Budget of one upstream call.
    pub call_timeout: Duration,
    /// Minimum pause between two attempts of a call; the maximum is two and a half times as long.
    pub retry_pause: Duration,
    pub clock: SharedClock,
    pub metrics: Metrics,
    /// Called with the reason while the ledger or the KMS is unavailable, or with `None` when
    /// settlement works.
    pub upstream: Box<dyn Fn(Option<String>) + Send + Sync>,
    /// Called with the reason when the ledger does not answer between two runs, or with `None` when it does. Apart from
    /// `upstream`, because an answer of the ledger says nothing about the KMS.
    pub ledger_unavailable: Box<dyn Fn(Option<String>) + Send + Sync>,
}

/// Why an attempt ended early.
enum Pause {
    /// Retry later: the scheduler sends the intent again.
    Hold(RunReason),
    /// The run can never settle with these inputs.
    Fail(RunReason),
    /// The service is stopping; the next start continues.
    Stop,
}

type Step<T> = Result<T, Pause>;

impl Emitter {
    /// The thread's body.
    pub fn run(&self, ctx: &ThreadCtx) {
        inline::here();
        let mut check_at = Deadline::within(Duration::ZERO);
        loop {
            // Runs that come one after another must not keep an old answer in force.
            if check_at.expired() {
                self.check_ledger();
                check_at = Deadline::within(CHECK_EVERY);
            }
            match self.intents.recv(&ctx.shutdown, check_at) {
                Recv::Item(intent) => self.tick(&intent, &ctx.shutdown),
                Recv::Timeout => {}
                // Queued runs are stored as sealed, settling or held; the next start finds them.
                Recv::Shutdown | Recv::Closed => return,
            }
        }
    }

    /// Asks the ledger whether it answers, so that an operator knows before an epoch is due that it could not be paid.
    pub fn check_ledger(&self) {
        let why = match self.ledger.answers(Deadline::within(self.call_timeout)) {
            Ok(()) => None,
            Err(PortError::Unavailable(detail)) => {
                Some(format!("{LEDGER} is unavailable: {detail}"))
            }
            Err(PortError::Refused { detail, .. }) => Some(format!("{LEDGER} refused: {detail}")),
        };
        (self.ledger_unavailable)(why);
    }

    /// One attempt at one run; the result goes to the scheduler.
    pub fn tick(&self, intent: &Intent, shutdown: &Shutdown) {
        let _scope = TraceScope::enter(intent.request.clone());
        let fuse = Fuse::new(&self.updates, &intent.run, RunEvent::Held(crashed()));
        intent.progress.attempt();
        let event = match self.attempt(intent, shutdown) {
            Ok(event) => {
                (self.upstream)(None);
                Some(event)
            }
            Err(Pause::Hold(reason)) => Some(RunEvent::Held(reason)),
            Err(Pause::Fail(reason)) => Some(RunEvent::Failed(reason)),
            Err(Pause::Stop) => None,
        };
        intent.progress.end_settle();
        fuse.disarm();
        if let Some(event) = event {
            self.report(intent, event, shutdown);
        }
    }

    fn report(&self, intent: &Intent, event: RunEvent, shutdown: &Shutdown) {
        let update = Update {
            id: intent.run.id(),
            run_key: intent.run.run_key,
            event,
        };
        hand_on(&self.updates, update, shutdown, || {});
    }

    fn attempt(&self, intent: &Intent, shutdown: &Shutdown) -> Step<RunEvent> {
        let run = &*intent.run;
        if run.state == RunState::Withdrawing {
            return self.withdraw(run, shutdown);
        }
        let dir = run.dir(&self.root);
        let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
        if run
            .commitment
            .is_some_and(|commitment| commitment != manifest.commitment)
        {
            let detail = "the artifacts are those of another run; compute the epoch again";
            return Err(Pause::Fail(reason("artifacts_damaged", detail)));
        }
        // From here on every payout is checked against the root of its asset's manifest when it is read.
        let assets = Assets::open(&dir, manifest).map_err(|error| damaged(&error))?;
        intent.progress.sealed(assets.payouts());
        for (dir, payouts) in assets.each() {
            let signed = self.ensure_signed(dir, &payouts.manifest, shutdown);
            #[cfg(mutant = "unsigned")] // pays what the KMS has not signed
            let signed = signed.or_else(|e| {
                if ron_kernel::mutant("unsigned") {
                    Ok(())
                } else {
                    Err(e)
                }
            });
            signed?;
        }
        if !run.settle {
            return Ok(RunEvent::Signed);
        }
        #[cfg(mutant = "evidence")] // opens the epoch before there is evidence
        if ron_kernel::mutant("evidence") {
            self.open(&assets, shutdown)?;
        }
        for (dir, payouts) in assets.each() {
            self.ensure_evidence(dir, &payouts.manifest, shutdown)?;
        }
        let open_seq = self.open(&assets, shutdown)?;
        self.report(intent, RunEvent::Settling { open_seq }, shutdown);
        let mut before = 0;
        for (_, payouts) in assets.each() {
            self.pay(intent, payouts, before, shutdown)?;
            before += ledger_payouts(&payouts.manifest);
        }
        let close_seq = self.close(&assets, shutdown)?;
        let seqs = SettlementSeqs {
            open_seq: Some(open_seq),
            close_seq: Some(close_seq),
            void_seq: None,
        };
        Ok(RunEvent::Settled { seqs })
    }

    /// Has the ledger refuse this manifest for ever. Needs nothing of the artifacts.
    fn withdraw(&self, run: &Run, shutdown: &Shutdown) -> Step<RunEvent> {
        let Some(commitment) = run.commitment else {
            let detail = "the run has no manifest; compute the epoch again";
            return Err(Pause::Hold(reason("artifacts_damaged", detail)));
        };
        let entry = Entry::EpochVoid {
            principal: self.principal.clone(),
            tenant: run.tenant.clone(),
            epoch: run.epoch.clone(),
            commitment,
        };
        match self.commit_one(entry, shutdown)? {
            EntryAnswer::Done { seq, .. } => Ok(RunEvent::Withdrawn { void_seq: seq }),
            EntryAnswer::Refused {
                code: RefusalCode::EpochOpened,
                ..
            } => Ok(RunEvent::Opened),
            EntryAnswer::Refused { code, .. } => Err(refused("epoch_void", code)),
        }
    }

    /// Calls upstream up to three times, with pauses of 100 to 250 ms.
    fn call<T>(
        &self,
        what: &'static str,
        shutdown: &Shutdown,
        ask: impl Fn(Deadline) -> Result<T, PortError>,
    ) -> Step<T> {
        let pause = self.retry_pause;
        let mut backoff = Backoff::new(pause, pause, pause * 3 / 2, self.clock.unix_ms());
        loop {
            match ask(Deadline::within(self.call_timeout)) {
                Ok(answer) => return Ok(answer),
                Err(PortError::Refused { code, detail }) => {
                    return Err(Pause::Hold(reason(
                        &code,
                        format!("{what} refused: {detail}"),
                    )));
                }
                Err(PortError::Unavailable(detail)) => {
                    let svc = if what == KMS { "ron-kms" } else { "ron-ledger" };
                    self.metrics.upstream_fail.with_label_values(&[svc]).inc();
                    let wait = backoff.next_pause();
                    if backoff.steps() >= TRIES {
                        let why = format!("{what} is unavailable: {detail}");
                        (self.upstream)(Some(why.clone()));
                        let code = if what == KMS {
                            "kms_unavailable"
                        } else {
                            "ledger_unavailable"
                        };
                        return Err(Pause::Hold(reason(code, why)));
                    }
                    if shutdown.wait(Deadline::within(wait)) {
                        return Err(Pause::Stop);
                    }
                    self.metrics.retries.with_label_values(&["settle"]).inc();
                }
            }
        }
    }

    fn ensure_signed(&self, dir: &Dir, manifest: &RunManifest, shutdown: &Shutdown) -> Step<()> {
        let message = digest_message("blake3", &manifest.commitment.0);
        let good = |sig: &ManifestSig| self.pinned.verify(&sig.alg, &sig.key, &sig.value, &message);
        let stored = dir.read(dir::RUN_SIG).ok().flatten();
        let stored = stored.and_then(|bytes| strict::from_slice::<ManifestSig>(&bytes).ok());
        // A stored signature is checked like a new one: the pinned keys may have changed since it
        // was made.
        if stored.is_some_and(|sig| good(&sig).is_ok()) {
            return keep(dir, dir::RUN_SIG);
        }
        let signature = self.call(KMS, shutdown, |by| {
            self.signer.sign(&manifest.commitment, by)
        })?;
        good(&signature).map_err(|error| {
            let detail = format!(
                "the KMS signed with a key that is not pinned in manifest.public_keys ({error})"
            );
            Pause::Hold(reason("signature_invalid", detail))
        })?;
        write(dir, dir::RUN_SIG, &signature)
    }

    fn ensure_evidence(&self, dir: &Dir, manifest: &RunManifest, shutdown: &Shutdown) -> Step<()> {
        // Evidence is written once: it records the balance before the first payout.
        let exists = dir.exists(dir::LEDGER).map_err(|error| {
            let detail = format!("{} cannot be read: {error}", dir::LEDGER);
            Pause::Hold(reason("io", detail))
        })?;
        if exists {
            return keep(dir, dir::LEDGER);
        }
        let doc = self.call(LEDGER, shutdown, |by| {
            self.ledger.account(&manifest.pool_account, by)
        })?;
        let balance = doc
            .balances
            .iter()
            .find(|balance| balance.asset == manifest.asset);
        let evidence = LedgerEvidence {
            account: manifest.pool_account.clone(),
            asset: manifest.asset.clone(),
            balance_minor: balance.map_or(Amount::ZERO, |balance| balance.amount_minor),
            head_seq: doc.seq,
            at: Timestamp(self.clock.unix_ms()),
        };
        write(dir, dir::LEDGER, &evidence)
    }

    /// One commit; the ledger must return one answer per entry.
    fn commit(
        &self,
        entries: &[Entry],
        linked: bool,
        shutdown: &Shutdown,
    ) -> Step<Vec<EntryAnswer>> {
        let timer = self.metrics.emit_seconds.start_timer();
        let answer = self.call(LEDGER, shutdown, |by| {
            self.ledger.commit(entries, linked, by)
        })?;
        timer.observe_duration();
        for answer in &answer.results {
            let result = match answer {
                EntryAnswer::Done {
                    replayed: false, ..
                } => "accepted",
                EntryAnswer::Done { .. } => "dup",
                EntryAnswer::Refused { .. } => "refused",
            };
            self.metrics.intents.with_label_values(&[result]).inc();
        }
        if answer.results.len() == entries.len() {
            Ok(answer.results)
        } else {
            let detail = "the ledger's response does not have one answer per entry";
            Err(Pause::Hold(reason("upstream_error", detail)))
        }
    }

    fn commit_one(&self, entry: Entry, shutdown: &Shutdown) -> Step<EntryAnswer> {
        let mut answers = self.commit(&[entry], false, shutdown)?;
        Ok(answers.swap_remove(0))
    }

    /// Opens the epoch: all of its assets in one commit. Returns the sequence of the first.
    fn open(&self, assets: &Assets, shutdown: &Shutdown) -> Step<u64> {
        let entries: Vec<Entry> = assets
            .each()
            .map(|(_, payouts)| self.opening(assets.commitment(), payouts))
            .collect::<Step<_>>()?;
        let answers = self.commit(&entries, entries.len() > 1, shutdown)?;
        let mut first = None;
        let mut linked_failed = None;
        for ((_, payouts), answer) in assets.each().zip(answers) {
            match answer {
                EntryAnswer::Done { seq, .. } => first = first.or(Some(seq)),
                // Another entry has the reason.
                EntryAnswer::Refused {
                    code: code @ RefusalCode::LinkedFailed,
                    ..
                } => linked_failed = Some(code),
                EntryAnswer::Refused { code, paid_by, .. } => {
                    return Err(not_opened(payouts, code, paid_by));
                }
            }
        }
        match (first, linked_failed) {
            (Some(seq), None) => Ok(seq),
            (_, code) => Err(refused(
                "epoch_open",
                code.unwrap_or(RefusalCode::EpochConflict),
            )),
        }
    }

    fn opening(&self, commitment: ContentId, payouts: &Reader) -> Step<Entry> {
        let manifest = &payouts.manifest;
        let Some(root) = manifest.payouts else {
            return Err(Pause::Fail(reason(
                "quarantined",
                "a quarantined run is never paid",
            )));
        };
        let source = source(
            &manifest.tenant,
            &manifest.inputs.policy_id,
            &manifest.inputs.snapshot,
        );
        #[cfg(mutant = "usage")] // usage is known by the epoch that pays it
        let source = if ron_kernel::mutant("usage") {
            manifest.commitment
        } else {
            source
        };
        Ok(Entry::EpochOpen {
            principal: self.principal.clone(),
            tenant: manifest.tenant.clone(),
            epoch: manifest.epoch_id.clone(),
            from: manifest.pool_account.clone(),
            asset: manifest.asset.clone(),
            amount_minor: Amount(payouts.total()),
            commitment,
            sum_root: root.root,
            recipients: ledger_payouts(manifest),
            source,
            adjusts: manifest.adjusts.clone(),
        })
    }

    /// Pays one asset; `before` payouts are made of others.
    fn pay(&self, intent: &Intent, payouts: &Reader, before: u64, shutdown: &Shutdown) -> Step<()> {
        let manifest = &payouts.manifest;
        let (tenant, epoch, asset) = (&manifest.tenant, &manifest.epoch_id, &manifest.asset);
        let doc = self.call(LEDGER, shutdown, |by| {
            self.ledger.epoch(tenant, epoch, asset, by)
        })?;
        let doc = doc.ok_or_else(|| {
            Pause::Hold(reason(
                "upstream_error",
                "the ledger does not know the epoch it has just opened; was it restored from a backup?",
            ))
        })?;
        let count = ledger_payouts(manifest);
        // The ledger's cursor decides where to continue. A closed epoch was paid completely, so
        // only the closing entry is repeated.
        let mut next = if doc.state == EpochState::Closed {
            count
        } else {
            doc.next_index.min(count)
        };
        #[cfg(mutant = "resume")] // takes the ledger's cursor for the last payout that was made
        if ron_kernel::mutant("resume") {
            next = count.min(next + 1);
        }
        let now = self.clock.unix_ms();
        intent.progress.begin_settle(before + next, now);
        let mut rows = VecDeque::new();
        while next < count {
            if shutdown.is_set() {
                return Err(Pause::Stop);
            }
            // Empty, or the ledger's cursor has gone back.
            if rows.front().is_none_or(|row: &Payout| row.index != next) {
                let group = match claims_payout(manifest) {
                    Some(total) => Ok(vec![total]),
                    None => payouts.rest_of_group(next),
                };
                rows = group.map_err(|error| damaged(&error))?.into();
            }
            let some = rows.len().min(MAX_ENTRIES);
            let batch: Vec<Entry> = rows
                .drain(..some)
                .map(|payout| self.payout(manifest, payout))
                .collect();
            next = self.check_batch(next, &self.commit(&batch, false, shutdown)?)?;
            intent.progress.settled_to(before + next);
        }
        Ok(())
    }

    fn payout(&self, manifest: &RunManifest, payout: Payout) -> Entry {
        Entry::Payout {
            principal: self.principal.clone(),
            tenant: manifest.tenant.clone(),
            epoch: manifest.epoch_id.clone(),
            index: payout.index,
            to: payout.account,
            asset: manifest.asset.clone(),
            amount_minor: payout.amount_minor,
        }
    }

    /// The index to continue from after a batch that began at `first`.
    fn check_batch(&self, first: u64, answers: &[EntryAnswer]) -> Step<u64> {
        for (index, answer) in (first..).zip(answers) {
            match answer {
                EntryAnswer::Done { .. } => {}
                // The ledger's cursor is behind ours only if the ledger was restored from a backup.
                // Going back is safe: the ledger knows every payout by its index.
                EntryAnswer::Refused {
                    code: RefusalCode::IndexGap,
                    expected: Some(expected),
                    ..
                } if *expected < index => {
                    return Ok(*expected);
                }
                EntryAnswer::Refused { code, .. } => {
                    return Err(refused(&format!("payout {index}"), *code));
                }
            }
        }
        Ok(first + answers.len() as u64)
    }

    /// Closes every asset; returns the sequence of the last.
    fn close(&self, assets: &Assets, shutdown: &Shutdown) -> Step<u64> {
        let mut last = 0;
        for (_, payouts) in assets.each() {
            let manifest = &payouts.manifest;
            let entry = Entry::EpochClose {
                principal: self.principal.clone(),
                tenant: manifest.tenant.clone(),
                epoch: manifest.epoch_id.clone(),
                commitment: assets.commitment(),
                asset: assets.are_several().then(|| manifest.asset.clone()),
            };
            last = match self.commit_one(entry, shutdown)? {
                EntryAnswer::Done { seq, .. } => seq,
                EntryAnswer::Refused { code, .. } => return Err(refused("epoch_close", code)),
            };
        }
        Ok(last)
    }
}

/// The assets of a run with their directories and payouts, in the order of the policy.
struct Assets {
    own: (Dir, Reader),
    further: Vec<(Dir, Reader)>,
}

impl Assets {
    fn open(run: &Dir, manifest: RunManifest) -> Result<Self, verify::VerifyError> {
        let mut further = Vec::with_capacity(manifest.also.len());
        for manifest in assets::read_further(run, &manifest)? {
            let dir = assets::further(run, &manifest.asset);
            let payouts = Reader::with(&dir, manifest)?;
            further.push((dir, payouts));
        }
        let own = (run.clone(), Reader::with(run, manifest)?);
        Ok(Self { own, further })
    }

    fn each(&self) -> impl Iterator<Item = (&Dir, &Reader)> {
        let all = std::iter::once(&self.own).chain(&self.further);
        all.map(|(dir, payouts)| (dir, payouts))
    }

    /// The commitment that the ledger knows the epoch by: that of the manifest that names the others.
    const fn commitment(&self) -> ContentId {
        self.own.1.manifest.commitment
    }

    const fn are_several(&self) -> bool {
        !self.further.is_empty()
    }

    /// Payouts that the ledger makes, of all assets.
    fn payouts(&self) -> u64 {
        let each = self.each();
        each.map(|(_, payouts)| ledger_payouts(&payouts.manifest))
            .sum()
    }
}

/// Why the ledger did not open an asset of an epoch.
fn not_opened(payouts: &Reader, code: RefusalCode, paid_by: Option<EpochId>) -> Pause {
    match (code, paid_by) {
        (RefusalCode::EpochConflict, _) => {
            let detail = "the ledger has bound this epoch to another manifest; \
                          only the run with those inputs can be settled";
            Pause::Fail(reason("epoch_conflict", detail))
        }
        (RefusalCode::EpochVoid, _) => Pause::Fail(reason("epoch_void", WITHDRAWN)),
        (RefusalCode::UsagePaid, Some(epoch)) => {
            Pause::Fail(reason("usage_paid", usage_paid(&epoch)))
        }
        (RefusalCode::InsufficientFunds, _) => {
            let (manifest, total) = (&payouts.manifest, payouts.total());
            let detail = format!(
                "{} holds less than the {total} minor units of {} that this epoch pays; fund it",
                manifest.pool_account, manifest.asset
            );
            Pause::Hold(reason("pool_short", detail))
        }
        (code, _) => refused("epoch_open", code),
    }
}

const KMS: &str = "the KMS";
const LEDGER: &str = "the ledger";

fn refused(what: &str, code: RefusalCode) -> Pause {
    let detail = format!("the ledger refused {what}: {}", code.meaning());
    Pause::Hold(reason(code.as_str(), detail))
}

fn damaged(error: &verify::VerifyError) -> Pause {
    let detail = format!("the artifacts are damaged ({error}); compute the epoch again");
    Pause::Fail(reason("artifacts_damaged", detail))
}

/// Makes a file durable that is there already.
fn keep(dir: &Dir, name: &str) -> Step<()> {
    let kept = dir.sync();
    kept.map_err(|error| Pause::Hold(reason("io", format!("{name} cannot be kept: {error}"))))
}

fn write<T: serde::Serialize>(dir: &Dir, name: &str, document: &T) -> Step<()> {
    let written = dir::to_json(document).and_then(|bytes| dir::add(dir, name, &bytes));
    written.map_err(|error| Pause::Hold(reason("io", format!("{name} cannot be written: {error}"))))
}
