//! A key service as a process on a database, and a lock of the database that is in its way.

use std::process::Child;
use std::sync::Arc;

use ron_client::{ClientError, Credential, KmsClient};
use ron_ha::cluster::{Cluster, Server, command};
use ron_ha::contract::{soon, wait_for};
use ron_ha::processes::Node;
use ron_ha::services::{Caller, private_dir, put};
use ron_http::{Call, ClientConfig, HttpClient, Reply};
use ron_proto::kms::{CreateKey, PayloadPolicy};
use ron_proto::{Alg, Kid, OpId};
use tempfile::TempDir;
use uuid::Uuid;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ha-node");

/// All of them have the same seal key and the same caller.
pub struct Kms {
    pub node: Node,
    pub caller: Caller,
    _files: TempDir,
}

impl Kms {
    /// Starts a process of the node `kms.example/NAME`.
    pub fn start(cluster: &Cluster, name: &str) -> Self {
        let files = private_dir();
        put(files.path(), "seal", "ab".repeat(32).as_bytes());
        let caller = Caller::new("ron", "tester");
        let mut node = Node::new(PROGRAM, "ron-kms");
        let url = cluster.primary.url();
        node.configure(&format!(
            "[records]\nurl = \"{url}\"\n[log]\nurl = \"{url}\"\n[audit]\norigin = \"kms.example/{name}\"\n\
             [seal]\nkey_file = \"{}\"\n{}",
            files.path().join("seal").display(),
            caller.principal(&["kms:sign", "kms:read", "kms:create", "kms:admin"]),
        ));
        node.start();
        Self {
            node,
            caller,
            _files: files,
        }
    }

    pub fn get(&self, path: &str) -> Option<Reply> {
        let url = format!("{}{path}", self.node.health);
        self.caller.http.call(Call::get(&url, soon())).ok()
    }

    pub fn wait_ready(&self) {
        wait_for("the key service is ready", || {
            self.get("/readyz").is_some_and(|reply| reply.status == 200)
        });
    }

    /// Makes a key, once for each number.
    pub fn create(&self, number: u128) -> Result<Kid, ClientError> {
        let made = self.client().create_key(&new_key(number), soon());
        made.map(|document| document.key)
    }

    pub fn client(&self) -> KmsClient {
        let http = HttpClient::new(ClientConfig {
            breaker: None,
            insecure_loopback: true,
            ..ClientConfig::default()
        });
        let credential = Credential::bearer(&self.caller.token);
        KmsClient::new(&self.node.url, credential, Arc::new(http))
    }
}

/// The same key for the same number.
pub fn new_key(number: u128) -> CreateKey {
    CreateKey {
        tenant: "ron".parse().unwrap(),
        purpose: "app".parse().unwrap(),
        alg: Alg::Ed25519,
        payload: PayloadPolicy::Any,
        exportable: false,
        derived: false,
        rotate_every: None,
        backend: None,
        op_id: OpId(Uuid::from_u128(number)),
        token: None,
    }
}

/// A lock that another client of the database holds until this is dropped.
pub struct HeldLock<'a> {
    server: &'a Server,
    psql: Child,
}

impl<'a> HeldLock<'a> {
    /// `statement` takes the lock in a transaction.
    pub fn take(cluster: &'a Cluster, statement: &str) -> Self {
        let server = &cluster.primary;
        let conninfo = format!("{} application_name=holder", server.conninfo());
        let script = format!("BEGIN; {statement}; SELECT pg_sleep(300)");
        let psql = command("psql").args([&conninfo, "-c", &script]).spawn();
        let lock = Self {
            server,
            psql: psql.unwrap(),
        };
        let held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holder' AND wait_event = 'PgSleep'";
        wait_for("the lock is held", || {
            lock.server.admin(held, &[]).int8(0, 0) == Ok(1)
        });
        lock
    }

    /// Waits until a session waits for the lock.
    pub fn wait_for_waiter(&self) {
        let waits = "SELECT count(*) FROM pg_stat_activity a, pg_stat_activity h \
             WHERE h.application_name = 'holder' AND h.pid = ANY (pg_blocking_pids(a.pid))";
        wait_for("a session waits for the lock", || {
            self.server
                .admin(waits, &[])
                .int8(0, 0)
                .is_ok_and(|count| count > 0)
        });
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        // The server ends the sleep of a client that is gone only when it is told to.
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'holder'";
        self.server.admin(end, &[]);
        let _ = self.psql.kill(); // it may have ended
        let _ = self.psql.wait();
    }
}
