//! Every route of the six services with the token of a second tenant, which has every scope that is
//! not one of the whole installation: nothing of the first tenant is read or changed. The routes are
//! those of the OpenAPI documents; a new one fails until it says here what the second tenant sends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use ron_client::encode;
use ron_http::{Method, Reply};
use ron_proto::ledger::BudgetId;
use ron_proto::{ContentId, b64, scope};
use ron_tests::{Fleet, SERVICES, caught_up, issuer, json, ok, ron_on};
use serde_json::{Value, json};

/// Part of every name of the first tenant that the second one knows and sends.
const NAME: &str = "zqname";
/// Part of everything of the first tenant that the second one does not know.
const SECRET: &str = "zqsecret";
/// The same name in both tenants.
const CALLER: &str = "zqname-boss";

/// Scopes that act on all tenants by design; a policy gives them to operators and auditors.
const OF_ALL_TENANTS: [&str; 3] = [scope::KMS_AUDIT, scope::LEDGER_AUDIT, scope::PASSPORT_ADMIN];

/// Answers to the second tenant that may have names of the first one, and why.
const SHOWN: [(&str, &str); 13] = [
    ("POST /oauth2/introspect", TOKEN),
    ("POST /v1/passport/verify", TOKEN),
    ("POST /v1/passport/verify_batch", TOKEN),
    ("GET /v1/kms/audit/entries", ECHO),
    ("GET /v1/transit/keys", ECHO),
    ("GET /v1/transit/keys/{name}", ECHO),
    ("POST /v1/transit/keys/{name}", ECHO),
    ("POST /v1/transit/keys/{name}/config", ECHO),
    ("POST /v1/transit/keys/{name}/rotate", ECHO),
    ("PUT /v1/transit/keys/{name}", ECHO),
    ("PUT /v1/transit/keys/{name}/config", ECHO),
    ("PUT /v1/transit/keys/{name}/rotate", ECHO),
    (
        "GET /v1/auth/token/lookup-self",
        "the second tenant's caller has the same name",
    ),
];
const TOKEN: &str = "the claims of the token that was sent, which any holder can decode";
const ECHO: &str = "a key of the second tenant, to which it gave the same name";

/// Reads whose answers change with time, or with attempts of others, and why.
const MOVING: [(&str, &str); 14] = [
    (
        "/v1/transit/backup/{name}",
        "each backup is sealed again, under another nonce",
    ),
    ("/audit/v1/", "the log grows"),
    ("/log/v1/", "the log gets newer checkpoints"),
    ("/revocations/v1/", "revocations by all tenants are public"),
    (
        "/v1/kms/audit/entries",
        "attempts on a key are leaves of its owner",
    ),
    (
        "/v1/auth/token/lookup-self",
        "it has the rest of the token's life",
    ),
    ("/v1/sys/health", "it has the time"),
    ("/v1/ledger/head", "the log gets newer checkpoints"),
    ("/v1/tx/{txid}/proof", "it is under the newest checkpoint"),
    ("/v1/tx/{txid}/receipt", "it is under the newest checkpoint"),
    (
        "/v1/ledger/tx/{txid}/receipt",
        "it is under the newest checkpoint",
    ),
    (
        "/v1/passport/policy",
        "it is signed again from time to time",
    ),
    (
        "/v1/passport/",
        "verifiers need the revocations by all tenants",
    ),
    ("/v1/webhooks", "their cursors follow the log"),
];

/// Members that change without anybody's doing.
const VOLATILE: [&str; 10] = [
    "as_of",
    "as_of_seq",
    "stale_ms",
    "ts",
    "seq",
    "head",
    "next",
    "newer",
    "older",
    "request_id",
];

fn is_moving(path: &str) -> bool {
    MOVING.iter().any(|(prefix, _)| path.starts_with(prefix))
}

/// What a request sends.
enum Sent {
    Nothing,
    Json(Value),
    Text(&'static str, String),
}

/// One operation of an OpenAPI document.
struct Route {
    service: &'static str,
    method: Method,
    path: String,
    /// Names and places of its parameters.
    parameters: Vec<(String, String)>,
    has_body: bool,
}

impl Route {
    fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

fn routes(fleet: &Fleet) -> Vec<Route> {
    let mut found = Vec::new();
    for service in SERVICES {
        let url = format!("{}/openapi.json", fleet.api(service));
        let api = json(&fleet.get(&url, None), 200);
        for (path, operations) in api["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let method = match method.as_str() {
                    "get" => Method::GET,
                    "post" => Method::POST,
                    "patch" => Method::PATCH,
                    "put" => Method::PUT,
                    "delete" => Method::DELETE,
                    other => panic!("{other} {path}"),
                };
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let listed = operation["parameters"].as_array().into_iter().flatten();
                found.push(Route {
                    service,
                    method,
                    path: path.clone(),
                    parameters: listed.map(|p| (text(&p["name"]), text(&p["in"]))).collect(),
                    has_body: !operation["requestBody"].is_null(),
                });
            }
        }
    }
    found
}

