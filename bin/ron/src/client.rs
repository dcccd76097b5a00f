//! `ron client`: OAuth clients of the issuer: their credentials in svc-passport's configuration, and
//! their rules in the signed issuer policy. The issuer keeps a hash of a secret and the client the
//! secret; no other copy exists.

mod blocks;
mod external;
mod refused;
mod rotate;

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use ron_auth::{client_secret, service_token};
use ron_http::certificate_print;
use ron_proto::Tenant;
use ron_proto::passport::{AudienceRule, ClientRule, IssuerPolicy, TTL_S_DEFAULT};
use svc_passport::explain::{ConfiguredClient, Decider};

use crate::audience::words;
use crate::change;
use crate::fleet;
use crate::layout::{ClientFile, Layout, Place, make_dir, write_atomic, write_json};
use crate::token::seconds;

/// Add, list, show and remove OAuth clients of the issuer, and make their secrets.
#[derive(Args)]
pub struct ClientArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add a client, or another audience to one that is there: credential, policy rule, signature,
    /// reload.
    Add(Box<AddArgs>),
    /// List the clients: how they prove themselves, and the audiences they get tokens for.
    List(Place),
    /// Show a client's policy rule, and how it proves itself.
    Show(NameArgs),
    /// Remove a client, or its rule for one audience. Its tokens stay valid until they expire or are
    /// revoked.
    Remove(RemoveArgs),
    /// Replace a client's secret: the new one is in clients/<name>.json of the data directory, the old
    /// one stays good for a time.
    RotateSecret(rotate::RotateArgs),
    /// List the clients whose credentials were refused since the issuer's start, by reason.
    Refused(refused::RefusedArgs),
    /// Make a new secret for a client: the secret goes to a file, its hash to standard output.
    Secret(SecretArgs),
}

#[derive(Args)]
struct NameArgs {
    /// Name of the client (its client_id).
    name: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
#[command(group(ArgGroup::new("proof").args(["secret", "key", "cert", "issuer"])))]
struct AddArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Service that it gets tokens for: one of this installation, or one of `ron audience list`.
    #[arg(long)]
    audience: String,
    /// A scope that its tokens may have there; may be repeated, or hold several separated by spaces.
    #[arg(long = "scope")]
    scopes: Vec<String>,
    /// Make a secret, in clients/<name>.json of the data directory with mode 0600.
    #[arg(long)]
    secret: bool,
    /// File with the public keys of a client that signs assertions: a JWK or a JWK set.
    #[arg(long)]
    key: Option<PathBuf>,
    /// File with the client's certificate (PEM), for a service with tls.client_ca_path.
    #[arg(long)]
    cert: Option<PathBuf>,
    /// Another issuer whose tokens are its credential: the `iss` of these tokens, or a trust domain as
    /// spiffe://example.org.
    #[arg(long)]
    issuer: Option<String>,
    #[command(flatten)]
    external: external::ExternalArgs,
    /// Tenant of its tokens; `default` when absent.
    #[arg(long)]
    tenant: Option<Tenant>,
    /// Holder that it may name beside itself, exact or a prefix ending in *; may be repeated.
    #[arg(long = "holder")]
    holders: Vec<String>,
    /// Maximum lifetime of its tokens; 15m when absent.
    #[arg(long)]
    max_ttl: Option<String>,
    /// Condition of its tokens for this audience, key=value; may be repeated.
    #[arg(long = "caveat")]
    caveats: Vec<String>,
    /// Let it exchange tokens of other clients.
    #[arg(long)]
    exchange: bool,
    /// Another audience whose tokens it may exchange for one of this audience: its own, and with --exchange those of
    /// other clients; may be repeated.
    #[arg(long = "from", value_name = "AUDIENCE")]
    from: Vec<String>,
}

#[derive(Args)]
struct RemoveArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Remove its rule for this audience alone.
    #[arg(long)]
    audience: Option<String>,
}

#[derive(Args)]
struct SecretArgs {
    #[command(flatten)]
    name: NameArgs,
    /// File to write the secret to, with mode 0600; clients/<name>.json of the data directory when
    /// absent. Must not exist.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Expiry of the secret, as in 2027-01-01T00:00:00Z; never when absent.
    #[arg(long)]
    expires: Option<String>,
}

