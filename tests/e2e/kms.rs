//! The real ron-kms process: where the bytes of a key are, how one tenant's load affects another,
//! and the life of a key from the command line.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ron_client::{Credential, KmsClient};
use ron_crypto::hpke::Kem;
use ron_crypto::secret::SecretBytes;
use ron_crypto::{hash, keyblob};
use ron_custody::keys::wrapping::import_info;
use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, OsRandom};
use ron_proto::Alg;
use ron_proto::kms::{
    Bytes, CreateKey, DestroyKey, ImportKey, KeyDoc, KeyState, PayloadPolicy, RotateRequest,
    SignBatch, SignItem, SignRequest,
};
use ron_proto::values::{Kid, OpId};
use ron_tests::tools::{Process, openssl, service, signal};
use ron_tests::{free_port, http_client, metric, ok, ron_binary, until};
use tempfile::TempDir;

use crate::secrets_in_memory::in_memory;

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(20))
}

fn op_id() -> OpId {
    let random = OsRandom.bytes::<16>();
    OpId(uuid::Builder::from_random_bytes(random).into_uuid())
}

/// A running ron-kms, killed on drop.
struct Kms {
    dir: TempDir,
    child: Process,
    url: String,
    health: String,
    http: Arc<HttpClient>,
}

impl Kms {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (api, health) = (free_port(), free_port());
        let mut text = format!(
            "data_dir = \"{}\"\nbind_addr = \"127.0.0.1:{api}\"\nhealth_addr = \"127.0.0.1:{health}\"\n\
             signers = 2\nsign_deadline = \"20s\"\nrequest_deadline = \"20s\"\n\
             destroy.delay_min = \"1s\"\nuds_path = \"{1}/run/api.sock\"\n",
            dir.path().join("data").display(),
            dir.path().display()
        );
        for tenant in ["busy", "quiet"] {
            let token = token(tenant);
            let sha256 = ron_auth_hash(&token);
            write!(
                text,
                "[[auth.principals]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{sha256}\"\n\
                 scopes = [\"kms:create\", \"kms:read\", \"kms:sign\", \"kms:verify\", \"kms:rotate\", \"kms:admin\"]\n"
            )
            .unwrap();
            let file = dir.path().join(format!("{tenant}.token"));
            std::fs::write(&file, token).unwrap();
            private(&file);
        }
        let config = dir.path().join("ron-kms.toml");
        std::fs::write(&config, text).unwrap();
        let mut command = service("ron-kms", &config, [""; 0]);
        let kms = Self {
            child: Process::start(command.stderr(Stdio::null())),
            url: format!("unix:{}/run/api.sock", dir.path().display()),
            health: format!("http://127.0.0.1:{health}"),
            dir,
            http: Arc::new(http_client()),
        };
        let ready = format!("{}/readyz", kms.health);
        until("it is ready", || {
            let reply = kms.http.call(Call::get(&ready, soon()));
            reply.is_ok_and(|reply| reply.status == 200)
        });
        kms
    }

    fn client(&self, tenant: &str) -> KmsClient {
        let http = Arc::new(http_client());
        KmsClient::new(&self.url, Credential::bearer(&token(tenant)), http)
    }

    fn create(&self, tenant: &str, alg: Alg) -> Kid {
        let request = CreateKey {
            tenant: tenant.parse().unwrap(),
            purpose: "test".parse().unwrap(),
            alg,
            payload: PayloadPolicy::Any,
            exportable: false,
            derived: false,
            rotate_every: None,
            backend: None,
            op_id: op_id(),
            token: None,
        };
        self.client(tenant)
            .create_key(&request, soon())
            .unwrap()
            .key
    }

    /// Runs the command line against this process.
    fn ron(&self, arguments: &[&str]) -> Output {
        Command::new(ron_binary())
            .args(["kms", "--url", &self.url, "--token-file"])
            .arg(self.dir.path().join("quiet.token"))
            .args(arguments)
            .current_dir(self.dir.path())
            .output()
            .unwrap()
    }

    /// Its output; it must succeed.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.ron(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Its error text; it must fail.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.ron(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn private(file: &Path) {
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn token(tenant: &str) -> String {
    let secret = hash::sha256(tenant.as_bytes());
    format!("ron_{tenant}_{}", ron_proto::b64::url(&secret))
}

