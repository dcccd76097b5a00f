//! Bodies that are compressed, chunked, streamed to disk, or read while they are sent.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use ron_files::Dir;
use ron_http::{Limits, Method, Need, Request, Response, Route, Source, sync};
use ron_proto::Problem;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use support::{Answer, Client, Served, router, serve};
use tempfile::TempDir;

const LENGTH_CAP: u64 = 8 << 20;

/// Bytes that encode their own offset.
fn pattern(offset: u64, into: &mut [u8]) {
    for (at, byte) in into.iter_mut().enumerate() {
        *byte = ((offset + at as u64) % 251) as u8;
    }
}

/// A source that generates its bytes as they are read, and counts them.
struct MadeUp {
    length: u64,
    known: bool,
    fails_at: u64,
    read: Arc<AtomicU64>,
}

impl Source for MadeUp {
    fn len(&self) -> Option<u64> {
        self.known.then_some(self.length)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if offset >= self.fails_at {
            return Err(io::ErrorKind::Other.into());
        }
        let count = (self.length - offset).min(into.len() as u64) as usize;
        pattern(offset, &mut into[..count]);
        self.read.store(offset + count as u64, Ordering::SeqCst);
        Ok(count)
    }
}

/// The length and whether all bytes follow the pattern.
fn judge(request: &Request) -> Result<Response, Problem> {
    let upload = request.upload.as_ref().expect("this route streams");
    assert!(request.body.is_empty());
    let (mut reader, mut at, mut good) = (upload.reader(), 0, true);
    let (mut piece, mut want) = (vec![0; 70_000], vec![0; 70_000]);
    loop {
        let count = reader
            .read(&mut piece)
            .map_err(|e| Problem::internal(e.to_string()))?;
        if count == 0 {
            break;
        }
        pattern(at, &mut want[..count]);
        good &= piece[..count] == want[..count];
        at += count as u64;
    }
    Ok(Response::text(
        200,
        format!("{at} {good} {}", upload.len() == at),
    ))
}

struct Rig {
    served: Served,
    dir: TempDir,
    read: Arc<AtomicU64>,
}

fn rig(limits: Limits, workers: usize) -> Rig {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let read = Arc::new(AtomicU64::new(0));
    let made = |length: u64, known: bool, fails_at: u64| {
        let read = read.clone();
        move |_: &Request| {
            let read = read.clone();
            let source = MadeUp {
                length,
                known,
                fails_at,
                read,
            };
            Ok(Response::stream(200, "x/y", source))
        }
    };
    let streaming = |path, dir: &Path| {
        Route::new(Method::PUT, path, Need::Public, sync(judge))
            .body_bytes(&[])
            .streaming(Dir::os(dir), LENGTH_CAP)
    };
    let routes = router()
        .add(Route::get("/hello", Need::Public, |_| {
            Ok(Response::text(200, "hello"))
        }))
        .add(
            Route::post("/echo", Need::Public, |request| {
                Ok(Response::bytes(200, "x/y", request.body.clone()))
            })
            .body_bytes(&[])
            .body_cap(1 << 20),
        )
        .add(Route::get(
            "/known",
            Need::Public,
            made(20 << 20, true, u64::MAX),
        ))
        .add(Route::get(
            "/chunked",
            Need::Public,
            made(3_000_001, false, u64::MAX),
        ))
        .add(Route::get(
            "/endless",
            Need::Public,
            made(1 << 40, true, u64::MAX),
        ))
        .add(Route::get(
            "/broken",
            Need::Public,
            made(5 << 20, true, 1 << 20),
        ))
        .add(Route::get(
            "/broken-chunked",
            Need::Public,
            made(5 << 20, false, 1 << 20),
        ))
        .add(Route::get(
            "/nothing",
            Need::Public,
            made(0, false, u64::MAX),
        ))
        .add(streaming("/upload", dir.path()))
        .add(streaming("/nowhere", Path::new("/nowhere/at/all")));
    Rig {
        served: serve(routes, limits, workers),
        dir,
        read,
    }
}

fn post(client: &mut Client, path: &str, headers: &str, body: &[u8]) -> Answer {
    let length = body.len();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n{headers}\r\n"
    ));
    client.send(body).answer()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::best());
    to.write_all(bytes).expect("a Vec");
    to.finish().expect("a Vec")
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut to = ZlibEncoder::new(Vec::new(), Compression::best());
    to.write_all(bytes).expect("a Vec");
    to.finish().expect("a Vec")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Text that compresses to about a third.
fn text(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let letter = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"abcdefgh"[(state >> 29) as usize]
    };
    (0..length).map(letter).collect()
}