/// What the first tenant has made.
struct First {
    /// Kid of its signing key, and of those for ciphertexts, MACs and derivations.
    key: String,
    aes: String,
    hmac: String,
    hkdf: String,
    /// Results of operations with them.
    signature: Value,
    ciphertext: Value,
    mac: Value,
    /// The answer to a signature with [`OP_ID`].
    signed: Value,
    vault_ciphertext: String,
    transfer: String,
    hold: String,
    /// The snapshot's content id, the policy as it was stored, and its hash.
    cid: String,
    policy: Value,
    policy_hash: String,
    /// The issuer's signed policy.
    issuer_policy: Value,
    /// A passport for the wallet.
    token: String,
}

/// An alias of the first tenant's signing key.
const ALIAS: &str = "zqname-key";
const OP_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
const USAGE: &str =
    "account,metric,amount\nacct:zqname,smoothing_pool,1000000\nacct:zqsecret,smoothing_pool,500\n";

impl First {
    /// The value of a parameter; two requests are made where two values make a difference.
    fn value(&self, route: &Route, parameter: &str, second: bool) -> Option<String> {
        let kid: Vec<&str> = self.key.split('/').collect();
        let statement = route.path.ends_with("/statement");
        let value = match (route.service, parameter) {
            ("ron-kms", "tenant" | "purpose") => NAME,
            ("ron-kms", "alg") if route.path.ends_with("/wrapping_key") => return None,
            ("ron-kms", "alg") => kid[2],
            ("ron-kms", "id") => kid[3],
            ("ron-kms", "alias") if route.path.contains("{alias}") => ALIAS,
            ("ron-kms", "alias" | "tag") => return None,
            ("ron-kms", "request" | "grant") => OP_ID,
            ("ron-kms", "key") if second => return None,
            ("ron-kms", "key") => &self.key,
            ("ron-kms", "kind") if route.path.contains("/export/") => "public-key",
            ("ron-kms", "kind") => "plaintext",
            ("ron-kms", "name") if second => "zqname-aes",
            ("ron-kms", "name") => "zqname",
            ("ron-kms", "algorithm" | "hash") => "sha2-256",
            ("ron-kms", "list") => "true",
            ("ron-kms", "bytes") => "32",
            ("ron-kms", "source") => "platform",
            ("ron-kms", "version") => "latest",
            ("ron-kms" | "ron-ledger" | "svc-passport", "index") => "0",
            ("ron-kms" | "ron-ledger" | "svc-passport", "bundle") => "000.p/1",
            ("ron-kms" | "ron-ledger" | "svc-passport", "tile") => "0/000.p/1",
            ("svc-passport", "audience") => "svc-wallet",
            ("svc-passport", "scope" | "base") => return None,
            ("ron-ledger", "account") if second => "pool:zqname/usage",
            ("ron-ledger" | "svc-wallet" | "svc-rewarder", "account") => "acct:zqname",
            ("ron-ledger", "tenant") => NAME,
            ("ron-ledger", "principal") => CALLER,
            ("ron-ledger" | "svc-wallet", "key") => "zqname-transfer",
            ("ron-ledger", "epoch") => "zqname:1",
            ("ron-ledger", "hold") if route.path.contains("{hold}") => &self.hold,
            ("ron-ledger", "id") => return Some(BudgetId::derive(&self.jti()).to_string()),
            ("ron-ledger" | "svc-wallet", "txid") if second => &self.hold,
            ("ron-ledger" | "svc-wallet", "txid") => &self.transfer,
            ("ron-ledger" | "svc-wallet" | "svc-rewarder", "asset") => "rpl",
            ("ron-ledger" | "svc-wallet", "from") if statement => "2020-01-01T00:00:00Z",
            ("ron-ledger" | "svc-wallet", "until") if statement => "2099-01-01T00:00:00Z",
            ("ron-ledger", "at") => "1",
            ("svc-wallet", "at") if second => "1",
            ("svc-wallet", "reference") => "zqname-order",
            ("svc-wallet", "id") => &self.hold,
            ("svc-wallet", "name") => NAME,
            ("svc-rewarder", "id") if route.path.contains("/policy/") => NAME,
            ("svc-rewarder", "id") => "zqname:1",
            ("svc-rewarder", "cid") => &self.cid,
            ("svc-rewarder", "hash") => &self.policy_hash,
            // Absent: the epoch itself.
            ("svc-rewarder", "dry_run") => return None,
            ("svc-passport", "list") => return Some(self.status_list()),
            ("svc-admin", "id") => "ron-kms",
            ("svc-admin", "name") => "process_open_fds",
            // Filters and pages; absent is everything.
            (
                _,
                "after" | "before" | "limit" | "wait" | "from" | "until" | "state" | "op" | "kind",
            ) => {
                return None;
            }
            (_, "at" | "batch" | "by" | "counterparty" | "direction" | "format" | "hold") => {
                return None;
            }
            ("svc-passport", "client" | "in_force" | "since" | "subject") => return None,
            (_, "metadata" | "min_seq" | "period" | "prefix" | "reference") => return None,
            ("ron-ledger", "viewer" | "viewer_tenant") => return None,
            ("svc-admin", "labels" | "window" | "step" | "node" | "least") => return None,
            (service, other) => panic!("{service} {}: give a value for {other}", route.name()),
        };
        Some(value.to_owned())
    }

