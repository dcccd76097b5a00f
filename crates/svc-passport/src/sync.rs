//! The issuer policy: one thread reads it from files or a URL. A policy is accepted only if it is signed and not older
//! than the one in force; that one stays in force while the source is unavailable. The KMS, which signs no token beyond
//! the policy in force there, gets a new policy first.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::RevocationView;
use ron_client::{ClientError, KmsClient};
use ron_files::{Replacement, SharedDisk};
use ron_http::{Call, HttpClient};
use ron_kernel::atomic::{AtomicBool, Ordering};
use ron_kernel::{Deadline, KernelMetrics, Sender, SharedRandom, Snapshot, ThreadCtx, reply};
use ron_proto::Problem;
use ron_proto::kms::PutIssuerPolicy;
use ron_proto::passport::IssuerPolicy;
use ron_proto::strict;
use ron_service::events::{Event, EventKind};
use ron_service::kept_policy::{KeptPolicy, Versioned as _, replaces};
use ron_service::pinned::KeyRing;
use ron_service::signed_policy::SignedPolicy;
use ron_service::{ReadyBoard, signed_policy};

use crate::revoke::RevokeEvent;

/// Maximum time to read the policy from its URL.
const FETCH: Duration = Duration::from_secs(3);
/// Maximum wait for a version to be durable.
const DURABLE: Duration = Duration::from_secs(3);
/// Pause before the first policy is read again; doubled after each failure, up to the usual pause.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The source of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `issuer.json` and `issuer.json.sig` in a directory.
    Dir(PathBuf),
    /// The same names under a URL.
    Url(String),
}

/// A policy in force.
pub type InForce = SignedPolicy<IssuerPolicy>;

/// Reads, checks and adopts policies.
pub struct PolicyKeeper {
    pub source: Source,
    /// The disk of a directory that is the source.
    pub disk: SharedDisk,
    /// The keys that may sign it.
    pub keys: KeyRing,
    pub http: Arc<HttpClient>,
    /// The policy in force; `None` until the first one was read.
    pub policy: Arc<Snapshot<Option<InForce>>>,
    /// Has the newest version that was ever in force, also before a restart.
    pub view: Arc<Snapshot<RevocationView>>,
    pub revoke: Sender<RevokeEvent>,
    /// The last accepted policy.
    pub kept: KeptPolicy<IssuerPolicy>,
    pub kms: Arc<KmsClient>,
    /// Maximum time of one call to the KMS.
    pub kms_timeout: Duration,
    pub ready: ReadyBoard,
    pub km: KernelMetrics,
    pub random: SharedRandom,
    /// Set while a policy that was sent is being put in force.
    pub putting: AtomicBool,
}

/// The right to put a policy in force that was sent; given back when it is dropped.
struct Alone<'a>(&'a AtomicBool);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl PolicyKeeper {
    /// The thread's loop: reads the policy every `every`, with 20 percent jitter.
    pub fn run(&self, ctx: &ThreadCtx, every: Duration) {
        let mut logged = Ok(());
        let mut first = FIRST_PAUSE.min(every);
        loop {
            // Jitter of a fifth in both directions, so that many issuers do not read at the same moment.
            let fifth = u64::try_from(every.as_millis() / 5)
                .unwrap_or(u64::MAX)
                .max(1);
            let jitter = Duration::from_millis(self.random.u64() % (2 * fifth));
            let pause = if self.policy.with(Option::is_none) {
                let pause = first;
                first = (first * 2).min(every);
                pause
            } else {
                every.saturating_sub(Duration::from_millis(fifth)) + jitter
            };
            if ctx.shutdown.wait(Deadline::within(pause)) {
                return;
            }
            let outcome = self.refresh();
            if let (Err(why), true) = (&outcome, outcome != logged) {
                self.refused(why);
            }
            logged = outcome;
        }
    }

