//! What must hold at the end of a run: the ledger's log pays what the plan says, once, and what operators were told agrees with it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ron_proto::ledger::{Entry, EntryAnswer, Event};
use ron_proto::rewarder::{RunManifest, RunState};
use ron_proto::{Amount, ContentId, EpochId};
use ron_sim::ensure;

use super::formats::Inputs;
use super::kms::Kms;
use super::operator::{Answer, Noted, code};
use super::plan::Plan;
use crate::model::Model;

/// What a run has shown.
pub struct Evidence<'s> {
    pub plan: &'s Plan,
    pub log: &'s [Event],
    /// The end of each epoch of the plan.
    pub ends: &'s [Answer],
    pub told: &'s [Noted],
    pub kms: &'s Kms,
    /// Whether the ledger's date was always that of the world.
    pub dates_hold: bool,
    /// Money that was put into the pool.
    pub funds: u128,
}

/// The settlement of an epoch in the log.
#[derive(Debug, Default)]
struct Paid<'l> {
    opens: Vec<(&'l Event, ContentId)>,
    payouts: Vec<(&'l Event, u64, &'l str, u128)>,
    closes: Vec<&'l Event>,
}

impl Evidence<'_> {
    /// How many epochs were paid, had a manifest withdrawn, or have nobody to pay.
    pub fn check(&self) -> usize {
        let mut model = Model::default();
        while model.seq() < self.log.len() as u64 {
            let taken = model.take(&self.log[model.seq() as usize..]);
            ensure(taken.is_ok(), &format!("{taken:?}"));
        }
        let paid = self.paid();
        self.is_withdrawn_or_opened(&paid);
        let mut total = 0;
        for (epoch, plan) in self.plan.epochs.iter().enumerate() {
            match paid.get(&plan.id) {
                Some(paid) => total += self.is_paid_once(epoch, paid),
                None => self.is_not_paid(epoch),
            }
        }
        let foreign = paid
            .keys()
            .find(|id| !self.plan.epochs.iter().any(|e| e.id == **id));
        ensure(foreign.is_none(), &format!("nobody asked for {foreign:?}"));
        let left = model.available(&self.plan.pool, &self.plan.asset);
        ensure(
            left == self.funds - total,
            &format!("{left} is left of {}, {total} was paid", self.funds),
        );
        for told in self.told {
            self.is_true(told, &paid);
        }
        let mut ended: BTreeSet<&EpochId> = paid.keys().collect();
        ended.extend(self.withdrawn().map(|(_, epoch, _)| epoch));
        let epochs = self.plan.epochs.iter().zip(self.ends);
        let nobody = epochs.filter(|(_, end)| is_without_recipients(end));
        ended.extend(nobody.map(|(epoch, _)| &epoch.id));
        ended.len()
    }

    /// The withdrawals in the log: sequence, epoch, commitment.
    fn withdrawn(&self) -> impl Iterator<Item = (u64, &EpochId, ContentId)> {
        let done = |event: &&Event| matches!(event.answer, EntryAnswer::Done { .. });
        self.log
            .iter()
            .filter(done)
            .filter_map(|event| match &event.entry {
                Entry::EpochVoid {
                    epoch, commitment, ..
                } => Some((event.seq, epoch, *commitment)),
                _ => None,
            })
    }

    /// A manifest that was withdrawn, before or after, opened no epoch, and each was withdrawn once.
    fn is_withdrawn_or_opened(&self, paid: &BTreeMap<EpochId, Paid<'_>>) {
        let mut seen = BTreeSet::new();
        for (seq, epoch, commitment) in self.withdrawn() {
            let first = seen.insert((epoch, commitment));
            ensure(first, &format!("{commitment} is withdrawn again at {seq}"));
            let of = paid.get(epoch);
            let opened = of.is_some_and(|of| of.opens.iter().any(|o| o.1 == commitment));
            ensure(
                !opened,
                &format!("{commitment} of {epoch} is withdrawn and opened"),
            );
        }
    }

    /// What was done, by epoch.
    fn paid(&self) -> BTreeMap<EpochId, Paid<'_>> {
        let mut all: BTreeMap<EpochId, Paid<'_>> = BTreeMap::new();
        let done = |event: &&Event| matches!(event.answer, EntryAnswer::Done { .. });
        for event in self.log.iter().filter(done) {
            match &event.entry {
                Entry::EpochOpen {
                    epoch, commitment, ..
                } => {
                    let paid = all.entry(epoch.clone()).or_default();
                    paid.opens.push((event, *commitment));
                }
                Entry::Payout {
                    epoch,
                    index,
                    to,
                    amount_minor,
                    ..
                } => {
                    let paid = all.entry(epoch.clone()).or_default();
                    paid.payouts
                        .push((event, *index, to.as_str(), amount_minor.0));
                }
                Entry::EpochClose { epoch, .. } => {
                    all.entry(epoch.clone()).or_default().closes.push(event);
                }
                _ => {}
            }
        }
        all
    }

    /// It was opened once, by a manifest of the plan that the KMS had signed; each row of its table was paid once, in order; it was
    /// closed once, and that is what its run says. The sum of its payouts.
    fn is_paid_once(&self, epoch: usize, paid: &Paid<'_>) -> u128 {
        let name = &self.plan.epochs[epoch].id;
        let [(open, commitment)] = paid.opens[..] else {
            ensure(
                false,
                &format!("{name} is opened {} times", paid.opens.len()),
            );
            return 0;
        };
        let opened = |manifest: &RunManifest| manifest.commitment == commitment;
        let Some((inputs, manifest)) = self.plan.find(epoch, opened) else {
            ensure(false, &format!("{name} is opened by no manifest: {open:?}"));
            return 0;
        };
        let inputs = &self.plan.inputs[inputs];
        self.is_opened_by(epoch, open, commitment, inputs);
        let table = &inputs.table;
        let rows = table.rows.iter().enumerate();
        let due: Vec<_> = rows.map(|(i, r)| (i as u64, r.0.as_str(), r.1)).collect();
        let made: Vec<_> = paid.payouts.iter().map(|p| (p.1, p.2, p.3)).collect();
        ensure(
            made == due,
            &format!("{name} has paid {made:?}, due is {due:?}"),
        );
        let [close] = paid.closes[..] else {
            ensure(
                false,
                &format!("{name} is closed {} times", paid.closes.len()),
            );
            return 0;
        };
        let end = &self.ends[epoch];
        let Answer::Run(run) = end else {
            ensure(false, &format!("{name} is paid, and its run is {end:?}"));
            return 0;
        };
        let seqs = (run.settlement.open_seq, run.settlement.close_seq);
        let agrees = run.state == RunState::Settled
            && run.commitment == Some(manifest.commitment)
            && seqs == (Some(open.seq), Some(close.seq));
        ensure(
            agrees,
            &format!("{name} is opened at {}, and its run is {run:?}", open.seq),
        );
        table.total()
    }

    /// The entry is that of the manifest, which the KMS had signed.
    fn is_opened_by(&self, epoch: usize, open: &Event, commitment: ContentId, inputs: &Inputs) {
        let (plan, table) = (self.plan, &inputs.table);
        let name = &plan.epochs[epoch].id;
        let Entry::EpochOpen {
            from,
            asset,
            amount_minor,
            sum_root,
            recipients,
            source,
            adjusts,
            ..
        } = &open.entry
        else {
            unreachable!("it was an open");
        };
        let same = (from, asset) == (&plan.pool, &plan.asset)
            && *amount_minor == Amount(table.total())
            && (*sum_root, *recipients) == (inputs.root, table.rows.len() as u64)
            && *source == inputs.source(&plan.tenant)
            && adjusts.is_none();
        ensure(
            same,
            &format!("{name} is opened as {open:?}, due is {table:?}"),
        );
        let signed = self.kms.signed(&commitment);
        let before = |at: Duration| !self.dates_hold || at.as_millis() <= u128::from(open.ts.0);
        ensure(
            signed.is_some_and(before),
            &format!(
                "{name} is opened at {:?}, and signed at {signed:?}",
                open.ts
            ),
        );
    }

    /// Its end is the refusal of usage that another epoch has paid, or of a manifest that was withdrawn; or it has no recipients.
    fn is_not_paid(&self, epoch: usize) {
        let end = &self.ends[epoch];
        if end.is_withdrawn() {
            let own = self.plan.manifest(epoch, self.plan.epochs[epoch].inputs);
            let mut all = self.withdrawn();
            let is_there = all.any(|(_, _, commitment)| commitment == own.commitment);
            ensure(is_there, &format!("{:?} was not withdrawn", own.epoch_id));
            return;
        }
        if is_without_recipients(end) {
            return;
        }
        let inputs = &self.plan.inputs;
        let refused = match end {
            Answer::Run(run) => {
                let failed = run.state == RunState::Failed && code(run) == "usage_paid";
                let of = self.plan.inputs_of(run.snapshot, run.policy_hash);
                of.filter(|_| failed).map(|of| &inputs[of])
            }
            end if end.is_usage_paid() => Some(&inputs[self.plan.epochs[epoch].inputs]),
            _ => None,
        };
        let of = refused.map(|inputs| inputs.source(&self.plan.tenant));
        let paid = self
            .log
            .iter()
            .any(|event| match (&event.entry, &event.answer) {
                (Entry::EpochOpen { source, .. }, EntryAnswer::Done { .. }) => Some(*source) == of,
                _ => false,
            });
        let name = &self.plan.epochs[epoch].id;
        ensure(paid, &format!("{name} is not paid, and its end is {end:?}"));
    }

    /// What was said of a settlement is in the log.
    fn is_true(&self, told: &Noted, paid: &BTreeMap<EpochId, Paid<'_>>) {
        let text = || format!("{told:?}");
        let Answer::Run(run) = &told.said else {
            return;
        };
        let of = paid.get(&run.epoch_id);
        if let Some(seq) = run.settlement.void_seq {
            let due = run
                .commitment
                .map(|commitment| (seq, &run.epoch_id, commitment));
            let same = self.withdrawn().any(|it| Some(it) == due);
            ensure(same, &format!("it was not withdrawn: {}", text()));
        }
        if let Some(seq) = run.settlement.open_seq {
            let same = of.is_some_and(|of| {
                let due = run.commitment.map(|commitment| (seq, commitment));
                of.opens.iter().any(|o| Some((o.0.seq, o.1)) == due)
            });
            ensure(same, &format!("it was not opened: {}", text()));
        }
        if run.state == RunState::Settled {
            let seq = run.settlement.close_seq;
            let same = of.is_some_and(|of| of.closes.iter().any(|c| Some(c.seq) == seq));
            ensure(same, &format!("it was not closed: {}", text()));
        }
    }
}

/// Such an epoch never pays.
fn is_without_recipients(end: &Answer) -> bool {
    let Answer::Run(run) = end else {
        return false;
    };
    let nobody = run.totals.is_some_and(|totals| totals.recipients == 0);
    nobody && run.state == RunState::Review
}
