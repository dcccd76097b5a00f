//! Hostile clients, each a function that abuses an address for a while and returns the effect.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sound;
use crate::wire::{End, Wire};

/// Address of the attackers, different from that of ordinary clients.
pub const SOURCE: [u8; 4] = [127, 0, 0, 2];

/// One of many slow connections.
struct Slow {
    stream: TcpStream,
    body: bool,
    /// It was cut off before, and may be refused by the rule of fairness.
    again: bool,
}

/// Ends of slow connections.
#[derive(Debug, Default)]
pub struct Ended {
    /// Answered 408 and closed.
    pub timed_out: usize,
    /// Answered 503 as they connected again: this address already has most of the connections.
    pub refused: usize,
    pub otherwise: usize,
}

/// As many clients as `each` that send a head a byte at a time, and as many that send a body so. A
/// client that is cut off reconnects; the attack is over when the time is up, or when as many were
/// cut off as there are clients.
pub fn slow(addr: SocketAddr, each: usize, patience: Duration) -> Ended {
    let until = Instant::now() + patience;
    let mut slow: Vec<Slow> = (0..2 * each)
        .map(|n| begin(addr, n % 2 == 0).expect("the server accepts"))
        .collect();
    let mut ended = Ended::default();
    while Instant::now() < until && ended.timed_out + ended.otherwise < 2 * each {
        for one in &mut slow {
            if !drip(one, &mut ended)
                && let Ok(fresh) = begin(addr, one.body)
            {
                *one = Slow {
                    again: true,
                    ..fresh
                };
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    ended
}

fn begin(addr: SocketAddr, body: bool) -> std::io::Result<Slow> {
    let mut stream = Wire::connect_from(SOURCE, addr)?.stream;
    let start = if body {
        let head = format!("POST {} HTTP/1.1\r\nHost: t\r\n", sound::POST);
        format!("{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{")
    } else {
        format!("GET {} HTTP/1.1\r\nHost: t\r\nX-Slow: ", sound::GET)
    };
    stream.write_all(start.as_bytes())?;
    stream.set_nonblocking(true)?;
    Ok(Slow {
        stream,
        body,
        again: false,
    })
}

/// Sends one more byte; false when the server has ended the connection.
fn drip(one: &mut Slow, ended: &mut Ended) -> bool {
    let mut answer = [0; 4096];
    let got = one.stream.read(&mut answer);
    match got {
        Err(e) if e.kind() == ErrorKind::WouldBlock => {
            let _ = one.stream.write(b"a"); // the end is seen by the next read
            true
        }
        Ok(count) if answer[..count].starts_with(b"HTTP/1.1 408 ") => {
            ended.timed_out += 1;
            false
        }
        Ok(count) if answer[..count].starts_with(b"HTTP/1.1 503 ") => {
            ended.refused += 1;
            false
        }
        // Refused too: what the client sent meanwhile resets the connection, and its system drops the answer.
        Ok(0) | Err(_) if one.again => {
            ended.refused += 1;
            false
        }
        _ => {
            ended.otherwise += 1;
            false
        }
    }
}

/// One header line of 200 MB; returns how many MB were accepted.
pub fn long_line(addr: SocketAddr) -> usize {
    let mut wire = Wire::connect(addr);
    wire.send(format!("GET {} HTTP/1.1\r\nHost: t\r\nX: ", sound::GET).as_bytes());
    let piece = vec![b'a'; 1_000_000];
    (0..200)
        .take_while(|_| wire.stream.write_all(&piece).is_ok())
        .count()
}

/// A million requests on one connection whose responses are never read; returns how many were
/// accepted, and whether the server ended the connection within the time.
pub fn never_read(addr: SocketAddr, patience: Duration) -> (usize, bool) {
    let mut wire = Wire::connect(addr);
    wire.stream
        .set_write_timeout(Some(patience))
        .expect("an option");
    let request = sound::get("pipelined");
    let piece = request.repeat(100);
    let mut sent = 0;
    while sent < 1_000_000 {
        match wire.stream.write_all(&piece) {
            Ok(()) => sent += 100,
            Err(e) => return (sent, e.kind() != ErrorKind::WouldBlock),
        }
    }
    (sent, false)
}

/// Clients that each request 32 MB in responses of the largest document there is, and read none of
/// them; returns how many the server ended within the time.
pub fn unread(addr: SocketAddr, clients: usize, patience: Duration) -> usize {
    let ask = b"GET /openapi.json HTTP/1.1\r\nHost: t\r\n\r\n";
    let size = {
        let answer = Wire::connect(addr).send(ask).answer(patience);
        answer.expect("the document is there").body.len()
    };
    let all = ask.repeat((32 << 20) / size + 1);
    let mut wires: Vec<Wire> = (0..clients)
        .map(|_| {
            let mut wire = Wire::connect(addr);
            wire.send(&all);
            wire
        })
        .collect();
    let until = Instant::now() + patience;
    let mut ended = 0;
    while Instant::now() < until && !wires.is_empty() {
        std::thread::sleep(Duration::from_millis(100));
        // A write detects the end; a read would be what these clients must not do.
        wires.retain_mut(|wire| match wire.stream.write(b"G") {
            Ok(_) => true,
            Err(e) if e.kind() == ErrorKind::WouldBlock => true,
            Err(_) => {
                ended += 1;
                false
            }
        });
    }
    ended
}

/// As many idle connections as given, as far as they connect.
pub fn hoard(addr: SocketAddr, many: usize) -> Vec<TcpStream> {
    let connect = |_| TcpStream::connect_timeout(&addr, Duration::from_millis(500)).ok();
    (0..many).filter_map(connect).collect()
}

/// The verdict of `slowhttptest` in one of its modes: seconds watched, and seconds in which its
/// probe got no response.
pub fn slowhttptest(mode: &str, url: &str, seconds: u32) -> (usize, usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("run");
    let length = seconds.to_string();
    let more: &[&str] = match mode {
        "-B" => &["-f", "application/json", "-s", "4000", "-t", "POST"],
        "-X" => &["-w", "10", "-y", "20", "-n", "1", "-z", "32", "-k", "3"],
        _ => &[],
    };
    let status = Command::new("slowhttptest")
        .args([mode, "-c", "150", "-r", "150", "-i", "1", "-p", "2", "-g"])
        .args(["-l", &length, "-u", url, "-o"])
        .arg(&out)
        .args(more)
        .stdout(Stdio::null())
        .status()
        .expect("slowhttptest runs; scripts/setup.sh installs it");
    assert!(status.success(), "{status}");
    let csv = std::fs::read_to_string(out.with_extension("csv")).expect("its figures");
    let rows: Vec<Vec<&str>> = csv.lines().map(|l| l.split(',').collect()).collect();
    let column = rows[0].iter().position(|name| *name == "Service Available");
    let column = column.expect("the column of the verdict");
    let verdicts: Vec<&str> = rows[1..]
        .iter()
        .filter_map(|row| row.get(column).copied())
        .collect();
    let away = verdicts.iter().filter(|v| **v == "0").count();
    (verdicts.len(), away)
}

/// A client that pays until the server is gone. Returns the payments with a 200; and whether one
/// got a 200 after another client was told that the service drains.
pub fn pay(addr: SocketAddr, token: &str, client: usize, all: &AtomicU64) -> (u64, bool) {
    let mut wire = Wire::connect(addr);
    let (mut paid, mut draining, mut late) = (0, false, false);
    let body = r#"{"to":"acct:drain","asset":"ron","amount_minor":"1"}"#;
    for n in 0.. {
        let head = format!("POST /v1/issue HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}");
        let head =
            format!("{head}\r\nContent-Type: application/json\r\nIdempotency-Key: c{client}-{n}");
        let length = body.len();
        wire.send(format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes());
        match wire.answer(Duration::from_secs(10)) {
            Ok(answer) if answer.status == 200 => {
                paid += 1;
                all.fetch_add(1, Ordering::Relaxed);
                late |= draining;
            }
            Ok(answer) if answer.status == 503 => draining |= answer.text().contains("draining"),
            Ok(answer) if answer.status == 429 => std::thread::sleep(Duration::from_millis(5)),
            Ok(answer) => panic!("{}: {}", answer.status, answer.text()),
            Err(End::Open) => panic!("a payment was not answered in ten seconds"),
            Err(End::Closed | End::Reset) => {
                let Ok(fresh) = Wire::try_connect(addr) else {
                    break; // the server is gone
                };
                wire = fresh;
            }
        }
    }
    (paid, late)
}
