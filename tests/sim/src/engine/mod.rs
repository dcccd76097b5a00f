//! Two ledgers, unchanged, whose log is in one replicated engine: whatever becomes of writes, of the engine's primary and of either
//! node, what was answered is in the log once, and there is one log.

mod caller;
mod check;
mod far;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_auth::service_token;
use ron_files::SharedDisk;
use ron_ledger::RonLedger;
use ron_sim::{ensure, fault, time};

use crate::callers::{all_are_ready_before, works};
use crate::chance::{below, ms, one_of};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::machine::{Machine, disk_with_key};
use crate::money::services::{Process, config, principal};
use crate::net::{SimNet, Weather};
use caller::{Asked, Caller};
use check::Auditor;
use far::{ENGINE, Far, LOG};

pub const NODES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(127, 0, 1, 11)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 1, 12)),
];
const CALLERS: u8 = 3;
/// Numbers of the hosts of the auditor and of the prober.
const AUDITOR: u8 = 8;
const PROBER: u8 = 9;
/// Fewest and most operations of each caller: they work for as long as there are faults.
const OPERATIONS: std::ops::Range<usize> = 8..60;
/// How long callers work on a good network.
const CALM: Duration = Duration::from_secs(4);
/// Within which everything must work again after the last fault.
const RECOVERY: Duration = Duration::from_secs(10);

/// Longest time of a call of a node to the engine: of the thread that publishes checkpoints.
const LONGEST_CALL: Duration = Duration::from_secs(5);

/// Under which clients reach a node.
pub fn url(ip: IpAddr) -> String {
    format!("http://{ip}:80")
}

/// The token of the callers.
fn token() -> String {
    service_token::generate("svc-wallet", &[1; 32])
}

fn node(net: &SimNet, far: &Far, at: usize, start: u64, date: &Date, disk: SharedDisk) -> Process {
    let ip = NODES[at];
    let more = format!(
        "[log]\norigin = \"{LOG}\"\nurl = \"memory:\"\nnode = \"{}\"\ncommit_within = \"1s\"\ntakeover_after = \"2s\"\n\
         [ledger]\nprojection = false\n{}",
        url(ip),
        principal(
            "ron",
            "svc-wallet",
            &token(),
            &["ledger:commit", "ledger:read", "ledger:audit"]
        ),
    );
    let config = config::<RonLedger>(
        ip,
        Some(&disk),
        "max_conns = 128\nrequest_deadline = \"10s\"\n",
        &more,
    );
    let seed = start * 2 + at as u64;
    let engines = far.of_node(ip);
    Process::start_with::<RonLedger>(net, ip, config, seed, date, Some(disk), engines)
}

struct World {
    net: SimNet,
    far: Far,
    nodes: [Machine; 2],
    /// When every pause of a node is over.
    awake_at: Instant,
    /// When every call to the engine is over that had met a fault.
    quiet_at: Instant,
}

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        let far = Far::new(&net);
        let nodes = [0, 1].map(|at| {
            let engine = far.clone();
            let start = move |net: &SimNet, number, date: &Date, disk| {
                node(net, &engine, at, number, date, disk)
            };
            let (image, start) = (disk_with_key(), Arc::new(start));
            Machine::boot_on(image, &net, NODES[at], start, Arc::new(|| {}))
        });
        Self {
            net,
            far,
            nodes,
            awake_at: time::now(),
            quiet_at: time::now(),
        }
    }

    fn any_node(&mut self) -> &mut Machine {
        &mut self.nodes[below(2) as usize]
    }

    /// One fault after the other, then none.
    fn disturb(&mut self) {
        if below(3) > 0 {
            self.far.set_weather(far::any_weather());
        }
        for _ in 0..2 + below(6) {
            time::sleep(ms(below(1_500)));
            let net = self.net.clone();
            match below(19) {
                0 | 1 => {
                    let ip = self.any_node().ip;
                    hosts::part(&net, ip, ENGINE, 6_000);
                }
                2 => {
                    let client = client_ip(below(CALLERS.into()) as u8);
                    let ip = self.any_node().ip;
                    hosts::part(&net, ip, client, 2_000);
                }
                3 | 4 => self.pause(),
                5 | 6 => self.any_node().kill(&net),
                7 => self.any_node().cut_power(&net),
                8 => self.restart(),
                9 => self.any_node().fail_disk(&net),
                10 | 11 => {
                    fault::happened("the engine is away");
                    self.far.set_away(true);
                    time::sleep(ms(below(4_000)));
                    self.far.set_away(false);
                }
                12 | 13 => far::lose_standby(&self.far, ms(below(4_000))),
                14 => {
                    fault::happened("the engine fails over");
                    self.far.fail_over();
                }
                15 => self.any_node().date.jump(),
                // Few segments pass here, so that each is cut more often than elsewhere.
                16 | 17 => self.net.set_weather(Weather {
                    cuts: one_of([0, 20_000, 200_000]),
                    ..crate::money::bad_weather()
                }),
                _ => self.far.set_weather(far::any_weather()),
            }
        }
        self.net.set_weather(Weather::default());
        self.clear_engine();
        for node in &self.nodes {
            node.be_well();
        }
        time::sleep(self.awake_at.saturating_duration_since(time::now()));
    }

    fn clear_engine(&mut self) {
        self.far.clear();
        self.quiet_at = time::now() + LONGEST_CALL;
    }

    /// Nothing ends a call to the engine but its deadline, so that a drain would leave its thread behind.
    fn until_quiet(&self) {
        time::sleep(self.quiet_at.saturating_duration_since(time::now()));
    }

    fn restart(&mut self) {
        self.clear_engine();
        self.until_quiet();
        let net = self.net.clone();
        self.any_node().restart(&net);
        self.far.set_weather(far::any_weather());
    }

    /// The log is claimed from a node that has nothing to write.
    fn take_from_an_idle_node(&mut self) {
        match below(2) {
            0 => {
                let ip = self.any_node().ip;
                hosts::part(&self.net.clone(), ip, ENGINE, 6_000);
            }
            _ => self.pause(),
        }
        self.clear_engine();
        time::sleep(self.awake_at.saturating_duration_since(time::now()));
    }

    /// A node stands still, often for so long that the other claims the log.
    fn pause(&mut self) {
        let longest = [800, 6_000][below(2) as usize];
        let pause = ms(below(longest));
        if let Some(process) = &self.any_node().process {
            fault::happened("a service stands still");
            process.group.pause(pause);
        }
        self.awake_at = self.awake_at.max(time::now() + pause);
    }
}

