//! Epochs that pay two assets from two pools: paid once over a kill, verified, proved and explained offline, and
//! withdrawn together.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_http::{Method, Reply};
use ron_tests::{Fleet, json, ok, python, ron_binary, workspace};
use serde_json::{Value, json};

const RON: &str = "pool:default/nodes";
const USD: &str = "pool:default/nodes-usd";
const RON_POOL: u64 = 900_000_007;
const USD_POOL: u64 = 50_000_003;
const PAYEES: u64 = 25_000;

struct Desk {
    dir: Arc<tempfile::TempDir>,
    fleet: Fleet,
    token: String,
    work: tempfile::TempDir,
}

impl Desk {
    fn open() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let fleet = Fleet::start_in(Arc::clone(&dir));
        let token = fleet.token("svc-rewarder", None);
        let work = tempfile::tempdir().unwrap();
        Self {
            dir,
            fleet,
            token,
            work,
        }
    }

    /// Kills every service and starts them again.
    fn kill(&mut self) {
        self.fleet.kill();
        self.fleet = Fleet::start_in(Arc::clone(&self.dir));
        self.token = self.fleet.token("svc-rewarder", None);
    }

    fn call(&self, method: Method, path: &str, kind: &str, body: &str) -> Reply {
        let url = format!("{}/rewarder/{path}", self.fleet.api("svc-rewarder"));
        let headers = [("Content-Type", kind)];
        self.fleet
            .send(method, &url, Some(&self.token), Some(body), &headers)
    }

    fn get(&self, path: &str) -> Reply {
        let url = format!("{}/rewarder/{path}", self.fleet.api("svc-rewarder"));
        self.fleet.get(&url, Some(&self.token))
    }

    fn fund(&self, key: &str, pool: &str, asset: &str, minor: u64) {
        let body = json!({"to": pool, "asset": asset, "amount_minor": minor.to_string()});
        let url = format!("{}/v1/issue", self.fleet.api("svc-wallet"));
        let token = self.fleet.token("svc-wallet", None);
        let headers = [("Idempotency-Key", key)];
        let issued = self
            .fleet
            .post(&url, Some(&token), &body.to_string(), &headers);
        json(&issued, 200);
    }

    fn balance(&self, account: &str, asset: &str) -> String {
        let account = account.replace(':', "%3A").replace('/', "%2F");
        let wallet = self.fleet.api("svc-wallet");
        let url = format!("{wallet}/v1/balance?account={account}&asset={asset}");
        let token = self.fleet.token("svc-wallet", None);
        let got = json(&self.fleet.get(&url, Some(&token)), 200);
        got["amount_minor"].as_str().unwrap().to_owned()
    }

    /// Stores the policy and this usage, and asks for the epoch.
    fn compute(&self, epoch: &str, usage: &str) {
        let file = self.policy();
        let name = file.to_str().unwrap();
        let mut check = Command::new(ron_binary());
        check.args(["policy", "check", "--kind", "reward", name]);
        ok(&check.output().unwrap());
        ok(&self
            .fleet
            .ron(&["policy", "sign", "--kind", "reward", name]));
        let read = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(name).unwrap()).unwrap()
        };
        let body = json!({"policy": read(name), "signature": read(&format!("{name}.sig"))});
        let stored = self.call(
            Method::PUT,
            "policy/nodes",
            "application/json",
            &body.to_string(),
        );
        let stored: Value = serde_json::from_slice(&stored.body).unwrap();
        let sealed = self.call(Method::POST, "snapshots", "text/csv", usage);
        let sealed: Value = serde_json::from_slice(&sealed.body).unwrap();
        let body =
            json!({"snapshot": sealed["cid"], "policy_id": "nodes", "policy_hash": stored["hash"]});
        let path = format!("epochs/{epoch}/compute");
        let asked = self.call(Method::POST, &path, "application/json", &body.to_string());
        assert!(matches!(asked.status, 200 | 202), "{asked:?}");
    }

    fn policy(&self) -> PathBuf {
        let pool = |account: &str, minor: u64| json!({"account": account, "amount_minor": minor.to_string()});
        let rule = |weight: &str| json!({"weight": weight, "class": "metering"});
        let policy = json!({"format": 1, "tenant": "default", "id": "nodes", "version": 1,
            "rule_set": "hamilton/1", "asset": "ron", "pool": pool(RON, RON_POOL),
            "metrics": {"disk": rule("1"), "net": rule("3/2")}, "classes_allowed": ["metering"],
            "residual": {"owner": RON},
            "also": [{"asset": "usd", "pool": pool(USD, USD_POOL),
                "metrics": {"disk": rule("0"), "net": rule("1")}, "min_payout_minor": "50",
                "residual": {"owner": USD}}]});
        let file = self.work.path().join("policy.json");
        std::fs::write(&file, policy.to_string()).unwrap();
        file
    }

    /// The run, once it is as wanted.
    fn until(&self, epoch: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let reply = self.get(&format!("epochs/{epoch}"));
            let run: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
            if wanted(&run) {
                return run;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{run}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The console shows the only epoch with the sums of both assets.
    fn console_shows(&self, assets: &[Value]) {
        let url = format!("{}/api/epochs", self.fleet.api("svc-admin"));
        let token = self.fleet.token("svc-admin", None);
        let due: Vec<Value> = assets.iter().map(|of| {
            let totals = &of["totals"];
            json!({"asset": of["asset"], "poolMinor": totals["pool_minor"], "payoutMinor": totals["payout_minor"],
                "residualMinor": totals["residual_minor"], "recipients": totals["recipients"]})
        }).collect();
        let began = Instant::now();
        loop {
            let shown = json(&self.fleet.get(&url, Some(&token)), 200);
            let epoch = &shown["epochs"][0];
            if epoch["runState"] == "settled" {
                assert_eq!(epoch["assets"], json!(due));
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{shown}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn run_dir(&self, epoch: &str) -> PathBuf {
        let runs = self
            .fleet
            .dir()
            .join("svc-rewarder/data/runs/tenant-default");
        runs.join(format!("epoch-{epoch}"))
    }
}

fn usage(payees: u64) -> String {
    (0..payees).fold(String::from("account,metric,amount\n"), |mut text, n| {
        writeln!(text, "acct:node-{n:05},disk,{}", n % 613 + 1).unwrap();
        writeln!(text, "acct:node-{n:05},net,{}", n % 7 * (n % 89)).unwrap();
        text
    })
}

/// `ron rewarder`, as far as it needs no data directory.
fn offline(args: &[&str]) -> Output {
    Command::new(ron_binary())
        .arg("rewarder")
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn two_assets_are_paid_once_over_a_kill_and_proved_without_a_service() {
    let mut desk = Desk::open();
    desk.fund("ron", RON, "ron", RON_POOL);
    desk.fund("usd", USD, "usd", USD_POOL);
    let usage = usage(PAYEES);
    desk.compute("e1", &usage);
    // Killed while payouts of the first asset are made, and again wherever it is then.
    for least in [1_000, PAYEES] {
        let run = desk.until("e1", |run| {
            let settled = run["progress"]["intents_settled"].as_u64().unwrap_or(0);
            run["state"] == "settled" || (run["state"] == "settling" && settled > least)
        });
        assert!(least > 1_000 || run["state"] == "settling", "{run}");
        if least == 1_000 {
            for (asset, pool) in [("ron", RON_POOL), ("usd", USD_POOL)] {
                let gauge = format!("svc_rewarder_pool_minor{{asset=\"{asset}\"}}");
                let shown = desk.fleet.metric("svc-rewarder", &gauge);
                assert_eq!(shown, pool as f64, "{gauge}");
            }
        }
        desk.kill();
    }
    let run = desk.until("e1", |run| run["state"] == "settled");
    let assets = run["assets"].as_array().unwrap();
    assert_eq!(assets.len(), 2, "{run}");
    assert_eq!(
        (&assets[0]["asset"], &assets[1]["asset"]),
        (&json!("ron"), &json!("usd"))
    );
    let recipients = |at: usize| assets[at]["totals"]["recipients"].as_u64().unwrap();
    assert_eq!(
        run["progress"]["intents_total"],
        recipients(0) + recipients(1)
    );
    for (pool, at) in [(RON, 0), (USD, 1)] {
        let totals = &assets[at]["totals"];
        let left = desk.balance(pool, assets[at]["asset"].as_str().unwrap());
        assert_eq!(json!(left), totals["residual_minor"], "{pool}");
    }
    desk.console_shows(assets);
    // What a payee reads is one payout for each asset, and the wallet has both.
    let own = json(&desk.get("epochs/e1/payouts/acct%3Anode-00006"), 200);
    let own = own["payouts"].as_array().unwrap();
    assert_eq!(own.len(), 2, "{own:?}");
    for paid in own {
        let asset = paid["asset"].as_str().unwrap();
        assert_eq!(
            json!(desk.balance("acct:node-00006", asset)),
            paid["amount_minor"]
        );
    }
    for path in [
        "manifest",
        "signatures",
        "payouts",
        "proof/acct%3Anode-00006",
    ] {
        assert_eq!(
            desk.get(&format!("epochs/e1/{path}?asset=usd")).status,
            200,
            "{path}"
        );
        assert_eq!(
            desk.get(&format!("epochs/e1/{path}?asset=eur")).status,
            404,
            "{path}"
        );
    }
    let dir = desk.run_dir("e1");
    check_offline(&desk, &dir, own);
    check_recomputed(&desk, &dir, &usage);
    let there =
        ok(&desk
            .fleet
            .ron(&["rewarder", "explain", "e1/usd", "acct:node-00006", "--json"]));
    let usd = dir.join("asset-usd");
    let here = ok(&offline(&[
        "explain",
        usd.to_str().unwrap(),
        "acct:node-00006",
        "--json",
    ]));
    let [there, here] = [there, here].map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!(there, here, "here and there the same");
    let diff = [
        "rewarder",
        "diff",
        "e1/usd",
        usd.to_str().unwrap(),
        "--json",
    ];
    let diff: Value = serde_json::from_str(&ok(&desk.fleet.ron(&diff))).unwrap();
    assert_eq!(diff["changes"]["same"]["accounts"], recipients(1));
}

/// Verifies the run and a bundle of it, and proves and explains what the payee has of each asset.
fn check_offline(desk: &Desk, dir: &Path, own: &[Value]) {
    let name = dir.to_str().unwrap();
    let said = ok(&desk.fleet.ron(&["rewarder", "verify", name]));
    assert!(said.contains("and usd:"), "{said}");
    let bundle = desk.work.path().join("bundle");
    let out = bundle.to_str().unwrap();
    ok(&offline(&["bundle", name, "--out", out]));
    let said = ok(&desk.fleet.ron(&["rewarder", "verify", out]));
    assert!(said.contains("proofs hold"), "{said}");
    for (paid, below) in own.iter().zip(["", "asset-usd"]) {
        let run = bundle.join(below);
        let run = run.to_str().unwrap();
        let proof = ok(&offline(&["prove", run, "acct:node-00006"]));
        let parsed: Value = serde_json::from_str(&proof).unwrap();
        assert_eq!(parsed["payout"]["amount_minor"], paid["amount_minor"]);
        assert_eq!(parsed["manifest"]["asset"], paid["asset"]);
        let file = desk.work.path().join("proof.json");
        std::fs::write(&file, &proof).unwrap();
        let file = file.to_str().unwrap();
        ok(&desk.fleet.ron(&["rewarder", "verify-proof", file]));
        if below.is_empty() && std::env::var_os("RON_UPDATE_VECTORS").is_some() {
            let to = workspace().join("sdk/vectors/assets");
            std::fs::create_dir_all(&to).unwrap();
            std::fs::write(to.join("payout.json"), proof).unwrap();
            let keys = desk.fleet.dir().join("verifiers.json");
            std::fs::copy(keys, to.join("verifiers.json")).unwrap();
        }
        let why = ok(&offline(&["explain", run, "acct:node-00006", "--json"]));
        let why: Value = serde_json::from_str(&why).unwrap();
        assert_eq!(why["paid_minor"], paid["amount_minor"]);
    }
    let csv = ok(&offline(&[
        "export",
        dir.join("asset-usd").to_str().unwrap(),
    ]));
    assert!(csv.contains("acct:node-00006"), "{}", csv.len());
    // The manifest of the run binds the other one: nothing of it can be taken away.
    let taken = bundle.join("asset-usd/payouts.bin");
    std::fs::remove_file(taken).unwrap();
    assert!(
        !desk
            .fleet
            .ron(&["rewarder", "verify", out])
            .status
            .success()
    );
}

/// The program that knows the documented formats alone gives the same manifests and tables.
fn check_recomputed(desk: &Desk, dir: &Path, usage: &str) {
    let csv = desk.work.path().join("usage.csv");
    std::fs::write(&csv, usage).unwrap();
    let out = Command::new(python())
        .arg(workspace().join("tests/recompute/rewarder_check.py"))
        .args(["--policy", dir.join("policy.json").to_str().unwrap()])
        .args(["--csv", csv.to_str().unwrap(), "--epoch", "e1"])
        .args(["--run-dir", dir.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(ok(&out).contains("e1: equal"));
}

#[test]
fn an_epoch_that_waits_for_one_pool_is_withdrawn_with_both_assets() {
    let desk = Desk::open();
    desk.fund("ron", RON, "ron", RON_POOL);
    desk.fund("usd", USD, "usd", 9);
    desk.compute("e1", &usage(20));
    let held = desk.until("e1", |run| run["state"] == "held");
    let why = held["reason"]["detail"].as_str().unwrap();
    assert_eq!(held["reason"]["code"], "pool_short");
    assert!(why.contains(USD), "{why}");
    assert_eq!(
        desk.balance(RON, "ron"),
        RON_POOL.to_string(),
        "neither asset is opened"
    );
    let withdraw = [
        "rewarder",
        "withdraw",
        "e1",
        "--reason",
        "usage of another month",
    ];
    ok(&desk.fleet.ron(&withdraw));
    desk.until("e1", |run| run["state"] == "withdrawn");
    // The pool that was short has money now, and that manifest pays of neither all the same.
    desk.fund("more", USD, "usd", USD_POOL - 9);
    desk.compute("e1", &usage(30));
    let paid = desk.until("e1", |run| run["state"] == "settled");
    let minor = |at: usize, what: &str| {
        let text = paid["assets"][at]["totals"][what].as_str().unwrap();
        text.parse::<u64>().unwrap()
    };
    for (at, pool, asset, had) in [(0, RON, "ron", RON_POOL), (1, USD, "usd", USD_POOL)] {
        assert_eq!(minor(at, "payout_minor") + minor(at, "residual_minor"), had);
        let left = desk.balance(pool, asset);
        assert_eq!(left, minor(at, "residual_minor").to_string(), "{pool}");
    }
}
