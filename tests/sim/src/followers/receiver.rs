//! The receiver of messages, written from `docs/webhooks.md`: it answers well or badly, late or never, and keeps all that came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ron_crypto::hash::hmac_sha256;
use ron_http::{ApiInfo, Method, Need, Request, Responder, Response, Route, Router};
use ron_proto::b64;
use ron_proto::wallet::WebhookMessage;
use ron_sim::{Group, ensure, fault, thread, time};

use super::{ENDPOINTS, RECEIVER};
use crate::chance::{below, ms};
use crate::hosts;
use crate::net::SimNet;

/// Longest time between the signature of a message and its arrival: it may wait while hosts are parted.
const UNDER_WAY: Duration = Duration::from_secs(30);

fn key(endpoint: &str) -> [u8; 32] {
    let at = ENDPOINTS.iter().position(|(name, _)| *name == endpoint);
    [100 + at.expect("an endpoint") as u8; 32]
}

/// The secret of an endpoint, as its file has it.
pub fn secret(endpoint: &str) -> String {
    format!("whsec_{}\n", b64::std(&key(endpoint)))
}

/// How messages are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Face {
    #[default]
    Good,
    /// Some well, some badly, some late or never.
    Moody,
    /// No message is accepted.
    Failing,
    /// No further message is wanted.
    Unwilling,
}

/// A message as it came.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub endpoint: &'static str,
    pub id: String,
    /// When it was signed, in seconds of the wallet's date.
    pub signed_s: u64,
    pub message: WebhookMessage,
    /// Whether it was answered 2xx.
    pub accepted: bool,
    /// How often cursors may have been lost by then.
    pub backs: u64,
}

#[derive(Default)]
struct State {
    face: Face,
    arrivals: Vec<Arrival>,
    backs: u64,
    /// Endpoints that must get no message which is signed after this second.
    silent: BTreeMap<&'static str, u64>,
    /// Endpoints that said that they want no further message.
    unwilling: BTreeMap<&'static str, u64>,
}

/// The receiver, and its process.
#[derive(Clone)]
pub struct Receiver {
    group: Group,
    state: Arc<Mutex<State>>,
}

enum Answer {
    Now(u16),
    /// After this time, when the sender has gone.
    Late(u16),
    Never,
}

