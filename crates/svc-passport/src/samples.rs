//! Test data for decisions: a policy's rules, a plain request, limits without ML-DSA, a token's claims.

use ron_auth::{Claims, RevocationView};
use ron_proto::Timestamp;
use ron_proto::caveat::CaveatMaxima;
use ron_proto::kms::Bytes;
use ron_proto::passport::{
    AudienceRule, ClientRule, IssuerPolicy, PolicyPlaces, RevocationEvent, RevocationPage, Revoked,
};
use ron_proto::policy::PolicySig;

use crate::policy::{Grant, Limits, PqMode, TokenRequest};
use crate::sync::InForce;

/// A request without options.
pub fn ask(client_id: &str) -> TokenRequest<'_> {
    TokenRequest {
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

/// A token for the wallet.
pub fn grant() -> Grant {
    Grant {
        subject: "user:1".to_owned(),
        client_id: "operator".to_owned(),
        tenant: "default".parse().expect("a constant, valid tenant"),
        audience: "svc-wallet".to_owned(),
        scope: "wallet:read".to_owned(),
        ttl_s: 900,
        caveats: Vec::new(),
        alg: "EdDSA",
        jkt: None,
        x5t: None,
        act: None,
        origin: None,
    }
}

/// A default lifetime of 15 minutes; keys for both classical algorithms.
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
        from: Vec::new(),
    }
}

/// A client of the default tenant whose tokens may live an hour, and which may exchange only its own.
pub fn client(id: &str, audiences: Vec<AudienceRule>) -> ClientRule {
    ClientRule {
        client_id: id.to_owned(),
        tenant: "default".parse().expect("a constant tenant is valid"),
        subjects: Vec::new(),
        audiences,
        max_ttl_s: 3600,
        exchange: false,
        external: Vec::new(),
    }
}

/// Unix seconds.
pub const NOW: u64 = 1_800_000_000;

/// A token of the client `operator`, made now, for ten minutes.
pub fn claims() -> Claims {
    Claims {
        iss: "i".into(),
        sub: "user:7".into(),
        iat: NOW,
        nbf: NOW,
        exp: NOW + 600,
        jti: "j1".into(),
        client_id: Some("operator".into()),
        tenant: "t1".parse().expect("a tenant"),
        scopes: vec!["wallet:read".into(), "wallet:transfer".into()],
        epoch: 2,
        caveats: vec!["asset=ron".parse().expect("a caveat")],
        kid: "k".into(),
        jkt: None,
        pq_kid: None,
        x5t: None,
        ancestors: Vec::new(),
        budgets: Vec::new(),
    }
}

/// The view of a service that has read these revocations, at unix second `now_s`.
pub fn view(all: &[Revoked], current_epoch: u64, now_s: u64) -> RevocationView {
    let mut view = RevocationView::unchecked();
    let events = all.iter().zip(1..).map(|(revoked, seq)| RevocationEvent {
        seq,
        ts: Timestamp(0),
        revoked: revoked.clone(),
        salt: Bytes::default(),
        by: Bytes::default(),
    });
    let page = RevocationPage {
        events: events.collect(),
        next: all.len() as u64,
        current_epoch,
        checkpoint: String::new(),
    };
    view.apply(&page, true, now_s).expect("a page without gaps");
    view
}

/// A policy of this version without clients; its signature is not one.
pub fn in_force(version: u64) -> InForce {
    let policy = IssuerPolicy {
        places: PolicyPlaces::default(),
        version,
        audiences: Vec::new(),
        issuers: Vec::new(),
        clients: Vec::new(),
    };
    let bytes = ron_proto::jcs::to_vec(&policy).expect("a policy has a canonical form");
    InForce {
        hash: ron_proto::ContentId::of(&bytes),
        policy,
        bytes,
        sig: PolicySig {
            alg: "ed25519".to_owned(),
            key: "none".to_owned(),
            value: String::new(),
        },
    }
}
