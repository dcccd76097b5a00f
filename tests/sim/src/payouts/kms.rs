//! A stand-in for the KMS: it signs digests with a seeded key, and remembers what it has signed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ron_crypto::sign::Ed25519Key;
use ron_http::{ApiInfo, Method, Need, Request, Responder, Response, Route, Router};
use ron_proto::kms::{Bytes, DigestAlg, SignAnswer, SignRequest, Signature};
use ron_proto::problem::Problem;
use ron_proto::receipt::LogReceipt;
use ron_proto::{Alg, ContentId, b64};
use ron_sim::{Group, time};

use super::KMS;
use super::formats::digest_message;
use crate::hosts;
use crate::net::SimNet;

/// The key that signs manifests.
pub const KID: &str = "ron/manifest/ed25519/018f0000-0000-7000-8000-000000000001";

fn key(seed: u8) -> Ed25519Key {
    Ed25519Key::from_seed(&[seed; 32])
}

/// The public key of manifests, as services pin it.
pub fn public() -> [u8; 32] {
    key(32).public()
}

pub fn pinned() -> String {
    b64::url(&public())
}

/// How the stand-in answers, from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Face {
    #[default]
    Good,
    /// It refuses for now.
    Away,
    /// With a key that nobody has pinned, as after a rotation that its operator forgot.
    OtherKey,
}

#[derive(Debug, Default)]
struct State {
    face: Face,
    /// By digest: the date of the first good signature, since the epoch.
    signed: BTreeMap<ContentId, Duration>,
}

/// The KMS, and its process.
#[derive(Clone)]
pub struct Kms {
    pub group: Group,
    state: Arc<Mutex<State>>,
}

impl Kms {
    pub fn new() -> Self {
        Self {
            group: Group::new("kms"),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn turn(&self, face: Face) {
        ron_sim::note(&format!("the KMS is {face:?}"));
        self.state().face = face;
    }

    /// How many digests it has signed.
    pub fn signatures(&self) -> usize {
        self.state().signed.len()
    }

    /// When it has signed this first.
    pub fn signed(&self, digest: &ContentId) -> Option<Duration> {
        self.state().signed.get(digest).copied()
    }

    fn sign(&self, request: &Request) -> Result<Response, Problem> {
        let asked: SignRequest = request.json()?;
        let named = asked.key.kid().cloned();
        let named = named.ok_or_else(|| Problem::bad_request("a key signs by its name"))?;
        let digest = asked
            .digest
            .filter(|digest| digest.alg == DigestAlg::Blake3);
        let digest = digest.and_then(|digest| format!("b3:{}", digest.value).parse().ok());
        let digest: ContentId =
            digest.ok_or_else(|| Problem::bad_request("a BLAKE3 digest is signed"))?;
        let face = self.state().face;
        let signer = match face {
            Face::Away => return Err(Problem::unavailable("the device is away", 1)),
            Face::OtherKey => key(33),
            Face::Good => key(32),
        };
        if face == Face::Good {
            let now = time::date();
            self.state().signed.entry(digest).or_insert(now);
        }
        let signature = Signature {
            alg: Alg::Ed25519,
            scheme: None,
            signature: Bytes(signer.sign(&digest_message(&digest)).to_vec()),
        };
        let answer = SignAnswer {
            key: named,
            version: 1,
            signatures: vec![signature],
            receipt: LogReceipt {
                log: "sim/audit".to_owned(),
                index: 1,
            },
            proof: None,
            attestation: None,
        };
        Ok(Response::json(200, &answer))
    }

    /// Starts its front in a group of its own.
    pub fn start(&mut self, net: &SimNet) {
        let this = self.clone();
        let sign = move |request: Request, responder: Responder| {
            let answer = this.sign(&request);
            responder.send(answer.unwrap_or_else(Response::from));
        };
        let info = ApiInfo {
            title: "kms",
            version: "1",
            description: "",
        };
        let route = Route::new(Method::POST, "/v1/kms/sign", Need::Public, sign);
        let routes = Router::new(info).add(route.body::<SignRequest>());
        let net = net.clone();
        self.group = Group::new("kms");
        let begun = self.group.spawn("kms", move || {
            // Its threads live as long as the process.
            std::mem::forget(hosts::front(net.host(KMS), routes, 2));
        });
        begun.expect("a thread").join().expect("it is not killed");
    }
}
