//! The issuer and its KMS, unchanged, with a ledger that verifies what the issuer gives: whatever the network, kills, power cuts and
//! operators do, no token is accepted that the issuer did not give or whose revocation has reached the verifier, no revocation that
//! was acknowledged comes back, and no signature is without its leaf.

mod actors;
mod check;
mod durable;
mod follower;
mod lists;
mod policy;
mod proofs;
mod services;
mod tokens;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_kms::Leaf;
use ron_proto::kms::AuditEntries;
use ron_sim::thread::JoinHandle;
use ron_sim::{ensure, thread, time};

use crate::chance::{ms, one_of};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::money::services::Process;
use crate::net::{SimNet, Weather};
use actors::{Actor, End, Shared, seen};
use check::Evidence;
use follower::Follower;
use policy::Change;
use services::{Keys, Tokens};

const VERIFIER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));
const ISSUER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 3));
const KMS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 5));
/// The OAuth client, and the caller of the issuer's own interface.
const CLIENT: &str = "shop";
const TELLER: &str = "teller";
/// The client whose rule of the policy comes and goes.
const GUEST: &str = "guest";
/// Longest time of one call.
const CALL: Duration = Duration::from_secs(3);
/// Clients that get tokens and use them.
const CLIENTS: u8 = 3;
/// Acts of each client, and of the operator, on a good network.
const ACTS: usize = 50;
const OPERATIONS: usize = 25;
/// Within which everything works, without faults.
const RECOVERY: Duration = Duration::from_secs(10);

fn issuer_url() -> String {
    format!("http://{ISSUER}:80")
}

/// A network without faults: some answers are slow.
fn good_weather() -> Weather {
    Weather {
        slow_segments: one_of([0, 20_000, 200_000]),
        slow: ms(20),
        ..Weather::default()
    }
}

