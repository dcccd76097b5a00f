//! What follows the ledger's log, in services that are unchanged: the ledger's projection, which answers for the past, and the
//! wallet's webhooks. Pages of histories are those of a second reading of the log, and each message that is due arrives, in its
//! order, however often both services are killed.

mod check;
mod lists;
mod operator;
mod past;
mod payer;
mod reader;
mod receiver;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_client::{Credential, LedgerClient, WalletClient};
use ron_files::SharedDisk;
use ron_http::HttpClient;
use ron_sim::thread::JoinHandle;
use ron_sim::{fault, time};

use crate::callers::{all_are_ready_before, log_of, paced, works};
use crate::chance::{below, ms};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::machine::Machine;
use crate::money::services::{self, Files};
use crate::money::{LEDGER, WALLET, bad_weather};
use crate::net::{SimNet, Weather};
use operator::Operator;
use payer::Payer;
use reader::Reader;
use receiver::Receiver;

/// Where messages are received: an address that needs no TLS.
pub const RECEIVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PAYERS: u8 = 2;
/// Fewest and most actions of each caller: they work for as long as there are faults.
const ACTIONS: std::ops::Range<usize> = 8..30;
/// Within which everything must have caught up after the last fault.
const RECOVERY: Duration = Duration::from_secs(10);
/// Longest time of one call.
pub const CALL: Duration = Duration::from_secs(2);

/// The endpoints, and the accounts of each.
pub const ENDPOINTS: [(&str, &[&str]); 3] = [
    ("all", &["*"]),
    ("shop", &["user:a", "user:b"]),
    ("gone", &["user:*"]),
];
/// The endpoint that an operator takes out of the configuration.
pub const GONE: &str = "gone";
/// How long a message of these endpoints is tried.
pub const GIVE_UP: Duration = Duration::from_secs(4);

/// Whether an account is one of an endpoint.
pub fn has(accounts: &[&str], account: &str) -> bool {
    accounts.iter().any(|of| match of.strip_suffix('*') {
        Some(prefix) => account.starts_with(prefix),
        None => *of == account,
    })
}

/// What all callers of a world know together. None of it is a point of the simulator.
#[derive(Debug, Default)]
pub struct Shared {
    /// The newest entry that a caller was told of.
    known: AtomicU64,
    /// Whether the endpoint is out of the configuration.
    removed: AtomicBool,
    over: Arc<AtomicBool>,
}

impl Shared {
    pub fn known(&self) -> u64 {
        self.known.load(Ordering::SeqCst)
    }

    pub fn learnt(&self, seq: u64) {
        self.known.fetch_max(seq, Ordering::SeqCst);
    }
}

/// The wallet's configuration of its endpoints.
fn webhooks(files: &Files, removed: bool) -> String {
    let mut text = format!(
        "[webhook]\ndeadline = \"1s\"\nretry_cap = \"1s\"\ngive_up_after = \"{}s\"\n",
        GIVE_UP.as_secs()
    );
    for (name, accounts) in ENDPOINTS {
        if removed && name == GONE {
            continue;
        }
        let file = format!("{name}.webhook");
        services::put(&files.dir, &file, receiver::secret(name).as_bytes());
        let file = files.dir.join(file);
        text.push_str(&format!(
            "[[webhooks]]\nname = \"{name}\"\nurl = \"http://{RECEIVER}:80/{name}\"\naccounts = {accounts:?}\nsecret_file = {file:?}\n"
        ));
    }
    text
}

/// The clients of one host.
pub struct Clients {
    pub wallet: WalletClient,
    pub ledger: LedgerClient,
    http: Arc<HttpClient>,
}

impl Clients {
    fn new(net: &SimNet, files: &Files, number: u8) -> Self {
        let host = net.host(client_ip(number));
        let http = Arc::new(hosts::client(host, 5_000 + u64::from(number)));
        let at = |ip: IpAddr| format!("http://{ip}:80");
        Self {
            wallet: WalletClient::new(&at(WALLET), Credential::bearer(&files.bank), http.clone()),
            ledger: LedgerClient::new(
                &at(LEDGER),
                Credential::bearer(&files.auditor),
                http.clone(),
            ),
            http,
        }
    }
}

