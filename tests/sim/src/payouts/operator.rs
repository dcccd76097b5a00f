//! Operators of the rewarder: they store policies and usage, have epochs computed and settled, and ask; some of them twice, or
//! with other inputs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, RewarderClient};
use ron_http::{Call, HttpClient, Method};
use ron_kernel::Deadline;
use ron_proto::rewarder::{EpochRun, RunManifest, RunState, SnapshotInfo, WithdrawRequest};
use ron_proto::{Amount, ContentId};
use ron_sim::{ensure, time};

use super::REWARDER;
use super::formats::{Inputs, leads_to_root};
use super::plan::Plan;
use super::services::Tokens;
use crate::chance::{below, ms};
use crate::hosts::{self, client_ip};
use crate::net::SimNet;

/// Longest time of a call that waits for nothing.
const CALL: Duration = Duration::from_secs(3);

/// Fewest and most acts of an operator.
const ACTS: std::ops::Range<usize> = 25..60;
/// After which the next epoch begins.
const EPOCH: Duration = Duration::from_millis(500);

/// What became of an epoch, as an operator was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Run(Box<EpochRun>),
    /// Refused, with the code of the problem, and of the run's reason if it has one.
    Refused(u16, String, Option<String>),
    Unknown,
}

impl Answer {
    /// A refusal of a computation: another epoch has paid the usage, or is about to.
    pub fn is_usage_paid(&self) -> bool {
        matches!(self, Self::Refused(409, code, _) if code == "usage_paid")
    }

    /// A refusal of a computation: its manifest was withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        matches!(self, Self::Refused(409, code, _) if code == "epoch_void")
    }
}

/// An answer about an epoch.
#[derive(Clone, Debug)]
pub struct Noted {
    pub epoch: usize,
    pub said: Answer,
}

pub struct Operator {
    pub number: u8,
    pub plan: Arc<Plan>,
    rewarder: RewarderClient,
    http: Arc<HttpClient>,
    token: String,
    /// There are faults as long as this is not set. `None`: there are none, and every call has an answer.
    over: Option<Arc<AtomicBool>>,
    began: Instant,
    /// Epochs whose run was recorded, as somebody was told.
    pub recorded: BTreeSet<usize>,
    pub told: Vec<Noted>,
    pub calls: u64,
}

impl Operator {
    /// Works until `over` is set; without it, on a network without faults.
    pub fn new(net: &SimNet, plan: &Arc<Plan>, number: u8, over: Option<&Arc<AtomicBool>>) -> Self {
        let http = hosts::client(net.host(client_ip(number)), 3_000 + u64::from(number));
        let (http, token) = (Arc::new(http), Tokens::written().operator.clone());
        let base = format!("http://{REWARDER}:80");
        Self {
            number,
            plan: plan.clone(),
            rewarder: RewarderClient::new(&base, Credential::bearer(&token), http.clone()),
            http,
            token,
            over: over.cloned(),
            began: time::now(),
            recorded: BTreeSet::new(),
            told: Vec::new(),
            calls: 0,
        }
    }

    /// One call, which ends by its deadline and a tenth of it.
    fn ask<T>(
        &mut self,
        what: &str,
        limit: Duration,
        call: impl FnOnce(&Self, Deadline) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.calls += 1;
        let began = time::now();
        let answer = call(self, Deadline::within(limit));
        let took = time::now() - began;
        ensure(
            took <= limit + limit / 10,
            &format!("{what} took {took:?} of {limit:?}"),
        );
        let error = answer.as_ref().err();
        if let Some(error) = error {
            ron_sim::note(&format!("operator {}: {what}: {error}", self.number));
            let internal = matches!(error, ClientError::Refused { status: 500, .. });
            ensure(!internal, &format!("{what}: {error}"));
            let answered = matches!(error, ClientError::Refused { .. });
            ensure(
                answered || self.over.is_some(),
                &format!("{what} has no answer on a good network: {error}"),
            );
        }
        answer
    }

    /// Stores a policy and usage; whether both are stored.
    fn store(&mut self, inputs: usize) -> bool {
        let plan = self.plan.clone();
        let of = &plan.inputs[inputs];
        let stored = self.ask("a policy", CALL, |this, by| {
            this.rewarder.put_policy(&of.policy.id, &of.signed, by)
        });
        if let Ok(stored) = &stored {
            ensure(
                stored.hash == of.policy_hash,
                &format!("the policy has another hash: {stored:?}"),
            );
        }
        let usage = self.ask("usage", CALL, |this, by| this.upload(of, of.cid, by));
        if let Ok(usage) = &usage {
            ensure(
                usage.cid == of.cid && usage.accounts == of.usage.len() as u64,
                &format!("the usage has another id: {usage:?}"),
            );
        }
        stored.is_ok() && usage.is_ok()
    }

