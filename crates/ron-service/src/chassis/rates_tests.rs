//! Rate limits per caller: a rate of its own, and a reserve for reads while it writes.

use std::time::Duration;

use ron_http::Call;
use ron_kernel::Deadline;

use super::tests::{client, started};
use super::*;

#[test]
fn each_caller_has_a_rate_of_its_own_once_it_is_known() {
    let running = started(&[("limits.rate_per_second", "1"), ("limits.burst", "3")]);
    let (client, url) = (client(), format!("{}/hello", running.api_url()));
    let ask = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", &*bearer)];
        let call = Call::get(&url, Deadline::within(Duration::from_secs(5)));
        let reply = client.call(call.headers(&headers)).unwrap();
        let code = reply.problem().map(|problem| problem.code);
        (
            reply.status,
            code.unwrap_or_default(),
            reply.retry_after_s(),
        )
    };
    for _ in 0..3 {
        assert_eq!(ask("kms:read#a").0, 200);
    }
    assert_eq!(ask("kms:read#a"), (429, "rate_limited".to_owned(), Some(1)));
    assert_eq!(ask("kms:read#b").0, 200, "somebody else's is untouched");
    for _ in 0..5 {
        assert_eq!(ask("kms:sign#b").0, 403, "who is not let in has no rate");
    }
    assert_eq!(ask("kms:read#b").0, 200);
}

#[test]
fn writing_at_full_rate_leaves_room_for_reading() {
    let running = started(&[
        ("limits.rate_per_second", "1"),
        ("limits.burst", "10"),
        ("limits.read_share_percent", "40"),
    ]);
    let client = client();
    let ask = |method, path: &str| {
        let url = format!("{}{path}", running.api_url());
        let headers = [("authorization", "Bearer kms:read")];
        let call = Call {
            method,
            ..Call::get(&url, Deadline::within(Duration::from_secs(5)))
        };
        client.call(call.headers(&headers)).unwrap().status
    };
    let write = || ask(Method::POST, "/write");
    let written = (0..10).filter(|_| write() == 200).count();
    assert!((6..10).contains(&written), "{written} of 10 writes");
    assert_eq!([(); 4].map(|()| ask(Method::GET, "/hello")), [200; 4]);
    assert_eq!(write(), 429, "what reads have used is missing");
}
