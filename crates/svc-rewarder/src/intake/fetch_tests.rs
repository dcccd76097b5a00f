//! Fetching from correct, slow and broken sources, and from sources that lie about content, length
//! and ranges.

#![allow(clippy::disallowed_methods)] // the source is a thread of its own

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ron_files::Dir;
use ron_http::ClientConfig;
use ron_proto::rewarder::ImportKind;

use super::*;
use crate::inputs::import;

/// A snapshot of several pieces.
fn snapshot(rows: usize) -> (Vec<u8>, ContentId) {
    let mut text = String::from("account,metric,amount\n");
    for row in 0..rows {
        text.push_str(&format!("account/with/a/long/name/{row:060},m,1\n"));
    }
    let sealed = import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    let bytes = sealed.bytes().expect("in memory").into_owned();
    (bytes, sealed.cid())
}

/// The source's response to one request for these bytes: head and body.
type Temper = fn(asked: usize, bytes: &[u8], from: usize, to: usize) -> (String, Vec<u8>);

fn honest(_: usize, bytes: &[u8], from: usize, to: usize) -> (String, Vec<u8>) {
    let to = to.min(bytes.len() - 1);
    let range = format!("Content-Range: bytes {from}-{to}/{}\r\n", bytes.len());
    (
        format!("206 Partial Content\r\n{range}"),
        bytes[from..=to].to_vec(),
    )
}

/// A server that runs until the test's process ends; returns its URL and the number of requests it
/// received.
fn serve(bytes: Vec<u8>, temper: Temper) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!(
        "http://{}/s/{{hex}}.bin",
        listener.local_addr().expect("bound")
    );
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            let range = head
                .split("range: bytes=")
                .nth(1)
                .and_then(|r| r.split("\r\n").next());
            let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
                continue;
            };
            let (from, to) = (from.parse().expect("digits"), to.parse().expect("digits"));
            let asked = seen.fetch_add(1, Ordering::SeqCst);
            let (status, body) = temper(asked, &bytes, from, to);
            let length = format!(
                "Content-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(format!("HTTP/1.1 {status}{length}").as_bytes());
            let _ = stream.write_all(&body);
        }
    });
    (url, count)
}

/// Long enough for a correct source on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);

fn origin(url: &str, cap: u64) -> Origin {
    let http = Arc::new(HttpClient::new(ClientConfig::default()));
    let mut origin =
        Origin::new(url, Credential::none(), http, cap, 1 << 30).expect("a good template");
    origin.patience = PATIENCE;
    origin
}

fn scratch(dir: &Path) -> Scratch {
    Scratch::open(Dir::os(dir.join("intake"))).expect("ours")
}

fn keep_on() -> Cancel {
    Cancel(Arc::new(|| false))
}

fn fetch(temper: Temper, cap: u64) -> Result<usize, FetchError> {
    let (bytes, cid) = snapshot(45_000);
    let (url, count) = serve(bytes, temper);
    let dir = tempfile::tempdir().expect("a directory");
    let fetched = origin(&url, cap).fetch(&cid, &scratch(dir.path()), &keep_on());
    let fetched = fetched.map(|(temporary, sealed)| {
        assert_eq!(sealed.cid(), cid);
        drop((sealed, temporary));
    });
    let left = std::fs::read_dir(dir.path().join("intake"))
        .expect("there")
        .count();
    assert_eq!(left, 0, "nothing is left behind");
    fetched.map(|()| count.load(Ordering::SeqCst))
}

const CAP: u64 = 1 << 30;

#[test]
fn a_snapshot_comes_piece_by_piece_and_is_checked() {
    assert_eq!(
        fetch(honest, CAP).expect("fetched"),
        3,
        "4.6 MB in pieces of 2 MiB"
    );
    let small: Temper = |_, bytes, _, _| ("200 OK\r\n".into(), bytes.to_vec());
    let (bytes, cid) = snapshot(100);
    let (url, _) = serve(bytes, small);
    let dir = tempfile::tempdir().expect("a directory");
    let (_keep, sealed) = origin(&url, CAP)
        .fetch(&cid, &scratch(dir.path()), &keep_on())
        .expect("a small one needs no ranges");
    assert_eq!(sealed.cid(), cid);
}

