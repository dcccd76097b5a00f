//! The whole service over real sockets: scopes, bad input, feed, history, proofs, restart, offline check.

use std::path::Path;
use std::time::Duration;

use ron_auth::service_token;
use ron_http::{Call, ClientConfig, HttpClient};
use ron_kernel::Deadline;
use ron_proto::ledger::{
    AccountDoc, CommitAnswer, CommitRequest, Entry, EntryAnswer, EntryPage, EventPage, Head,
    RefusalCode,
};
use ron_proto::{Amount, ProblemBody};
use ron_service::{Config, Parts, Running};
use ron_tlog::VerifierKey;
use serde::de::DeserializeOwned;

use super::support::*;
use crate::settings::TABLE;
use crate::verify::{Fault, verify_dir};

pub(super) struct Rig {
    running: Running,
    client: HttpClient,
    tokens: [(&'static str, String); 6],
}

pub(super) fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(10))
}

pub(super) fn rig(dir: &Path) -> Rig {
    rig_with(dir, "uds_only = true\n")
}

fn rig_with(dir: &Path, more: &str) -> Rig {
    let tokens = [
        ("wallet", "ron", "ledger:commit,ledger:read"),
        ("rewarder", "ron", "ledger:settle,ledger:read"),
        ("reader", "ron", "ledger:read"),
        ("of-t", "t", "ledger:read"),
        ("of-u", "u", "ledger:read,ledger:commit,ledger:settle"),
        ("auditor", "u", "ledger:read,ledger:audit"),
    ]
    .map(|(name, tenant, scopes)| {
        (
            name,
            tenant,
            scopes,
            service_token::generate(name, &[name.len() as u8; 32]),
        )
    });
    let mut toml = format!(
        "data_dir = \"{}\"\nuds_path = \"{}\"\n{more}",
        dir.display(),
        dir.join("run/api.sock").display()
    );
    for (name, tenant, scopes, token) in &tokens {
        let scopes: Vec<String> = scopes.split(',').map(|s| format!("\"{s}\"")).collect();
        toml.push_str(&format!(
            "[[auth.principals]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nscopes = [{}]\nsha256 = \"{}\"\n",
            scopes.join(","),
            service_token::hash(token)
        ));
    }
    let config = Config::load(
        &TABLE,
        Some((Path::new("test.toml"), toml.as_str())),
        &|_| None,
        &[],
    )
    .unwrap();
    let running =
        ron_service::start::<crate::RonLedger>(config, Parts::ephemeral("ron-ledger").unwrap())
            .unwrap();
    running.wait_ready(soon()).unwrap();
    Rig {
        running,
        client: HttpClient::new(ClientConfig::default()),
        tokens: tokens.map(|(n, _, _, t)| (n, t)),
    }
}

impl Rig {
    /// A read that needs an entry which the projection lacks on a busy machine is repeated.
    pub(super) fn send(&self, who: &str, path: &str, body: Option<String>) -> (u16, Vec<u8>) {
        let (read, limit) = (body.is_none(), soon());
        loop {
            let (status, answer) = self.send_once(who, path, body.clone());
            if !read || status != 503 || limit.expired() {
                return (status, answer);
            }
        }
    }

    fn send_once(&self, who: &str, path: &str, body: Option<String>) -> (u16, Vec<u8>) {
        let url = format!("{}{path}", self.running.api_url());
        let token = self
            .tokens
            .iter()
            .find(|(n, _)| *n == who)
            .map(|(_, t)| format!("Bearer {t}"));
        let headers: Vec<(&str, &str)> = token
            .iter()
            .map(|t| ("authorization", t.as_str()))
            .collect();
        let call = match body {
            Some(body) => Call::post_json(&url, body.into_bytes(), soon()),
            None => Call::get(&url, soon()),
        };
        let reply = self.client.call(call.headers(&headers)).unwrap();
        (reply.status, reply.body)
    }

    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        let (status, body) = self.send("reader", path, None);
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    fn commit_as(&self, who: &str, entries: Vec<Entry>) -> Result<Vec<EntryAnswer>, (u16, String)> {
        let body = serde_json::to_string(&CommitRequest {
            entries,
            linked: false,
            batch: false,
        })
        .unwrap();
        let (status, body) = self.send(who, "/v1/ledger/commit", Some(body));
        if status == 200 {
            return Ok(serde_json::from_slice::<CommitAnswer>(&body)
                .unwrap()
                .results);
        }
        Err((
            status,
            serde_json::from_slice::<ProblemBody>(&body).unwrap().code,
        ))
    }

