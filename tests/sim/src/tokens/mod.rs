//! The wallet as verifier of passports, with a stand-in for the issuer: whatever the network, the issuer and restarts do, nothing
//! is paid with a token whose revocation has reached the wallet, and nothing void comes back.

mod check;
mod holder;
mod issuer;
mod server;
mod wallet;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_client::{Credential, LedgerClient};
use ron_kernel::Deadline;
use ron_sim::{ensure, fault, thread, time};

use crate::chance::{below, ms, one_of};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::money::services::{self, Files, Process};
use crate::net::{SimNet, Weather};
use check::Evidence;
use holder::{End, Holder, Use};
use issuer::Kind;
use server::Server;
use wallet::Disk;

use crate::money::{LEDGER, WALLET};

const ISSUER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 3));
const HOLDERS: u8 = 2;
/// Payments of each holder.
const PAYMENTS: usize = 60;
/// Within which the verifier knows everything again after the last fault.
const RECOVERY: Duration = Duration::from_secs(5);

fn issuer_url() -> String {
    format!("http://{ISSUER}:80")
}

/// A connection that falls silent is noticed at the end of a poll only, after 23 s.
fn bad_weather() -> Weather {
    Weather {
        slow_segments: one_of([0, 50_000, 300_000]),
        slow: ms(one_of([30, 300, 1_500]).into()),
        cuts: one_of([0, 2_000, 20_000]),
        half_open: 0,
        refusals: one_of([0, 5_000, 50_000]),
        ..Weather::default()
    }
}

struct World {
    net: SimNet,
    files: &'static Files,
    disk: Disk,
    issuer: Server,
    ledger: Process,
    wallet: Process,
    /// Of the wallet's machine.
    date: Date,
}

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        let files = Files::written();
        let mut disk = Disk::new();
        let ledger = services::ledger(&net, files, 1, &Date::default(), None);
        let date = Date::default();
        let mut issuer = Server::new(&issuer_url());
        issuer.start(&net);
        let wallet = wallet::start(&net, files, &date, &mut disk);
        Self {
            net,
            files,
            disk,
            issuer,
            ledger,
            wallet,
            date,
        }
    }

    /// One fault after the other, then none.
    fn disturb(&mut self) {
        for _ in 0..2 + below(6) {
            time::sleep(ms(below(800)));
            match below(9) {
                0 => hosts::part(&self.net, WALLET, ISSUER, 6_000),
                1 => self.wallet.group.pause(ms(below(1_500))),
                2 => self.issuer.group.pause(ms(below(1_500))),
                3 => self.kill_wallet(),
                4 => self.kill_issuer(),
                5 => self.net.set_weather(bad_weather()),
                6 => self.move_the_date(),
                _ => {
                    self.issuer.change_face();
                    time::sleep(ms(below(2_000)));
                    // Also over a restart.
                    if below(2) == 0 {
                        self.kill_wallet();
                        time::sleep(ms(below(1_000)));
                    }
                    self.issuer.be_true();
                }
            }
        }
        self.net.set_weather(Weather::default());
    }

    /// The date of the wallet's machine is wrong for a while, also over a restart.
    fn move_the_date(&mut self) {
        self.date.jump();
        time::sleep(ms(below(2_000)));
        if below(2) == 0 {
            self.kill_wallet();
            time::sleep(ms(below(1_000)));
        }
        self.date.be_right();
    }

    /// The wallet dies where it stands, and its service manager starts it again.
    fn kill_wallet(&mut self) {
        self.wallet.group.kill();
        self.net.sever(WALLET);
        time::sleep(ms(below(300)));
        self.wallet = wallet::start(&self.net, self.files, &self.date, &mut self.disk);
    }

    fn kill_issuer(&mut self) {
        self.issuer.group.kill();
        self.net.sever(ISSUER);
        time::sleep(ms(below(2_000)));
        self.issuer.start(&self.net);
    }

    /// Keys of the payments in the ledger's log.
    fn paid(&self) -> BTreeSet<String> {
        let http = Arc::new(hosts::client(self.net.host(client_ip(9)), 9));
        let auditor = Credential::bearer(&self.files.auditor);
        let ledger = LedgerClient::new(&format!("http://{LEDGER}:80"), auditor, http);
        let (mut paid, mut after) = (BTreeSet::new(), 0);
        loop {
            let within = Deadline::within(Duration::from_secs(5));
            let page = ledger.events(after, Duration::ZERO, within);
            let page = page.unwrap_or_else(|error| panic!("the log: {error}"));
            if page.events.is_empty() {
                return paid;
            }
            after = page.next;
            let entries = page.events.iter().map(|event| {
                let entry = serde_json::to_value(&event.entry).expect("an entry");
                entry["key"].as_str().expect("a key").to_owned()
            });
            paid.extend(entries);
        }
    }
}