    /// Under another id than its own usage is not stored.
    fn store_under_a_wrong_id(&mut self, inputs: usize) {
        let plan = self.plan.clone();
        let wrong = ContentId([below(256) as u8; 32]);
        let answer = self.ask("usage under another id", CALL, |this, by| {
            this.upload(&plan.inputs[inputs], wrong, by)
        });
        ensure(answer.is_err(), &format!("another id is kept: {answer:?}"));
    }

    fn upload(
        &self,
        of: &Inputs,
        cid: ContentId,
        by: Deadline,
    ) -> Result<SnapshotInfo, ClientError> {
        let (kind, body) = rows(of);
        let mut url = format!("http://{REWARDER}:80/rewarder/snapshots/{cid}?kind={kind}");
        if let Some(period) = &of.period {
            let _ = write!(url, "&period={period}");
        }
        let authorization = format!("Bearer {}", self.token);
        let call = Call {
            method: Method::PUT,
            url: &url,
            headers: &[("authorization", &authorization)],
            body: Some(body),
            content_type: Some("text/csv"),
            deadline: by,
            idempotent: true,
        };
        let unknown = |detail: String| ClientError::NotSent { detail };
        let reply = self.http.call(call).map_err(|e| unknown(e.to_string()))?;
        match reply.problem() {
            Some(problem) if !reply.is_success() => Err(ClientError::Refused {
                status: reply.status,
                problem: Box::new(problem),
                retry_after_s: None,
            }),
            _ => reply.json().map_err(|error| unknown(error.to_string())),
        }
    }

    /// Notes what was said of an epoch, and checks what can be checked at once.
    fn note(&mut self, epoch: usize, answer: Result<EpochRun, ClientError>) -> Answer {
        let said = match answer {
            Ok(run) => {
                self.check(epoch, &run);
                let state = (&run.state, &run.reason, run.commitment.is_some());
                ron_sim::note(&format!(
                    "operator {}: {} is {state:?}",
                    self.number, run.epoch_id
                ));
                Answer::Run(Box::new(run))
            }
            Err(ClientError::Refused {
                status, problem, ..
            }) => {
                let reason = problem.details.as_ref();
                let reason = reason.and_then(|all| all["reason"].as_str().map(str::to_owned));
                Answer::Refused(status, problem.code.clone(), reason)
            }
            Err(_) => Answer::Unknown,
        };
        self.told.push(Noted {
            epoch,
            said: said.clone(),
        });
        said
    }

    /// The run is one of this plan, and what was computed is what the plan says.
    fn check(&self, epoch: usize, run: &EpochRun) {
        let text = || format!("{run:?}");
        let found = self.plan.inputs_of(run.snapshot, run.policy_hash);
        let Some(inputs) = found else {
            ensure(false, &format!("unknown inputs: {}", text()));
            return;
        };
        let due = self.plan.manifest(epoch, inputs);
        let same = run.run_key == due.run_key
            && run.epoch_id == due.epoch_id
            && run.commitment.is_none_or(|c| c == due.commitment)
            && run.totals.is_none_or(|totals| totals == due.totals);
        ensure(same, &format!("{}, but due is {due:?}", text()));
        let paid = matches!(run.state, RunState::Settling | RunState::Settled);
        ensure(
            run.state != RunState::Quarantined && !(run.dry_run && paid),
            &text(),
        );
    }

    pub fn compute(
        &mut self,
        epoch: usize,
        inputs: usize,
        dry_run: bool,
        wait: Duration,
    ) -> Answer {
        let plan = self.plan.clone();
        let request = plan.request(epoch, inputs, dry_run);
        let id = &plan.epochs[epoch].id;
        let limit = CALL + wait;
        let answer = self.ask("a computation", limit, |this, by| {
            this.rewarder.compute(id, &request, wait, by)
        });
        self.note(epoch, answer)
    }

    pub fn settle(&mut self, epoch: usize) -> Answer {
        let plan = self.plan.clone();
        let answer = self.ask("a settlement", CALL, |this, by| {
            this.rewarder.settle(&plan.epochs[epoch].id, by)
        });
        self.note(epoch, answer)
    }