    pub(super) fn commit(&self, entries: Vec<Entry>) -> Vec<EntryAnswer> {
        self.commit_as("wallet", entries).unwrap()
    }

    fn wait_checkpoint(&self, seq: u64) {
        let limit = soon();
        while self.get::<Head>("/v1/ledger/head").checkpoint_size <= seq {
            assert!(!limit.expired(), "no checkpoint in time");
            let (_keep, never) = ron_kernel::Shutdown::pair();
            never.wait(Deadline::within(Duration::from_millis(50)));
        }
    }
}

#[test]
fn commits_reads_feed_history_and_proofs() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let got = rig.commit(vec![
        issue("i", "acc:a/1", 100),
        transfer("t", "acc:a/1", "acc:b", 30, 1),
        transfer("u", "acc:a/1", "acc:b", 1, 1),
    ]);
    assert!(got[0].receipt().is_some() && got[1].receipt().is_some());
    assert!(matches!(
        got[2],
        EntryAnswer::Refused {
            code: RefusalCode::NonceConflict,
            expected: Some(2),
            seq: None,
            ..
        }
    ));
    let doc: AccountDoc = rig.get("/v1/ledger/accounts/acc%3Aa%2F1");
    assert_eq!(
        (doc.nonce, doc.balances[0].amount_minor.0, doc.seq),
        (1, 70, 2),
        "a nonce conflict has no leaf"
    );
    let page: EventPage = rig.get("/v1/ledger/events?after=0");
    assert_eq!((page.events.len(), page.next, page.head), (2, 2, 2));
    assert_eq!(
        page.events
            .iter()
            .map(|e| e.answer.clone())
            .collect::<Vec<_>>(),
        got[..2]
    );
    let txid = got[1].receipt().unwrap().txid;
    let by_tx: ron_proto::ledger::Event = rig.get(&format!("/v1/ledger/tx/{txid}"));
    let by_key: ron_proto::ledger::Event = rig.get("/v1/ledger/by-key/t/p/t");
    assert_eq!((by_tx.seq, &by_tx), (2, &by_key));
    for missing in [
        "/v1/ledger/tx/tx_00000000000000020000000000000000",
        "/v1/ledger/by-key/t/p/none",
        "/v1/ledger/epochs/t/none",
    ] {
        assert_eq!(rig.send("reader", missing, None).0, 404, "{missing}");
    }
    let history: EntryPage = rig.get("/v1/ledger/entries?account=acc%3Ab&min_seq=2");
    let seqs: Vec<u64> = history.entries.iter().map(|e| e.event.seq).collect();
    assert_eq!((seqs, history.newer), (vec![2], 2));
    let (status, body) = rig.send("reader", "/v1/ledger/entries?min_seq=3", None);
    let said = String::from_utf8(body).unwrap();
    assert!(status == 400 && said.contains("no entry 3 yet"), "{said}");
    rig.wait_checkpoint(2);
    let (status, proof) = rig.send("", "/log/v1/proof/2", None);
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&proof));
    assert!(
        String::from_utf8(proof)
            .unwrap()
            .starts_with("c2sp.org/tlog-proof@v1\n")
    );
}

