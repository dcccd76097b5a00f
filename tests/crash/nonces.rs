//! `kill -9` while many clients wrap at once: no nonce of AES-GCM is ever used twice, and the count
//! of uses never goes back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ron_http::Call;
use ron_kernel::Deadline;
use ron_proto::kms::WrapAnswer;
use ron_tests::tools::signal;
use ron_tests::{Fleet, json, number, until};
use serde_json::json;

/// Uses reserved at once: few, so that kills fall between reservation and use as well.
const BLOCK: u32 = 32;

#[test]
fn no_nonce_comes_twice_across_kills() {
    let mut fleet = Fleet::start();
    assert_eq!(fleet.stop(), Some(0));
    let config = fleet.dir().join("ron-kms/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}\n[nonces]\nblock = {BLOCK}\n")).unwrap();
    let mut fleet = Fleet::start_in(fleet.keep_dir());
    let token = fleet.operator_token();
    let key = create(&fleet, &token);
    let mut nonces = BTreeSet::new();
    let mut highest = None;
    for round in 0..number("RON_NONCE_ROUNDS", 4) {
        let (stop, wrapped) = (AtomicBool::new(false), AtomicU32::new(0));
        let made: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let ask = || wrap_until(&fleet, &token, &key, &stop, &wrapped);
            let askers = [(); 4].map(|()| scope.spawn(ask));
            // Past the end of a block, at another position in each round.
            until("a block is used up", || {
                wrapped.load(Ordering::Relaxed) > BLOCK + 17 * (round as u32 % 3)
            });
            signal(fleet.pid(), "-KILL");
            stop.store(true, Ordering::Release);
            askers.into_iter().flat_map(|a| a.join().unwrap()).collect()
        });
        assert!(!made.is_empty(), "round {round}: nothing was wrapped");
        let numbers: Vec<u32> = made
            .iter()
            .map(|text| u32::from_be_bytes(text[6..10].try_into().unwrap()))
            .collect();
        let (low, high) = (numbers.iter().min().unwrap(), numbers.iter().max().unwrap());
        assert!(
            highest.is_none_or(|before| *low > before),
            "round {round}: the count went back"
        );
        highest = Some(*high);
        for text in made {
            assert!(
                nonces.insert(text[6..18].to_vec()),
                "round {round}: a nonce came twice"
            );
        }
        fleet.kill();
        fleet = Fleet::start_in(fleet.keep_dir());
    }
    println!(
        "{} wrapped, uses counted to {}",
        nonces.len(),
        highest.unwrap()
    );
    assert!(
        nonces.len() as u32 > 2 * BLOCK,
        "too few to have crossed blocks"
    );
}

fn create(fleet: &Fleet, token: &str) -> String {
    let body = json!({
        "tenant": "ron", "purpose": "nonces", "alg": "aes256-gcm",
        "op_id": "01890a5d-ac96-774b-bcce-b302099a8058",
    });
    let url = format!("{}/v1/kms/keys", fleet.api_socket("ron-kms"));
    let made = json(&fleet.post(&url, Some(token), &body.to_string(), &[]), 201);
    made["key"].as_str().unwrap().to_owned()
}

/// Wraps until the service is gone; returns the ciphertexts of the responses.
fn wrap_until(
    fleet: &Fleet,
    token: &str,
    key: &str,
    stop: &AtomicBool,
    wrapped: &AtomicU32,
) -> Vec<Vec<u8>> {
    let url = format!("{}/v1/kms/wrap", fleet.api_socket("ron-kms"));
    let bearer = format!("Bearer {token}");
    let body = json!({"key": key, "plaintext": "aGVsbG8"}).to_string();
    let mut made = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let by = Deadline::within(Duration::from_secs(5));
        let call = Call::post_json(&url, body.clone().into_bytes(), by);
        let reply = fleet.http.call(call.headers(&[("Authorization", &bearer)]));
        match reply {
            Ok(reply) if reply.status == 200 => {
                let answer: WrapAnswer = serde_json::from_slice(&reply.body).unwrap();
                made.push(answer.ciphertext.0);
                wrapped.fetch_add(1, Ordering::Relaxed);
            }
            Ok(reply) => assert!([429, 503, 504].contains(&reply.status), "{reply:?}"),
            Err(_) => break, // killed
        }
    }
    made
}
