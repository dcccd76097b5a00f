//! Carried out, refused or unknown: the typed clients against scripted peers.
#![allow(clippy::disallowed_methods)] // tests start their own peers

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ron_client::{ClientError, Credential, KmsClient, LedgerClient, WalletClient};
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::{Deadline, OsRandom, Random as _};
use ron_proto::kms::{SignBatch, SignItem, SignRequest};
use ron_proto::ledger::Details;
use ron_proto::wallet::Transfer;
use ron_proto::{Amount, IdemKey, Kid, OpId};

/// What the peer does with one request.
#[derive(Clone, Copy)]
enum Act {
    /// Answers with this status and body.
    Answer(u16, &'static str),
    /// Reads the request and closes the connection: the request may have been carried out.
    HangUp,
}

use Act::{Answer, HangUp};

const TRANSACTION: &str = r#"{"receipt":{"txid":"tx_00000000000000070000000000000001","op":"transfer","from":"a","to":"b","asset":"ron","amount_minor":"5","ts":"2025-03-01T12:00:00.000Z","seq":7,"receipt_hash":"sha256:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},"private":{"idem":"k","nonce":1}}"#;

/// A peer that follows its script, one connection per request, and closes the connection past its
/// end. Returns the count of requests it has read.
fn peer(script: &'static [Act]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            read_request(&mut stream);
            let act = script.get(seen.fetch_add(1, Ordering::SeqCst));
            if let Some(Answer(status, body)) = act {
                let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\n");
                let length = format!("content-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{length}{body}").as_bytes());
            }
        }
    });
    (addr, count)
}

/// Reads one request with its body, so that closing the connection is no reset.
fn read_request(stream: &mut TcpStream) {
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut part) {
        seen.extend_from_slice(&part[..n]);
        let text = String::from_utf8_lossy(&seen).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |n| n.trim().parse().expect("a length"));
        if body.len() >= length {
            return;
        }
    }
}

#[test]
fn a_service_is_called_over_its_unix_socket() {
    let path = std::env::temp_dir().join(format!("ron-{}.sock", OsRandom.u64()));
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a free path");
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a call");
        let mut seen = [0; 1024];
        let count = stream.read(&mut seen).expect("a request");
        let body = r#"{"code":"not_found","type":"t","title":"t","status":404,"detail":"d"}"#;
        let head = format!("HTTP/1.1 404 x\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
        String::from_utf8_lossy(&seen[..count]).to_ascii_lowercase()
    });
    let base = format!("unix:{}", path.display());
    let ledger = LedgerClient::new(&base, Credential::bearer("t"), http());
    let error = ledger.head(soon()).expect_err("not found");
    assert_eq!(error.status(), Some(404), "{error}");
    let request = peer.join().expect("the peer ends");
    assert!(request.starts_with("get /v1/"), "{request}");
    assert!(request.contains("\r\nhost: localhost\r\n"), "{request}");
    assert!(
        request.contains("\r\nauthorization: bearer t\r\n"),
        "{request}"
    );
    std::fs::remove_file(&path).expect("it was bound");
}

fn http() -> Arc<HttpClient> {
    Arc::new(HttpClient::new(ClientConfig::default()))
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(5))
}

fn transfer(addr: SocketAddr, deadline: Deadline) -> Result<u64, ClientError> {
    transfer_by(http(), addr, deadline)
}

fn transfer_by(
    http: Arc<HttpClient>,
    addr: SocketAddr,
    deadline: Deadline,
) -> Result<u64, ClientError> {
    transfer_at(http, &format!("http://{addr}"), deadline)
}

fn transfer_at(http: Arc<HttpClient>, base: &str, deadline: Deadline) -> Result<u64, ClientError> {
    let wallet = WalletClient::new(base, Credential::bearer("t"), http);
    let key: IdemKey = "k".parse().expect("a key");
    let request = Transfer {
        from: "a".parse().expect("an account"),
        to: "b".parse().expect("an account"),
        asset: "ron".parse().expect("an asset"),
        amount_minor: Amount(5).into(),
        nonce: Some(1),
        details: Details::default(),
    };
    wallet
        .transfer(&key, &request, deadline)
        .map(|receipt| receipt.receipt.seq)
}

fn word(outcome: &Result<u64, ClientError>) -> String {
    match outcome {
        Ok(seq) => format!("done {seq}"),
        Err(ClientError::Refused {
            status, problem, ..
        }) => {
            format!("refused {status} {}", problem.code)
        }
        Err(ClientError::Unknown { .. }) => "unknown".to_owned(),
        Err(ClientError::NotSent { .. }) => "not sent".to_owned(),
    }
}