#[test]
fn a_tenant_reads_what_belongs_to_it_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let got = rig.commit(vec![
        issue("i", "pool:t/x", 100),
        issue("j", "acc", 100),
        hold("h", "acc", 5, 1, 4_000_000_000_000),
    ]);
    let settle = vec![epoch_open("e", "pool:t/x", 10, 1, 1)];
    rig.commit_as("rewarder", settle).unwrap();
    let of_u = ron_proto::ledger::Entry::Issue {
        tenant: "u".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: "u".parse().unwrap(),
        to: "acc".parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: ron_proto::Amount(7),
        details: ron_proto::ledger::Details::default(),
        batch: None,
        budgets: vec![],
    };
    rig.commit(vec![of_u]);
    let hold = got[2].receipt().unwrap().txid;
    let seqs = |who: &str, path: &str| {
        let (status, body) = rig.send(who, path, None);
        assert_eq!(status, 200, "{who}: {path}");
        let page: EventPage = serde_json::from_slice(&body).unwrap();
        assert_eq!(page.next, 5, "{who}: {path}");
        page.events.iter().map(|e| e.seq).collect::<Vec<_>>()
    };
    let history = "/v1/ledger/entries?account=acc&min_seq=5";
    let found = |who: &str| {
        let (status, body) = rig.send(who, history, None);
        assert_eq!(status, 200, "{who}");
        let page: EntryPage = serde_json::from_slice(&body).unwrap();
        let balances = page.entries.iter().any(|e| e.balance_minor.is_some());
        let seqs = page.entries.iter().rev().map(|e| e.event.seq);
        (seqs.collect::<Vec<_>>(), balances)
    };
    for (who, events, of_account) in [
        ("reader", vec![1, 2, 3, 4, 5], vec![2, 3, 5]),
        ("auditor", vec![1, 2, 3, 4, 5], vec![2, 3, 5]),
        ("of-t", vec![1, 2, 3, 4], vec![2, 3]),
        ("of-u", vec![5], vec![5]),
    ] {
        assert_eq!(seqs(who, "/v1/ledger/events?after=0"), events, "{who}");
        assert_eq!(
            found(who),
            (of_account, ["reader", "auditor"].contains(&who))
        );
        let status = |path: &str| rig.send(who, path, None).0;
        let reads = |yes: bool| if yes { 200 } else { 404 };
        let (all, of_t) = (["reader", "auditor"].contains(&who), who != "of-u");
        assert_eq!(
            status(&format!("/v1/ledger/tx/{hold}")),
            reads(of_t),
            "{who}"
        );
        assert_eq!(
            status(&format!("/v1/ledger/holds/{hold}")),
            reads(of_t),
            "{who}"
        );
        assert_eq!(
            status(&format!("/v1/ledger/tx/{hold}/reversals")),
            reads(of_t),
            "{who}"
        );
        let budget = format!("/v1/ledger/budgets/{}", "07".repeat(16));
        assert_eq!(status(&budget), reads(all), "{who}");
        assert_eq!(status("/v1/ledger/by-key/t/p/h"), reads(of_t), "{who}");
        assert_eq!(
            status("/v1/ledger/by-key/u/p/u"),
            reads(who != "of-t"),
            "{who}"
        );
        assert_eq!(status("/v1/ledger/epochs/t/e"), reads(of_t), "{who}");
        assert_eq!(
            status("/v1/ledger/accounts/pool%3At%2Fx"),
            reads(of_t),
            "{who}"
        );
        assert_eq!(status("/v1/ledger/accounts/acc"), reads(all), "{who}");
        let audits = if who == "auditor" { 200 } else { 403 };
        assert_eq!(status("/log/v1/tile/entries/000.p/1"), audits, "{who}");
    }
    let refused = |path: &str, body: &str| {
        let (status, body) = rig.send("of-u", path, Some(body.to_owned()));
        let text = String::from_utf8(body).unwrap();
        assert!(
            status == 403 && text.contains("tenant ron"),
            "{status} {text}"
        );
    };
    let entry = serde_json::to_string(&transfer("k", "acc", "b", 1, 2)).unwrap();
    refused("/v1/ledger/commit", &format!("{{\"entries\":[{entry}]}}"));
    let open = serde_json::to_string(&epoch_open("f", "pool:t/x", 10, 1, 1)).unwrap();
    refused("/v1/ledger/commit", &format!("{{\"entries\":[{open}]}}"));
    let key = r#"{"tenant":"t","principal":"p","key":"next"}"#;
    refused("/v1/ledger/resolve", key);
    assert_eq!(
        rig.get::<Head>("/v1/ledger/head").seq,
        5,
        "nothing was written"
    );
}

