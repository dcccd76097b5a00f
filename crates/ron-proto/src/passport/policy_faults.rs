//! What is wrong with an issuer policy in itself. The issuer and the KMS put no policy in force that
//! has a fault, and `ron policy` signs none.

use std::collections::BTreeSet;

use super::{
    Audience, AudienceRule, CAVEATS_MAX, ClientRule, IssuerPolicy, OWN_AUDIENCES, TTL_S_MAX,
    is_subject,
};
use crate::caveat::Caveat;
use crate::scope;

/// The algorithms that a policy may name.
pub const TOKEN_ALGS: [&str; 9] = [
    "EdDSA",
    "ES256",
    "RS256",
    "ML-DSA-44",
    "ML-DSA-65",
    "ML-DSA-87",
    "EdDSA+ML-DSA-44",
    "EdDSA+ML-DSA-65",
    "EdDSA+ML-DSA-87",
];

impl IssuerPolicy {
    /// Every fault, each as one sentence that names client and audience.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.version == 0 {
            faults.push("version must be at least 1".to_owned());
        }
        let names = self.audiences.iter().map(|one| &one.audience);
        for twice in repeated(names) {
            faults.push(format!("audience {twice} has two entries"));
        }
        for audience in &self.audiences {
            audience.faults(&mut faults);
        }
        for twice in repeated(self.clients.iter().map(|rule| &rule.client_id)) {
            faults.push(format!("client {twice} has two rules"));
        }
        for client in &self.clients {
            client.faults(self, &mut faults);
        }
        self.external_faults(&mut faults);
        faults
    }

    /// Whether the policy may come into force.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), String> {
        match self.faults().into_iter().next() {
            None => Ok(()),
            Some(fault) => Err(fault),
        }
    }
}

impl Audience {
    fn faults(&self, faults: &mut Vec<String>) {
        let name = &self.audience;
        let whose = format!("audience {name}");
        if !is_subject(name) {
            faults.push(format!(
                "audience {name:?}: a name is 1 to 256 printable ASCII characters without spaces"
            ));
        }
        if OWN_AUDIENCES.contains(&name.as_str()) {
            faults.push(format!(
                "{whose} is a service of this installation: its scopes are known, and it has no entry"
            ));
        }
        for scope in self.scopes.iter().filter(|scope| !scope::is_scope(scope)) {
            faults.push(format!(
                "{whose}: {scope:?} is no scope: 1 to 128 printable ASCII characters without spaces, commas, quotes \
                 and backslashes"
            ));
        }
        for twice in repeated(&self.scopes) {
            faults.push(format!("{whose} names the scope {twice} twice"));
        }
        algs(&whose, self.alg.iter(), faults);
        if let Some(ttl) = self.max_ttl_s {
            lifetime(&whose, ttl, faults);
        }
        caveats(&whose, self.caveats.iter(), faults);
    }
}

impl ClientRule {
    fn faults(&self, policy: &IssuerPolicy, faults: &mut Vec<String>) {
        let whose = format!("client {}", self.client_id);
        if !is_subject(&self.client_id) {
            faults.push(format!(
                "client {:?}: a client_id is 1 to 256 printable ASCII characters without spaces",
                self.client_id
            ));
        }
        for subject in &self.subjects {
            let fixed = subject.strip_suffix('*').unwrap_or(subject);
            if fixed.contains('*') || !is_subject(subject) {
                faults.push(format!(
                    "{whose}: subject {subject:?} is neither a name nor a prefix that ends in *"
                ));
            }
        }
        lifetime(&whose, self.max_ttl_s, faults);
        if self.audiences.is_empty() {
            faults.push(format!("{whose} has no audience, so it can get no token"));
        }
        for twice in repeated(self.audiences.iter().map(|rule| &rule.audience)) {
            faults.push(format!("{whose} has two rules for audience {twice}"));
        }
        for rule in &self.audiences {
            rule.faults(&whose, policy, faults);
        }
    }
}