    fn jti(&self) -> String {
        issuer::claims(&self.token)["jti"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// The last part of the URI of the status list of its token.
    fn status_list(&self) -> String {
        let claims = issuer::claims(&self.token);
        let uri = claims["status"]["status_list"]["uri"].as_str().unwrap();
        uri.rsplit('/').next().unwrap().to_owned()
    }

    fn url(&self, fleet: &Fleet, route: &Route, second: bool) -> String {
        let mut path = route.path.clone();
        let mut query = Vec::new();
        for (name, place) in &route.parameters {
            let value = || self.value(route, name, second);
            match place.as_str() {
                "path" => {
                    let value = value().unwrap_or_else(|| panic!("{}: {name}", route.name()));
                    let tile = ["tile", "bundle"].contains(&name.as_str());
                    let value = if tile { value } else { encode(&value) };
                    path = path.replace(&format!("{{{name}}}"), &value);
                }
                "query" => query.extend(value().map(|v| format!("{name}={}", encode(&v)))),
                _ => {}
            }
        }
        let query = if query.is_empty() {
            String::new()
        } else {
            format!("?{}", query.join("&"))
        };
        format!("{}{path}{query}", fleet.api(route.service))
    }

    /// The body of a request about what the first tenant has.
    fn body(&self, route: &Route, second: bool) -> Sent {
        if !route.has_body {
            return Sent::Nothing;
        }
        match route.service {
            "ron-kms" if route.path.starts_with("/v1/transit/") => {
                Sent::Json(self.vault(route, second))
            }
            "ron-kms" if route.path.starts_with("/v1/auth/") => Sent::Json(json!({})),
            "ron-kms" => Sent::Json(self.kms(route)),
            "svc-passport" => self.passport(route),
            "ron-ledger" => Sent::Json(Self::ledger(route, second)),
            "svc-wallet" => Sent::Json(Self::wallet(route)),
            "svc-rewarder" => self.rewarder(route),
            _ => Sent::Json(self.admin(route)),
        }
    }

    fn kms(&self, route: &Route) -> Value {
        let text = b64::url(b"text");
        let key = &self.key;
        let make = json!({"tenant": NAME, "purpose": NAME, "alg": "ed25519", "payload": "any", "op_id": OP_ID});
        let opened = json!({"key": self.aes, "ciphertext": self.ciphertext});
        let verify = json!({"key": key, "message": text, "signatures": self.signature});
        let by_name = "/keys/{tenant}/{purpose}/{alg}/{id}";
        let name = route.name().replace("/keys/alias/{alias}", by_name);
        match name.as_str() {
            "POST /v1/kms/log_key/rotate" => json!({}),
            "PUT /v1/kms/aliases/{alias}" => json!({"key": key}),
            "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals" => {
                json!({"destroy": {"op_id": OP_ID}})
            }
            "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals/{request}/approve" => {
                json!({"approver": CALLER, "signature": b64::url(&[7; 64])})
            }
            "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/grants" => {
                json!({"grantee": CALLER, "ops": ["sign"], "lifetime": "1h"})
            }
            "PUT /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/policy" => json!({"policy": null}),
            "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/policy/explain" => {
                json!({"principal": CALLER, "op": "sign"})
            }
            "POST /v1/kms/aliases/{alias}/delete"
            | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/grants/{grant}/retire" => json!({}),
            "POST /v1/kms/random" => json!({"bytes": 16}),
            "POST /v1/kms/datakey" => json!({"key": self.aes}),
            "POST /v1/kms/derive" => {
                json!({"key": self.hkdf, "info": text, "output": {"wrap": {"key": self.aes}}})
            }
            "POST /v1/kms/hmac" => json!({"key": self.hmac, "message": text}),
            "POST /v1/kms/hmac/verify" => {
                json!({"key": self.hmac, "message": text, "mac": self.mac})
            }
            "POST /v1/kms/sign" => json!({"key": key, "message": text, "op_id": OP_ID}),
            "POST /v1/kms/verify" => verify,
            "POST /v1/kms/verify/raw" => json!({"alg": "ed25519", "public_key": b64::url(&[9; 32]),
                "message": text, "signature": b64::url(&[7; 64])}),
            "POST /v1/kms/wrap" => json!({"key": self.aes, "plaintext": text}),
            "POST /v1/kms/unwrap" | "POST /v1/kms/rewrap" => opened,
            "POST /v1/kms/sign_batch" => json!({"items": [{"key": key, "message": text}]}),
            "POST /v1/kms/wrap_batch" => json!({"items": [{"key": self.aes, "plaintext": text}]}),
            "POST /v1/kms/unwrap_batch" => json!({"items": [opened]}),
            "POST /v1/kms/verify_batch" => json!({"items": [verify]}),
            "PUT /v1/kms/issuer_policy" => self.issuer_policy.clone(),
            "POST /v1/kms/keys" => make,
            "POST /v1/kms/keys/import" => json!({"tenant": NAME, "purpose": NAME, "alg": "ed25519",
                "wrapping_key": OP_ID, "wrapped": text, "op_id": OP_ID}),
            "POST /v1/kms/keys/adopt" => json!({"tenant": NAME, "purpose": NAME, "alg": "ed25519",
                "object": {"label": "site"}, "op_id": OP_ID}),
            "POST /v1/kms/keys/restore" => json!({"tenant": NAME, "backup": text, "op_id": OP_ID}),
            "PATCH /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}" => json!({"min_verify_version": 1}),
            "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/attest" => json!({"nonce": ""}),
            "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/export" => {
                json!({"recipient": {"alg": "x25519-hkdf-aes256-gcm", "public_key": b64::url(&[9; 32])}})
            }
            "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/backup"
            | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy"
            | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy/cancel"
            | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/retire"
            | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/rotate" => json!({}),
            other => panic!("{other} is new: say here what a second tenant would send"),
        }
    }

    fn vault(&self, route: &Route, second: bool) -> Value {
        let input = json!({"input": b64::std(b"text")});
        let sealed = json!({"ciphertext": self.vault_ciphertext});
        let below = route.path.strip_prefix("/v1/transit/").unwrap();
        match below.split('/').next().unwrap() {
            "keys" if below.ends_with("/config") => json!({"min_decryption_version": 1}),
            "keys" if second => json!({"type": "aes256-gcm96"}),
            "keys" => json!({"type": "ed25519"}),
            "encrypt" => json!({"plaintext": b64::std(b"text")}),
            "decrypt" | "rewrap" => sealed,
            "hmac" | "sign" | "hash" => input,
            "verify" => {
                json!({"input": b64::std(b"text"), "signature": format!("vault:v1:{}", b64::std(&[7; 64]))})
            }
            "datakey" | "random" => json!({}),
            "restore" => json!({"backup": b64::std(b"text")}),
            other => panic!("{other} is new: say here what a second tenant would send"),
        }
    }

    fn passport(&self, route: &Route) -> Sent {
        let form = |fields: &[(&str, &str)]| {
            let fields: Vec<String> = fields
                .iter()
                .map(|(n, v)| format!("{n}={}", encode(v)))
                .collect();
            Sent::Text("application/x-www-form-urlencoded", fields.join("&"))
        };
        match route.name().as_str() {
            "POST /oauth2/introspect" | "POST /oauth2/revoke" => form(&[("token", &self.token)]),
            "POST /oauth2/token" => form(&[
                ("grant_type", issuer::EXCHANGE),
                ("subject_token", &self.token),
                ("subject_token_type", issuer::ACCESS),
            ]),
            "POST /v1/passport/issue" => {
                Sent::Json(json!({"subject_ref": CALLER, "audience": "svc-wallet"}))
            }
            "PUT /v1/passport/policy/current" => {
                Sent::Json(json!({"policy": {"version": 9, "clients": []},
                "signature": {"alg": "ed25519", "key": "k", "value": "AA"}}))
            }
            "POST /v1/passport/policy/explain" => Sent::Json(json!({"client_id": CALLER})),
            "POST /v1/passport/revoke" => {
                Sent::Json(json!({"subject_ref": CALLER, "reason": "test"}))
            }
            "POST /v1/passport/verify" => Sent::Json(json!({"token": self.token})),
            "POST /v1/passport/verify_batch" => Sent::Json(json!({"tokens": [self.token]})),
            other => panic!("{other} is new: say here what a second tenant would send"),
        }
    }

    fn ledger(route: &Route, second: bool) -> Value {
        match route.name().as_str() {
            "POST /v1/ledger/commit" if second => {
                let hash = format!("b3:{}", "07".repeat(32));
                json!({"entries": [{"kind": "epoch_open", "principal": CALLER, "tenant": "evil",
                    "epoch": "zqname:9", "from": "pool:zqname/usage", "asset": "rpl", "amount_minor": "1",
                    "commitment": hash, "sum_root": hash, "recipients": 1, "source": hash}]})
            }
            "POST /v1/ledger/commit" => json!({"entries": [{"kind": "transfer", "tenant": "evil",
                "principal": CALLER, "key": "k", "from": "acct:zqname", "to": "evil:a",
                "asset": "rpl", "amount_minor": "1", "nonce": 3}]}),
            "POST /v1/ledger/resolve" => {
                json!({"tenant": NAME, "principal": CALLER, "key": "zqname-next"})
            }
            other => panic!("{other} is new: say here what a second tenant would send"),
        }
    }

    fn wallet(route: &Route) -> Value {
        let moved = json!({"from": "acct:zqname", "to": "evil:a", "asset": "rpl", "amount_minor": "1", "nonce": 3});
        let without = |names: &[&str]| {
            let mut body = moved.clone();
            for name in names {
                body.as_object_mut().unwrap().remove(*name);
            }
            body
        };
        match route.name().as_str() {
            "POST /v1/issue" => json!({"to": "acct:zqname", "asset": "rpl", "amount_minor": "1"}),
            "POST /v1/transfer" => moved,
            "POST /v1/burn" => without(&["to"]),
            "POST /v1/hold" => {
                let mut body = without(&["to"]);
                body["expires_at"] = "2099-01-01T00:00:00.000Z".into();
                body
            }
            "POST /v1/hold/{id}/capture" => json!({"to": "evil:a", "amount_minor": "1"}),
            "POST /v1/tx/{txid}/reverse" => json!({"amount_minor": "1"}),
            "POST /v1/hold/{id}/release"
            | "POST /v1/ops/{key}/abandon"
            | "POST /v1/account/{account}/freeze"
            | "POST /v1/account/{account}/unfreeze"
            | "POST /v1/webhooks/{name}/resume" => json!({}),
            "PUT /v1/account/{account}" => json!({"closed": true}),
            "PUT /v1/assets/{asset}" => json!({"scale": 2}),
            "POST /v1/batch" => {
                let mut item = moved;
                item["op"] = "transfer".into();
                json!({"items": [item]})
            }
            other => panic!("{other} is new: say here what a second tenant would send"),
        }
    }

    fn rewarder(&self, route: &Route) -> Sent {
        match route.name().as_str() {
            "POST /rewarder/epochs/{id}/compute" => Sent::Json(self.compute()),
            "POST /rewarder/epochs/{id}/approve" => {
                Sent::Json(json!({"commitment": format!("b3:{}", "07".repeat(32))}))
            }
            "POST /rewarder/epochs/{id}/withdraw" => {
                let commitment = format!("b3:{}", "07".repeat(32));
                Sent::Json(json!({"commitment": commitment, "reason": "not mine"}))
            }
            "PUT /rewarder/policy/{id}" => Sent::Json(self.policy.clone()),
            "POST /rewarder/snapshots" | "PUT /rewarder/snapshots/{cid}" => {
                // Its own rows: what it uploads it may read.
                Sent::Text(
                    "text/csv",
                    USAGE.lines().next().unwrap().to_owned() + "\nevil:a,smoothing_pool,1\n",
                )
            }
            other => panic!("{other} is new: say here what a second tenant would send"),
        }
    }

    fn compute(&self) -> Value {
        json!({"snapshot": self.cid, "policy_id": NAME, "policy_hash": self.policy_hash})
    }

    fn admin(&self, route: &Route) -> Value {
        match route.name().as_str() {
            "POST /api/session" => json!({"token": self.token}),
            "POST /api/session/code" => json!({}),
            "POST /api/nodes/{id}/reload" | "POST /api/nodes/{id}/shutdown" => {
                json!({"confirm": "ron-kms"})
            }
            other => panic!("{other} is new: say here what a second tenant would send"),
        }
    }
}

/// A tenant's caller with its token for each service.
struct Tenant<'a> {
    fleet: &'a Fleet,
    tokens: BTreeMap<&'static str, String>,
}

impl<'a> Tenant<'a> {
    fn new(fleet: &'a Fleet, tenant: &str) -> Self {
        let token = |service: &'static str| {
            let prefix = service.split_once('-').unwrap().1;
            let all = scope::ALL
                .iter()
                .filter(|s| s.starts_with(&format!("{prefix}:")));
            let scopes: Vec<&str> = all
                .copied()
                .filter(|s| !OF_ALL_TENANTS.contains(s))
                .collect();
            assert!(!scopes.is_empty(), "{service}");
            let claims = json!({"tenant": tenant, "scope": scopes.join(" "), "sub": CALLER});
            (service, issuer::minted(fleet, service, &claims))
        };
        Self {
            fleet,
            tokens: SERVICES.map(token).into(),
        }
    }

