//! A node that is not ours, written from the description of the health port: it is ready, not ready, draining, slow, silent or something
//! else altogether, and is asked to reload.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ron_files::{CrashMode, SimDisk};
use ron_http::{ApiInfo, Method, Need, Request, Responder, Response, Route, Router};
use ron_sim::{Group, ensure, fault, thread, time};
use serde_json::json;

use super::truth::{Trouble, Truth};
use super::{NODES, credential};
use crate::chance::{below, ms};
use crate::hosts;
use crate::net::SimNet;

/// Requests a second that a node reports to have served.
pub const RATE: f64 = 10.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Face {
    #[default]
    Good,
    NotReady,
    Draining,
    Late,
    Hung,
    /// It answers, and is no node.
    Foreign,
}

#[derive(Default)]
struct State {
    face: Face,
    /// Until it is good again.
    trouble: Option<Trouble>,
    /// The ids of the requests to act.
    asked: Vec<String>,
}

/// A node, and its process. Clones are of the same node.
#[derive(Clone)]
pub struct Node {
    at: usize,
    ip: IpAddr,
    group: Group,
    born: Instant,
    state: Arc<Mutex<State>>,
    truth: Arc<Truth>,
    /// The console's disk.
    disk: SimDisk,
    net: SimNet,
}

impl Node {
    pub fn new(at: usize, truth: &Arc<Truth>, disk: SimDisk, net: &SimNet) -> Self {
        Self {
            at,
            ip: NODES[at].1,
            group: Group::new(NODES[at].0),
            born: time::now(),
            state: Arc::default(),
            truth: truth.clone(),
            disk,
            net: net.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn asked(&self) -> Vec<String> {
        self.state().asked.clone()
    }

    pub fn start(&mut self) {
        self.group = Group::new(NODES[self.at].0);
        self.born = time::now();
        let info = ApiInfo {
            title: "node",
            version: "1",
            description: "",
        };
        let mut routes = Router::new(info);
        for (method, path) in [
            (Method::GET, "/api/v1/status"),
            (Method::GET, "/readyz"),
            (Method::GET, "/metrics"),
            (Method::GET, "/api/v1/topology"),
            (Method::POST, "/api/v1/reload"),
        ] {
            let this = self.clone();
            let answer = move |request: Request, responder: Responder| {
                this.answer(path, &request, responder);
            };
            routes = routes.add(Route::new(method, path, Need::Public, answer));
        }
        let (net, ip) = (self.net.clone(), self.ip);
        let begun = self.group.spawn(NODES[self.at].0, move || {
            // Its threads live as long as the process.
            std::mem::forget(hosts::front(net.host(ip), routes, 2));
        });
        begun.expect("a thread").join().expect("it is not killed");
    }

    pub fn die(&self) {
        self.group.kill();
        self.net.sever(self.ip);
    }

    /// It is otherwise than good.
    pub fn turn(&self) {
        let (face, name) = [
            (Face::NotReady, "a node is not ready"),
            (Face::Draining, "a node drains"),
            (Face::Late, "a node is late"),
            (Face::Hung, "a node hangs"),
            (Face::Foreign, "a node is none"),
        ][below(5) as usize];
        fault::happened(name);
        let trouble = match face {
            Face::Late => self.truth.node_is_troubled(self.at),
            _ => self.truth.node_is_gone(self.at),
        };
        let mut state = self.state();
        state.face = face;
        state.trouble = Some(trouble);
    }

    pub fn be_good(&self) {
        let mut state = self.state();
        state.face = Face::Good;
        let trouble = state.trouble.take();
        drop(state);
        if let Some(trouble) = trouble {
            trouble.ends();
        }
    }

    fn answer(&self, path: &str, request: &Request, responder: Responder) {
        let face = self.state().face;
        if path == "/api/v1/reload" {
            self.is_asked_to_act(request);
        }
        match face {
            Face::Hung => drop(thread::spawn(move || {
                time::sleep(Duration::from_secs(3_600));
                drop(responder);
            })),
            Face::Late => {
                let answer = self.document(path, face);
                drop(thread::spawn(move || {
                    time::sleep(ms(below(900)));
                    responder.send(answer);
                }));
            }
            _ => responder.send(self.document(path, face)),
        }
    }

    fn document(&self, path: &str, face: Face) -> Response {
        if face == Face::Foreign {
            return match path {
                "/api/v1/status" => Response::text(200, "hello"),
                _ => Response::empty(404),
            };
        }
        let age = time::now() - self.born;
        match path {
            "/api/v1/status" => {
                let status =
                    json!({"service": "node", "health": "healthy", "uptimeSeconds": age.as_secs()});
                Response::json(200, &status)
            }
            "/readyz" => match face {
                Face::NotReady => not_ready("disk"),
                Face::Draining => not_ready("draining"),
                _ => Response::json(200, &json!({"ready": true})),
            },
            "/metrics" => {
                let served = age.as_secs_f64() * RATE;
                let name =
                    "node_http_requests_total{route=\"/v1/a\",method=\"GET\",status=\"200\"}";
                Response::text(200, format!("{name} {served}\n"))
            }
            "/api/v1/topology" => Response::json(200, &json!({"threads": [], "queues": []})),
            _ => Response::json(200, &json!({"result": "reloaded", "changes": []})),
        }
    }

    /// The console asks with its credential, and has announced it on its disk: that line would be there after a power cut.
    fn is_asked_to_act(&self, request: &Request) {
        let id = request.trace.id();
        let bearer = format!("Bearer {}", credential());
        ensure(
            request.header("authorization") == Some(&bearer),
            &format!("{id} comes without the credential"),
        );
        fault::happened("a node is asked to act");
        ensure(
            is_on_the_disk(&self.disk, id),
            &format!("{id} acts before its line is durable"),
        );
        self.state().asked.push(id.to_owned());
        if below(8) == 0 {
            fault::happened("a connection breaks while a node acts");
            let trouble = self.truth.node_is_troubled(self.at);
            self.net.cut(self.ip);
            trouble.ends();
        }
    }
}

/// Whether a text would be in the console's file after a power cut.
pub fn is_on_the_disk(disk: &SimDisk, text: &str) -> bool {
    let kept = disk.fork();
    kept.crash(CrashMode::LoseAll);
    let file = kept.peek(Path::new("/sim/data/admin.db"));
    let file = file.unwrap_or_default();
    file.windows(text.len()).any(|part| part == text.as_bytes())
}

fn not_ready(missing: &str) -> Response {
    Response::json(503, &json!({"ready": false, "missing": [missing]}))
}