#[test]
fn a_tenants_long_poll_waits_for_an_entry_of_the_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    rig.commit(vec![issue("i", "a", 1)]);
    let pause = || {
        let (_keep, never) = ron_kernel::Shutdown::pair();
        never.wait(Deadline::within(Duration::from_millis(300)));
    };
    let pages = ron_kernel::scoped(2, |i| {
        if i == 0 {
            let (status, body) = rig.send("of-u", "/v1/ledger/events?after=0&wait=2", None);
            assert_eq!(status, 200);
            return Some(serde_json::from_slice::<EventPage>(&body).unwrap());
        }
        for key in ["j", "k"] {
            pause();
            rig.commit(vec![issue(key, "a", 1)]);
        }
        None
    });
    let page = pages[0].as_ref().unwrap();
    assert_eq!((page.events.len(), page.next, page.head), (0, 3, 3));
    // Also a page that ends before the head is answered at once: the caller continues from there.
    let (_, body) = rig.send("of-u", "/v1/ledger/events?after=0&limit=1&wait=30", None);
    let page: EventPage = serde_json::from_slice(&body).unwrap();
    assert_eq!((page.events.len(), page.next, page.head), (0, 1, 3));
}

#[test]
fn a_long_poll_is_answered_when_something_comes() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let pages = ron_kernel::scoped(2, |i| {
        if i == 0 {
            return Some(rig.get::<EventPage>("/v1/ledger/events?after=0&wait=8"));
        }
        let (_keep, never) = ron_kernel::Shutdown::pair();
        never.wait(Deadline::within(Duration::from_millis(200)));
        rig.commit(vec![issue("i", "a", 1)]);
        None
    });
    assert_eq!(pages[0].as_ref().unwrap().events.len(), 1);
    let empty: EventPage = rig.get("/v1/ledger/events?after=1&wait=1");
    assert_eq!((empty.events.len(), empty.next), (0, 1));
    // Beyond the head there is nothing to wait for: the reader followed a different ledger.
    let beyond: EventPage = rig.get("/v1/ledger/events?after=9&wait=30");
    assert_eq!((beyond.next, beyond.head), (1, 1));
}

