//! A whole engine in a test, called without sockets.

mod access;
mod api;
mod approvals;
mod attest;
mod audit;
mod damaged_rows;
mod derive;
mod devices;
mod earlier_store;
mod entries;
mod envelope;
mod gate;
mod history;
mod issuer_policy;
mod lifecycle;
mod log_key;
mod moving;
mod names;
mod oaep;
mod pipeline;
mod publish_first;
mod race;
mod reload;
mod replay;
mod schemes;
mod store;
mod transfer;
mod transit;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, Disk, DiskRoom, SimDisk};
use ron_http::{Body, ClientConfig, HttpClient, Principal, PrincipalKind, Responder, Response};
use ron_kernel::{
    Deadline, KernelMetrics, Registry, ReplyWaiter, SeededRandom, SharedClock, SharedRandom,
    Supervisor, SystemClock,
};
use ron_proto::kms::{
    CreateKey, KeyDoc, PayloadPolicy, RotateAnswer, RotateLogKey, RotateRequest, SignAnswer,
    SignBatch, SignBatchAnswer, SignRequest, Signature, VerifyAnswer, VerifyMode, VerifyRequest,
};
use ron_proto::values::{Alg, Kid, OpId};
use ron_service::{Config, DataDir, ReadyBoard};
use serde::de::DeserializeOwned;

use crate::boot::CAUSES;
use crate::engine::{Engine, EngineError, EngineParts};
use crate::settings::{Settings, TABLE};
use crate::topology::TOPOLOGY;
use crate::work::key_request::KeyRequest;
use crate::work::operation::one;
use crate::work::sign::SignTask;
use crate::work::verify::verify;
use crate::work::{CallContext, Purposes, SignJob, StoreJob};

/// How long a test waits for an answer.
const WAIT: Duration = Duration::from_secs(10);

pub struct Rig {
    pub engine: Engine,
    pub sup: Supervisor,
    pub ready: ReadyBoard,
    pub registry: Registry,
    pub disk: SimDisk,
    pub caller: Principal,
    _dir: Option<DataDir>,
}

/// An answer: status and body.
pub struct TestReply {
    pub status: u16,
    pub body: Vec<u8>,
}

impl TestReply {
    pub fn json<T: DeserializeOwned>(&self) -> T {
        assert!(
            self.status < 300,
            "{} {}",
            self.status,
            String::from_utf8_lossy(&self.body)
        );
        serde_json::from_slice(&self.body).expect("the documented type")
    }

    pub fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("json");
        body["code"].as_str().unwrap_or("ok").to_owned()
    }
}

pub fn settings(flags: &[(&str, &str)]) -> Settings {
    let flags: Vec<_> = flags
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let config = Config::load(&TABLE, None, &|_| None, &flags).expect("valid");
    <Settings as ron_service::ServiceSettings>::from_config(&config).expect("valid")
}

/// Settings of a durable KMS in `dir`.
pub fn file_settings(dir: &Path) -> Settings {
    settings(&[("data_dir", dir.to_str().expect("utf-8")), ("signers", "2")])
}

/// Settings of a KMS in memory.
pub fn memory_settings() -> Settings {
    settings(&[
        ("amnesia", "true"),
        ("signers", "2"),
        ("sign_deadline", "10s"),
    ])
}

pub fn principal(tenant: &str, prefixes: Option<&[&str]>) -> Principal {
    Principal {
        client: None,
        name: "tester".into(),
        tenant: tenant.parse().expect("tenant"),
        scopes: Arc::from([]),
        caveats: Arc::from([]),
        budgets: Arc::from([]),
        kind: PrincipalKind::Service,
        key_prefixes: prefixes.map(|p| p.iter().map(|s| (*s).to_owned()).collect()),
        jti: None,
    }
}

/// Takes a data directory. A program that another test starts has the lock of the directory from its fork until it runs.
fn lock(dir: &Path) -> DataDir {
    let mut taken = None;
    lifecycle::eventually("the directory is free", || {
        taken = DataDir::at(Dir::os(dir)).ok();
        taken.is_some()
    });
    taken.expect("it is free")
}

