//! `ron token`: gets, inspects, verifies, narrows and revokes tokens. `get` and `attenuate` print
//! the token and nothing else.

mod issued;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use ron_auth::narrow::{self, Narrow, SEPARATOR, attenuate};
use ron_auth::{Holder, dpop, hybrid};
use ron_client::{ClientProof, Credential, PassportClient, TokenAsk};
use ron_crypto::sign::Ed25519Key;
use ron_kernel::{Clock as _, Deadline, OsRandom, SystemClock};
use ron_proto::b64;
use ron_proto::passport::RevokeRequest;
use ron_service::config::parse_duration;

use crate::layout::{ClientFile, Layout, Place, read_json, write_atomic};
use crate::{fleet, login};

/// Timeout of a call to the issuer.
pub const WAIT: Duration = Duration::from_secs(5);

/// Get, inspect, verify, narrow and revoke tokens (bare: get).
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  TOKEN=$(ron token --audience svc-wallet --scope 'wallet:read wallet:transfer')\n  ron token --audience svc-wallet --ttl 5m --caveat account=acct:alice\n  ron token inspect $TOKEN\n  ron token attenuate $TOKEN --scope wallet:read --ttl 1m\n  ron token revoke --subject operator --reason 'left the team'"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: Option<Box<Command>>,
    #[command(flatten)]
    get: Box<GetArgs>,
}

#[derive(Subcommand)]
enum Command {
    /// Get a token for the operator client.
    Get(GetArgs),
    /// Show the content of a token without verifying it.
    Inspect {
        /// Token to show.
        token: String,
    },
    /// Ask the issuer whether a token is valid now.
    Verify {
        /// Token to verify.
        token: String,
        #[command(flatten)]
        place: Place,
    },
    /// Narrow a token: offline with its key if it is bound to one, otherwise by exchange at the
    /// issuer.
    Attenuate(AttenuateArgs),
    /// Revoke a token by its id, all tokens of a holder or of a key, or all older epochs.
    Revoke(RevokeArgs),
    /// List the tokens that were issued, newest first: to which client and for what, never a token.
    Issued(issued::IssuedArgs),
    /// Make a holder's key and print its thumbprint, for `get --key` and `attenuate --to`.
    Key {
        /// File to write the key to; must not exist.
        file: PathBuf,
    },
    /// Print a DPoP proof for one request with a bound token.
    Proof(ProofArgs),
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
    /// Narrowing condition, key=value; may be repeated.
    #[arg(long = "caveat")]
    caveats: Vec<String>,
    /// Client whose credentials are in clients/<name>.json.
    #[arg(long, default_value = "operator")]
    client: String,
    /// Bind the token to the key in this file (see `ron token key`).
    #[arg(long)]
    key: Option<PathBuf>,
}

#[derive(Args)]
struct AttenuateArgs {
    /// Token to narrow.
    token: String,
    #[command(flatten)]
    place: Place,
    /// Keep only these scopes, separated by spaces.
    #[arg(long)]
    scope: Option<String>,
    /// Expire after this time, such as 1m.
    #[arg(long)]
    ttl: Option<String>,
    /// Add a condition, key=value; may be repeated.
    #[arg(long = "caveat")]
    caveats: Vec<String>,
    /// Key that the token is bound to: narrows offline, without the issuer.
    #[arg(long)]
    key: Option<PathBuf>,
    /// Bind the result to the key with this thumbprint (with --key).
    #[arg(long, requires = "key", allow_hyphen_values = true)]
    to: Option<String>,
    /// Client that exchanges the token (without --key).
    #[arg(long, default_value = "operator")]
    client: String,
}

#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["jti", "subject", "kid", "epoch", "token"])))]
struct RevokeArgs {
    #[command(flatten)]
    place: Place,
    /// Id of the token (claim jti).
    #[arg(long)]
    jti: Option<String>,
    /// Revoke all tokens of this holder issued so far.
    #[arg(long)]
    subject: Option<String>,
    /// Revoke all tokens signed by the key with this thumbprint.
    #[arg(long, allow_hyphen_values = true)]
    kid: Option<String>,
    /// New epoch: tokens of older epochs become void.
    #[arg(long)]
    epoch: Option<u64>,
    /// Token to revoke.
    #[arg(long)]
    token: Option<String>,
    /// Reason, for the record.
    #[arg(long)]
    reason: String,
}

#[derive(Args)]
struct ProofArgs {
    /// Token of the request.
    token: String,
    /// Key that the token is bound to.
    #[arg(long)]
    key: PathBuf,
    /// HTTP method of the request.
    #[arg(long, default_value = "GET")]
    method: String,
    /// URL of the request.
    #[arg(long)]
    url: String,
}

