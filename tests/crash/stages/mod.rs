//! `kill -9` in every stage of the rewarder: the real program is killed before the n-th operation
//! of a chosen stage, over the real ledger and KMS. Finishing later pays every payee once; the loss
//! of all of the rewarder's own state pays nothing more; and the ledger refuses another manifest
//! for a closed epoch. The same for an epoch that is computed from the wrong usage, withdrawn, and
//! computed and paid again.
//!
//! A preloaded library counts the calls into the C library (`stage_kill.c`), so the kill points are
//! exact and repeatable. `RON_STAGE_KILLS` is the number of kills (20).

mod hosts;
mod points;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ron_http::{Call, CallError, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::ContentId;
use ron_tests::processes::{Rig, code};
use ron_tests::tools::{Process, service};
use ron_tests::{http_client, json, number, ok, own_place, ron_on, workspace};
use serde_json::{Value, json as json_of};

use points::Points;

/// Prefixes of the stages' thread names, in the order in which a run passes them.
const STAGES: [&str; 6] = [
    "rew-import",
    "rew-sched",
    "rew-work",
    "rew-calc",
    "rew-artifact",
    "rew-emit",
];
/// More operations than any stage makes.
const MANY: i64 = 1 << 40;
const PATIENCE: Duration = Duration::from_secs(90);

/// The rewarder's process and its client.
struct Rewarder {
    child: Process,
    http: HttpClient,
    api: String,
}

struct Services {
    rig: Rig,
    points: Points,
    env: Vec<(&'static str, PathBuf)>,
    api: String,
    tokens: BTreeMap<&'static str, String>,
    policy: Value,
    policy_hash: ContentId,
    usage: String,
    other: String,
    /// Whether a sealed epoch pays without a request.
    auto_settle: bool,
    /// Kept alive while the compiled tools are in use.
    _tools: tempfile::TempDir,
}

fn library(to: &Path) -> PathBuf {
    let out = to.join("stage_kill.so");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .arg(&out)
        .arg(workspace().join("tests/crash/stage_kill.c"))
        .arg("-ldl")
        .output();
    ok(&made.unwrap());
    out
}

impl Services {
    fn start() -> Self {
        let mut rig = Rig::start();
        // Five hundred pools a day exceed the default limit of an account.
        rig.kill("svc-wallet");
        let wallet = rig.dir.path().join("svc-wallet/config.toml");
        let mut config = std::fs::OpenOptions::new()
            .append(true)
            .open(wallet)
            .unwrap();
        writeln!(config, "[limits]\ndaily_minor = \"{}\"", u128::MAX / 4).unwrap();
        rig.run("svc-wallet");
        rig.wait_ready("svc-wallet");
        let tools = tempfile::tempdir().unwrap();
        let file = tools.path().join("points");
        let dir = rig.dir.path();
        let token = |audience: &str| {
            let args = ["token", "--audience", audience, "--ttl", "1h"];
            ok(&ron_on(dir, &args)).trim().to_owned()
        };
        let config = std::fs::read_to_string(dir.join("svc-rewarder/config.toml")).unwrap();
        let address = config
            .lines()
            .find_map(|line| line.strip_prefix("bind_addr = \""))
            .unwrap();
        let policy = std::fs::read(dir.join("policy/reward.json")).unwrap();
        let example = |name: &str| {
            let path = workspace().join("examples/rocketpool").join(name);
            std::fs::read_to_string(path).unwrap()
        };
        Self {
            points: Points::make(&file),
            env: vec![
                ("LD_PRELOAD", library(tools.path())),
                ("STAGE_KILL_FILE", file),
            ],
            api: format!("http://{}", address.trim_end_matches('"')),
            tokens: ["svc-rewarder", "ron-ledger"].map(|a| (a, token(a))).into(),
            policy_hash: ContentId::of(&policy),
            policy: serde_json::from_slice(&policy).unwrap(),
            usage: example("interval-45.csv"),
            other: example("interval-03.csv"),
            auto_settle: true,
            _tools: tools,
            rig,
        }
    }

    fn rewarder(&self) -> Rewarder {
        let mut command = self.command(&[]);
        Rewarder {
            child: Process::start(command.envs(self.env.clone())),
            http: http_client(),
            api: self.api.clone(),
        }
    }

