//! An OpenID provider: its endpoints, the page on which a person signs in, and the ID token for a code (authorization code
//! with PKCE, RFC 7636; for a native application, RFC 8252).

use ron_client::{Form, basic};
use ron_crypto::{ct, hash};
use ron_http::{Call, HttpClient, Method, Reply};
use ron_kernel::{Deadline, OsRandom};
use ron_proto::passport::is_protected_url;
use ron_proto::values::is_control;
use ron_proto::{b64, strict};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use super::redirect::Expected;

/// Maximum size of a document of the provider, in bytes.
const DOCUMENT_BYTES_MAX: usize = 128 << 10;
/// Maximum size of an ID token, in bytes: the issuer takes forms of twice this size.
const ID_TOKEN_BYTES_MAX: usize = 16 << 10;

/// The endpoints of a provider (OpenID Connect Discovery).
#[derive(Deserialize, Debug)]
pub struct Provider {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    /// Whether its redirects name it (RFC 9207).
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
    /// How clients with a secret prove themselves.
    #[serde(default = "basic_alone")]
    token_endpoint_auth_methods_supported: Vec<String>,
}

/// What a provider takes that does not say what it takes.
fn basic_alone() -> Vec<String> {
    vec!["client_secret_basic".to_owned()]
}

/// One login: what the answers to it have.
pub struct Attempt<'a> {
    client_id: &'a str,
    /// Of an application that has one.
    secret: Option<&'a str>,
    redirect_uri: &'a str,
    state: String,
    nonce: String,
    verifier: Zeroizing<String>,
}

impl<'a> Attempt<'a> {
    /// Each value is new: an answer to another login has none of them.
    pub fn new(client_id: &'a str, secret: Option<&'a str>, redirect_uri: &'a str) -> Self {
        let fresh = || b64::url(&OsRandom.bytes::<32>());
        Self {
            client_id,
            secret,
            redirect_uri,
            state: fresh(),
            nonce: fresh(),
            verifier: Zeroizing::new(fresh()),
        }
    }
}

#[derive(Deserialize)]
struct CodeAnswer {
    id_token: String,
}

#[derive(Deserialize)]
struct OauthRefusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

