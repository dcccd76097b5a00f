//! Issuing: the issuer threads have queued grants signed by the KMS, many in one call, and answer with tokens.
//!
//! While one call is in flight, the next grants gather in the queue; the next free thread takes them all (up to
//! [`BATCH_MAX`]) into its call. One snapshot of key and epoch serves a batch.

mod answer;
mod deliver;
pub mod health;
pub mod numbers;
mod refusal;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::RevocationView;
use ron_client::{ClientError, KmsClient};
use ron_files::FileError;
use ron_http::{JointCalls, Responder, TraceScope};
use ron_kernel::{
    Deadline, KernelMetrics, Receiver, Recv, Sender, SharedClock, SharedRandom, Snapshot,
    ThreadCtx, reply,
};
use ron_proto::Problem;
use ron_proto::kms::{Bytes, SignBatch, SignItem, SignResult};
use ron_proto::passport::StatusRef;
use ron_proto::receipt::LogReceipt;

use crate::keys::KeyKeeper;
use crate::lists::{Lists, Places, jti, list_uri};
use crate::metrics::Metrics;
use crate::names::Names;
use crate::policy::{self, Grant};
use crate::publish::holders::Holders;
use crate::publish::origins::Origins;
use crate::revoke::{HeadAge, RevokeEvent};
use crate::sync::InForce;
use crate::token::{self, Identity, Moment, SigningKey, Unsigned};
use crate::trail::Trail;

use answer::{oauth_answer, passport_answer};
use deliver::Signed;
use health::IssueHealth;
use numbers::Numbers;
use refusal::refusal;

/// Maximum grants in one signing call.
pub const BATCH_MAX: usize = 256;

/// The endpoint's format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `POST /v1/passport/issue`.
    Passport,
    /// `POST /oauth2/token`, client_credentials.
    Oauth,
    /// `POST /oauth2/token`, token exchange.
    Exchange,
}

/// A granted token that waits for its signature.
#[derive(Debug)]
pub struct IssueJob {
    pub grant: Grant,
    /// Format of the answer.
    pub form: Form,
    /// Where the answer goes; carries the deadline.
    pub responder: Responder,
    /// When it was accepted.
    pub since: std::time::Instant,
}

/// State that the issuer threads share.
#[derive(Debug)]
pub struct Issuer {
    /// `iss` of new tokens is the present one.
    pub names: Arc<Names>,
    /// Base of published URLs.
    pub public_url: String,
    /// The status lists that are being filled.
    pub lists: Lists,
    /// The record of token holders.
    pub holders: Arc<Holders>,
    /// The record of what they were exchanged from.
    pub origins: Arc<Origins>,
    pub trail: Arc<Trail>,
    /// Those of what tokens are issued for, in the trail.
    pub numbers: Numbers,
    /// Opens new status lists.
    pub revoke: Sender<RevokeEvent>,
    pub kms: Arc<KmsClient>,
    pub calls: JointCalls,
    /// Maximum time of one call.
    pub kms_timeout: Duration,
    pub keys: Arc<KeyKeeper>,
    pub health: Arc<IssueHealth>,
    /// Revocations and the current epoch.
    pub view: Arc<Snapshot<RevocationView>>,
    /// When the revocations of other nodes were read; `None` when there are none.
    pub head: Option<Arc<HeadAge>>,
    /// The policy in force.
    pub policy: Arc<Snapshot<Option<InForce>>>,
    pub clock: SharedClock,
    pub random: SharedRandom,
    pub metrics: Metrics,
    pub km: KernelMetrics,
}

