//! Separation of tenants: no passport acts on the installation itself, a tenant pays by its own
//! policies from its own pools, and usage is paid once.

use ron_http::{Method, Reply};
use ron_proto::b64;
use ron_tests::{Fleet, issuer, json, ok};
use serde_json::{Value, json};

/// Every scope of the KMS.
const KMS: &str =
    "kms:read kms:sign kms:verify kms:create kms:rotate kms:wrap kms:unwrap kms:audit kms:admin";
const REWARDER: &str = "rewarder:read rewarder:run rewarder:approve";

/// A passport of a tenant with these scopes.
fn passport(fleet: &Fleet, audience: &str, tenant: &str, scopes: &str) -> String {
    issuer::minted(fleet, audience, &json!({"tenant": tenant, "scope": scopes}))
}

fn code(reply: &Reply) -> (u16, String) {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    (reply.status, body["code"].as_str().unwrap_or("").to_owned())
}

/// The effect of a route for a caller who may not act on the installation itself.
enum Means {
    /// None: it is refused with 403, for each of the installation's keys.
    Refused(Value),
    /// The same of a key that is named by its alias, which only its own tenant has.
    ByAlias(Value),
    /// Each item is refused.
    EachRefused(Value),
    /// It names no key.
    NoKey,
    /// It shows the keys of the caller's tenant; a passport of tenant `ron` sees none.
    OwnKeys,
}

/// The id of no request and no grant.
const UNKNOWN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// The request to send to a route about `key`; a route that is not here must be added.
fn about(route: &str, key: &str) -> Means {
    let text = b64::url(b"text");
    let op_id = UNKNOWN;
    let sealed = json!({"key": key, "ciphertext": text});
    let item = |more: Value| {
        let mut item = json!({"key": key});
        item.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"items": [item]})
    };
    let signatures = json!([{"alg": "ed25519", "signature": b64::url(&[7; 64])}]);
    match route {
        "POST /v1/kms/log_key/rotate" => Means::Refused(json!({})),
        "GET /v1/kms/issuer_policy" => Means::Refused(Value::Null),
        "PUT /v1/kms/issuer_policy" => Means::Refused(
            json!({"policy": {}, "signature": {"alg": "ed25519", "key": key, "value": ""}}),
        ),
        "POST /v1/kms/datakey" => Means::Refused(json!({"key": key})),
        "POST /v1/kms/derive" => Means::Refused(
            json!({"key": key, "info": text, "output": {"hmac": {"message": text}}}),
        ),
        "POST /v1/kms/hmac" | "POST /v1/kms/sign" => {
            Means::Refused(json!({"key": key, "message": text}))
        }
        "POST /v1/kms/hmac/verify" => {
            Means::Refused(json!({"key": key, "message": text, "mac": b64::url(&[7; 32])}))
        }
        "POST /v1/kms/keys" => Means::Refused(
            json!({"tenant": "ron", "purpose": "policy", "alg": "ed25519", "payload": "any", "op_id": op_id}),
        ),
        "POST /v1/kms/keys/import" => Means::Refused(
            json!({"tenant": "ron", "purpose": "policy", "alg": "ed25519", "wrapping_key": op_id,
            "wrapped": text, "op_id": op_id}),
        ),
        "POST /v1/kms/keys/adopt" => Means::Refused(
            json!({"tenant": "ron", "purpose": "policy", "alg": "ed25519", "object": {"label": "site"}, "op_id": op_id}),
        ),
        "POST /v1/kms/keys/restore" => {
            Means::Refused(json!({"tenant": "ron", "backup": text, "op_id": op_id}))
        }
        "GET /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}"
        | "GET /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/versions" => Means::Refused(Value::Null),
        "PATCH /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}" => {
            Means::Refused(json!({"min_verify_version": 1}))
        }
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/attest" => {
            Means::Refused(json!({"nonce": ""}))
        }
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/export" => Means::Refused(
            json!({"recipient": {"alg": "x25519-hkdf-aes256-gcm", "public_key": b64::url(&[9; 32])}}),
        ),
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/backup"
        | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy"
        | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy/cancel"
        | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/retire"
        | "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/rotate" => Means::Refused(json!({})),
        "PUT /v1/kms/aliases/{alias}" => Means::Refused(json!({"key": key})),
        "GET /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals"
        | "GET /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/grants"
        | "GET /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/policy" => Means::Refused(Value::Null),
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals" => {
            Means::Refused(json!({"destroy": {"op_id": op_id}}))
        }
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals/{request}/approve" => {
            Means::Refused(json!({"approver": "mallory", "signature": b64::url(&[7; 64])}))
        }
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/grants" => {
            Means::Refused(json!({"grantee": "mallory", "ops": ["sign"], "lifetime": "1h"}))
        }
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/grants/{grant}/retire" => {
            Means::Refused(json!({}))
        }
        "PUT /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/policy" => {
            Means::Refused(json!({"policy": null}))
        }
        "POST /v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/policy/explain" => {
            Means::Refused(json!({"principal": "mallory", "op": "sign"}))
        }
        "POST /v1/kms/wrap" => Means::Refused(json!({"key": key, "plaintext": text})),
        "POST /v1/kms/rewrap" | "POST /v1/kms/unwrap" => Means::Refused(sealed),
        "POST /v1/kms/verify" => {
            Means::Refused(json!({"key": key, "message": text, "signatures": signatures}))
        }
        "POST /v1/kms/sign_batch" => Means::EachRefused(item(json!({"message": text}))),
        "POST /v1/kms/wrap_batch" => Means::EachRefused(item(json!({"plaintext": text}))),
        "POST /v1/kms/unwrap_batch" => Means::EachRefused(item(json!({"ciphertext": text}))),
        "POST /v1/kms/verify_batch" => {
            Means::EachRefused(item(json!({"message": text, "signatures": signatures})))
        }
        "GET /v1/kms/keys" | "GET /v1/kms/aliases" | "GET /v1/kms/approvals" | "GET /v1/transit/keys" => Means::OwnKeys,
        "GET /audit/v1/tile/entries/{bundle}"
        // The leaves about the keys of the caller's own tenant.
        | "GET /v1/kms/audit/entries"
        | "GET /v1/auth/token/lookup-self"
        | "POST /v1/auth/token/renew-self"
        | "PUT /v1/auth/token/renew-self"
        | "GET /v1/kms/wrapping_key"
        | "POST /v1/kms/random"
        | "POST /v1/kms/verify/raw" => Means::NoKey,
        "GET /v1/kms/aliases/{alias}" => Means::ByAlias(Value::Null),
        "POST /v1/kms/aliases/{alias}/delete" => Means::ByAlias(json!({})),
        named if named.contains("/alias/{alias}") => {
            let by_name = named.replace("alias/{alias}", "{tenant}/{purpose}/{alg}/{id}");
            match about(&by_name, key) {
                Means::Refused(body) => Means::ByAlias(body),
                other => other,
            }
        }
        // Named without a tenant: always the caller's own, and of purpose `transit.*`.
        transit if transit.contains(" /v1/transit/") => Means::NoKey,
        _ => panic!("{route} is new: say here what it does for a passport"),
    }
}

