//! The service over real sockets: every route, every kind of bad request, and its life.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_auth::service_token;
use ron_http::{Call, ClientConfig, HttpClient, Reply};
use ron_kernel::{Deadline, Shutdown};
use ron_proto::kms::{
    CreateKey, JwtPolicy, KeyDoc, KeyList, KeyVersions, PayloadPolicy, RotateAnswer, SignAnswer,
    SignBatchAnswer, SignRequest, VerifyAnswer, VerifyMode, VerifyRequest,
};
use ron_proto::status::TopologyDoc;
use ron_proto::values::Alg;
use ron_service::{Config, Parts, Running};
use serde::Serialize;
use serde_json::{Value, json};

use super::{create_request, op_id};
use crate::settings::TABLE;
use crate::topology::TOPOLOGY;

const ALL: &str = "\"kms:sign\", \"kms:verify\", \"kms:read\", \"kms:create\", \"kms:rotate\"";

/// A service and a client of it.
pub(super) struct Served {
    pub(super) running: Running,
    client: HttpClient,
    token: String,
    /// Where its socket is: service tokens are taken there.
    _dir: tempfile::TempDir,
}

/// The token of the principal `name`, made from its name.
pub(super) fn token(name: &str) -> String {
    service_token::generate(name, &ron_crypto::hash::sha256(name.as_bytes()))
}

pub(super) fn principal(name: &str, tenant: &str, scopes: &str, more: &str) -> String {
    let sha256 = service_token::hash(&token(name));
    format!(
        "[[auth.principals]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nscopes = [{scopes}]\nsha256 = \"{sha256}\"\n{more}\n"
    )
}

impl Served {
    pub(super) fn start() -> Self {
        Self::start_with("")
    }

    /// With these lines at the end of its configuration.
    pub(super) fn start_with(more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("run/api.sock");
        let text = [
            "amnesia = true\nsigners = 2\nuds_only = true\n".to_owned(),
            format!("uds_path = \"{}\"\n", socket.display()),
            principal("admin", "ron", ALL, ""),
            principal("reader", "ron", "\"kms:read\"", ""),
            super::transit::principals(),
            principal("auditor", "default", "\"kms:audit\"", ""),
            principal("outsider", "default", ALL, ""),
            principal("issuer", "ron", ALL, "key_prefixes = [\"ron/issuer/\"]"),
            more.to_owned(),
        ]
        .join("\n");
        let file = Some(("test.toml".as_ref(), text.as_str()));
        let config = Config::load(&TABLE, file, &|_| None, &[]).expect("valid");
        let ports = Parts::ephemeral("ron-kms").expect("ports");
        let running = ron_service::start::<crate::RonKms>(config, ports).expect("starts");
        let client = HttpClient::new(ClientConfig::default());
        Self {
            running,
            client,
            token: token("admin"),
            _dir: dir,
        }
    }

    pub(super) fn call(&self, call: Call<'_>, token: &str) -> Reply {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let call = if token.is_empty() {
            call
        } else {
            call.headers(&headers)
        };
        self.client.call(call).expect("an answer")
    }

    fn get(&self, path: &str) -> Reply {
        self.get_as(&self.token, path)
    }

    pub(super) fn get_as(&self, token: &str, path: &str) -> Reply {
        let url = format!("{}{path}", self.running.api_url());
        let by = Deadline::within(Duration::from_secs(5));
        self.call(Call::get(&url, by), token)
    }

    pub(super) fn post_as(&self, token: &str, path: &str, body: &[u8]) -> Reply {
        let url = format!("{}{path}", self.running.api_url());
        let by = Deadline::within(Duration::from_secs(5));
        let call = Call::post_json(&url, body.to_vec(), by);
        self.call(call, token)
    }

    pub(super) fn post(&self, path: &str, body: &impl Serialize) -> Reply {
        self.post_as(&self.token, path, &serde_json::to_vec(body).expect("json"))
    }

    pub(super) fn create(&self, purpose: &str, payload: PayloadPolicy, op: u128) -> KeyDoc {
        let reply = self.post(
            "/v1/kms/keys",
            &create_request(purpose, Alg::Ed25519, payload, op),
        );
        assert_eq!(
            reply.status,
            201,
            "{}",
            String::from_utf8_lossy(&reply.body)
        );
        reply.json().expect("a key document")
    }

    pub(super) fn drain(mut self) {
        let report = self.running.drain(Duration::from_secs(5));
        assert_eq!((report.stragglers, self.running.fatal()), (vec![], None));
    }
}

pub(super) fn code(reply: &Reply) -> (u16, String) {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    (reply.status, body["code"].as_str().unwrap_or("").to_owned())
}

