//! Rotations of the issuer's key under verifiers that keep the key set as long as they may: npm jose and PyJWT with their caches and
//! their pauses between two reads, and a verifier that reads by a timer alone. Periods are shorter than by default, in proportion.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ron_proto::b64;
use ron_tests::issuer::{Rig, text};
use ron_tests::{Fleet, number, ok, python, until, workspace};
use serde_json::{Value, json};

/// Time for one rotation.
const ROTATION: Duration = Duration::from_secs(120);

/// How long jose and PyJWT wait between two reads of a key set; 30,000 by default.
fn cooldown_ms() -> u64 {
    number("RON_ROTATION_COOLDOWN_MS", 4_000)
}

/// Programs that verify every token, and what the tokens were signed with.
struct Verifiers {
    rig: Rig,
    programs: Vec<Child>,
    kids: Vec<String>,
}

impl Verifiers {
    fn start() -> Self {
        let rig = Rig::start_with(|dir| {
            let change = |service: &str, change: &dyn Fn(String) -> String| {
                let path = dir.join(service).join("config.toml");
                let text = std::fs::read_to_string(&path).unwrap();
                std::fs::write(&path, change(text)).unwrap();
            };
            change("ron-kms", &|text| {
                assert!(!text.contains("[rotation]"), "{text}");
                // Of an hour by default. The issuer publishes the key within the seconds by which this is longer.
                let ahead_s = cooldown_ms() / 1000 + 5;
                text + &format!("\n[rotation]\nprepublish = \"{ahead_s}s\"\n")
            });
            change("svc-passport", &|text| {
                let often = "[kms]\nrefresh_interval = \"200ms\"\n";
                text.replace("[kms]\n", often) + "\n[jwks]\nmax_age = \"2s\"\n"
            });
        });
        let interop = workspace().join("tests/interop");
        let mut node = Command::new("node");
        node.arg(interop.join("rotation.mjs"));
        let mut py = Command::new(python());
        py.arg(interop.join("rotation.py"));
        let issuer = rig.fleet.bootstrap()["issuer"].as_str().unwrap().to_owned();
        let url = rig.url("/.well-known/jwks.json");
        let start = |mut command: Command| {
            command
                .args([&url, &issuer, "svc-wallet", &cooldown_ms().to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let programs = [node, py].map(start).into();
        Self {
            rig,
            programs,
            kids: Vec::new(),
        }
    }

    /// Gets a token and has it verified; returns the key that signed it.
    fn token(&mut self) -> String {
        let ask = [
            ("grant_type", "client_credentials"),
            ("audience", "svc-wallet"),
        ];
        let token = text(&self.rig.operator("/oauth2/token", &ask), "access_token");
        for program in &mut self.programs {
            let input = program.stdin.as_mut().unwrap();
            writeln!(input, "{token}").unwrap();
        }
        let header = b64::from_url(token.split('.').next().unwrap()).unwrap();
        let header: Value = serde_json::from_slice(&header).unwrap();
        let kid = header["kid"].as_str().unwrap().to_owned();
        if self.kids.last() != Some(&kid) {
            self.kids.push(kid.clone());
        }
        kid
    }

    /// Has tokens verified for a time.
    fn tokens(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.token();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Rotates the issuer's key as an operator does, and has tokens verified until the next key signs.
    fn rotate(&mut self, more: &[&str]) {
        let before = self.token();
        let key = self.rig.fleet.bootstrap()["issuer_key"].clone();
        let words = [&["kms", "rotate", key.as_str().unwrap()], more].concat();
        ok(&self.rig.fleet.ron(&words));
        let since = Instant::now();
        while self.token() == before {
            assert!(since.elapsed() < ROTATION, "the next key never signs");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends the programs; what they have counted.
    fn counted(self) -> Vec<Value> {
        let count = |mut program: Child| {
            drop(program.stdin.take());
            let out = program.wait_with_output().unwrap();
            serde_json::from_str(&ok(&out)).unwrap()
        };
        self.programs.into_iter().map(count).collect()
    }
}

#[test]
fn no_verifier_that_keeps_the_key_set_refuses_a_token_over_rotations() {
    let mut verifiers = Verifiers::start();
    let rotations = number("RON_ROTATIONS", 3);
    for _ in 0..rotations {
        verifiers.tokens(Duration::from_secs(2));
        verifiers.rotate(&[]);
    }
    verifiers.tokens(Duration::from_secs(5));
    let kids = verifiers.kids.len() as u64;
    assert_eq!(kids, rotations + 1, "{:?}", verifiers.kids);
    for counted in verifiers.counted() {
        println!("over {rotations} rotations: {counted}");
        assert_eq!(counted["refused"], json!({}), "{counted}");
        assert!(counted["verified"].as_u64() > Some(100), "{counted}");
    }
}

/// A key that signs at once is what the test above would notice.
#[test]
fn a_key_that_signs_at_once_is_unknown_to_verifiers_that_have_just_read_the_set() {
    let mut verifiers = Verifiers::start();
    verifiers.tokens(Duration::from_secs(5));
    verifiers.rotate(&["--now"]);
    verifiers.tokens(Duration::from_secs(5));
    let counted = verifiers.counted();
    for (counted, error) in counted
        .iter()
        .zip(["ERR_JWKS_NO_MATCHING_KEY", "PyJWKClientError"])
    {
        let unknown = &counted["refused"][error];
        assert!(unknown.as_u64() > Some(0), "{counted}");
    }
}

#[test]
fn a_rotation_now_says_that_the_version_before_verifies_and_how_to_revoke_it() {
    let fleet = Fleet::start();
    let key = fleet.bootstrap()["issuer_key"].as_str().unwrap().to_owned();
    let rotate = |more: &[&str]| fleet.ron(&[&["kms", "rotate", key.as_str()], more].concat());
    let token = fleet.token("svc-wallet", None);
    let verifies = || fleet.ron(&["token", "verify", &token]).status.success();
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let published = rotate(&[]);
    assert!(published.status.success() && !said(&published).contains("revoke"));
    let again = rotate(&[]);
    assert!(!again.status.success());
    assert!(
        said(&again).contains("ron kms rotate --now"),
        "{}",
        said(&again)
    );
    let now = rotate(&["--now"]);
    ok(&now);
    assert!(verifies());
    let said = said(&now);
    let command = said
        .lines()
        .find_map(|line| line.strip_prefix("  ron token revoke --kid "));
    let (kid, reason) = command.expect(&said).split_once(" --reason ").unwrap();
    let header = b64::from_url(token.split('.').next().unwrap()).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    assert_eq!(header["kid"], kid);
    let reason = reason.trim_matches('\'');
    ok(&fleet.ron(&["token", "revoke", "--kid", kid, "--reason", reason]));
    until("it is revoked", || !verifies());
}