    /// As [`Self::refresh`], for a caller that wants the policy in the files to be in force: twice, because the thread may
    /// be putting it in force at the same moment, and one of the two then fails to write the file of the other.
    pub fn read_now(&self) -> Result<(), String> {
        self.refresh().or_else(|_| self.refresh())
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

    /// Puts the last accepted policy in force at a start. At the first start the policy in files must be acceptable; one behind a
    /// URL may arrive later, and so may the one that a crash has left without its copy: revocations are served meanwhile.
    pub fn resume(&self) -> Result<(), String> {
        let known = self.kept.read(&self.keys).map_err(|e| e.to_string())?;
        let seen = self.view.load().policy_version();
        let last = known.policy.filter(|last| last.policy.version >= seen);
        if seen == 0 && last.is_none() && matches!(self.source, Source::Dir(_)) {
            self.read()?;
        }
        self.policy.store(last);
        Ok(())
    }

    /// Reads the policy; checks its signature, and that it has no fault.
    pub fn read(&self) -> Result<InForce, String> {
        let read = self.read_signed()?;
        let sound = read.policy.check();
        sound.map_err(|fault| format!("policy issuer.json: {fault}"))?;
        Ok(read)
    }

    fn read_signed(&self) -> Result<InForce, String> {
        match &self.source {
            Source::Dir(dir) => {
                signed_policy::load(dir, "issuer", &self.keys).map_err(|e| e.to_string())
            }
            Source::Url(base) => {
                let bytes = self.fetch(&format!("{base}/issuer.json"))?;
                let sig = self.fetch(&format!("{base}/issuer.json.sig"))?;
                let sig = signed_policy::parse_signature(&sig)
                    .map_err(|e| format!("issuer.json.sig is not a signature document: {e}"))?;
                signed_policy::check("issuer", &bytes, &sig, &self.keys)
                    .map_err(|why| format!("policy issuer.json {why}"))
            }
        }
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
    fn is_newer(&self, new: &InForce) -> Result<bool, String> {
        let (in_force, seen) = (self.policy.load(), self.view.load().policy_version());
        replaces(new, (*in_force).as_ref(), seen).map_err(|e| e.to_string())
    }

    /// Has the policy put in force at the KMS, unless it is there already.
    fn hand_over(&self, policy: &InForce) -> Result<(), NotTaken> {
        let soon = || Deadline::within(self.kms_timeout);
        let version = policy.policy.version;
        match self.kms.issuer_policy(soon()) {
            Ok(there) if there.hash == policy.hash => return Ok(()),
            #[cfg(mutant = "replaced")] // the KMS gets whatever was found
            Ok(_) if ron_kernel::mutant("replaced") => {}
            Ok(there) if there.version > version => {
                let newer = there.version;
                let why = format!("version {newer} is in force in the KMS, newer than {version}");
                return Err(NotTaken::Refused(why));
            }
            Ok(_) => {}
            Err(e) if e.status() == Some(404) => {} // none is in force there
            Err(e) => return Err(NotTaken::of(&e)),
        }
        let document = strict::from_slice(&policy.bytes);
        let request = PutIssuerPolicy {
            policy: document.map_err(|e| NotTaken::Refused(e.to_string()))?,
            signature: policy.sig.clone(),
        };
        let taken = self.kms.put_issuer_policy(&request, soon());
        taken.map(drop).map_err(|e| NotTaken::of(&e))
    }

    /// Puts a policy in force that an administrator has sent. It is written to the directory that the policy is read
    /// from, so that the next reading finds no older one.
    pub fn put(&self, new: InForce) -> Result<(), Problem> {
        let Source::Dir(dir) = &self.source else {
            let why = "the policy is read from policy.url: publish the new one there";
            return Err(Problem::new(
                409,
                "policy_elsewhere",
                "Policy elsewhere",
                why,
            ));
        };
        let newer = self.is_newer(&new);
        let newer =
            newer.map_err(|why| Problem::new(409, "stale_policy", "Policy not newer", why))?;
        if newer {
            // No lock is held over calls to the KMS.
            if self.putting.swap(true, Ordering::AcqRel) {
                let why = "another policy is being put in force";
                return Err(Problem::unavailable(why, 1));
            }
            let _alone = Alone(&self.putting);
            let unwritten = |why: String| {
                tracing::warn!(service = "svc-passport", event = "policy_unwritten", why = %why);
                Problem::unavailable("the directory of the policy cannot be written", 30)
            };
            let sig = signed_policy::signature_bytes(&new.sig).map_err(unwritten)?;
            // A directory that cannot be written is found before the KMS has the policy, and a policy that the KMS refuses
            // does not get into the directory.
            let mut files = Vec::new();
            for (name, bytes) in [("issuer.json.sig", &sig), ("issuer.json", &new.bytes)] {
                let file = Replacement::create(&*self.disk, &dir.join(name), 0o600);
                let file = file.and_then(|mut file| file.write_all(bytes).map(|()| file));
                files.push(file.map_err(|e| unwritten(e.to_string()))?);
            }
            self.hand_over(&new).map_err(|why| match why {
                NotTaken::Refused(why) => {
                    Problem::new(409, "policy_refused", "Policy refused by the KMS", why)
                }
                NotTaken::Unavailable(why) => Problem::unavailable(why, 5),
            })?;
            for file in files {
                file.finish().map_err(|e| unwritten(e.to_string()))?;
            }
        }
        self.read_now().map_err(|why| Problem::unavailable(why, 5))
    }

    /// Puts a newer policy in force once the KMS has it and its version is durable.
    pub fn adopt(&self, new: InForce) -> Result<(), String> {
        if !self.is_newer(&new)? {
            // Also the KMS of a restored backup, or one without a disk, gets it again.
            return match self.hand_over(&new) {
                Ok(()) | Err(NotTaken::Unavailable(_)) => Ok(()),
                Err(NotTaken::Refused(why)) => Err(why),
            };
        }
        // The KMS first: it refuses what it has no policy for, and a policy that it refuses must not be in force here.
        let version = new.policy.version;
        self.hand_over(&new).map_err(|why| match why {
            NotTaken::Refused(why) => format!("version {version} is not in force: {why}"),
            NotTaken::Unavailable(why) => {
                format!("version {version} comes into force when the KMS has taken it: {why}")
            }
        })?;
        // The version is made durable before the policy is in force: after a crash no older policy may come back.
        let (answer, durable) = reply();
        self.revoke
            .try_send(RevokeEvent::Policy { version, answer })
            .map_err(|_| {
                "the writer of revocations is busy; the next poll tries again".to_owned()
            })?;
        durable
            .wait(Deadline::within(DURABLE))
            .map_err(|e| format!("the version was not made durable: {e}"))??;
        self.kept.write(&new).map_err(|e| e.to_string())?;
        // A reload, the thread and an administrator may be putting policies in force at once.
        self.policy.try_update(|now| match now {
            Some(there) if there.policy.version > version => Err(format!(
                "version {} came into force before version {version}",
                there.policy.version
            )),
            _ => Ok(Some(new.clone())),
        })?;
        let adopted = Event::info(EventKind::PolicyAdopted).reason(IssuerPolicy::KIND);
        self.ready.events().publish(adopted.number(version));
        Ok(())
    }

    /// Reports that the policy that was found does not come into force.
    pub fn refused(&self, why: &str) {
        let refused = Event::warn(EventKind::PolicyRefused).reason(IssuerPolicy::KIND);
        self.ready.events().publish(refused.why(why));
    }
}

/// Why a policy is not in force in the KMS.
enum NotTaken {
    /// The KMS refuses it, and will again.
    Refused(String),
    /// The KMS did not decide.
    Unavailable(String),
}

impl NotTaken {
    fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Refused { problem, .. } if !problem.retryable => {
                Self::Refused(format!("the KMS refuses it: {}", problem.detail))
            }
            _ => Self::Unavailable(format!("the KMS: {error}")),
        }
    }
}
