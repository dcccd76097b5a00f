//! `ron token`: gets, inspects, verifies and revokes tokens. `get` prints the token and nothing else.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::{Credential, PassportClient, TokenAsk};
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::Deadline;
use ron_proto::b64;
use ron_proto::passport::RevokeRequest;
use ron_service::config::parse_duration;

use crate::fleet;
use crate::layout::{ClientFile, Layout, read_json};

/// Longest wait for the issuer.
const WAIT: Duration = Duration::from_secs(5);

/// Get, inspect, verify and revoke tokens (bare: get).
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  TOKEN=$(ron token --audience svc-wallet --scope 'wallet:read wallet:transfer')\n  ron token --audience svc-wallet --ttl 5m --caveat account=acct:alice\n  ron token inspect $TOKEN"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    get: GetArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Get a token for the operator client.
    Get(GetArgs),
    /// Show what a token says, without checking it.
    Inspect {
        /// The token.
        token: String,
    },
    /// Ask the issuer what a token is worth now.
    Verify {
        /// The token.
        token: String,
        #[command(flatten)]
        place: Place,
    },
    /// Revoke a token by its id, or every token of an older epoch.
    Revoke(RevokeArgs),
}

#[derive(Args, Clone)]
struct Place {
    /// Data directory, as given to `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct GetArgs {
    #[command(flatten)]
    place: Place,
    /// Service the token is for, such as svc-wallet.
    #[arg(long, default_value = "svc-wallet")]
    audience: String,
    /// Scopes separated by spaces; all that the policy allows when absent.
    #[arg(long)]
    scope: Option<String>,
    /// Lifetime, such as 15m; at most 1h.
    #[arg(long)]
    ttl: Option<String>,
    /// A narrowing condition, key=value; may be repeated.
    #[arg(long = "caveat")]
    caveats: Vec<String>,
    /// Client whose credentials are in clients/<name>.json.
    #[arg(long, default_value = "operator")]
    client: String,
}

#[derive(Args)]
struct RevokeArgs {
    #[command(flatten)]
    place: Place,
    /// Id of the token (claim jti).
    #[arg(long, conflicts_with_all = ["epoch", "subject"])]
    jti: Option<String>,
    /// Every token of this holder issued so far.
    #[arg(long, conflicts_with = "epoch")]
    subject: Option<String>,
    /// New epoch: every token of an older one is void.
    #[arg(long)]
    epoch: Option<u64>,
    /// Why, for the record.
    #[arg(long)]
    reason: String,
}

/// Runs `ron token`.
pub fn run(args: TokenArgs) -> Result<(), String> {
    match args.command {
        None => get(&args.get),
        Some(Command::Get(args)) => get(&args),
        Some(Command::Inspect { token }) => inspect(&token),
        Some(Command::Verify { token, place }) => verify(&token, &place),
        Some(Command::Revoke(args)) => revoke(&args),
    }
}

fn issuer(place: &Place, credential: Credential) -> Result<(Layout, PassportClient), String> {
    let layout = Layout::new(place.data_dir.as_deref())?;
    let url = fleet::known_endpoints(&layout)?
        .of("svc-passport")?
        .api
        .clone();
    let http = Arc::new(HttpClient::new(ClientConfig::default()));
    Ok((layout, PassportClient::new(&url, credential, http)))
}

/// Asks for a token; also used by other subcommands.
pub fn fetch(
    layout: &Layout,
    http: &Arc<HttpClient>,
    client: &str,
    ask: &TokenAsk<'_>,
) -> Result<String, String> {
    let url = fleet::known_endpoints(layout)?
        .of("svc-passport")?
        .api
        .clone();
    let passport = PassportClient::new(&url, Credential::none(), http.clone());
    let file: ClientFile = read_json(&layout.client(client))?;
    passport
        .token(
            &file.client_id,
            &file.client_secret,
            ask,
            Deadline::within(WAIT),
        )
        .map(|answer| answer.access_token)
        .map_err(|e| format!("svc-passport at {url}: {e}"))
}

fn get(args: &GetArgs) -> Result<(), String> {
    let layout = Layout::new(args.place.data_dir.as_deref())?;
    let ttl = args.ttl.as_deref().map(parse_duration).transpose();
    let ttl = ttl.map_err(|e| format!("--ttl: {e}"))?;
    let ask = TokenAsk {
        audience: &args.audience,
        scope: args.scope.as_deref(),
        ttl_s: ttl.map(|t| t.as_secs()),
        caveats: &args.caveats,
    };
    let http = Arc::new(HttpClient::new(ClientConfig::default()));
    println!("{}", fetch(&layout, &http, &args.client, &ask)?);
    Ok(())
}

fn inspect(token: &str) -> Result<(), String> {
    let mut parts = token.trim().split('.');
    let mut part = |name: &str| -> Result<serde_json::Value, String> {
        let text = parts
            .next()
            .ok_or_else(|| format!("the token has no {name}"))?;
        let raw = b64::from_url(text).map_err(|_| format!("the {name} is not base64url"))?;
        serde_json::from_slice(&raw).map_err(|e| format!("the {name} is not JSON: {e}"))
    };
    let shown = serde_json::json!({ "header": part("header")?, "claims": part("payload")? });
    let text = serde_json::to_string_pretty(&shown).map_err(|e| e.to_string())?;
    println!("{text}");
    eprintln!("not verified: `ron token verify` asks the issuer");
    Ok(())
}

fn verify(token: &str, place: &Place) -> Result<(), String> {
    let (_, passport) = issuer(place, Credential::none())?;
    let verdict = passport
        .verify(token.trim(), Deadline::within(WAIT))
        .map_err(|e| format!("svc-passport: {e}"))?;
    let text = serde_json::to_string_pretty(&verdict).map_err(|e| e.to_string())?;
    println!("{text}");
    match verdict.reason {
        None => Ok(()),
        Some(reason) => Err(format!("the token is not valid: {reason}")),
    }
}

fn revoke(args: &RevokeArgs) -> Result<(), String> {
    let layout = Layout::new(args.place.data_dir.as_deref())?;
    let http = Arc::new(HttpClient::new(ClientConfig::default()));
    let ask = TokenAsk {
        audience: "svc-passport",
        scope: Some("passport:revoke"),
        ttl_s: Some(60),
        caveats: &[],
    };
    let token = fetch(&layout, &http, "operator", &ask)?;
    let (_, passport) = issuer(&args.place, Credential::bearer(&token))?;
    let request = RevokeRequest {
        jti: args.jti.clone(),
        subject_ref: args.subject.clone(),
        kid: None,
        epoch: args.epoch,
        reason: args.reason.clone(),
    };
    let answer = passport
        .revoke(&request, Deadline::within(WAIT))
        .map_err(|e| format!("svc-passport: {e}"))?;
    println!(
        "revoked; epoch {}, event {}",
        answer.current_epoch, answer.event
    );
    Ok(())
}