/// What the issuer does, until the holders have ended.
fn operate(issuer: &Server) {
    issuer.with(|issuer| match below(16) {
        0 | 1 => issuer.revoke_token(),
        2 => issuer.revoke_subject(),
        3 => issuer.revoke_key(),
        4 => issuer.withdraw_key(),
        5 if below(3) == 0 => issuer.raise_epoch(),
        6 => issuer.rotate(),
        7 => issuer.announce_policy(),
        8 => issuer.issue(Kind::Account, None),
        9 => issuer.issue(Kind::Ceiling, None),
        10 => issuer.issue(Kind::ReadOnly, None),
        11 => issuer.issue(Kind::OtherService, None),
        12 => issuer.issue(Kind::Issue, Some(2 + below(3))),
        _ => issuer.issue(Kind::Issue, None),
    });
}

/// Operates the issuer for some seconds.
fn operator(issuer: &Server) -> thread::JoinHandle<()> {
    let issuer = issuer.clone();
    let until = time::now() + Duration::from_secs(8);
    thread::spawn(move || {
        while time::now() < until {
            operate(&issuer);
            time::sleep(ms(below(400)));
        }
    })
}

/// A good token pays again, before this moment.
fn works_before(issuer: &Server, holder: &mut Holder, at: Instant) {
    loop {
        let token = issuer.with(|issuer| {
            issuer.issue(Kind::Issue, None);
            issuer.tokens.last().expect("a token").clone()
        });
        // A second in which the subject was revoked voids it.
        if token.void.is_none() && holder.pay(&token) == End::Paid {
            return;
        }
        ensure(time::now() < at, "a good token pays again in time");
        time::sleep(ms(200));
    }
}

fn holders(world: &World) -> Vec<thread::JoinHandle<Vec<Use>>> {
    let begin = |number| {
        let (net, server) = (world.net.clone(), world.issuer.clone());
        let body = move || {
            let mut holder = Holder::new(&net, number);
            (0..PAYMENTS).for_each(|_| holder.act(&server));
            holder.uses
        };
        thread::spawn_named(format!("holder-{number}"), body).expect("a thread")
    };
    (0..HOLDERS).map(begin).collect()
}

fn run(disturbed: bool, operations: &Operations) {
    let mut world = World::start();
    let mut first = Holder::new(&world.net, 8);
    works_before(&world.issuer, &mut first, time::now() + RECOVERY);
    let mut last = Holder::new(&world.net, 7);
    let holders = holders(&world);
    let operator = operator(&world.issuer);
    if disturbed {
        world.disturb();
    }
    let mut uses: Vec<Use> = holders
        .into_iter()
        .flat_map(|holder| holder.join().expect("it is not killed"))
        .collect();
    operator.join().expect("it is not killed");
    // A wallet that started with an unknown date refuses every token until the faults end, so that one world may have no payment
    // between them: all worlds together have some.
    let between = uses.iter().filter(|used| used.end == End::Paid);
    between.for_each(|_| fault::happened("a payment is made"));
    works_before(&world.issuer, &mut last, time::now() + RECOVERY);
    everything_void_is_refused(&world.issuer, &mut last);
    uses.append(&mut last.uses);
    uses.sort_by_key(|used| used.began);
    let (paid, reached) = (world.paid(), world.issuer.reached());
    let tokens = world.issuer.with(|issuer| issuer.tokens.clone());
    let seen = Evidence {
        tokens: &tokens,
        uses: &uses,
        paid: &paid,
        reached: &reached,
    };
    seen.check();
    if !disturbed {
        seen.check_calm();
    }
    world.wallet.check_no_panics();
    world.ledger.check_no_panics();
    world.wallet.stop();
    world.ledger.stop();
    uses.iter().for_each(|_| operations.add());
}

/// After the recovery no void token pays.
fn everything_void_is_refused(issuer: &Server, holder: &mut Holder) {
    time::sleep(RECOVERY);
    let tokens = issuer.with(|issuer| issuer.tokens.clone());
    let void: Vec<_> = tokens.iter().filter(|t| t.void.is_some()).collect();
    for token in void.iter().rev().take(10) {
        let end = holder.pay(token);
        let refused = matches!(end, End::Refused(401, _));
        ensure(refused, &format!("{end:?} for a void token: {token:?}"));
    }
}

/// Seeds of a process: the threads of killed processes stay until it ends.
const SEEDS_MAX: u64 = 40;

#[test]
fn on_a_good_network_good_tokens_pay_and_void_ones_do_not() {
    explore_services(u64::MAX, |operations| run(false, operations));
}

#[test]
fn over_kills_and_false_answers_nothing_void_pays_or_comes_back() {
    explore_services(SEEDS_MAX, |operations| run(true, operations));
}