fn ron_auth_hash(token: &str) -> String {
    hex::encode(hash::sha256(token.as_bytes()))
}

fn in_files(dir: &Path, needle: &[u8], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            in_files(&path, needle, found);
        } else if path.is_file() // and no socket
            && std::fs::read(&path)
            .unwrap()
            .windows(needle.len())
            .any(|w| w == needle)
        {
            found.push(path);
        }
    }
}

fn import(kms: &Kms, client: &KmsClient, secret: &SecretBytes) -> KeyDoc {
    let to = client
        .wrapping_key(Alg::X25519HkdfAes256Gcm, soon())
        .unwrap();
    let (tenant, purpose) = ("quiet".parse().unwrap(), "byok".parse().unwrap());
    let info = import_info(&tenant, &purpose, Alg::Ed25519);
    let public = &to.public_key.0;
    let wrapped = keyblob::wrap_key(Kem::X25519, public, &info, secret.expose(), &OsRandom);
    let request = ImportKey {
        tenant,
        purpose,
        alg: Alg::Ed25519,
        payload: PayloadPolicy::Any,
        exportable: false,
        rotate_every: None,
        into: None,
        wrapping_key: to.id,
        wrapped: Bytes(wrapped.unwrap()),
        op_id: op_id(),
    };
    assert!(kms.dir.path().exists());
    client.import(&request, soon()).unwrap()
}

/// `docs/formats/kms.md`, "Where key bytes are": one copy in the arena of secrets, one in the key
/// object of the cryptographic library, none in a file, none anywhere after the destruction.
#[test]
fn key_bytes_are_where_they_are_documented_to_be() {
    let kms = Kms::start();
    let client = kms.client("quiet");
    let pid = kms.child.id();
    let secret = SecretBytes::from_slice(&OsRandom.bytes::<32>());
    let half = &secret.expose()[..16];
    let doc = import(&kms, &client, &secret);
    assert!(doc.imported);
    for n in 0..300_u32 {
        let message = SignRequest::message(doc.key.clone(), n.to_be_bytes());
        client.sign(&message, soon()).unwrap();
    }
    let found = in_memory(pid, half);
    let outside = found.iter().filter(|(_, arena)| !arena).count();
    assert!(
        found.iter().any(|(_, arena)| *arena),
        "the scan finds nothing: {found:x?}"
    );
    assert!(outside <= 1, "copies outside the arena: {found:x?}");
    let mut files = Vec::new();
    in_files(kms.dir.path(), half, &mut files);
    assert_eq!(files, Vec::<PathBuf>::new());
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let sizes: Vec<&str> = core.unwrap().split_whitespace().skip(4).take(2).collect();
    assert_eq!(sizes, ["0", "0"], "no core dumps");
    let order = DestroyKey {
        delay: Some("1s".parse().unwrap()),
        ..DestroyKey::default()
    };
    client.destroy(&doc.key, &order, soon()).unwrap();
    let ordered = Instant::now();
    while client.key(&doc.key, soon()).unwrap().state != KeyState::Destroyed {
        assert!(ordered.elapsed() < Duration::from_secs(20), "not destroyed");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The last signer may still hold the previous snapshot of the keys.
    let other = kms.create("quiet", Alg::Ed25519);
    client
        .sign(&SignRequest::message(other, *b"x"), soon())
        .unwrap();
    let found = in_memory(pid, half);
    assert!(found.is_empty(), "after the destruction: {found:x?}");
}

/// The number of other tenants' leaves in the log between each of `n` signatures of the quiet
/// tenant and the next.
fn others_between(client: &KmsClient, key: &Kid, n: usize) -> Vec<u64> {
    let mut indexes = Vec::with_capacity(n);
    for _ in 0..n {
        let request = SignRequest::message(key.clone(), *b"quiet");
        indexes.push(client.sign(&request, soon()).unwrap().receipt.index);
    }
    let mut others: Vec<u64> = indexes.windows(2).map(|two| two[1] - two[0] - 1).collect();
    others.sort_unstable();
    others
}

/// How long the quiet tenant waits beside `callers` of the busy one, in signatures.
fn beside(kms: &Kms, callers: usize, n: usize) -> Vec<u64> {
    let (busy, quiet) = (
        kms.create("busy", Alg::MlDsa65),
        kms.create("quiet", Alg::Ed25519),
    );
    let (stop, under_way) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                let client = kms.client("busy");
                let item = SignItem {
                    message: Some(Bytes(vec![7; 32])),
                    ..SignItem::default()
                };
                let batch = SignBatch {
                    key: Some(busy.clone().into()),
                    version: None,
                    items: vec![item; BATCH],
                };
                while !stop.load(Ordering::Relaxed) {
                    let _ = client.sign_batch(&batch, soon()); // a refusal is an answer too
                    under_way.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("the busy tenant's batches are signed", || {
            under_way.load(Ordering::Relaxed) >= 2 * callers
        });
        let others = others_between(&kms.client("quiet"), &quiet, n);
        stop.store(true, Ordering::Relaxed);
        others
    })
}

