//! `ron init`: makes a data directory that `ron up` and the separate binaries can run from.
//!
//! Idempotent: existing files are kept, missing ones are made, and the last step renames
//! `bootstrap.json` into place. The KMS and the ledger run during it: the KMS makes the keys and
//! signs the policies, the ledger makes the key of its log. Both are called over their Unix
//! sockets, as any operator would.

mod host;
mod policies;
mod templates;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ron_auth::{policy_note, revocation_log, service_token};
use ron_client::{Credential, KmsClient, LedgerClient};
use ron_files::Dir;
use ron_kernel::{Deadline, OsRandom};
use ron_proto::kms::{CreateKey, JwtPolicy, KeyDoc, NotePolicy, PayloadPolicy};
use ron_proto::passport::TTL_S_MAX;
use ron_proto::values::{Alg, OpId};
use ron_service::config::BaseUrl;
use ron_service::log_host::note_key;
use ron_tlog::note::VerifierKey;

use ron_services::NAMES;

use crate::fleet;
use crate::layout::{
    BASE_PORT, Bootstrap, ClientFile, Layout, api_port, base_port, make_dir, read_format,
    read_json, write_atomic, write_json,
};
use crate::net;
use crate::{change, verifiers};

use self::host::{HostArgs, PublicHost};

/// Calls between services: caller, callee, scopes, KMS key prefixes.
pub const CALLS: [(&str, &str, &str, &str); 15] = [
    (
        "svc-passport",
        "ron-kms",
        "kms:sign,kms:read",
        "ron/issuer/,ron/note/",
    ),
    ("svc-wallet", "ron-ledger", "ledger:commit,ledger:read", ""),
    (
        "svc-rewarder",
        "ron-ledger",
        "ledger:settle,ledger:read",
        "",
    ),
    (
        "svc-rewarder",
        "ron-kms",
        "kms:sign,kms:read",
        "ron/manifest/",
    ),
    (
        "svc-admin",
        "svc-rewarder",
        "rewarder:read,admin:operate",
        "",
    ),
    ("svc-admin", "ron-kms", "kms:read,admin:operate", ""),
    (
        "svc-admin",
        "svc-passport",
        "admin:operate,passport:introspect",
        "",
    ),
    ("svc-admin", "ron-ledger", "admin:operate", ""),
    ("svc-admin", "svc-wallet", "admin:operate", ""),
    ("svc-admin", "svc-admin", "admin:operate", ""),
    // Every service follows the revocations of the issuer, and so does the issuer itself.
    ("ron-kms", "svc-passport", "passport:introspect", ""),
    ("svc-passport", "svc-passport", "passport:introspect", ""),
    ("ron-ledger", "svc-passport", "passport:introspect", ""),
    ("svc-wallet", "svc-passport", "passport:introspect", ""),
    ("svc-rewarder", "svc-passport", "passport:introspect", ""),
];

/// Scopes of the operator's own service token at the KMS.
const OPERATOR_SCOPES: &str =
    "kms:create,kms:read,kms:sign,kms:rotate,kms:verify,kms:wrap,kms:unwrap,kms:audit,kms:admin";
const WAIT: Duration = Duration::from_secs(10);

/// Make a data directory: configuration files, tokens, keys, signed policies.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron init\n  ron init --data-dir /srv/ron --base-port 7440\n  ron init --issuer https://id.example.org\n  ron init --host ron.example.org --tls-cert ron.pem --tls-key ron.key"
)]
pub struct InitArgs {
    /// Directory to make; `ron` under the user's state directory when absent.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// API port of the first service in the configuration files; 7440 when absent. The others
    /// follow in steps of ten; health ports are five above.
    #[arg(long, value_parser = base_port)]
    base_port: Option<u16>,
    /// Public name of the issuer, the `iss` of its tokens and the URL by which clients reach it, as
    /// https://id.example.org; when absent its port at the name of --host, or at http://127.0.0.1.
    #[arg(long, value_parser = issuer_name)]
    issuer: Option<BaseUrl>,
    #[command(flatten)]
    host: HostArgs,
}

/// What a new data directory is to have.
#[derive(Default)]
pub struct Wanted {
    /// Without it, or with 0, the default one.
    pub base_port: Option<u16>,
    /// The public name of the issuer.
    issuer: Option<String>,
    host: Option<PublicHost>,
}

