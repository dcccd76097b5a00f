//! Dry runs side by side, and an epoch that was paid for the wrong usage and is corrected.

use std::path::PathBuf;
use std::process::{Command, Output};

use ron_http::{Method, Reply};
use ron_proto::ContentId;
use ron_tests::{Fleet, json, ok, ron_binary, workspace};
use serde_json::{Value, json};

const POOL: &str = "pool:default/fix";

struct Desk {
    fleet: Fleet,
    token: String,
    work: tempfile::TempDir,
    policy: PathBuf,
}

impl Desk {
    fn open() -> Self {
        let fleet = Fleet::start();
        let token = fleet.token("svc-rewarder", None);
        let work = tempfile::tempdir().unwrap();
        let policy = work.path().join("policy.json");
        let document = json!({"format": 1, "tenant": "default", "id": "fix", "version": 1,
            "rule_set": "hamilton/1", "asset": "ron", "pool": {"account": POOL, "amount_minor": "1000"},
            "metrics": {"m": {"weight": "1", "class": "metering"}}, "classes_allowed": ["metering"],
            "residual": {"owner": POOL}});
        std::fs::write(&policy, document.to_string()).unwrap();
        let desk = Self {
            fleet,
            token,
            work,
            policy,
        };
        let file = desk.policy.to_str().unwrap();
        ok(&desk
            .fleet
            .ron(&["policy", "sign", "--kind", "reward", file]));
        let body = json!({"to": POOL, "asset": "ron", "amount_minor": "2000"});
        let url = format!("{}/v1/issue", desk.fleet.api("svc-wallet"));
        let wallet = desk.fleet.token("svc-wallet", None);
        let headers = [("Idempotency-Key", "fund")];
        let issued = desk
            .fleet
            .post(&url, Some(&wallet), &body.to_string(), &headers);
        json(&issued, 200);
        desk
    }

    /// Seals usage of these accounts; the name of the file.
    fn usage(&self, name: &str, rows: &[(&str, u64)]) -> String {
        let (csv, sealed) = (
            self.work.path().join(format!("{name}.csv")),
            self.work.path().join(name),
        );
        let lines: Vec<String> = rows.iter().map(|(a, n)| format!("{a},m,{n}\n")).collect();
        let text = format!("account,metric,amount\n{}", lines.concat());
        std::fs::write(&csv, text).unwrap();
        let (csv, sealed) = (csv.to_str().unwrap(), sealed.to_str().unwrap());
        ok(&self
            .fleet
            .ron(&["rewarder", "import", csv, "--out", sealed]));
        sealed.to_owned()
    }

    fn ron(&self, args: &[&str]) -> Output {
        self.fleet.ron(&[&["rewarder"], args].concat())
    }

    fn compute(&self, epoch: &str, usage: &str, more: &[&str]) -> Value {
        let policy = self.policy.to_str().unwrap();
        let args = [
            "compute",
            epoch,
            "--snapshot",
            usage,
            "--policy",
            policy,
            "--json",
        ];
        let text = ok(&self.ron(&[&args[..], more].concat()));
        serde_json::from_str(&text).unwrap()
    }

    fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[])
    }

    fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let url = format!("{}/rewarder/{path}", self.fleet.api("svc-rewarder"));
        self.fleet
            .send(Method::GET, &url, Some(&self.token), None, headers)
    }

    fn balance(&self, account: &str) -> String {
        let account = account.replace(':', "%3A").replace('/', "%2F");
        let wallet = self.fleet.api("svc-wallet");
        let url = format!("{wallet}/v1/balance?account={account}&asset=ron");
        let token = self.fleet.token("svc-wallet", None);
        let got = json(&self.fleet.get(&url, Some(&token)), 200);
        got["amount_minor"].as_str().unwrap().to_owned()
    }

    fn dir(&self, epoch: &str) -> String {
        let runs = self.fleet.dir().join("svc-rewarder/data/runs");
        let dir = runs.join("tenant-default").join(format!("epoch-{epoch}"));
        dir.to_str().unwrap().to_owned()
    }

    fn diff(&self, before: &str, after: &str) -> Value {
        let text = ok(&self.ron(&["diff", before, after, "--json"]));
        serde_json::from_str(&text).unwrap()
    }
}

