//! The wallet and the ledger with their files, each on a machine of its own whose power may be cut: what was answered stays,
//! and a key that is said to be open is not forgotten, however often both are killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, WalletClient};
use ron_files::SharedDisk;
use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_proto::IdemKey;
use ron_proto::wallet::{Operation, Transaction};
use ron_sim::{ensure, fault, time};
use serde_json::json;

use super::clients::{CALL, Client};
use super::requests::{ASSET, Answer, Asked, Op};
use super::services::{self, Files, Process};
use super::views::{History, Views};
use super::{CLIENTS, LEDGER, RECOVERY, WALLET, any_client, bad_weather, check, count};
use crate::callers::{all_are_ready_before, works};
use crate::chance::{below, ms};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::machine::{Machine, disk_fault};
use crate::net::{SimNet, Weather};

/// Fewest and most operations of each client, and of the keeper: they work for as long as there are faults.
const OPERATIONS: std::ops::Range<usize> = 5..40;
/// Longest time of a call of the keeper: it waits until the wallet says that an outcome is not known.
const PATIENCE: Duration = Duration::from_secs(6);
/// Number of the keeper's host.
const KEEPER: u8 = 8;

type Service = fn(&SimNet, &Files, u64, &Date, Option<SharedDisk>) -> Process;

struct World {
    net: SimNet,
    ledger: Machine,
    wallet: Machine,
    history: Arc<History>,
}

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        let files = Files::written();
        let history = Arc::new(History::default());
        let boot = |ip, start: Service| {
            let start = move |net: &SimNet, number, date: &Date, disk| {
                start(net, files, number, date, Some(disk))
            };
            let killed = history.clone();
            Machine::boot(&net, ip, Arc::new(start), Arc::new(move || killed.killed()))
        };
        Self {
            ledger: boot(LEDGER, services::ledger),
            wallet: boot(WALLET, services::wallet),
            net,
            history,
        }
    }

    /// One fault after the other, then none; among them jumps of dates, unless this is too early for them.
    fn disturb(&mut self, dates: bool) {
        for _ in 0..1 + below(6) {
            time::sleep(ms(below(1_000)));
            match below(if dates { 16 } else { 12 }) {
                0 => hosts::part(&self.net, WALLET, LEDGER, 2_000),
                1 => hosts::part(&self.net, WALLET, any_client(), 2_000),
                2 => self.net.set_weather(bad_weather()),
                3 => self.wallet.kill(&self.net),
                4 => self.ledger.kill(&self.net),
                5 => self.wallet.cut_power(&self.net),
                6 | 7 => self.all_at_once(),
                8 => self.wallet.restart(&self.net),
                9 => self.ledger.restart(&self.net),
                10 if below(2) == 0 => self.wallet.fail_disk(&self.net),
                10 => self.ledger.fail_disk(&self.net),
                12 | 13 => self.wallet.date.jump(),
                14 | 15 => self.ledger.date.jump(),
                _ => self.ledger.cut_power(&self.net),
            }
        }
        self.net.set_weather(Weather::default());
        self.wallet.be_well();
        self.ledger.be_well();
    }

    /// The ledger is down for a while, so outcomes are not known, and the wallet dies with what it knows of them.
    fn all_at_once(&mut self) {
        self.ledger.die(&self.net);
        self.ledger.image.kill();
        if below(3) == 0 {
            fault::happened("a disk fails");
            self.wallet.image.fail_after(1 + below(12), disk_fault());
        }
        time::sleep(ms(800 + below(1_500)));
        if below(2) == 0 {
            self.wallet.kill(&self.net);
        } else {
            self.wallet.cut_power(&self.net);
        }
        time::sleep(ms(below(1_000)));
        self.ledger.start_again(&self.net);
    }

    fn stop(mut self) {
        self.wallet.stop(&self.net);
        self.ledger.stop(&self.net);
    }
}

/// A caller that remembers which of its keys were said to be open, and looks them up.
struct Keeper {
    wallet: WalletClient,
    http: Arc<HttpClient>,
    authorization: String,
    asked: Vec<Asked>,
    /// Numbers of the keys whose record was promised.
    open: Vec<usize>,
    said_open: usize,
}

impl Keeper {
    fn new(net: &SimNet, files: &Files) -> Self {
        let http = Arc::new(hosts::client(net.host(client_ip(KEEPER)), 2_000));
        let base = format!("http://{WALLET}:80");
        Self {
            wallet: WalletClient::new(&base, Credential::bearer(&files.bank), http.clone()),
            http,
            authorization: format!("Bearer {}", files.bank),
            asked: Vec::new(),
            open: Vec::new(),
            said_open: 0,
        }
    }