impl Rig {
    /// An engine in memory on a disk that can fail.
    pub fn memory() -> Self {
        Self::start(memory_settings(), Some(SimDisk::new())).expect("starts")
    }

    /// A durable engine on the real disk.
    pub fn file(dir: &Path) -> Result<Self, EngineError> {
        Self::start(file_settings(dir), None)
    }

    pub fn start(settings: Settings, disk: Option<SimDisk>) -> Result<Self, EngineError> {
        let on = disk.clone().map(|d| Arc::new(d) as Arc<dyn Disk>);
        let mut rig = Self::start_on(settings, on)?;
        rig.disk = disk.unwrap_or_default();
        Ok(rig)
    }

    pub fn start_on(settings: Settings, disk: Option<Arc<dyn Disk>>) -> Result<Self, EngineError> {
        Self::start_at(settings, disk, SystemClock::shared())
    }

    pub fn start_at(
        settings: Settings,
        disk: Option<Arc<dyn Disk>>,
        clock: SharedClock,
    ) -> Result<Self, EngineError> {
        let lock = settings.data_dir.as_deref().map(lock);
        let registry = Registry::new("ron-kms");
        let km = KernelMetrics::new(&registry);
        let sup = Supervisor::new(&TOPOLOGY, km.clone(), clock.clone());
        let ready = ReadyBoard::new(&registry);
        ready.declare(&CAUSES);
        ready.declare(&ron_service::log_engine::CAUSES);
        // Different keys in each engine, the same in each run.
        static ENGINES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let seed = ENGINES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let random: SharedRandom = Arc::new(SeededRandom::new(seed));
        let parts = EngineParts {
            sup: sup.clone(),
            registry: registry.clone(),
            km,
            clock,
            random,
            ready: ready.clone(),
            room: DiskRoom::unlimited(),
            home: lock.as_ref().map(|lock| lock.dir().clone()),
            disk,
            witness: None,
            http: Arc::new(HttpClient::new(ClientConfig::default())),
            shared: None,
        };
        let engine = match Engine::start(settings, parts) {
            Ok(engine) => engine,
            Err(error) => {
                sup.drain(Duration::from_secs(1));
                return Err(error);
            }
        };
        Ok(Self {
            engine,
            sup,
            ready,
            registry,
            disk: SimDisk::default(),
            caller: principal("ron", None),
            _dir: lock,
        })
    }

    /// Stops in order, after everything queued is finished.
    pub fn stop(self) {
        let report = self.sup.drain(Duration::from_secs(5));
        assert!(report.stragglers.is_empty(), "{report:?}");
    }

    /// The value of a metric line; 0 without the line.
    pub fn gauge(&self, line: &str) -> i64 {
        let text = self.registry.render();
        let found = text.lines().find_map(|l| l.strip_prefix(line));
        found.map_or(0, |v| v.trim().parse().expect("a number"))
    }

    pub fn call_context(&self, caller: &Principal) -> (CallContext, ReplyWaiter<Response>) {
        let deadline = Deadline::within(WAIT);
        let (responder, waiter) = Responder::detached(deadline);
        let since = self.engine.kms.clock.now();
        (
            CallContext {
                caller: caller.clone(),
                responder,
                deadline,
                since,
                proof_until: None,
                alias: None,
                peer: None,
            },
            waiter,
        )
    }

    fn got(waiter: ReplyWaiter<Response>) -> TestReply {
        let response = waiter
            .wait(Deadline::within(WAIT))
            .expect("answered in time");
        let body = match &response.body {
            // The HTTP front renders a problem, because it needs the request's id.
            Body::Problem(problem) => problem.to_json("test"),
            body => body.as_bytes().to_vec(),
        };
        TestReply {
            status: response.status,
            body,
        }
    }