fn run(disturbed: bool, operations: &Operations) {
    let mut world = World::start();
    let token = token();
    let mut prober = Caller::new(&world.net, PROBER, &token, false);
    // A node that has kept no date and no entry believes the date of its start.
    prober.works_before(time::now() + RECOVERY);
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let caller = Caller::new(&world.net, number, &token, !disturbed);
            works(
                format!("caller-{number}"),
                &over,
                OPERATIONS,
                caller,
                Caller::act,
            )
        })
        .collect();
    let auditor = Auditor::new(&world.net, AUDITOR, &token);
    let auditor = works("auditor", &over, OPERATIONS, auditor, Auditor::act);
    if disturbed {
        world.disturb();
    } else {
        time::sleep(CALM);
    }
    over.store(true, Ordering::SeqCst);
    let recovered = time::now() + RECOVERY;
    let mut callers: Vec<Caller> = callers
        .into_iter()
        .map(|caller| caller.join().expect("it is not killed"))
        .collect();
    let mut auditor = auditor.join().expect("it is not killed");
    let mut recovered = recovered;
    if disturbed && below(2) == 0 {
        world.take_from_an_idle_node();
        recovered = time::now() + RECOVERY;
    }
    let http = hosts::client(world.net.host(client_ip(PROBER)), 4_000);
    all_are_ready_before(&http, &NODES, recovered.max(time::now() + ms(100)));
    auditor.are_one_before(recovered.max(time::now() + ms(500)));
    prober.works_before(recovered.max(time::now() + ms(100)));
    for caller in &mut callers {
        caller.settle(recovered);
    }
    prober.settle(recovered);
    // Holds end by the clock meanwhile, each with an entry.
    let active = auditor.are_one_before(recovered.max(time::now() + ms(500)));
    auditor.is_refused_by(1 - active, recovered.max(time::now() + ms(1_500)));
    let mut asked: Vec<Asked> = callers.into_iter().flat_map(|c| c.asked).collect();
    asked.append(&mut prober.asked);
    auditor.compare(&world.far, &asked);
    world.until_quiet();
    world.nodes[1 - active].stop(&world.net);
    world.nodes[active].stop(&world.net);
    count(&asked, operations);
}

/// Counts the operations of a world. One in which nothing is answered shows nothing.
fn count(asked: &[Asked], operations: &Operations) {
    asked.iter().for_each(|_| operations.add());
    let answered = asked.iter().filter(|a| !a.answers.is_empty()).count();
    ensure(
        answered == asked.len(),
        "every request is answered in the end",
    );
}

/// Seeds of a process: the threads of killed services stay until it ends.
const SEEDS_MAX: u64 = 120;

#[test]
fn on_a_good_network_one_ledger_writes_and_the_other_has_the_same_log() {
    explore_services(u64::MAX, |operations| run(false, operations));
}

#[test]
fn over_kills_and_failovers_of_the_engine_what_was_answered_is_in_one_log_once() {
    explore_services(SEEDS_MAX, |operations| run(true, operations));
}
