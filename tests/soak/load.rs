//! The load: each worker sends its users' requests, repeats those without a response, and records
//! what it was promised.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, KmsClient, PassportClient, TokenAsk, WalletClient};
use ron_http::Call;
use ron_kernel::{Clock as _, Deadline, SystemClock};
use ron_proto::kms::SignRequest;
use ron_proto::ledger::Details;
use ron_proto::passport::RevokeRequest;
use ron_proto::wallet::{Capture, HoldMoney, IssueMoney, Remarks, Transaction, Transfer};
use ron_proto::{Amount, Kid, Timestamp};
use ron_tests::{SERVICES, ron_binary};
use serde_json::Value;

use super::rig::Rig;

/// Maximum time until an operation has a response, kills included.
const ANSWERED_WITHIN: Duration = Duration::from_secs(90);
/// What one epoch pays.
pub const EPOCH_PAYS: u128 = 1_000;

/// What the services have promised.
#[derive(Default)]
pub struct Promised {
    pub receipts: Vec<Transaction>,
    pub signatures: Vec<(u64, Vec<u8>)>,
    pub revoked: Vec<String>,
    /// The balance that each account must have.
    pub balances: BTreeMap<String, u128>,
    pub epochs: u64,
}

/// What the workers share.
pub struct Load<'a> {
    pub rig: &'a Rig,
    pub stop: AtomicBool,
    pub promised: Mutex<Promised>,
    /// Completed operations, by kind.
    pub done: Mutex<BTreeMap<&'static str, u64>>,
    /// Tries that were repeated.
    pub repeated: AtomicU64,
    tokens: Mutex<BTreeMap<&'static str, String>>,
    secret: String,
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(5))
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

impl<'a> Load<'a> {
    pub fn on(rig: &'a Rig) -> Self {
        let client = std::fs::read(rig.path().join("clients/operator.json")).unwrap();
        let client: Value = serde_json::from_slice(&client).unwrap();
        Self {
            rig,
            stop: AtomicBool::new(false),
            promised: Mutex::default(),
            done: Mutex::default(),
            repeated: AtomicU64::new(0),
            tokens: Mutex::default(),
            secret: client["client_secret"].as_str().unwrap().to_owned(),
        }
    }

    pub fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn count(&self, what: &'static str) {
        *self.done.lock().unwrap().entry(what).or_default() += 1;
    }

    fn passport(&self, credential: Credential) -> PassportClient {
        let url = self.rig.api("svc-passport");
        PassportClient::new(&url, credential, self.rig.http.clone())
    }

    /// A fresh token; retried until there is one.
    pub fn new_token(&self, audience: &str, scope: Option<&str>) -> String {
        let ask = TokenAsk {
            audience,
            scope,
            ttl_s: Some(3600),
            caveats: &[],
        };
        let issuer = self.passport(Credential::none());
        let answer = self.until_answered(|| issuer.token("operator", &self.secret, &ask, soon()));
        answer
            .unwrap_or_else(|e| panic!("a token for {audience}: {e}"))
            .access_token
    }

    fn token(&self, audience: &'static str) -> String {
        if let Some(token) = self.tokens.lock().unwrap().get(audience) {
            return token.clone();
        }
        let token = self.new_token(audience, None);
        self.tokens.lock().unwrap().insert(audience, token.clone());
        token
    }

    pub fn wallet(&self) -> WalletClient {
        let credential = Credential::bearer(&self.token("svc-wallet"));
        WalletClient::new(
            &self.rig.api("svc-wallet"),
            credential,
            self.rig.http.clone(),
        )
    }

    pub fn kms(&self) -> KmsClient {
        let file = self.rig.path().join("clients/operator.kms.token");
        let credential = Credential::from_file(&file).unwrap();
        KmsClient::new(
            &self.rig.socket("ron-kms"),
            credential,
            self.rig.http.clone(),
        )
    }

    /// Repeats until it is done or refused for good. A refused token is discarded.
    pub fn until_answered<T>(
        &self,
        ask: impl Fn() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let since = Instant::now();
        loop {
            let error = match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match error.status() {
                Some(401) => self.tokens.lock().unwrap().clear(),
                Some(429 | 503) | None => {}
                Some(_) if error.retryable() => {}
                Some(_) => return Err(error),
            }
            assert!(
                since.elapsed() < ANSWERED_WITHIN,
                "no answer within {ANSWERED_WITHIN:?}: {error}"
            );
            self.repeated.fetch_add(1, Ordering::Relaxed);
            pause(100);
        }
    }