impl Receiver {
    pub fn new() -> Self {
        Self {
            group: Group::new("receiver"),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.state().arrivals.clone()
    }

    pub fn accepted(&self) -> usize {
        self.state().arrivals.iter().filter(|a| a.accepted).count()
    }

    pub fn may_go_back(&self) {
        self.state().backs += 1;
    }

    /// From now on this endpoint gets nothing that is signed later.
    pub fn silence(&self, endpoint: &'static str) {
        let now = time::date().as_secs();
        self.state().silent.insert(endpoint, now);
    }

    pub fn hear(&self, endpoint: &'static str) {
        self.state().silent.remove(endpoint);
    }

    /// How often the endpoint has said that it wants no further message.
    pub fn refusals(&self, endpoint: &str) -> u64 {
        self.state().unwilling.get(endpoint).copied().unwrap_or(0)
    }

    /// It answers differently from now on.
    pub fn turn(&self) {
        let face = match below(4) {
            0 => Face::Good,
            1 => Face::Failing,
            2 => Face::Unwilling,
            _ => Face::Moody,
        };
        ron_sim::note(&format!("the receiver is {face:?}"));
        self.state().face = face;
    }

    pub fn be_moody(&self) {
        self.state().face = Face::Moody;
    }

    pub fn refuse(&self) {
        self.state().face = Face::Unwilling;
    }

    pub fn be_good(&self) {
        self.state().face = Face::Good;
    }

    fn answer(face: Face) -> Answer {
        let well = || [200, 202, 204][below(3) as usize];
        let badly = || [400, 404, 500, 503, 302][below(5) as usize];
        match face {
            Face::Good => Answer::Now(well()),
            Face::Failing => Answer::Now(badly()),
            Face::Unwilling => Answer::Now(410),
            Face::Moody => match below(8) {
                0 => Answer::Now(badly()),
                1 => Answer::Never,
                2 => Answer::Late(well()),
                _ => Answer::Now(well()),
            },
        }
    }

    fn take(&self, request: &Request, responder: Responder) {
        let endpoint = request.param("endpoint");
        let (endpoint, _) = *ENDPOINTS
            .iter()
            .find(|(name, _)| *name == endpoint)
            .expect("an endpoint");
        let (id, signed_s) = verified(request, endpoint);
        let message = serde_json::from_slice::<WebhookMessage>(&request.body);
        let Ok(message) = message else {
            ensure(false, &format!("a message cannot be read: {message:?}"));
            return;
        };
        let face = self.state().face;
        let answer = Self::answer(face);
        let accepted = match answer {
            Answer::Now(status) | Answer::Late(status) => (200..300).contains(&status),
            Answer::Never => false,
        };
        ron_sim::report(&format!(
            "{endpoint} gets {} of {}: accepted {accepted}",
            message.data.seq, message.kind
        ));
        {
            let mut state = self.state();
            let silent = state.silent.get(endpoint).is_some_and(|s| signed_s > *s);
            let text = format!(
                "{endpoint} gets {} although nothing is due",
                message.data.seq
            );
            let backs = state.backs;
            state.arrivals.push(Arrival {
                endpoint,
                id,
                signed_s,
                message,
                accepted,
                backs,
            });
            if matches!(answer, Answer::Now(410)) {
                *state.unwilling.entry(endpoint).or_default() += 1;
            }
            drop(state);
            ensure(!silent, &text);
        }
        match answer {
            Answer::Now(status) => send(status, responder),
            Answer::Late(status) => {
                fault::happened("a receiver is late");
                drop(thread::spawn(move || {
                    time::sleep(ms(900 + below(1_000)));
                    send(status, responder);
                }));
            }
            Answer::Never => {
                fault::happened("a receiver hangs");
                drop(thread::spawn(move || {
                    time::sleep(Duration::from_secs(3_600));
                    drop(responder);
                }));
            }
        }
    }

    pub fn start(&mut self, net: &SimNet) {
        let this = self.clone();
        let take = move |request: Request, responder: Responder| this.take(&request, responder);
        let info = ApiInfo {
            title: "receiver",
            version: "1",
            description: "",
        };
        let route = Route::new(Method::POST, "/{endpoint}", Need::Public, take);
        let routes = Router::new(info).add(route.body::<WebhookMessage>());
        let net = net.clone();
        self.group = Group::new("receiver");
        let begun = self.group.spawn("receiver", move || {
            // Its threads live as long as the process.
            std::mem::forget(hosts::front(net.host(RECEIVER), routes, 4));
        });
        begun.expect("a thread").join().expect("it is not killed");
    }

    /// It is away for a while.
    pub fn restart(&mut self, net: &SimNet) {
        fault::happened("a receiver is away");
        self.group.kill();
        net.sever(RECEIVER);
        time::sleep(ms(below(1_500)));
        self.start(net);
    }
}

fn send(status: u16, responder: Responder) {
    let answer = Response::empty(status);
    responder.send(match status {
        302 => answer.header("Location", "/elsewhere"),
        503 => answer.header("Retry-After", (1 + below(3)).to_string()),
        _ => answer,
    });
}

/// The id of a message, and the second in which it was signed.
fn verified(request: &Request, endpoint: &str) -> (String, u64) {
    let header = |name| request.header(name).unwrap_or_default();
    let (id, signed_s) = (header("webhook-id"), header("webhook-timestamp"));
    let signed = [
        id.as_bytes(),
        b".",
        signed_s.as_bytes(),
        b".",
        &request.body,
    ]
    .concat();
    let tag = format!("v1,{}", b64::std(&hmac_sha256(&key(endpoint), &signed)));
    let text = format!("{id} of {endpoint} has a signature of its own");
    ensure(header("webhook-signature") == tag, &text);
    let signed_s: u64 = signed_s.parse().unwrap_or(0);
    let now = time::date().as_secs();
    let fresh = signed_s <= now + 1 && signed_s + UNDER_WAY.as_secs() >= now;
    ensure(
        fresh,
        &format!("{id} was signed at {signed_s}, and now is {now}"),
    );
    (id.to_owned(), signed_s)
}