    /// Withdraws the manifest that the epoch has at the moment, if it has one. Whether that holds, or an opening that is on its way
    /// is faster, is for the ledger to say.
    fn withdraw(&mut self, epoch: usize) {
        let Answer::Run(run) = self.state(epoch) else {
            return;
        };
        let Some(commitment) = run.commitment else {
            return;
        };
        let plan = self.plan.clone();
        let request = WithdrawRequest {
            commitment,
            reason: format!("operator {}", self.number),
        };
        let answer = self.ask("a withdrawal", CALL, |this, by| {
            this.rewarder.withdraw(&plan.epochs[epoch].id, &request, by)
        });
        self.note(epoch, answer);
    }

    pub fn state(&mut self, epoch: usize) -> Answer {
        let plan = self.plan.clone();
        let answer = self.ask("the state", CALL, |this, by| {
            this.rewarder.epoch(&plan.epochs[epoch].id, by)
        });
        self.note(epoch, answer)
    }

    /// Computes an epoch by these inputs, which are stored first if they are missing.
    pub fn compute_from_nothing(&mut self, epoch: usize, inputs: usize) -> Answer {
        let said = self.compute(epoch, inputs, false, Duration::ZERO);
        match said {
            Answer::Refused(404 | 422, ..) if self.store(inputs) => {
                self.compute(epoch, inputs, false, Duration::ZERO)
            }
            said => said,
        }
    }

    /// Reads the manifest of an epoch, a page of its payouts and a proof; whether it was there. They are those of the plan.
    pub fn read(&mut self, epoch: usize) -> Option<RunManifest> {
        let plan = self.plan.clone();
        let id = &plan.epochs[epoch].id;
        let text = self.ask("a manifest", CALL, |this, by| {
            this.rewarder.manifest(id, by)
        });
        let manifest: RunManifest = serde_json::from_str(&text.ok()?).expect("a manifest");
        let of = &manifest.inputs;
        let found = plan.inputs_of(of.snapshot, of.policy_hash);
        let due = found.map(|inputs| (inputs, plan.manifest(epoch, inputs)));
        let Some((inputs, due)) = due.filter(|(_, due)| *due == manifest) else {
            ensure(
                false,
                &format!("another manifest: {manifest:?}, due: {found:?}"),
            );
            return None;
        };
        self.read_payouts(epoch, inputs, &due);
        Some(manifest)
    }

    /// The run may be replaced between two calls, and then has other payouts.
    fn read_payouts(&mut self, epoch: usize, inputs: usize, manifest: &RunManifest) {
        let plan = self.plan.clone();
        let (id, table) = (&plan.epochs[epoch].id, &plan.inputs[inputs].table);
        let count = table.rows.len();
        let from = below(count as u64 + 1);
        let page = self.ask("payouts", CALL, |this, by| {
            this.rewarder.payouts(id, from, by)
        });
        if let Ok(page) = page
            && page.count == count as u64
        {
            let due: Vec<_> = table.rows.iter().skip(from as usize).take(1_000).collect();
            let read: Vec<_> = page.payouts.iter().collect();
            let same = due.len() == read.len()
                && due.iter().zip(&read).all(|(due, read)| {
                    (due.0.as_str(), Amount(due.1)) == (read.account.as_str(), read.amount_minor)
                });
            ensure(same, &format!("payouts {read:?}, but due are {due:?}"));
        }
        let Some((account, _)) = table.rows.get(from as usize) else {
            return;
        };
        let account = account.parse().expect("an account");
        let proof = self.ask("a proof", CALL, |this, by| {
            this.rewarder.proof(id, &account, by)
        });
        if let Ok(proof) = proof
            && proof.manifest.commitment == manifest.commitment
        {
            let good = leads_to_root(&proof) && proof.manifest == *manifest;
            ensure(good, &format!("the proof is wrong: {proof:?}"));
        }
    }

    fn list(&mut self) {
        let list = self.ask("the list", CALL, |this, by| this.rewarder.epochs(by));
        let Ok(list) = list else { return };
        let names: BTreeSet<_> = list.epochs.iter().map(|run| &run.epoch_id).collect();
        ensure(names.len() == list.epochs.len(), "an epoch is listed twice");
        for run in &list.epochs {
            let epoch = self.plan.epochs.iter().position(|e| e.id == run.epoch_id);
            ensure(epoch.is_some(), &format!("nobody asked for {run:?}"));
            self.check(epoch.unwrap_or(0), run);
        }
    }