    pub fn send_sign(&self, caller: &Principal, request: SignRequest) -> ReplyWaiter<Response> {
        let (call, waiter) = self.call_context(caller);
        let mut task = SignTask::from_request(request);
        crate::api::look_up(&self.engine.kms, caller, &mut task);
        let what = one(task, |answer| answer.map(SignAnswer::from));
        self.engine.kms.submit_sign(SignJob { call, what });
        waiter
    }

    pub fn sign(&self, request: SignRequest) -> TestReply {
        Self::got(self.send_sign(&self.caller, request))
    }

    pub fn sign_as(&self, caller: &Principal, request: SignRequest) -> TestReply {
        Self::got(self.send_sign(caller, request))
    }

    pub fn wait(waiter: ReplyWaiter<Response>) -> TestReply {
        Self::got(waiter)
    }

    pub fn sign_batch(&self, batch: SignBatch) -> SignBatchAnswer {
        let (call, waiter) = self.call_context(&self.caller);
        let what = crate::api::sign_batch(batch);
        self.engine.kms.submit_sign(SignJob { call, what });
        Self::got(waiter).json()
    }

    pub fn create_as(&self, caller: &Principal, request: CreateKey) -> TestReply {
        let (call, waiter) = self.call_context(caller);
        self.engine
            .kms
            .submit_store(StoreJob::Create(call, Box::new(request), Purposes::Shared));
        Self::got(waiter)
    }

    pub fn create(&self, purpose: &str, alg: Alg, payload: PayloadPolicy, op: u128) -> KeyDoc {
        self.create_as(&self.caller, create_request(purpose, alg, payload, op))
            .json()
    }

    pub fn change(&self, key: &Kid, request: KeyRequest) -> TestReply {
        self.change_as(&self.caller, key, request)
    }

    pub fn change_as(&self, caller: &Principal, key: &Kid, request: KeyRequest) -> TestReply {
        let (call, waiter) = self.call_context(caller);
        self.engine
            .kms
            .submit_store(StoreJob::Change(call, key.clone(), request));
        Self::got(waiter)
    }

    pub fn rotate(&self, key: &Kid, request: RotateRequest) -> TestReply {
        self.change(key, KeyRequest::Rotate(request))
    }

    pub fn rotate_log_key(&self, request: RotateLogKey) -> TestReply {
        self.rotate_log_key_as(&self.caller, request)
    }

    pub fn rotate_log_key_as(&self, caller: &Principal, request: RotateLogKey) -> TestReply {
        let (call, waiter) = self.call_context(caller);
        self.engine
            .kms
            .submit_store(StoreJob::RotateLogKey(call, request));
        Self::got(waiter)
    }

    pub fn rotated(&self, key: &Kid) -> RotateAnswer {
        self.rotate(key, RotateRequest::default()).json()
    }

    pub fn doc(&self, key: &Kid) -> KeyDoc {
        let kms = &self.engine.kms;
        let index = kms.index.load();
        index.keys.get(key).expect("the key").to_doc()
    }

    pub fn verify(
        &self,
        key: &Kid,
        version: Option<u32>,
        message: &[u8],
        signatures: &[Signature],
    ) -> VerifyAnswer {
        let request = VerifyRequest {
            key: key.clone().into(),
            version,
            message: Some(message.to_vec().into()),
            digest: None,
            prehash: None,
            signatures: signatures.to_vec(),
            mode: VerifyMode::And,
        };
        verify(&self.engine.kms.index.load(), &self.caller, request).expect("verifies or not")
    }
}

pub fn create_request(purpose: &str, alg: Alg, payload: PayloadPolicy, op: u128) -> CreateKey {
    CreateKey {
        tenant: "ron".parse().expect("tenant"),
        purpose: purpose.parse().expect("purpose"),
        alg,
        payload,
        exportable: false,
        derived: false,
        rotate_every: None,
        backend: None,
        token: None,
        op_id: op_id(op),
    }
}

pub fn op_id(n: u128) -> OpId {
    OpId(uuid::Uuid::from_u128(n))
}

pub fn signed(answer: &TestReply) -> SignAnswer {
    answer.json()
}