    fn send(&self, service: &str, method: Method, url: &str, sent: &Sent, key: &str) -> Reply {
        let (kind, body) = match sent {
            Sent::Nothing => ("application/json", None),
            Sent::Json(value) => ("application/json", Some(value.to_string())),
            Sent::Text(kind, text) => (*kind, Some(text.clone())),
        };
        let mut headers = vec![("X-Ron-Console", "walk")];
        if body.is_some() {
            headers.push(("Content-Type", kind));
        }
        if service == "svc-wallet" && method != Method::GET {
            headers.push(("Idempotency-Key", key));
        }
        if service == "svc-rewarder" {
            headers.push(("Prefer", "wait=20"));
        }
        let token = Some(self.tokens[service].as_str());
        let send = || {
            self.fleet
                .send(method, url, token, body.as_deref(), &headers)
        };
        if method == Method::GET {
            caught_up(send)
        } else {
            send()
        }
    }

    fn post(&self, service: &str, path: &str, body: &Value, key: &str) -> Value {
        let url = format!("{}{path}", self.fleet.api(service));
        let reply = self.send(service, Method::POST, &url, &Sent::Json(body.clone()), key);
        assert!(
            matches!(reply.status, 200 | 201),
            "{path}: {}",
            text(&reply)
        );
        json(&reply, reply.status)
    }
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

/// A fleet with a wallet policy for both tenants, and the console of the first tenant.
fn fleet() -> Fleet {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    ok(&ron_on(dir.path(), &["init"]));
    let config = dir.path().join("svc-admin/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let with = format!("[auth]\nmode = \"passport\"\ntenant = \"{NAME}\"\n");
    assert!(text.contains("[auth]\n"), "{text}");
    let text = format!("read_only = false\n{}", text.replace("[auth]\n", &with));
    std::fs::write(&config, text).unwrap();
    let secret = dir.path().join("webhook.secret");
    std::fs::write(&secret, format!("whsec_{}", b64::std(&[7; 32]))).unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let config = dir.path().join("svc-wallet/config.toml");
    let mut text = std::fs::read_to_string(&config).unwrap();
    // Nothing happens to the account.
    write!(
        text,
        "\n[[webhooks]]\nname = \"{NAME}\"\ntenant = \"{NAME}\"\nurl = \"http://127.0.0.1:9/zqname\"\n\
         accounts = [\"acct:zqnobody\"]\nsecret_file = \"{}\"\n",
        secret.display()
    )
    .unwrap();
    std::fs::write(&config, text).unwrap();
    let fleet = Fleet::start_in(dir);
    let rule = |tenant: &str, accounts: &str| {
        json!({"tenant": tenant, "principal": CALLER, "accounts": [accounts], "assets": ["*"],
            "actions": ["read", "issue", "transfer", "burn", "hold", "reverse", "admin"]})
    };
    fleet.add_wallet_rules([rule(NAME, "*"), rule("evil", "evil:*")]);
    fleet
}

/// The first tenant's reward policy, signed; and its hash.
fn reward_policy(fleet: &Fleet) -> (Value, String) {
    let read = |path: &str| std::fs::read(fleet.dir().join(path)).unwrap();
    let mut policy: Value = serde_json::from_slice(&read("policy/reward.json")).unwrap();
    policy["tenant"] = NAME.into();
    policy["id"] = NAME.into();
    policy["pool"]["account"] = "pool:zqname/usage".into();
    policy["residual"]["owner"] = "pool:zqname/usage".into();
    let path = fleet.dir().join("reward.json");
    std::fs::write(&path, policy.to_string()).unwrap();
    ok(&fleet.ron(&["policy", "sign", "--kind", "reward", path.to_str().unwrap()]));
    let hash = ContentId::of(&read("reward.json")).to_string();
    (signed_policy(fleet, "reward.json"), hash)
}

/// A signed policy as it is sent to services.
fn signed_policy(fleet: &Fleet, path: &str) -> Value {
    let read = |path: String| -> Value {
        serde_json::from_slice(&std::fs::read(fleet.dir().join(path)).unwrap()).unwrap()
    };
    json!({"policy": read(path.to_owned()), "signature": read(format!("{path}.sig"))})
}

fn furnish(fleet: &Fleet, boss: &Tenant<'_>) -> First {
    let kms = |path: &str, body: Value| boss.post("ron-kms", &format!("/v1/kms/{path}"), &body, "");
    let vault =
        |path: &str, body: Value| boss.post("ron-kms", &format!("/v1/transit/{path}"), &body, "");
    let money = |path: &str, key: &str, body: Value| {
        boss.post("svc-wallet", &format!("/v1/{path}"), &body, key)
    };
    let message = b64::url(b"text");
    let make = |alg: &str, payload: Value, op: &str| {
        let op_id = format!("01890a5d-ac96-774b-bcce-b302099a80{op}");
        let mut body = json!({"tenant": NAME, "purpose": NAME, "alg": alg, "op_id": op_id});
        if !payload.is_null() {
            body["payload"] = payload;
        }
        let made = kms("keys", body);
        made["key"].as_str().unwrap().to_owned()
    };
    let key = make("ed25519", "any".into(), "01");
    let (aes, hmac, hkdf) = (
        make("aes256-gcm", Value::Null, "02"),
        make("hmac-sha256", Value::Null, "03"),
        make("hkdf-sha256", Value::Null, "04"),
    );
    let alias = format!("{}/v1/kms/aliases/{ALIAS}", fleet.api("ron-kms"));
    let named = boss.send(
        "ron-kms",
        Method::PUT,
        &alias,
        &Sent::Json(json!({"key": key})),
        "",
    );
    assert_eq!(named.status, 200, "{}", text(&named));
    let guarded = format!("keys/{}", make("ed25519", "any".into(), "05"));
    let approver = json!({"name": SECRET, "alg": "ed25519", "public_key": b64::url(&[9; 32])});
    let policy = json!({"policy": {"allow": [{"ops": ["sign", "policy", "destroy"]}],
        "approvals": {"needed": 1, "ops": ["destroy"], "within": "1h", "approvers": [approver]}}});
    let url = format!("{}/v1/kms/{guarded}/policy", fleet.api("ron-kms"));
    let put = boss.send("ron-kms", Method::PUT, &url, &Sent::Json(policy), "");
    assert_eq!(put.status, 200, "{}", text(&put));
    kms(
        &format!("{guarded}/approvals"),
        json!({"destroy": {"op_id": OP_ID}}),
    );
    let waiting = format!("{}/v1/kms/approvals", fleet.api("ron-kms"));
    let waiting = boss.send("ron-kms", Method::GET, &waiting, &Sent::Nothing, "");
    let waiting = json(&waiting, 200);
    assert_eq!(waiting["requests"][0]["requester"], CALLER, "{waiting}");
    let context = format!("{SECRET} context");
    let signed = kms(
        "sign",
        json!({"key": key, "message": message, "context": context, "op_id": OP_ID}),
    );
    let ciphertext = kms(
        "wrap",
        json!({"key": aes, "plaintext": b64::url(SECRET.as_bytes())}),
    );
    let mac = kms("hmac", json!({"key": hmac, "message": message}));
    for (name, kind) in [("zqname", "ed25519"), ("zqname-aes", "aes256-gcm96")] {
        vault(&format!("keys/{name}"), json!({"type": kind}));
    }
    let sealed = vault(
        "encrypt/zqname-aes",
        json!({"plaintext": b64::std(SECRET.as_bytes())}),
    );
    let issue = |to: &str, amount: &str| json!({"to": to, "asset": "rpl", "amount_minor": amount, "memo": format!("{SECRET} memo")});
    money("issue", "zqname-issue", issue("acct:zqname", "1000"));
    money(
        "issue",
        "zqname-pool",
        issue("pool:zqname/usage", "50000000000000000000"),
    );
    let debit = |nonce: u64| json!({"from": "acct:zqname", "asset": "rpl", "amount_minor": "10", "nonce": nonce});
    let mut transfer = debit(1);
    transfer["to"] = "acct:zqsecret".into();
    transfer["reference"] = "zqname-order".into();
    let transfer = money("transfer", "zqname-transfer", transfer);
    let mut hold = debit(2);
    hold["expires_at"] = "2099-01-01T00:00:00.000Z".into();
    let hold = money("hold", "zqname-hold", hold);
    let (policy, policy_hash) = reward_policy(fleet);
    let put = |path: &str, sent: &Sent, method| {
        let url = format!("{}/rewarder/{path}", fleet.api("svc-rewarder"));
        let reply = boss.send("svc-rewarder", method, &url, sent, "");
        assert!(
            matches!(reply.status, 200 | 201),
            "{path}: {}",
            text(&reply)
        );
        json(&reply, reply.status)
    };
    put(
        &format!("policy/{NAME}"),
        &Sent::Json(policy.clone()),
        Method::PUT,
    );
    let stored = put(
        "snapshots",
        &Sent::Text("text/csv", USAGE.to_owned()),
        Method::POST,
    );
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let first = First {
        key,
        aes,
        hmac,
        hkdf,
        signature: signed["signatures"].clone(),
        ciphertext: ciphertext["ciphertext"].clone(),
        mac: mac["mac"].clone(),
        signed,
        vault_ciphertext: word(&sealed["data"]["ciphertext"]),
        transfer: word(&transfer["receipt"]["txid"]),
        hold: word(&hold["receipt"]["txid"]),
        cid: word(&stored["cid"]),
        policy,
        policy_hash,
        issuer_policy: signed_policy(fleet, "policy/issuer.json"),
        token: boss.tokens["svc-wallet"].clone(),
    };
    let run = put(
        "epochs/zqname:1/compute",
        &Sent::Json(first.compute()),
        Method::POST,
    );
    assert_eq!(run["state"], "settled", "{run}");
    first
}

/// Removes [`VOLATILE`] members.
fn settle(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for name in VOLATILE {
                members.remove(name);
            }
            members.values_mut().for_each(settle);
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        _ => {}
    }
}