#[test]
fn scopes_pools_and_bad_input() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    rig.commit(vec![issue("i", "pool:t/x", 100), issue("j", "acc", 100)]);
    let denied = |who: &str, e: Entry| {
        assert_eq!(
            rig.commit_as(who, vec![e]).unwrap_err(),
            (403, "forbidden".to_owned()),
            "{who}"
        );
    };
    denied("reader", issue("k", "a", 1));
    denied("rewarder", issue("k", "a", 1));
    denied("rewarder", transfer("k", "acc", "b", 1, 1));
    denied("wallet", epoch_open("e", "pool:t/x", 10, 1, 1));
    denied("rewarder", epoch_open("e", "acc", 10, 1, 1));
    // Whatever the prefixes allow, the core funds an epoch only from pools of its tenant.
    let foreign = rig.commit_as("rewarder", vec![epoch_open("e", "pool:u/x", 10, 1, 1)]);
    assert_eq!(foreign.unwrap_err(), (400, "bad_request".to_owned()));
    let settled = rig
        .commit_as(
            "rewarder",
            vec![
                epoch_open("e", "pool:t/x", 10, 1, 1),
                payout("e", 0, "a", 10),
                epoch_close("e", 1),
            ],
        )
        .unwrap();
    assert!(settled.iter().all(|a| a.receipt().is_some()), "{settled:?}");
    let epoch: ron_proto::ledger::EpochDoc = rig.get("/v1/ledger/epochs/t/e");
    assert_eq!((epoch.paid_minor.0, epoch.closed_seq), (10, Some(5)));
    let good = serde_json::to_string(&transfer("k", "acc", "b", 1, 1)).unwrap();
    let bad = |body: String| {
        let (status, text) = rig.send("wallet", "/v1/ledger/commit", Some(body.clone()));
        assert_eq!(status, 400, "{body} -> {}", String::from_utf8_lossy(&text));
    };
    for amount in [
        "0",
        "-1",
        "1.5",
        "",
        "01",
        "9999999999999999999999999999999999999999",
        "340282366920938463463374607431768211456",
    ] {
        bad(format!(
            "{{\"entries\":[{}]}}",
            good.replace(
                "\"amount_minor\":\"1\"",
                &format!("\"amount_minor\":\"{amount}\"")
            )
        ));
    }
    bad(format!(
        "{{\"entries\":[{}]}}",
        good.replace("\"amount_minor\":\"1\"", "\"amount_minor\":1")
    ));
    bad(format!(
        "{{\"entries\":[{}]}}",
        good.replace("\"nonce\":1", "\"nonce\":1,\"nonce\":1")
    ));
    bad(format!(
        "{{\"entries\":[{}]}}",
        good.replace("\"nonce\":1", "\"nonce\":1,\"colour\":\"red\"")
    ));
    bad(format!(
        "{{\"entries\":[{}]}}",
        good.replace("\"to\":\"b\"", "\"to\":\"acc\"")
    ));
    bad("{\"entries\":[]}".to_owned());
    bad(format!(
        "{{\"entries\":[{}]}}",
        vec![good.as_str(); 1_001].join(",")
    ));
    bad("{".to_owned());
    assert_eq!(rig.send("nobody", "/v1/ledger/accounts/a", None).0, 401);
    assert_eq!(rig.send("reader", "/v1/ledger/events?after=x", None).0, 400);
    assert_eq!(
        rig.get::<Head>("/v1/ledger/head").seq,
        5,
        "nothing of this left a trace"
    );
}

#[test]
fn a_restart_changes_nothing_and_the_offline_check_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let first = {
        let mut rig = rig(dir.path());
        rig.commit(vec![issue("i", "a", 100)]);
        for n in 1..=40 {
            rig.commit(vec![transfer(&format!("t{n}"), "a", "b", 1, n)]);
        }
        let answer = rig.commit(vec![transfer("t7", "a", "b", 1, 7)]);
        let report = rig.running.drain(Duration::from_secs(5));
        assert!(report.stragglers.is_empty(), "{:?}", report.stragglers);
        answer
    };
    let vkey = VerifierKey::parse(
        &std::fs::read_to_string(dir.path().join(ron_service::log_host::note_key::VKEY_FILE))
            .unwrap(),
    )
    .unwrap();
    let check = || verify_dir(dir.path(), &vkey, &mut |_, _| {});
    let report = check().unwrap();
    assert_eq!(
        (report.entries, report.checkpoint_size, report.keys),
        (41, 42, 41)
    );
    assert_eq!(
        (report.assets[0].issued, report.assets[0].circulating),
        (100, 100)
    );
    let rig = rig(dir.path());
    assert_eq!(rig.commit(vec![transfer("t7", "a", "b", 1, 7)]), first);
    assert_eq!(check().unwrap(), report, "also beside a running ledger");
    drop(rig);
    let segment = dir.path().join("log/00000000.seg");
    let good = std::fs::read(&segment).unwrap();
    for at in [good.len() / 3, good.len() / 2, good.len() - 60] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&segment, &bad).unwrap();
        let fault = check().unwrap_err();
        assert!(
            !matches!(&fault, Fault::Whole(why) if why.is_empty()),
            "{fault}"
        );
    }
    std::fs::write(&segment, &good).unwrap();
    check().unwrap();
}

