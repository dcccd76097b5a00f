//! The SDKs for Python and TypeScript against a fleet that a witness watches, and the verification page in a real browser:
//! a payment, an audit entry and a payout are proven with each of the three.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use ron_tests::tools::{Process, run_in};
use ron_tests::witness::WitnessHome;
use ron_tests::{Fleet, ok, python, read_json, ron_on, workspace};
use ron_tlog::note::VerifierKey;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What proves an operation of each kind, as `sdk/vectors` has it too.
const VECTORS: [&str; 10] = [
    "verifiers.json",
    "policy",
    "payer.receipt.json",
    "payee.receipt.json",
    "entry.json",
    "entry.tlog-proof",
    "signed.json",
    "run.json",
    "run.sig.json",
    "payout.json",
];

/// A fleet whose logs a witness cosigns, and a directory for what is proven.
struct Place {
    fleet: Fleet,
    _witness: (WitnessHome, Process),
    out: TempDir,
}

impl Place {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        ok(&ron_on(dir.path(), &["init"]));
        let verifiers = read_json(&dir.path().join("verifiers.json"));
        let vkey = |name: &str| VerifierKey::parse(verifiers[name].as_str().unwrap()).unwrap();
        let logs = [vkey("audit_vkey"), vkey("ledger_vkey")];
        let logs: Vec<&VerifierKey> = logs.iter().collect();
        let witness = WitnessHome::new("w.example/witness", &logs);
        let out = tempfile::tempdir().unwrap();
        let policy = witness.policy(&logs, dir.path());
        for service in ["ron-kms", "ron-ledger"] {
            let path = dir.path().join(service).join("config.toml");
            let config = fs::read_to_string(&path).unwrap();
            assert!(!config.contains("[witness]"), "{config}");
            let config = format!("{config}\n[witness]\npolicy_file = \"{policy}\"\n");
            fs::write(&path, config).unwrap();
        }
        webhook_to_nowhere(dir.path());
        let running = witness.start();
        let fleet = let_payee_read(Fleet::start_in(Arc::new(dir)));
        let place = Self {
            fleet,
            _witness: (witness, running),
            out,
        };
        for (name, from) in [
            ("verifiers.json", "verifiers.json"),
            ("policy", "witness.policy"),
        ] {
            fs::copy(place.fleet.dir().join(from), place.file(name)).unwrap();
        }
        let capped = [
            "token",
            "--audience",
            "svc-wallet",
            "--caveat",
            "ceiling.total=20",
        ];
        fs::write(place.file("capped.token"), ok(&place.fleet.ron(&capped))).unwrap();
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.out.path().join(name)
    }

    /// Runs a program with the data directory and the directory of what is proven.
    fn run(&self, program: &mut Command) -> String {
        let args = [self.fleet.dir(), self.out.path()];
        let said = ok(&program.args(args).output().unwrap());
        println!("{said}");
        said
    }

    /// A key that signs messages.
    fn signing_key(&self) {
        let body = json!({
            "tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any",
            "op_id": "018f3c4e-0000-7000-9000-000000000000"
        });
        let made = self.fleet.kms("keys", &body, 201);
        fs::write(self.file("signing-key"), made["key"].as_str().unwrap()).unwrap();
    }

    /// An epoch with thirty payees, paid, and what proves it.
    fn epoch(&self) {
        let (out, data) = (self.out.path(), self.fleet.dir().display().to_string());
        let policy = self.fleet.dir().join("policy/reward.json");
        let pool = read_json(&policy);
        let body = json!({
            "to": pool["pool"]["account"], "asset": pool["asset"], "amount_minor": pool["pool"]["amount_minor"]
        });
        let token = self.fleet.token("svc-wallet", None);
        let url = format!("{}/v1/issue", self.fleet.api("svc-wallet"));
        let key = [("Idempotency-Key", "pool-1")];
        let reply = self.fleet.post(&url, Some(&token), &body.to_string(), &key);
        assert_eq!(reply.status, 200);
        let row = |n| format!("acct:p{n:02},smoothing_pool,{}\n", 30 + n);
        let usage: String = (0..29).map(row).collect();
        let usage = format!("account,metric,amount\nacct:bob,smoothing_pool,59\n{usage}");
        fs::write(out.join("usage.csv"), usage).unwrap();
        let ron = |line: &str| {
            let args: Vec<&str> = line.split(' ').collect();
            ok(&run_in(
                out,
                ron_tests::ron_binary().to_str().unwrap(),
                &args,
            ))
        };
        ron("rewarder import usage.csv --period 2026-11 --out usage.sealed");
        let policy = policy.display();
        let compute = format!("rewarder compute sdk:1 --snapshot usage.sealed --policy {policy}");
        ron(&format!("{compute} --data-dir {data} --dry-run"));
        let run = ron(&format!("{compute} --data-dir {data} --json"));
        let run: Value = serde_json::from_str(&run).unwrap();
        assert_eq!(run["state"], "settled", "{run}");
        let dir = "svc-rewarder/data/runs/tenant-default/epoch-sdk:1";
        let signature = self.fleet.dir().join(dir).join("run.sig.json");
        fs::copy(signature, self.file("run.sig.json")).unwrap();
    }
}

