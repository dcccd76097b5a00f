//! The console, unchanged, over a fleet that fails: what it shows of a node is true of the moment, what it has shown of its audit and
//! of a log stays, and a node is asked to act once, after the line that announces it is on the disk.

mod node;
mod operator;
mod reader;
mod truth;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_auth::service_token;
use ron_client::{Credential, LedgerClient};
use ron_crypto::sign::Ed25519Key;
use ron_files::{SharedDisk, SimDisk};
use ron_http::HttpClient;
use ron_kernel::Deadline;
use ron_ledger::RonLedger;
use ron_proto::ledger::{CommitRequest, Entry, EntryAnswer};
use ron_sim::{ensure, fault, thread, time};
use ron_tlog::note::VerifierKey;
use serde_json::json;
use svc_admin::SvcAdmin;

use crate::callers::{all_are_ready_before, paced, works};
use crate::chance::{below, ms};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::machine::{Machine, NOTE_SEED, disk_with_key};
use crate::money::bad_weather;
use crate::money::services::{Process, config, principal, put, scratch};
use crate::net::{SimNet, Weather};
use node::Node;
use operator::Operator;
use reader::Reader;
use truth::Truth;

pub const CONSOLE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 21));
const LEDGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 22));
/// The watched nodes: two that are written from the description of the health port, and a ledger.
pub const NODES: [(&str, IpAddr); 3] = [
    ("alpha", IpAddr::V4(Ipv4Addr::new(127, 0, 1, 23))),
    ("beta", IpAddr::V4(Ipv4Addr::new(127, 0, 1, 24))),
    ("ledger", LEDGER),
];
/// Of these the ledger is the last.
const OTHERS: usize = NODES.len() - 1;
const READERS: u8 = 2;
/// Fewest and most acts of each caller: they work for as long as there are faults.
const ACTS: std::ops::Range<usize> = 10..60;
/// Within which the console must show the fleet as it is after the last fault.
const RECOVERY: Duration = Duration::from_secs(10);
/// How long a restart of a node is shown.
const WINDOW: Duration = Duration::from_secs(10);
/// Longest time of one call.
pub const CALL: Duration = Duration::from_secs(2);
/// The name of the ledger's log.
const LOG: &str = "fleet.example/ledger";

/// The token by which the console acts on a node.
pub fn credential() -> String {
    service_token::generate("console", &[9; 32])
}

fn writer() -> String {
    service_token::generate("svc-wallet", &[1; 32])
}

/// By the key that is on the ledger's disk.
fn vkey() -> String {
    let public = Ed25519Key::from_seed(&NOTE_SEED).public();
    let key = VerifierKey::ed25519(LOG, &public);
    key.expect("a good name").to_string()
}

fn ledger(net: &SimNet, start: u64, date: &Date, disk: SharedDisk) -> Process {
    let scopes = ["ledger:commit", "ledger:read", "ledger:audit"];
    let more = format!(
        "[log]\norigin = \"{LOG}\"\n[ledger]\nprojection = false\n{}",
        principal("ron", "svc-wallet", &writer(), &scopes),
    );
    let config = config::<RonLedger>(LEDGER, Some(&disk), "max_conns = 128\n", &more);
    Process::start::<RonLedger>(net, LEDGER, config, start, date, Some(disk))
}

fn console(net: &SimNet, start: u64, date: &Date, disk: SharedDisk) -> Process {
    let dir = scratch("sim-fleet");
    put(&dir, "node.token", credential().as_bytes());
    let mut more = "[auth]\nmode = \"ingress\"\n\
         [ingress]\nproxies = [\"127.0.2.0/24\"]\nviewer_groups = [\"staff\"]\noperator_groups = [\"sre\"]\n\
         [sampler]\nmetrics_interval = \"1s\"\npoll_timeout = \"1s\"\nconnect_timeout = \"500ms\"\n"
        .to_owned();
    more.push_str(&format!(
        "metrics_window = \"{}s\"\n[actions]\nenable_reload = true\n",
        WINDOW.as_secs()
    ));
    for (id, ip) in &NODES[..OTHERS] {
        let file = dir.join("node.token");
        more.push_str(&format!(
            "[[nodes]]\nid = \"{id}\"\nhealth_url = \"http://{ip}:80\"\ncredential_file = {file:?}\n"
        ));
    }
    more.push_str(&format!(
        "[[nodes]]\nid = \"ledger\"\nhealth_url = \"http://{LEDGER}:81\"\napi_url = \"http://{LEDGER}:80\"\n\
         log_path = \"/log/v1\"\nlog_vkey = \"{}\"\n",
        vkey()
    ));
    let top = "max_conns = 128\nread_only = false\n";
    let config = config::<SvcAdmin>(CONSOLE, Some(&disk), top, &more);
    Process::start::<SvcAdmin>(net, CONSOLE, config, 500 + start, date, Some(disk))
}