pub fn run(args: TokenArgs) -> Result<(), String> {
    match args.command.map(|command| *command) {
        None => get(&args.get),
        Some(Command::Get(args)) => get(&args),
        Some(Command::Inspect { token }) => inspect(token.trim()),
        Some(Command::Verify { token, place }) => verify(&token, &place),
        Some(Command::Attenuate(args)) => narrowed(&args),
        Some(Command::Revoke(args)) => revoke(&args),
        Some(Command::Issued(args)) => issued::run(&args),
        Some(Command::Key { file }) => new_key(&file),
        Some(Command::Proof(args)) => proof(&args),
    }
}

fn issuer(place: &Place, credential: Credential) -> Result<(Layout, PassportClient), String> {
    let layout = place.layout()?;
    let at = fleet::reach(&layout, "svc-passport")?;
    Ok((layout, PassportClient::new(&at.url, credential, at.http)))
}

/// The credential of other subcommands: of the client that is named, else of the person who is signed in, else of
/// the operator.
pub fn credential(
    layout: &Layout,
    client: Option<&str>,
    ask: &TokenAsk<'_>,
) -> Result<Credential, String> {
    if client.is_none()
        && let Some(kept) = login::credential(layout, ask.audience)?
    {
        return Ok(kept);
    }
    let token = fetch(layout, client.unwrap_or("operator"), ask)?;
    Ok(Credential::bearer(&token))
}

/// Gets a token; other subcommands use it too.
pub fn fetch(layout: &Layout, client: &str, ask: &TokenAsk<'_>) -> Result<String, String> {
    fetch_bound(layout, client, ask, None)
}

/// The same, bound to a holder's key.
fn fetch_bound(
    layout: &Layout,
    client: &str,
    ask: &TokenAsk<'_>,
    holder: Option<&Holder>,
) -> Result<String, String> {
    let at = fleet::reach(layout, "svc-passport")?;
    let passport = PassportClient::new(&at.url, Credential::none(), at.http);
    let file: ClientFile = read_json(&layout.client(client))?;
    let endpoint = format!("{}/oauth2/token", at.public_url);
    let proof = holder.map(|h| made_proof(h, "POST", &endpoint, None));
    let secret = ClientProof::Secret(&file.client_secret);
    passport
        .token_with(
            &file.client_id,
            secret,
            ask,
            proof.as_deref(),
            Deadline::within(WAIT),
        )
        .map(|answer| answer.access_token)
        .map_err(|e| format!("svc-passport at {}: {e}", at.url))
}

fn get(args: &GetArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    let ask = TokenAsk {
        audience: &args.audience,
        scope: args.scope.as_deref(),
        ttl_s: seconds("--ttl", args.ttl.as_deref())?,
        caveats: &args.caveats,
    };
    let holder = args.key.as_deref().map(read_key).transpose()?;
    println!(
        "{}",
        fetch_bound(&layout, &args.client, &ask, holder.as_ref())?
    );
    Ok(())
}

/// The whole seconds of a lifetime in an option.
pub fn seconds(option: &str, ttl: Option<&str>) -> Result<Option<u64>, String> {
    let parsed = ttl.map(parse_duration).transpose();
    let ttl = parsed.map_err(|e| format!("{option}: {e}"))?;
    Ok(ttl.map(|t| t.as_secs()))
}

fn inspect(token: &str) -> Result<(), String> {
    let mut shown = Vec::new();
    for (at, jws) in token.split(SEPARATOR).enumerate() {
        let refuse =
            |_| "this is not a token: neither three parts in base64url nor a hybrid".to_owned();
        let json = |raw: &[u8], name: &str| -> Result<serde_json::Value, String> {
            serde_json::from_slice(raw).map_err(|e| format!("the {name} is not JSON: {e}"))
        };
        let headers = hybrid::headers(jws).map_err(refuse)?;
        let headers = headers.iter().map(|raw| json(raw, "header"));
        let mut headers = headers.collect::<Result<Vec<_>, _>>()?;
        // A hybrid has one header for each of its signatures.
        let (name, header) = match headers.len() {
            1 => ("header", headers.remove(0)),
            _ => ("headers", headers.into()),
        };
        let payload = json(&hybrid::payload(jws).map_err(refuse)?, "payload")?;
        let what = if at == 0 { "claims" } else { "narrowed" };
        shown.push(serde_json::json!({ name: header, what: payload }));
    }
    // A plain token is shown as one object; a narrowed token is a list, the issuer's part first.
    let value = match <[_; 1]>::try_from(shown) {
        Ok([only]) => only,
        Err(many) => many.into(),
    };
    println!("{}", pretty(&value)?);
    eprintln!("not verified: `ron token verify` asks the issuer");
    Ok(())
}

fn pretty(value: &impl serde::Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|e| e.to_string())
}

fn verify(token: &str, place: &Place) -> Result<(), String> {
    let (_, passport) = issuer(place, Credential::none())?;
    let verdict = passport
        .verify(token.trim(), Deadline::within(WAIT))
        .map_err(|e| format!("svc-passport: {e}"))?;
    println!("{}", pretty(&verdict)?);
    match verdict.reason {
        None => Ok(()),
        Some(reason) => Err(format!("the token is not valid: {reason}")),
    }
}

