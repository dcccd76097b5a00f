//! Epochs whose payees claim their payouts elsewhere: the ledger moves the total and pays nobody, and OpenZeppelin's own
//! package reads the claim tree and verifies every proof.

use std::fmt::Write as _;
use std::process::{Command, Output};

use ron_http::{Method, Reply};
use ron_tests::{Fleet, json, ok, ron_binary, workspace};
use serde_json::{Value, json};

const POOL: &str = "pool:default/claims";
const HOLDER: &str = "claims:bridge";
const PAYEES: u64 = 10_000;

struct Desk {
    fleet: Fleet,
    token: String,
    work: tempfile::TempDir,
}

impl Desk {
    fn open() -> Self {
        let fleet = Fleet::start();
        let token = fleet.token("svc-rewarder", None);
        let work = tempfile::tempdir().unwrap();
        Self { fleet, token, work }
    }

    fn call(&self, method: Method, path: &str, kind: &str, body: &str) -> Reply {
        let url = format!("{}/rewarder/{path}", self.fleet.api("svc-rewarder"));
        let headers = [("Content-Type", kind), ("Prefer", "wait=25")];
        self.fleet
            .send(method, &url, Some(&self.token), Some(body), &headers)
    }

    fn get(&self, path: &str) -> Reply {
        let url = format!("{}/rewarder/{path}", self.fleet.api("svc-rewarder"));
        self.fleet.get(&url, Some(&self.token))
    }

    fn fund(&self) {
        let body = json!({"to": POOL, "asset": "ron", "amount_minor": "1000000007"});
        let url = format!("{}/v1/issue", self.fleet.api("svc-wallet"));
        let token = self.fleet.token("svc-wallet", None);
        let headers = [("Idempotency-Key", "fund")];
        json(
            &self
                .fleet
                .post(&url, Some(&token), &body.to_string(), &headers),
            200,
        );
    }

