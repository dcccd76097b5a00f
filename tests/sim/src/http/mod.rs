//! A front and its clients over the simulated network: every request is answered once and by its deadline, whatever the
//! network and the handlers do; a drain loses no answer, and nothing leaks.

mod clients;
mod server;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ron_sim::{ensure, fault, thread, time};

use crate::chance::{below, ms, one_of};
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::net::{SimNet, Weather};
use clients::{Asked, Kind};
use server::Server;

const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));
/// Calls of each client.
const CALLS: usize = 8;
const CLIENTS: u8 = 3;
/// Within which everything must work again after the last fault.
const RECOVERY: Duration = Duration::from_secs(10);

/// What the network does in a run of bad weather.
fn bad_weather() -> Weather {
    Weather {
        slow_segments: one_of([0, 50_000, 300_000]),
        slow: ms(one_of([1, 30, 700]).into()),
        cuts: one_of([0, 5_000, 60_000]),
        half_open: one_of([0, 0, 20_000]),
        refusals: one_of([0, 10_000, 100_000]),
        ..Weather::default()
    }
}

/// Faults of the hosts, one after the other, until the clients are served.
fn disturb(net: &SimNet, server: &Server) {
    for _ in 0..below(4) {
        time::sleep(ms(below(400)));
        let client = client_ip(below(CLIENTS.into()) as u8);
        match below(3) {
            0 => hosts::part(net, SERVER, client, 1_500),
            1 => {
                fault::happened("a service stands still");
                server.group.pause(ms(below(1_000)));
            }
            _ => net.set_weather(bad_weather()),
        }
    }
    net.set_weather(Weather::default());
}

fn ask_all(net: &SimNet, server: &Arc<Server>) -> Vec<Asked> {
    let clients = (0..CLIENTS).map(|number| {
        let (host, server) = (net.host(client_ip(number)), server.clone());
        let name = format!("client-{number}");
        let body = move || clients::ask(host, &server, number, CALLS);
        thread::spawn_named(name, body).expect("a thread")
    });
    let clients: Vec<_> = clients.collect();
    let asked = clients
        .into_iter()
        .map(|client| client.join().expect("it is not killed"));
    asked.flatten().collect()
}

/// A drain in the middle of the calls, on a network without faults: every request that was let in is answered.
fn calm(operations: &Operations) {
    let net = SimNet::new(Weather::default());
    let server = Arc::new(Server::start(&net));
    let drainer = {
        let server = server.clone();
        thread::spawn(move || {
            time::sleep(ms(below(1_500)));
            server.drain();
        })
    };
    let asked = ask_all(&net, &server);
    drainer.join().expect("it is not killed");
    for call in &asked {
        operations.add();
        call.check(&server);
        call.check_answered(&server);
    }
    server.check_empty(&net);
}

/// Calls in bad weather; then the network is good again, and so is the service.
fn stormy(operations: &Operations) {
    let net = SimNet::new(bad_weather());
    let server = Arc::new(Server::start(&net));
    let disturber = {
        let (net, server) = (net.clone(), server.clone());
        thread::spawn(move || disturb(&net, &server))
    };
    let asked = ask_all(&net, &server);
    disturber.join().expect("it is not killed");
    for call in &asked {
        operations.add();
        call.check(&server);
    }
    let recovered = time::now() + RECOVERY;
    let mut last = clients::Client::new(net.host(client_ip(9)), 9);
    let works = last.ask(&server, Kind::Now, 1_000, 0);
    ensure(
        works.answer() == Some(200),
        "the service works again after the last fault",
    );
    ensure(time::now() < recovered, "in time");
    drop(last);
    server.drain();
    server.check_empty(&net);
}

/// A single client, whose requests are never answered: no other traffic wakes the thread that has to notice it.
fn quiet(operations: &Operations) {
    let net = SimNet::new(Weather::default());
    let server = Server::start(&net);
    let mut client = clients::Client::new(net.host(client_ip(0)), 0);
    for _ in 0..CALLS {
        let asked = client.ask(&server, Kind::Never, 700 + below(900), 0);
        operations.add();
        asked.check(&server);
        asked.check_answered(&server);
    }
    drop(client);
    server.drain();
    server.check_empty(&net);
}

#[test]
fn a_quiet_front_answers_at_the_deadline() {
    explore_services(u64::MAX, quiet);
}

#[test]
fn a_drain_loses_no_answer() {
    explore_services(u64::MAX, calm);
}

#[test]
fn every_request_is_answered_once_and_in_time_in_any_weather() {
    explore_services(u64::MAX, stormy);
}