impl AudienceRule {
    fn faults(&self, client: &str, policy: &IssuerPolicy, faults: &mut Vec<String>) {
        let whose = format!("{client}, audience {}", self.audience);
        let declared = policy.declared(&self.audience);
        if declared.is_none() && !OWN_AUDIENCES.contains(&self.audience.as_str()) {
            faults.push(format!(
                "{whose}: the policy has no such audience; add it to `audiences`"
            ));
        }
        let known = policy.scopes_of(&self.audience);
        for scope in &self.scopes {
            if !known.contains(&scope.as_str()) {
                faults.push(format!("{whose}: it has no scope {scope}"));
            }
        }
        for twice in repeated(&self.scopes) {
            faults.push(format!("{whose} names the scope {twice} twice"));
        }
        algs(&whose, self.alg.iter().chain(&self.algs), faults);
        for from in &self.from {
            let known = |name: &String| {
                policy.declared(name).is_some() || OWN_AUDIENCES.contains(&name.as_str())
            };
            if *from == self.audience {
                faults.push(format!(
                    "{whose}: `from` names other audiences; tokens of this one need no entry"
                ));
            } else if !known(from) {
                faults.push(format!(
                    "{whose}: `from` names {from}, which the policy does not have; add it to `audiences`"
                ));
            }
        }
        for twice in repeated(&self.from) {
            faults.push(format!("{whose}: `from` names {twice} twice"));
        }
        let of_all = declared.map_or(&[][..], |declared| &declared.caveats);
        caveats(&whose, self.caveats.iter().chain(of_all), faults);
    }
}

fn algs<'a>(whose: &str, algs: impl Iterator<Item = &'a String>, faults: &mut Vec<String>) {
    for alg in algs.filter(|alg| !TOKEN_ALGS.contains(&alg.as_str())) {
        let known = TOKEN_ALGS.join(", ");
        faults.push(format!(
            "{whose}: {alg:?} is no algorithm of tokens; they are {known}"
        ));
    }
}

fn lifetime(whose: &str, ttl_s: u64, faults: &mut Vec<String>) {
    if !(1..=TTL_S_MAX).contains(&ttl_s) {
        faults.push(format!("{whose}: max_ttl_s must be 1 to {TTL_S_MAX}"));
    }
}

fn caveats<'a>(whose: &str, texts: impl Iterator<Item = &'a String>, faults: &mut Vec<String>) {
    let mut number = 0;
    for text in texts {
        number += 1;
        match text.parse::<Caveat>() {
            Ok(Caveat::PqFallback(_)) => faults.push(format!(
                "{whose}: caveat {text:?} is the issuer's own mark, which no policy prescribes"
            )),
            Ok(_) => {}
            Err(e) => faults.push(format!("{whose}: caveat {text:?}: {}", e.detail)),
        }
    }
    if number > CAVEATS_MAX {
        faults.push(format!("{whose} has more than {CAVEATS_MAX} caveats"));
    }
}