impl Issuer {
    /// The thread's loop: ends after shutdown, once the queue is empty.
    pub fn run(&self, ctx: &ThreadCtx, jobs: &Receiver<IssueJob>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            match jobs.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(60))) {
                Recv::Item(job) => batch.push(job),
                Recv::Timeout => continue,
                Recv::Shutdown | Recv::Closed => {
                    if jobs.drain_into(&mut batch, BATCH_MAX) == 0 {
                        return;
                    }
                }
            }
            // No wait for more grants: those that queued during the last call make the next batch.
            let room = BATCH_MAX - batch.len();
            jobs.drain_into(&mut batch, room);
            self.tick(ctx, std::mem::take(&mut batch));
        }
    }

    /// Signs one batch: one call per algorithm, each with one snapshot of its keys, retried once if the key was rotated.
    fn tick(&self, ctx: &ThreadCtx, jobs: Vec<IssueJob>) {
        let (live, late): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .partition(|j| !j.responder.deadline().expired());
        for job in late {
            self.km.io_timeouts.with_label_values(&["issue"]).inc();
            self.refuse(
                job,
                Problem::deadline_exceeded("the request waited too long; try again"),
            );
        }
        let mut by_alg: BTreeMap<&'static str, Vec<IssueJob>> = BTreeMap::new();
        for job in live {
            by_alg.entry(job.grant.alg).or_default().push(job);
        }
        for (alg, jobs) in by_alg {
            let requests = jobs.iter().filter_map(|job| job.responder.trace());
            let _scope = TraceScope::enter(self.calls.trace(requests));
            // Jobs come back when the KMS has rotated the key since the last read: one retry with the new head.
            let rotated = self.sign(ctx, alg, jobs, true);
            if !rotated.is_empty() {
                self.keys.refresh();
                self.sign(ctx, alg, rotated, false);
            }
        }
    }

    /// Signs and answers; returns the jobs whose key version was no longer the head.
    fn sign(
        &self,
        ctx: &ThreadCtx,
        alg: &'static str,
        jobs: Vec<IssueJob>,
        may_retry: bool,
    ) -> Vec<IssueJob> {
        let refuse_all = |jobs: Vec<IssueJob>, problem: &Problem| {
            for job in jobs {
                self.refuse(job, problem.clone());
            }
            Vec::new()
        };
        // The name of a hybrid is the names of its algorithms, joined by a plus.
        let keys = alg.split('+').map(|alg| self.signing_key(ctx, alg));
        let keys: Vec<SigningKey> = match keys.collect() {
            Ok(keys) => keys,
            Err(problem) => return refuse_all(jobs, &problem),
        };
        let policy = self.policy.load();
        let Some(policy) = policy.as_ref() else {
            return refuse_all(jobs, &no_policy());
        };
        if let Some(problem) = self.head.as_ref().and_then(|head| head.refusal()) {
            return refuse_all(jobs, &problem);
        }
        let now_s = self.clock.unix_ms() / 1000;
        let (places, view) = match self.recorded(&keys, &jobs, now_s) {
            Ok(recorded) => recorded,
            Err(problem) => return refuse_all(jobs, &problem),
        };
        let moment = Moment {
            keys: &keys,
            issuer: &self.names.now,
            policy: &policy.policy,
            epoch: view.epoch(),
            iat: now_s,
        };
        let mut ready: Vec<(IssueJob, Unsigned)> = Vec::with_capacity(jobs.len());
        for (job, place) in jobs.into_iter().zip(0u32..) {
            match self.unsigned(&job, &moment, &view, (places.list, places.first + place)) {
                Ok(unsigned) => ready.push((job, unsigned)),
                Err(problem) => self.refuse(job, problem),
            }
        }
        if ready.is_empty() {
            return Vec::new();
        }
        // The latest deadline of the batch: one impatient caller must not fail the others.
        let latest = ready.iter().map(|(job, _)| job.responder.deadline()).max();
        let deadline = latest.unwrap_or_else(|| Deadline::within(self.kms_timeout));
        let inputs = ready.iter().map(|(_, unsigned)| unsigned);
        match self.call(&keys, inputs, deadline) {
            Ok(results) => self.answer(&keys, view.epoch(), ready, results, may_retry),
            Err(NotSigned { problem, outage }) => {
                if let (Some(why), Some((job, _))) = (outage, ready.first()) {
                    self.health.failed(&why, &job.grant);
                }
                refuse_all(ready.into_iter().map(|(job, _)| job).collect(), &problem)
            }
        }
    }

    /// Probes whether the KMS signs, if a probe is due, with a token that is discarded. Returns the time until the next one.
    pub fn recheck(&self, ctx: &ThreadCtx) -> Option<Duration> {
        if let Some(grant) = self.health.due(self.clock.now()) {
            match self.probe(ctx, &grant) {
                Ok(()) => self.health.signed(&grant),
                Err(why) => self.health.failed(&why, &grant),
            }
        }
        self.health.pause(self.clock.now())
    }

    /// Has a token like that of `grant` signed, without rights and with a lifetime of one second; like that of any client
    /// when the policy in force does not allow this one any more.
    fn probe(&self, ctx: &ThreadCtx, grant: &Grant) -> Result<(), String> {
        let empty = Grant {
            scope: String::new(),
            ttl_s: 1,
            origin: None,
            ..grant.clone()
        };
        let policy = self.policy.load();
        let policy = Option::as_ref(&policy).ok_or_else(|| no_policy().detail)?;
        let keys = grant.alg.split('+').map(|alg| self.signing_key(ctx, alg));
        let keys: Vec<SigningKey> = keys
            .collect::<Result<_, _>>()
            .map_err(|problem| problem.detail)?;
        let moment = Moment {
            keys: &keys,
            issuer: &self.names.now,
            policy: &policy.policy,
            epoch: self.view.load().epoch(),
            iat: self.clock.unix_ms() / 1000,
        };
        let id = Identity {
            jti: "none".to_owned(),
            status: None,
        };
        let unsigned = token::unsigned(&empty, &moment, id.clone()).or_else(|problem| {
            let other = policy::sample(&policy.policy, grant.alg).ok_or(problem)?;
            token::unsigned(&other, &moment, id)
        });
        let unsigned = unsigned.map_err(|problem| problem.detail)?;
        let deadline = Deadline::within(self.kms_timeout);
        match self.call(&keys, [&unsigned].into_iter(), deadline) {
            Ok(results) => signatures(results)
                .map(|_| ())
                .map_err(|code| format!("the KMS refuses to sign tokens: {code}")),
            Err(NotSigned { problem, outage }) => Err(outage.unwrap_or(problem.detail)),
        }
    }

    /// The head for an algorithm; waits until it may sign.
    fn signing_key(&self, ctx: &ThreadCtx, alg: &str) -> Result<SigningKey, Problem> {
        let head = self.keys.head(alg).ok_or_else(|| {
            Problem::unavailable(
                format!("no {alg} signing key is known yet: is the KMS up and the key configured?"),
                2,
            )
        })?;
        if self.view.with(|view| view.kid_revoked(&head.key.jwk.kid)) {
            return Err(Problem::unavailable(
                "the signing key is revoked: rotate it in the KMS",
                10,
            ));
        }
        if let Some(from) = head.from {
            let wait = from.saturating_duration_since(self.clock.now());
            if !wait.is_zero() {
                ctx.shutdown.wait(Deadline::within(wait));
            }
        }
        Ok(head.key)
    }

    /// Positions in a status list for a batch, with its holders recorded, and the revocations as they are afterwards: one that
    /// comes later finds the holders in the record, and sets their bits.
    fn recorded(
        &self,
        keys: &[SigningKey],
        jobs: &[IssueJob],
        now_s: u64,
    ) -> Result<(Places, Arc<RevocationView>), Problem> {
        let epoch = self.view.load().epoch();
        let places = self.places(keys, epoch, jobs.len(), now_s)?;
        let places = self.note(places, jobs, now_s)?;
        let view = self.view.load();
        if view.epoch() != epoch || keys.iter().any(|key| view.kid_revoked(&key.jwk.kid)) {
            let why = "the epoch or the signing key was revoked at this moment; try again";
            return Err(Problem::unavailable(why, 1));
        }
        Ok((places, view))
    }

    /// Takes positions in a status list for a batch. A new list is durable before its first token leaves.
    fn places(
        &self,
        keys: &[SigningKey],
        epoch: u64,
        count: usize,
        now_s: u64,
    ) -> Result<Places, Problem> {
        let kids: Vec<&str> = keys.iter().map(|key| key.jwk.kid.as_str()).collect();
        let (kid, count) = (kids.join(" "), count as u32);
        loop {
            if let Some(places) = self.lists.take(&kid, epoch, count, now_s) {
                return Ok(places);
            }
            let (answer, opened) = reply();
            let event = RevokeEvent::OpenList {
                kid: kid.clone(),
                epoch,
                answer,
            };
            if self.revoke.try_send(event).is_err() {
                return Err(Problem::busy(self.revoke.retry_after_s()));
            }
            let row = opened
                .wait(Deadline::within(self.kms_timeout))
                .map_err(|_| Problem::unavailable("no status list could be opened", 2))??;
            // The holders' record counts seconds from the opening of a list: a list from the future would be wrong.
            if row.opened_s > now_s + 60 {
                return Err(Problem::unavailable("the clock jumped; try again", 1));
            }
            self.lists.fill(row);
        }
    }

    /// Records the holders of the tokens and what these were exchanged from, before any token leaves.
    fn note(&self, places: Places, jobs: &[IssueJob], now_s: u64) -> Result<Places, Problem> {
        let write = || {
            let subjects = jobs.iter().map(|job| job.grant.subject.as_str());
            self.holders.note(&places, subjects, now_s)?;
            for (job, at) in jobs.iter().zip(places.first..) {
                if let Some(origin) = &job.grant.origin {
                    self.origins.note(places.list, at, origin)?;
                }
            }
            Ok::<_, FileError>(())
        };
        write().map_err(|e| {
            tracing::error!(service = "svc-passport", event = "holders_not_written", why = %e);
            Problem::unavailable("the records of holders and exchanges cannot be written", 5)
        })?;
        Ok(places)
    }

    fn unsigned(
        &self,
        job: &IssueJob,
        moment: &Moment<'_>,
        view: &RevocationView,
        (list, idx): (u64, u32),
    ) -> Result<Unsigned, Problem> {
        // A token that was revoked after the exchange was decided must not live on in the new one.
        if let Some(origin) = &job.grant.origin
            && let Err(reject) = view.check(origin)
        {
            return Err(Problem::bad_request(format!("subject_token: {reject}"))
                .with_oauth("invalid_grant"));
        }
        // A revocation reaches a little into the future: such a token would not be accepted anywhere.
        let void_until = view.void_until(&job.grant.subject);
        #[cfg(mutant = "stillborn")] // a token is issued that is void already
        let void_until = void_until.filter(|_| !ron_kernel::mutant("stillborn"));
        if let Some(more) = void_until.and_then(|until| until.checked_sub(moment.iat)) {
            let wait = u32::try_from(more + 1).unwrap_or(u32::MAX);
            let why = format!(
                "the tokens of this holder were revoked, also those of the next {wait} s; try again then"
            );
            return Err(Problem::unavailable(why, wait));
        }
        let id = Identity {
            jti: jti(list, idx, &self.random.bytes()),
            status: Some(StatusRef {
                idx,
                uri: list_uri(&self.public_url, list),
            }),
        };
        token::unsigned(&job.grant, moment, id)
    }

    fn call<'u>(
        &self,
        keys: &[SigningKey],
        tokens: impl ExactSizeIterator<Item = &'u Unsigned>,
        deadline: Deadline,
    ) -> Result<Vec<SignResult>, NotSigned> {
        let item = |(key, input): (&SigningKey, String)| SignItem {
            key: (keys.len() > 1).then(|| key.key.clone().into()),
            version: (keys.len() > 1).then_some(key.version),
            message: Some(Bytes::from(input.as_bytes())),
            scheme: key.scheme(),
            ..SignItem::default()
        };
        let inputs = |unsigned: &Unsigned| -> Vec<SignItem> {
            keys.iter()
                .zip(unsigned.signing_inputs())
                .map(item)
                .collect()
        };
        let wanted = tokens.len() * keys.len();
        let request = SignBatch {
            key: (keys.len() == 1).then(|| keys[0].key.clone().into()),
            version: (keys.len() == 1).then_some(keys[0].version),
            items: tokens.flat_map(inputs).collect(),
        };
        // A time-out that is shorter than the usual one says nothing about the health of the KMS.
        let full_timeout = deadline.remaining() >= self.kms_timeout;
        let timer = self
            .metrics
            .kms_seconds
            .with_label_values(&["sign"])
            .start_timer();
        let answer = self
            .kms
            .sign_batch(&request, deadline.capped(self.kms_timeout));
        timer.observe_duration();
        match answer {
            Ok(a) if a.results.len() == wanted => Ok(a.results),
            Ok(_) => Err(NotSigned {
                problem: Problem::upstream_error("the KMS answered for another number of items"),
                outage: None,
            }),
            Err(e) => Err(self.not_signed(&e, full_timeout)),
        }
    }

    /// Answers each job with its results, one per key; returns the jobs to retry.
    fn answer(
        &self,
        keys: &[SigningKey],
        epoch: u64,
        ready: Vec<(IssueJob, Unsigned)>,
        results: Vec<SignResult>,
        may_retry: bool,
    ) -> Vec<IssueJob> {
        let (mut rotated, mut signed) = (Vec::new(), Vec::with_capacity(ready.len()));
        let mut results = results.into_iter();
        for (job, unsigned) in ready {
            let own: Vec<SignResult> = results.by_ref().take(keys.len()).collect();
            match signatures(own) {
                Ok((signatures, receipt)) => {
                    let parts: Vec<&[u8]> = signatures.iter().map(Bytes::as_slice).collect();
                    let token = token::finish(&unsigned, &parts);
                    let answer = match job.form {
                        Form::Passport => {
                            let by = (keys, epoch, receipt);
                            passport_answer(&job.grant, token, unsigned.exp, by)
                        }
                        Form::Oauth | Form::Exchange => oauth_answer(&job.grant, token, job.form),
                    };
                    signed.push(Signed {
                        job,
                        unsigned,
                        answer,
                    });
                }
                Err(code) if may_retry && code == "version_not_head" => rotated.push(job),
                Err(code) => {
                    self.metrics.sign_failed(&code);
                    tracing::error!(
                        service = "svc-passport",
                        event = "sign_refused",
                        code = %code,
                        client = job.grant.client_id,
                        audience = job.grant.audience,
                        request_id = job.responder.request_id(),
                    );
                    let why = format!("the KMS refuses to sign tokens: {code}");
                    self.health.refused(&why, &job.grant);
                    self.refuse(job, refusal(&code));
                }
            }
        }
        // Recorded after the refusals: if one token was signed, the others were refused for their content.
        if let Some(grant) = self.deliver(signed) {
            self.health.signed(&grant);
        }
        rotated
    }

    /// The problem for the callers of a failed call, and whether the failure means that the KMS signs nothing.
    fn not_signed(&self, error: &ClientError, full_timeout: bool) -> NotSigned {
        self.km.upstream_fail.with_label_values(&["ron-kms"]).inc();
        tracing::warn!(service = "svc-passport", event = "kms_call_failed", why = %error);
        self.metrics.call_failed(error);
        let unavailable = || Problem::unavailable("the KMS does not take signing requests now", 2);
        let (problem, outage) = match error {
            ClientError::Unknown { .. } => {
                let why = "the KMS did not answer in time; no token was issued";
                (Problem::unavailable(why, 2), full_timeout)
            }
            // A busy KMS is not an outage.
            ClientError::Refused { status: 429, .. } => (unavailable(), false),
            ClientError::Refused {
                status: 400..=499,
                problem,
                ..
            } => (refusal(&problem.code), true),
            ClientError::Refused { .. } | ClientError::NotSent { .. } => (unavailable(), true),
        };
        let outage = outage.then(|| format!("the KMS does not sign: {error}"));
        NotSigned { problem, outage }
    }

    fn refuse(&self, job: IssueJob, problem: Problem) {
        self.observe(&job, "refused");
        let problem = match job.form {
            Form::Oauth | Form::Exchange if problem.oauth.is_none() => {
                problem.with_oauth("temporarily_unavailable")
            }
            Form::Passport => Problem {
                oauth: None,
                ..problem
            },
            Form::Oauth | Form::Exchange => problem,
        };
        job.responder.send(problem);
    }
}

/// The problem of a request while no policy is in force.
pub fn no_policy() -> Problem {
    Problem::unavailable("no signed issuer policy is in force yet", 2)
}

/// The signatures of all results and the receipt of the first, or the code of the first refusal.
fn signatures(results: Vec<SignResult>) -> Result<(Vec<Bytes>, LogReceipt), String> {
    let none = || "no answer".to_owned();
    let (mut signatures, mut receipt) = (Vec::with_capacity(results.len()), None);
    for result in results {
        let answer = match (result.answer, result.error) {
            (Some(answer), None) => answer,
            (_, error) => return Err(error.map_or_else(none, |e| e.code)),
        };
        let first = answer.signatures.into_iter().next().ok_or_else(none)?;
        signatures.push(first.signature);
        receipt.get_or_insert(answer.receipt);
    }
    Ok((signatures, receipt.ok_or_else(none)?))
}

/// A call to the KMS that returned no signatures.
struct NotSigned {
    problem: Problem,
    /// Why the KMS signs nothing, if the failure means that.
    outage: Option<String>,
}
