//! Tokens that are bound to the key of their holder, and the proofs with which they are shown.

use std::time::Instant;

use ron_auth::Holder;
use ron_auth::dpop::make_proof;
use ron_crypto::sign::Ed25519Key;
use ron_http::Call;
use ron_sim::fault;
use serde_json::Value;

use super::VERIFIER;
use super::actors::{Actor, End, Observations, SUBJECTS};
use super::tokens::Token;
use crate::chance::below;

/// How a token is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As its kind wants it: alone, or with a proof of this moment.
    Right,
    /// A bound token alone.
    Bearer,
    /// With a proof for another place, for another method, by another key.
    Place,
    Method,
    Key,
    /// With a proof that was shown before.
    Again,
}

impl Manner {
    pub fn any() -> Self {
        match below(10) {
            0 => Self::Bearer,
            1 => Self::Place,
            2 => Self::Method,
            3 => Self::Key,
            4 | 5 => Self::Again,
            _ => Self::Right,
        }
    }
}

const PATH: &str = "/v1/ledger/events";

/// The key of a holder.
pub fn holder(subject: &str) -> Holder {
    let at = SUBJECTS.iter().position(|of| *of == subject);
    Holder::new(Ed25519Key::from_seed(&[150 + at.unwrap_or(100) as u8; 32]))
}

impl Actor {
    /// A proof for a token.
    pub fn proof(&self, token: &Token, manner: Manner) -> String {
        let (place, method, of) = match manner {
            Manner::Place => ("/v1/ledger/head", "GET", token.sub.as_str()),
            Manner::Method => (PATH, "POST", token.sub.as_str()),
            Manner::Key => (PATH, "GET", "user:mallory"),
            _ => (PATH, "GET", token.sub.as_str()),
        };
        let url = format!("http://{VERIFIER}:80{place}");
        let id = format!("proof-{:x}-{:x}", fault_word(), fault_word());
        let now_s = ron_sim::time::date().as_secs();
        make_proof(
            &holder(of),
            method,
            &url,
            Some(&token.text),
            None,
            now_s,
            &id,
        )
    }

    /// Shows a bound token, with a proof or without.
    pub fn show_bound(&self, token: &Token, proof: Option<&str>) -> (End, Instant) {
        let url = format!("http://{VERIFIER}:80{PATH}?after=0&wait=0");
        let scheme = if proof.is_some() { "DPoP" } else { "Bearer" };
        let authorization = format!("{scheme} {}", token.text);
        let mut headers = vec![("Authorization", authorization.as_str())];
        headers.extend(proof.map(|proof| ("DPoP", proof)));
        let call = |until| {
            self.http.call(Call {
                headers: &headers,
                ..Call::get(&url, until)
            })
        };
        let (answer, began) = self.call("a use", call);
        let end = match answer {
            Ok(reply) if reply.status == 200 => End::Accepted,
            Ok(reply) if reply.status < 500 => {
                let problem: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
                let reason = problem["details"]["reason"].as_str().unwrap_or_default();
                End::Refused(reply.status, reason.to_owned())
            }
            _ => End::Unknown,
        };
        (end, began)
    }

    /// Shows a token in any manner.
    pub fn show_somehow(&self, token: &Token) {
        let manner = match token.bound {
            true => Manner::any(),
            false => Manner::Right,
        };
        if manner != Manner::Again {
            self.show_as(token, manner, None);
            return;
        }
        fault::happened("a proof comes twice");
        let proof = self.proof(token, Manner::Right);
        self.show_as(token, Manner::Right, Some(&proof));
        self.show_as(token, Manner::Again, Some(&proof));
    }
}

fn fault_word() -> u64 {
    below(u64::MAX)
}

/// A bound token passes with its proof alone, and with each proof once. A verifier that was started again has forgotten which proofs
/// it has seen.
pub fn check(seen: &Observations, calm: bool) {
    for used in &seen.uses {
        let passes = match used.manner {
            Manner::Right => true,
            Manner::Again => !calm,
            _ => false,
        };
        ron_sim::ensure(
            passes || used.end != End::Accepted,
            &format!("{used:?} of {:?}", seen.tokens[used.token]),
        );
    }
}
