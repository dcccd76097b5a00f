//! What stands between a computed epoch and its payment: guard rails, a withdrawal, approvals.

use std::time::{Duration, Instant};

use ron_http::{Method, Reply};
use ron_tests::{Fleet, issuer, json, ok};
use serde_json::{Value, json};

const POOL: &str = "pool:default/guarded";

struct Desk {
    fleet: Fleet,
    operator: String,
    work: tempfile::TempDir,
}

impl Desk {
    fn open() -> Self {
        let fleet = Fleet::start();
        let operator = fleet.token("svc-rewarder", None);
        let work = tempfile::tempdir().unwrap();
        Self {
            fleet,
            operator,
            work,
        }
    }

    fn fund(&self, amount: &str) {
        let body = json!({"to": POOL, "asset": "ron", "amount_minor": amount});
        let url = format!("{}/v1/issue", self.fleet.api("svc-wallet"));
        let token = self.fleet.token("svc-wallet", None);
        let headers = [("Idempotency-Key", "fund")];
        let issued = self
            .fleet
            .post(&url, Some(&token), &body.to_string(), &headers);
        json(&issued, 200);
    }

    fn balance(&self, account: &str) -> String {
        let account = account.replace(':', "%3A").replace('/', "%2F");
        let wallet = self.fleet.api("svc-wallet");
        let url = format!("{wallet}/v1/balance?account={account}&asset=ron");
        let token = self.fleet.token("svc-wallet", None);
        let got = json(&self.fleet.get(&url, Some(&token)), 200);
        got["amount_minor"].as_str().unwrap().to_owned()
    }

    fn call(&self, method: Method, path: &str, kind: &str, body: &str, token: &str) -> Reply {
        let url = format!("{}/rewarder/{path}", self.fleet.api("svc-rewarder"));
        let headers = [("Content-Type", kind), ("Prefer", "wait=20")];
        self.fleet
            .send(method, &url, Some(token), Some(body), &headers)
    }

    fn post(&self, path: &str, body: &Value, token: &str) -> Reply {
        let text = body.to_string();
        self.call(Method::POST, path, "application/json", &text, token)
    }

    /// Signs a version of the policy with this rule of release and stores it; the request to compute
    /// usage of these accounts by it.
    fn request(&self, version: u64, release: &Value, accounts: &[(&str, u64)]) -> Value {
        let policy = json!({"format": 1, "tenant": "default", "id": "guarded", "version": version,
            "rule_set": "hamilton/1", "asset": "ron", "pool": {"account": POOL, "amount_minor": "1000"},
            "metrics": {"m": {"weight": "1", "class": "metering"}}, "classes_allowed": ["metering"],
            "residual": {"owner": POOL}, "release": release});
        let file = self.work.path().join(format!("policy-{version}.json"));
        std::fs::write(&file, policy.to_string()).unwrap();
        let name = file.to_str().unwrap();
        ok(&self
            .fleet
            .ron(&["policy", "sign", "--kind", "reward", name]));
        let signature = std::fs::read(format!("{name}.sig")).unwrap();
        let signature: Value = serde_json::from_slice(&signature).unwrap();
        let body = json!({"policy": policy, "signature": signature}).to_string();
        let stored = self.call(
            Method::PUT,
            "policy/guarded",
            "application/json",
            &body,
            &self.operator,
        );
        let stored = json(&stored, 201);
        let rows = accounts.iter().map(|(name, n)| format!("{name},m,{n}\n"));
        let usage = format!("account,metric,amount\n{}", rows.collect::<String>());
        let sealed = self.call(
            Method::POST,
            "snapshots",
            "text/csv",
            &usage,
            &self.operator,
        );
        let sealed: Value = serde_json::from_slice(&sealed.body).unwrap();
        json!({"snapshot": sealed["cid"], "policy_id": "guarded", "policy_hash": stored["hash"]})
    }

    fn compute(&self, epoch: &str, request: &Value) -> Value {
        let path = format!("epochs/{epoch}/compute");
        json(&self.post(&path, request, &self.operator), 200)
    }

    fn run(&self, epoch: &str) -> Value {
        let url = format!("{}/rewarder/epochs/{epoch}", self.fleet.api("svc-rewarder"));
        json(&self.fleet.get(&url, Some(&self.operator)), 200)
    }

    /// A passport of another person, who may approve and nothing else.
    fn approver(&self, name: &str) -> String {
        let claims = json!({"sub": name, "scope": "rewarder:approve"});
        issuer::minted(&self.fleet, "svc-rewarder", &claims)
    }