impl Wanted {
    pub fn ports(base_port: Option<u16>) -> Self {
        Self {
            base_port,
            ..Self::default()
        }
    }
}

/// Parses `--issuer`. The name is in the payload policy of the issuer's key: another one needs `ron issuer move`.
pub fn issuer_name(text: &str) -> Result<BaseUrl, String> {
    let name: BaseUrl = text.parse().map_err(|why| format!("{text}, {why}"))?;
    let Some(rest) = name.0.strip_prefix("http://") else {
        return Ok(name);
    };
    let host = rest.split('/').next().unwrap_or_default();
    let host = match host.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((v6, _)) => v6,
        None => host.split(':').next().unwrap_or_default(),
    };
    let on_this_host = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if on_this_host || host == "localhost" {
        return Ok(name);
    }
    Err(format!(
        "over plain http, every host between the issuer and a client reads its secret and its tokens, and can pose as the issuer: use \
         https://{rest} (tls.cert_path, or a proxy that ends TLS); plain http is for a loopback address"
    ))
}

pub fn run(args: &InitArgs) -> Result<(), String> {
    let layout = Layout::new(args.data_dir.as_deref())?;
    let wanted = Wanted {
        base_port: args.base_port,
        issuer: args.issuer.as_ref().map(|BaseUrl(url)| url.clone()),
        host: args.host.public()?,
    };
    let made = ensure(&layout, &wanted)?;
    let base_port = args.base_port.filter(|port| *port != 0);
    if let Some(port) = base_port {
        has_ports(&layout, port)?;
    }
    let base_port = base_port.or(begun_with(&layout)?).unwrap_or(BASE_PORT);
    if let Some(host) = &wanted.host {
        host.is_in(&layout, base_port)?;
    }
    let root = layout.root.display();
    if !made {
        println!("already complete: {root}");
        return Ok(());
    }
    println!("made {root}\n{}", keep_safe(&layout));
    if let Some(host) = &wanted.host {
        println!("{}", host.shown(base_port));
    }
    println!(
        "next:\n  ron doctor --data-dir {root}\n  ron up --data-dir {root}\n  ron token --data-dir {root} --audience svc-wallet"
    );
    Ok(())
}

/// The files of a new data directory of which its operator should have copies.
pub fn keep_safe(layout: &Layout) -> String {
    let seal = layout.data("ron-kms").join("seal.key");
    format!(
        "keep copies in another place:\n  {}   secret: without it no backup of the keys can be opened\n  {}   public: verifies the logs of a backup",
        seal.display(),
        verifiers::path(layout).display()
    )
}

/// Existing configuration files are kept, so a requested port that they do not have is an error.
fn has_ports(layout: &Layout, base_port: u16) -> Result<(), String> {
    for service in NAMES {
        let config = fleet::load(layout, service, &[])?;
        let (is, wanted) = (
            config.chassis().bind_addr.port(),
            api_port(base_port, service),
        );
        if is != wanted {
            return Err(format!(
                "--base-port {base_port} was not applied: {} is set up already, with {service} on port {is} and \
                 not on {wanted}. `ron up --base-port {base_port}` takes other ports for one run; to change them for \
                 good, edit bind_addr and health_addr in each {}/<service>/config.toml",
                layout.root.display(),
                layout.root.display()
            ));
        }
    }
    Ok(())
}

/// The base port of an interrupted `ron init`, read from the KMS's configuration. It has to be
/// kept: the payload policies of the keys made so far contain it.
fn begun_with(layout: &Layout) -> Result<Option<u16>, String> {
    if !layout.config("ron-kms").exists() {
        return Ok(None);
    }
    let config = fleet::load(layout, "ron-kms", &[])?;
    Ok(Some(config.chassis().bind_addr.port()))
}