/// A client on this host.
pub fn client(net: &SimNet, number: u8) -> Arc<HttpClient> {
    let host = net.host(client_ip(number));
    Arc::new(hosts::client(host, 7_000 + u64::from(number)))
}

struct World {
    net: SimNet,
    console: Machine,
    ledger: Machine,
    /// The ledger's disk as an operator has copied it.
    copy: SimDisk,
    nodes: [Node; OTHERS],
    truth: Arc<Truth>,
    http: Arc<HttpClient>,
    entries: LedgerClient,
    committed: u64,
}

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        let truth = Arc::new(Truth::default());
        let image = disk_with_key();
        let ledger = Machine::boot_on(
            image.clone(),
            &net,
            LEDGER,
            Arc::new(ledger),
            Arc::new(|| ()),
        );
        truth.node_has_disk(OTHERS, &ledger.hangs);
        let console = SimDisk::new();
        let nodes = [0, 1].map(|at| {
            let mut node = Node::new(at, &truth, console.clone(), &net);
            node.start();
            node
        });
        let trouble = truth.console_is_troubled();
        let start = Arc::new(self::console);
        let console = Machine::boot_on(console, &net, CONSOLE, start, Arc::new(|| ()));
        let token = Credential::bearer(&writer());
        let http = client(&net, 8);
        let entries = LedgerClient::new(&format!("http://{LEDGER}:80"), token, http.clone());
        let mut world = Self {
            console,
            copy: image.clone(),
            net,
            ledger,
            nodes,
            truth,
            http,
            entries,
            committed: 0,
        };
        world.commit_as_many(1);
        world.copy = image.fork();
        // It serves, and has looked at each node.
        let mut reader = Reader::new(client(&world.net, 7), &world.truth, &world.console.image);
        reader.shows_all_before(time::now() + RECOVERY);
        trouble.ends();
        world
    }

    /// One entry more, if the ledger takes it.
    fn commit(&mut self) {
        let entry = json!({"kind": "issue", "to": "user:a", "amount_minor": "1", "asset": "credit",
            "tenant": "t", "principal": "p", "key": format!("e{}", fault::random())});
        let entry: Entry = serde_json::from_value(entry).expect("an entry");
        let request = CommitRequest {
            entries: vec![entry],
            linked: false,
            batch: false,
        };
        let answer = self.entries.commit(&request, Deadline::within(CALL));
        let is_done = |of: &EntryAnswer| matches!(of, EntryAnswer::Done { .. });
        let done = answer.is_ok_and(|answer| answer.results.iter().all(is_done));
        self.committed += u64::from(done);
    }

    fn commit_as_many(&mut self, number: u64) {
        let (wanted, by) = (self.committed + number, time::now() + RECOVERY);
        while self.committed < wanted {
            self.commit();
            ensure(time::now() < by, "nothing is committed");
        }
    }

    /// One fault after the other, then none.
    fn disturb(&mut self) {
        for _ in 0..5 + below(8) {
            time::sleep(ms(below(1_500)));
            self.commit();
            match below(20) {
                0 | 17 | 18 => self.part(below(NODES.len() as u64) as usize),
                1..=2 => self.bring_bad_weather(),
                3..=8 => self.turn_a_node(),
                9 => self.lose_a_node(),
                10 => self.over_console(Machine::kill),
                11 => self.over_console(Machine::cut_power),
                12 => self.over_console(Machine::restart),
                13 => self.over_console(Machine::fail_disk),
                14 => self.over_ledger(Machine::kill),
                15 => self.over_ledger(Machine::cut_power),
                16 => self.over_ledger(Machine::restart),
                _ => self.pause(),
            }
        }
        self.console.be_well();
        self.ledger.be_well();
    }

    /// The console and a node do not reach each other.
    fn part(&self, at: usize) {
        let trouble = self.truth.node_is_gone(at);
        hosts::part(&self.net, CONSOLE, NODES[at].1, 12_000);
        trouble.ends();
    }

    fn bring_bad_weather(&self) {
        let trouble = self.truth.weather_is_bad();
        self.net.set_weather(Weather {
            // A reader would find that out long after the weather was good again.
            half_open: 0,
            ..bad_weather()
        });
        time::sleep(ms(below(4_000)));
        self.net.set_weather(Weather::default());
        trouble.ends();
    }

    fn turn_a_node(&self) {
        let node = &self.nodes[below(OTHERS as u64) as usize];
        node.turn();
        time::sleep(ms(below(12_000)));
        node.be_good();
    }

    fn lose_a_node(&mut self) {
        fault::happened("a node is away");
        let at = below(OTHERS as u64) as usize;
        let trouble = self.truth.node_is_gone(at);
        self.nodes[at].die();
        time::sleep(ms(below(12_000)));
        self.nodes[at].start();
        trouble.ends();
    }

    fn over_console(&mut self, meets: fn(&mut Machine, &SimNet)) {
        let trouble = self.truth.console_is_troubled();
        meets(&mut self.console, &self.net);
        self.is_ready_again(CONSOLE);
        trouble.ends();
    }

    /// Its disk may hang while it starts.
    fn is_ready_again(&self, service: IpAddr) {
        all_are_ready_before(&self.http, &[service], time::now() + RECOVERY);
    }

    fn over_ledger(&mut self, meets: fn(&mut Machine, &SimNet)) {
        // It answers for some time of it.
        let trouble = self.truth.node_is_troubled(OTHERS);
        meets(&mut self.ledger, &self.net);
        self.is_ready_again(LEDGER);
        trouble.ends();
    }

    fn pause(&self) {
        fault::happened("a service stands still");
        let troubles = [
            self.truth.console_is_troubled(),
            self.truth.node_is_troubled(OTHERS),
        ];
        let process = match below(2) {
            0 => &self.console.process,
            _ => &self.ledger.process,
        };
        let length = ms(below(1_500));
        process.as_ref().expect("it runs").group.pause(length);
        time::sleep(length);
        troubles.into_iter().for_each(truth::Trouble::ends);
    }

    /// The ledger is put back to the copy of its disk, and goes on from there.
    fn put_the_log_back(&mut self, reader: &mut Reader) {
        self.commit_as_many(2);
        let shown = reader.shows_a_head_of(self.committed, time::now() + 2 * RECOVERY);
        // The accepted head is on the console's disk by then.
        time::sleep(Duration::from_secs(5));
        if below(2) == 0 {
            self.over_console(Machine::kill);
        }
        fault::happened("a log is put back");
        let trouble = self.truth.node_is_troubled(OTHERS);
        self.ledger.stop(&self.net);
        self.ledger.image = self.copy.fork();
        self.ledger.start_again(&self.net);
        self.is_ready_again(LEDGER);
        trouble.ends();
        // As many entries as before, or fewer, or more: none of them are those that were shown.
        for _ in 0..below(2 * self.committed) {
            self.commit();
        }
        if below(2) == 0 {
            self.over_console(Machine::kill);
        }
        reader.sees_that_it_was_put_back(&shown);
    }

    fn stop(mut self) {
        self.console.stop(&self.net);
        self.ledger.stop(&self.net);
    }
}

