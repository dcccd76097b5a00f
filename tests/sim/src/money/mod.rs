//! The wallet and the ledger, unchanged, on the simulated network, both in memory: what callers were told agrees with the
//! ledger's log and with a separate model, whatever the network does and however often the wallet is killed.

mod check;
mod clients;
mod durable;
pub mod requests;
pub mod services;
mod views;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ron_sim::{ensure, fault, thread, time};

use crate::chance::{below, ms, one_of};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::net::{SimNet, Weather};
use clients::Client;
use requests::Asked;
use services::{Files, Process};
use views::{History, Views};

pub const LEDGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));
pub const WALLET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 2));
const CLIENTS: u8 = 3;
/// Operations of each client.
const OPERATIONS: usize = 20;
/// Within which everything must work again after the last fault.
const RECOVERY: Duration = Duration::from_secs(10);

/// The host of one of the clients.
fn any_client() -> IpAddr {
    client_ip(below(CLIENTS.into()) as u8)
}

pub fn bad_weather() -> Weather {
    Weather {
        slow_segments: one_of([0, 20_000, 100_000]),
        slow: ms(one_of([1, 30, 300]).into()),
        cuts: one_of([0, 2_000, 20_000]),
        half_open: one_of([0, 0, 3_000]),
        refusals: one_of([0, 5_000, 50_000]),
        ..Weather::default()
    }
}

/// A network without faults, on which answers overtake each other.
fn good_weather() -> Weather {
    let everywhere = below(2) == 0;
    Weather {
        slow_segments: 300_000,
        slow: ms(if everywhere { 20 } else { 40 }),
        // Slow calls of the ledger alone: what callers send in a row arrives so.
        slow_at: (!everywhere).then_some(LEDGER),
        ..Weather::default()
    }
}

/// A world: its network and processes.
struct World {
    net: SimNet,
    files: &'static Files,
    ledger: Process,
    wallet: Process,
    /// The dates of their machines.
    dates: [Date; 2],
    /// Starts of the wallet.
    starts: u64,
    history: Arc<History>,
}

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        let files = Files::written();
        let dates = [Date::default(), Date::default()];
        let ledger = services::ledger(&net, files, 1, &dates[0], None);
        let wallet = services::wallet(&net, files, 1, &dates[1], None);
        Self {
            net,
            files,
            ledger,
            wallet,
            dates,
            starts: 1,
            history: Arc::default(),
        }
    }

    /// One fault after the other while clients work, then none.
    fn disturb(&mut self) {
        if below(3) > 0 {
            self.net.set_weather(bad_weather());
        }
        for _ in 0..1 + below(5) {
            time::sleep(ms(below(1_000)));
            self.ledger.check_bounds();
            match below(7) {
                0 => hosts::part(&self.net, WALLET, LEDGER, 2_000),
                1 => hosts::part(&self.net, WALLET, any_client(), 2_000),
                2 => self.pause(),
                3 => self.kill_wallet(),
                4 => self.restart_wallet(),
                5 => self.move_a_date(),
                _ => self.net.set_weather(bad_weather()),
            }
        }
        self.net.set_weather(Weather::default());
    }

    /// In memory a service has no date of before, so none starts meanwhile.
    fn move_a_date(&self) {
        let date = &self.dates[below(2) as usize];
        date.jump();
        time::sleep(ms(below(2_500)));
        date.be_right();
    }

    fn pause(&self) {
        let of = if below(2) == 0 {
            &self.wallet
        } else {
            &self.ledger
        };
        fault::happened("a service stands still");
        of.group.pause(ms(below(1_500)));
    }

    fn start_wallet(&self) -> Process {
        services::wallet(&self.net, self.files, self.starts, &self.dates[1], None)
    }

    /// The wallet dies where it stands, and its service manager starts it again.
    fn kill_wallet(&mut self) {
        fault::happened("the wallet is killed");
        self.history.killed();
        self.wallet.check_bounds();
        self.wallet.group.kill();
        self.net.sever(WALLET);
        time::sleep(ms(below(500)));
        self.starts += 1;
        self.wallet = self.start_wallet();
    }

    /// The wallet is drained while its callers work, and started again.
    fn restart_wallet(&mut self) {
        fault::happened("the wallet is restarted");
        self.history.begin_or_end_stop();
        self.wallet.check_no_panics();
        self.wallet.stop();
        self.starts += 1;
        self.wallet = self.start_wallet();
    }

    /// Restarts of the wallet on a good network. Each is over when the wallet works again.
    fn restart_now_and_then(&mut self, auditor: &mut Client) {
        for _ in 0..below(3) {
            time::sleep(ms(below(1_500)));
            self.restart_wallet();
            auditor.works_before(time::now() + RECOVERY);
            self.history.begin_or_end_stop();
        }
    }
}

fn run(disturbed: bool, operations: &Operations) {
    let mut world = World::start();
    let client = |number, calm| Client::new(&world.net, world.files, number, calm, &world.history);
    let mut auditor = client(9, false);
    let mut prompt = false;
    if !disturbed {
        auditor.works_before(time::now() + RECOVERY);
        let good = good_weather();
        prompt = good.slow_at.is_some();
        world.net.set_weather(good);
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut client = client(number, !disturbed);
            client.prompt = prompt;
            let name = format!("client-{number}");
            let body = move || {
                (0..OPERATIONS).for_each(|_| client.act());
                client
            };
            thread::spawn_named(name, body).expect("a thread")
        })
        .collect();
    if disturbed {
        world.disturb();
    } else {
        world.restart_now_and_then(&mut auditor);
    }
    let recovered = time::now() + RECOVERY;
    let mut clients: Vec<Client> = clients
        .into_iter()
        .map(|client| client.join().expect("it is not killed"))
        .collect();
    // The last fault was at the latest when the clients ended.
    let recovered = recovered.max(time::now() + RECOVERY);
    auditor.works_before(recovered);
    for client in &mut clients {
        client.settle(recovered);
    }
    let asked: Vec<Asked> = clients.iter_mut().flat_map(Client::asked).collect();
    let mut views = Views::default();
    for client in &mut clients {
        views.append(&mut client.views);
    }
    check::all(&mut auditor, &asked, views);
    world.wallet.check_no_panics();
    world.ledger.check_no_panics();
    world.wallet.stop();
    world.ledger.stop();
    let left = (world.net.open_ends(WALLET), world.net.open_ends(LEDGER));
    ensure(left == (0, 0), &format!("sockets are left: {left:?}"));
    count(&asked, operations);
}

/// Counts the operations of a world. One in which nothing succeeds shows nothing.
fn count(asked: &[Asked], operations: &Operations) {
    asked.iter().for_each(|_| operations.add());
    let done = asked.iter().filter(|a| a.is_done()).count();
    let number = asked.len();
    ensure(
        done * 8 > number,
        &format!("of {number} operations {done} took effect"),
    );
}

/// Seeds of a process: the threads of killed wallets stay until it ends.
const SEEDS_MAX: u64 = 180;

#[test]
fn on_a_good_network_callers_the_log_and_the_model_agree() {
    explore_services(u64::MAX, |operations| run(false, operations));
}

#[test]
fn over_kills_of_the_wallet_in_any_weather_callers_the_log_and_the_model_agree() {
    explore_services(SEEDS_MAX, |operations| run(true, operations));
}
