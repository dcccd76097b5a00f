//! Signed tokens on their way out: the trail, then the log, the counts and the answers.

use std::collections::BTreeMap;

use ron_http::Response;
use ron_kernel::Deadline;
use ron_proto::Caveat;

use super::{IssueJob, Issuer};
use crate::policy::Grant;
use crate::token::Unsigned;
use crate::trail::{Issued, IssuedFor, parts};

/// A signed token that was not sent yet.
pub struct Signed {
    pub job: IssueJob,
    pub unsigned: Unsigned,
    pub answer: Response,
}

impl Issuer {
    /// Records and sends tokens; the grant of the last one. A trail that cannot be written holds no token back: the KMS has a leaf for each.
    pub(super) fn deliver(&self, signed: Vec<Signed>) -> Option<Grant> {
        if let Err(why) = self.note_issued(&signed) {
            self.km.io_errors.with_label_values(&["trail"]).inc();
            tracing::error!(service = "svc-passport", event = "trail_not_written", why);
        }
        let mut last = None;
        for Signed {
            job,
            unsigned,
            answer,
        } in signed
        {
            self.issued(&job, &unsigned);
            self.observe(&job, "ok");
            job.responder.send(answer.cache("no-store"));
            last = Some(job.grant);
        }
        last
    }

    fn note_issued(&self, signed: &[Signed]) -> Result<(), String> {
        let mut lists: BTreeMap<u64, Vec<Issued<'_>>> = BTreeMap::new();
        // The latest deadline of the batch, as for the signatures.
        let until = signed.iter().map(|one| one.job.responder.deadline()).max();
        let until = until.unwrap_or_else(|| Deadline::within(self.kms_timeout));
        let mut lost = Ok(());
        for Signed { job, unsigned, .. } in signed {
            let (list, place, random) = parts(&unsigned.jti).ok_or("a jti of another form")?;
            let grant = &job.grant;
            let tenant = grant.tenant.clone();
            let what = IssuedFor::new(&grant.client_id, tenant, &grant.audience, &grant.scope);
            let number = match self.numbers.of(what, until) {
                Ok(number) => number,
                Err(why) => {
                    lost = Err(why);
                    continue;
                }
            };
            lists.entry(list).or_default().push(Issued {
                place,
                random,
                iat: unsigned.exp - grant.ttl_s,
                ttl_s: grant.ttl_s,
                grant: number,
                subject: &grant.subject,
            });
        }
        for (list, tokens) in lists {
            self.trail.note(list, &tokens).map_err(|e| e.to_string())?;
        }
        lost
    }

    fn issued(&self, job: &IssueJob, unsigned: &Unsigned) {
        let grant = &job.grant;
        tracing::info!(
            service = "svc-passport",
            event = "token_issued",
            client = grant.client_id,
            audience = grant.audience,
            jti = unsigned.jti,
            request_id = job.responder.request_id(),
        );
        self.metrics.issued.with_label_values(&[grant.alg]).inc();
        if grant.caveats.contains(&Caveat::PqFallback(true)) {
            self.metrics.pq_fallback.inc();
        }
    }

    pub(super) fn observe(&self, job: &IssueJob, result: &str) {
        let took = self.clock.now().saturating_duration_since(job.since);
        self.metrics
            .issue_seconds
            .with_label_values(&[result])
            .observe(took.as_secs_f64());
    }
}