/// `ron rewarder`, for commands that take no data directory.
fn plain(args: &[&str]) -> Output {
    let mut ron = Command::new(ron_binary());
    ron.arg("rewarder").args(args).output().unwrap()
}

const WRONG: [(&str, u64); 2] = [("acct:alice", 1), ("acct:mallory", 3)];
const RIGHT: [(&str, u64); 3] = [("acct:alice", 1), ("acct:bob", 1), ("acct:mallory", 2)];

#[test]
fn dry_runs_of_an_epoch_are_kept_side_by_side_and_compared() {
    let desk = Desk::open();
    let (wrong, right) = (desk.usage("wrong", &WRONG), desk.usage("right", &RIGHT));
    let one = desk.compute("e", &wrong, &["--dry-run"]);
    let two = desk.compute("e", &right, &["--dry-run"]);
    let keys = [&one, &two].map(|run| run["run_key"].as_str().unwrap().to_owned());
    let listed = json(&desk.get("epochs/e/dry-runs"), 200);
    assert_eq!(listed["epochs"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        json(&desk.get("epochs/e"), 200)["run_key"],
        keys[1].as_str()
    );
    let live = desk.compute("e", &right, &[]);
    assert_eq!(live["state"], "settled");
    // Each has its own manifest, table and explanation, beside the live run.
    for (key, recipients, mallory) in [(&keys[0], 2, "750"), (&keys[1], 3, "500")] {
        let query = format!("?dry_run={}", key.replace(':', "%3A"));
        let read = |path: &str| json(&desk.get(&format!("epochs/e{path}{query}")), 200);
        assert_eq!(read("")["dry_run"], true);
        assert_eq!(read("/manifest")["run_key"], key.as_str());
        assert_eq!(read("/payouts")["count"], recipients);
        let why = read("/explain/acct%3Amallory");
        assert_eq!(why["paid_minor"], mallory);
        assert_eq!(
            read("/payouts/acct%3Amallory")["payouts"][0]["amount_minor"],
            why["paid_minor"]
        );
        read("/proof/acct%3Amallory");
    }
    assert_eq!(json(&desk.get("epochs/e"), 200)["dry_run"], false);
    let unknown = format!("epochs/e?dry_run=b3%3A{}", "07".repeat(32));
    assert_eq!(desk.get(&unknown).status, 404);
    // On the command line they have short names.
    let text = ok(&desk.ron(&["dry-runs", "e"]));
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("e@"))
        .collect();
    let wanted = [1, 0].map(|at| format!("e@{}", &keys[at][3..15]));
    assert_eq!(names, wanted);
    let between = desk.diff(&wanted[1], &wanted[0]);
    assert_eq!(
        between["changes"]["appeared"],
        json!({"accounts": 1, "minor": "250"})
    );
    assert_eq!(
        between["changes"]["lowered"],
        json!({"accounts": 1, "minor": "250"})
    );
    let with_epoch = desk.diff("e", &wanted[0]);
    assert_eq!(with_epoch["changes"]["same"]["accounts"], 3);
    let why = ok(&desk.ron(&["explain", &wanted[1], "acct:mallory"]));
    assert!(why.contains("gets 750 ron"), "{why}");
    let none = desk.ron(&["explain", "e@00", "acct:mallory"]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        !none.status.success() && said.contains("dry-runs e"),
        "{said}"
    );
}