    /// One more rewarder of the same fleet, as on another host: nothing of its data is shared, and nothing kills it.
    fn elsewhere(&self, host: &Path) -> Rewarder {
        let place = own_place(host, "svc-rewarder");
        Rewarder {
            child: Process::start(&mut self.command(&place.sets)),
            http: http_client(),
            api: format!("http://127.0.0.1:{}", place.api),
        }
    }

    fn command(&self, place: &[String]) -> Command {
        let config = self.rig.dir.path().join("svc-rewarder/config.toml");
        let mut sets = vec![
            "log.level=error".to_owned(),
            format!("auto_settle={}", self.auto_settle),
        ];
        sets.extend_from_slice(place);
        service("svc-rewarder", &config, sets)
    }

    fn call(
        &self,
        to: &Rewarder,
        method: Method,
        path: &str,
        body: Option<(&str, &str)>,
    ) -> Result<Reply, CallError> {
        let bearer = format!("Bearer {}", self.tokens["svc-rewarder"]);
        to.http.call(Call {
            method,
            url: &format!("{}{path}", to.api),
            headers: &[("Authorization", &bearer)],
            body: body.map(|(_, text)| text.as_bytes().to_vec()),
            content_type: body.map(|(kind, _)| kind),
            deadline: Deadline::within(Duration::from_secs(10)),
            idempotent: false,
        })
    }

    /// Each epoch pays usage of its own period; otherwise it would count as paid already.
    fn upload(&self, to: &Rewarder, usage: &str, period: &str) -> Option<String> {
        let reply = self.call(
            to,
            Method::POST,
            &format!("/rewarder/snapshots?period={period}"),
            Some(("text/csv", usage)),
        );
        let reply = reply.ok().filter(Reply::is_success)?;
        let info: Value = serde_json::from_slice(&reply.body).ok()?;
        Some(info["cid"].as_str()?.to_owned())
    }

    fn compute(&self, to: &Rewarder, epoch: &str, cid: &str) -> Option<Reply> {
        self.compute_as(to, epoch, cid, None)
    }

    /// The same, for an epoch that corrects another.
    fn compute_as(
        &self,
        to: &Rewarder,
        epoch: &str,
        cid: &str,
        adjusts: Option<&str>,
    ) -> Option<Reply> {
        let mut body = json_of!({
            "snapshot": cid, "policy_id": self.policy["id"], "policy_hash": self.policy_hash
        });
        if let Some(earlier) = adjusts {
            body["adjusts"] = earlier.into();
        }
        let path = format!("/rewarder/epochs/{epoch}/compute");
        let body = body.to_string();
        self.call(to, Method::POST, &path, Some(("application/json", &body)))
            .ok()
    }

    /// Requests the epoch until it is settled (true) or the process has ended (false).
    fn drive(&self, to: &mut Rewarder, epoch: &str) -> bool {
        let mut asked = false;
        self.until_settled(to, epoch, |to, _| {
            if !asked {
                let cid = self.upload(to, &self.usage, epoch);
                let reply = cid.and_then(|cid| self.compute(to, epoch, &cid));
                asked = reply.is_some_and(|reply| reply.is_success());
            }
        })
    }

    /// The same by way of a withdrawal: the epoch is computed from the wrong usage first.
    fn correct(&self, to: &mut Rewarder, epoch: &str) -> bool {
        let mut cids = [None, None];
        self.until_settled(to, epoch, |to, run| {
            for (cid, usage) in cids.iter_mut().zip([&self.other, &self.usage]) {
                if cid.is_none() {
                    *cid = self.upload(to, usage, epoch);
                }
            }
            let [Some(wrong), Some(right)] = &cids else {
                return;
            };
            let post = |what: &str, body: Option<String>| {
                let path = format!("/rewarder/epochs/{epoch}/{what}");
                let body = body.as_deref().map(|body| ("application/json", body));
                let _ = self.call(to, Method::POST, &path, body);
            };
            match run["state"].as_str() {
                None if run["status"] == 404 => drop(self.compute(to, epoch, wrong)),
                Some("withdrawn") => drop(self.compute(to, epoch, right)),
                Some("sealed") if run["snapshot"] == wrong.as_str() => {
                    let body =
                        json_of!({"commitment": run["commitment"], "reason": "another month"});
                    post("withdraw", Some(body.to_string()));
                }
                Some("sealed") => post("settle", None),
                _ => {}
            }
        })
    }

    /// Pays an epoch for the wrong usage, and corrects it by another one.
    fn adjust(&self, to: &mut Rewarder, epoch: &str) -> bool {
        let base = format!("{epoch}.base");
        self.pay(to, &base, &self.other, None) && self.pay(to, epoch, &self.usage, Some(&base))
    }