/// Items of a batch of the busy tenant.
const BATCH: usize = 40;

/// Without shares by tenant, each signature of the quiet tenant would wait behind all queued
/// batches of the busy one: ten times as many. Counted in leaves of the log, so that the machine's
/// speed does not matter; and by the shortest tenth of the waits, because on a busy machine this
/// program itself is late with its next request. Behind a queue no wait would be short.
#[test]
fn a_tenant_at_ten_times_its_load_does_not_slow_another_down() {
    let kms = Kms::start();
    let short = |others: &[u64]| others[others.len() / 10];
    let share = short(&beside(&kms, 1, 60));
    let tenfold = short(&beside(&kms, 10, 60));
    println!("signatures of others between two of its own: {share}, beside ten callers {tenfold}");
    assert!(
        // Behind the queue it would be eight batches, the two that are being signed aside.
        tenfold <= share + 6 * BATCH as u64,
        "from {share} to {tenfold}"
    );
}

#[test]
fn a_key_lives_its_life_on_the_command_line() {
    let kms = Kms::start();
    let key = kms.said(&[
        "create",
        "--tenant",
        "quiet",
        "--purpose",
        "cli",
        "--alg",
        "ed25519",
        "--rotate-every",
        "30d",
    ]);
    assert!(key.starts_with("quiet/cli/ed25519/"), "{key}");
    let signature = kms.said(&["sign", &key, "--message", "hello"]);
    let holds = kms.said(&[
        "verify",
        &key,
        "--message",
        "hello",
        "--signature",
        &signature,
    ]);
    assert!(holds.contains("version 1"), "{holds}");
    kms.refused(&[
        "verify",
        &key,
        "--message",
        "hullo",
        "--signature",
        &signature,
    ]);
    let rotated = kms.said(&["rotate", &key, "--expected-head", "1"]);
    assert!(rotated.contains("head         2"), "{rotated}");
    assert!(
        kms.refused(&["rotate", &key, "--expected-head", "1"])
            .contains("stale_head")
    );
    kms.said(&[
        "update",
        &key,
        "--min-verify-version",
        "2",
        "--rotate-every",
        "never",
    ]);
    let verify = [
        "verify",
        &key,
        "--message",
        "hello",
        "--signature",
        &signature,
    ];
    kms.refused(&verify);
    ends_on_the_command_line(&kms, &key);
}

fn ends_on_the_command_line(kms: &Kms, key: &str) {
    let pem = kms.said(&["get", key, "--public", "pem"]);
    assert!(pem.starts_with("-----BEGIN PUBLIC KEY-----"), "{pem}");
    let doc: KeyDoc = serde_json::from_str(&kms.said(&["get", key, "--json"])).unwrap();
    assert_eq!((doc.head, doc.min_verify_version), (2, 2));
    kms.said(&["destroy", key, "--delay", "7d"]);
    assert!(
        kms.refused(&["sign", key, "--message", "x"])
            .contains("key_not_active")
    );
    kms.said(&["cancel", key]);
    kms.said(&["retire", key]);
    let listed = kms.said(&["list", "--state", "retired"]);
    assert!(
        listed.contains(key) && listed.lines().count() == 1,
        "{listed}"
    );
    let why = kms.refused(&[
        "get",
        "quiet/cli/ed25519/0190f0a0-0000-7000-8000-000000000000",
    ]);
    assert!(why.contains("not_found"), "{why}");
}