#[test]
fn a_paid_epoch_is_corrected_by_the_differences() {
    let desk = Desk::open();
    let (wrong, right) = (desk.usage("wrong", &WRONG), desk.usage("right", &RIGHT));
    assert_eq!(desk.compute("e", &wrong, &[])["state"], "settled");
    let refused = desk.ron(&[
        "compute",
        "early",
        "--snapshot",
        &right,
        "--adjusts",
        "nothing",
        "--policy",
        desk.policy.to_str().unwrap(),
    ]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("epoch nothing is to be corrected"), "{said}");

    let dry = desk.compute("fix", &right, &["--adjusts", "e", "--dry-run"]);
    assert_eq!(dry["totals"]["payout_minor"], "250");
    let run = desk.compute("fix", &right, &["--adjusts", "e"]);
    assert_eq!(
        (&run["state"], &run["settles"]),
        (&json!("sealed"), &json!(false))
    );
    assert_eq!(run["commitment"], dry["commitment"]);
    assert_eq!(desk.balance("acct:bob"), "0");
    ok(&desk.ron(&["settle", "fix"]));
    let balances = ["acct:alice", "acct:bob", "acct:mallory", POOL].map(|of| desk.balance(of));
    assert_eq!(
        balances,
        ["250", "250", "750", "750"],
        "nothing is taken back"
    );
    // The usage of the correction is paid, and the epoch is corrected once.
    for (epoch, more) in [("again", &[][..]), ("fix2", &["--adjusts", "e"])] {
        let policy = desk.policy.to_str().unwrap();
        let args = ["compute", epoch, "--snapshot", &right, "--policy", policy];
        let refused = desk.ron(&[&args[..], more].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("epoch fix paid"), "{said}");
    }

    let manifest = json(&desk.get("epochs/fix/manifest"), 200);
    assert_eq!(
        (&manifest["version"], &manifest["adjusts"]),
        (&json!(3), &json!("e"))
    );
    let why = json(&desk.get("epochs/fix/explain/acct%3Amallory"), 200);
    let meant = json!({"account": "acct:mallory", "before_minor": "750", "due_minor": "500",
        "payout_minor": "0", "overpaid_minor": "250"});
    assert_eq!(why["correction"], meant);
    assert_eq!(desk.get("epochs/fix/proof/acct%3Amallory").status, 404);
    accounts_by_pages(&desk, &manifest["correction"]["accounts"]);
    let why = ok(&desk.ron(&["explain", "fix", "acct:bob"]));
    assert!(
        why.contains("gets 250 ron") && why.contains("paid before  0"),
        "{why}"
    );
    for run in ["fix", &desk.dir("fix")] {
        let csv = desk.work.path().join("accounts.csv");
        let text = ok(&desk.ron(&["correction", run, "--csv", csv.to_str().unwrap()]));
        assert!(text.contains("epoch fix corrects e"), "{text}");
        let rows = std::fs::read_to_string(&csv).unwrap();
        let wanted = "account,before_minor,due_minor,payout_minor,overpaid_minor\n\
            acct:alice,250,250,0,0\nacct:bob,0,250,250,0\nacct:mallory,750,500,0,250\n";
        assert_eq!(rows, wanted);
    }
    for (before, after) in [("e", "fix"), (&*desk.dir("e"), &*desk.dir("fix"))] {
        let diff = desk.diff(before, after);
        assert_eq!(
            diff["changes"]["appeared"],
            json!({"accounts": 1, "minor": "250"})
        );
        assert_eq!(
            diff["changes"]["same"],
            json!({"accounts": 2, "minor": "1000"})
        );
    }
    offline(&desk);
}