    fn pay(&self, to: &mut Rewarder, epoch: &str, usage: &str, adjusts: Option<&str>) -> bool {
        self.until_settled(to, epoch, |to, run| match run["state"].as_str() {
            None if run["status"] == 404 => {
                let cid = self.upload(to, usage, epoch);
                let _ = cid.and_then(|cid| self.compute_as(to, epoch, &cid, adjusts));
            }
            Some("sealed") => {
                let path = format!("/rewarder/epochs/{epoch}/settle");
                let _ = self.call(to, Method::POST, &path, None);
            }
            _ => {}
        })
    }

    /// What is left in the pool.
    fn left(&self) -> u128 {
        let pool = self.policy["pool"]["account"].as_str().unwrap();
        self.balance(&pool.replace(':', "%3A").replace('/', "%2F"))
    }

    /// Calls `act` with what is known of the run until the epoch is settled (true) or the process
    /// has ended (false).
    fn until_settled(
        &self,
        to: &mut Rewarder,
        epoch: &str,
        mut act: impl FnMut(&Rewarder, &Value),
    ) -> bool {
        let began = Instant::now();
        let mut run = Value::Null;
        loop {
            if let Some(status) = to.child.try_wait().unwrap() {
                assert_eq!(status.signal(), Some(9), "{epoch}: it ended by itself");
                return false;
            }
            act(to, &run);
            let path = format!("/rewarder/epochs/{epoch}");
            let reply = self.call(to, Method::GET, &path, None).ok();
            run = reply
                .and_then(|reply| serde_json::from_slice(&reply.body).ok())
                .unwrap_or_default();
            if run["state"] == "settled" {
                return true;
            }
            assert!(
                run["state"] != "failed" && run["state"] != "quarantined",
                "{run}"
            );
            assert!(began.elapsed() < PATIENCE, "{epoch} is not settled: {run}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ledger(&self, path: &str) -> Reply {
        let url = format!("http://127.0.0.1:{}{path}", self.rig.port("ron-ledger"));
        let bearer = format!("Bearer {}", self.tokens["ron-ledger"]);
        let headers = [("Authorization", bearer.as_str())];
        self.rig.patiently(|| {
            let call = Call::get(&url, Deadline::within(Duration::from_secs(10)));
            self.rig.http.call(call.headers(&headers)).unwrap()
        })
    }

    fn closed(&self, epoch: &str) {
        let doc = json(
            &self.ledger(&format!("/v1/ledger/epochs/default/{epoch}")),
            200,
        );
        assert_eq!(doc["state"], "closed", "{epoch}: {doc}");
        assert_eq!(doc["paid_minor"], doc["amount_minor"], "{epoch}: {doc}");
        assert_eq!(doc["next_index"], doc["recipients"], "{epoch}: {doc}");
    }

    /// An account's balance in the policy's asset.
    fn balance(&self, account: &str) -> u128 {
        let doc = json(&self.ledger(&format!("/v1/ledger/accounts/{account}")), 200);
        let balances = doc["balances"].as_array().unwrap();
        let of = balances.iter().find(|b| b["asset"] == self.policy["asset"]);
        of.map_or(0, |b| b["amount_minor"].as_str().unwrap().parse().unwrap())
    }

    fn fund(&self, epochs: u128) -> u128 {
        let pool: u128 = self.policy["pool"]["amount_minor"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let body = json_of!({
            "to": self.policy["pool"]["account"], "asset": self.policy["asset"],
            "amount_minor": pool.to_string()
        });
        for epoch in 0..epochs {
            let key = format!("fund-{epoch}");
            let issue = || {
                self.rig
                    .call(Method::POST, "/v1/issue", Some(&key), Some(&body))
            };
            json(&self.rig.patiently(|| issue().unwrap()), 200);
        }
        pool * epochs
    }

    /// Deletes everything the rewarder has: the ledger refuses other inputs, and the original
    /// inputs are found settled.
    fn forget(&self, running: Rewarder, epoch: &str) -> Rewarder {
        drop(running);
        std::fs::remove_dir_all(self.rig.dir.path().join("svc-rewarder/data")).unwrap();
        let mut private = std::fs::DirBuilder::new();
        private
            .mode(0o700)
            .create(self.rig.dir.path().join("svc-rewarder/data"))
            .unwrap();
        let mut fresh = self.rewarder();
        let began = Instant::now();
        let other = loop {
            if let Some(cid) = self.upload(&fresh, &self.other, epoch) {
                break cid;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "no upload after the loss of all state"
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        let refused = loop {
            let reply = self.compute(&fresh, epoch, &other).unwrap();
            if ![202, 429, 503].contains(&reply.status) {
                break reply;
            }
            assert!(began.elapsed() < PATIENCE, "other inputs are not refused");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(
            (refused.status, code(&refused).as_str()),
            (409, "epoch_conflict")
        );
        assert!(self.drive(&mut fresh, epoch));
        fresh
    }

    /// Every payee of these epochs has exactly this many payouts.
    fn paid_once(&self, to: &Rewarder, epoch: &str, epochs: u128, funded: u128) {
        let (mut from, mut total, mut payees) = (0, 0, 0);
        loop {
            let path = format!("/rewarder/epochs/{epoch}/payouts?from={from}&limit=1000");
            let page = json(&self.call(to, Method::GET, &path, None).unwrap(), 200);
            for payout in page["payouts"].as_array().unwrap() {
                let account = payout["account"].as_str().unwrap();
                let amount: u128 = payout["amount_minor"].as_str().unwrap().parse().unwrap();
                let path = account.replace(':', "%3A").replace('/', "%2F");
                assert_eq!(self.balance(&path), amount * epochs, "{account}");
                (total, payees) = (total + amount, payees + 1);
            }
            match page["next"].as_u64() {
                Some(next) => from = next,
                None => break,
            }
        }
        assert!(payees > 1_000, "more than one batch: {payees}");
        assert_eq!(
            self.left(),
            funded - total * epochs,
            "nothing is made or lost"
        );
        println!("{payees} payees, each paid once in each of {epochs} epochs");
    }
}

/// `count` points over all stages in turn, evenly spaced within each.
fn spread(counts: &[i64], count: usize) -> Vec<(usize, i64)> {
    let stages: Vec<usize> = (0..counts.len()).filter(|s| counts[*s] > 0).collect();
    let rounds = count.div_ceil(stages.len()) as i64;
    let point = |at: usize| {
        let (stage, round) = (stages[at % stages.len()], (at / stages.len()) as i64);
        (
            stage,
            1 + (round * counts[stage] / rounds).min(counts[stage] - 1),
        )
    };
    (0..count).map(point).collect()
}

#[test]
fn points_are_spread_over_every_stage() {
    let points = spread(&[10, 0, 3], 8);
    assert_eq!(
        points,
        [
            (0, 1),
            (2, 1),
            (0, 3),
            (2, 1),
            (0, 6),
            (2, 2),
            (0, 8),
            (2, 3)
        ]
    );
}

#[test]
fn a_kill_in_any_stage_pays_every_payee_once() {
    let mut services = Services::start();
    let count = number("RON_STAGE_KILLS", 20) as usize;
    let funded = services.fund(count as u128 + 2);
    let mut rewarder = services.rewarder();
    // Once to store the snapshot, once to count the operations of each stage.
    assert!(services.drive(&mut rewarder, "stages:first"));
    let all: Vec<(&str, i64)> = STAGES.iter().map(|stage| (*stage, MANY)).collect();
    services.points.set(&all);
    assert!(services.drive(&mut rewarder, "stages:second"));
    let counts: Vec<i64> = (0..STAGES.len())
        .map(|s| MANY - services.points.left(s))
        .collect();
    println!(
        "operations by stage: {:?}",
        STAGES.iter().zip(&counts).collect::<Vec<_>>()
    );
    assert!(
        counts.iter().all(|count| *count > 0),
        "every stage does something: {counts:?}"
    );

    let mut hit = BTreeMap::new();
    for (round, (stage, at)) in spread(&counts, count).into_iter().enumerate() {
        let (epoch, name) = (format!("stages:{round}"), STAGES[stage]);
        services.points.set(&[(name, at)]);
        if !services.drive(&mut rewarder, &epoch) {
            *hit.entry(name).or_insert(0) += 1;
        }
        // Every third time the rewarder is killed once more while it recovers.
        if round % 3 == 2 {
            services.points.set(&[(name, 1 + round as i64 % 7)]);
            rewarder = services.rewarder();
            services.drive(&mut rewarder, &epoch);
        }
        services.points.set(&[]);
        if rewarder.child.try_wait().unwrap().is_some() {
            rewarder = services.rewarder();
        }
        assert!(services.drive(&mut rewarder, &epoch), "{name} {at}");
        services.closed(&epoch);
        if round % 10 == 9 || round + 1 == count {
            rewarder = services.forget(rewarder, &epoch);
            services.closed(&epoch);
        }
    }
    println!("killed by stage: {hit:?} of {count}");
    let missed = count - hit.values().sum::<usize>();
    assert!(missed <= count / 5, "{missed} points were never reached");
    assert_eq!(
        hit.len(),
        STAGES.len(),
        "every stage was killed in: {hit:?}"
    );
    let last = format!("stages:{}", count - 1);
    services.paid_once(&rewarder, &last, count as u128 + 2, funded);
    drop(rewarder);
    services.rig.kill("ron-ledger");
    ok(&ron_on(services.rig.dir.path(), &["ledger", "verify"]));
}

#[test]
fn a_kill_in_any_stage_of_a_withdrawal_pays_the_right_usage_once() {
    let mut services = Services::start();
    services.auto_settle = false;
    let count = number("RON_STAGE_KILLS", 20) as usize / 2;
    let funded = services.fund(count as u128 + 2);
    let mut rewarder = services.rewarder();
    assert!(services.correct(&mut rewarder, "again:first"));
    let all: Vec<(&str, i64)> = STAGES.iter().map(|stage| (*stage, MANY)).collect();
    services.points.set(&all);
    assert!(services.correct(&mut rewarder, "again:second"));
    let counts: Vec<i64> = (0..STAGES.len())
        .map(|s| MANY - services.points.left(s))
        .collect();
    let mut hits = 0;
    for (round, (stage, at)) in spread(&counts, count).into_iter().enumerate() {
        let (epoch, name) = (format!("again:{round}"), STAGES[stage]);
        services.points.set(&[(name, at)]);
        hits += usize::from(!services.correct(&mut rewarder, &epoch));
        services.points.set(&[]);
        if rewarder.child.try_wait().unwrap().is_some() {
            rewarder = services.rewarder();
        }
        assert!(services.correct(&mut rewarder, &epoch), "{name} {at}");
        services.closed(&epoch);
    }
    println!("{hits} kills in {count} withdrawals");
    assert!(hits + count / 5 >= count, "too few points were reached");
    let last = format!("again:{}", count - 1);
    services.paid_once(&rewarder, &last, count as u128 + 2, funded);
    drop(rewarder);
    services.rig.kill("ron-ledger");
    ok(&ron_on(services.rig.dir.path(), &["ledger", "verify"]));
}

#[test]
fn a_kill_in_any_stage_of_a_correction_pays_the_differences_once() {
    let mut services = Services::start();
    services.auto_settle = false;
    let count = number("RON_STAGE_KILLS", 20) as usize / 2;
    let funded = services.fund(2 * (count as u128 + 2));
    let mut rewarder = services.rewarder();
    assert!(services.adjust(&mut rewarder, "fix:first"));
    // What an epoch and its correction pay, without a kill.
    let each = funded - services.left();
    let all: Vec<(&str, i64)> = STAGES.iter().map(|stage| (*stage, MANY)).collect();
    services.points.set(&all);
    assert!(services.adjust(&mut rewarder, "fix:second"));
    let counts: Vec<i64> = (0..STAGES.len())
        .map(|s| MANY - services.points.left(s))
        .collect();
    let mut hits = 0;
    for (round, (stage, at)) in spread(&counts, count).into_iter().enumerate() {
        let (epoch, name) = (format!("fix:{round}"), STAGES[stage]);
        services.points.set(&[(name, at)]);
        hits += usize::from(!services.adjust(&mut rewarder, &epoch));
        services.points.set(&[]);
        if rewarder.child.try_wait().unwrap().is_some() {
            rewarder = services.rewarder();
        }
        assert!(services.adjust(&mut rewarder, &epoch), "{name} {at}");
        services.closed(&epoch);
    }
    println!("{hits} kills in {count} corrections");
    assert!(hits + count / 5 >= count, "too few points were reached");
    let spent = each * (count as u128 + 2);
    assert_eq!(services.left(), funded - spent, "nothing is made or lost");
    drop(rewarder);
    services.rig.kill("ron-ledger");
    ok(&ron_on(services.rig.dir.path(), &["ledger", "verify"]));
    ok(&ron_on(services.rig.dir.path(), &["rewarder", "verify"]));
}