/// Makes what is missing; returns false if nothing was missing.
pub fn ensure(layout: &Layout, wanted: &Wanted) -> Result<bool, String> {
    if let Some(why) = ron_service::config::writer_fault(&layout.root) {
        return Err(why);
    }
    if layout.bootstrap().exists() {
        let format = |known: &Bootstrap| known.format;
        let known = read_format(&layout.bootstrap(), FORMAT, format)?;
        let other = wanted.issuer.as_ref();
        if let Some(other) = other.filter(|other| **other != known.issuer) {
            return Err(format!(
                "--issuer {other} was not applied: {} is set up already, and its issuer was made as {}. \
                 `ron issuer move` gives it another name",
                layout.root.display(),
                known.issuer
            ));
        }
        all_tokens_there(layout)?;
        return Ok(false);
    }
    make_dirs(layout)?;
    let port = wanted.base_port.filter(|port| *port != 0);
    let place = templates::Place {
        layout,
        // The port of an interrupted run wins over the argument: the policies of its keys contain it.
        base_port: begun_with(layout)?.or(port).unwrap_or(BASE_PORT),
        host: wanted.host.as_ref(),
    };
    let hashes = tokens(layout)?;
    let secret = operator_client(layout)?;
    let log_keeper = |service: &str, bootstrap: Option<&Bootstrap>| {
        templates::log_keeper(&place, service, bootstrap, &hashes)
    };
    for service in ["ron-kms", "ron-ledger"] {
        write_if_absent(layout, service, &log_keeper(service, None))?;
    }
    let issuer = wanted.issuer.clone();
    let issuer = issuer.unwrap_or_else(|| place.url("svc-passport"));
    let logs = LogKeys {
        ledger: during(layout, "ron-ledger", ledger_vkey)?,
        revocations: revocations_vkey(layout, &issuer)?,
    };
    let bootstrap = during(layout, "ron-kms", |url| {
        keys_and_policies(layout, url, &issuer, logs)
    })?;
    for service in NAMES
        .iter()
        .filter(|s| !["ron-kms", "ron-ledger"].contains(s))
    {
        let text = templates::service(&place, service, &bootstrap, &hashes, &secret);
        write_if_absent(layout, service, &text)?;
    }
    for service in ["ron-kms", "ron-ledger"] {
        let with_issuer = log_keeper(service, Some(&bootstrap));
        complete(layout, service, &log_keeper(service, None), &with_issuer)?;
    }
    verifiers::keep(layout, &bootstrap)?;
    // Last: the presence of this file means that everything above is complete.
    write_json(&layout.bootstrap(), &bootstrap, 0o600)?;
    Ok(true)
}

/// Refuses a directory without a token of [`CALLS`]. An earlier version made fewer; the callee's
/// configuration, which is kept, does not list the caller then, so that a new token alone helps
/// nothing.
fn all_tokens_there(layout: &Layout) -> Result<(), String> {
    let mut calls = CALLS.into_iter();
    let missing = calls.find(|(caller, callee, ..)| !layout.token(caller, callee).exists());
    let Some((caller, callee, scopes, _)) = missing else {
        return Ok(());
    };
    Err(format!(
        "{} is missing, by which {caller} calls {callee}: an earlier version made {}, or the file was removed. Restore the \
         file; or put a new service token there, ron_{caller}_ and 43 characters of base64url, mode 0600, and list its SHA-256 \
         in auth.principals of {} with the scopes {scopes}; or make a new data directory with `ron init --data-dir`",
        layout.token(caller, callee).display(),
        layout.root.display(),
        layout.config(callee).display(),
    ))
}