    /// Works for as long as there are faults, at least and at most so often.
    pub fn work(&mut self) {
        for number in 0..ACTS.end {
            let over = self.over.as_ref();
            if number >= ACTS.start && over.is_none_or(|over| over.load(Ordering::SeqCst)) {
                break;
            }
            self.act();
        }
    }

    /// Does one thing, as the rules say or carelessly. One epoch begins after the other.
    fn act(&mut self) {
        let plan = self.plan.clone();
        let begun = 1 + (time::now() - self.began).as_millis() / EPOCH.as_millis();
        let epoch = below((plan.epochs.len() as u64).min(begun as u64)) as usize;
        let own = plan.epochs[epoch].inputs;
        let other = below(plan.inputs.len() as u64) as usize;
        let wait = Duration::from_secs(below(3));
        match below(18) {
            0..=3 => drop(self.compute_from_nothing(epoch, own)),
            4 | 5 => drop(self.compute(epoch, own, false, wait)),
            6 => drop(self.compute_from_nothing(epoch, other)),
            7 => drop(self.compute(epoch, other, true, wait)),
            8 => drop(self.store(other)),
            9 => self.store_under_a_wrong_id(other),
            10 | 11 => drop(self.settle(epoch)),
            12 => self.list(),
            13 => drop(self.state(epoch)),
            14 | 15 => self.withdraw(epoch),
            _ => drop(self.read(epoch)),
        }
        time::sleep(ms(below(150)));
    }

    /// Brings an epoch to its end, before this moment: settled, or refused for ever.
    pub fn finish(&mut self, epoch: usize, by: Instant) -> Answer {
        let own = self.plan.epochs[epoch].inputs;
        loop {
            let mut said = self.state(epoch);
            let computes = match &said {
                Answer::Refused(404, ..) => {
                    let forgotten = self.recorded.contains(&epoch);
                    let name = &self.plan.epochs[epoch].id;
                    ensure(!forgotten, &format!("the run of {name} is forgotten"));
                    true
                }
                Answer::Run(run) => match run.state {
                    RunState::Settled | RunState::Review => return said,
                    RunState::Failed if code(run) == "epoch_void" => true,
                    RunState::Withdrawn => true,
                    RunState::Failed if is_final(run) => return said,
                    RunState::Sealed if run.dry_run => true,
                    RunState::Sealed | RunState::Held => {
                        self.settle(epoch);
                        false
                    }
                    state => state == RunState::Failed,
                },
                _ => false,
            };
            if computes {
                said = self.compute_from_nothing(epoch, own);
            }
            if said.is_usage_paid() || said.is_withdrawn() {
                return said;
            }
            let name = &self.plan.epochs[epoch].id;
            ensure(
                time::now() < by,
                &format!("after the last fault {name} does not end: {said:?}"),
            );
            time::sleep(ms(100));
        }
    }

    /// The service answers again before this moment.
    pub fn is_answered_before(&mut self, at: Instant) {
        while self
            .ask("the list", CALL, |this, by| this.rewarder.epochs(by))
            .is_err()
        {
            ensure(time::now() < at, "the rewarder answers in time");
            time::sleep(ms(100));
        }
    }
}

/// Why a run is in its state.
pub fn code(run: &EpochRun) -> &str {
    run.reason.as_ref().map_or("", |reason| &reason.code)
}

/// A refusal that the ledger repeats for ever.
fn is_final(run: &EpochRun) -> bool {
    ["usage_paid", "epoch_conflict"].contains(&code(run))
}

/// Usage as CSV, and its kind: events are added up.
fn rows(of: &Inputs) -> (&'static str, Vec<u8>) {
    let kind = ["totals", "events"][below(2) as usize];
    let mut lines: Vec<String> = Vec::new();
    for (account, amounts) in &of.usage {
        for (metric, amount) in amounts {
            let part = if kind == "events" { amount / 3 } else { 0 };
            lines.push(format!("{account},{metric},{}\n", amount - part));
            if kind == "events" {
                lines.push(format!("{account},{metric},{part}\n"));
            }
        }
    }
    // In any order.
    if below(2) == 0 {
        lines.reverse();
    }
    let text = format!("account,metric,amount\n{}", lines.concat());
    (kind, text.into_bytes())
}
