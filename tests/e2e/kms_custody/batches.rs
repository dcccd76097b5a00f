//! Batches: verification, wrapping and unwrapping, with a result for each item.

use ron_proto::b64;
use serde_json::{Value, json};

use super::service::{Service, op_id};

fn results(service: &Service, path: &str, body: &Value) -> Vec<Value> {
    let answer = ron_tests::json(&service.post(path, body), 200);
    answer["results"].as_array().unwrap().clone()
}

#[test]
fn each_item_of_a_batch_has_its_own_answer() {
    let service = Service::start("");
    let key = service.create("ml-dsa-65", "file", 1);
    let items: Vec<Value> = (0..20)
        .map(|n| json!({"message": b64::url(&[n])}))
        .collect();
    let signed = results(&service, "sign_batch", &json!({"key": key, "items": items}));
    let verify: Vec<Value> = (0_u8..20)
        .map(|n| {
            let text = if n == 7 { [99] } else { [n] };
            let name = if n == 8 {
                key.replace("acme/", "other/")
            } else {
                key.clone()
            };
            let signatures = &signed[usize::from(n)]["answer"]["signatures"];
            json!({"key": name, "message": b64::url(&text), "signatures": signatures})
        })
        .collect();
    let verified = results(&service, "verify_batch", &json!({"items": verify}));
    for (n, result) in verified.iter().enumerate() {
        match n {
            8 => assert_eq!(result["error"]["code"], "forbidden", "{result}"),
            _ => assert_eq!(result["answer"]["ok"], n != 7, "{n}: {result}"),
        }
    }
    let none = service.post("verify_batch", &json!({"items": []}));
    assert_eq!(none.status, 400);
    // Small items, so that their number and not their size is refused.
    let small = service.create("ed25519", "file", 2);
    let one = json!({"key": small, "items": [{"message": "AA"}]});
    let signatures = &results(&service, "sign_batch", &one)[0]["answer"]["signatures"];
    let item = json!({"key": small, "message": "AA", "signatures": signatures});
    let batch = |n| json!({"items": std::iter::repeat_n(&item, n).collect::<Vec<_>>()});
    assert_eq!(service.post("verify_batch", &batch(1000)).status, 200);
    assert_eq!(service.post("verify_batch", &batch(1001)).status, 400);
}

#[test]
fn a_batch_wraps_and_unwraps_each_item_by_itself() {
    let service = Service::start("");
    let key = service.create("aes256-gcm", "file", 1);
    let kwp = service.create("aes256-kwp", "file", 2);
    let aad = b64::url(b"bound");
    let id = op_id(500);
    let body = json!({"key": key, "items": [
        {"plaintext": b64::url(b"one")},
        {"plaintext": b64::url(b"two"), "aad": aad},
        {"plaintext": b64::url(b"three"), "key": kwp},
        {"plaintext": "", "key": kwp},
        {"plaintext": b64::url(b"five"), "op_id": id},
        {"plaintext": b64::url(b"six"), "version": 2},
    ]});
    let wrapped = results(&service, "wrap_batch", &body);
    let codes = |results: &[Value]| -> Vec<String> {
        let code = |r: &Value| r["error"]["code"].as_str().unwrap_or("ok").to_owned();
        results.iter().map(code).collect()
    };
    assert_eq!(
        codes(&wrapped),
        ["ok", "ok", "ok", "bad_request", "ok", "not_found"]
    );
    let again = results(&service, "wrap_batch", &body);
    assert_eq!(
        again[4], wrapped[4],
        "the same operation id, the same answer"
    );
    assert_ne!(again[0], wrapped[0]);
    let text = |n: usize| wrapped[n]["answer"]["ciphertext"].clone();
    let opened = results(
        &service,
        "unwrap_batch",
        &json!({"key": key, "items": [
            {"ciphertext": text(0)},
            {"ciphertext": text(1), "aad": aad},
            {"ciphertext": text(1)},
            {"ciphertext": text(2), "key": kwp},
            {"ciphertext": text(2)},
            {"ciphertext": text(4)},
        ]}),
    );
    assert_eq!(
        codes(&opened),
        [
            "ok",
            "ok",
            "ciphertext_refused",
            "ok",
            "ciphertext_refused",
            "ok"
        ]
    );
    let plain = |n: usize| opened[n]["answer"]["plaintext"].clone();
    assert_eq!(
        [plain(0), plain(1), plain(3), plain(5)],
        [b"one".as_slice(), b"two", b"three", b"five"].map(|t| Value::from(b64::url(t)))
    );
    // One leaf each, consecutive, and none for a replayed item.
    let index = |r: &Value| r["answer"]["receipt"]["index"].as_u64().unwrap();
    assert_eq!(index(&wrapped[1]), index(&wrapped[0]) + 1);
    assert_eq!(index(&opened[5]), index(&opened[0]) + 5);
    let many: Vec<Value> = (0..1001).map(|_| json!({"plaintext": "AA"})).collect();
    let many = service.post("wrap_batch", &json!({"key": key, "items": many}));
    assert_eq!(many.status, 400);
}