/// All reads of the first tenant, by route.
fn state(routes: &[Route], first: &First, boss: &Tenant<'_>) -> BTreeMap<String, (u16, String)> {
    let mut seen = BTreeMap::new();
    // The console's views are figures that change with every poll.
    let reads = routes.iter().filter(|r| {
        r.method == Method::GET && (r.service != "svc-admin" || r.path == "/api/audit")
    });
    for (route, second) in reads.flat_map(|route| [(route, false), (route, true)]) {
        let url = first.url(boss.fleet, route, second);
        let reply = boss.send(route.service, Method::GET, &url, &Sent::Nothing, "");
        let shown = match serde_json::from_slice::<Value>(&reply.body) {
            Ok(mut value) => {
                settle(&mut value);
                value.to_string()
            }
            Err(_) => text(&reply),
        };
        seen.insert(format!("{} {second}", route.name()), (reply.status, shown));
    }
    seen
}

/// The same without what moves, once copies have caught up with the ledger.
fn settled(routes: &[Route], first: &First, boss: &Tenant<'_>) -> BTreeMap<String, (u16, String)> {
    let resting = || {
        let mut seen = state(routes, first, boss);
        seen.retain(|route, _| !is_moving(route.split(' ').nth(1).unwrap()));
        seen
    };
    let mut last = resting();
    for _ in 0..50 {
        let now = resting();
        if now == last {
            return now;
        }
        last = now;
        std::thread::sleep(Duration::from_millis(100));
    }
    let now = resting();
    let moves: Vec<_> = now
        .iter()
        .filter(|(route, shown)| last[*route] != **shown)
        .collect();
    panic!("these never come to rest: {moves:?}");
}