fn run(operations: &Operations) {
    let mut world = World::start();
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let reader = Reader::new(
                client(&world.net, number),
                &world.truth,
                &world.console.image,
            );
            works(
                format!("reader-{number}"),
                &over,
                ACTS,
                reader,
                paced(Reader::act, 1_000),
            )
        })
        .collect();
    let operator = Operator::new(client(&world.net, READERS));
    let operator = works("operator", &over, ACTS, operator, paced(Operator::act, 600));
    world.disturb();
    over.store(true, Ordering::SeqCst);
    let joined = |reader: thread::JoinHandle<Reader>| reader.join().expect("it is not killed");
    let mut readers: Vec<Reader> = readers.into_iter().map(joined).collect();
    let operator = operator.join().expect("it is not killed");
    let reader = &mut readers[0];
    reader.shows_all_before(time::now() + RECOVERY);
    // Restarts are shown for this long, and may have been found last.
    reader.shows_all_as_healthy_before(time::now() + WINDOW + RECOVERY);
    operator.check(&world.nodes.each_ref().map(Node::asked));
    let audit = operator.audit();
    readers
        .iter()
        .for_each(|reader| reader.lines_are_in(&audit));
    let reader = &mut readers[0];
    if below(3) == 0 {
        world.put_the_log_back(reader);
    }
    let read: usize = readers.iter().map(Reader::number).sum();
    (0..read + operator.number()).for_each(|_| operations.add());
    world.stop();
}

/// Seeds of a process: the threads of killed services stay until it ends.
const SEEDS_MAX: u64 = 60;

#[test]
fn over_kills_and_power_cuts_the_console_shows_the_fleet_as_it_is() {
    explore_services(SEEDS_MAX, run);
}