fn narrowed(args: &AttenuateArgs) -> Result<(), String> {
    let token = args.token.trim();
    let ttl_s = seconds("--ttl", args.ttl.as_deref())?;
    let narrowed = match &args.key {
        Some(key) => narrow_offline(args, &read_key(key)?, token, ttl_s)?,
        None => narrow_online(args, token, ttl_s)?,
    };
    println!("{narrowed}");
    Ok(())
}

fn narrow_offline(
    args: &AttenuateArgs,
    holder: &Holder,
    token: &str,
    ttl_s: Option<u64>,
) -> Result<String, String> {
    let now_s = unix_s();
    let caveats = args.caveats.iter().map(|c| c.parse());
    let narrow = Narrow {
        scope: args.scope.clone(),
        caveats: caveats
            .collect::<Result<_, _>>()
            .map_err(|e: ron_proto::CaveatError| format!("--caveat: {e}"))?,
        exp: ttl_s.map(|ttl| now_s + ttl),
        jkt: args.to.clone(),
    };
    Ok(attenuate(token, holder, &narrow, now_s))
}

fn narrow_online(args: &AttenuateArgs, token: &str, ttl_s: Option<u64>) -> Result<String, String> {
    let (layout, passport) = issuer(&args.place, Credential::none())?;
    let file: ClientFile = read_json(&layout.client(&args.client))?;
    let ask = TokenAsk {
        audience: "",
        scope: args.scope.as_deref(),
        ttl_s,
        caveats: &args.caveats,
    };
    let secret = ClientProof::Secret(&file.client_secret);
    passport
        .exchange(
            &file.client_id,
            secret,
            token,
            &ask,
            None,
            Deadline::within(WAIT),
        )
        .map(|answer| answer.access_token)
        .map_err(|e| format!("svc-passport: {e}"))
}

/// The issuer, as its administrator calls it.
pub fn administered(layout: &Layout) -> Result<PassportClient, String> {
    let ask = TokenAsk {
        audience: "svc-passport",
        scope: Some("passport:admin"),
        ttl_s: Some(60),
        caveats: &[],
    };
    let credential = credential(layout, None, &ask)?;
    let at = fleet::reach(layout, "svc-passport")?;
    Ok(PassportClient::new(&at.url, credential, at.http))
}

fn revoke(args: &RevokeArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    let passport = administered(&layout)?;
    let jti = match &args.token {
        Some(token) => Some(jti_of(token.trim())?),
        None => args.jti.clone(),
    };
    let request = RevokeRequest {
        jti,
        subject_ref: args.subject.clone(),
        kid: args.kid.clone(),
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

fn jti_of(token: &str) -> Result<String, String> {
    let refuse = || "the token has no jti that can be read".to_owned();
    let raw = hybrid::payload(narrow::root(token)).map_err(|_| refuse())?;
    let claims: serde_json::Value = serde_json::from_slice(&raw).map_err(|_| refuse())?;
    claims["jti"].as_str().map(str::to_owned).ok_or_else(refuse)
}

fn new_key(file: &Path) -> Result<(), String> {
    if file.exists() {
        return Err(format!("{} is there already", file.display()));
    }
    let seed: [u8; 32] = OsRandom.bytes();
    write_atomic(file, format!("{}\n", b64::url(&seed)).as_bytes(), 0o600)?;
    println!("{}", Holder::new(Ed25519Key::from_seed(&seed)).thumbprint());
    Ok(())
}

fn read_key(file: &Path) -> Result<Holder, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let name = file.display();
    let meta = std::fs::metadata(file)
        .map_err(|e| format!("key {name}: {e}; make one with `ron token key`"))?;
    if meta.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "key {name} can be read by others; run: chmod 600 {name}"
        ));
    }
    let text = std::fs::read_to_string(file).map_err(|e| format!("key {name}: {e}"))?;
    let seed = b64::from_url_array::<32>(text.trim())
        .map_err(|_| format!("key {name} is not what `ron token key` writes"))?;
    Ok(Holder::new(Ed25519Key::from_seed(&seed)))
}

fn proof(args: &ProofArgs) -> Result<(), String> {
    let holder = read_key(&args.key)?;
    let method = args.method.to_ascii_uppercase();
    println!(
        "{}",
        made_proof(&holder, &method, &args.url, Some(args.token.trim()))
    );
    Ok(())
}

fn made_proof(holder: &Holder, method: &str, url: &str, token: Option<&str>) -> String {
    let jti = b64::url(&OsRandom.bytes::<16>());
    dpop::make_proof(holder, method, url, token, None, unix_s(), &jti)
}

fn unix_s() -> u64 {
    SystemClock.unix_ms() / 1000
}
