//! `ron login` and `ron logout`: a person signs in at the company's OpenID provider, and the issuer exchanges the
//! provider's ID token for a passport. The passport is kept in a private file that later commands use.

mod kept;
mod provider;
mod redirect;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ron_client::{Credential, PassportClient, TokenAsk};
use ron_kernel::{Clock as _, Deadline, SystemClock};
use ron_proto::Timestamp;
use ron_proto::passport::is_protected_url;
use ron_service::config::{parse_duration, read_secret_file};

use self::provider::{Attempt, Provider};
use self::redirect::Redirect;
use crate::layout::Place;
use crate::token::{WAIT, seconds};
use crate::{browser, fleet, net};

pub use self::kept::{check_scope, credential};

/// The longest time that a person may take to sign in.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// Sign in at the company's OpenID provider; later commands act with the passport that you get.
#[derive(Args)]
#[command(
    after_help = "The issuer's policy has to trust the provider and to map its ID tokens to a client. At the provider, ron is a\nnative application (without a secret, or with --client-secret-file) whose redirect is http://127.0.0.1/callback, with any port.\n\nExamples:\n  ron client add staff --audience svc-wallet --scope wallet:read --issuer https://login.example.com --jwks-url https://login.example.com/jwks --issuer-audience ron --claim groups=finance   # once, by the operator\n  ron login --issuer https://login.example.com --openid-scope 'openid groups'\n  ron wallet balance acct:alice --asset ron\n  ron login --issuer https://login.example.com --audience ron-kms --no-browser\n  ron logout"
)]
pub struct LoginArgs {
    #[command(flatten)]
    place: Place,
    /// URL of the OpenID provider, as it names itself.
    #[arg(long)]
    issuer: String,
    /// Name of `ron` at the provider, which its ID tokens have as `aud`.
    #[arg(long, default_value = "ron")]
    client_id: String,
    /// File (0600) with the secret of `ron` at the provider, for a provider that gives native applications one.
    #[arg(long)]
    client_secret_file: Option<PathBuf>,
    /// Scopes to ask the provider for, separated by spaces; `openid` must be one of them.
    #[arg(long, default_value = "openid")]
    openid_scope: String,
    /// Service that the passport is for. Sign in once for each service.
    #[arg(long, default_value = "svc-wallet")]
    audience: String,
    /// Scopes of the passport, separated by spaces; all that the policy allows when absent.
    #[arg(long)]
    scope: Option<String>,
    /// Lifetime of the passport, such as 15m; at most 1h.
    #[arg(long)]
    ttl: Option<String>,
    /// Client of the issuer's policy to act as, where the ID token fits several.
    #[arg(long)]
    client: Option<String>,
    /// Base URL of svc-passport; that of the data directory when absent.
    #[arg(long)]
    url: Option<String>,
    /// Print the address of the provider's page and start no browser.
    #[arg(long)]
    no_browser: bool,
    /// Port of 127.0.0.1 to which the provider sends the browser back, for a provider that takes only a known one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Time to sign in, such as 5m; at most 1h.
    #[arg(long, default_value = "5m")]
    wait: String,
}

/// Forget the passport of `ron login`.
#[derive(Args)]
pub struct LogoutArgs {
    /// Service whose passports are forgotten; all of them when absent.
    #[arg(long)]
    audience: Option<String>,
}