/// Configures an endpoint whose receiver is down, for an account that nothing happens to.
fn webhook_to_nowhere(data: &Path) {
    let secret = data.join("sdk.webhook");
    fs::write(&secret, format!("whsec_{}\n", "A".repeat(43) + "=")).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let path = data.join("svc-wallet/config.toml");
    let config = fs::read_to_string(&path).unwrap();
    let secret = secret.display();
    let block = format!(
        "\n[[webhooks]]\nname = \"sdk\"\nurl = \"http://127.0.0.1:9/\"\naccounts = [\"acct:py-hooked\"]\nsecret_file = \"{secret}\"\n"
    );
    fs::write(&path, config + &block).unwrap();
}

/// The fleet, started again with policies under which the operator may issue passports for a `payee`, and the payee may
/// read one account.
fn let_payee_read(mut fleet: Fleet) -> Fleet {
    let change = |kind: &str, change: &dyn Fn(&mut Value)| {
        let path = fleet.dir().join(format!("policy/{kind}.json"));
        let mut policy = read_json(&path);
        policy["version"] = 2.into();
        change(&mut policy);
        fs::write(&path, policy.to_string()).unwrap();
        let file = path.to_str().unwrap();
        ok(&fleet.ron(&["policy", "sign", "--kind", kind, file]));
    };
    change("issuer", &|policy| {
        policy["clients"][0]["subjects"] = json!(["payee"]);
    });
    change("wallet", &|policy| {
        let mut rule = policy["rules"][0].clone();
        rule["principal"] = "payee".into();
        rule["actions"] = json!(["read"]);
        rule["accounts"] = json!(["acct:py-payee"]);
        policy["rules"].as_array_mut().unwrap().push(rule);
    });
    assert_eq!(fleet.stop(), Some(0));
    Fleet::start_in(fleet.keep_dir())
}

/// Builds the TypeScript SDK.
fn build_typescript() {
    let dir = workspace().join("sdk/typescript");
    assert!(
        dir.join("node_modules").exists(),
        "sdk/typescript/node_modules is missing: run scripts/setup.sh"
    );
    ok(&run_in(&dir, "npm", &["run", "--silent", "build"]));
}

fn python_with_sdk() -> Command {
    let mut command = Command::new(python());
    command.env("PYTHONPATH", workspace().join("sdk/python/src"));
    command
}

/// What the page says about files, in the order of its findings.
fn page(by: &str, files: &[PathBuf]) -> Vec<(String, String)> {
    let root = workspace();
    let shot = root.join("target/test-artifacts");
    fs::create_dir_all(&shot).unwrap();
    let said = Command::new("node")
        .arg(root.join("tests/browser/verify.mjs"))
        .arg("--page")
        .arg(root.join("sdk/verify-page/verify.html"))
        .args(["--by", by, "--shot"])
        .arg(shot.join(format!("verify-{by}.png")))
        .args(files)
        .output()
        .expect("node is installed by scripts/setup.sh");
    let findings: Value = serde_json::from_str(&ok(&said)).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = findings.as_array().unwrap().iter();
    let findings = findings.map(|found| (text(&found["verdict"]), text(&found["text"])));
    findings.collect()
}

/// The SDKs' own tests of verification, with other files than `sdk/vectors`.
fn own_tests(vectors: &Path) -> [Output; 2] {
    let sdk = workspace().join("sdk");
    let python = python_with_sdk()
        .args(["-m", "unittest", "-q", "tests.test_verify"])
        .current_dir(sdk.join("python"))
        .env("RON_SDK_VECTORS", vectors)
        .output();
    let typescript = Command::new("npm")
        .args(["run", "--silent", "test"])
        .current_dir(sdk.join("typescript"))
        .env("RON_SDK_VECTORS", vectors)
        .output();
    [python.unwrap(), typescript.unwrap()]
}