    fn balance(&self, account: &str) -> String {
        let account = account.replace(':', "%3A").replace('/', "%2F");
        let url = format!(
            "{}/v1/balance?account={account}&asset=ron",
            self.fleet.api("svc-wallet")
        );
        let token = self.fleet.token("svc-wallet", None);
        json(&self.fleet.get(&url, Some(&token)), 200)["amount_minor"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Stores the policy and this usage; the request to compute it.
    fn request(&self, usage: &str) -> Value {
        let policy = json!({"format": 1, "tenant": "default", "id": "claims", "version": 1,
            "rule_set": "hamilton/1", "asset": "ron", "pool": {"account": POOL, "amount_minor": "1000000007"},
            "metrics": {"m": {"weight": "1", "class": "metering"}}, "classes_allowed": ["metering"],
            "residual": {"owner": POOL}, "pay": "claims", "claims_account": HOLDER});
        let file = self.work.path().join("policy.json");
        std::fs::write(&file, policy.to_string()).unwrap();
        let name = file.to_str().unwrap();
        ok(&self
            .fleet
            .ron(&["policy", "sign", "--kind", "reward", name]));
        let signature: Value =
            serde_json::from_slice(&std::fs::read(format!("{name}.sig")).unwrap()).unwrap();
        let body = json!({"policy": policy, "signature": signature}).to_string();
        let stored = self.call(Method::PUT, "policy/claims", "application/json", &body);
        let stored: Value = serde_json::from_slice(&stored.body).unwrap();
        let sealed = self.call(Method::POST, "snapshots", "text/csv", usage);
        let sealed: Value = serde_json::from_slice(&sealed.body).unwrap();
        json!({"snapshot": sealed["cid"], "policy_id": "claims", "policy_hash": stored["hash"]})
    }

    fn ask(&self, epoch: &str, usage: &str) -> Reply {
        let body = self.request(usage).to_string();
        let path = format!("epochs/{epoch}/compute");
        self.call(Method::POST, &path, "application/json", &body)
    }

    fn compute(&self, epoch: &str, usage: &str) -> Value {
        json(&self.ask(epoch, usage), 200)
    }
}

/// `ron rewarder`, as far as it needs no data directory.
fn offline(args: &[&str]) -> Output {
    Command::new(ron_binary())
        .arg("rewarder")
        .args(args)
        .output()
        .unwrap()
}

/// Addresses that are spread over the whole range, the same at each run.
fn payee(n: u64) -> String {
    let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("0x{spread:016x}{n:024x}")
}

fn usage() -> String {
    (0..PAYEES).fold(String::from("account,metric,amount\n"), |mut text, n| {
        writeln!(text, "{},m,{}", payee(n), n % 977 + 1).unwrap();
        text
    })
}

#[test]
fn openzeppelins_package_verifies_every_claim_and_the_ledger_pays_nobody() {
    let desk = Desk::open();
    desk.fund();
    let run = desk.compute("2026-11", &usage());
    assert_eq!(run["state"], "settled", "{run}");
    assert_eq!(
        run["progress"]["intents_total"], 1,
        "the total moves in one payout"
    );
    let manifest = json(&desk.get("epochs/2026-11/manifest"), 200);
    assert_eq!(
        (&manifest["version"], &manifest["claims"]["account"]),
        (&json!(2), &json!(HOLDER))
    );
    let total = manifest["payouts"]["total_minor"].as_str().unwrap();
    assert_eq!(desk.balance(HOLDER), total);
    assert_eq!(desk.balance(&payee(3)), "0");

    let dir = desk
        .fleet
        .dir()
        .join("svc-rewarder/data/runs/tenant-default/epoch-2026-11");
    let run_dir = dir.to_str().unwrap();
    ok(&desk.fleet.ron(&["rewarder", "verify", run_dir]));
    let served = desk.get("epochs/2026-11/claims");
    assert_eq!(
        (served.status, served.body),
        (200, std::fs::read(dir.join("run.claims.json")).unwrap())
    );

    let export = |format: &str, name: &str| {
        let file = desk.work.path().join(name);
        ok(&offline(&[
            "export",
            run_dir,
            "--format",
            format,
            "--out",
            file.to_str().unwrap(),
        ]));
        file
    };
    let (claims, csv) = (
        export("claims", "run.claims.json"),
        export("csv", "payouts.csv"),
    );
    assert_eq!(
        std::fs::read(&claims).unwrap(),
        std::fs::read(dir.join("run.claims.json")).unwrap()
    );
    let proofs = export("claim-proofs", "proofs.ndjson");
    let interop = workspace().join("tests/interop");
    assert!(
        interop.join("node_modules").exists(),
        "run scripts/setup.sh"
    );
    let mut node = Command::new("node");
    node.arg(interop.join("claims.mjs"))
        .arg(manifest["claims"]["root"].as_str().unwrap());
    let said = ok(&node.args([claims, csv, proofs]).output().unwrap());
    assert_eq!(said.trim(), PAYEES.to_string());

    // A payee's proof has both paths, and the service's is the command line's.
    let proof = json(
        &desk.get(&format!("epochs/2026-11/proof/{}", payee(3))),
        200,
    );
    let local: Value = serde_json::from_str(&ok(&offline(&["prove", run_dir, &payee(3)]))).unwrap();
    assert_eq!(proof, local);
    let steps = proof["claim"].as_array().unwrap().len();
    assert!(
        (13..=14).contains(&steps),
        "{steps} steps in a tree of {PAYEES} leaves"
    );
    let file = desk.work.path().join("proof.json");
    std::fs::write(&file, proof.to_string()).unwrap();
    ok(&desk
        .fleet
        .ron(&["rewarder", "verify-proof", file.to_str().unwrap()]));
}

#[test]
fn an_epoch_with_claims_fails_on_a_payee_that_is_no_address() {
    let desk = Desk::open();
    let usage = format!("account,metric,amount\n{},m,1\nacct:bob,m,1\n", payee(1));
    let problem = json(&desk.ask("2026-12", &usage), 409);
    let why = &problem["details"]["reason"];
    assert_eq!(
        (&problem["code"], why),
        (&json!("run_failed"), &json!("policy_mismatch"))
    );
    assert!(
        problem["detail"].as_str().unwrap().contains("\"acct:bob\""),
        "{problem}"
    );
    assert_eq!(desk.get("epochs/2026-12/claims").status, 404);
}