/// The text of an answer, and what its base64 stands for.
fn everything(reply: &Reply) -> String {
    let mut all = text(reply);
    let encoded = |c: char| c.is_ascii_alphanumeric() || "+/-_".contains(c);
    let found: Vec<Vec<u8>> = all
        .split(|c| !encoded(c))
        .filter_map(|run| b64::from_url(&run.replace('+', "-").replace('/', "_")).ok())
        .collect();
    for bytes in found {
        all.push(' ');
        all.push_str(&String::from_utf8_lossy(&bytes));
    }
    all
}

/// What is wrong with the answer to the second tenant.
fn fault(route: &str, reply: &Reply) -> Option<&'static str> {
    let body = everything(reply);
    let code = serde_json::from_slice::<Value>(&reply.body).unwrap_or_default()["code"].clone();
    if reply.status >= 500 {
        Some("it failed")
    } else if code == "bad_request" {
        Some("the request is malformed, so it shows nothing")
    } else if body.contains(SECRET) {
        Some("it shows what only the first tenant knows")
    } else if reply.status < 300
        && body.contains(NAME)
        && !SHOWN.iter().any(|(listed, _)| *listed == route)
    {
        Some("it shows something of the first tenant")
    } else {
        None
    }
}

/// What the second tenant does under names that the first one, or the installation, uses as well.
fn a_shared_name_shares_nothing(fleet: &Fleet, first: &First, evil: &Tenant<'_>) {
    let make = json!({"tenant": "evil", "purpose": NAME, "alg": "ed25519", "payload": "any",
        "op_id": "01890a5d-ac96-774b-bcce-b302099a8001"});
    let made = evil.post("ron-kms", "/v1/kms/keys", &make, "");
    let sign = json!({"key": made["key"], "message": b64::url(b"text"), "op_id": OP_ID});
    let signed = evil.post("ron-kms", "/v1/kms/sign", &sign, "");
    assert_ne!(signed["receipt"], first.signed["receipt"], "{signed}");
    assert_ne!(signed["signatures"], first.signed["signatures"], "{signed}");
    // A passport whose subject has the name of a client of another tenant is not that client.
    let claims = json!({"tenant": "evil", "scope": "passport:issue", "sub": "operator"});
    let namesake = issuer::minted(fleet, "svc-passport", &claims);
    let url = format!("{}/v1/passport/issue", fleet.api("svc-passport"));
    let body = json!({"subject_ref": "operator", "audience": "svc-wallet"}).to_string();
    let refused = fleet.post(&url, Some(&namesake), &body, &[]);
    assert_eq!(refused.status, 403, "{}", text(&refused));
    // With `passport:revoke` a tenant ends its own tokens.
    let own = evil.tokens["svc-wallet"].clone();
    let url = format!("{}/oauth2/revoke", fleet.api("svc-passport"));
    let form = Sent::Text("application/x-www-form-urlencoded", format!("token={own}"));
    let revoked = evil.send("svc-passport", Method::POST, &url, &form, "");
    assert_eq!(revoked.status, 200, "{}", text(&revoked));
    let verify = format!("{}/v1/passport/verify", fleet.api("svc-passport"));
    for (token, ok) in [(&own, false), (&first.token, true)] {
        let body = json!({"token": token}).to_string();
        let verdict = json(&fleet.post(&verify, None, &body, &[]), 200);
        assert_eq!(verdict["ok"], ok, "{verdict}");
    }
}