#[test]
fn threads_and_queues_are_those_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let live: Vec<String> = rig
        .running
        .supervisor()
        .planes()
        .into_iter()
        .map(|p| p.name.to_owned())
        .collect();
    for row in crate::topology::TOPOLOGY.threads {
        // A pool's row has the name's stem.
        let name = row.name.trim_end_matches('-');
        assert!(live.iter().any(|p| p == name), "{name} is not in {live:?}");
    }
}

#[test]
fn an_entry_with_which_a_sum_would_pass_128_bits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    // The most that may ever be issued.
    let all = u128::MAX - 1_000_000_000;
    let answers = rig.commit(vec![
        issue("i", "a", all),
        transfer("t1", "a", "b", 1_000_000_000, 1),
        transfer("t2", "a", "b", 1, 2),
    ]);
    let code = |answer: &EntryAnswer| match answer {
        EntryAnswer::Done { .. } => None,
        EntryAnswer::Refused { code, .. } => Some(*code),
    };
    let codes: Vec<_> = answers.iter().map(code).collect();
    assert_eq!(codes, [None, None, Some(RefusalCode::AmountOverflow)]);
    let page: EntryPage = rig.get("/v1/ledger/entries?account=b&min_seq=3");
    let seen = page.entries.iter();
    let seen: Vec<_> = seen.map(|e| (e.event.seq, e.balance_minor)).collect();
    let after = Some(Amount(1_000_000_000).into());
    assert_eq!(seen, [(3, after), (2, after)]);
}

/// Status and reason of the answer to a service token that is sent to this base URL.
fn shown_at(rig: &Rig, base: &str) -> (u16, String) {
    let client = HttpClient::new(ClientConfig {
        insecure_loopback: true, // so that our own client sends it at all
        ..ClientConfig::default()
    });
    let bearer = format!("Bearer {}", rig.tokens[2].1);
    let url = format!("{base}/v1/ledger/events?after=0");
    let headers = [("authorization", bearer.as_str())];
    let reply = client
        .call(Call::get(&url, soon()).headers(&headers))
        .unwrap();
    let details = reply.problem().and_then(|problem| problem.details);
    let reason = details.map(|details| details["reason"].as_str().unwrap().to_owned());
    (reply.status, reason.unwrap_or_default())
}

#[test]
fn service_tokens_count_at_the_socket_of_services_alone() {
    let dir = tempfile::tempdir().unwrap();
    let programs = dir.path().join("programs/client.sock");
    let client_socket = format!("client_uds_path = \"{}\"\n", programs.display());
    let refused = |reason: &str| (401, reason.to_owned());
    let good = (200, String::new());
    let over = |path: &Path| format!("unix:{}:", path.display());
    for insecure in [false, true] {
        let data = dir.path().join(format!("data-{insecure}"));
        let more = format!("insecure_loopback = {insecure}\n{client_socket}");
        let rig = rig_with(&data, &more);
        let services = rig.running.unix_path().unwrap();
        assert_eq!(shown_at(&rig, &over(services)), good);
        let plain = if insecure {
            good.clone()
        } else {
            refused("plain_tcp")
        };
        assert_eq!(shown_at(&rig, &rig.running.api_url()), plain);
        assert_eq!(
            shown_at(&rig, &over(&programs)),
            refused("client_socket"),
            "never"
        );
        let version = format!("{}/version", over(&programs));
        let public = rig.client.call(Call::get(&version, soon())).unwrap();
        assert_eq!(public.status, 200);
    }
}
