//! Caveats as text: the ones that parse, the ones that are refused, and their maxima.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const JKT: &str = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I";

fn good() -> Vec<String> {
    [
        "svc=svc-wallet",
        "route=/v1/wallet/transfer",
        "method=POST",
        "region=eu-west.1",
        "account=acct:alice",
        "asset=ron",
        "key=default/app/ed25519+ml-dsa-65",
        "key=alias/app",
        "key=tag/team",
        "key=tag/team=web",
        "op=sign",
        "op=wrap,unwrap",
        "ceiling.per_op=1000",
        "ceiling.daily=340282366920938463463374607431768211455",
        "ceiling.total=2000",
        "budget.bytes=1048576",
        "budget.reqs=100",
        "rate.rps=5",
        "ip_cidr=10.0.0.0/8",
        "ip_cidr=2001:db8::/32",
        "tenant=default",
        "pq.fallback=true",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([format!("proof.bind={JKT}")])
    .collect()
}

#[test]
fn every_kind_round_trips() {
    let mut keys = std::collections::BTreeSet::new();
    for text in good() {
        let caveat: Caveat = text
            .parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(caveat.to_string(), text);
        keys.insert(caveat.key());
        let (key, value) = (caveat.key(), caveat.value());
        for form in [json!(text), json!({"key": key, "value": value})] {
            let read: Caveat = serde_json::from_value(form).expect("both forms are read");
            assert_eq!(read, caveat);
        }
        assert_eq!(serde_json::to_value(&caveat).unwrap(), json!(text));
    }
    assert_eq!(
        keys,
        Caveat::KEYS.into_iter().collect(),
        "every key has an example"
    );
}

#[test]
fn wrong_ones_are_refused_by_code() {
    let check = |text: &str, code: &str| {
        let error = text.parse::<Caveat>().expect_err(text);
        assert_eq!(error.code, code, "{text}: {error}");
    };
    for text in ["", "svc", "method:POST"] {
        check(text, CaveatError::BAD);
    }
    for text in ["=x", "SVC=x", "ttl=5m", " svc=x", "ceiling=1", "budget=1"] {
        check(text, CaveatError::UNKNOWN);
    }
    for text in [
        "svc=",
        "svc=a b",
        "route=v1",
        "route=/v1/../admin",
        "route=/v1?x=1",
        "method=post",
        "method=TRACE",
        "account=a b",
        "asset=r_n",
        "key=default",
        "key=default/",
        "key=Default/app",
        "key=a/b/c/d/e",
        "ceiling.per_op=-1",
        "ceiling.per_op=1.5",
        "ceiling.daily=01",
        "budget.reqs=1e3",
        "budget.reqs=007",
        "budget.bytes=18446744073709551616",
        "rate.rps=",
        "ip_cidr=10.0.0.0/33",
        "ip_cidr=10.0.0.0/08",
        "ip_cidr=010.0.0.0/8",
        "ip_cidr=10.0.0.1/8",
        "ip_cidr=2001:db8::1/32",
        "ip_cidr=10.0.0",
        "ip_cidr=fe80::1%eth0/64",
        "tenant=A",
        "proof.bind=short",
        "pq.fallback=yes",
    ] {
        check(text, CaveatError::BAD);
    }
    check(&format!("route=/{}", "a".repeat(250)), CaveatError::BAD);
    assert!(
        format!("route=/{}", "a".repeat(249))
            .parse::<Caveat>()
            .is_ok()
    );
}

#[test]
fn maxima_bound_what_may_be_asked_for() {
    let maxima = CaveatMaxima::default();
    let code = |texts: &[&str]| {
        let caveats: Vec<Caveat> = texts.iter().map(|text| text.parse().unwrap()).collect();
        maxima.check(&caveats).err().map(|error| error.code)
    };
    assert_eq!(
        code(&["budget.bytes=1048576", "budget.reqs=100", "rate.rps=5"]),
        None
    );
    for text in ["budget.bytes=1048577", "budget.reqs=101", "rate.rps=6"] {
        assert_eq!(code(&["svc=x", text]), Some(CaveatError::OVER_MAX));
    }
    assert_eq!(code(&["pq.fallback=true"]), Some(CaveatError::BAD));
    assert_eq!(code(&["svc=x"; 32]), None);
    assert_eq!(code(&["svc=x"; 33]), Some(CaveatError::BAD));
}

#[test]
fn details_carry_the_list() {
    let caveats: Vec<Caveat> = good().iter().map(|text| text.parse().unwrap()).collect();
    let detail = to_detail(&caveats);
    assert_eq!(detail["type"], "ron");
    assert_eq!(detail["ip_cidr"], json!(["10.0.0.0/8", "2001:db8::/32"]));
    let sorted = |mut list: Vec<Caveat>| {
        list.sort();
        list
    };
    assert_eq!(sorted(from_detail(&detail).unwrap()), sorted(caveats));
    assert_eq!(from_detail(&to_detail(&[])).unwrap(), []);
}

#[test]
fn a_detail_that_is_not_understood_is_refused() {
    for bad in [
        json!(null),
        json!({}),
        json!({"type": "other"}),
        json!({"type": "ron", "newer.limit": "1"}),
        json!({"type": "ron", "svc": 1}),
        json!({"type": "ron", "svc": [["x"]]}),
        json!({"type": "ron", "svc": {"a": "b"}}),
        json!({"type": "ron", "svc": vec!["x"; 33]}),
    ] {
        assert!(from_detail(&bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn accepted_caveats_are_canonical(
        key in prop::sample::select(Caveat::KEYS.to_vec()),
        value in "\\PC{0,30}|[0-9./:a-f]{1,20}",
    ) {
        let text = format!("{key}={value}");
        if let Ok(caveat) = text.parse::<Caveat>() {
            let again: Caveat = caveat.to_string().parse().unwrap();
            prop_assert_eq!(&again, &caveat);
            prop_assert_eq!(from_detail(&to_detail(std::slice::from_ref(&caveat))).unwrap(), [caveat]);
        }
    }
}
