//! `kill -9` at random moments while the demo and a paying client run: nothing acknowledged is
//! lost, nothing is paid twice, and the demo finishes in the end.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ron_kernel::Deadline;
use ron_proto::ledger::Receipt;
use ron_proto::wallet::IssueMoney;
use ron_tests::{Fleet, ok, ron_binary};

/// Kill rounds; `RON_KILL_ROUNDS` makes it a long lane.
fn rounds() -> u64 {
    std::env::var("RON_KILL_ROUNDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(50)
}

/// Small, seeded, printed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_paid_twice() {
    let seed = std::env::var("RON_SEED").ok().and_then(|v| v.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
            | 1
    });
    println!("seed {seed} (RON_SEED={seed} repeats the moments)");
    let mut rng = Rng(seed);
    let mut fleet = Fleet::start();
    let mut journal: Vec<(String, Receipt)> = Vec::new();
    for round in 0..rounds() {
        let mut demo = Command::new(ron_binary())
            .args(["demo", "--json", "--data-dir"])
            .arg(fleet.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Duration::from_millis(20 + rng.below(1_200));
        pay_until(&fleet, round, until, &mut journal);
        fleet.kill();
        let _ = demo.kill();
        let _ = demo.wait();
        let dir = fleet.keep_dir();
        fleet = Fleet::start_in(dir);
    }
    println!(
        "{} acknowledged receipts over {} kills",
        journal.len(),
        rounds()
    );
    let wallet = fleet.wallet();
    for (key, receipt) in &journal {
        let mut found = wallet.tx(receipt.txid, Deadline::within(Duration::from_secs(5)));
        // The caller's rate is limited; asking again is what it says to do.
        while matches!(&found, Err(e) if e.code() == Some("rate_limited")) {
            std::thread::sleep(Duration::from_millis(50));
            found = wallet.tx(receipt.txid, Deadline::within(Duration::from_secs(5)));
        }
        assert_eq!(
            found.as_ref(),
            Ok(receipt),
            "{key}: an acknowledged receipt is missing or differs"
        );
    }
    let paid = ok(&fleet.ron(&["demo", "--json"]));
    assert_eq!(paid.lines().count(), 5, "{paid}");
    assert_eq!(
        ok(&fleet.ron(&["demo", "--json"])),
        paid,
        "nothing more is paid"
    );
    for check in [
        ["audit", "verify"],
        ["ledger", "verify"],
        ["rewarder", "verify"],
    ] {
        ok(&fleet.ron(&check));
    }
}

/// Pays one unit after the other; only what was answered goes into the journal.
fn pay_until(fleet: &Fleet, round: u64, until: Duration, journal: &mut Vec<(String, Receipt)>) {
    let end = Deadline::within(until);
    let wallet = fleet.wallet();
    for n in 0_u32.. {
        if end.expired() {
            return;
        }
        let key = format!("kill-{round}-{n}");
        let request = IssueMoney {
            to: "acct:journal".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: ron_proto::Amount(1),
            memo: None,
        };
        let answer = wallet.issue(
            &key.parse().unwrap(),
            &request,
            Deadline::within(Duration::from_secs(2)),
        );
        if let Ok(receipt) = answer {
            journal.push((key, receipt));
        }
    }
}
