//! Signed tokens on their way out: the trail, then the log, the counts and the answers.

use std::collections::BTreeMap;
use std::time::Duration;

use ron_http::Response;
use ron_kernel::{Deadline, reply};
use ron_proto::Caveat;

use super::{IssueJob, Issuer};
use crate::policy::Grant;
use crate::revoke::RevokeEvent;
use crate::token::Unsigned;
use crate::trail::{Issued, IssuedFor, parts};

/// Maximum wait for the number of a new grant. Short, because signed tokens wait for it: when the disk hangs, they leave without a slot.
const NUMBER_WAIT: Duration = Duration::from_secs(1);

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
        let mut lost = Ok(());
        for Signed { job, unsigned, .. } in signed {
            let (list, place, random) = parts(&unsigned.jti).ok_or("a jti of another form")?;
            // A store that did not answer is not asked again for this batch, which would wait as long once more.
            let number = match self.number_of(&job.grant) {
                Ok(number) => number,
                Err(_) if lost.is_err() => continue,
                Err(what) => match self.ask_number(what) {
                    Ok(number) => number,
                    Err(why) => {
                        lost = Err(why);
                        continue;
                    }
                },
            };
            lists.entry(list).or_default().push(Issued {
                place,
                random,
                iat: unsigned.exp - job.grant.ttl_s,
                ttl_s: job.grant.ttl_s,
                grant: number,
                subject: &job.grant.subject,
            });
        }
        for (list, tokens) in lists {
            self.trail.note(list, &tokens).map_err(|e| e.to_string())?;
        }
        lost
    }

    /// The number under which a grant is recorded; if it has none yet, what needs one.
    fn number_of(&self, grant: &Grant) -> Result<u32, IssuedFor> {
        let what = IssuedFor {
            client: grant.client_id.clone(),
            tenant: grant.tenant.clone(),
            audience: grant.audience.clone(),
            scope: Some(grant.scope.clone()),
        };
        let grants = self.trail.grants.load();
        let what = grants.recorded(what);
        grants.number(&what).ok_or(what)
    }

    /// Has the store give a number to a grant.
    fn ask_number(&self, grant: IssuedFor) -> Result<u32, String> {
        let (answer, number) = reply();
        if self
            .revoke
            .try_send(RevokeEvent::Number { grant, answer })
            .is_err()
        {
            return Err("the queue of the store is full".to_owned());
        }
        let number = number.wait(Deadline::within(NUMBER_WAIT));
        number
            .map_err(|_| "the store did not answer in time".to_owned())?
            .map_err(|problem| problem.detail)
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
