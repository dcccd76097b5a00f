//! The key service as a library: no socket and no HTTP, but the same store, threads and audit log.
//!
//! A [`Custody`] acts as one caller of one tenant. Its calls block until their answer, at most until their deadline,
//! and return the same problems as over HTTP. A signature is returned after its leaf is durable. `examples/embed` is a
//! complete program.

use std::sync::Arc;
use std::time::Duration;

use ron_files::OsDisk;
use ron_http::{Body, ClientConfig, HttpClient, Principal, PrincipalKind, Responder, Response};
use ron_kernel::{
    Deadline, GuardedClock, KernelMetrics, OsRandom, Registry, ReplyWaiter, Supervisor, WaitError,
};
use ron_proto::kms::{CreateKey, KeyDoc, SignAnswer, SignRequest, VerifyAnswer, VerifyRequest};
use ron_proto::problem::Problem;
use ron_proto::status::Readiness;
use ron_proto::values::Tenant;
use ron_service::log_host::asker::WitnessSettings;
use ron_service::{Config, DataDir, ReadyBoard, ServiceSettings as _, StartError};
use serde::de::DeserializeOwned;

use crate::engine::{Engine, EngineParts};
use crate::errors::problem;
use crate::settings::{Keys, Settings};
use crate::topology::TOPOLOGY;
use crate::work::operation::one;
use crate::work::sign::SignTask;
use crate::work::{CallContext, Purposes, SignJob, StoreJob};

/// Name of the caller in audit leaves.
const CALLER: &str = "embedded";
/// How long threads may take to end when a [`Custody`] is dropped instead of closed.
const DROPPED: Duration = Duration::from_secs(3);

/// A running key store with its audit log. Dropping it stops its threads; [`Custody::close`] reports threads that did not
/// end in time.
pub struct Custody {
    engine: Engine,
    sup: Supervisor,
    ready: ReadyBoard,
    registry: Registry,
    caller: Principal,
    /// Keeps the directory locked until the threads have ended.
    _dir: Option<DataDir>,
}

impl std::fmt::Debug for Custody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Custody")
            .field("tenant", &self.caller.tenant)
            .finish_non_exhaustive()
    }
}

impl Custody {
    /// Opens the store and log that `config` names (a configuration of [`crate::settings::TABLE`]) and starts their
    /// threads, acting for `tenant`. Configuration keys of sockets, identities and HTTP limits have no effect.
    ///
    /// # Errors
    /// The configuration is not acceptable, the data directory is in use or cannot be written, or the store does
    /// not open. A damaged audit log is no error: signing is refused, verification works, and
    /// [`Custody::readiness`] says why.
    pub fn open(config: &Config, tenant: Tenant) -> Result<Self, StartError> {
        let settings = Settings::from_config(config)?;
        if settings.keys.log_url.is_some() {
            let why =
                "keys in a database are for the service: an embedded store has its keys in files";
            return Err(vec![config.problem(Keys::log_url, why)].into());
        }
        let witness = WitnessSettings::load(config, &settings.keys.witness)
            .map_err(|problem| vec![problem])?;
        let dir = DataDir::open(config, Arc::new(OsDisk))?;
        let clock = GuardedClock::shared(config.chassis().clock_gap_max);
        let registry = Registry::new(TOPOLOGY.service);
        let km = KernelMetrics::new(&registry);
        let sup = Supervisor::new(&TOPOLOGY, km.clone(), clock.clone());
        let room = config
            .chassis()
            .disk_room(dir.as_ref().map(DataDir::dir), &clock);
        let ready = ReadyBoard::new(&registry).with_room(room.clone());
        let parts = EngineParts {
            sup: sup.clone(),
            registry: registry.clone(),
            km,
            clock,
            random: OsRandom::shared(),
            ready: ready.clone(),
            room,
            home: dir.as_ref().map(|dir| dir.dir().clone()),
            disk: None,
            witness,
            http: Arc::new(HttpClient::new(ClientConfig::default())),
            shared: None,
        };
        let engine = Engine::start(settings, parts).map_err(|why| {
            sup.drain(DROPPED);
            StartError::failed(why)
        })?;
        Ok(Self {
            engine,
            sup,
            ready,
            registry,
            caller: caller(tenant),
            _dir: dir,
        })
    }

    /// Makes a key, or finds the one that the same `op_id` and body made before.
    pub fn create_key(&self, request: CreateKey, deadline: Deadline) -> Result<KeyDoc, Problem> {
        let (call, answer) = self.call_context(deadline);
        self.engine
            .kms
            .submit_store(StoreJob::Create(call, Box::new(request), Purposes::Shared));
        wait(answer, deadline)
    }

    /// Signs. The answer's leaf is durable. After `deadline_exceeded` the outcome is unknown: a retry with the same
    /// `op_id` returns the answer, or signs if nothing was signed.
    pub fn sign(&self, request: SignRequest, deadline: Deadline) -> Result<SignAnswer, Problem> {
        let (call, answer) = self.call_context(deadline);
        let what = one(SignTask::from_request(request), |answer| {
            answer.map(SignAnswer::from)
        });
        self.engine.kms.submit_sign(SignJob { call, what });
        wait(answer, deadline)
    }

