//! The front under test, with handlers of every manner.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ron_http::{ApiInfo, FrontHandle, Method, Need, Request, Responder, Response, Route, Router};
use ron_kernel::Supervisor;
use ron_sim::{Group, ensure, thread, time};

use super::SERVER;
use crate::chance::{below, ms};
use crate::hosts::{self, REQUEST};
use crate::net::SimNet;

/// Bytes of a large answer: more than the network holds of a connection.
pub const LARGE: usize = 150_000;

/// Requests that handlers have seen, by their number.
type SeenCounts = Arc<Mutex<BTreeMap<u64, u32>>>;

pub struct Server {
    pub group: Group,
    pub addr: SocketAddr,
    seen: SeenCounts,
    front: FrontHandle,
    sup: Supervisor,
}

/// The number of a request, and how long its handler is to take.
fn wish(request: &Request) -> (u64, Duration) {
    let text = std::str::from_utf8(&request.body).expect("the client's text");
    let (number, wait) = text.split_once(' ').expect("two numbers");
    (
        number.parse().expect("a number"),
        ms(wait.parse().expect("a number")),
    )
}

fn answer(number: u64) -> Response {
    Response::text(200, number.to_string())
}

fn routes(seen: &SeenCounts) -> Router {
    let route = |path: &'static str, handler: fn(Request, Responder)| {
        let seen = seen.clone();
        Route::new(
            Method::POST,
            path,
            Need::Public,
            move |request: Request, responder| {
                let (number, _) = wish(&request);
                *seen.lock().unwrap().entry(number).or_insert(0) += 1;
                handler(request, responder);
            },
        )
        .body_bytes(&[])
    };
    let info = ApiInfo {
        title: "test",
        version: "1",
        description: "",
    };
    Router::new(info)
        .add(route("/now", |request, responder| {
            responder.send(answer(wish(&request).0))
        }))
        .add(route("/slow", |request, responder| {
            let (number, wait) = wish(&request);
            time::sleep(wait / 4); // on the worker, which serves nobody else meanwhile
            responder.send(answer(number));
        }))
        .add(route("/later", later))
        .add(route("/poll", later).long_poll())
        .add(route("/large", |request, responder| {
            let mut text = wish(&request).0.to_string().into_bytes();
            text.resize(LARGE, b' ');
            responder.send(Response::bytes(200, "text/plain", text));
        }))
        .add(route("/never", |_, responder| {
            drop(thread::spawn(move || {
                while !responder.is_gone() {
                    time::sleep(ms(50));
                }
            }));
        }))
        .add(route("/drops", |_, responder| drop(responder)))
        .add(route("/panics", |_, _| panic!("a handler's fault")))
}

/// Answers from another thread.
fn later(request: Request, responder: Responder) {
    let (number, wait) = wish(&request);
    drop(thread::spawn(move || {
        time::sleep(wait);
        responder.send(answer(number));
    }));
}

impl Server {
    pub fn start(net: &SimNet) -> Self {
        let group = Group::new("server");
        let net = net.clone();
        let seen = SeenCounts::default();
        let routes = routes(&seen);
        let workers = 1 + below(3) as usize;
        let begun = group.spawn("server", move || {
            hosts::front(net.host(SERVER), routes, workers)
        });
        let (front, sup) = begun.expect("a thread").join().expect("it is not killed");
        Self {
            group,
            addr: front.addr(),
            seen,
            front,
            sup,
        }
    }

    /// How often handlers have seen a request.
    pub fn seen(&self, number: u64) -> u32 {
        self.seen.lock().unwrap().get(&number).copied().unwrap_or(0)
    }

    pub fn drain(&self) {
        let sup = self.sup.clone();
        let drained = self
            .group
            .spawn("drain", move || sup.drain(Duration::from_secs(20)));
        let report = drained.expect("a thread").join().expect("it is not killed");
        ensure(
            report.stragglers.is_empty(),
            &format!("still run: {:?}", report.stragglers),
        );
    }

    /// After the drain: no connection, no request, no socket is left.
    pub fn check_empty(&self, net: &SimNet) {
        // The last answers of threads of handlers are discarded when they come.
        time::sleep(REQUEST + Duration::from_secs(1));
        let left = (
            self.front.connections(),
            self.front.in_flight(),
            net.open_ends(SERVER),
        );
        ensure(
            left == (0, 0, 0),
            &format!("connections, requests, sockets are left: {left:?}"),
        );
    }
}
