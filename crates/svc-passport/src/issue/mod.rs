//! Issuing: queued grants become one signing call to the KMS, and leave as tokens.
//!
//! While one call is in flight the next grants gather in the queue; whoever is free takes them all
//! (up to [`BATCH_MAX`]) into the next call. One snapshot of key, epoch and policy serves a batch.

pub mod keys;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::revocation::RevocationView;
use ron_client::{ClientError, KmsClient};
use ron_http::{Responder, Response};
use ron_kernel::{Deadline, KernelMetrics, Receiver, Recv, SharedClock, Snapshot, ThreadCtx};
use ron_proto::Problem;
use ron_proto::kms::{Bytes, SignBatch, SignItem, SignResult};
use ron_proto::passport::{IssueAnswer, TokenAnswer};
use uuid::Uuid;

use crate::metrics::Metrics;
use crate::policy::Grant;
use crate::token::{self, SigningKey, Unsigned};

use keys::KeyKeeper;

/// Grants of one signing call, at most.
pub const BATCH_MAX: usize = 256;

/// In which form the answer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `POST /v1/passport/issue`.
    Passport,
    /// `POST /oauth2/token`.
    Oauth,
}

/// A granted token that waits for its signature.
#[derive(Debug)]
pub struct IssueJob {
    /// What was granted.
    pub grant: Grant,
    /// Form of the answer.
    pub form: Form,
    /// Where the answer goes; carries the deadline.
    pub responder: Responder,
    /// When it was accepted.
    pub since: std::time::Instant,
}

/// What the issuer threads share.
#[derive(Debug)]
pub struct Issuer {
    /// `iss`.
    pub issuer_url: String,
    /// The KMS.
    pub kms: Arc<KmsClient>,
    /// Longest time for one call.
    pub kms_timeout: Duration,
    /// Current signing keys.
    pub keys: Arc<KeyKeeper>,
    /// Where the current epoch is.
    pub view: Arc<Snapshot<RevocationView>>,
    /// Wall clock.
    pub clock: SharedClock,
    /// Own metrics.
    pub metrics: Metrics,
    /// Common metrics.
    pub km: KernelMetrics,
}