    /// Approves, and retries while the rewarder has not read the issuer's newest keys and policy.
    fn approve(&self, epoch: &str, commitment: &Value, token: &str) -> Reply {
        let body = json!({"commitment": commitment});
        let since = Instant::now();
        loop {
            let reply = self.post(&format!("epochs/{epoch}/approve"), &body, token);
            let early = matches!(reply.status, 401 | 503);
            if !early || since.elapsed() > Duration::from_secs(20) {
                return reply;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn code(reply: &Reply) -> (u16, String) {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    (reply.status, body["code"].as_str().unwrap_or("").to_owned())
}

fn breaches(run: &Value) -> Vec<&str> {
    let breaches = run["release"]["breaches"].as_array().unwrap();
    breaches
        .iter()
        .map(|breach| breach["code"].as_str().unwrap())
        .collect()
}

#[test]
fn a_wrong_epoch_is_stopped_withdrawn_computed_again_approved_by_two_and_paid_once() {
    let desk = Desk::open();
    desk.fund("1000");
    let wrong = [("acct:alice", 1_000), ("acct:mallory", 9_000)];
    // Each rail stops it; a dry run shows which.
    for (version, guards, beyond) in [
        (1, json!({"recipients_min": 3}), "recipients_min"),
        (2, json!({"recipients_max": 1}), "recipients_max"),
        (3, json!({"account_max_minor": "800"}), "account_max"),
        (4, json!({"largest_ten_max_percent": 99}), "largest_ten"),
    ] {
        let mut request = desk.request(version, &json!({"guards": guards}), &wrong);
        request["dry_run"] = true.into();
        let run = desk.compute("dry", &request);
        assert_eq!(
            (&run["state"], breaches(&run)),
            (&"sealed".into(), vec![beyond])
        );
    }
    let release = json!({"approvals": 2, "guards": {"account_max_minor": "800"}});
    let run = desk.compute("e1", &desk.request(5, &release, &wrong));
    assert_eq!(
        (&run["state"], breaches(&run)),
        (&"review".into(), vec!["account_max"])
    );
    let settle = desk.post("epochs/e1/settle", &Value::Null, &desk.operator);
    assert_eq!(settle.status, 400, "settle takes no body");
    let url = format!(
        "{}/rewarder/epochs/e1/settle",
        desk.fleet.api("svc-rewarder")
    );
    let settle = || {
        let operator = Some(desk.operator.as_str());
        desk.fleet.send(Method::POST, &url, operator, None, &[])
    };
    assert_eq!(code(&settle()), (409, "approvals_missing".to_owned()));
    let text = ok(&desk.fleet.ron(&[
        "rewarder",
        "withdraw",
        "e1",
        "--reason",
        "mallory's counter",
    ]));
    assert!(text.contains("epoch e1 is withdrawn"), "{text}");

    let right = [("acct:alice", 3), ("acct:bob", 1)];
    let run = desk.compute("e1", &desk.request(6, &release, &right));
    assert_eq!((&run["state"], breaches(&run)), (&"sealed".into(), vec![]));
    assert_eq!(run["asked_by"], "operator");
    let commitment = &run["commitment"];
    assert_eq!(code(&settle()), (409, "approvals_missing".to_owned()));
    let own = desk.approve("e1", commitment, &desk.operator);
    assert_eq!(code(&own), (403, "own_run".to_owned()));
    let (anna, bert) = (desk.approver("anna"), desk.approver("bert"));
    let body = json!({"commitment": commitment, "reason": "no"});
    let more = desk.post("epochs/e1/withdraw", &body, &anna);
    assert_eq!(more.status, 403, "an approver may not run anything");
    let other = json!(format!("b3:{}", "07".repeat(32)));
    let refused = desk.approve("e1", &other, &anna);
    assert_eq!(code(&refused), (409, "other_manifest".to_owned()));
    for _ in 0..2 {
        let run = json(&desk.approve("e1", commitment, &anna), 200);
        assert_eq!(run["release"]["approvals"].as_array().unwrap().len(), 1);
    }
    assert_eq!(desk.balance(POOL), "1000", "nothing is paid yet");
    let run = json(&desk.approve("e1", commitment, &bert), 200);
    assert_eq!(run["state"], "settled", "{run}");
    let names: Vec<&Value> = run["release"]["approvals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|approval| &approval["by"])
        .collect();
    assert_eq!(names, ["anna", "bert"]);
    assert_eq!(
        (desk.balance("acct:alice"), desk.balance("acct:bob")),
        ("750".to_owned(), "250".to_owned())
    );

    // The next epoch is compared with this one.
    let guards = json!({"guards": {"new_recipients_max": 0, "change_max_percent": 0}});
    let run = desk.compute(
        "e2",
        &desk.request(7, &guards, &[("acct:alice", 3), ("acct:carla", 1)]),
    );
    assert_eq!(
        (&run["state"], breaches(&run)),
        (&"review".into(), vec!["new_recipients"])
    );
    assert_eq!(desk.run("e2")["release"]["needed"], 1);
    let nobody = desk.compute("e3", &desk.request(8, &json!({}), &[]));
    assert_eq!(breaches(&nobody), ["no_recipients"]);
    let refused = desk.approve("e3", &nobody["commitment"], &anna);
    assert_eq!(code(&refused), (409, "never_pays".to_owned()));
    assert_eq!(desk.balance("acct:mallory"), "0");
    ok(&desk.fleet.ron(&["rewarder", "verify"]));
}
