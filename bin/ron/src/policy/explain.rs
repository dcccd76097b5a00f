//! `ron policy explain`: decides about a token as svc-passport would, from the policy and the
//! configuration of a data directory, and names the rule that decides.

use std::path::PathBuf;

use clap::Args;
use ron_proto::passport::{IssuerPolicy, OWN_AUDIENCES, PolicyQuestion};
use ron_service::kept_policy::Versioned as _;
use svc_passport::explain::Decider;

use crate::change;
use crate::fleet;
use crate::layout::Place;
use crate::token::seconds;

#[derive(Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    place: Place,
    /// Client that asks for the token.
    #[arg(long)]
    client: String,
    /// Service that the token is for; may be left out when the client has one audience only.
    #[arg(long)]
    audience: Option<String>,
    /// Scopes separated by spaces; all that are allowed when absent.
    #[arg(long)]
    scope: Option<String>,
    /// Holder of the token; the client itself when absent.
    #[arg(long)]
    subject: Option<String>,
    /// Lifetime, such as 15m.
    #[arg(long)]
    ttl: Option<String>,
    /// Narrowing condition, key=value; may be repeated.
    #[arg(long = "caveat")]
    caveats: Vec<String>,
    /// File with another policy, signed or not; the signed one of the data directory when absent.
    #[arg(long)]
    policy: Option<PathBuf>,
}

pub fn run(args: &ExplainArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    let policy = match &args.policy {
        None => change::read(&layout)?,
        Some(path) => super::issuer_policy(&super::read_checked(IssuerPolicy::KIND, path)?)?,
    };
    let config = fleet::load(&layout, "svc-passport", &[])?;
    let decider = Decider::new(&config).map_err(fleet::lines)?;
    let question = PolicyQuestion {
        client_id: args.client.clone(),
        subject: args.subject.clone(),
        audience: args.audience.clone(),
        scope: args.scope.clone(),
        ttl_s: seconds("--ttl", args.ttl.as_deref())?,
        caveats: args.caveats.clone(),
    };
    let external = policy
        .rule(&args.client)
        .map_or(&[][..], |rule| &rule.external);
    let clients = decider.clients();
    match clients.iter().find(|client| client.id == args.client) {
        Some(client) => println!("client     {} by {}", client.id, client.proofs.join(", ")),
        None if !external.is_empty() => {
            for one in external {
                println!(
                    "client     {} by tokens of {} with sub {}",
                    args.client,
                    one.issuer,
                    one.subject.as_deref().unwrap_or("of any kind")
                );
                for (name, pattern) in &one.claims {
                    println!("           and {name} {pattern}");
                }
            }
        }
        None => println!(
            "client     {} is not in [[clients]]: it cannot use the token endpoint, only passport:issue",
            args.client
        ),
    }
    rules(&policy, args);
    let verdict = decider
        .decide(&policy, &question)
        .map_err(|why| format!("no token: {why}"))?;
    println!("audience   {}", verdict.audience);
    println!(
        "subject    {} of tenant {}",
        verdict.subject, verdict.tenant
    );
    println!("scope      {}", verdict.scope);
    println!("lifetime   {} s", verdict.ttl_s);
    for caveat in &verdict.caveats {
        println!("caveat     {caveat}");
    }
    println!("algorithm  {}", verdict.alg);
    println!("yes: the token would be issued");
    Ok(())
}

/// The places in the policy that decide.
fn rules(policy: &IssuerPolicy, args: &ExplainArgs) {
    let Some(at) = policy
        .clients
        .iter()
        .position(|rule| rule.client_id == args.client)
    else {
        println!(
            "rule       none for this client in version {}",
            policy.version
        );
        return;
    };
    let rule = &policy.clients[at];
    let Some(name) = rule.asked(args.audience.as_deref()) else {
        return;
    };
    let found = rule.audiences.iter().position(|one| one.audience == name);
    match found {
        Some(n) => {
            println!(
                "rule       clients[{at}].audiences[{n}] of version {}",
                policy.version
            );
            let whose = if rule.exchange { "anyone's" } else { "its own" };
            for from in &rule.audiences[n].from {
                println!("exchange   {whose} tokens for {from} too");
            }
        }
        None => println!(
            "rule       clients[{at}] of version {} has none for {name}",
            policy.version
        ),
    }
    match policy.audiences.iter().position(|one| one.audience == name) {
        Some(n) => println!("audience   audiences[{n}] of the policy"),
        None if OWN_AUDIENCES.contains(&name) => {
            println!("audience   a service of this installation");
        }
        None => println!("audience   {name} is not in the policy"),
    }
}
