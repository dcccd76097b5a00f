//! Another process holds the issuer's port and serves keys of its own there, as any user of the
//! host can while the issuer is down: no service trusts them, each reports why, and an older note
//! of the true issuer is not trusted either.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ron_crypto::hash::sha256;
use ron_crypto::sign::Ed25519Key;
use ron_http::Call;
use ron_kernel::Deadline;
use ron_proto::b64;
use ron_tests::consumers::passports_degraded;
use ron_tests::issuer::{now_s, part};
use ron_tests::tools::{Process, service, signal, wait_listening};
use ron_tests::{CALL, Fleet, OwnPlace, http_client, metric, ok, own_place, until};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::Ed25519NoteSigner;
use ron_tlog::tree::Frontier;
use serde_json::json;
use tempfile::TempDir;

const KEYS: &str = "/.well-known/jwks.json";
const NOTE: &str = "/v1/passport/policy";
const EVENTS: &str = "/v1/passport/events";

/// Every service that accepts passports, a read there, and the scope it needs.
const SERVICES: [(&str, &str, &str); 5] = [
    (
        "svc-wallet",
        "/v1/balance?account=a&asset=ron",
        "wallet:read",
    ),
    (
        "ron-ledger",
        "/v1/ledger/events?after=0&limit=1",
        "ledger:read",
    ),
    ("svc-rewarder", "/rewarder/epochs", "rewarder:read"),
    ("ron-kms", "/v1/kms/keys", "kms:read"),
    ("svc-admin", "/api/me", "admin:view"),
];