pub fn run(args: &ClientArgs) -> Result<(), String> {
    match &args.command {
        Command::Add(args) => add(args),
        Command::List(place) => list(place),
        Command::Show(args) => show(args),
        Command::Remove(args) => remove(args),
        Command::RotateSecret(args) => rotate::run(args),
        Command::Refused(args) => refused::run(args),
        Command::Secret(args) => secret(args),
    }
}

fn good_name(name: &str) -> Result<(), String> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(good) {
        return Err("a client's name is 1 to 64 of A-Z, a-z, 0-9, . _ and -".to_owned());
    }
    Ok(())
}

/// The issuer's part of a data directory.
struct Issuer {
    layout: Layout,
    policy: IssuerPolicy,
    /// svc-passport's configuration file, as text.
    text: String,
    clients: Vec<ConfiguredClient>,
}

impl Issuer {
    fn of(place: &Place) -> Result<Self, String> {
        let layout = place.layout()?;
        let path = layout.config("svc-passport");
        let text = std::fs::read_to_string(&path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Ok(Self {
            policy: change::read(&layout)?,
            clients: configured(&path, &text)?,
            layout,
            text,
        })
    }

    fn knows(&self, name: &str) -> bool {
        self.clients.iter().any(|client| client.id == name)
    }

    /// Writes another configuration; it must be one with which the service starts and which has
    /// exactly these clients.
    fn write(&self, text: &str, clients: &[&str]) -> Result<(), String> {
        let path = self.layout.config("svc-passport");
        let names = configured(&path, text)?;
        if !names
            .iter()
            .map(|client| client.id.as_str())
            .eq(clients.iter().copied())
        {
            return Err(format!(
                "the [[clients]] of {} are not written in a way that is understood here; change them by hand",
                path.display()
            ));
        }
        write_atomic(&path, text.as_bytes(), 0o600)
    }

    fn names(&self) -> Vec<&str> {
        self.clients
            .iter()
            .map(|client| client.id.as_str())
            .collect()
    }
}

/// The clients of a configuration, read as the service reads it.
fn configured(path: &Path, text: &str) -> Result<Vec<ConfiguredClient>, String> {
    let config = fleet::load_text("svc-passport", path, text)?;
    let decider = Decider::new(&config).map_err(fleet::lines)?;
    Ok(decider.clients())
}

fn add(args: &AddArgs) -> Result<(), String> {
    let name = args.name.name.as_str();
    good_name(name)?;
    let issuer = Issuer::of(&args.name.place)?;
    let proves = args.secret || args.key.is_some() || args.cert.is_some();
    let mut policy = issuer.policy.clone();
    let had = policy.rule(name).is_some();
    let mapped = policy
        .rule(name)
        .is_some_and(|rule| !rule.external.is_empty());
    let known = issuer.knows(name) || mapped;
    if known == (proves || args.issuer.is_some()) {
        return Err(if known {
            format!(
                "{name} is a client already: leave out --secret, --key, --cert and --issuer to give it another audience"
            )
        } else {
            format!(
                "{name} is no client yet: say how it proves itself with --secret, --key FILE or --cert FILE, or with the \
                 tokens of another issuer: --issuer URL --subject PATTERN"
            )
        });
    }
    extend(&mut policy, args)?;
    if let Some(issuer) = &args.issuer {
        args.external.map(&mut policy, name, issuer)?;
    }
    // Signed first: a policy that is refused leaves everything as it was.
    let signed = change::signed(&issuer.layout, &mut policy)?;
    if proves {
        let line = proof(args, &issuer.layout)?;
        let text = blocks::add(&issuer.text, &[format!("id = {}", quoted(name)), line])?;
        let mut names = issuer.names();
        names.push(name);
        issuer.write(&text, &names).inspect_err(|_| {
            // Without its hash in the configuration the new secret is worthless, and in the way next time.
            if args.secret {
                let _ = std::fs::remove_file(issuer.layout.client(name));
            }
        })?;
    }
    signed.put_in_force(&issuer.layout)?;
    let rule = if had { "another audience" } else { "a rule" };
    println!("client {name} has {rule}: {}", args.audience);
    if args.secret {
        let dir = issuer.layout.root.display();
        println!("its secret is in {}", issuer.layout.client(name).display());
        println!(
            "a token: ron token --data-dir {dir} --client {name} --audience {}",
            args.audience
        );
    }
    Ok(())
}

/// Adds the rule that the arguments describe.
fn extend(policy: &mut IssuerPolicy, args: &AddArgs) -> Result<(), String> {
    let name = args.name.name.as_str();
    let scopes = words(&args.scopes);
    let known = policy.scopes_of(&args.audience);
    if scopes.is_empty() && !known.is_empty() {
        return Err(format!(
            "say with --scope what its tokens may be used for; {} knows: {}",
            args.audience,
            known.join(" ")
        ));
    }
    let audience = AudienceRule {
        audience: args.audience.clone(),
        scopes,
        alg: None,
        algs: Vec::new(),
        caveats: args.caveats.clone(),
        from: args.from.clone(),
    };
    let max_ttl = seconds("--max-ttl", args.max_ttl.as_deref())?;
    if let Some(rule) = policy
        .clients
        .iter_mut()
        .find(|rule| rule.client_id == name)
    {
        if args
            .tenant
            .as_ref()
            .is_some_and(|tenant| *tenant != rule.tenant)
        {
            return Err(format!(
                "{name} has tokens of tenant {} already",
                rule.tenant
            ));
        }
        rule.audiences.push(audience);
        rule.subjects.extend(args.holders.iter().cloned());
        rule.max_ttl_s = max_ttl.unwrap_or(rule.max_ttl_s);
        rule.exchange |= args.exchange;
        return Ok(());
    }
    policy.clients.push(ClientRule {
        client_id: name.to_owned(),
        tenant: args.tenant.clone().unwrap_or_default(),
        subjects: args.holders.clone(),
        audiences: vec![audience],
        max_ttl_s: max_ttl.unwrap_or(TTL_S_DEFAULT),
        exchange: args.exchange,
        external: Vec::new(),
    });
    Ok(())
}

/// The line of the client's block that says how it proves itself. Makes the secret.
fn proof(args: &AddArgs, layout: &Layout) -> Result<String, String> {
    if let Some(path) = &args.key {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let tree: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        return Ok(format!("jwks = {}", quoted(&tree.to_string())));
    }
    if let Some(path) = &args.cert {
        let print = certificate_print(path).map_err(|e| e.to_string())?;
        return Ok(format!("certs = [\"{print}\"]"));
    }
    make_dir(&layout.root.join("clients"))?;
    let hash = new_secret(&args.name.name, &layout.client(&args.name.name))?;
    Ok(format!("secret_sha256 = [\"{hash}\"]"))
}

fn list(place: &Place) -> Result<(), String> {
    let issuer = Issuer::of(place)?;
    for client in &issuer.clients {
        let rule = issuer.policy.rule(&client.id);
        let audiences = rule
            .map(|rule| rule.audiences.as_slice())
            .unwrap_or_default();
        let names: Vec<&str> = audiences.iter().map(|one| one.audience.as_str()).collect();
        let names = if names.is_empty() {
            "no rule in the policy".to_owned()
        } else {
            names.join(" ")
        };
        println!("{}  by {}  {names}", client.id, client.proofs.join(", "));
    }
    for rule in &issuer.policy.clients {
        if issuer.knows(&rule.client_id) {
            continue;
        }
        if rule.external.is_empty() {
            println!("{}  is in the policy alone", rule.client_id);
        } else {
            let names: Vec<&str> = rule
                .audiences
                .iter()
                .map(|one| one.audience.as_str())
                .collect();
            println!(
                "{}  by {}  {}",
                rule.client_id,
                external::proofs(rule),
                names.join(" ")
            );
        }
    }
    Ok(())
}

fn show(args: &NameArgs) -> Result<(), String> {
    let issuer = Issuer::of(&args.place)?;
    let known = issuer.clients.iter().find(|client| client.id == args.name);
    let rule = issuer.policy.rule(&args.name);
    if known.is_none() && rule.is_none() {
        return Err(unknown(&args.name));
    }
    let mut proofs = known.map(|client| client.proofs.join(", "));
    if let Some(rule) = rule.filter(|rule| proofs.is_none() && !rule.external.is_empty()) {
        proofs = Some(external::proofs(rule));
    }
    println!(
        "proves itself by: {}",
        proofs
            .as_deref()
            .unwrap_or("nothing; it is not in [[clients]]")
    );
    match rule {
        Some(rule) => {
            let json = serde_json::to_string_pretty(rule).map_err(|e| e.to_string())?;
            println!("{json}");
        }
        None => println!("it has no rule in the issuer policy, so it gets no token"),
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    format!("there is no client {name}; `ron client list` prints all")
}

fn remove(args: &RemoveArgs) -> Result<(), String> {
    let name = args.name.name.as_str();
    let issuer = Issuer::of(&args.name.place)?;
    let mut policy = issuer.policy.clone();
    if !issuer.knows(name) && policy.rule(name).is_none() {
        return Err(unknown(name));
    }
    if let Some(audience) = &args.audience {
        let mut rules = policy.clients.iter_mut();
        let rule = rules.find(|rule| rule.client_id == name);
        let rule = rule.filter(|rule| rule.audience(audience).is_some());
        let rule = rule.ok_or_else(|| format!("{name} has no rule for {audience}"))?;
        if rule.audiences.len() == 1 {
            return Err(format!(
                "{audience} is the only audience of {name}; remove the client without --audience"
            ));
        }
        rule.audiences.retain(|one| one.audience != *audience);
        change::signed(&issuer.layout, &mut policy)?.put_in_force(&issuer.layout)?;
        println!("client {name} gets no more tokens for {audience}");
        return Ok(());
    }
    policy.clients.retain(|rule| rule.client_id != name);
    external::drop_unused(&mut policy);
    let signed = change::signed(&issuer.layout, &mut policy)?;
    if issuer.knows(name) {
        let by_hand = || {
            let path = issuer.layout.config("svc-passport");
            format!(
                "cannot find the block of {name} in {}; remove it by hand",
                path.display()
            )
        };
        let text = blocks::remove(&issuer.text, name).ok_or_else(by_hand)?;
        let mut names = issuer.names();
        names.retain(|known| *known != name);
        issuer.write(&text, &names)?;
    }
    signed.put_in_force(&issuer.layout)?;
    println!(
        "client {name} is removed; revoke its tokens with: ron token revoke --subject {name} --reason '...'"
    );
    // The secret is worthless now, and a client of this name may come again.
    match std::fs::remove_file(issuer.layout.client(name)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("its file in clients/ cannot be removed: {e}"))
        }
        _ => Ok(()),
    }
}

