//! `kill -9` while many clients sign and wrap: a client that got a response to an operation with an
//! id gets the same response again from the next process, although these signatures come out
//! different each time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_proto::b64;
use ron_tests::number;
use ron_tests::tools::signal;
use serde_json::{Value, json};

use super::service::{Service, op_id};

/// A request with an operation id: its route and body.
fn request(n: u64, sign: &str, wrap: &str) -> (&'static str, Value) {
    let id = op_id(u128::from(n));
    let text = b64::url(&n.to_be_bytes());
    match n % 3 {
        0 => ("sign", json!({"key": sign, "message": text, "op_id": id})),
        1 => ("wrap", json!({"key": wrap, "plaintext": text, "op_id": id})),
        _ => (
            "sign_batch",
            json!({"key": sign, "items": [{"message": text, "op_id": id}, {"message": "AA"}]}),
        ),
    }
}

/// The part of a response that must repeat: all of it, but of a batch only the item with the id.
fn essence(route: &str, body: &[u8]) -> Value {
    let answer: Value = serde_json::from_slice(body).unwrap();
    if route == "sign_batch" {
        return answer["results"][0]["answer"].clone();
    }
    answer
}

#[test]
fn an_answer_that_was_given_is_given_again_after_kills() {
    let mut service = Service::start("");
    let sign = service.create("ecdsa-p256", "file", 1);
    let wrap = service.create("aes256-gcm", "file", 2);
    let next = AtomicU64::new(1000);
    let mut given: BTreeMap<u64, Value> = BTreeMap::new();
    for round in 0..number("RON_REPLAY_ROUNDS", 2) {
        let stop = AtomicBool::new(false);
        let ask = || {
            let mut mine = Vec::new();
            while !stop.load(Ordering::Acquire) {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let (route, body) = request(n, &sign, &wrap);
                match service.try_post(route, &body) {
                    Some(reply) if reply.status == 200 => {
                        mine.push((n, essence(route, &reply.body)));
                    }
                    Some(reply) => assert_eq!(reply.status, 429, "{reply:?}"),
                    None => break, // killed
                }
            }
            mine
        };
        let new: Vec<_> = std::thread::scope(|scope| {
            let askers = [(); 4].map(|()| scope.spawn(ask));
            std::thread::sleep(Duration::from_millis(400 + 130 * (round % 3)));
            signal(service.pid(), "-KILL");
            stop.store(true, Ordering::Release);
            askers.into_iter().flat_map(|a| a.join().unwrap()).collect()
        });
        assert!(!new.is_empty(), "round {round}: nothing was answered");
        given.extend(new);
        service.kill();
        service.again();
        for (n, before) in given.iter().rev().take(300) {
            let (route, body) = request(*n, &sign, &wrap);
            let reply = service.post(route, &body);
            assert_eq!(reply.status, 200, "{n}: {reply:?}");
            assert_eq!(
                &essence(route, &reply.body),
                before,
                "round {round}, operation {n}"
            );
        }
        // An operation that was answered: the kill may also have left operations without a
        // response.
        let n = given.keys().rev().find(|n| **n % 3 == 0).unwrap();
        let (_, mut body) = request(*n, &sign, &wrap);
        body["message"] = "AAAA".into();
        let changed = service.post("sign", &body);
        assert_eq!(changed.status, 422, "another body under a known id");
    }
    let remembered = service.metric("ron_kms_replay_remembered ");
    println!("{} answers, {remembered} remembered", given.len());
    assert!(remembered >= given.len() as u64);
}