#[test]
fn python_typescript_and_the_page_prove_what_a_fleet_did() {
    build_typescript();
    let place = Place::start();
    place.signing_key();
    place.epoch();
    let root = workspace();
    place.run(python_with_sdk().arg(root.join("tests/sdk/flow.py")));
    place.run(Command::new("node").arg(root.join("tests/sdk/flow.mjs")));
    for tests in own_tests(place.out.path()) {
        ok(&tests);
    }
    let verifiers = read_json(&place.file("verifiers.json"));
    let key = verifiers["ledger_vkey"].as_str().unwrap();
    let proved = ["receipt", "verify", "payee.receipt.json", "--vkey", key];
    let ron = ron_tests::ron_binary();
    ok(&run_in(place.out.path(), ron.to_str().unwrap(), &proved));

    // Dropped or chosen, the page verifies them; with a changed byte it refuses.
    let files: Vec<PathBuf> = VECTORS
        .iter()
        .filter(|name| **name != "signed.json")
        .map(|name| place.file(name))
        .collect();
    for by in ["drop", "input"] {
        let findings = page(by, &files);
        assert!(
            findings.len() == 5 && findings.iter().all(|(verdict, _)| verdict == "verified"),
            "{findings:?}"
        );
    }
    for name in [
        "payee.receipt.json",
        "entry.json",
        "entry.tlog-proof",
        "run.json",
        "run.sig.json",
        "payout.json",
    ] {
        let path = place.file(name);
        let good = fs::read(&path).unwrap();
        let mut changed = good.clone();
        // A payout's proof ends in the receipt of the signature, which nothing signs.
        let at = match name {
            "payout.json" => changed.len() / 4,
            _ => changed.len() - 5,
        };
        changed[at] ^= 1;
        fs::write(&path, changed).unwrap();
        let findings = page("drop", &files);
        assert!(
            findings.iter().any(|(verdict, _)| verdict == "refused"),
            "{name}: {findings:?}"
        );
        fs::write(&path, good).unwrap();
    }

    // The files of `sdk/vectors` are those of one such run.
    if std::env::var_os("RON_UPDATE_VECTORS").is_some() {
        for name in VECTORS {
            fs::copy(place.file(name), root.join("sdk/vectors").join(name)).unwrap();
        }
    }
}

/// The Python of docs/sdk.md.
#[test]
fn the_page_about_the_sdks_does_what_it_says() {
    let fleet = Fleet::start();
    let page = fs::read_to_string(workspace().join("docs/sdk.md")).unwrap();
    let blocks = page.split("<!-- run by: sdk -->\n```python\n").skip(1);
    let said: Vec<String> = blocks
        .map(|block| {
            let program = block.split("```").next().unwrap();
            let mut python = python_with_sdk();
            python.args(["-c", program]).current_dir(workspace());
            ok(&python.env("RON_DATA", fleet.dir()).output().unwrap())
        })
        .collect();
    let [paid, verified] = said.as_slice() else {
        panic!("{said:?}")
    };
    assert!(
        paid.starts_with("tx_") && paid.ends_with(" 250\n"),
        "{paid}"
    );
    assert_eq!(verified, "transfer 250 ron order-17 ('w',)\nsign ok\n");
}

/// The shop of `sdk/python/examples`, twice: what is repeated under its keys is paid once.
#[test]
fn a_shop_delivers_and_refunds_its_customer_proves_it_and_a_second_run_pays_nothing() {
    let mut fleet = Fleet::start();
    let shop = workspace().join("sdk/python/examples/shop.py");
    let run = || {
        ok(&python_with_sdk()
            .arg(&shop)
            .arg(fleet.dir())
            .output()
            .unwrap())
    };
    let wanted = "capture    acct:ada -> acct:shop 3000 eur 1001 proven\n\
        capture    acct:ada -> acct:shop 4500 eur 1001 proven\n\
        reverse    acct:shop -> acct:ada 4500 eur 1001 proven\n\
        the customer is refused what is the shop's: forbidden\n\
        reversed of the lamp: 4500\n\
        opening    0\n\
        capture     3000  3000\n\
        transfer      90  2910\n\
        transfer     478  2432\n\
        capture     4500  6932\n\
        transfer     135  6797\n\
        transfer     718  6079\n\
        reverse     4500  1579\n\
        closing    1579\n\
        customers  14500  7500  7000\n\
        fees         225     0   225\n\
        sales       7500  5921  1579\n\
        tax         1196     0  1196\n\
        all        23421 13421 10000\n";
    assert_eq!(run(), wanted);
    assert_eq!(run(), wanted);
    assert_eq!(fleet.stop(), Some(0));
    ok(&fleet.ron(&["ledger", "verify"]));
}