/// Non-public operations: method and path.
fn routes(fleet: &Fleet) -> Vec<(Method, String)> {
    let api = json(
        &fleet.get(&format!("{}/openapi.json", fleet.api("ron-kms")), None),
        200,
    );
    let mut found = Vec::new();
    for (path, operations) in api["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let public = operation["security"].as_array().is_none_or(Vec::is_empty);
            let method = match method.as_str() {
                "get" => Method::GET,
                "post" => Method::POST,
                "patch" => Method::PATCH,
                "put" => Method::PUT,
                "delete" => Method::DELETE,
                other => panic!("{other} {path}"),
            };
            if !public {
                found.push((method, path.clone()));
            }
        }
    }
    found
}

/// The installation's keys as the operator sees them, and the log's.
fn installation(fleet: &Fleet) -> (Value, Vec<u8>) {
    let kms = fleet.api_socket("ron-kms");
    let token = fleet.operator_token();
    let keys = fleet.get(&format!("{kms}/v1/kms/keys?limit=200"), Some(&token));
    let vkey = fleet.get(&format!("{kms}/audit/v1/vkey"), None);
    assert_eq!(vkey.status, 200);
    (json(&keys, 200), vkey.body)
}

#[test]
fn no_passport_acts_on_the_installation_itself() {
    let fleet = Fleet::start();
    let kms = fleet.api_socket("ron-kms");
    let (list, _) = installation(&fleet);
    let keys: Vec<String> = list["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["key"].as_str().unwrap().to_owned())
        .collect();
    assert!(
        keys.len() >= 4 && keys.iter().all(|key| key.starts_with("ron/")),
        "{keys:?}"
    );
    let (url, body) = (
        format!("{kms}/v1/kms/aliases/site"),
        json!({"key": keys[0]}).to_string(),
    );
    let operator = fleet.operator_token();
    let named = fleet.send(Method::PUT, &url, Some(&operator), Some(&body), &[]);
    json(&named, 200);
    let before = installation(&fleet);
    let walk = routes(&fleet);
    assert!(walk.len() > 40, "{}", walk.len());
    for tenant in ["default", "evil", "ron"] {
        let token = passport(&fleet, "ron-kms", tenant, KMS);
        let mut refused = 0;
        for (method, path) in &walk {
            let route = format!("{method} {path}");
            for key in &keys {
                let path = path.replace("{tenant}/{purpose}/{alg}/{id}", key);
                let path = path.replace("{alias}", "site");
                let path = path
                    .replace("{request}", UNKNOWN)
                    .replace("{grant}", UNKNOWN);
                let url = format!("{kms}{path}");
                let send = |body: &Value| {
                    let body = (!body.is_null()).then(|| body.to_string());
                    fleet.send(*method, &url, Some(&token), body.as_deref(), &[])
                };
                match about(&route, key) {
                    Means::Refused(body) => {
                        let got = send(&body);
                        assert_eq!(
                            code(&got),
                            (403, "forbidden".to_owned()),
                            "{tenant}: {route}"
                        );
                        refused += 1;
                    }
                    Means::ByAlias(body) => {
                        let want = match tenant {
                            "ron" => (403, "forbidden".to_owned()),
                            _ => (404, "not_found".to_owned()),
                        };
                        assert_eq!(code(&send(&body)), want, "{tenant}: {route}");
                    }
                    Means::EachRefused(body) => {
                        let got = json(&send(&body), 200);
                        let item = got["items"]
                            .as_array()
                            .or(got["results"].as_array())
                            .unwrap();
                        assert_eq!(item.len(), 1);
                        assert!(
                            item[0].to_string().contains("forbidden"),
                            "{tenant}: {route}: {got}"
                        );
                        refused += 1;
                    }
                    Means::OwnKeys => {
                        let got = send(&Value::Null);
                        let text = String::from_utf8(got.body).unwrap();
                        assert!(!text.contains("\"ron/"), "{tenant}: {route}: {text}");
                    }
                    Means::NoKey => {}
                }
            }
        }
        assert!(refused > 20 * keys.len(), "{refused}");
    }
    assert_eq!(installation(&fleet), before, "nothing changed");
    // The operator's own token may do it.
    let vkey = ok(&fleet.ron(&["audit", "rotate-key", "--expected-number", "1"]));
    assert!(vkey.contains('+'), "{vkey}");
    ok(&fleet.ron(&["audit", "verify"]));
}

/// The rewarder as one caller uses it.
struct Caller<'a> {
    fleet: &'a Fleet,
    token: String,
}