#[test]
fn the_life_of_a_key() {
    let served = Served::start();
    let mut doc = served.create("app", PayloadPolicy::Any, 1);
    let receipt = doc.receipt.take();
    assert_eq!(receipt.as_ref(), Some(&doc.versions[0].receipt));
    let path = format!("/v1/kms/keys/{}", doc.key);
    assert_eq!(served.get(&path).json::<KeyDoc>().expect("a document"), doc);
    assert_eq!(doc.backend, "memory");
    let version = &doc.versions[0];
    assert_eq!(version.jwk.as_ref().expect("a JWK").kid.len(), 43);
    assert!(
        version
            .public_key_pem
            .starts_with("-----BEGIN PUBLIC KEY-----")
    );
    let signed: SignAnswer = served
        .post(
            "/v1/kms/sign",
            &SignRequest::message(doc.key.clone(), *b"hello"),
        )
        .json()
        .expect("signed");
    let verify = |message: &[u8]| {
        let request = VerifyRequest {
            key: doc.key.clone().into(),
            version: None,
            message: Some(message.into()),
            digest: None,
            prehash: None,
            signatures: signed.signatures.clone(),
            mode: VerifyMode::And,
        };
        served
            .post("/v1/kms/verify", &request)
            .json::<VerifyAnswer>()
            .expect("an answer")
    };
    assert!(verify(b"hello").ok);
    let wrong = verify(b"hullo");
    assert_eq!(
        (wrong.ok, wrong.details[0].reason.as_deref()),
        (false, Some("no_match"))
    );
    let rotated: RotateAnswer = served
        .post(&format!("{path}/rotate"), &json!({"expected_head": 1}))
        .json()
        .expect("rotated");
    assert_eq!(rotated.document.head, 2);
    assert!(verify(b"hello").ok, "old versions verify");
    let stale = served.post(&format!("{path}/rotate"), &json!({"expected_head": 1}));
    assert_eq!(code(&stale), (409, "stale_head".into()));
    let batch =
        json!({"key": doc.key, "items": [{"message": "YQ"}, {"message": "Yg", "version": 1}]});
    let batch: SignBatchAnswer = served
        .post("/v1/kms/sign_batch", &batch)
        .json()
        .expect("a batch");
    assert_eq!(batch.results[0].answer.as_ref().map(|a| a.version), Some(2));
    assert_eq!(
        batch.results[1].error.as_ref().map(|e| e.code.as_str()),
        Some("version_not_head")
    );
    served.drain();
}

#[test]
fn a_list_comes_in_pages() {
    let served = Served::start();
    for op in 2..6 {
        served.create("list", PayloadPolicy::Digest, op);
    }
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let page: KeyList = served
            .get(&format!("/v1/kms/keys?purpose=list&limit=3{after}"))
            .json()
            .expect("a page");
        names.extend(page.keys.iter().map(|d| d.key.to_string()));
        let Some(next) = page.next else { break };
        after = format!("&after={next}");
    }
    assert_eq!(names.len(), 4);
    assert!(names.is_sorted());
    served.drain();
}