/// The accounts of a correction are served by pages, and the file that the manifest names in pieces.
fn accounts_by_pages(desk: &Desk, named: &Value) {
    let page = |query: &str| {
        json(
            &desk.get(&format!("epochs/fix/correction/accounts{query}")),
            200,
        )
    };
    let all = page("");
    assert_eq!((&all["count"], &all["next"]), (&json!(3), &Value::Null));
    let mallory = json!({"account": "acct:mallory", "before_minor": "750", "due_minor": "500",
        "payout_minor": "0", "overpaid_minor": "250"});
    assert_eq!(all["accounts"][2], mallory);
    let first = page("?limit=2");
    assert_eq!((&first["count"], &first["next"]), (&json!(3), &json!(2)));
    let rest = page("?from=2&limit=2");
    assert_eq!(rest, json!({"accounts": [mallory], "count": 3}));
    assert_eq!(page("?from=9"), json!({"accounts": [], "count": 3}));
    let both = [&first["accounts"], &rest["accounts"]].map(|page| page.as_array().unwrap().clone());
    assert_eq!(json!(both.concat()), all["accounts"]);
    for (path, status) in [
        ("fix/correction/accounts?limit=0", 400),
        ("fix/correction/accounts?limit=1001", 400),
        ("fix/correction/accounts?after=2", 400),
        ("e/correction/accounts", 404),
        ("e/correction", 404),
    ] {
        assert_eq!(desk.get(&format!("epochs/{path}")).status, status, "{path}");
    }

    let whole = desk.get("epochs/fix/correction");
    assert_eq!(json!(ContentId::of(&whole.body).to_string()), *named);
    let length = whole.body.len();
    let part = |range: &str| desk.get_with("epochs/fix/correction", &[("Range", range)]);
    let mut pieces = Vec::new();
    while pieces.len() < length {
        let from = pieces.len();
        let piece = part(&format!("bytes={from}-{}", from + 99));
        let last = (from + 99).min(length - 1);
        let said = format!("bytes {from}-{last}/{length}");
        assert_eq!(
            (piece.status, piece.header("content-range")),
            (206, Some(&*said))
        );
        pieces.extend_from_slice(&piece.body);
    }
    assert_eq!(pieces, whole.body);
    let beyond = part(&format!("bytes={length}-"));
    assert_eq!(json(&beyond, 416)["code"], "range_not_satisfiable");
}

/// What holds without the service: the run, its bundle, and a payee's proof.
fn offline(desk: &Desk) {
    let text = ok(&desk.ron(&["verify"]));
    assert!(
        text.contains("corrects epoch e, and has what that has paid"),
        "{text}"
    );
    let (fix, first) = (desk.dir("fix"), desk.dir("e"));
    ok(&desk.ron(&["verify", &fix, "--corrects", &first]));
    let bundle = desk.work.path().join("bundle");
    let bundle = bundle.to_str().unwrap();
    ok(&plain(&["bundle", &fix, "--out", bundle]));
    ok(&desk.ron(&["verify", bundle, "--corrects", &first]));
    ok(&desk.ron(&["explain", bundle, "acct:bob"]));
    let proof = ok(&plain(&["prove", bundle, "acct:bob"]));
    let file = desk.work.path().join("proof.json");
    std::fs::write(&file, &proof).unwrap();
    ok(&desk.ron(&["verify-proof", file.to_str().unwrap()]));
    if std::env::var_os("RON_UPDATE_VECTORS").is_some() {
        let to = workspace().join("sdk/vectors/correction");
        std::fs::create_dir_all(&to).unwrap();
        std::fs::write(to.join("payout.json"), proof).unwrap();
        let keys = desk.fleet.dir().join("verifiers.json");
        std::fs::copy(keys, to.join("verifiers.json")).unwrap();
    }
    // The same correction, computed from the directories alone.
    let out = desk.work.path().join("here");
    let out = out.to_str().unwrap();
    let right = desk.work.path().join("right");
    let policy = desk.policy.to_str().unwrap();
    ok(&desk.ron(&[
        "compute",
        "fix",
        "--snapshot",
        right.to_str().unwrap(),
        "--policy",
        policy,
        "--corrects",
        &first,
        "--out",
        out,
    ]));
    ok(&desk.ron(&["verify", out, "--unsigned", "--corrects", &first]));
    let manifest = |dir: &str| std::fs::read(format!("{dir}/run.json")).unwrap();
    assert_eq!(manifest(out), manifest(&fix));
}