    /// A write that must be done in the end, exactly once.
    fn paid(
        &self,
        what: &'static str,
        write: impl Fn(&WalletClient) -> Result<Transaction, ClientError>,
    ) -> Transaction {
        let answer = self.until_answered(|| write(&self.wallet()));
        let receipt = answer.unwrap_or_else(|e| panic!("{what}: {e}"));
        self.count(what);
        self.promised.lock().unwrap().receipts.push(receipt.clone());
        receipt
    }

    pub fn issue(&self, key: &str, to: &str, asset: &str, amount: u128) {
        let request = IssueMoney {
            to: to.parse().unwrap(),
            asset: asset.parse().unwrap(),
            amount_minor: Amount(amount),
            details: Details::default(),
        };
        let key = key.parse().unwrap();
        self.paid("issue", |w| w.issue(&key, &request, soon()));
    }

    /// Pays, holds, captures and releases from an account of its own.
    pub fn pay(&self, worker: usize) {
        let (from, to) = (format!("acct:payer{worker}"), format!("acct:payee{worker}"));
        let (mut has, mut got, mut nonce) = (0_u128, 0_u128, 0_u64);
        for n in 0_u64.. {
            if self.over() {
                break;
            }
            let key = |what: &str| format!("{worker}-{n}-{what}").parse().unwrap();
            self.issue(&format!("{worker}-{n}-issue"), &from, "ron", 10);
            has += 10;
            nonce += 1;
            let request = Transfer {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                asset: "ron".parse().unwrap(),
                amount_minor: Amount(3).into(),
                nonce: Some(nonce),
                details: Details::default(),
            };
            self.paid("transfer", |w| {
                w.transfer(&key("transfer"), &request, soon())
            });
            (has, got, nonce) = (has - 3, got + 3, nonce + 1);
            let request = HoldMoney {
                from: from.parse().unwrap(),
                asset: "ron".parse().unwrap(),
                amount_minor: Amount(2).into(),
                nonce: Some(nonce),
                expires_at: Timestamp(SystemClock.unix_ms() + 3_600_000),
                details: Details::default(),
            };
            let hold = self
                .paid("hold", |w| w.hold(&key("hold"), &request, soon()))
                .receipt
                .txid;
            if n % 2 == 0 {
                let request = Capture {
                    to: to.parse().unwrap(),
                    amount_minor: Some(Amount(2)),
                    ends_hold: false,
                    details: Details::default(),
                };
                self.paid("capture", |w| {
                    w.capture(&key("end"), hold, &request, soon())
                });
                (has, got) = (has - 2, got + 2);
            } else {
                self.paid("release", |w| {
                    w.release(&key("end"), hold, &Remarks::default(), soon())
                });
            }
            pause(60);
        }
        let mut promised = self.promised.lock().unwrap();
        promised.balances.extend([(from, has), (to, got)]);
    }

    /// Signs, and verifies every tenth signature.
    pub fn sign(&self, key: &Kid) {
        let kms = self.kms();
        for n in 0_u64.. {
            if self.over() {
                return;
            }
            let message = format!("soak {n}").into_bytes();
            let mut request = SignRequest::message(key.clone(), message.clone());
            request.op_id = Some(super::op_id(u128::from(n) + 1_000));
            let answer = self
                .until_answered(|| kms.sign(&request, soon()))
                .unwrap_or_else(|e| panic!("sign: {e}"));
            let signature = answer.signatures[0].signature.as_slice().to_vec();
            let mut promised = self.promised.lock().unwrap();
            promised.signatures.push((answer.receipt.index, signature));
            drop(promised);
            self.count("sign");
            if n % 10 == 0 {
                let request = ron_proto::kms::VerifyRequest {
                    key: key.clone().into(),
                    version: None,
                    message: Some(ron_proto::kms::Bytes(message)),
                    digest: None,
                    prehash: None,
                    signatures: answer.signatures.clone(),
                    mode: ron_proto::kms::VerifyMode::And,
                };
                let verdict = self.until_answered(|| kms.verify(&request, soon()));
                assert!(verdict.unwrap().ok, "signature {n} does not verify");
                self.count("verify");
            }
            pause(25);
        }
    }

