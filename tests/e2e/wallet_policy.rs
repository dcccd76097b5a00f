//! Wallet rules for the users of a client: each has its own account, by one rule, and pays only to the
//! payees of the rule.

use ron_http::Method;
use ron_tests::{Fleet, issuer};
use serde_json::{Value, json};

/// A caller with a token of its own.
struct User<'f> {
    fleet: &'f Fleet,
    token: String,
}

impl<'f> User<'f> {
    /// The n-th client of [`issuer::minted`] is `minted-N`.
    fn of(fleet: &'f Fleet, subject: &str) -> Self {
        let claims = json!({"sub": subject, "scope": "wallet:read wallet:transfer wallet:hold"});
        let token = issuer::minted(fleet, "svc-wallet", &claims);
        Self { fleet, token }
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}/v1/{path}", self.fleet.api("svc-wallet"));
        let headers = [("Idempotency-Key", key)];
        let reply = self
            .fleet
            .post(&url, Some(&self.token), &body.to_string(), &headers);
        (reply.status, serde_json::from_slice(&reply.body).unwrap())
    }

    fn pay(&self, key: &str, from: &str, to: &str) -> u16 {
        let body = json!({"from": from, "to": to, "asset": "ron", "amount_minor": "1"});
        self.post(key, "transfer", &body).0
    }

    fn reads(&self, account: &str) -> u16 {
        let url = format!(
            "{}/v1/balance?account={account}&asset=ron",
            self.fleet.api("svc-wallet")
        );
        self.fleet
            .send(Method::GET, &url, Some(&self.token), None, &[])
            .status
    }
}

#[test]
fn one_rule_gives_each_user_of_a_client_its_own_account() {
    let fleet = Fleet::start();
    let operator = User {
        fleet: &fleet,
        token: fleet.token("svc-wallet", None),
    };
    for account in ["user:alice", "user:bob", "user:a:b"] {
        let body = json!({"to": account, "asset": "ron", "amount_minor": "100"});
        assert_eq!(
            operator.post(&format!("to-{account}"), "issue", &body).0,
            200
        );
    }
    let alice = User::of(&fleet, "alice");
    let alice_of_another = User::of(&fleet, "alice");
    let odd = User::of(&fleet, "a:b");
    fleet.add_wallet_rules([
        json!({"principal": "*", "clients": ["minted-1", "minted-3"], "accounts": ["user:{subject}"],
            "payees": ["shop:*"], "assets": ["ron"], "actions": ["read", "transfer", "hold"], "per_op": "5"}),
    ]);
    assert_eq!(alice.pay("a1", "user:alice", "shop:till"), 200);
    assert_eq!(
        alice.pay("a2", "user:bob", "shop:till"),
        403,
        "it is not hers"
    );
    assert_eq!(
        alice.pay("a3", "user:alice", "user:bob"),
        403,
        "he is no payee"
    );
    assert_eq!(
        (alice.reads("user:alice"), alice.reads("user:bob")),
        (200, 403)
    );
    assert_eq!(alice_of_another.pay("b1", "user:alice", "shop:till"), 403);
    assert_eq!(alice_of_another.reads("user:alice"), 403);
    assert_eq!(odd.pay("c1", "user:a:b", "shop:till"), 403);

    // A hold has no payee yet; its capture has.
    let hold = json!({"from": "user:alice", "asset": "ron", "amount_minor": "5", "expires_at": "2200-01-01T00:00:00Z"});
    let (status, made) = alice.post("h1", "hold", &hold);
    assert_eq!(status, 200, "{made}");
    let capture = format!("hold/{}/capture", made["receipt"]["txid"].as_str().unwrap());
    let to = |payee: &str| json!({"to": payee, "amount_minor": "2"});
    assert_eq!(alice.post("h2", &capture, &to("user:bob")).0, 403);
    assert_eq!(alice.post("h3", &capture, &to("shop:till")).0, 200);
    // In a batch too.
    let transfer = |payee: &str| json!({"op": "transfer", "from": "user:alice", "to": payee, "asset": "ron", "amount_minor": "1"});
    let items = json!({"items": [transfer("shop:till"), transfer("user:bob")], "linked": true});
    assert_eq!(alice.post("h4", "batch", &items).0, 403);

    // A rule that any client could use for any account is not signed.
    let path = fleet.dir().join("policy/wallet.json");
    let mut policy: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    policy["rules"][1]
        .as_object_mut()
        .unwrap()
        .remove("clients");
    let next = fleet.dir().join("next.json");
    std::fs::write(&next, policy.to_string()).unwrap();
    let refused = fleet.ron(&["policy", "sign", "--kind", "wallet", next.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("needs `clients`"),
        "{said}"
    );
}
