//! What must hold at the end: promises, logs, memory, threads, descriptors.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ron_http::Call;
use ron_kernel::Deadline;
use ron_kms::{Leaf, kept_keys};
use ron_tests::{ok, read_json, ron_on};

use super::load::{EPOCH_PAYS, Load};
use super::rig::Use;

/// A revocation that a service does not know by then is lost, also at a service that has just
/// started.
const SPREAD: Duration = Duration::from_secs(60);
/// Number of receipts that are read again; of more, evenly spaced ones.
const RECEIPTS: usize = 600;
const MIB: u64 = 1 << 20;
/// What a process may accumulate after the warm-up: answers it must repeat, tokens it has verified.
/// One client secret may be under check at that moment, with 19 MiB.
const LEARNT: u64 = 24 * MIB;

fn within() -> Deadline {
    Deadline::within(Duration::from_secs(10))
}

/// Receipts, balances, epochs and revocations, as the services report them.
pub fn promises_were_kept(load: &Load<'_>) {
    let promised = load.promised.lock().unwrap();
    assert!(promised.epochs > 0 && !promised.signatures.is_empty() && !promised.revoked.is_empty());
    let step = promised.receipts.len().div_ceil(RECEIPTS).max(1);
    for receipt in promised.receipts.iter().step_by(step) {
        let mut found = load
            .until_answered(|| load.wallet().tx(receipt.receipt.txid, within()))
            .expect("an acknowledged receipt");
        let now = found.now.take().expect("what has become of it");
        assert_eq!(&found, receipt, "an acknowledged receipt differs");
        assert!(
            now.reversals.is_empty(),
            "nothing is reversed here: {now:?}"
        );
    }
    let mut owed = promised.balances.clone();
    let asset = |account: &str| if account.contains(":r") { "pts" } else { "ron" };
    let paid = EPOCH_PAYS * u128::from(promised.epochs);
    owed.insert("acct:r1".into(), paid / 4 * 3);
    owed.insert("acct:r2".into(), paid / 4);
    for (account, amount) in &owed {
        let (name, asset) = (account.parse().unwrap(), asset(account).parse().unwrap());
        let has = load.until_answered(|| load.wallet().balance(&name, &asset, None, within()));
        assert_eq!(has.unwrap().amount_minor.0, *amount, "{account}");
    }
    let url = format!(
        "{}/v1/balance?account=acct:payer0&asset=ron",
        load.rig.api("svc-wallet")
    );
    let since = Instant::now();
    for token in &promised.revoked {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        loop {
            let reply = load
                .rig
                .http
                .call(Call::get(&url, within()).headers(&headers))
                .unwrap();
            match reply.status {
                401 => break,
                200 => assert!(since.elapsed() < SPREAD, "a revoked token is accepted"),
                429 | 503 => {}
                status => panic!("a revoked token got {status}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let fresh = load.new_token("svc-wallet", Some("wallet:read"));
    let bearer = format!("Bearer {fresh}");
    let headers = [("Authorization", bearer.as_str())];
    let reply = load
        .rig
        .http
        .call(Call::get(&url, within()).headers(&headers))
        .unwrap();
    assert_eq!(reply.status, 200, "a fresh token is refused");
}

/// Offline, from the files alone.
pub fn logs_verify(load: &Load<'_>) {
    let dir = load.rig.path();
    for check in [
        ["audit", "verify"],
        ["ledger", "verify"],
        ["rewarder", "verify"],
    ] {
        println!(
            "{}",
            ok(&ron_on(dir, &check)).lines().next().unwrap_or_default()
        );
    }
    let stat = ok(&ron_on(dir, &["ledger", "stat", "--json"]));
    let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
    let number = |v: &serde_json::Value| v.as_str().unwrap().parse::<u128>().unwrap();
    for asset in stat["assets"].as_array().unwrap() {
        let (issued, burned) = (
            number(&asset["issued_minor"]),
            number(&asset["burned_minor"]),
        );
        assert_eq!(
            issued - burned,
            number(&asset["circulating_minor"]),
            "{asset}"
        );
    }
    let vkey = read_json(&dir.join("verifiers.json"))["audit_vkey"].clone();
    let pin = vkey.as_str().unwrap().parse().unwrap();
    let mut outputs = Vec::new();
    let mut on_entry = |_: u64, bytes: &[u8], _: &[u8]| {
        outputs.push(Leaf::parse(bytes)?.output_sha256);
        Ok(())
    };
    let log = dir.join("ron-kms/data/audit");
    // The pinned key no longer signs: the newest of its successors does.
    let keys = kept_keys(&log, &pin).unwrap();
    ron_tlog::verify_dir(&log, keys.last().unwrap(), &mut on_entry, &mut |_, _| {}).unwrap();
    for (index, signature) in &load.promised.lock().unwrap().signatures {
        let leaf = outputs.get(*index as usize).cloned().flatten();
        let hash = hex::encode(ron_crypto::hash::sha256(signature));
        assert_eq!(
            leaf,
            Some(hash),
            "leaf {index}: a signature is missing or differs"
        );
    }
}

/// No process uses more than after the warm-up, except for what it accumulates while working, and
/// none grows while the load is constant.
pub fn flat(
    warm: &BTreeMap<&'static str, Use>,
    calm: &BTreeMap<&'static str, Use>,
    end: &BTreeMap<&'static str, Use>,
) {
    for (name, end) in end {
        let (warm, calm) = (warm[name], calm[name]);
        let most = warm.rss + warm.rss / 4 + LEARNT;
        assert!(
            end.rss <= most,
            "{name}: {} MiB after the warm-up, {} at the end",
            warm.rss / MIB,
            end.rss / MIB
        );
        let most = calm.rss + calm.rss / 8 + 8 * MIB;
        assert!(
            end.rss <= most,
            "{name}: {} MiB grew to {} in the calm",
            calm.rss / MIB,
            end.rss / MIB
        );
        assert!(
            end.threads <= warm.threads + 1,
            "{name}: {} threads, then {}",
            warm.threads,
            end.threads
        );
        assert!(
            end.fds <= warm.fds + 24,
            "{name}: {} descriptors, then {}",
            warm.fds,
            end.fds
        );
    }
}