    /// Verifies signatures, on the caller's thread. A signature that does not verify is an answer, not an error.
    pub fn verify(&self, request: VerifyRequest) -> Result<VerifyAnswer, Problem> {
        let checked = self.engine.kms.verify(&self.caller, request);
        checked.map_err(problem)
    }

    /// The key's public document, from the current snapshot.
    pub fn key(&self, key: &ron_proto::values::Kid) -> Result<KeyDoc, Problem> {
        let kms = &self.engine.kms;
        let index = kms.index.load();
        let found = index.find(&self.caller, key).map_err(problem)?;
        Ok(found.to_doc())
    }

    /// The verifier key line of the audit log, which an auditor pins.
    pub fn audit_vkey(&self) -> String {
        self.engine.keys.vkey()
    }

    /// Missing and degraded parts, as on `/readyz`.
    pub fn readiness(&self) -> Readiness {
        ron_service::readiness(&self.ready, &self.sup)
    }

    /// Believes the machine's date from now on, when `clock` is among the missing or degraded parts. That is a leaf of the
    /// log.
    pub fn accept_date(&self) -> Result<(), Problem> {
        let clock = self.sup.clock();
        if let Some(alarm) = clock.alarm() {
            self.engine.kms.log_date(&self.caller, alarm)?;
        }
        clock.accept_date();
        Ok(())
    }

    /// All metrics, in the Prometheus text format.
    pub fn metrics(&self) -> String {
        self.registry.render()
    }

    /// Finishes the queued jobs, writes a last checkpoint and ends the threads. Returns the names of threads that had
    /// not ended after `within`: empty after a clean stop.
    pub fn close(self, within: Duration) -> Vec<String> {
        let report = self.sup.drain(within);
        report.stragglers.iter().map(ToString::to_string).collect()
    }

    fn call_context(&self, deadline: Deadline) -> (CallContext, ReplyWaiter<Response>) {
        let (responder, answer) = Responder::detached(deadline);
        let call = CallContext {
            caller: self.caller.clone(),
            responder,
            deadline,
            since: self.engine.kms.clock.now(),
            proof_until: None,
            alias: None,
            peer: None,
        };
        (call, answer)
    }
}

impl Drop for Custody {
    fn drop(&mut self) {
        self.sup.drain(DROPPED); // a second time does nothing
    }
}

fn caller(tenant: Tenant) -> Principal {
    Principal {
        name: CALLER.into(),
        client: None,
        tenant,
        scopes: Arc::from([]),
        caveats: Arc::from([]),
        budgets: Arc::from([]),
        kind: PrincipalKind::Service,
        key_prefixes: None,
        jti: None,
    }
}

fn wait<T: DeserializeOwned>(
    answer: ReplyWaiter<Response>,
    deadline: Deadline,
) -> Result<T, Problem> {
    let response = answer.wait(deadline).map_err(|why| match why {
        WaitError::Timeout => Problem::deadline_exceeded(
            "no answer by the deadline; the outcome is unknown: send it again with the same op_id",
        ),
        WaitError::Dropped => Problem::internal("the request was given up without an answer"),
    })?;
    match response.body {
        Body::Problem(problem) => Err(*problem),
        body => serde_json::from_slice(body.as_bytes())
            .map_err(|_| Problem::internal("the answer is not of its documented type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TABLE;
    use ron_proto::values::Alg;

    fn soon() -> Deadline {
        Deadline::within(Duration::from_secs(20))
    }

    fn wanted(tenant: &str) -> CreateKey {
        crate::tests::create_request("shop", Alg::Ed25519, ron_proto::kms::PayloadPolicy::Any, 7)
            .for_tenant(tenant)
    }

    trait ForTenant {
        fn for_tenant(self, tenant: &str) -> Self;
    }
    impl ForTenant for CreateKey {
        fn for_tenant(mut self, tenant: &str) -> Self {
            self.tenant = tenant.parse().expect("a tenant");
            self
        }
    }

    #[test]
    fn the_same_directory_gives_the_same_key_and_one_at_a_time_may_use_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kms").display().to_string();
        let flags = [("data_dir".to_owned(), path)];
        let config = Config::load(&TABLE, None, &|_| None, &flags).expect("valid");
        let tenant: Tenant = "shop".parse().expect("a tenant");
        let custody = Custody::open(&config, tenant.clone()).expect("opens");
        let key = custody
            .create_key(wanted("shop"), soon())
            .expect("a key")
            .key;
        let signed = custody.sign(SignRequest::message(key.clone(), *b"hello"), soon());
        assert_eq!(signed.expect("signed").version, 1);
        let other = custody.create_key(wanted("elsewhere"), soon());
        assert_eq!(other.expect_err("another tenant's").status, 403);
        assert!(Custody::open(&config, tenant.clone()).is_err(), "in use");
        assert_eq!(custody.close(Duration::from_secs(10)), Vec::<String>::new());
        let again = Custody::open(&config, tenant).expect("free again");
        assert_eq!(again.key(&key).expect("still there").key, key);
        let same = again.create_key(wanted("shop"), soon()).expect("the same");
        assert_eq!(same.key, key);
        assert!(again.metrics().contains("ron_kms_"));
    }
}