#[test]
fn versions_come_in_pages_and_nowhere_else() {
    let served = Served::start();
    let doc = served.create("app", PayloadPolicy::Any, 1);
    let path = format!("/v1/kms/keys/{}", doc.key);
    for head in 2..=7 {
        let rotated: RotateAnswer = served
            .post(&format!("{path}/rotate"), &json!({}))
            .json()
            .expect("an answer");
        let numbers = |doc: &KeyDoc| doc.versions.iter().map(|v| v.version).collect::<Vec<_>>();
        assert_eq!(numbers(&rotated.document), [head]);
        let read: KeyDoc = served.get(&path).json().expect("a document");
        assert_eq!((read.head, numbers(&read)), (head, vec![head]));
    }
    let listed: KeyList = served
        .get("/v1/kms/keys?purpose=app")
        .json()
        .expect("a page");
    assert_eq!((listed.keys[0].head, listed.keys[0].versions.len()), (7, 0));
    let (mut numbers, mut after) = (Vec::new(), 0);
    loop {
        let query = format!("{path}/versions?limit=3&after={after}");
        let page: KeyVersions = served.get(&query).json().expect("a page");
        assert!(page.versions.len() <= 3);
        numbers.extend(page.versions.iter().map(|v| v.version));
        let Some(next) = page.next else { break };
        after = next;
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
    let beyond = format!("{path}/versions?after=4000000000");
    let none: KeyVersions = served.get(&beyond).json().expect("a page");
    assert_eq!((none.versions, none.next), (vec![], None));
    for bad in ["limit=0", "limit=201", "after=-1", "after=x", "version=1"] {
        assert_eq!(
            served.get(&format!("{path}/versions?{bad}")).status,
            400,
            "{bad}"
        );
    }
    served.drain();
}

#[test]
fn bad_requests_are_answered_clearly() {
    let served = Served::start();
    let doc = served.create("issuer", PayloadPolicy::Any, 1);
    let key = doc.key.to_string();
    let good = json!({"key": key, "message": "aGk"}).to_string();
    let check = |token: &str, path: &str, body: &str, status: u16, want: &str| {
        let got = code(&served.post_as(token, path, body.as_bytes()));
        assert_eq!(
            got,
            (status, want.to_owned()),
            "{path} {}",
            &body[..body.len().min(200)]
        );
    };
    let admin = served.token.as_str();
    let sign = "/v1/kms/sign";
    check(admin, sign, &good, 200, "");
    check("", sign, &good, 401, "unauthorized");
    check(
        "ron_admin_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        sign,
        &good,
        401,
        "unauthorized",
    );
    check(&token("reader"), sign, &good, 403, "forbidden");
    check(&token("outsider"), sign, &good, 403, "forbidden");
    check(&token("issuer"), sign, &good, 200, "");
    let bad = |body: String| check(admin, sign, &body, 400, "bad_request");
    bad(good.replace("\"message\"", "\"mesage\""));
    bad(good.replacen('{', "{\"more\":1,", 1));
    bad(good.replacen('{', "{\"message\":\"aGk\",", 1));
    bad(good.replace("\"aGk\"", "7"));
    bad(good.replace("\"aGk\"", "\"a+/=\""));
    bad(good.replace("ron/issuer", "ron/Issuer"));
    bad(good.replace('}', ""));
    bad(json!({"key": key}).to_string());
    bad(json!({"key": key, "message": "aGk", "digest": {"alg": "sha256", "value": "00".repeat(32)}}).to_string());
    bad(json!({"key": key, "digest": {"alg": "md5", "value": "00"}}).to_string());
    bad(json!({"key": key, "message": "aGk", "version": -1}).to_string());
    bad(json!({"key": key, "message": "aGk", "op_id": "1"}).to_string());
    bad(String::new());
    served.drain();
}

#[test]
fn a_wait_above_the_maximum_is_refused_and_signs_nothing() {
    let served = Served::start();
    let doc = served.create("issuer", PayloadPolicy::Any, 1);
    let body = json!({"key": doc.key.to_string(), "message": "aGk"}).to_string();
    let bearer = format!("Bearer {}", served.token);
    let sign = |query: &str, prefer: &str| {
        let url = format!("{}/v1/kms/sign{query}", served.running.api_url());
        let within = Deadline::within(Duration::from_secs(40));
        let headers = [("authorization", bearer.as_str()), ("prefer", prefer)];
        let call = Call::post_json(&url, body.clone().into_bytes(), within).headers(&headers);
        served.client.call(call).expect("an answer")
    };
    let good: SignAnswer = sign("", "wait=30").json().expect("signed");
    for (query, prefer) in [("", "wait=31"), ("?wait=31", "wait=1"), ("", "wait=soon")] {
        let reply = sign(query, prefer);
        let detail = reply.problem().expect("a problem").detail;
        let says = (reply.status, detail.contains("at most 30"));
        assert_eq!(says, (400, true), "{query} {prefer}: {detail}");
    }
    let next: SignAnswer = sign("", "wait=1").json().expect("signed");
    assert_eq!(next.receipt.index, good.receipt.index + 1);
    served.drain();
}

#[test]
fn sizes_types_and_rights_are_checked() {
    let served = Served::start();
    let doc = served.create("issuer", PayloadPolicy::Any, 1);
    let key = doc.key.to_string();
    let check = |token: &str, path: &str, body: &str, status: u16, want: &str| {
        let got = code(&served.post_as(token, path, body.as_bytes()));
        assert_eq!(got, (status, want.to_owned()), "{path}");
    };
    let (admin, sign) = (served.token.as_str(), "/v1/kms/sign");
    let long = |bytes: usize| {
        json!({"key": key, "message": URL_SAFE_NO_PAD.encode(vec![0; bytes])}).to_string()
    };
    check(admin, sign, &long(64 * 1024), 200, "");
    check(admin, sign, &long(64 * 1024 + 1), 413, "too_large");
    check(admin, sign, &long(1024 * 1024), 413, "too_large");
    check(
        admin,
        "/v1/kms/sign_batch",
        &json!({"items": []}).to_string(),
        400,
        "bad_request",
    );
    check(
        admin,
        "/v1/kms/sign_batch",
        &json!({"items": vec![json!({}); 1001]}).to_string(),
        400,
        "bad_request",
    );
    let create = |request: CreateKey| serde_json::to_string(&request).expect("json");
    let request = create_request("app", Alg::Aes256Gcm, PayloadPolicy::Digest, 7);
    check(
        admin,
        "/v1/kms/keys",
        &create(request.clone()),
        400,
        "bad_request",
    );
    check(
        &token("issuer"),
        "/v1/kms/keys",
        &create(CreateKey {
            alg: Alg::Ed25519,
            ..request
        }),
        403,
        "forbidden",
    );
    served.drain();
}

#[test]
fn reading_is_checked_too() {
    let served = Served::start();
    let key = served
        .create("issuer", PayloadPolicy::Any, 1)
        .key
        .to_string();
    let (admin, sign) = (served.token.as_str(), "/v1/kms/sign");
    let good = json!({"key": key, "message": "aGk"}).to_string();
    let url = format!("{}{sign}", served.running.api_url());
    let mut call = Call::post_json(
        &url,
        good.into_bytes(),
        Deadline::within(Duration::from_secs(5)),
    );
    call.content_type = Some("text/plain");
    assert_eq!(
        code(&served.call(call, admin)),
        (415, "unsupported_media_type".into())
    );
    let status = |token: &str, path: &str| served.get_as(token, path).status;
    assert_eq!(
        status(&token("reader"), &format!("/v1/kms/keys/{key}")),
        200
    );
    assert_eq!(
        status(&token("outsider"), &format!("/v1/kms/keys/{key}")),
        403
    );
    assert_eq!(
        status(
            admin,
            "/v1/kms/keys/ron/issuer/ed25519/0190f0a0-0000-7000-8000-000000000000"
        ),
        404
    );
    assert_eq!(status(admin, "/v1/kms/keys/ron/issuer/ed25519/none"), 400);
    assert_eq!(status(admin, "/v1/kms/keys?limit=0"), 400);
    assert_eq!(status(admin, "/v1/kms/keys?lmit=5"), 400);
    assert_eq!(status(admin, sign), 405);
    served.drain();
}

#[test]
fn an_issuer_key_signs_tokens_and_nothing_else() {
    let served = Served::start();
    let policy = JwtPolicy {
        typ: vec!["at+jwt".into()],
        iss: "https://issuer.example".into(),
        aud: vec!["svc-wallet".into()],
        issuer_policy: false,
        max_ttl_s: 900,
    };
    let doc = served.create("issuer", PayloadPolicy::Jwt(policy), 1);
    let kid = &doc.versions[0].jwk.as_ref().expect("a JWK").kid;
    let now = unix_s();
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let input = |ttl: u64| {
        let header = json!({"alg": "EdDSA", "kid": kid, "typ": "at+jwt"});
        let claims = json!({"iss": "https://issuer.example", "aud": "svc-wallet", "iat": now, "exp": now + ttl});
        format!("{}.{}", part(header), part(claims))
    };
    let sign = |text: &str| {
        served.post(
            "/v1/kms/sign",
            &SignRequest::message(doc.key.clone(), text.as_bytes()),
        )
    };
    let good: SignAnswer = sign(&input(900)).json().expect("signed");
    assert_eq!(good.signatures[0].signature.as_slice().len(), 64);
    assert_eq!(code(&sign(&input(901))), (403, "payload_refused".into()));
    assert_eq!(
        code(&sign("anything else")),
        (403, "payload_refused".into())
    );
    served.drain();
}

fn unix_s() -> u64 {
    use ron_kernel::Clock as _;
    ron_kernel::SystemClock.unix_ms() / 1000
}

#[test]
fn third_parties_can_check_the_log() {
    let served = Served::start();
    let doc = served.create("app", PayloadPolicy::Any, 1);
    let signed: SignAnswer = served
        .post("/v1/kms/sign", &SignRequest::message(doc.key, *b"x"))
        .json()
        .expect("signed");
    let public = |path: &str| served.get_as("", path);
    let vkey = String::from_utf8(public("/audit/v1/vkey").body).expect("text");
    assert!(vkey.starts_with(&signed.receipt.log), "{vkey}");
    let until = Deadline::within(Duration::from_secs(5));
    let (_fire, never) = Shutdown::pair();
    let proof = loop {
        let reply = public(&format!("/audit/v1/proof/{}", signed.receipt.index));
        if reply.status == 200 {
            break String::from_utf8(reply.body).expect("text");
        }
        assert!(!until.expired(), "{}", reply.status);
        never.wait(Deadline::within(Duration::from_millis(50)));
    };
    assert!(proof.starts_with("c2sp.org/tlog-proof@v1"), "{proof}");
    let checkpoint = String::from_utf8(public("/audit/v1/checkpoint").body).expect("text");
    assert_eq!(checkpoint.lines().next(), Some(signed.receipt.log.as_str()));
    let bundle = "/audit/v1/tile/entries/000.p/1";
    assert_eq!(public(bundle).status, 401, "entries carry names");
    assert_eq!(
        served.get(bundle).status,
        403,
        "also those of other tenants"
    );
    assert_eq!(served.get_as(&token("auditor"), bundle).status, 200);
    assert_eq!(public("/audit/v1/tile/0/000.p/1").status, 200);
    served.drain();
}

#[test]
fn it_shows_what_it_is() {
    let served = Served::start();
    let url = |path: &str| format!("{}{path}", served.running.health_url());
    let get = |path: &str| {
        served.call(
            Call::get(&url(path), Deadline::within(Duration::from_secs(5))),
            "",
        )
    };
    let doc: TopologyDoc = get("/api/v1/topology").json().expect("a topology");
    let rows: BTreeSet<&str> = TOPOLOGY.threads.iter().map(|row| row.name).collect();
    assert_eq!(
        doc.threads
            .iter()
            .map(|row| row.name.as_str())
            .collect::<BTreeSet<_>>(),
        rows
    );
    for row in &doc.threads {
        assert_eq!(row.count, row.live, "{}", row.name);
        let index = usize::from(row.name.ends_with('-')) * 2;
        assert!(row.name.len() + index <= 15, "{}", row.name);
    }
    let sign = SignRequest {
        op_id: Some(op_id(3)),
        ..SignRequest::message(served.create("app", PayloadPolicy::Any, 1).key, *b"x")
    };
    assert_eq!(served.post("/v1/kms/sign", &sign).status, 200);
    let metrics = String::from_utf8(get("/metrics").body).expect("text");
    for name in [
        "ron_kms_ops_total{alg=\"ed25519\",op=\"sign\",result=\"ok\"} 1",
        "ron_kms_op_duration_seconds_bucket",
        "ron_kms_keys{alg=\"ed25519\",state=\"active\"} 1",
        "ron_kms_backend_sessions{backend=\"memory\",state=\"open\"} 1",
        "ron_kms_audit_leaves_total 3",
        "ron_kms_audit_batch_size_count",
        "ron_kms_audit_fsync_seconds_count",
        "ron_kms_audit_checkpoint_age_seconds",
        "ron_kms_checkpoint_late_total 0",
        "ron_kms_audit_integrity_failed_total 0",
        "ron_kms_verify_cache_age_seconds",
        "ron_kms_log_size 3",
        "ron_kms_queue_depth{queue=\"sign\"}",
        "ron_kms_queue_depth{queue=\"audit\"}",
    ] {
        assert!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
    let openapi: Value = served
        .get_as("", "/openapi.json")
        .json()
        .expect("a document");
    for path in [
        "/v1/kms/keys",
        "/v1/kms/sign",
        "/v1/kms/sign_batch",
        "/v1/kms/verify",
        "/audit/v1/checkpoint",
    ] {
        assert!(openapi["paths"][path].is_object(), "{path}");
    }
    assert!(served.running.ready().ready);
    served.drain();
}

#[test]
fn what_cannot_start_says_why() {
    let start = |pairs: &[(&str, &str)]| {
        let config = Config::from_pairs(&TABLE, pairs).expect("valid");
        ron_service::start::<crate::RonKms>(config, Parts::ephemeral("ron-kms").expect("ports"))
            .expect_err("refused")
            .to_string()
    };
    let dir = tempfile::tempdir().expect("dir");
    let data = dir.path().to_str().expect("utf-8");
    assert!(start(&[("backend", "memory"), ("data_dir", data)]).contains("amnesia"));
    assert!(start(&[]).contains("data_dir"));
    assert!(
        start(&[("data_dir", data), ("seal.key_file", "/nonexistent/key")])
            .contains("/nonexistent/key")
    );
    let config = Config::from_pairs(&TABLE, &[("data_dir", data)]).expect("valid");
    let mut running =
        ron_service::start::<crate::RonKms>(config, Parts::ephemeral("ron-kms").expect("ports"))
            .expect("starts");
    assert!(start(&[("data_dir", data)]).contains("in use"));
    running.drain(Duration::from_secs(5));
}