const POOR: Act = Answer(409, r#"{"code":"insufficient_funds","status":409}"#);
const BUSY: Act = Answer(503, r#"{"code":"draining","retryable":true}"#);
const READ_ONLY: Act = Answer(503, r#"{"code":"read_only","retryable":false}"#);
const LATE: Act = Answer(504, r#"{"code":"deadline_exceeded"}"#);
const RUNS: Act = Answer(409, r#"{"code":"in_flight","retryable":true}"#);
const DONE: Act = Answer(201, TRANSACTION);

#[test]
fn a_mutation_with_a_key_ends_done_refused_or_unknown() {
    let check = |script: &'static [Act], outcome: &str, requests: usize| {
        let (addr, count) = peer(script);
        assert_eq!(word(&transfer(addr, soon())), outcome);
        assert_eq!(
            count.load(Ordering::SeqCst),
            requests,
            "requests until {outcome}"
        );
    };
    check(&[DONE], "done 7", 1);
    check(&[POOR], "refused 409 insufficient_funds", 1);
    check(&[BUSY, DONE], "refused 503 draining", 1);
    check(&[HangUp, DONE], "done 7", 2);
    check(&[LATE, RUNS, DONE], "done 7", 3);
    check(&[HangUp, POOR], "refused 409 insufficient_funds", 2);
    // "Not now" after an attempt that may have been carried out decides nothing.
    check(&[HangUp, BUSY, DONE], "done 7", 3);
    check(&[HangUp, BUSY, BUSY, DONE], "unknown", 3);
    check(&[HangUp, HangUp, HangUp, DONE], "unknown", 3);
    check(&[RUNS, RUNS, RUNS, DONE], "unknown", 3);
}

#[test]
fn a_patient_client_sends_again_what_was_refused_for_the_moment() {
    let check = |script: &'static [Act], patience: u64, outcome: &str, requests: usize| {
        let (addr, count) = peer(script);
        let http = Arc::new(HttpClient::new(ClientConfig {
            patience: Duration::from_millis(patience),
            ..ClientConfig::default()
        }));
        assert_eq!(word(&transfer_by(http, addr, soon())), outcome);
        assert_eq!(
            count.load(Ordering::SeqCst),
            requests,
            "requests until {outcome}"
        );
    };
    check(&[BUSY, BUSY, DONE], 4_000, "done 7", 3);
    check(&[BUSY, HangUp, DONE], 4_000, "done 7", 3);
    check(&[BUSY, POOR], 4_000, "refused 409 insufficient_funds", 2);
    check(&[BUSY, DONE], 50, "refused 503 draining", 1);
    // The answer says that an operator has to act first.
    check(&[READ_ONLY, DONE], 4_000, "refused 503 read_only", 1);
}

/// Outcome of a transfer through several peers, and the count of requests that each of them has read.
fn through(nodes: &[(SocketAddr, Arc<AtomicUsize>)], patience: u64) -> (String, Vec<usize>) {
    let http = Arc::new(HttpClient::new(ClientConfig {
        patience: Duration::from_millis(patience),
        ..ClientConfig::default()
    }));
    let urls: Vec<_> = nodes
        .iter()
        .map(|(addr, _)| format!("http://{addr}"))
        .collect();
    let outcome = word(&transfer_at(http, &urls.join(", "), soon()));
    let counts = nodes.iter().map(|(_, count)| count.load(Ordering::SeqCst));
    (outcome, counts.collect())
}

#[test]
fn a_mutation_goes_from_node_to_node_under_its_key() {
    let check = |scripts: [&'static [Act]; 2], patience, outcome: &str, requests: [usize; 2]| {
        let (found, counts) = through(&scripts.map(peer), patience);
        assert_eq!((found.as_str(), counts), (outcome, requests.to_vec()));
    };
    check([&[DONE], &[]], 0, "done 7", [1, 0]);
    // Refused without anything done: the next node is asked at once, each once.
    check([&[BUSY], &[DONE]], 0, "done 7", [1, 1]);
    check([&[READ_ONLY], &[DONE]], 0, "done 7", [1, 1]);
    check([&[BUSY, DONE], &[BUSY]], 0, "refused 503 draining", [1, 1]);
    check([&[BUSY, DONE], &[BUSY]], 4_000, "done 7", [2, 1]);
    // In doubt: another node is asked for the same key.
    check([&[HangUp], &[DONE]], 0, "done 7", [1, 1]);
    check(
        [&[LATE], &[POOR]],
        0,
        "refused 409 insufficient_funds",
        [1, 1],
    );
    check([&[HangUp, DONE], &[BUSY]], 0, "done 7", [2, 1]);
    // It runs at the first node, and a refusal of the operation itself is final.
    check([&[RUNS, DONE], &[]], 0, "done 7", [2, 0]);
    check([&[POOR], &[]], 0, "refused 409 insufficient_funds", [1, 0]);
    check(
        [&[Answer(429, r#"{"code":"busy","retryable":true}"#)], &[]],
        0,
        "refused 429 busy",
        [1, 0],
    );
}

#[test]
fn a_call_follows_a_standby_to_the_active_node_and_a_credential_to_no_other_url() {
    let standby = |active: SocketAddr| {
        let details = format!(r#"{{"active":"http://{active}"}}"#);
        let body = format!(r#"{{"code":"not_active","retryable":true,"details":{details}}}"#);
        let script: &'static [Act] = Vec::leak(vec![Answer(503, body.leak())]);
        peer(script)
    };
    let active = peer(&[DONE]);
    let nodes = [standby(active.0), peer(&[POOR]), active];
    assert_eq!(through(&nodes, 0), ("done 7".to_owned(), vec![1, 0, 1]));
    let unlisted = peer(&[DONE]);
    let nodes = [standby(unlisted.0), peer(&[DONE])];
    assert_eq!(through(&nodes, 0), ("done 7".to_owned(), vec![1, 1]));
    assert_eq!(unlisted.1.load(Ordering::SeqCst), 0);
}

#[test]
fn an_answer_that_cannot_be_read_is_unknown() {
    let (addr, _) = peer(&[Answer(200, r#"{"txid":7}"#)]);
    assert_eq!(word(&transfer(addr, soon())), "unknown");
    let (addr, _) = peer(&[Answer(400, "<html>")]);
    assert_eq!(word(&transfer(addr, soon())), "refused 400 ");
}

#[test]
fn nobody_there_means_nothing_done() {
    let addr = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("it is bound")
    };
    assert_eq!(word(&transfer(addr, soon())), "not sent");
    assert_eq!(
        word(&transfer(addr, Deadline::within(Duration::ZERO))),
        "not sent"
    );
}

#[test]
fn a_deadline_ends_the_tries() {
    let (addr, count) = peer(&[LATE, DONE]);
    let outcome = transfer(addr, Deadline::within(Duration::from_millis(20)));
    assert_ne!(
        word(&outcome),
        "done 7",
        "the shortest pause is longer than what is left"
    );
    assert!(count.load(Ordering::SeqCst) <= 1);
}

#[test]
fn signing_is_repeated_only_with_an_operation_id() {
    let kid: Kid = "ron/app/ed25519/018f3b4e-7c1a-7d2e-9f00-0123456789ab"
        .parse()
        .expect("a key");
    let answer = r#"{"key":"ron/app/ed25519/018f3b4e-7c1a-7d2e-9f00-0123456789ab","version":1,"signatures":[],"receipt":{"log":"l","index":3}}"#;
    let script: &'static [Act] = Vec::leak(vec![HangUp, Answer(200, answer)]);
    let (addr, count) = peer(script);
    let kms = |addr| KmsClient::new(&format!("http://{addr}/"), Credential::none(), http());
    let plain = SignRequest::message(kid.clone(), b"m".to_vec());
    let outcome = kms(addr).sign(&plain, soon());
    assert!(
        matches!(outcome, Err(ClientError::Unknown { .. })),
        "{outcome:?}"
    );
    assert_eq!(count.load(Ordering::SeqCst), 1);

    let (addr, count) = peer(script);
    let named = SignRequest {
        op_id: Some(OpId::from_name("t")),
        ..plain
    };
    let signed = kms(addr)
        .sign(&named, soon())
        .expect("the second try is answered");
    assert_eq!((signed.receipt.index, count.load(Ordering::SeqCst)), (3, 2));

    let (addr, count) = peer(script);
    let batch = SignBatch {
        key: Some(kid.into()),
        version: None,
        items: vec![
            SignItem {
                op_id: Some(OpId::from_name("t")),
                ..SignItem::default()
            },
            SignItem::default(),
        ],
    };
    assert!(kms(addr).sign_batch(&batch, soon()).is_err());
    assert_eq!(
        count.load(Ordering::SeqCst),
        1,
        "one item without an id forbids the repetition"
    );
}

#[test]
fn reads_are_repeated() {
    let head = r#"{"code":"not_found"}"#;
    let script: &'static [Act] = Vec::leak(vec![HangUp, Answer(404, head)]);
    let (addr, count) = peer(script);
    let ledger = LedgerClient::new(&format!("http://{addr}"), Credential::none(), http());
    let outcome = ledger.head(soon());
    assert_eq!(outcome.expect_err("404").status(), Some(404));
    assert_eq!(count.load(Ordering::SeqCst), 2);
}