impl Issuer {
    /// The thread's loop: ends when shut down and the queue is empty.
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
            let room = BATCH_MAX - batch.len();
            jobs.drain_into(&mut batch, room);
            self.tick(std::mem::take(&mut batch));
        }
    }

    /// One batch: by algorithm, each with one snapshot, tried again once if the key was rotated.
    fn tick(&self, jobs: Vec<IssueJob>) {
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
        let (eddsa, es256): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|j| j.grant.alg == "EdDSA");
        for (alg, jobs) in [("EdDSA", eddsa), ("ES256", es256)] {
            if jobs.is_empty() {
                continue;
            }
            let rotated = self.sign(alg, jobs, true);
            if !rotated.is_empty() {
                self.keys.refresh();
                self.sign(alg, rotated, false);
            }
        }
    }

    /// Signs and answers; hands back the jobs whose pinned version was no longer the head.
    fn sign(&self, alg: &'static str, jobs: Vec<IssueJob>, may_retry: bool) -> Vec<IssueJob> {
        let Some(key) = self.keys.head(alg) else {
            let why =
                format!("no {alg} signing key is known yet: is the KMS up and the key configured?");
            for job in jobs {
                self.refuse(job, Problem::unavailable(why.clone(), 2));
            }
            return Vec::new();
        };
        let epoch = self.view.load().epoch();
        let iat = self.clock.unix_ms() / 1000;
        let mut ready: Vec<(IssueJob, Unsigned)> = Vec::with_capacity(jobs.len());
        for job in jobs {
            let jti = Uuid::now_v7().to_string();
            match token::unsigned(&job.grant, &key, &self.issuer_url, epoch, iat, jti) {
                Ok(unsigned) => ready.push((job, unsigned)),
                Err(problem) => self.refuse(job, problem),
            }
        }
        if ready.is_empty() {
            return Vec::new();
        }
        match self.call(&key, &ready) {
            Ok(results) => self.answer(&key, epoch, ready, results, may_retry),
            Err(problem) => {
                for (job, _) in ready {
                    self.refuse(job, problem.clone());
                }
                Vec::new()
            }
        }
    }

    fn call(
        &self,
        key: &SigningKey,
        ready: &[(IssueJob, Unsigned)],
    ) -> Result<Vec<SignResult>, Problem> {
        let item = |u: &Unsigned| SignItem {
            message: Some(Bytes::from(u.signing_input.as_bytes())),
            ..SignItem::default()
        };
        let request = SignBatch {
            key: Some(key.key.clone()),
            version: Some(key.version),
            items: ready.iter().map(|(_, u)| item(u)).collect(),
        };
        let latest = ready.iter().map(|(j, _)| j.responder.deadline()).max();
        let deadline = latest
            .unwrap_or_else(|| Deadline::within(self.kms_timeout))
            .capped(self.kms_timeout);
        let timer = self
            .metrics
            .kms_seconds
            .with_label_values(&["sign"])
            .start_timer();
        let answer = self.kms.sign_batch(&request, deadline);
        timer.observe_duration();
        match answer {
            Ok(a) if a.results.len() == ready.len() => Ok(a.results),
            Ok(_) => Err(Problem::upstream_error(
                "the KMS answered for another number of items",
            )),
            Err(e) => Err(self.kms_problem(&e)),
        }
    }

    fn answer(
        &self,
        key: &SigningKey,
        epoch: u64,
        ready: Vec<(IssueJob, Unsigned)>,
        results: Vec<SignResult>,
        may_retry: bool,
    ) -> Vec<IssueJob> {
        let mut rotated = Vec::new();
        for ((job, unsigned), result) in ready.into_iter().zip(results) {
            match (result.answer, result.error) {
                (Some(answer), None) => {
                    let Some(signature) = answer.signatures.first() else {
                        self.refuse(
                            job,
                            Problem::upstream_error("the KMS answered without a signature"),
                        );
                        continue;
                    };
                    let token = token::finish(&unsigned, signature.signature.as_slice());
                    self.metrics
                        .issued
                        .with_label_values(&[job.grant.alg])
                        .inc();
                    self.observe(&job, "ok");
                    let response = match job.form {
                        Form::Passport => Response::json(
                            200,
                            &IssueAnswer {
                                token,
                                kid: key.jwk.kid.clone(),
                                alg: key.jwk.alg.clone(),
                                exp: unsigned.exp,
                                caveats: job
                                    .grant
                                    .caveats
                                    .iter()
                                    .map(ToString::to_string)
                                    .collect(),
                                epoch,
                                receipt: answer.receipt,
                            },
                        ),
                        Form::Oauth => Response::json(
                            200,
                            &TokenAnswer {
                                access_token: token,
                                token_type: "Bearer".to_owned(),
                                expires_in: job.grant.ttl_s,
                                scope: job.grant.scope.clone(),
                            },
                        )
                        .header("Pragma", "no-cache"),
                    };
                    job.responder.send(response.cache("no-store"));
                }
                (_, Some(error)) if may_retry && error.code == "version_not_head" => {
                    rotated.push(job);
                }
                (_, error) => {
                    let code = error.map_or_else(|| "no answer".to_owned(), |e| e.code);
                    tracing::warn!(service = "svc-passport", event = "sign_refused", code = %code);
                    self.refuse(
                        job,
                        Problem::upstream_error("the KMS refused to sign this token"),
                    );
                }
            }
        }
        rotated
    }

    fn kms_problem(&self, error: &ClientError) -> Problem {
        self.km.upstream_fail.with_label_values(&["ron-kms"]).inc();
        tracing::warn!(service = "svc-passport", event = "kms_call_failed", why = %error);
        match error {
            ClientError::Unknown { .. } => {
                Problem::unavailable("the KMS did not answer in time; no token was issued", 2)
            }
            _ => Problem::unavailable("the KMS does not take signing requests now", 2),
        }
    }

    fn refuse(&self, job: IssueJob, problem: Problem) {
        self.observe(&job, "refused");
        let problem = match job.form {
            Form::Oauth if problem.oauth.is_none() => problem.with_oauth("temporarily_unavailable"),
            _ => problem,
        };
        job.responder.send(problem);
    }

    fn observe(&self, job: &IssueJob, result: &str) {
        let took = self.clock.now().saturating_duration_since(job.since);
        self.metrics
            .issue_seconds
            .with_label_values(&[result])
            .observe(took.as_secs_f64());
    }
}
