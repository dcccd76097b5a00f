//! The issuer policy: one thread reads it from files or a URL. A policy is accepted only if it is signed and not older
//! than the one in force; that one stays in force while the source is unavailable.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::RevocationView;
use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, KernelMetrics, Sender, SharedRandom, Snapshot, ThreadCtx, reply};
use ron_proto::ContentId;
use ron_proto::passport::IssuerPolicy;
use ron_service::pinned::KeyRing;
use ron_service::{ReadyBoard, signed_policy};

use crate::revoke::RevokeEvent;

/// Maximum time to read the policy from its URL.
const FETCH: Duration = Duration::from_secs(3);
/// Maximum wait for a version to be durable.
const DURABLE: Duration = Duration::from_secs(3);

/// The source of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `issuer.json` and `issuer.json.sig` in a directory.
    Dir(PathBuf),
    /// The same names under a URL.
    Url(String),
}

/// A policy in force.
#[derive(Clone, Debug, PartialEq)]
pub struct InForce {
    pub policy: IssuerPolicy,
    /// Content id of its bytes.
    pub hash: ContentId,
}

/// Reads, checks and adopts policies.
pub struct PolicyKeeper {
    pub source: Source,
    /// The keys that may sign it.
    pub keys: KeyRing,
    pub http: Arc<HttpClient>,
    /// The policy in force; `None` until the first one was read.
    pub policy: Arc<Snapshot<Option<InForce>>>,
    /// Has the newest version that was ever in force, also before a restart.
    pub view: Arc<Snapshot<RevocationView>>,
    pub revoke: Sender<RevokeEvent>,
    pub ready: ReadyBoard,
    pub km: KernelMetrics,
    pub random: SharedRandom,
}

impl PolicyKeeper {
    /// The thread's loop: reads the policy every `every`, with 20 percent jitter.
    pub fn run(&self, ctx: &ThreadCtx, every: Duration) {
        let mut logged = Ok(());
        loop {
            // Jitter of a fifth in both directions, so that many issuers do not read at the same moment.
            let fifth = u64::try_from(every.as_millis() / 5)
                .unwrap_or(u64::MAX)
                .max(1);
            let jitter = Duration::from_millis(self.random.u64() % (2 * fifth));
            let pause = if self.policy.with(Option::is_none) {
                Duration::from_millis(500)
            } else {
                every.saturating_sub(Duration::from_millis(fifth)) + jitter
            };
            if ctx.shutdown.wait(Deadline::within(pause)) {
                return;
            }
            let outcome = self.refresh();
            if let (Err(why), true) = (&outcome, outcome != logged) {
                tracing::warn!(service = "svc-passport", event = "policy_refused", why = %why);
            }
            logged = outcome;
        }
    }

    /// Reads and adopts the policy now. The policy in force stays when the new one is refused or cannot be read.
    pub fn refresh(&self) -> Result<(), String> {
        let outcome = self.read().and_then(|new| self.adopt(new));
        match &outcome {
            Ok(()) => {
                self.ready.clear("policy");
                self.ready.present("policy");
            }
            Err(why) if self.policy.with(Option::is_some) => self
                .ready
                .degrade("policy", format!("the last good policy is in force: {why}")),
            Err(why) => self
                .ready
                .missing("policy", format!("issuing is impossible: {why}")),
        }
        outcome
    }

    /// Reads the policy and checks its signature.
    pub fn read(&self) -> Result<InForce, String> {
        let signed = match &self.source {
            Source::Dir(dir) => signed_policy::load::<IssuerPolicy>(dir, "issuer", &self.keys)
                .map_err(|e| e.to_string())?,
            Source::Url(base) => {
                let bytes = self.fetch(&format!("{base}/issuer.json"))?;
                let sig = self.fetch(&format!("{base}/issuer.json.sig"))?;
                let sig = signed_policy::parse_signature(&sig)
                    .map_err(|e| format!("issuer.json.sig is not a signature document: {e}"))?;
                signed_policy::check::<IssuerPolicy>("issuer", &bytes, &sig, &self.keys)
                    .map_err(|why| format!("policy issuer.json {why}"))?
            }
        };
        Ok(InForce {
            policy: signed.policy,
            hash: signed.hash,
        })
    }

    fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        let call = Call::get(url, Deadline::within(FETCH));
        let reply = self.http.call(call).map_err(|e| {
            self.km.upstream_fail.with_label_values(&["policy"]).inc();
            format!("the policy's URL cannot be read: {}", e.detail)
        })?;
        if reply.status == 200 {
            Ok(reply.body)
        } else {
            Err(format!("the policy's URL answers {}", reply.status))
        }
    }

    /// Whether `new` must replace the policy in force; an error when it is older than any that was in force, also before a
    /// restart.
    pub fn is_newer(&self, new: &InForce) -> Result<bool, String> {
        let (seen, is) = (self.view.load().policy_version(), new.policy.version);
        if is < seen {
            return Err(format!(
                "policy issuer.json has version {is}, older than {seen} which was in force"
            ));
        }
        newer((*self.policy.load()).as_ref(), new)
    }

    /// Puts a newer policy in force once its version is durable.
    pub fn adopt(&self, new: InForce) -> Result<(), String> {
        if !self.is_newer(&new)? {
            return Ok(());
        }
        // The version is made durable before the policy is in force: after a crash no older policy may come back.
        let (answer, durable) = reply();
        let version = new.policy.version;
        self.revoke
            .try_send(RevokeEvent::Policy { version, answer })
            .map_err(|_| {
                "the writer of revocations is busy; the next poll tries again".to_owned()
            })?;
        durable
            .wait(Deadline::within(DURABLE))
            .map_err(|e| format!("the version was not made durable: {e}"))??;
        tracing::info!(service = "svc-passport", event = "policy_adopted", version);
        self.policy.store(Some(new));
        Ok(())
    }
}

/// Whether `new` must replace `old`; an error when it is older, or differs under the same version.
fn newer(old: Option<&InForce>, new: &InForce) -> Result<bool, String> {
    let Some(old) = old else { return Ok(true) };
    let (was, is) = (old.policy.version, new.policy.version);
    if is < was {
        return Err(format!(
            "policy issuer.json has version {is}, older than {was} which is in force"
        ));
    }
    if is == was && old.hash != new.hash {
        return Err(format!(
            "policy issuer.json differs from the one in force but has the same version {is}: raise it"
        ));
    }
    Ok(is > was)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_only_grow_and_one_version_is_one_policy() {
        let made = |version: u64, text: &str| InForce {
            policy: IssuerPolicy {
                version,
                clients: Vec::new(),
            },
            hash: ContentId::of(text.as_bytes()),
        };
        let old = made(3, "a");
        assert_eq!(newer(None, &old), Ok(true));
        assert_eq!(newer(Some(&old), &made(4, "b")), Ok(true));
        assert_eq!(newer(Some(&old), &old), Ok(false));
        assert!(
            newer(Some(&old), &made(2, "a"))
                .unwrap_err()
                .contains("older")
        );
        assert!(
            newer(Some(&old), &made(3, "b"))
                .unwrap_err()
                .contains("raise it")
        );
    }
}