const USAGE: &str = "account,metric,amount\nacct:mallory,smoothing_pool,1000000\n";

impl Caller<'_> {
    fn post(&self, path: &str, body: &str, kind: &str) -> Reply {
        let url = format!("{}/rewarder/{path}", self.fleet.api("svc-rewarder"));
        let headers = [("Content-Type", kind), ("Prefer", "wait=20")];
        self.fleet
            .send(Method::POST, &url, Some(&self.token), Some(body), &headers)
    }

    fn upload(&self, query: &str) -> Value {
        let stored = self.post(&format!("snapshots{query}"), USAGE, "text/csv");
        assert!(matches!(stored.status, 200 | 201), "{}", stored.status);
        serde_json::from_slice::<Value>(&stored.body).unwrap()["cid"].clone()
    }

    fn compute(&self, epoch: &str, cid: &Value, adjusts: Option<&str>) -> Reply {
        let policy = policy(self.fleet);
        let mut body =
            json!({"snapshot": cid, "policy_id": policy.0["id"], "policy_hash": policy.1});
        if let Some(earlier) = adjusts {
            body["adjusts"] = earlier.into();
        }
        let path = format!("epochs/{epoch}/compute");
        self.post(&path, &body.to_string(), "application/json")
    }
}

/// The reward policy that `ron init` made, and its hash.
fn policy(fleet: &Fleet) -> (Value, String) {
    let bytes = std::fs::read(fleet.dir().join("policy/reward.json")).unwrap();
    let hash = ron_proto::ContentId::of(&bytes).to_string();
    (serde_json::from_slice(&bytes).unwrap(), hash)
}

