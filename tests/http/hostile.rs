//! Hostile requests against the real binary, directly and through nginx and HAProxy: none is answered 2xx, none makes two
//! readers disagree about where a request ends.

use std::time::{Duration, Instant};

use crate::cases::{After, Case};
use crate::proxies::{Kind, Proxy};
use crate::wire::{Answer, End, Wire, addr_of};
use crate::{cases, sound};
use ron_tests::Fleet;

/// How long the test waits on a silent connection.
const SILENCE: Duration = Duration::from_secs(8);

/// Why a head or a body is refused before it counts as a request.
const REFUSED: &[&str] = &[
    "bare_cr",
    "bare_lf",
    "nul",
    "obs_fold",
    "malformed",
    "target",
    "request_line",
    "head_size",
    "head_fields",
    "length_and_coding",
    "several_lengths",
    "length",
    "coding_unknown",
    "coding",
    "host_missing",
    "several_hosts",
    "host",
    "version",
    "method",
    "expectation",
];

#[test]
fn no_hostile_request_is_served_or_desynchronises() {
    let fleet = Fleet::start();
    let addr = addr_of(&fleet.api("svc-passport"));
    for (name, sound) in [("GET", sound::get("base")), ("POST", sound::post())] {
        let answer = Wire::connect(addr).send(&sound).answer(SILENCE).unwrap();
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    }
    let table = cases::table();
    assert!(table.len() >= 290, "{}", table.len());
    let wrong: Vec<String> = table
        .iter()
        .enumerate()
        .filter_map(|(n, case)| direct(addr, n, case).err())
        .collect();
    println!("{} hostile requests, directly", table.len());
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Sends the case and a sound request after it.
fn direct(addr: std::net::SocketAddr, n: usize, case: &Case) -> Result<(), String> {
    let id = format!("probe-{n}");
    let mut wire = Wire::connect(addr);
    wire.send(&[&case.bytes[..], &sound::get(&id)].concat());
    let (answers, end) = wire.answers(SILENCE, |all| {
        all.iter().any(|a| a.header("x-request-id") == Some(&id))
    });
    let statuses: Vec<u16> = answers.iter().map(|a| a.status).collect();
    let fail = |why: &str| Err(format!("{}: {why}: {statuses:?}, then {end:?}", case.name));
    let Some((sound, rest)) = answers.split_at_checked(case.sound) else {
        return fail("sound requests went unanswered");
    };
    if sound.iter().any(|answer| answer.status != 200) {
        return fail("a sound request before it was refused");
    }
    let Some((refusal, rest)) = rest.split_first() else {
        return fail("no answer");
    };
    if !case.statuses.contains(&refusal.status) {
        return fail(&format!("wanted one of {:?}", case.statuses));
    }
    if refusal.header("content-type") != Some("application/problem+json") {
        return fail("the refusal is no problem document");
    }
    let says_close = refusal.header("connection") == Some("close");
    let probe = |a: &Answer| a.status == 200 && a.header("x-request-id") == Some(&id);
    match (rest, end) {
        ([], End::Closed | End::Reset) if case.after != After::Open && says_close => Ok(()),
        ([one], End::Open) if case.after != After::Closed && probe(one) && !says_close => Ok(()),
        _ => fail(&format!("wanted {:?}", case.after)),
    }
}

#[test]
fn nothing_is_smuggled_through_nginx() {
    nothing_is_smuggled_through(Kind::NginxLenient);
}

#[test]
fn nothing_is_smuggled_through_nginx_that_streams_bodies() {
    nothing_is_smuggled_through(Kind::NginxStreaming);
}

#[test]
fn nothing_is_smuggled_through_haproxy() {
    nothing_is_smuggled_through(Kind::HaproxyStrict);
}

#[test]
fn nothing_is_smuggled_through_haproxy_that_takes_invalid_requests() {
    nothing_is_smuggled_through(Kind::HaproxyLenient);
}

fn nothing_is_smuggled_through(kind: Kind) {
    let fleet = Fleet::start();
    let backend = addr_of(&fleet.api("svc-passport"));
    let proxy = Proxy::start(kind, backend);
    let table = cases::table();
    let mut wrong = Vec::new();
    let seen_before = seen(&fleet);
    let mut sent_before = proxy.forwarded().len();
    for (n, case) in table.iter().enumerate() {
        let id = format!("probe-{n}");
        let mut wire = Wire::connect(proxy.addr);
        wire.send(&[&case.bytes[..], &sound::get(&id)].concat());
        let (answers, _) = wire.answers(Duration::from_millis(1500), |all| {
            all.iter().any(|a| a.header("x-request-id") == Some(&id))
        });
        drop(wire);
        // Other clients whose requests use the same connection between the two servers.
        wrong.extend(
            harmed(&proxy, &format!("victim-{n}")).map(|why| format!("{}: {why}", case.name)),
        );
        let sent = proxy.forwarded();
        let new = &sent[sent_before..];
        sent_before = sent.len();
        wrong.extend(served(case, &id, &answers, new));
    }
    let seen = seen(&fleet) - seen_before;
    // The proxy writes its log line after it has answered.
    let end = Instant::now() + Duration::from_secs(10);
    let sent = loop {
        let sent = proxy.forwarded();
        if sent.len() as u64 >= seen || Instant::now() > end {
            break sent.len() as u64;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    println!(
        "{} hostile requests through {kind:?}: it forwarded {sent} requests, the server saw {seen}",
        table.len(),
    );
    assert!(sent > VICTIMS * table.len() as u64, "the proxy did forward");
    assert!(
        wrong.is_empty(),
        "{}:\n{}\nthe proxy's log:\n{}",
        wrong.len(),
        wrong.join("\n"),
        proxy.log()
    );
    assert!(seen <= sent, "the server sees requests that nobody sent");
    assert!(seen == sent || !kind.buffers(), "the two servers disagree");
}

/// Requests of other clients after each hostile one.
const VICTIMS: u64 = 2;

/// What happened to another client's requests, if it was not what should happen.
fn harmed(proxy: &Proxy, victim: &str) -> Option<String> {
    (0..VICTIMS).find_map(|n| {
        let id = format!("{victim}-{n}");
        let answer = Wire::connect(proxy.addr)
            .send(&sound::get(&id))
            .answer(SILENCE);
        match answer {
            Ok(answer) if answer.status == 200 && answer.header("x-request-id") == Some(&id) => {
                None
            }
            other => Some(format!("the bystander got {other:?}")),
        }
    })
}

/// The fault in a case's responses, given the request lines that the proxy forwarded for it.
fn served(case: &Case, id: &str, answers: &[Answer], forwarded: &[String]) -> Option<String> {
    let lines = forwarded.join(" | ");
    if forwarded.iter().any(|line| line.contains(cases::SMUGGLED)) {
        // Then the proxy itself took it for the client's next request, and answered it to the client.
        let told = answers.iter().filter(|a| a.status == 404).count();
        if told == 0 {
            return Some(format!(
                "{}: a hidden request went through: {lines}",
                case.name
            ));
        }
    }
    // Responses that are not about the sound requests before or the probe, and not repaired by the
    // proxy.
    let own = answers
        .iter()
        .filter(|a| a.header("x-request-id") != Some(id));
    let served = own.filter(|a| a.status < 300).count();
    let repaired = forwarded.len();
    (served > repaired).then(|| format!("{}: {served} answers for {lines}", case.name))
}

/// Requests and refused heads that the passport's API has seen, without those of pollers.
fn seen(fleet: &Fleet) -> u64 {
    let reply = fleet.get(&format!("{}/metrics", fleet.health("svc-passport")), None);
    let text = String::from_utf8(reply.body).unwrap();
    let value = |line: &str| -> u64 {
        let number = line.rsplit(' ').next().unwrap();
        number.parse().unwrap()
    };
    let requests = text.lines().filter(|line| {
        line.contains("http_requests_total{")
            && [sound::GET, sound::POST, "unmatched"]
                .iter()
                .any(|route| line.contains(&format!("route=\"{route}\"")))
    });
    let refused = text.lines().filter(|line| {
        line.contains("http_rejects_total{")
            && REFUSED
                .iter()
                .any(|reason| line.contains(&format!("reason=\"{reason}\"")))
    });
    requests.map(value).sum::<u64>() + refused.map(value).sum::<u64>()
}