fn secret(args: &SecretArgs) -> Result<(), String> {
    let name = &args.name.name;
    good_name(name)?;
    let end = match &args.expires {
        Some(text) => {
            let end = client_secret::parse_end(text).map_err(|e| format!("--expires: {e}"))?;
            format!("@{end}")
        }
        None => String::new(),
    };
    let path = if let Some(path) = &args.out {
        path.clone()
    } else {
        let layout = args.name.place.layout()?;
        make_dir(&layout.root.join("clients"))?;
        layout.client(name)
    };
    let hash = new_secret(name, &path)?;
    println!("secret_sha256 = [\"{hash}{end}\"]");
    eprintln!(
        "the secret is in {}; put this line into the block of {name} in [[clients]] of svc-passport's configuration \
         and reload it (a list of two keeps the old secret good meanwhile)",
        path.display()
    );
    Ok(())
}

/// Writes a new secret to a file that must not exist; its hash.
fn new_secret(name: &str, path: &Path) -> Result<String, String> {
    if path.exists() {
        let path = path.display();
        return Err(format!(
            "{path} is there already; write the new secret to another file with --out, and put it in its place when \
             the issuer has the new hash"
        ));
    }
    let file = ClientFile::new(name);
    write_json(path, &file, 0o600)?;
    Ok(service_token::hash(&file.client_secret))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