/// A token is given, accepted and revoked before this moment.
fn works_before(actor: &Actor, at: Instant) {
    while actor.get() != Some(End::Accepted) || !actor.takes_back() {
        ensure(
            time::now() < at,
            "a new token is accepted, and revoked, in time",
        );
        time::sleep(ms(200));
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::spawn_named(name.to_owned(), body).expect("a thread")
}

/// The KMS's leaves about the issuer's signatures.
fn leaves(http: &HttpClient, by: Instant) -> BTreeMap<u64, Leaf> {
    let keeper = format!("Bearer {}", Tokens::written().keeper);
    let (mut all, mut after) = (BTreeMap::new(), 0);
    loop {
        let url = format!("http://{KMS}:80/v1/kms/audit/entries?after={after}&limit=200");
        let headers = [("Authorization", keeper.as_str())];
        let reply = http.call(Call {
            headers: &headers,
            ..Call::get(&url, Deadline::within(CALL))
        });
        let Some(reply) = reply.ok().filter(|reply| reply.status == 200) else {
            ensure(time::now() < by, "the KMS's log is not read in time");
            time::sleep(ms(100));
            continue;
        };
        let page: AuditEntries = serde_json::from_slice(&reply.body).expect("a page");
        for entry in page.entries {
            let leaf = serde_json::from_str(&entry.leaf).expect("a leaf");
            all.insert(entry.index, leaf);
        }
        if page.next >= page.size {
            return all;
        }
        after = page.next;
    }
}

/// Up to which event the verifier had the feed in force, by what it has asked for.
fn reached(net: &SimNet) -> Vec<(u64, Instant)> {
    let sent = net.requests().into_iter();
    let polls = sent.filter(|sent| sent.from == VERIFIER && !sent.line.contains("wait=0"));
    let after = |line: &str| {
        let digits = line.split("after=").nth(1).unwrap_or_default();
        let digits = digits.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    polls.map(|sent| (after(&sent.line), sent.at)).collect()
}

/// Everything that was seen agrees with the logs, and at the end every good token is accepted and no void one is.
fn finish(net: &SimNet, chief: &Actor, follower: &mut Follower, calm: bool, by: Instant) {
    works_before(chief, by);
    chief.policy_is_in_force_before(by);
    follower.read_all(by);
    // On a good network the last event arrives within a second.
    time::sleep(Duration::from_secs(2));
    let http = hosts::client(net.host(client_ip(9)), 9);
    let leaves = leaves(&http, by + CALL);
    let reached = reached(net);
    let (good, void): (Vec<_>, Vec<_>) = {
        let seen = seen(&chief.shared);
        let of = Evidence {
            seen: &seen,
            events: &follower.events,
            reached: &reached,
            leaves: &leaves,
        };
        of.check();
        policy::check(&seen, calm);
        lists::check(&seen, &follower.events, calm);
        proofs::check(&seen, calm);
        if calm {
            of.check_calm();
        }
        let (good, void) = of.good_and_void();
        let newest = |all: Vec<&tokens::Token>| all.into_iter().rev().take(8).cloned().collect();
        (newest(good), newest(void))
    };
    for token in good {
        let end = chief.show(&token);
        ensure(
            end == End::Accepted,
            &format!("{end:?} for a good token: {token:?}"),
        );
    }
    for token in void {
        let end = chief.show(&token);
        let refused = matches!(end, End::Refused(401, _));
        ensure(refused, &format!("{end:?} for a void token: {token:?}"));
    }
}

/// Ends a process of a world without faults.
fn stop(net: &SimNet, process: &mut Process, ip: IpAddr) {
    process.check_no_panics();
    process.stop();
    let left = net.open_ends(ip);
    ensure(left == 0, &format!("{left} sockets of {ip} are left"));
}

/// A world on a good network, all in memory.
fn run_calm(operations: &Operations) {
    let net = SimNet::new(Weather::default());
    net.note_requests("GET /v1/passport/events?");
    let date = Date::default();
    let mut kms = services::kms(&net, 1, &date, None);
    let http = Arc::new(hosts::client(net.host(client_ip(7)), 7));
    let keys = Keys::made(&services::keeper(http), "calm");
    let mut issuer = services::issuer(&net, &keys, 1, &date, None);
    let mut verifier = services::verifier(&net, &keys, 1, &date, None);
    let shared = Shared::default();
    seen(&shared).policies.push(Change::first());
    let chief = Actor::new(&net, &keys, 8, &shared);
    works_before(&chief, time::now() + RECOVERY);
    // What was refused before everything had started is no finding.
    seen(&shared).unissued.clear();
    seen(&shared).uses.clear();
    net.set_weather(good_weather());
    let over = Arc::new(AtomicBool::new(false));
    let client = |number: u8| {
        let mut actor = Actor::new(&net, &keys, number, &shared);
        spawn(&format!("client-{number}"), move || {
            (0..ACTS).for_each(|_| actor.act());
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let mut operator = Actor::new(&net, &keys, 5, &shared);
    let operator = spawn("operator", move || {
        (0..OPERATIONS).for_each(|_| operator.operate());
    });
    let (mut follower, ends) = (Follower::new(&net, 6), over.clone());
    let follower = spawn("follower", move || {
        follower.follow(&ends);
        follower
    });
    for client in clients {
        client.join().expect("it is not killed");
    }
    operator.join().expect("it is not killed");
    over.store(true, Ordering::SeqCst);
    let mut follower = follower.join().expect("it is not killed");
    let by = time::now() + RECOVERY;
    finish(&net, &chief, &mut follower, true, by);
    stop(&net, &mut issuer, ISSUER);
    stop(&net, &mut kms, KMS);
    stop(&net, &mut verifier, VERIFIER);
    let calls = seen(&shared).calls + follower.calls;
    (0..calls).for_each(|_| operations.add());
}

#[test]
fn on_a_good_network_good_tokens_are_accepted_and_void_ones_are_not() {
    explore_services(u64::MAX, run_calm);
}