/// Money for this many epochs; the pool of one is as much as one operation may move.
fn fund(fleet: &Fleet, epochs: usize) {
    let policy = policy(fleet).0;
    let body = json!({"to": policy["pool"]["account"], "asset": policy["asset"],
        "amount_minor": policy["pool"]["amount_minor"]});
    let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let token = fleet.token("svc-wallet", None);
    for epoch in 0..epochs {
        let key = format!("fund-{epoch}");
        let headers = [("Idempotency-Key", key.as_str())];
        json(
            &fleet.post(&url, Some(&token), &body.to_string(), &headers),
            200,
        );
    }
}

fn balance(fleet: &Fleet, account: &str) -> String {
    let account = account.replace(':', "%3A").replace('/', "%2F");
    let asset = policy(fleet).0["asset"].as_str().unwrap().to_owned();
    let url = format!(
        "{}/v1/balance?account={account}&asset={asset}",
        fleet.api("svc-wallet")
    );
    let token = fleet.token("svc-wallet", None);
    let got = json(&fleet.get(&url, Some(&token)), 200);
    got["amount_minor"].as_str().unwrap().to_owned()
}

#[test]
fn a_tenant_pays_by_its_own_policies_from_its_own_pools() {
    let fleet = Fleet::start();
    fund(&fleet, 2);
    let (document, _) = policy(&fleet);
    let pool = document["pool"]["account"].as_str().unwrap();
    let full = balance(&fleet, pool);
    let evil = Caller {
        fleet: &fleet,
        token: passport(&fleet, "svc-rewarder", "evil", REWARDER),
    };
    let cid = evil.upload("");
    let refused = evil.compute("pwn1", &cid, None);
    assert_eq!(code(&refused), (404, "not_found".to_owned()));
    let id = document["id"].as_str().unwrap();
    let url = format!("{}/rewarder/policy/{id}", fleet.api("svc-rewarder"));
    assert_eq!(fleet.get(&url, Some(&evil.token)).status, 404);
    // Storing the signed policy as one's own does not help either.
    let sig = std::fs::read(fleet.dir().join("policy/reward.json.sig")).unwrap();
    let sig: Value = serde_json::from_slice(&sig).unwrap();
    let body = json!({"policy": document, "signature": sig}).to_string();
    let put = fleet.send(Method::PUT, &url, Some(&evil.token), Some(&body), &[]);
    assert_eq!(code(&put), (422, "policy_refused".to_owned()));
    assert_eq!(evil.compute("pwn1", &cid, None).status, 404);
    // Even if the rewarder is made to try, the ledger itself refuses.
    let settle = std::fs::read_to_string(fleet.dir().join("svc-rewarder/ron-ledger.token"));
    let settle = settle.unwrap();
    let hash = format!("b3:{}", "07".repeat(32));
    for (tenant, from) in [
        ("evil", pool),
        ("evil", "pool:evil"),
        ("default", "pool:evil/x"),
    ] {
        let entry = json!({"kind": "epoch_open", "principal": "svc-rewarder", "tenant": tenant,
            "epoch": "pwn2", "from": from, "asset": document["asset"], "amount_minor": "1000",
            "commitment": hash, "sum_root": hash, "recipients": 1, "source": hash});
        let body = json!({"entries": [entry]}).to_string();
        let url = format!("{}/v1/ledger/commit", fleet.api_socket("ron-ledger"));
        let got = fleet.post(&url, Some(settle.trim()), &body, &[]);
        assert_eq!(
            code(&got),
            (400, "bad_request".to_owned()),
            "{tenant} {from}"
        );
        let text = String::from_utf8_lossy(&got.body).into_owned();
        assert!(text.contains("pool:<tenant>/<name>"), "{text}");
    }
    assert_eq!(balance(&fleet, pool), full, "nothing left the pool");
    assert!(pool.starts_with("pool:default/"), "{pool}");
    // The tenant that owns the policy pays by it.
    let own = Caller {
        fleet: &fleet,
        token: fleet.token("svc-rewarder", None),
    };
    let cid = own.upload("");
    assert_eq!(
        json(&own.compute("e1", &cid, None), 200)["state"],
        "settled"
    );
}

