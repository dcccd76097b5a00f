//! The issuer's answers over the network: what is true, or what a third party, a restored backup or a damaged connection
//! would make of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ron_http::{ApiInfo, Method, Need, Request, Responder, Response, Route, Router};
use ron_proto::passport::Revoked;
use ron_sim::{Group, thread, time};

use super::ISSUER;
use super::issuer::Issuer;
use crate::chance::{below, ms};
use crate::hosts;
use crate::net::SimNet;

/// How the issuer answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Face {
    True,
    /// As it was after so many of its publications: restored from a backup, or a third party that kept it.
    Old(usize),
    /// With another event of this number, under the log's own key.
    Forked(usize),
    /// With another last event than that of the checkpoint.
    Altered,
    /// With answers that end at any byte.
    Torn,
}

struct State {
    issuer: Issuer,
    face: Face,
    /// Up to which event the verifier asked to continue, and when: it has that one in force.
    reached: Vec<(u64, Instant)>,
}

/// The issuer, and its process.
#[derive(Clone)]
pub struct Server {
    pub group: Group,
    state: Arc<Mutex<State>>,
}

impl State {
    fn size(&self) -> usize {
        match self.face {
            Face::Old(at) => self.issuer.published[at].size,
            _ => self.issuer.events.len(),
        }
    }

    fn published(&self) -> &super::issuer::Published {
        let latest = self.issuer.published.len() - 1;
        match self.face {
            Face::Old(at) => &self.issuer.published[at],
            _ => &self.issuer.published[latest],
        }
    }

    fn page(&self, after: usize) -> Vec<u8> {
        let of = self.published();
        let mut events = self.issuer.events[..of.size].to_vec();
        let other = Revoked::Jti {
            jti: "1.0.other".to_owned(),
            until: u64::MAX / 2,
        };
        if let Face::Forked(at) = self.face {
            events[at].revoked = other.clone();
        }
        let mut page = self.issuer.page(&events, after.min(of.size), of.epoch);
        if self.face == Face::Altered
            && let Some(last) = page.events.last_mut()
        {
            last.revoked = other;
        }
        serde_json::to_vec(&page).expect("a page")
    }

    fn answer(&self, kind: &'static str, mut bytes: Vec<u8>) -> Response {
        if self.face == Face::Torn {
            bytes.truncate(below(bytes.len() as u64) as usize);
        }
        Response::bytes(200, kind, bytes)
    }
}

impl Server {
    pub fn new(url: &str) -> Self {
        Self {
            group: Group::new("issuer"),
            state: Arc::new(Mutex::new(State {
                issuer: Issuer::new(url),
                face: Face::True,
                reached: Vec::new(),
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the issuer is and does. No operation of the simulator may be inside.
    pub fn with<T>(&self, change: impl FnOnce(&mut Issuer) -> T) -> T {
        change(&mut self.state().issuer)
    }

    pub fn reached(&self) -> Vec<(u64, Instant)> {
        self.state().reached.clone()
    }

    /// A face that a verifier is able to tell from the true one, or that shows it too little.
    pub fn change_face(&self) {
        let mut state = self.state();
        let known = state.reached.iter().map(|r| r.0).max().unwrap_or(0);
        let revokes = |at: &usize| {
            let of = &state.issuer.events[*at].revoked;
            matches!(
                of,
                Revoked::Jti { .. } | Revoked::Subject { .. } | Revoked::Kid { .. }
            )
        };
        let hidden: Vec<usize> = (0..known as usize).filter(revokes).collect();
        state.face = match below(4) {
            0 => Face::Old(below(state.issuer.published.len() as u64) as usize),
            // Another event that no verifier has seen would be the issuer's word like any other.
            1 if !hidden.is_empty() => Face::Forked(hidden[below(hidden.len() as u64) as usize]),
            2 => Face::Altered,
            _ => Face::Torn,
        };
    }

    pub fn be_true(&self) {
        self.state().face = Face::True;
    }

    /// The feed, once there is more than the reader has, or after its patience.
    fn events(&self, request: &Request, responder: Responder) {
        let number = |name| request.query_as::<u64>(name).ok().flatten().unwrap_or(0);
        let (after, wait) = (number("after"), number("wait"));
        if wait > 0 {
            self.state().reached.push((after, time::now()));
        }
        let until = time::now() + Duration::from_secs(wait);
        let this = self.clone();
        drop(thread::spawn(move || {
            // A log that is shorter than the reader's is an answer as well.
            while this.state().size() as u64 == after && time::now() < until {
                if responder.is_gone() {
                    return;
                }
                time::sleep(ms(50));
            }
            let answer = {
                let state = this.state();
                state.answer("application/json", state.page(after as usize))
            };
            responder.send(answer);
        }));
    }

    fn router(&self) -> Router {
        let route = |path: &'static str, handler: fn(&Server, &Request, Responder)| {
            let this = self.clone();
            Route::new(
                Method::GET,
                path,
                Need::Public,
                move |request, responder| {
                    handler(&this, &request, responder);
                },
            )
        };
        let info = ApiInfo {
            title: "issuer",
            version: "1",
            description: "",
        };
        Router::new(info)
            .add(route("/.well-known/jwks.json", |this, _, responder| {
                let answer = {
                    let state = this.state();
                    let bytes = state.published().jwks.clone().into_bytes();
                    state.answer("application/json", bytes)
                };
                responder.send(answer);
            }))
            .add(route("/v1/passport/policy", |this, _, responder| {
                let answer = {
                    let state = this.state();
                    let bytes = state.published().note.clone().into_bytes();
                    state.answer("text/plain", bytes)
                };
                responder.send(answer);
            }))
            .add(route("/v1/passport/events", Self::events).long_poll())
    }

    /// Starts its front in a group of its own.
    pub fn start(&mut self, net: &SimNet) {
        let (net, routes) = (net.clone(), self.router());
        self.group = Group::new("issuer");
        let begun = self.group.spawn("issuer", move || {
            // Its threads live as long as the process.
            std::mem::forget(hosts::front(net.host(ISSUER), routes, 2));
        });
        begun.expect("a thread").join().expect("it is not killed");
    }
}