    /// Sends a request once, and notes what it was told.
    fn send(&mut self, number: usize) {
        let key = format!("c{KEEPER}-{number}");
        // Of this caller alone: the others freeze and close accounts.
        let to = format!("own:{KEEPER}");
        let body = json!({"to": to, "asset": ASSET, "amount_minor": "1"});
        if self.asked.len() == number {
            let op = Op::Issue(serde_json::from_value(body.clone()).expect("a request"));
            self.asked.push(Asked {
                key: key.clone(),
                op,
                answers: Vec::new(),
                open: true,
                dropped: false,
            });
        }
        let url = format!("http://{WALLET}:80/v1/issue");
        let headers = [
            ("authorization", self.authorization.as_str()),
            ("idempotency-key", key.as_str()),
        ];
        let body = serde_json::to_vec(&body).expect("JSON");
        let call = Call::post_json(&url, body, Deadline::within(PATIENCE)).headers(&headers);
        let Ok(reply) = self.http.call(call) else {
            return;
        };
        ron_sim::note(&format!(
            "{key} {} {}",
            reply.status,
            String::from_utf8_lossy(&reply.body)
        ));
        match reply.status {
            200 => {
                let done: Transaction = serde_json::from_slice(&reply.body).expect("a transaction");
                let answer = Answer::Done(Box::new(done.receipt));
                self.asked[number].answers.push(answer);
            }
            504 if reply.headers.iter().any(|(name, _)| name == "location") => {
                self.said_open += 1;
                self.open.push(number);
            }
            _ => {}
        }
    }

    /// A key that was said to be open is open or has its outcome.
    fn look_up(&mut self) {
        for number in self.open.clone() {
            let key: IdemKey = self.asked[number].key.parse().expect("a key");
            match self.wallet.operation(&key, Deadline::within(CALL)) {
                Ok(Operation::Done { receipt, .. }) => {
                    let answer = Answer::Done(receipt.into());
                    self.asked[number].answers.push(answer);
                    self.open.retain(|open| *open != number);
                }
                Err(ClientError::Refused { status: 404, .. }) => {
                    let forgotten =
                        format!("{} was said to be open, and is forgotten", key.as_str());
                    ensure(false, &forgotten);
                }
                _ => {}
            }
        }
    }

    fn act(&mut self) {
        self.send(self.asked.len());
        time::sleep(ms(below(100)));
        self.look_up();
    }

    fn settle(&mut self, by: Instant) {
        self.look_up();
        for number in 0..self.asked.len() {
            while self.asked[number].answers.is_empty() {
                self.send(number);
                let late = format!("no answer for {:?}", self.asked[number]);
                ensure(time::now() < by, &late);
                time::sleep(ms(100));
            }
        }
    }
}

fn run(operations: &Operations) {
    let mut world = World::start();
    let (net, files, history) = (world.net.clone(), Files::written(), world.history.clone());
    let client = |number| Client::new(&net, files, number, false, &history);
    let mut auditor = client(9);
    // A service that has kept no date and no entry believes the date of its start.
    let dates = below(3) > 0;
    if dates {
        auditor.works_before(time::now() + RECOVERY);
    }
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let name = format!("client-{number}");
            works(name, &over, OPERATIONS, client(number), Client::act)
        })
        .collect();
    let keeper = Keeper::new(&world.net, files);
    let keeper = works("keeper", &over, OPERATIONS, keeper, Keeper::act);
    world.disturb(dates);
    over.store(true, Ordering::SeqCst);
    let recovered = time::now() + RECOVERY;
    let mut clients: Vec<Client> = clients
        .into_iter()
        .map(|client| client.join().expect("it is not killed"))
        .collect();
    let mut keeper = keeper.join().expect("it is not killed");
    // The last fault was at the latest when the clients ended.
    let recovered = recovered.max(time::now() + RECOVERY);
    all_are_ready_before(&keeper.http, &[LEDGER, WALLET], recovered);
    auditor.works_before(recovered);
    keeper.settle(recovered);
    for client in &mut clients {
        client.settle(recovered);
    }
    ron_sim::note(&format!("{} keys were said to be open", keeper.said_open));
    let mut asked: Vec<Asked> = clients.iter_mut().flat_map(Client::asked).collect();
    asked.append(&mut keeper.asked);
    let mut views = Views::default();
    for client in &mut clients {
        views.append(&mut client.views);
    }
    check::all(&mut auditor, &asked, views);
    world.stop();
    count(&asked, operations);
}

/// Seeds of a process: the threads of killed services stay until it ends.
const SEEDS_MAX: u64 = 20;

#[test]
fn over_kills_and_power_cuts_what_was_answered_stays_and_no_key_is_forgotten() {
    explore_services(SEEDS_MAX, run);
}
