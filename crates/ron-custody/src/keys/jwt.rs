//! Payload policy `jwt`: the signing input of a JWS is parsed and checked against the key's limits,
//! so that a stolen issuer credential cannot sign arbitrary bytes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_proto::kms::{JwtPolicy, Scheme};
use ron_proto::passport::{IssuerPolicy, TokenClaims};
use ron_proto::strict;
use ron_proto::values::Alg;
use serde::Deserialize;
use serde_json::Value;

/// The header `typ` of an access token (RFC 9068); such a token must name its audience.
pub const ACCESS_TOKEN: &str = "at+jwt";
/// The header `typ` of a status list, the other document that a key under the issuer policy signs.
pub const STATUS_LIST: &str = "statuslist+jwt";
/// The claims of a status list.
const STATUS_LIST_CLAIMS: [&str; 6] = ["exp", "iat", "iss", "status_list", "sub", "ttl"];
/// Maximum seconds that `iat` may lie ahead of this host's clock.
const SKEW_AHEAD_S: u64 = 60;
/// Maximum seconds that `iat` may lie behind it: skew plus time spent in queues.
const SKEW_BEHIND_S: u64 = 300;

/// The fields of the signing version that policies check.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub alg: Alg,
    /// How the request has it sign; the usual way when absent.
    pub scheme: Option<Scheme>,
    /// RFC 7638 thumbprint of its public key.
    pub thumbprint: &'a str,
}

/// The allowed header members. `jwk`, `jku`, `x5c`, `crit`, `b64` and others would let a token choose its own
/// verification key or rules, so they are refused as unknown.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    kid: String,
    typ: String,
}

/// The JWS `alg` name of signatures by keys of `alg` under `scheme`, which is the usual one when absent; `None` when they have no
/// such name.
pub fn jws_alg(alg: Alg, scheme: Option<Scheme>) -> Option<&'static str> {
    let scheme = scheme.or_else(|| Scheme::usual(alg));
    match (alg, scheme) {
        (Alg::Ed25519, _) => Some("EdDSA"),
        (Alg::MlDsa44, _) => Some("ML-DSA-44"),
        (Alg::MlDsa65, _) => Some("ML-DSA-65"),
        (Alg::MlDsa87, _) => Some("ML-DSA-87"),
        (Alg::EcdsaP256, Some(Scheme::EcdsaSha256)) => Some("ES256"),
        (Alg::EcdsaP384, Some(Scheme::EcdsaSha384)) => Some("ES384"),
        (Alg::EcdsaSecp256k1, Some(Scheme::EcdsaSha256)) => Some("ES256K"),
        (_, Some(Scheme::RsaPssSha256)) => Some("PS256"),
        (_, Some(Scheme::RsaPssSha384)) => Some("PS384"),
        (_, Some(Scheme::RsaPssSha512)) => Some("PS512"),
        (_, Some(Scheme::RsaPkcs1Sha256)) => Some("RS256"),
        (_, Some(Scheme::RsaPkcs1Sha384)) => Some("RS384"),
        (_, Some(Scheme::RsaPkcs1Sha512)) => Some("RS512"),
        _ => None,
    }
}

/// Checks whether `head` may sign `input` (`base64url(header).base64url(claims)`) at `now_s` (Unix seconds). `rules` is the
/// issuer policy in force. The error says which rule was broken and holds no input.
pub fn check(
    policy: &JwtPolicy,
    rules: Option<&IssuerPolicy>,
    head: Head<'_>,
    input: &[u8],
    now_s: u64,
) -> Result<(), String> {
    let shape = || "not a JWS signing input: base64url(header).base64url(claims)".to_owned();
    let mut parts = input.split(|&b| b == b'.');
    let (Some(header), Some(claims), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(shape());
    };
    let decode = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).map_err(|_| shape());
    let header = decode(header)?;
    let header: Header = strict::from_slice(&header)
        .map_err(|_| "the header must be a JSON object of exactly alg, kid and typ".to_owned())?;
    check_header(policy, head, &header)?;
    let claims = decode(claims)?;
    if policy.issuer_policy && header.typ == ACCESS_TOKEN {
        return check_token(policy, rules, &claims, now_s);
    }
    // Strict: duplicate names would let two parsers read two different tokens.
    let claims: Value = strict::from_slice(&claims)
        .map_err(|_| "the claims are not a JSON object without duplicate names".to_owned())?;
    let Value::Object(claims) = claims else {
        return Err("the claims are not a JSON object".into());
    };
    if policy.issuer_policy
        && let Some(odd) = claims
            .keys()
            .find(|name| !STATUS_LIST_CLAIMS.contains(&name.as_str()))
    {
        return Err(match odd.as_str() {
            "aud" | "scope" => format!("a status list has no `{odd}`"),
            _ => "the claims are not those of a status list".into(),
        });
    }
    check_issuer(policy, claims.get("iss").and_then(Value::as_str))?;
    check_audience(policy, claims.get("aud"), header.typ == ACCESS_TOKEN)?;
    check_times(policy, Times::of(&claims)?, now_s)
}