#[test]
fn a_second_tenant_reads_and_changes_nothing_of_the_first() {
    let fleet = fleet();
    let (boss, evil) = (Tenant::new(&fleet, NAME), Tenant::new(&fleet, "evil"));
    let first = furnish(&fleet, &boss);
    let routes = routes(&fleet);
    assert!(routes.len() > 100, "{}", routes.len());
    let before = settled(&routes, &first, &boss);
    let mut faults = Vec::new();
    for (n, (route, second)) in routes
        .iter()
        .flat_map(|r| [(r, false), (r, true)])
        .enumerate()
    {
        let url = first.url(&fleet, route, second);
        let key = format!("evil-{n}");
        let reply = evil.send(
            route.service,
            route.method,
            &url,
            &first.body(route, second),
            &key,
        );
        println!(
            "{} {} {second}: {}",
            route.service,
            route.name(),
            reply.status
        );
        if let Some(why) = fault(&route.name(), &reply) {
            let shown = text(&reply).chars().take(300).collect::<String>();
            faults.push(format!("{}: {why}: {} {shown}", route.name(), reply.status));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let shown: Vec<&String> = before
        .iter()
        .filter(|(_, (status, body))| {
            *status == 200 && (body.contains(NAME) || body.contains(SECRET))
        })
        .map(|(route, _)| route)
        .collect();
    assert!(
        shown.len() >= 25,
        "the first tenant reads its own: {shown:?}"
    );
    assert!(
        before
            .values()
            .filter(|(_, body)| body.contains(SECRET))
            .count()
            >= 5
    );
    a_shared_name_shares_nothing(&fleet, &first, &evil);
    for (route, after) in settled(&routes, &first, &boss) {
        assert_eq!(after, before[&route], "{route} changed");
    }
}