/// Every deadline, interval and limit that a reload may change, in one configuration.
const RELOADED: &str = r#"
sign_deadline = "10s"
audit.reserve_wait = "100ms"
audit.checkpoint_ops = 100
audit.checkpoint_interval = "500ms"
audit.scrub_interval = "2h"
audit.log_key_overlap = "24h"
nonces.block = 16
nonces.cap = 1000
rotation.prepublish = "10m"
rotation.jitter_percent = 0
destroy.delay = "72h"
destroy.delay_min = "48h"
backends.probe_every = "5s"
verify_cache.soft_ttl = "1m"
verify_cache.hard_ttl = "10m"
attest.require = "required"
attest.refresh_every = "1m"
witness.deadline = "1s"
witness.late = "5s"
"#;

#[test]
fn a_reload_changes_what_its_row_says() {
    let kms = Kms::start();
    let client = kms.client("quiet");
    let key = kms.create("quiet", Alg::Ed25519);
    let text = || SignRequest::message(key.clone(), b"text");
    client.sign(&text(), soon()).unwrap();
    let file = kms.dir.path().join("ron-kms.toml");
    let old = std::fs::read_to_string(&file).unwrap();
    let kept = old.lines().filter(|line| {
        let key = line.split(" = ").next().unwrap_or_default();
        !RELOADED
            .lines()
            .any(|new| new.starts_with(&format!("{key} = ")))
    });
    let kept: Vec<&str> = kept.collect();
    std::fs::write(&file, format!("{RELOADED}{}\n", kept.join("\n"))).unwrap();
    signal(kms.child.id(), "-HUP");
    let reloads = "ron_kms_config_reloads_total{result=\"ok\"}";
    until("the configuration is reloaded", || {
        metric(&kms.http, &kms.health, reloads).as_deref() == Some("1")
    });
    let refused = client.sign(&text(), soon()).unwrap_err().to_string();
    assert!(refused.contains("attestation_missing"), "{refused}");
    let delay = ["destroy", &key.to_string(), "--delay", "24h"];
    let why = kms.refused(&delay);
    assert!(why.contains("at least 172800s"), "{why}");
}

#[test]
fn many_versions_are_listed_and_shown_on_the_command_line() {
    let kms = Kms::start();
    let client = kms.client("quiet");
    let keys = [(); 3].map(|()| kms.create("quiet", Alg::MlDsa65));
    for key in &keys {
        for _ in 0..173 {
            let request = RotateRequest::default();
            client.rotate(key, &request, soon()).unwrap();
        }
    }
    let listed = kms.said(&["list"]);
    assert_eq!(listed.matches("  head 174  ").count(), 3, "{listed}");
    let key = keys[0].to_string();
    let shown = kms.said(&["get", &key]);
    let versions = shown.lines().filter(|line| line.starts_with("version "));
    assert_eq!(versions.count(), 174, "{shown}");
    let old = ["get", &key, "--public", "pem", "--version", "100"];
    assert!(kms.said(&old).starts_with("-----BEGIN PUBLIC KEY-----"));
    let none = ["get", &key, "--public", "pem", "--version", "175"];
    assert!(kms.refused(&none).contains("no version 175"));
}

