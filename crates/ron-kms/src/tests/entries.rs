//! The leaves that a tenant reads: those about its own keys, with proofs, a bounded part of the log at a time.

use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_proto::kms::{AuditEntries, AuditEntry, CreateKey, KeyDoc, PayloadPolicy, SignRequest};
use ron_proto::values::Alg;
use ron_tlog::{TlogProof, VerifierKey};
use serde_json::{Value, json};

use super::api::{Served, code, token};
use super::create_request;

fn entries(served: &Served, name: &str, query: &str) -> AuditEntries {
    let reply = served.get_as(&token(name), &format!("/v1/kms/audit/entries{query}"));
    assert_eq!(reply.status, 200, "{name} {query}: {:?}", code(&reply));
    reply.json().expect("a page")
}

/// The operations of a page's leaves.
fn ops(page: &AuditEntries) -> Vec<String> {
    let op = |entry: &AuditEntry| {
        let leaf: Value = serde_json::from_str(&entry.leaf).expect("JSON");
        leaf["op"].as_str().expect("an operation").to_owned()
    };
    page.entries.iter().map(op).collect()
}

/// A key of tenant `default`.
fn key_of_outsider(served: &Served) -> KeyDoc {
    let request = CreateKey {
        tenant: "default".parse().expect("a tenant"),
        ..create_request("app", Alg::Ed25519, PayloadPolicy::Any, 2)
    };
    let body = serde_json::to_vec(&request).expect("JSON");
    let made = served.post_as(&token("outsider"), "/v1/kms/keys", &body);
    assert_eq!(made.status, 201, "{:?}", code(&made));
    made.json().expect("a key document")
}

#[test]
fn a_tenant_reads_the_leaves_about_its_own_keys_with_proofs() {
    let served = Served::start();
    let key = served.create("app", PayloadPolicy::Any, 1).key;
    let sign = SignRequest::message(key.clone(), *b"x");
    assert_eq!(served.post("/v1/kms/sign", &sign).status, 200);
    let other = key_of_outsider(&served).key;
    // An attempt on another tenant's key is a leaf of the key's owner.
    let body = serde_json::to_vec(&sign).expect("JSON");
    let denied = served.post_as(&token("outsider"), "/v1/kms/sign", &body);
    assert_eq!(denied.status, 403);
    let page = entries(&served, "reader", "");
    assert_eq!(ops(&page), ["start", "create", "sign", "sign"]);
    assert_eq!(page.next, page.size);
    assert!(page.entries[3].leaf.contains("\"actor\":\"outsider\""));
    assert_eq!(ops(&entries(&served, "outsider", "")), ["create"]);
    assert_eq!(ops(&entries(&served, "issuer", "")), [""; 0], "prefixes");
    // Filters and pages.
    let rest = entries(&served, "reader", "?op=sign&limit=1");
    assert_eq!(
        (ops(&rest).len(), rest.next),
        (1, rest.entries[0].index + 1)
    );
    let after = format!("?op=sign&after={}", rest.next);
    assert_eq!(ops(&entries(&served, "reader", &after)), ["sign"]);
    let of_key = format!("?key={}", key.to_string().replace('/', "%2F"));
    assert_eq!(ops(&entries(&served, "reader", &of_key)).len(), 3);
    let end = entries(&served, "reader", "?after=1000000");
    assert_eq!((end.entries.len(), end.next), (0, page.size));
    let refused = |query: &str| {
        let path = format!("/v1/kms/audit/entries{query}");
        code(&served.get_as(&token("reader"), &path))
    };
    let foreign = format!("?key={}", other.to_string().replace('/', "%2F"));
    assert_eq!(refused(&foreign), (403, "forbidden".into()));
    for bad in ["?op=steal", "?limit=0", "?limit=201", "?after=x", "?from=1"] {
        assert_eq!(refused(bad).0, 400, "{bad}");
    }
    let auditor = served.get_as(&token("auditor"), "/v1/kms/audit/entries");
    assert_eq!(auditor.status, 403, "it reads the log itself");
    // The leaf is what the proof is about.
    let text = |path: &str| {
        let until = Deadline::within(Duration::from_secs(5));
        let (_fire, never) = Shutdown::pair();
        loop {
            let reply = served.get_as("", path);
            if reply.status == 200 {
                break String::from_utf8(reply.body).expect("text");
            }
            assert!(!until.expired(), "{path}: {}", reply.status);
            never.wait(Deadline::within(Duration::from_millis(50)));
        }
    };
    let vkey = VerifierKey::parse(text("/audit/v1/vkey").trim()).expect("a key");
    let entry = &page.entries[2];
    let proof = TlogProof::parse(&text(&format!("/audit/v1/proof/{}", entry.index)));
    let proof = proof.expect("a proof");
    let keys = std::slice::from_ref(&vkey);
    assert!(
        proof
            .verify(entry.leaf.as_bytes(), keys, Some(&page.log))
            .is_ok()
    );
    served.drain();
}

#[test]
fn one_page_reads_a_bounded_part_of_the_log() {
    let served = Served::start();
    let key = served.create("app", PayloadPolicy::Any, 1).key;
    let batch = json!({"key": key, "items": vec![json!({"message": "eA"}); 1_000]});
    for _ in 0..5 {
        assert_eq!(served.post("/v1/kms/sign_batch", &batch).status, 200);
    }
    key_of_outsider(&served);
    let first = entries(&served, "outsider", "");
    assert_eq!((first.entries.len(), first.next), (0, 4_096));
    let second = entries(&served, "outsider", "?after=4096");
    assert_eq!(ops(&second), ["create"]);
    assert_eq!(second.next, second.size);
    served.drain();
}