    /// Gets tokens, verifies them, and revokes every third.
    pub fn tokens(&self) {
        for n in 0_u64.. {
            if self.over() {
                return;
            }
            let token = self.new_token("svc-wallet", Some("wallet:read"));
            self.count("token");
            if n % 3 == 0 {
                self.revoke(&token);
            } else {
                let issuer = self.passport(Credential::none());
                let verdict = self.until_answered(|| issuer.verify(&token, soon()));
                let verdict = verdict.unwrap();
                // The key that signed it may have been revoked in between.
                assert!(
                    verdict.ok || verdict.reason.as_deref() == Some("revoked"),
                    "{verdict:?}"
                );
                self.count("judged");
            }
            pause(120);
        }
    }

    fn revoke(&self, token: &str) {
        let payload = token.split('.').nth(1).unwrap();
        let claims = ron_proto::b64::from_url(payload).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        let request = RevokeRequest {
            jti: claims["jti"].as_str().map(str::to_owned),
            subject_ref: None,
            kid: None,
            epoch: None,
            reason: "soak".to_owned(),
        };
        let done = self.until_answered(|| {
            let credential = Credential::bearer(&self.token("svc-passport"));
            self.passport(credential).revoke(&request, soon())
        });
        done.unwrap_or_else(|e| panic!("revoke: {e}"));
        self.promised.lock().unwrap().revoked.push(token.to_owned());
        self.count("revoke");
    }

    /// Computes and settles one epoch after the other.
    pub fn epochs(&self) {
        let (usage, sealed) = (
            self.rig.path().join("u.csv"),
            self.rig.path().join("u.sealed"),
        );
        for n in 0_u64.. {
            if self.over() {
                return;
            }
            let rows = format!(
                "account,metric,amount\nacct:r1,work,{}\nacct:r2,work,{}\n",
                3 * (n + 1),
                n + 1
            );
            std::fs::write(&usage, rows).unwrap();
            let _ = std::fs::remove_file(&sealed);
            let since = Instant::now();
            loop {
                let policy = self.rig.path().join("soak.json");
                let epoch = format!("soak:{n}");
                let imported = self.rewarder(
                    &[
                        "import",
                        &usage.to_string_lossy(),
                        "--out",
                        &sealed.to_string_lossy(),
                    ],
                    false,
                );
                let done = imported
                    && self.rewarder(
                        &[
                            "compute",
                            &epoch,
                            "--snapshot",
                            &sealed.to_string_lossy(),
                            "--policy",
                            &policy.to_string_lossy(),
                            "--wait",
                            "30",
                        ],
                        true,
                    );
                if done {
                    break;
                }
                assert!(
                    since.elapsed() < ANSWERED_WITHIN,
                    "epoch {n} is not settled"
                );
                self.repeated.fetch_add(1, Ordering::Relaxed);
                let _ = std::fs::remove_file(&sealed);
                pause(200);
            }
            self.promised.lock().unwrap().epochs += 1;
            self.count("epoch");
            for _ in 0..80 {
                if !self.over() {
                    pause(50);
                }
            }
        }
    }

    fn rewarder(&self, args: &[&str], here: bool) -> bool {
        let mut command = Command::new(ron_binary());
        command.arg("rewarder").args(args);
        if here {
            command.arg("--data-dir").arg(self.rig.path());
        }
        command.output().unwrap().status.success()
    }

    /// Reads the console and all metrics. A service that was just killed is unavailable.
    pub fn read_console(&self) {
        let pages = [
            "/",
            "/app.js",
            "/api/overview",
            "/api/nodes",
            "/api/epochs",
            "/api/log-heads",
        ];
        let console = self.rig.api("svc-admin");
        let mut urls: Vec<String> = pages.iter().map(|p| format!("{console}{p}")).collect();
        urls.extend(
            SERVICES
                .iter()
                .map(|s| format!("{}/metrics", self.rig.health(s))),
        );
        while !self.over() {
            for url in &urls {
                match self.rig.http.call(Call::get(url, soon())) {
                    Ok(reply) if reply.status == 200 => self.count("page"),
                    Ok(reply) => assert!(
                        reply.status == 503 || reply.status == 429,
                        "{url}: {}",
                        reply.status
                    ),
                    Err(_) => {
                        self.repeated.fetch_add(1, Ordering::Relaxed);
                    }
                }
                pause(40);
            }
        }
    }
}