#[test]
fn a_file_of_any_size_is_signed_and_checked_on_the_command_line() {
    let kms = Kms::start();
    let make = |payload: &str| {
        kms.said(&[
            "create",
            "--tenant",
            "quiet",
            "--purpose",
            "cli",
            "--alg",
            "ed25519",
            "--payload",
            payload,
        ])
    };
    let any = make("any");
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    for (name, length) in [("edge", 65_536), ("above", 65_537), ("large", 200_000)] {
        std::fs::write(kms.dir.path().join(name), &bytes[..length]).unwrap();
        let signature = kms.said(&["sign", &any, "--file", name]);
        let check =
            |file: &str| kms.ron(&["verify", &any, "--file", file, "--signature", &signature]);
        assert!(check(name).status.success(), "{name}");
        let mut other = bytes[..length].to_vec();
        other[length - 1] ^= 1;
        std::fs::write(kms.dir.path().join("other"), &other).unwrap();
        assert!(!check("other").status.success(), "{name}: one byte changed");
    }
    // A key for digests signs small files too, on request.
    let digest = make("digest");
    let why = kms.refused(&["sign", &digest, "--message", "small"]);
    assert!(why.contains("payload_refused"), "{why}");
    let signature = kms.said(&["sign", &digest, "--digest", "--message", "small"]);
    kms.said(&[
        "verify",
        &digest,
        "--digest",
        "--message",
        "small",
        "--signature",
        &signature,
    ]);
    kms.said(&["sign", &digest, "--file", "large"]);
    // For a key that may sign neither, the error says what to do.
    let tokens = make(r#"{"jwt":{"typ":["at+jwt"],"iss":"http://x","aud":["y"],"max_ttl_s":60}}"#);
    let why = kms.refused(&["sign", &tokens, "--file", "large"]);
    assert!(
        why.contains("a `jwt` key parses") && why.contains("--payload prehash"),
        "{why}"
    );
}

#[test]
fn openssl_accepts_certificate_signing_requests() {
    let kms = Kms::start();
    for (alg, payload) in [
        ("ed25519", "any"),
        ("ecdsa-p256", "prehash"),
        ("ecdsa-p384", "any"),
        ("rsa-2048", "prehash"),
    ] {
        let make = ["create", "--tenant", "quiet", "--purpose", "tls", "--alg"];
        let key = kms.said(&[&make[..], &[alg, "--payload", payload]].concat());
        let names = ["--dns", "example.org", "--ip", "127.0.0.1"];
        let subject = ["--subject", r"CN=example.org,O=Example\, Inc"];
        let csr = kms.said(&[&["csr", &key][..], &names, &subject].concat());
        std::fs::write(kms.dir.path().join("request.pem"), csr + "\n").unwrap();
        let shown = openssl(kms.dir.path(), "req -verify -noout -text -in request.pem");
        for part in [
            "CN = example.org",
            "O = \"Example, Inc\"",
            "DNS:example.org, IP Address:127.0.0.1",
        ] {
            assert!(shown.contains(part), "{alg}: {part} in {shown}");
        }
    }
    let wraps = kms.said(&[
        "create",
        "--tenant",
        "quiet",
        "--purpose",
        "tls",
        "--alg",
        "aes256-gcm",
    ]);
    let why = kms.refused(&["csr", &wraps, "--dns", "example.org"]);
    assert!(why.contains("no keys of aes256-gcm"), "{why}");
    let notes = r#"{"note":{"origin":"example.org/log"}}"#;
    let notes = kms.said(&[
        "create",
        "--tenant",
        "quiet",
        "--purpose",
        "tls",
        "--alg",
        "ed25519",
        "--payload",
        notes,
    ]);
    let why = kms.refused(&["csr", &notes, "--dns", "example.org"]);
    assert!(why.contains("payload_refused"), "{why}");
}

/// OpenSSL verifies signatures of a file of a gibibyte, of which the KMS has seen the hash.
#[test]
fn openssl_verifies_signatures_of_a_large_file() {
    let kms = Kms::start();
    let path = |name: &str| kms.dir.path().join(name);
    let mut file = std::fs::File::create(path("disk.img")).unwrap();
    file.write_all(b"an image with a long rest of zeros")
        .unwrap();
    file.set_len(1 << 30).unwrap();
    let pss = ["rsa_padding_mode:pss", "rsa_pss_saltlen:digest"];
    let rsa = "rsa-2048";
    let cases: [(&str, Option<&str>, &str, &[&str]); 5] = [
        ("ecdsa-p256", None, "-sha256", &[]),
        ("ecdsa-p256", Some("ecdsa-sha512"), "-sha512", &[]),
        ("ecdsa-p384", None, "-sha384", &[]),
        (rsa, None, "-sha256", &pss),
        (rsa, Some("rsa-pkcs1-sha384"), "-sha384", &[]),
    ];
    for (alg, scheme, hash, options) in cases {
        let make = ["create", "--tenant", "quiet", "--purpose", "cli", "--alg"];
        let key = kms.said(&[&make[..], &[alg, "--payload", "prehash"]].concat());
        let named = scheme.map_or(vec![], |scheme| vec!["--scheme", scheme]);
        let of_file = [&["--file", "disk.img"][..], &named].concat();
        let out = ["--out", "disk.img.sig"];
        kms.said(&[&["sign", &key][..], &of_file, &out].concat());
        let from = ["--signature-file", "disk.img.sig"];
        kms.said(&[&["verify", &key][..], &of_file, &from].concat());
        let pem = kms.said(&["get", &key, "--public", "pem"]);
        std::fs::write(path("key.pem"), pem).unwrap();
        let mut openssl = Command::new("openssl");
        openssl.args(["dgst", hash]);
        for option in options {
            openssl.args(["-sigopt", option]);
        }
        openssl.args(["-verify", "key.pem", "-signature", "disk.img.sig"]);
        openssl.arg("disk.img").current_dir(kms.dir.path());
        assert_eq!(ok(&openssl.output().unwrap()), "Verified OK\n", "{alg}");
    }
}

#[test]
fn a_birth_certificate_is_requested_with_the_given_token() {
    let fleet = ron_tests::Fleet::start();
    let key = fleet.bootstrap()["issuer_key"].as_str().unwrap().to_owned();
    let out = fleet.dir().join("birth.json");
    let out = out.to_str().unwrap();
    // The operator's own token, as for every other command of `ron kms`.
    ron_tests::ok(&fleet.ron(&["kms", "attest", &key, "--out", out]));
    // The given token is used, even if the operator's would work instead.
    let token = fleet.dir().join("wrong.token");
    std::fs::write(&token, self::token("nobody")).unwrap();
    private(&token);
    let file = token.to_str().unwrap();
    let refused = fleet.ron(&["kms", "--token-file", file, "attest", &key, "--out", out]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && why.contains("unauthorized"),
        "{why}"
    );
    // Only the token's file is given; the URL is that of the data directory.
    let own = fleet.dir().join("clients/operator.kms.token");
    let own = own.to_str().unwrap();
    ron_tests::ok(&fleet.ron(&["kms", "--token-file", own, "attest", &key, "--out", out]));
}

fn import_words<'a>(file: &'a str, alg: &'a str) -> Vec<&'a str> {
    let own = ["--tenant", "quiet", "--purpose", "cli"];
    [&["import", file, "--alg", alg][..], &own].concat()
}

#[test]
fn a_key_comes_in_and_goes_out_wrapped_on_the_command_line() {
    let kms = Kms::start();
    let seed = OsRandom.bytes::<32>();
    let file = kms.dir.path().join("seed");
    std::fs::write(&file, seed).unwrap();
    private(&file);
    let seed_in = import_words("seed", "ml-dsa-65");
    let stays = kms.said(&seed_in);
    let leaves = kms.said(&[&seed_in[..], &["--exportable"]].concat());
    for (alg, name) in [("x25519+ml-kem-768", "a"), ("x25519-hkdf-aes256-gcm", "b")] {
        let public = kms.said(&["recipient", name, "--alg", alg]);
        let why = kms.refused(&["export", &stays, "--to", &public, "--out", "no"]);
        assert!(why.contains("export_forbidden"), "{why}");
        let out = format!("{name}.wrapped");
        kms.said(&["export", &leaves, "--to", &public, "--out", &out]);
        let opened = format!("{name}.key");
        kms.said(&["open", &out, "--with", name, "--out", &opened]);
        assert_eq!(std::fs::read(kms.dir.path().join(&opened)).unwrap(), seed);
        kms.refused(&["open", &out, "--with", "seed", "--out", "no"]);
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(kms.refused(&seed_in).contains("chmod 600"));
    for (made, alg) in [
        ("EC -pkeyopt ec_paramgen_curve:P-256", "ecdsa-p256"),
        ("EC -pkeyopt ec_paramgen_curve:P-384", "ecdsa-p384"),
        ("RSA -pkeyopt rsa_keygen_bits:3072", "rsa-3072"),
        ("ED25519", "ed25519"),
    ] {
        let pem = format!("{alg}.pem");
        openssl(
            kms.dir.path(),
            &format!("genpkey -out {pem} -algorithm {made}"),
        );
        private(&kms.dir.path().join(&pem));
        let imported = kms.said(&import_words(&pem, alg));
        let shown = kms.said(&["get", &imported, "--public", "pem"]);
        let want = openssl(kms.dir.path(), &format!("pkey -in {pem} -pubout"));
        assert_eq!(shown, want.trim());
    }
    assert_eq!(kms.said(&["list"]).lines().count(), 6);
}