/// What the issuer's port serves: documents by path; without an entry the true issuer answers, an
/// empty entry is 404.
#[derive(Clone)]
struct Port {
    number: u16,
    served: Arc<Mutex<Vec<(&'static str, String)>>>,
}

impl Port {
    fn before(true_issuer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = Self {
            number: listener.local_addr().unwrap().port(),
            served: Arc::default(),
        };
        let (served, issuer) = (port.clone(), true_issuer.to_owned());
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let (served, issuer) = (served.clone(), issuer.clone());
                std::thread::spawn(move || served.answer(caller, &issuer));
            }
        });
        port
    }

    fn answer(&self, mut caller: TcpStream, issuer: &str) {
        let mut lines = BufReader::new(caller.try_clone().unwrap()).lines();
        let Some(Ok(first)) = lines.next() else {
            return;
        };
        let head = lines.map_while(Result::ok);
        let head: Vec<String> = head.take_while(|line| !line.is_empty()).collect();
        let mut fields = head.iter().filter_map(|line| line.split_once(": "));
        let credential = fields.find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let target = first.split(' ').nth(1).unwrap_or_default();
        let path = target.split('?').next().unwrap();
        let own = {
            let served = self.served.lock().unwrap();
            served.iter().find(|(of, _)| *of == path).cloned()
        };
        let (status, body) = match own {
            Some((_, text)) if text.is_empty() => (404, Vec::new()),
            Some((_, text)) => (200, text.into_bytes()),
            None => {
                let url = format!("{issuer}{target}");
                let reply = http_client().call(Call {
                    headers: credential.as_slice(),
                    ..Call::get(&url, Deadline::within(CALL))
                });
                reply.map_or((502, Vec::new()), |reply| (reply.status, reply.body))
            }
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = caller.write_all(&[head.into_bytes(), body].concat()); // a service that was ended
    }

    fn serve(&self, documents: &[(&'static str, &str)]) {
        let owned = documents
            .iter()
            .map(|(path, text)| (*path, (*text).to_owned()));
        *self.served.lock().unwrap() = owned.collect();
    }
}

/// A second instance of a service, from the configuration that `ron init` made for it, whose issuer
/// is at the port.
struct Beside {
    name: &'static str,
    read: &'static str,
    api: u16,
    health: u16,
    config: PathBuf,
    sets: Vec<String>,
    process: Option<Process>,
    data: TempDir,
}

impl Beside {
    fn new(fleet: &Fleet, port: &Port, name: &'static str, read: &'static str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let OwnPlace {
            api,
            health,
            mut sets,
        } = own_place(data.path(), name);
        sets.push("log.level=error".to_owned());
        sets.push(format!(
            "auth.jwks_url=http://127.0.0.1:{}{KEYS}",
            port.number
        ));
        // Otherwise it sends no credential to the port, and gets no revocations from the true issuer.
        sets.push("insecure_loopback=true".to_owned());
        if matches!(name, "svc-wallet" | "svc-rewarder") {
            sets.push(format!("ledger.url={}", fleet.api_socket("ron-ledger")));
        }
        if name == "svc-rewarder" {
            sets.push(format!("kms.url={}", fleet.api_socket("ron-kms")));
        }
        if name == "svc-admin" {
            sets.push("auth.mode=passport".to_owned());
        }
        Self {
            name,
            read,
            api,
            health,
            config: fleet.dir().join(name).join("config.toml"),
            sets,
            process: None,
            data,
        }
    }

    fn start(&mut self, more: &[&str]) {
        self.process = None; // ends the one before
        let sets = self.sets.iter().map(String::as_str);
        let mut command = service(self.name, &self.config, sets.chain(more.iter().copied()));
        self.process = Some(Process::start(&mut command));
        wait_listening(("127.0.0.1", self.api));
    }

    /// Removes its record of what it has seen of the issuer.
    fn forget(&mut self) {
        self.process = None;
        let data = self.data.path().join(format!("{}-data", self.name));
        std::fs::remove_file(data.join("issuer-notes.json")).unwrap();
    }

    fn status(&self, fleet: &Fleet, token: &str) -> u16 {
        let url = format!("http://127.0.0.1:{}{}", self.api, self.read);
        fleet.get(&url, Some(token)).status
    }

    /// Reads of the keys so far, good and failed.
    fn reads(&self) -> u64 {
        let line = |result: &str| {
            let prefix = self.name.replace('-', "_");
            let line =
                format!("{prefix}_auth_refreshes_total{{result=\"{result}\",what=\"keys\"}} ");
            let health = format!("http://127.0.0.1:{}", self.health);
            metric(&http_client(), &health, &line).map_or(0, |n| n.parse().unwrap())
        };
        line("ok") + line("failed")
    }

    /// Waits until it has read the keys served from now on and reports this about them.
    fn says(&self, fleet: &Fleet, why: &str) {
        let health = format!("http://127.0.0.1:{}", self.health);
        until(&format!("{} says: {why}", self.name), || {
            passports_degraded(fleet, &health).contains(why)
        });
    }
}

/// A forged key set, and a passport that differs from a true one only by its key.
fn forged(issuer: &str) -> (String, impl Fn(&str, &str) -> String + use<>) {
    let key = Ed25519Key::from_seed(&[66; 32]);
    let kid = ron_crypto::jwk::thumbprint_okp(&key.public());
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": b64::url(&key.public())});
    let issuer = issuer.to_owned();
    let passport = move |audience: &str, scope: &str| {
        let now = now_s();
        let claims = json!({"iss": issuer, "sub": "operator", "aud": audience, "iat": now, "nbf": now, "exp": now + 600,
            "jti": "1.1.x", "client_id": "operator", "tenant": "default", "scope": scope, "ron_epoch": 1});
        let header = json!({"alg": "EdDSA", "kid": kid, "typ": "at+jwt"});
        let signed = format!("{}.{}", part(&header), part(&claims));
        format!("{signed}.{}", b64::url(&key.sign(signed.as_bytes())))
    };
    (json!({ "keys": [jwk] }).to_string(), passport)
}

/// A feed without events, under a checkpoint that another key has signed.
fn nothing_revoked(issuer: &str) -> String {
    let head = Checkpoint {
        origin: format!("{issuer}/revocations"),
        size: 0,
        root: Frontier::new().root(),
    };
    let key = Ed25519NoteSigner::new(&head.origin, Ed25519Key::from_seed(&[66; 32])).unwrap();
    let checkpoint = head.sign(&[&key]).unwrap();
    json!({"events": [], "next": 0, "current_epoch": 1, "checkpoint": checkpoint}).to_string()
}

#[test]
fn a_program_on_the_issuers_port_makes_no_passports() {
    let fleet = Fleet::start();
    let issuer = fleet.bootstrap()["issuer"].as_str().unwrap().to_owned();
    let (keys, passport) = forged(&issuer);
    let nothing_revoked = nothing_revoked(&issuer);
    let true_issuer = fleet.api_socket("svc-passport");
    let port = Port::before(&true_issuer);
    port.serve(&[(KEYS, &keys), (NOTE, ""), (EVENTS, &nothing_revoked)]);
    let mut services = SERVICES.map(|(name, read, _)| Beside::new(&fleet, &port, name, read));
    for service in &mut services {
        service.start(&[]);
    }
    let all_refuse = |services: &[Beside], status: &[u16]| {
        for (service, (name, _, scope)) in services.iter().zip(SERVICES) {
            let got = service.status(&fleet, &passport(name, scope));
            assert!(status.contains(&got), "{name} answers {got}");
        }
    };
    for service in &services {
        service.says(&fleet, "the policy note cannot be read: status 404");
    }
    all_refuse(&services, &[503]);

    // With the true note, which is public, and the true feed.
    port.serve(&[(KEYS, &keys)]);
    for service in &services {
        service.says(&fleet, "1 keys of the key set are not in the policy note");
    }
    all_refuse(&services, &[503]);

    // The true issuer is back.
    port.serve(&[]);
    for (service, (name, _, scope)) in services.iter().zip(SERVICES) {
        let token = fleet.token(name, Some(scope));
        until(name, || service.status(&fleet, &token) == 200);
    }
    all_refuse(&services, &[401]);

    // Without the pin this passport would be accepted: nothing else about it is wrong.
    let wallet = &mut services[0];
    port.serve(&[(KEYS, &keys), (NOTE, ""), (EVENTS, &nothing_revoked)]);
    wallet.forget(); // that the true issuer has revocations
    wallet.start(&["auth.note_vkey=", "auth.unpinned=true"]);
    let token = passport("svc-wallet", "wallet:read");
    until("an unpinned wallet believes it", || {
        wallet.status(&fleet, &token) == 200
    });
}

#[test]
fn an_older_note_is_refused_after_a_restart_too_and_a_feed_that_ends_before_it() {
    let fleet = Fleet::start();
    let true_issuer = fleet.api_socket("svc-passport");
    let read = |path: &str| {
        let reply = fleet.get(&format!("{true_issuer}{path}"), None);
        String::from_utf8(reply.body).unwrap()
    };
    let (old_keys, old_note) = (read(KEYS), read(NOTE));
    let old_feed = String::from_utf8(fleet.revocations("").body).unwrap();
    let revoked = fleet.token("svc-wallet", Some("wallet:read"));
    ok(&fleet.ron(&[
        "token",
        "revoke",
        "--token",
        revoked.as_str(),
        "--reason",
        "test",
    ]));
    let token = fleet.token("svc-wallet", Some("wallet:read"));

    let port = Port::before(&true_issuer);
    let (name, at, _) = SERVICES[0];
    let mut wallet = Beside::new(&fleet, &port, name, at);
    wallet.start(&[]);
    until(name, || wallet.status(&fleet, &token) == 200);
    until("it is revoked", || wallet.status(&fleet, &revoked) == 401);

    // The earlier feed, while the wallet runs.
    port.serve(&[(EVENTS, &old_feed)]);
    wallet.says(&fleet, "known revocations stay in force");
    assert_eq!(wallet.status(&fleet, &revoked), 401);
    assert_eq!(wallet.status(&fleet, &token), 200);

    // The earlier note, which was public, and the earlier feed.
    port.serve(&[(KEYS, &old_keys), (NOTE, &old_note), (EVENTS, &old_feed)]);
    wallet.start(&[]);
    wallet.says(&fleet, "it was rolled back");
    assert_eq!(wallet.status(&fleet, &token), 503);

    // The newest note with the earlier feed: revocations that the feed lacks would be undone.
    port.serve(&[(EVENTS, &old_feed)]);
    let before = wallet.reads();
    until("it reads the keys", || wallet.reads() > before);
    wallet.says(&fleet, "it was rolled back");
    assert_eq!(wallet.status(&fleet, &revoked), 503);

    port.serve(&[]);
    until(name, || wallet.status(&fleet, &token) == 200);
    assert_eq!(wallet.status(&fleet, &revoked), 401);
}

/// Why a service of the fleet is degraded.
fn degraded(fleet: &Fleet, service: &str) -> String {
    passports_degraded(fleet, &fleet.health(service))
}

fn trust(fleet: &Fleet, more: &[&str]) -> (bool, String) {
    let out = fleet.ron(&[&["issuer", "trust"], more].concat());
    let text = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8(text).unwrap())
}

fn balance(fleet: &Fleet, token: &str) -> u16 {
    let url = format!("{}{}", fleet.api("svc-wallet"), SERVICES[0].1);
    fleet.get(&url, Some(token)).status
}

#[test]
fn an_operator_accepts_a_lost_note_key_and_a_restored_issuer() {
    let fleet = Fleet::start();
    let token = fleet.token("svc-wallet", None);
    assert!(trust(&fleet, &[]).0, "a sound fleet needs nothing");

    // A new version of the note key signs from the next change on, and no service has pinned it.
    let note_key = fleet.bootstrap()["note_key"].as_str().unwrap().to_owned();
    ok(&fleet.ron(&["kms", "rotate", &note_key]));
    ok(&fleet.ron(&["token", "revoke", "--subject", "nobody", "--reason", "test"]));
    signal(fleet.pid(), "-HUP");
    until("the wallet refuses the note", || {
        degraded(&fleet, "svc-wallet").contains("signed by no key of auth.note_vkey")
    });
    assert_eq!(balance(&fleet, &token), 200, "the last good keys");
    let (sound, said) = trust(&fleet, &[]);
    assert!(
        !sound && said.contains("6 services do not accept"),
        "{said}"
    );
    assert!(said.contains("KMS      holds these keys"), "{said}");
    let (sound, said) = trust(&fleet, &["--yes"]);
    assert!(sound, "{said}");
    signal(fleet.pid(), "-HUP");
    until("all are sound", || {
        ron_tests::SERVICES
            .iter()
            .all(|name| degraded(&fleet, name).is_empty())
    });

    // The issuer is older than what the wallet has seen, as after a restore.
    let seen = fleet.dir().join("svc-wallet/data/issuer-notes.json");
    let issuer = fleet.bootstrap()["issuer"].as_str().unwrap().to_owned();
    let issuers = json!({issuer: {"note": 1_000_000}});
    let sum = b64::url(&sha256(issuers.to_string().as_bytes()));
    let text = json!({"format": 2, "issuers": issuers, "sum": sum}).to_string();
    std::fs::write(&seen, text).unwrap();
    signal(fleet.pid(), "-HUP");
    until("the wallet refuses the note", || {
        degraded(&fleet, "svc-wallet").contains("older than 1000000")
    });
    let (sound, said) = trust(&fleet, &["--yes"]);
    assert!(sound && said.contains("it has seen a newer one"), "{said}");
    signal(fleet.pid(), "-HUP");
    until("the wallet believes it again", || {
        degraded(&fleet, "svc-wallet").is_empty()
    });
    assert_eq!(balance(&fleet, &token), 200);
}

#[test]
fn the_note_key_changes_over_by_an_overlap_of_both() {
    let mut fleet = Fleet::start();
    let origin = format!("{}/policy", fleet.bootstrap()["issuer"].as_str().unwrap());
    let request = json!({
        "tenant": "ron", "purpose": "note", "alg": "ed25519", "payload": {"note": {"origin": origin}},
        "op_id": "01890a5d-ac96-774b-bcce-b302099a8057"
    });
    let made = fleet.kms("keys", &request, 201);
    let next = made["key"].as_str().unwrap();
    assert_eq!(fleet.stop(), Some(0));
    let edit = |service: &str, from: &str, to: &str| {
        let file = fleet.dir().join(service).join("config.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&file, text.replace(from, to)).unwrap();
    };
    let both = format!("note_key_next = \"{next}\"\nnote_key = ");
    edit("svc-passport", "note_key = ", &both);

    // Signed with both keys: a service that pins only the old one notices nothing.
    let fleet = Fleet::start_in(fleet.keep_dir());
    let issuer = fleet.api("svc-passport");
    let read = |path: &str| fleet.get(&format!("{issuer}{path}"), None).body;
    let keys = String::from_utf8(read("/v1/passport/policy/vkey")).unwrap();
    let keys: Vec<&str> = keys.lines().collect();
    let old = fleet.bootstrap()["note_vkey"].as_str().unwrap().to_owned();
    assert_eq!((keys.len(), keys[0]), (2, old.as_str()));

    // Both are pinned, then the new one alone; no passport is refused meanwhile.
    let token = fleet.token("svc-wallet", None);
    let file = fleet.dir().join("svc-wallet/config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let reads = || {
        let line = "svc_wallet_auth_refreshes_total{result=\"ok\",what=\"keys\"}";
        fleet.metric("svc-wallet", line)
    };
    for pins in [format!("{old}\", \"{}", keys[1]), keys[1].to_owned()] {
        let before = reads();
        std::fs::write(&file, text.replace(&old, &pins)).unwrap();
        signal(fleet.pid(), "-HUP");
        until("the wallet has read the keys again", || {
            assert_eq!(balance(&fleet, &token), 200);
            reads() > before
        });
    }
    assert_eq!(degraded(&fleet, "svc-wallet"), "");
}
