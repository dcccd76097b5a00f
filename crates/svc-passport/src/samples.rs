//! What the tests of decisions ask with: a policy's rules, a plain ask, limits without ML-DSA.

use ron_proto::caveat::CaveatMaxima;
use ron_proto::passport::{AudienceRule, ClientRule};

use crate::policy::{Ask, Limits, PqMode};

/// A client that asks for nothing in particular.
pub fn ask(client_id: &str) -> Ask<'_> {
    Ask {
        client_id,
        subject: None,
        audience: None,
        scope: None,
        ttl_s: None,
        caveats: &[],
        accept_algs: &[],
        jkt: None,
        x5t: None,
        pq_ready: false,
    }
}

/// A quarter of an hour by default; keys for both classical algorithms.
pub fn limits() -> Limits {
    Limits {
        ttl_s_default: 900,
        maxima: CaveatMaxima::default(),
        algs: vec!["EdDSA", "ES256"],
        pq: PqMode::Off,
        pq_algs: None,
    }
}

/// An audience with its scopes, under the default algorithm and without caveats.
pub fn audience(name: &str, scopes: &[&str]) -> AudienceRule {
    AudienceRule {
        audience: name.to_owned(),
        scopes: scopes.iter().map(|s| (*s).to_owned()).collect(),
        alg: None,
        algs: Vec::new(),
        caveats: Vec::new(),
    }
}

/// A client of the default tenant that may have tokens for an hour, its own only.
pub fn client(id: &str, audiences: Vec<AudienceRule>) -> ClientRule {
    ClientRule {
        client_id: id.to_owned(),
        tenant: "default".parse().expect("a constant tenant is valid"),
        subjects: Vec::new(),
        audiences,
        max_ttl_s: 3600,
        exchange: false,
    }
}