#[test]
fn packed_bodies_are_unpacked_within_ratio_and_cap() {
    let rig = rig(Limits::default(), 2);
    let mut client = rig.served.client();
    let plain = text(200_000);
    for (name, packed) in [
        ("gzip", gzip(&plain)),
        ("GZIP", gzip(&plain)),
        ("x-gzip", gzip(&plain)),
        ("deflate", deflate(&plain)),
        ("zstd", zstd(&plain)),
        ("identity", plain.clone()),
    ] {
        let coding = format!("Content-Encoding: {name}\r\n");
        let answer = post(&mut client, "/echo", &coding, &packed);
        assert_eq!(answer.status, 200, "{name}");
        assert!(answer.body == plain, "{name}");
        let shorter = &packed[..packed.len() - 3];
        if name != "identity" {
            assert_eq!(post(&mut client, "/echo", &coding, shorter).status, 400);
        }
    }
    // 64 MiB of zeros in a few kilobytes; and a body below the cap whose ratio is too high.
    let zeros = vec![0; 64 << 20];
    for (name, packed) in [
        ("gzip", gzip(&zeros)),
        ("deflate", deflate(&zeros)),
        ("zstd", zstd(&zeros)),
        ("gzip", gzip(&zeros[..100_000])),
    ] {
        let coding = format!("Content-Encoding: {name}\r\n");
        let answer = post(&mut client, "/echo", &coding, &packed);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (413, "too_large"),
            "{name}"
        );
    }
    // Within the ratio, above the body cap.
    let large = gzip(&text((1 << 20) + 1));
    assert!(large.len() < 1 << 20);
    let answer = post(&mut client, "/echo", "Content-Encoding: gzip\r\n", &large);
    assert_eq!(answer.status, 413);
    // One connection has served all of them: the framing was valid throughout.
    assert_eq!(client.get("/hello").text(), "hello");
    assert_eq!(rig.served.metric("t_http_connections"), 1);
}

#[test]
fn other_codings_and_several_are_refused_with_the_list() {
    let rig = rig(Limits::default(), 1);
    for coding in [
        "Content-Encoding: br\r\n",
        "Content-Encoding: gzip, gzip\r\n",
        "Content-Encoding: gzip\r\nContent-Encoding: zstd\r\n",
        "Content-Encoding: gzip\r\nContent-Encoding: identity\r\n",
        "Content-Encoding: \r\n",
        "Content-Encoding: gzip;q=1\r\n",
    ] {
        let answer = post(&mut rig.served.client(), "/echo", coding, b"x");
        assert_eq!(answer.status, 415, "{coding}");
        assert_eq!(
            answer.header("accept-encoding"),
            Some("gzip, deflate, zstd")
        );
    }
    let mut client = rig.served.client();
    client.send(
        "PUT /upload HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nContent-Encoding: gzip\r\n\r\nx",
    );
    let answer = client.answer();
    assert_eq!(answer.status, 415);
    assert_eq!(answer.header("accept-encoding"), Some("identity"));
}

#[test]
fn curl_packs_nothing_but_sends_what_gzip_made() {
    let rig = rig(Limits::default(), 1);
    let plain = rig.dir.path().join("plain");
    std::fs::write(&plain, text(50_000)).expect("written");
    let packed = Command::new("gzip").arg("-kc").arg(&plain).output();
    let packed_path = rig.dir.path().join("packed");
    std::fs::write(&packed_path, packed.expect("gzip is installed").stdout).expect("written");
    let url = format!("http://{}/echo", rig.served.addr());
    let out = Command::new("curl")
        .args(["-sS", "--noproxy", "*", "-H", "Content-Encoding: gzip"])
        .args(["-H", "Content-Type: x/y", "--data-binary"])
        .arg(format!("@{}", packed_path.display()))
        .arg(url)
        .output()
        .expect("curl is installed");
    assert!(out.stdout == text(50_000), "{:?}", out.stderr);
}

#[test]
fn trailers_are_dropped_and_extras_are_bounded() {
    let rig = rig(Limits::default(), 1);
    let head = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut client = rig.served.client();
    client.send(format!(
        "{head}3;a=b\r\nabc\r\n0\r\nX-Sum: 7\r\nContent-Length: 99\r\n\r\n"
    ));
    assert_eq!(client.answer().text(), "abc");
    assert_eq!(client.get("/hello").text(), "hello");
    let flood = |body: String| {
        let mut client = rig.served.client();
        client.send(format!("{head}{body}"));
        let answer = client.answer();
        assert_eq!((answer.status, client.is_closed()), (400, true));
    };
    flood(format!("0\r\n{}", "X: yyyyyyyy\r\n".repeat(1000)));
    flood(format!("1;{}\r\nx\r\n", "e".repeat(200)).repeat(60));
    flood(format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(300)));
}