/// Checks the claims of an access token under the issuer policy.
fn check_token(
    policy: &JwtPolicy,
    rules: Option<&IssuerPolicy>,
    claims: &[u8],
    now_s: u64,
) -> Result<(), String> {
    // Exactly the issuer's claims: a verifier might honour any other, such as groups or roles.
    let claims: TokenClaims = strict::from_slice(claims)
        .map_err(|_| "the claims are not exactly those of an access token".to_owned())?;
    check_issuer(policy, Some(&claims.iss))?;
    let times = Times {
        iat: claims.iat,
        exp: claims.exp,
        nbf: Some(claims.nbf),
    };
    check_times(policy, times, now_s)?;
    let Some(rules) = rules else {
        return Err(
            "no issuer policy is in force here: svc-passport brings the signed one; it must be signed by a key of \
             policy.public_keys"
                .into(),
        );
    };
    rules.permits(&claims).map_err(|why| {
        format!(
            "version {} of the issuer policy is in force: {why}",
            rules.version
        )
    })
}

fn check_issuer(policy: &JwtPolicy, iss: Option<&str>) -> Result<(), String> {
    if iss == Some(policy.iss.as_str()) {
        return Ok(());
    }
    Err("`iss` is not the issuer this key signs for".into())
}

fn check_header(policy: &JwtPolicy, head: Head<'_>, header: &Header) -> Result<(), String> {
    if jws_alg(head.alg, head.scheme) != Some(header.alg.as_str()) {
        return Err(
            "header `alg` is not the algorithm of the signing version, or of the request's `scheme`"
                .into(),
        );
    }
    if header.kid != head.thumbprint {
        return Err("header `kid` is not the thumbprint of the signing version".into());
    }
    if !policy.typ.contains(&header.typ) {
        return Err("header `typ` is not one this key signs".into());
    }
    Ok(())
}

fn check_audience(policy: &JwtPolicy, aud: Option<&Value>, required: bool) -> Result<(), String> {
    let allowed = |value: &Value| {
        value
            .as_str()
            .is_some_and(|a| policy.aud.iter().any(|p| p == a))
    };
    match aud {
        None if required => Err("an access token must have an `aud`".into()),
        None => Ok(()),
        Some(Value::Array(list)) if !list.is_empty() && list.iter().all(allowed) => Ok(()),
        Some(one @ Value::String(_)) if allowed(one) => Ok(()),
        Some(_) => Err("`aud` names an audience this key does not sign for".into()),
    }
}

/// The claims about time, in Unix seconds.
struct Times {
    iat: u64,
    exp: u64,
    nbf: Option<u64>,
}

impl Times {
    fn of(claims: &serde_json::Map<String, Value>) -> Result<Self, String> {
        let seconds = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(s) => Ok(Some(s)),
                None => Err(format!("`{name}` must be a whole number of seconds")),
            },
        };
        Ok(Self {
            iat: seconds("iat")?.ok_or("`iat` is missing")?,
            exp: seconds("exp")?.ok_or("`exp` is missing")?,
            nbf: seconds("nbf")?,
        })
    }
}