pub fn login(args: &LoginArgs) -> Result<(), String> {
    let wait = parse_duration(&args.wait).map_err(|e| format!("--wait: {e}"))?;
    if wait.is_zero() || wait > LONGEST_WAIT {
        return Err("--wait: it must be between 1s and 1h".to_owned());
    }
    let ttl_s = seconds("--ttl", args.ttl.as_deref())?;
    if !args.openid_scope.split(' ').any(|scope| scope == "openid") {
        return Err(
            "--openid-scope: it must have openid, or the provider gives no ID token".into(),
        );
    }
    let secret = args.client_secret_file.as_deref();
    let secret = secret.map(read_secret_file).transpose()?;
    let secret = secret
        .as_ref()
        .map(|bytes| std::str::from_utf8(bytes.expose()));
    let secret = secret.transpose();
    let secret = secret.map_err(|_| "--client-secret-file: its content is no text")?;
    // Before a person signs in: the token could not be exchanged anyway.
    let issuer = issuer(args)?;
    let http = net::client();
    let provider = Provider::discover(&http, &args.issuer, Deadline::within(WAIT))?;
    let redirect = Redirect::listen(args.port)?;
    let attempt = Attempt::new(&args.client_id, secret, redirect.uri());
    let address = provider.page(&attempt, &args.openid_scope);
    println!("sign in at:\n{address}");
    let waiting = redirect.serve(provider.expected(&attempt))?;
    let page = (!args.no_browser).then(|| browser::open(&address));
    let outcome = waiting.outcome(Deadline::within(wait));
    if let Some(page) = page.flatten() {
        page.remove();
    }
    let code = outcome?;
    let id_token = provider.redeem(&http, &attempt, &code, now_s(), Deadline::within(WAIT))?;
    let ask = TokenAsk {
        audience: &args.audience,
        scope: args.scope.as_deref(),
        ttl_s,
        caveats: &[],
    };
    let answer = issuer
        .for_id_token(
            &id_token,
            args.client.as_deref(),
            &ask,
            Deadline::within(WAIT),
        )
        .map_err(|e| {
            format!("svc-passport: {e}; `ron client add --issuer` maps ID tokens to clients")
        })?;
    let kept = kept::keep(&args.audience, &answer.access_token)?;
    println!(
        "signed in as {} (client {}) for {} with {}, until {}\nkept in {}",
        kept.subject,
        kept.client,
        args.audience,
        answer.scope,
        Timestamp(kept.exp * 1000),
        kept.path.display()
    );
    Ok(())
}

pub fn logout(args: &LogoutArgs) -> Result<(), String> {
    let forgotten = kept::forget(args.audience.as_deref())?;
    if forgotten.is_empty() {
        println!("nobody is signed in");
    }
    for (audience, issuer) in forgotten {
        println!(
            "forgot the passport for {audience} of {issuer}; a copy of it would be good until it expires"
        );
    }
    Ok(())
}

/// Our issuer, to which the ID token goes.
fn issuer(args: &LoginArgs) -> Result<PassportClient, String> {
    let (url, http) = if let Some(url) = &args.url {
        (url.clone(), net::client())
    } else {
        let at = fleet::reach(&args.place.layout()?, "svc-passport")?;
        (at.url, at.http)
    };
    check_address(&url, net::insecure_loopback())?;
    Ok(PassportClient::new(&url, Credential::none(), http))
}

/// Refuses an address at which another party could read the ID token: a reader of it could exchange it for the passport.
fn check_address(url: &str, insecure_loopback: bool) -> Result<(), String> {
    let scheme = url.split(':').next().unwrap_or_default();
    let rest = &url[scheme.len()..];
    let is_safe = match &*scheme.to_ascii_lowercase() {
        "https" | "unix" | "http+unix" => true,
        "http" => insecure_loopback && is_protected_url(&format!("http{rest}")),
        _ => false,
    };
    is_safe.then_some(()).ok_or_else(|| {
        format!(
            "an ID token is sent over https or to a Unix socket alone, not to {url}: name the https address of svc-passport"
        )
    })
}

fn now_s() -> u64 {
    SystemClock.unix_ms() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_token_is_sent_to_protected_addresses_alone() {
        let check = |url: &str, insecure: bool, want: bool| {
            let got = check_address(url, insecure);
            assert_eq!(got.is_ok(), want, "{url} {insecure}: {got:?}");
        };
        for insecure in [false, true] {
            check("https://id.example", insecure, true);
            check("HTTPS://id.example", insecure, true);
            check("unix:/run/x.sock", insecure, true);
            check("http+unix://%2Frun%2Fx.sock", insecure, true);
            check("http://id.example", insecure, false);
            check("HTTP://id.example", insecure, false);
            check("http://127.0.0.1.id.example", insecure, false);
            check("ftp://127.0.0.1", insecure, false);
            check("id.example", insecure, false);
            check("", insecure, false);
            check("http://127.0.0.1:7450", insecure, insecure);
            check("Http://127.0.0.1:7450", insecure, insecure);
        }
    }
}