#[test]
fn large_answers_are_read_as_fast_as_the_client_takes_them() {
    let rig = rig(Limits::default(), 2);
    let mut client = rig.served.client();
    let answer = client.get("/known");
    let mut want = vec![0; 20 << 20];
    pattern(0, &mut want);
    assert!(answer.body == want);
    assert_eq!(
        client.get("/hello").text(),
        "hello",
        "the connection goes on"
    );
    let head = client
        .send("HEAD /known HTTP/1.1\r\nHost: t\r\n\r\n")
        .head_answer();
    assert_eq!(head.header("content-length"), Some("20971520"));
    assert_eq!(client.get("/hello").text(), "hello");
    // A client that does not read delays the source, but occupies no worker.
    let mut deaf: Vec<Client> = (0..4).map(|_| rig.served.client()).collect();
    for client in &mut deaf {
        client.send("GET /endless HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    // Reading ahead ends once the sockets are full.
    let mut before = u64::MAX;
    rig.served.until("the source is held back", |_| {
        let now = rig.read.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut before, now) == now
    });
    assert!(before < 64 << 20, "{before} bytes were read ahead");
    assert_eq!(rig.served.client().get("/hello").text(), "hello");
}

#[test]
fn answers_of_unknown_length_are_chunked_or_end_with_the_connection() {
    let rig = rig(Limits::default(), 2);
    let curl = |more: &[&str], path: &str| {
        let url = format!("http://{}{path}", rig.served.addr());
        Command::new("curl")
            .args(["-sS", "--noproxy", "*", "-D", "-", "-o"])
            .arg(rig.dir.path().join("out"))
            .args(more)
            .arg(url)
            .output()
            .expect("curl is installed")
    };
    let mut want = vec![0; 3_000_001];
    pattern(0, &mut want);
    let out = || std::fs::read(rig.dir.path().join("out")).expect("written");
    let chunked = String::from_utf8_lossy(&curl(&[], "/chunked").stdout).to_lowercase();
    assert!(chunked.contains("transfer-encoding: chunked"), "{chunked}");
    assert!(!chunked.contains("content-length"), "{chunked}");
    assert!(out() == want);
    let old = String::from_utf8_lossy(&curl(&["--http1.0"], "/chunked").stdout).to_lowercase();
    assert!(
        !old.contains("transfer-encoding") && old.contains("connection: close"),
        "{old}"
    );
    assert!(out() == want);
    assert!(curl(&[], "/nothing").status.success());
    assert_eq!(out(), b"");
    // A source that fails: the client can see it.
    for path in ["/broken", "/broken-chunked"] {
        assert!(!curl(&[], path).status.success(), "{path}");
    }
    rig.served.until("counted", |s| {
        s.metric("t_http_rejects_total{reason=\"stream_cut\"}") == 2
    });
    let mut client = rig.served.client();
    client.send("GET /chunked HTTP/1.1\r\nHost: t\r\n\r\nGET /hello HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut seen = Vec::new();
    while !seen.ends_with(b"hello") {
        let mut piece = [0; 8192];
        let count = client.stream.read(&mut piece).expect("more");
        assert!(count > 0, "ended after {} bytes", seen.len());
        seen.extend_from_slice(&piece[..count]);
    }
}

fn put_head(length: u64) -> String {
    format!("PUT /upload HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n")
}

#[test]
fn uploads_go_to_disk_and_leave_nothing() {
    let rig = rig(Limits::default(), 1);
    let mut body = vec![0; 5_000_000];
    pattern(0, &mut body);
    let mut client = rig.served.client();
    client.send(put_head(5_000_000)).send(&body);
    assert_eq!(client.answer().text(), "5000000 true true");
    client.send("PUT /upload HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    for piece in body.chunks(123_457) {
        client
            .send(format!("{:x}\r\n", piece.len()))
            .send(piece)
            .send("\r\n");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().text(), "5000000 true true");
    client.send(put_head(0));
    assert_eq!(client.answer().text(), "0 true true");
    // Above the cap: refused at once, or when the cap is reached.
    client.send(put_head(LENGTH_CAP + 1));
    assert_eq!(client.answer().status, 413);
    let mut chunked = rig.served.client();
    chunked.send("PUT /upload HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..8 {
        chunked
            .send("100000\r\n")
            .send(vec![1; 1 << 20])
            .send("\r\n");
    }
    chunked.send("1\r\nx\r\n0\r\n\r\n");
    assert_eq!(chunked.answer().status, 413);
    // Aborted half way.
    let mut gone = rig.served.client();
    gone.send(put_head(5_000_000)).send(&body[..1_000_000]);
    drop(gone);
    rig.served.until("noticed", |s| {
        s.metric("t_http_rejects_total{reason=\"closed_early\"}") == 1
    });
    let left = std::fs::read_dir(rig.dir.path()).expect("there").count();
    assert_eq!(left, 0);
    let mut nowhere = rig.served.client();
    nowhere.send("PUT /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx");
    let answer = nowhere.answer();
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "unavailable")
    );
}