#[test]
fn usage_is_paid_once_also_after_a_restart_and_without_the_rewarders_disk() {
    let mut fleet = Fleet::start();
    fund(&fleet, 3);
    let again = |fleet: &Fleet, epoch: &str| {
        let caller = Caller {
            fleet,
            token: fleet.token("svc-rewarder", None),
        };
        let cid = caller.upload("");
        let got = caller.compute(epoch, &cid, None);
        assert_eq!(code(&got), (409, "usage_paid".to_owned()), "{epoch}");
        let text = String::from_utf8_lossy(&got.body).into_owned();
        assert!(text.contains("epoch paid:1 paid this snapshot"), "{text}");
    };
    {
        let caller = Caller {
            fleet: &fleet,
            token: fleet.token("svc-rewarder", None),
        };
        let cid = caller.upload("");
        assert_eq!(
            json(&caller.compute("paid:1", &cid, None), 200)["state"],
            "settled"
        );
    }
    again(&fleet, "paid:2");
    let dir = fleet.keep_dir();
    assert_eq!(fleet.stop(), Some(0));
    fleet = Fleet::start_in(dir.clone());
    again(&fleet, "paid:3");
    assert_eq!(fleet.stop(), Some(0));
    std::fs::remove_dir_all(dir.path().join("svc-rewarder/data")).unwrap();
    fleet = Fleet::start_in(dir);
    again(&fleet, "paid:4");
    again(&fleet, "paid:4");
    let caller = Caller {
        fleet: &fleet,
        token: fleet.token("svc-rewarder", None),
    };
    // The same usage of another period is different usage.
    let later = caller.upload("?period=2026-12");
    assert_eq!(
        json(&caller.compute("paid:5", &later, None), 200)["state"],
        "settled"
    );
    // A correction names the epoch, and waits until its settlement is requested.
    let cid = caller.upload("");
    let lost = caller.compute("paid:6", &cid, Some("paid:1"));
    assert_eq!(code(&lost), (409, "not_settled".to_owned()));
    // It needs what the epoch has paid, which is computed again and paid no second time.
    assert_eq!(
        json(&caller.compute("paid:1", &cid, None), 200)["state"],
        "settled"
    );
    let more = format!("{USAGE}acct:trudy,smoothing_pool,1000000\n");
    let stored = caller.post("snapshots", &more, "text/csv");
    let fixed = serde_json::from_slice::<Value>(&stored.body).unwrap()["cid"].clone();
    let sealed = json(&caller.compute("paid:6", &fixed, Some("paid:1")), 200);
    assert_eq!(
        (&sealed["state"], &sealed["settles"]),
        (&json!("sealed"), &json!(false))
    );
    let settled = json(
        &caller.post("epochs/paid:6/settle", "", "application/json"),
        200,
    );
    assert_eq!(settled["state"], "settled", "{settled}");
    let url = format!(
        "{}/v1/ledger/epochs/default/paid:6",
        fleet.api("ron-ledger")
    );
    let epoch = json(
        &fleet.get(&url, Some(&fleet.token("ron-ledger", None))),
        200,
    );
    assert_eq!(epoch["adjusts"], "paid:1");
    ok(&fleet.ron(&["ledger", "verify"]));
    ok(&fleet.ron(&["rewarder", "verify"]));
}

#[test]
fn the_same_key_of_one_name_in_two_tenants_is_two_operations() {
    let fleet = Fleet::start();
    fleet.change_wallet_policy(|policy| {
        let rules = policy["rules"].as_array_mut().unwrap();
        for tenant in ["first", "second"] {
            rules.push(
                json!({"principal": "operator", "tenant": tenant, "actions": ["issue", "read"],
                "accounts": ["acct:*"], "assets": ["usd"]}),
            );
        }
    });
    let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let issue = |tenant: &str, minor: &str| {
        let token = passport(&fleet, "svc-wallet", tenant, "wallet:issue wallet:read");
        let body = json!({"to": "acct:shared", "asset": "usd", "amount_minor": minor});
        let headers = [("Idempotency-Key", "order-1")];
        (
            token.clone(),
            fleet.post(&url, Some(&token), &body.to_string(), &headers),
        )
    };
    let (first, a) = issue("first", "5");
    let (second, b) = issue("second", "7");
    let (a, b) = (json(&a, 200), json(&b, 200));
    assert_ne!(a["receipt"]["txid"], b["receipt"]["txid"]);
    // Each tenant finds its own operation, and neither sees the other's.
    let ops = format!("{}/v1/ops/order-1", fleet.api("svc-wallet"));
    for (token, made) in [(&first, &a), (&second, &b)] {
        let found = json(&fleet.get(&ops, Some(token)), 200);
        assert_eq!(found["receipt"], made["receipt"]);
        assert_eq!(found["private"], made["private"]);
    }
}