#[derive(Deserialize)]
struct IdClaims {
    iss: String,
    aud: Audience,
    #[serde(default)]
    azp: Option<String>,
    exp: u64,
    #[serde(default)]
    nonce: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Provider {
    /// Reads the provider's metadata, which must name it as `issuer` and endpoints that nobody on the way can replace.
    pub fn discover(http: &HttpClient, issuer: &str, by: Deadline) -> Result<Self, String> {
        let safe = |what: &str, url: &str| {
            is_protected_url(url).then_some(()).ok_or_else(|| {
                format!(
                    "{what} {url:?} is neither https nor http on this host: anyone on the way could sign in instead of you"
                )
            })
        };
        safe("--issuer", issuer)?;
        let url = format!(
            "{}/.well-known/openid-configuration",
            issuer.trim_end_matches('/')
        );
        let reply = http.call(Call::get(&url, by)).map_err(|e| {
            format!("{url}: {e}; --ca names the certificate authorities that https providers must chain to")
        })?;
        let found: Self = document(&url, &reply)?;
        if found.issuer != issuer {
            return Err(format!(
                "{url} names the issuer {:?}, not {issuer:?}; give --issuer as the provider writes it",
                printable(&found.issuer)
            ));
        }
        safe("its authorization_endpoint", &found.authorization_endpoint)?;
        safe("its token_endpoint", &found.token_endpoint)?;
        Ok(found)
    }

    /// Address of the page on which the person signs in.
    pub fn page(&self, attempt: &Attempt<'_>, scope: &str) -> String {
        let challenge = b64::url(&hash::sha256(attempt.verifier.as_bytes()));
        let query = form(&[
            ("response_type", "code"),
            ("client_id", attempt.client_id),
            ("redirect_uri", attempt.redirect_uri),
            ("scope", scope),
            ("state", &attempt.state),
            ("nonce", &attempt.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let at = &self.authorization_endpoint;
        let joint = if at.contains('?') { '&' } else { '?' };
        format!("{at}{joint}{}", *query)
    }

    /// What the redirect that ends this login has.
    pub fn expected(&self, attempt: &Attempt<'_>) -> Expected {
        Expected {
            state: attempt.state.clone(),
            issuer: self.issuer.clone(),
            is_named: self.authorization_response_iss_parameter_supported,
        }
    }

    /// The ID token for a code. Its signature is checked by the issuer that takes it; here it comes from the provider
    /// itself, over a protected connection (OpenID Connect Core 3.1.3.7).
    pub fn redeem(
        &self,
        http: &HttpClient,
        attempt: &Attempt<'_>,
        code: &str,
        now_s: u64,
        by: Deadline,
    ) -> Result<Zeroizing<String>, String> {
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", attempt.redirect_uri),
            ("client_id", attempt.client_id),
            ("code_verifier", &attempt.verifier),
        ];
        let methods = &self.token_endpoint_auth_methods_supported;
        let in_form = methods.iter().any(|name| name == "client_secret_post");
        let mut header = None;
        match attempt.secret {
            None => {}
            Some(secret) if in_form => fields.push(("client_secret", secret)),
            Some(secret) => header = Some(Zeroizing::new(basic(attempt.client_id, secret))),
        }
        let headers: Vec<(&str, &str)> = header
            .iter()
            .map(|text| ("Authorization", text.as_str()))
            .collect();
        let body = form(&fields);
        let call = Call {
            method: Method::POST,
            headers: &headers,
            body: Some(body.as_bytes().to_vec()),
            content_type: Some("application/x-www-form-urlencoded"),
            // A code can be used once: a second attempt would end what the first one got.
            idempotent: false,
            ..Call::get(&self.token_endpoint, by)
        };
        let at = &self.token_endpoint;
        let reply = http.call(call).map_err(|e| format!("{at}: {e}"))?;
        let answer: CodeAnswer = document(at, &reply)?;
        let id_token = Zeroizing::new(answer.id_token);
        check(&id_token, self, attempt, now_s)?;
        Ok(id_token)
    }
}

/// The claims of the ID token are those of this login.
fn check(token: &str, by: &Provider, attempt: &Attempt<'_>, now_s: u64) -> Result<(), String> {
    let claims = id_claims(token).ok_or("the provider's ID token cannot be read")?;
    let refuse = |why: &str| Err(format!("the provider's ID token is refused: {why}"));
    if claims.iss != by.issuer {
        return refuse("iss is another issuer");
    }
    let ours = |name: &String| name == attempt.client_id;
    let (meant, alone) = match &claims.aud {
        Audience::One(name) => (ours(name), true),
        Audience::Many(names) => (names.iter().any(ours), names.len() == 1),
    };
    let authorized = match &claims.azp {
        Some(party) => ours(party),
        None => alone,
    };
    if !meant || !authorized {
        return refuse("it is for another client than --client-id");
    }
    if claims.exp <= now_s {
        return refuse("it has expired; is the clock of this host right?");
    }
    if !ct::eq(claims.nonce.as_bytes(), attempt.nonce.as_bytes()) {
        return refuse("its nonce is that of another login");
    }
    Ok(())
}

fn id_claims(token: &str) -> Option<IdClaims> {
    if token.len() > ID_TOKEN_BYTES_MAX {
        return None;
    }
    let payload = token.split('.').nth(1)?;
    strict::from_slice(&b64::from_url(payload).ok()?).ok()
}

/// A JSON document of the provider, or the reason that it gives.
fn document<T: DeserializeOwned>(url: &str, reply: &Reply) -> Result<T, String> {
    if reply.body.len() > DOCUMENT_BYTES_MAX {
        return Err(format!(
            "{url}: the answer is longer than {DOCUMENT_BYTES_MAX} bytes"
        ));
    }
    if reply.status == 200 {
        return strict::from_slice(&reply.body).map_err(|e| format!("{url}: {e}"));
    }
    let why = strict::from_slice::<OauthRefusal>(&reply.body);
    let why = why.map_or_else(
        |_| String::new(),
        |why| format!(": {} {}", why.error, why.error_description),
    );
    Err(printable(&format!("{url}: status {}{why}", reply.status)))
}

/// A text of the provider for a terminal: no control characters, at most 300 characters.
pub fn printable(text: &str) -> String {
    let shown = text.chars().filter(|c| !is_control(*c));
    shown.take(300).collect::<String>().trim_end().to_owned()
}

fn form(fields: &[(&str, &str)]) -> Zeroizing<String> {
    let mut form = Form::default();
    for (name, value) in fields {
        form.add(name, value);
    }
    Zeroizing::new(form.into_text())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn provider(authorization_endpoint: &str) -> Provider {
        Provider {
            issuer: "https://login.example".into(),
            authorization_endpoint: authorization_endpoint.into(),
            token_endpoint: "https://login.example/token".into(),
            authorization_response_iss_parameter_supported: true,
            token_endpoint_auth_methods_supported: basic_alone(),
        }
    }

    #[test]
    fn an_id_token_is_of_this_login_or_refused() {
        let attempt = Attempt::new("ron", None, "http://127.0.0.1:1/callback");
        let by = provider("https://login.example/auth");
        let good = json!({"iss": "https://login.example", "aud": "ron", "exp": 100, "nonce": attempt.nonce, "sub": "u"});
        let verdict = |change: &dyn Fn(&mut Value), now_s: u64| {
            let mut claims = good.clone();
            change(&mut claims);
            let token = format!("e30.{}.x", b64::url(claims.to_string().as_bytes()));
            check(&token, &by, &attempt, now_s)
        };
        assert_eq!(verdict(&|_| (), 99), Ok(()));
        assert_eq!(verdict(&|c| c["aud"] = json!(["ron"]), 99), Ok(()));
        let both = json!(["other", "ron"]);
        let party = |c: &mut Value| (c["aud"], c["azp"]) = (both.clone(), "ron".into());
        assert_eq!(verdict(&party, 99), Ok(()));
        let refused = |change: &dyn Fn(&mut Value), now_s: u64, word: &str| {
            let why = verdict(change, now_s).expect_err(word);
            assert!(why.contains(word), "{why}");
        };
        refused(&|_| (), 100, "expired");
        refused(&|c| c["iss"] = "https://login.example/".into(), 99, "iss");
        refused(&|c| c["aud"] = "other".into(), 99, "another client");
        refused(&|c| c["aud"] = both.clone(), 99, "another client");
        refused(&|c| c["azp"] = "other".into(), 99, "another client");
        refused(&|c| c["nonce"] = "x".into(), 99, "nonce");
        refused(&|c| c["nonce"] = Value::Null, 99, "cannot be read");
        refused(
            &|c| drop(c.as_object_mut().expect("an object").remove("nonce")),
            99,
            "nonce",
        );
        refused(
            &|c| c["pad"] = "x".repeat(ID_TOKEN_BYTES_MAX).into(),
            99,
            "cannot be read",
        );
        assert!(check("no token", &by, &attempt, 99).is_err());
    }

    #[test]
    fn the_page_asks_for_a_code_with_a_challenge() {
        let attempt = Attempt::new("ron", None, "http://127.0.0.1:1/callback");
        let page = provider("https://login.example/auth?tenant=a").page(&attempt, "openid groups");
        let challenge = b64::url(&hash::sha256(attempt.verifier.as_bytes()));
        let (state, nonce) = (&attempt.state, &attempt.nonce);
        assert_eq!(
            page,
            format!(
                "https://login.example/auth?tenant=a&response_type=code&client_id=ron&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback\
                 &scope=openid%20groups&state={state}&nonce={nonce}&code_challenge={challenge}&code_challenge_method=S256"
            )
        );
        assert!(!page.contains(&*attempt.verifier));
        let again = Attempt::new("ron", None, "http://127.0.0.1:1/callback");
        assert!(again.state != attempt.state && again.nonce != attempt.nonce);
        assert!(again.verifier != attempt.verifier);
    }

    #[test]
    fn what_a_provider_says_cannot_steer_a_terminal() {
        let body = json!({"error": "invalid_grant", "error_description": "no\u{1b}[2J\r\n"});
        let reply = Reply {
            status: 400,
            headers: Vec::new(),
            body: body.to_string().into_bytes(),
        };
        let why = document::<CodeAnswer>("https://a/token", &reply).err();
        assert_eq!(
            why.as_deref(),
            Some("https://a/token: status 400: invalid_grant no[2J")
        );
    }
}