fn check_times(policy: &JwtPolicy, times: Times, now_s: u64) -> Result<(), String> {
    let Times { iat, exp, nbf } = times;
    if iat > now_s.saturating_add(SKEW_AHEAD_S) || iat.saturating_add(SKEW_BEHIND_S) < now_s {
        return Err("`iat` is not the present time".into());
    }
    let lifetime = exp
        .checked_sub(iat)
        .filter(|&s| s > 0)
        .ok_or("`exp` must be after `iat`")?;
    if lifetime > policy.max_ttl_s {
        return Err(format!(
            "lifetime {lifetime} s exceeds the key's limit {} s",
            policy.max_ttl_s
        ));
    }
    // `nbf` may delay a token's start, but neither past its end nor to a time before it was issued.
    let starts_inside =
        |nbf: u64| nbf < exp && nbf.saturating_add(SKEW_AHEAD_S + SKEW_BEHIND_S) >= iat;
    match nbf {
        Some(nbf) if !starts_inside(nbf) => Err("`nbf` lies outside the token's lifetime".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn policy() -> JwtPolicy {
        JwtPolicy {
            typ: vec!["at+jwt".into(), "statuslist+jwt".into()],
            iss: "https://issuer.example".into(),
            aud: vec!["svc-wallet".into(), "ron-ledger".into()],
            issuer_policy: false,
            max_ttl_s: 900,
        }
    }

    fn input(header: &str, claims: &str) -> Vec<u8> {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}", part(header), part(claims)).into_bytes()
    }

    fn verdict(alg: Alg, input: &[u8]) -> Result<(), String> {
        let head = Head {
            alg,
            scheme: None,
            thumbprint: "thumb",
        };
        super::check(&policy(), None, head, input, NOW)
    }

    const HEADER: &str = r#"{"alg":"EdDSA","kid":"thumb","typ":"at+jwt"}"#;

    fn claims(change: &str) -> String {
        // Later duplicates would be refused, so a change replaces the named member.
        let base = format!(
            r#"{{"iss":"https://issuer.example","aud":"svc-wallet","iat":{NOW},"exp":{},"sub":"x"}}"#,
            NOW + 600
        );
        let mut value: Value = serde_json::from_str(&base).expect("base");
        let change: Value = serde_json::from_str(change).expect("change");
        for (name, new) in change.as_object().expect("object") {
            let map = value.as_object_mut().expect("object");
            if new.is_null() {
                map.remove(name)
            } else {
                map.insert(name.clone(), new.clone())
            };
        }
        value.to_string()
    }

    #[test]
    fn header_attacks() {
        let check = |header: &str, ok: bool| {
            let got = verdict(Alg::Ed25519, &input(header, &claims("{}")));
            assert_eq!(got.is_ok(), ok, "{header}: {got:?}");
        };
        check(HEADER, true);
        check(r#"{"typ":"at+jwt","kid":"thumb","alg":"EdDSA"}"#, true);
        for header in [
            r#"{"alg":"none","kid":"thumb","typ":"at+jwt"}"#,
            r#"{"alg":"ES256","kid":"thumb","typ":"at+jwt"}"#,
            r#"{"alg":"Ed25519","kid":"thumb","typ":"at+jwt"}"#,
            r#"{"alg":"HS256","kid":"thumb","typ":"at+jwt"}"#,
            r#"{"alg":"eddsa","kid":"thumb","typ":"at+jwt"}"#,
            r#"{"alg":"EdDSA","kid":"other","typ":"at+jwt"}"#,
            r#"{"alg":"EdDSA","typ":"at+jwt"}"#,
            r#"{"alg":"EdDSA","kid":"thumb"}"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"JWT"}"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"AT+JWT"}"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"application/at+jwt"}"#,
            r#"{"alg":"EdDSA","alg":"none","kid":"thumb","typ":"at+jwt"}"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"at+jwt","jku":"https://evil"}"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"at+jwt","jwk":{}}"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"at+jwt","crit":["b64"],"b64":false}"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"at+jwt","zip":"DEF"}"#,
            r#"{"alg":["EdDSA"],"kid":"thumb","typ":"at+jwt"}"#,
            r#"["EdDSA","thumb","at+jwt"]"#,
            r#"{"alg":"EdDSA","kid":"thumb","typ":"at+jwt"} "x""#,
            "",
        ] {
            check(header, false);
        }
        let es256 = r#"{"alg":"ES256","kid":"thumb","typ":"at+jwt"}"#;
        assert!(verdict(Alg::EcdsaP256, &input(es256, &claims("{}"))).is_ok());
        assert!(verdict(Alg::EcdsaP256, &input(HEADER, &claims("{}"))).is_err());
    }

    #[test]
    fn claim_attacks() {
        let check = |change: &str, ok: bool| {
            let got = verdict(Alg::Ed25519, &input(HEADER, &claims(change)));
            assert_eq!(got.is_ok(), ok, "{change}: {got:?}");
        };
        check("{}", true);
        check(r#"{"iss":"https://evil.example"}"#, false);
        check(r#"{"iss":"https://issuer.example/"}"#, false);
        check(r#"{"iss":["https://issuer.example"]}"#, false);
        check(r#"{"iss":null}"#, false);
        check(r#"{"aud":null}"#, false);
        check(r#"{"aud":"svc-admin"}"#, false);
        check(r#"{"aud":""}"#, false);
        check(r#"{"aud":[]}"#, false);
        check(r#"{"aud":7}"#, false);
        check(r#"{"aud":["svc-wallet","ron-ledger"]}"#, true);
        check(r#"{"aud":["svc-wallet","svc-admin"]}"#, false);
        check(r#"{"aud":["svc-wallet",["ron-ledger"]]}"#, false);
        check(&format!(r#"{{"exp":{}}}"#, NOW + 900), true);
        check(&format!(r#"{{"exp":{}}}"#, NOW + 901), false);
        check(&format!(r#"{{"exp":{NOW}}}"#), false);
        check(&format!(r#"{{"exp":{}}}"#, NOW - 1), false);
        check(r#"{"exp":null}"#, false);
        check(&format!(r#"{{"exp":{}.0}}"#, NOW + 60), false);
        check(&format!(r#"{{"exp":"{}"}}"#, NOW + 60), false);
        check(r#"{"exp":-1}"#, false);
        check(r#"{"exp":18446744073709551615}"#, false);
        check(r#"{"iat":null}"#, false);
        check(&format!(r#"{{"iat":{}}}"#, NOW + 61), false);
        check(
            &format!(r#"{{"iat":{},"exp":{}}}"#, NOW - 301, NOW + 1),
            false,
        );
        check(
            r#"{"iat":18446744073709551615,"exp":18446744073709551615}"#,
            false,
        );
        check(r#"{"iat":0,"exp":1}"#, false);
        check(&format!(r#"{{"nbf":{NOW}}}"#), true);
        check(&format!(r#"{{"nbf":{}}}"#, NOW + 599), true);
        check(&format!(r#"{{"nbf":{}}}"#, NOW + 600), false);
        check(r#"{"nbf":0}"#, false);
        check(r#"{"nbf":"now"}"#, false);
    }

    #[test]
    fn a_status_list_needs_no_audience() {
        let header = r#"{"alg":"EdDSA","kid":"thumb","typ":"statuslist+jwt"}"#;
        let check = |change: &str, ok: bool| {
            assert_eq!(
                verdict(Alg::Ed25519, &input(header, &claims(change))).is_ok(),
                ok
            );
        };
        check(r#"{"aud":null,"status_list":{"bits":1,"lst":"x"}}"#, true);
        check(r#"{"aud":"svc-admin"}"#, false);
    }

    #[test]
    fn framing_attacks() {
        let good = String::from_utf8(input(HEADER, &claims("{}"))).expect("ascii");
        let duplicate = format!(
            r#"{{"iss":"https://evil","iss":"https://issuer.example","aud":"svc-wallet","iat":{NOW},"exp":{}}}"#,
            NOW + 60
        );
        let check = |text: &[u8], ok: bool| {
            let got = verdict(Alg::Ed25519, text);
            assert_eq!(
                got.is_ok(),
                ok,
                "{}: {got:?}",
                String::from_utf8_lossy(text)
            );
        };
        check(good.as_bytes(), true);
        check(format!("{good}.").as_bytes(), false);
        check(format!("{good}.AAAA").as_bytes(), false);
        check(format!("{good}=").as_bytes(), false);
        check(format!("{good}\n").as_bytes(), false);
        check(format!(" {good}").as_bytes(), false);
        check(format!(".{good}").as_bytes(), false);
        check(good.replace('.', "..").as_bytes(), false);
        check(good.replace('.', "").as_bytes(), false);
        check(b"", false);
        check(b".", false);
        check(b"\xff\xfe.\x00", false);
        check(&input(HEADER, &duplicate), false);
        check(&input(HEADER, "[]"), false);
        check(&input(HEADER, "null"), false);
        check(&input(HEADER, &"[".repeat(64)), false);
    }

    /// The verdict of a key that follows the issuer policy.
    fn under_rules(rules: bool, typ: &str, claims: &str) -> Result<(), String> {
        let following = JwtPolicy {
            aud: Vec::new(),
            issuer_policy: true,
            ..policy()
        };
        let shop = r#"{"version":4,"clients":[{"client_id":"shop","tenant":"t1","max_ttl_s":600,
            "audiences":[{"audience":"my-api","scopes":["read"]}]}]}"#;
        let shop: IssuerPolicy = serde_json::from_str(shop).expect("a policy");
        let head = Head {
            scheme: None,
            alg: Alg::Ed25519,
            thumbprint: "thumb",
        };
        let header = format!(r#"{{"alg":"EdDSA","kid":"thumb","typ":"{typ}"}}"#);
        let input = input(&header, claims);
        super::check(&following, rules.then_some(&shop), head, &input, NOW)
    }

    #[test]
    fn under_the_issuer_policy_a_token_is_one_that_the_policy_allows() {
        let token = |change: &str| {
            let base = r#"{"aud":"my-api","client_id":"shop","sub":"shop","tenant":"t1","scope":"read","jti":"j",
                "ron_epoch":1,"nbf":1700000000}"#;
            let mut base: Value = serde_json::from_str(base).expect("claims");
            let change: Value = serde_json::from_str(change).expect("a change");
            let (to, from) = (base.as_object_mut(), change.as_object());
            to.expect("object").extend(from.expect("object").clone());
            claims(&base.to_string())
        };
        let check = |change: &str, word: Option<&str>| {
            let got = under_rules(true, "at+jwt", &token(change));
            let why = got.as_ref().err();
            assert_eq!(why.is_some(), word.is_some(), "{change}: {got:?}");
            assert!(
                why.is_none_or(|w| w.contains(word.unwrap_or(""))),
                "{got:?}"
            );
        };
        check("{}", None);
        check(r#"{"scope":"read write"}"#, Some("`scope`"));
        check(r#"{"aud":"svc-wallet"}"#, Some("`aud`"));
        check(r#"{"tenant":"ron"}"#, Some("`tenant`"));
        check(r#"{"client_id":"other"}"#, Some("`client_id`"));
        check(r#"{"iss":"https://evil.example"}"#, Some("`iss`"));
        check(r#"{"aud":["my-api"]}"#, Some("exactly"));
        check(r#"{"groups":["admin"]}"#, Some("exactly"));
        check(r#"{"exp":1700000601}"#, Some("long"));
        check(
            r#"{"iat":1699999000,"exp":1699999500}"#,
            Some("present time"),
        );
        let none = under_rules(false, "at+jwt", &token("{}")).expect_err("no policy");
        assert!(none.contains("no issuer policy is in force"), "{none}");
    }

    #[test]
    fn under_the_issuer_policy_a_status_list_is_nothing_else() {
        let list = |change: &str| {
            let base = r#"{"aud":null,"ttl":5,"status_list":{"bits":1,"lst":"x"}}"#;
            let mut base: Value = serde_json::from_str(base).expect("claims");
            let change: Value = serde_json::from_str(change).expect("a change");
            let (to, from) = (base.as_object_mut(), change.as_object());
            to.expect("object").extend(from.expect("object").clone());
            under_rules(false, "statuslist+jwt", &claims(&base.to_string()))
        };
        assert_eq!(list("{}"), Ok(()));
        for odd in [
            r#"{"aud":"my-api"}"#,
            r#"{"scope":"read"}"#,
            r#"{"client_id":"shop"}"#,
        ] {
            assert!(list(odd).is_err(), "{odd}");
        }
    }
}