/// Starts a service, runs `ask` with its URL, and stops it.
pub fn during<T>(
    layout: &Layout,
    name: &'static str,
    ask: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, String> {
    let service = fleet::Temporary::start(layout, name)?;
    let answer = ask(&service.url);
    let stopped = service.stop();
    let answer = answer?;
    stopped?;
    Ok(answer)
}

/// Verifier key lines of logs whose services hold the keys themselves.
struct LogKeys {
    ledger: String,
    revocations: String,
}

/// Makes the key of the revocation log, so that it can be pinned before the issuer's first start.
fn revocations_vkey(layout: &Layout, issuer: &str) -> Result<String, String> {
    let origin = revocation_log::origin(issuer);
    let data = layout.data("svc-passport");
    let signer = note_key::load_or_make(&Dir::os(&data), &origin, &OsRandom, true)?;
    Ok(signer.verifier().to_string())
}

fn ledger_vkey(url: &str) -> Result<String, String> {
    let http = net::client();
    let vkey = LedgerClient::new(url, Credential::none(), http)
        .log_vkey(Deadline::within(WAIT))
        .map_err(|e| format!("ron-ledger: {e}"))?;
    Ok(vkey.trim().to_owned())
}

/// Format of `bootstrap.json`.
const FORMAT: u32 = 1;

/// SHA-256 of a service token, by caller and callee.
pub type TokenHashes = Vec<(&'static str, &'static str, String)>;

/// The directories of a data directory.
pub fn make_dirs(layout: &Layout) -> Result<(), String> {
    make_dir(&layout.root)?;
    for service in NAMES {
        make_dir(&layout.service(service))?;
        make_dir(&layout.data(service))?;
    }
    for dir in ["clients", "policy", "run"] {
        make_dir(&layout.root.join(dir))?;
    }
    for service in NAMES {
        make_dir(&layout.root.join("run").join(service))?;
    }
    Ok(())
}

fn tokens(layout: &Layout) -> Result<TokenHashes, String> {
    let mut hashes = Vec::new();
    for (caller, callee, _, _) in CALLS {
        hashes.push((
            caller,
            callee,
            token(&layout.token(caller, callee), caller)?,
        ));
    }
    hashes.push((
        "operator",
        "ron-kms",
        token(&layout.operator_token(), "operator")?,
    ));
    Ok(hashes)
}

/// The hash of the token in a file; makes the token if there is none.
fn token(path: &std::path::Path, name: &str) -> Result<String, String> {
    if !path.exists() {
        let text = service_token::generate(name, &OsRandom.bytes());
        write_atomic(path, format!("{text}\n").as_bytes(), 0o600)?;
    }
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    Ok(service_token::hash(text.trim()))
}

/// The hash of the operator's client secret; makes the secret if there is none.
fn operator_client(layout: &Layout) -> Result<String, String> {
    let path = layout.client("operator");
    if !path.exists() {
        write_json(&path, &ClientFile::new("operator"), 0o600)?;
    }
    let file: ClientFile = read_json(&path)?;
    Ok(service_token::hash(&file.client_secret))
}

fn write_if_absent(layout: &Layout, service: &str, text: &str) -> Result<(), String> {
    let path = layout.config(service);
    if path.exists() {
        return Ok(());
    }
    write_atomic(&path, text.as_bytes(), 0o600)
}

/// Replaces the first, incomplete configuration of a service by the complete one; a file with any
/// other content is kept.
fn complete(layout: &Layout, service: &str, first: &str, whole: &str) -> Result<(), String> {
    let path = layout.config(service);
    let there = std::fs::read_to_string(&path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if there != first {
        return Ok(());
    }
    write_atomic(&path, whole.as_bytes(), 0o600)
}

fn keys_and_policies(
    layout: &Layout,
    kms_url: &str,
    issuer: &str,
    logs: LogKeys,
) -> Result<Bootstrap, String> {
    let http = net::client();
    let kms = KmsClient::new(
        kms_url,
        Credential::from_file(&layout.operator_token())?,
        http,
    );
    let jwt = PayloadPolicy::Jwt(JwtPolicy {
        typ: vec!["at+jwt".to_owned(), "statuslist+jwt".to_owned()],
        iss: issuer.to_owned(),
        aud: Vec::new(),
        issuer_policy: true,
        max_ttl_s: TTL_S_MAX,
    });
    let note = PayloadPolicy::Note(NotePolicy {
        origin: policy_note::origin(issuer),
    });
    let issuer_key = key(&kms, "issuer", 1, jwt)?;
    if let PayloadPolicy::Jwt(policy) = &issuer_key.payload
        && policy.iss != issuer
    {
        return Err(format!(
            "an earlier `ron init` of this directory has begun with the issuer {}: give it again with --issuer",
            policy.iss
        ));
    }
    let policy_key = key(&kms, "policy", 2, PayloadPolicy::Digest)?;
    let manifest_key = key(&kms, "manifest", 3, PayloadPolicy::Digest)?;
    let note_key = key(&kms, "note", 4, note)?;
    for (kind, policy) in policies::all()? {
        let path = layout.policy().join(format!("{kind}.json"));
        if !layout.policy().join(format!("{kind}.json.sig")).exists() {
            let (bytes, sig) = change::sign(&kms, &policy_key.key, kind, &policy)?;
            change::write_signed(&path, &bytes, &sig)?;
        }
    }
    let audit_vkey = kms
        .audit_vkey(Deadline::within(WAIT))
        .map_err(|e| format!("ron-kms: {e}"))?;
    Ok(Bootstrap {
        format: FORMAT,
        issuer: issuer.to_owned(),
        issuer_key: issuer_key.key.to_string(),
        policy_key: policy_key.key.to_string(),
        policy_public_key: public(&policy_key)?,
        manifest_key: manifest_key.key.to_string(),
        manifest_public_key: public(&manifest_key)?,
        note_vkey: note_vkey(&note_key, issuer)?,
        note_key: note_key.key.to_string(),
        audit_vkey: audit_vkey.trim().to_owned(),
        ledger_vkey: logs.ledger,
        revocations_vkey: logs.revocations,
    })
}

/// The system's key for a purpose: the existing one, or a new one.
fn key(
    kms: &KmsClient,
    purpose: &str,
    number: u128,
    payload: PayloadPolicy,
) -> Result<KeyDoc, String> {
    let fail = |e: ron_client::ClientError| format!("ron-kms: {e}");
    let listed = kms.keys(None, Deadline::within(WAIT)).map_err(fail)?;
    let mut of_purpose = listed.keys.iter();
    if let Some(found) = of_purpose.find(|k| k.key.purpose.as_str() == purpose) {
        return kms.key(&found.key, Deadline::within(WAIT)).map_err(fail);
    }
    let bad = |e: ron_proto::ValueError| e.to_string();
    let request = CreateKey {
        tenant: "ron".parse().map_err(bad)?,
        purpose: purpose.parse().map_err(bad)?,
        alg: Alg::Ed25519,
        payload,
        exportable: false,
        derived: false,
        rotate_every: None,
        backend: None,
        op_id: OpId(uuid::Uuid::from_u128(
            0x726f_6e00_0000_7000_8000_0000_0000_0000 + number,
        )),
        token: None,
    };
    kms.create_key(&request, Deadline::within(WAIT))
        .map_err(fail)
}

/// The verifier key line for the head of the key that signs the issuer's notes.
fn note_vkey(doc: &KeyDoc, issuer: &str) -> Result<String, String> {
    let public = doc.head_version().map(|head| head.public_key.as_slice());
    let public = public.and_then(|raw| <&[u8; 32]>::try_from(raw).ok());
    let public = public.ok_or("ron-kms shows a note key that is no Ed25519 key")?;
    let vkey = VerifierKey::ed25519(&policy_note::origin(issuer), public);
    vkey.map(|vkey| vkey.to_string()).map_err(|e| e.to_string())
}

/// The pin of a key's head: its name as signatures give it, and its public key.
fn public(doc: &KeyDoc) -> Result<String, String> {
    let head = doc
        .head_version()
        .ok_or("ron-kms shows a key without its head")?;
    Ok(format!("{}#v{}={}", doc.key, doc.head, head.public_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_name_of_an_issuer_is_one_with_tls() {
        for good in [
            "https://id.example.org",
            "https://id.example.org:8443/ron",
            "http://127.0.0.1:7450",
            "http://127.8.0.1",
            "http://[::1]:7450/ron",
            "http://localhost:7450",
        ] {
            assert!(issuer_name(good).is_ok(), "{good}");
        }
        for bad in [
            "http://id.example.org",
            "http://10.0.0.7:7450",
            "http://[fe80::1]:7450",
            "http://localhost.example.org",
            "http://127.0.0.1.example.org/x",
        ] {
            let why = issuer_name(bad).unwrap_err();
            let hint = bad.replace("http://", "https://");
            assert!(why.contains(&format!("use {hint} ")), "{why}");
        }
        assert!(
            issuer_name("id.example.org")
                .unwrap_err()
                .contains("not a URL")
        );
    }

    #[test]
    fn calls_and_policies_name_services_of_the_list() {
        for (caller, callee, scopes, _) in CALLS {
            assert!(
                NAMES.contains(&caller) && NAMES.contains(&callee),
                "{caller}, {callee}"
            );
            for scope in scopes.split(',') {
                assert!(ron_proto::scope::ALL.contains(&scope), "{scope}");
            }
        }
        // Every service is an audience for which the operator gets tokens.
        let [(_, issuer), ..] = policies::all().expect("the policies are JSON");
        let audiences = issuer["clients"][0]["audiences"]
            .as_array()
            .expect("a list");
        let named: Vec<&str> = audiences
            .iter()
            .filter_map(|a| a["audience"].as_str())
            .collect();
        assert_eq!(named, NAMES);
    }
}