#[test]
fn content_other_than_the_requested_is_refused() {
    let cases: [(Temper, &str); 7] = [
        (
            |asked, bytes, from, to| {
                let mut bytes = bytes.to_vec();
                *bytes.last_mut().expect("not empty") ^= u8::from(asked > 0);
                honest(asked, &bytes, from, to)
            },
            "the hash of the records is not the one in the header",
        ),
        (
            |_, _, from, to| {
                static OTHER: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
                honest(0, OTHER.get_or_init(|| snapshot(100).0), from, to)
            },
            "its content id is b3:",
        ),
        (
            |asked, bytes, from, to| honest(0, &bytes[..bytes.len() - asked], from, to),
            "its length changed on the way",
        ),
        (
            |_, bytes, from, to| {
                let (head, body) = honest(0, bytes, from, to);
                (head, body[1..].to_vec())
            },
            "without a proper Content-Range",
        ),
        (
            |_, bytes, from, to| {
                let (_, body) = honest(0, bytes, from, to);
                ("206 Partial Content\r\n".into(), body)
            },
            "without a proper Content-Range",
        ),
        (
            |asked, bytes, from, to| match asked {
                0 => honest(0, bytes, from, to),
                _ => ("200 OK\r\n".into(), bytes[..100].to_vec()),
            },
            "status 200 for a range",
        ),
        (
            |_, bytes, from, to| {
                let (head, body) = honest(0, bytes, from, to);
                (head.replace("/4", "/99999999994"), body)
            },
            "limits.max_snapshot_bytes is 1073741824",
        ),
    ];
    for (temper, why) in cases {
        let error = fetch(temper, CAP).expect_err(why);
        assert!(matches!(error, FetchError::Wrong(_)), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    let error = fetch(honest, 1 << 20).expect_err("above the cap");
    assert!(
        error
            .to_string()
            .contains("limits.max_snapshot_bytes is 1048576"),
        "{error}"
    );
}

#[test]
fn a_source_that_is_unavailable_slow_or_without_ranges_is_given_up() {
    let missing: Temper = |_, _, _, _| ("404 Not Found\r\n".into(), Vec::new());
    assert!(matches!(fetch(missing, CAP), Err(FetchError::Missing(_))));
    let whole: Temper = |_, bytes, _, _| ("200 OK\r\n".into(), bytes.to_vec());
    let error = fetch(whole, CAP).expect_err("too large for one answer");
    assert!(
        error.to_string().contains("a server that answers ranges"),
        "{error}"
    );
    let slow: Temper = |asked, bytes, from, to| {
        if asked > 0 {
            std::thread::sleep(PATIENCE * 2);
        }
        honest(asked, bytes, from, to)
    };
    let error = fetch(slow, CAP).expect_err("below the minimum rate");
    assert!(matches!(error, FetchError::Unavailable(_)), "{error}");
    let (bytes, cid) = snapshot(45_000);
    let (url, count) = serve(bytes, honest);
    let dir = tempfile::tempdir().expect("a directory");
    let seen = Arc::clone(&count);
    let soon = Cancel(Arc::new(move || seen.load(Ordering::SeqCst) == 2));
    let stopped = origin(&url, CAP).fetch(&cid, &scratch(dir.path()), &soon);
    assert!(matches!(stopped, Err(FetchError::Stopped)));
    for bad in ["http://h/x", "http://h/{hex}{cid}", "{hex}", "http://{hex}"] {
        let http = Arc::new(HttpClient::new(ClientConfig::default()));
        Origin::new(bad, Credential::none(), http, 1, 1).expect_err(bad);
    }
}