/// Number of files under `dir`, unlinked ones included, that this process has open.
fn open_uploads(dir: &Path) -> usize {
    let prefix = dir.to_str().expect("text").to_owned();
    std::fs::read_dir("/proc/self/fd")
        .expect("procfs")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_str().is_some_and(|t| t.starts_with(&prefix)))
        .count()
}

#[test]
fn slow_uploads_hold_no_worker_and_are_bounded_in_number() {
    let limits = Limits {
        max_uploads: 8, // half of them for one tenant
        ..Limits::default()
    };
    let rig = rig(limits, 1);
    let mut slow: Vec<Client> = (0..4).map(|_| rig.served.client()).collect();
    for client in &mut slow {
        client.send(put_head(500_000)).send(vec![0; 100_000]);
    }
    let dir = rig.dir.path().to_owned();
    rig.served
        .until("all four are open", |_| open_uploads(&dir) == 4);
    let asked = Instant::now();
    for _ in 0..20 {
        assert_eq!(rig.served.client().get("/hello").text(), "hello");
    }
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "the only worker is free"
    );
    let mut fifth = rig.served.client();
    fifth.send(put_head(1));
    let refused = fifth.answer();
    assert_eq!((refused.status, refused.code().as_str()), (429, "busy"));
    assert!(refused.header("retry-after").is_some());
    drop(slow.pop());
    rig.served
        .until("its file is gone", |_| open_uploads(&dir) == 3);
    // Its place is freed a moment after its file.
    rig.served.until("a place is free", |served| {
        let answer = served.client().send(put_head(1)).send([0]).answer();
        assert!([200, 429].contains(&answer.status), "{}", answer.text());
        answer.status == 200 && answer.text() == "1 true true"
    });
    drop(slow);
    rig.served.until("all gone", |_| open_uploads(&dir) == 0);
}

#[test]
fn uploads_and_downloads_below_the_minimum_rate_are_cut() {
    let limits = Limits {
        body_timeout: Duration::from_millis(600),
        write_timeout: Duration::from_millis(600),
        rate_window: Duration::from_millis(1500),
        linger_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let rig = rig(limits, 1);
    // Above the rate for longer than any fixed limit: 300 KB a second, five times the minimum.
    let mut steady = rig.served.client();
    steady.send(put_head(900_000));
    let mut body = vec![0; 900_000];
    pattern(0, &mut body);
    for piece in body.chunks(30_000) {
        steady.send(piece);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(steady.answer().text(), "900000 true true");
    // Silent.
    let start = Instant::now();
    let mut silent = rig.served.client();
    silent.send(put_head(900_000)).send(&body[..10]);
    let answer = silent.answer();
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (408, "request_timeout")
    );
    let took = start.elapsed();
    assert!(
        took > Duration::from_millis(500) && took < Duration::from_secs(30),
        "{took:?}"
    );
    // Trickling: never silent, and far below the rate.
    let mut trickle = rig.served.client();
    trickle.send(put_head(900_000));
    trickle
        .stream
        .set_nonblocking(true)
        .expect("a socket option");
    let start = Instant::now();
    let answered = loop {
        let _ = trickle.stream.write(&[0; 100]);
        if trickle.stream.peek(&mut [0; 1]).is_ok() {
            break start.elapsed();
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it goes on for ever"
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(answered > Duration::from_millis(1200), "{answered:?}");
    trickle
        .stream
        .set_nonblocking(false)
        .expect("a socket option");
    assert_eq!(trickle.answer().status, 408);
    // A download that the client does not read.
    let mut deaf = rig.served.client();
    deaf.send("GET /endless HTTP/1.1\r\nHost: t\r\n\r\n");
    rig.served.until("cut", |s| {
        s.metric("t_http_rejects_total{reason=\"write_timeout\"}") == 1
    });
    let series = "t_http_rejects_total{reason=\"body_rate\"}";
    assert_eq!(rig.served.metric(series), 2);
}

#[test]
fn an_announced_upload_is_invited_only_when_it_would_be_taken() {
    let rig = rig(Limits::default(), 1);
    let ask = |length: u64| {
        let mut client = rig.served.client();
        client.send(format!(
            "PUT /upload HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\
             Expect: 100-continue\r\n\r\n"
        ));
        (client.answer().status, client)
    };
    let (invited, mut client) = ask(3);
    assert_eq!(invited, 100);
    assert_eq!(client.send([0, 1, 2]).answer().text(), "3 true true");
    assert_eq!(ask(LENGTH_CAP + 1).0, 413);
}