/// The texts that come a second time.
pub(super) fn repeated<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = BTreeSet::new();
    let all = texts.into_iter();
    all.filter(|text| !seen.insert(text.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sound() -> Value {
        json!({"version": 1, "audiences": [
            {"audience": "https://orders.example.org/", "scopes": ["orders.read", "https://x/write"], "alg": "ES256",
             "max_ttl_s": 300, "caveats": ["ip_cidr=10.0.0.0/8"]},
            {"audience": "plain", "scopes": []}],
          "clients": [{"client_id": "shop", "tenant": "t1", "subjects": ["user:*", "till"], "max_ttl_s": 600, "audiences": [
            {"audience": "https://orders.example.org/", "scopes": ["orders.read"], "algs": ["EdDSA+ML-DSA-65"]},
            {"audience": "plain", "scopes": []},
            {"audience": "svc-wallet", "scopes": ["wallet:read", "admin:operate"], "caveats": ["asset=rpl"]}]}]})
    }

    /// The sound policy with this change has a fault with these words, or none if there are no words.
    fn check(pointer: &str, value: &Value, fault: &str) {
        let mut policy = sound();
        match (policy.pointer_mut(pointer), pointer.rsplit_once('/')) {
            (Some(place), _) => *place = value.clone(),
            (None, Some((object, name))) => {
                policy.pointer_mut(object).expect(object)[name] = value.clone();
            }
            (None, None) => panic!("{pointer}"),
        }
        let policy: IssuerPolicy = serde_json::from_value(policy).expect("a policy");
        let faults = policy.faults();
        if fault.is_empty() {
            assert_eq!(faults, [] as [String; 0], "{pointer} {value}");
        } else {
            let found = faults.iter().any(|one| one.contains(fault));
            assert!(found, "{pointer} {value}: {faults:?}");
            assert_eq!(policy.check().as_ref(), Err(&faults[0]));
        }
    }

    #[test]
    fn faults_of_the_policy_and_its_audiences_are_found_and_named() {
        check("/version", &json!(7), "");
        check("/version", &json!(0), "version");
        for (member, value, fault) in [
            ("audience", json!("a b"), "printable ASCII"),
            ("audience", json!(""), "printable ASCII"),
            ("audience", json!("plain"), "two entries"),
            ("audience", json!("svc-wallet"), "of this installation"),
            ("scopes", json!(["orders.read", "a,b"]), "is no scope"),
            ("scopes", json!(["orders.read", "orders.read"]), "twice"),
            ("scopes", json!(["other"]), "it has no scope orders.read"),
            ("alg", json!("RS257"), "no algorithm"),
            ("max_ttl_s", json!(3600), ""),
            ("max_ttl_s", json!(3601), "max_ttl_s"),
            ("max_ttl_s", json!(0), "max_ttl_s"),
            ("caveats", json!(["zzz=1"]), "zzz=1"),
            ("caveats", json!(["pq.fallback=true"]), "own mark"),
        ] {
            check(&format!("/audiences/0/{member}"), &value, fault);
        }
    }

    #[test]
    fn faults_of_clients_are_found_and_named() {
        for (member, value, fault) in [
            ("client_id", json!("a b"), "client_id"),
            ("subjects", json!(["user:*:x"]), "neither a name"),
            ("subjects", json!(["*"]), ""),
            ("subjects", json!([""]), "neither a name"),
            ("max_ttl_s", json!(999_999), "max_ttl_s"),
            ("audiences", json!([]), "no audience"),
        ] {
            check(&format!("/clients/0/{member}"), &value, fault);
        }
        let many: Vec<String> = (0..32).map(|n| format!("route=/{n}")).collect();
        for (member, value, fault) in [
            ("audience", json!("nope"), "no such audience"),
            ("audience", json!("plain"), "two rules for audience plain"),
            ("from", json!(["plain", "svc-wallet"]), ""),
            ("from", json!(["nope"]), "`from` names nope"),
            ("from", json!(["plain", "plain"]), "twice"),
            (
                "from",
                json!(["https://orders.example.org/"]),
                "other audiences",
            ),
            (
                "scopes",
                json!(["orders.write"]),
                "it has no scope orders.write",
            ),
            ("scopes", json!(["orders.read", "orders.read"]), "twice"),
            ("algs", json!(["none"]), "no algorithm"),
            ("caveats", json!(many), "more than 32"),
        ] {
            check(&format!("/clients/0/audiences/0/{member}"), &value, fault);
        }
        let wallet = "/clients/0/audiences/2/scopes";
        check(wallet, &json!(["wallet:sing"]), "no scope wallet:sing");
        let mut twice = sound()["clients"].clone();
        let rule = twice[0].clone();
        twice.as_array_mut().expect("a list").push(rule);
        check("/clients", &twice, "two rules");
    }
}