struct World {
    net: SimNet,
    ledger: Machine,
    wallet: Machine,
    receiver: Receiver,
    shared: Arc<Shared>,
}

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        let files = Files::written();
        let shared = Arc::new(Shared::default());
        let ledger = move |net: &SimNet, start, date: &Date, disk: SharedDisk| {
            services::ledger_with(net, files, start, date, Some(disk), true)
        };
        let of_wallet = shared.clone();
        let wallet = move |net: &SimNet, start, date: &Date, disk: SharedDisk| {
            let sections = webhooks(files, of_wallet.removed.load(Ordering::SeqCst));
            services::wallet_with(net, files, start, date, Some(disk), &sections)
        };
        let mut receiver = Receiver::new();
        receiver.start(&net);
        Self {
            ledger: Machine::boot(&net, LEDGER, Arc::new(ledger), Arc::new(|| ())),
            wallet: Machine::boot(&net, WALLET, Arc::new(wallet), Arc::new(|| ())),
            net,
            receiver,
            shared,
        }
    }

    /// One fault after the other, then none.
    fn disturb(&mut self) {
        self.receiver.be_moody();
        for _ in 0..2 + below(5) {
            time::sleep(ms(below(1_000)));
            match below(13) {
                0 => hosts::part(&self.net, WALLET, LEDGER, 2_000),
                1 => hosts::part(&self.net, WALLET, RECEIVER, 2_500),
                2 => self.net.set_weather(bad_weather()),
                3 => self.wallet.kill(&self.net),
                4 => self.ledger.kill(&self.net),
                5 => self.wallet.cut_power(&self.net),
                6 => self.ledger.cut_power(&self.net),
                7 => self.wallet.restart(&self.net),
                8 => self.ledger.restart(&self.net),
                9 => self.fail_a_disk(),
                _ => self.receiver.turn(),
            }
        }
        match below(3) {
            0 => self.remove_an_endpoint(),
            1 => self.receiver.restart(&self.net),
            _ => self.receiver.refuse(),
        }
        time::sleep(ms(below(1_500)));
        self.net.set_weather(Weather::default());
        self.wallet.be_well();
        self.ledger.be_well();
        self.receiver.be_good();
    }

    fn fail_a_disk(&mut self) {
        if below(2) == 0 {
            return self.ledger.fail_disk(&self.net);
        }
        // Cursors may not have been written.
        self.receiver.may_go_back();
        self.wallet.fail_disk(&self.net);
    }

    /// The wallet is started again without one of its endpoints.
    fn remove_an_endpoint(&mut self) {
        fault::happened("an endpoint is removed");
        self.shared.removed.store(true, Ordering::SeqCst);
        self.wallet.stop(&self.net);
        self.receiver.silence(GONE);
        self.wallet.start_again(&self.net);
    }

    fn stop(mut self) {
        self.wallet.stop(&self.net);
        self.ledger.stop(&self.net);
    }
}

fn run(operations: &Operations) {
    let mut world = World::start();
    let (net, files, shared) = (world.net.clone(), Files::written(), world.shared.clone());
    let clients = |number| Clients::new(&net, files, number);
    let auditor = clients(9);
    let mut first = Payer::new(clients(8), 8, &shared);
    let mut operator = Operator::new(clients(7), &world.receiver);
    first.works_before(time::now() + RECOVERY);
    operator.starts_before(time::now() + RECOVERY);
    let payers: Vec<_> = (0..PAYERS)
        .map(|number| {
            let payer = Payer::new(clients(number), number, &shared);
            let name = format!("payer-{number}");
            works(name, &shared.over, ACTIONS, payer, paced(Payer::act, 100))
        })
        .collect();
    let reader = Reader::new(clients(5), &shared);
    let reader = works(
        "reader",
        &shared.over,
        ACTIONS,
        reader,
        paced(Reader::act, 100),
    );
    let operator = works(
        "operator",
        &shared.over,
        ACTIONS,
        operator,
        paced(Operator::act, 100),
    );
    world.disturb();
    shared.over.store(true, Ordering::SeqCst);
    let joined = |payer: JoinHandle<Payer>| payer.join().expect("it is not killed");
    let mut payers: Vec<Payer> = payers.into_iter().map(joined).collect();
    let mut reader = reader.join().expect("it is not killed");
    let mut operator = operator.join().expect("it is not killed");
    // The last fault was at the latest when the callers ended.
    let recovered = time::now() + RECOVERY;
    all_are_ready_before(&auditor.http, &[LEDGER, WALLET], recovered);
    payers.push(first);
    for payer in &mut payers {
        payer.settle(recovered);
    }
    reader.catches_up_before(recovered);
    let due = log_of(&auditor.ledger);
    operator.all_arrive_before(&due, &shared, recovered);
    let pages = reader.number();
    check::all(
        &log_of(&auditor.ledger),
        &payers,
        &mut reader,
        &world.receiver,
    );
    let paid: usize = payers.iter().map(Payer::number).sum();
    let done = paid + pages + world.receiver.accepted();
    (0..done).for_each(|_| operations.add());
    world.stop();
}

/// Seeds of a process: the threads of killed services stay until it ends.
const SEEDS_MAX: u64 = 60;

#[test]
fn over_kills_and_power_cuts_pages_are_of_one_moment_and_every_message_arrives() {
    explore_services(SEEDS_MAX, run);
}
