//! `ron audience`: the services of others for which the issuer makes tokens. A change is a new signed
//! version of the issuer policy, put in force.

use clap::{Args, Subcommand};
use ron_proto::passport::{Audience, ClientRule, IssuerPolicy, OWN_AUDIENCES};

use crate::change;
use crate::layout::{Layout, Place};
use crate::token::seconds;

/// Add, list, show and remove services that the issuer makes tokens for.
#[derive(Args)]
pub struct AudienceArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add a service with its scopes to the issuer policy, and put the policy in force.
    Add(AddArgs),
    /// List the audiences of the policy, with the number of clients that get tokens for each.
    List(Place),
    /// Show an audience, and the clients that get tokens for it.
    Show(NameArgs),
    /// Remove an audience that no client has a rule for any more.
    Remove(NameArgs),
}

#[derive(Args)]
struct NameArgs {
    /// The audience: the `aud` of its tokens.
    name: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
struct AddArgs {
    #[command(flatten)]
    name: NameArgs,
    /// A scope that the service knows; may be repeated, or hold several separated by spaces.
    #[arg(long = "scope")]
    scopes: Vec<String>,
    /// Algorithm of its tokens, such as ES256; EdDSA when absent.
    #[arg(long)]
    alg: Option<String>,
    /// Maximum lifetime of its tokens, such as 10m; that of each client when absent.
    #[arg(long)]
    max_ttl: Option<String>,
    /// Condition of all its tokens, key=value; may be repeated.
    #[arg(long = "caveat")]
    caveats: Vec<String>,
}

pub fn run(args: AudienceArgs) -> Result<(), String> {
    match args.command {
        Command::Add(args) => add(args),
        Command::List(place) => list(&place),
        Command::Show(args) => show(&args),
        Command::Remove(args) => remove(&args),
    }
}

/// The words of options that may be repeated, and may hold several words each.
pub fn words(options: &[String]) -> Vec<String> {
    let all = options.iter().flat_map(|text| text.split_whitespace());
    all.map(str::to_owned).collect()
}

fn place(place: &Place) -> Result<(Layout, IssuerPolicy), String> {
    let layout = place.layout()?;
    let policy = change::read(&layout)?;
    Ok((layout, policy))
}

fn add(args: AddArgs) -> Result<(), String> {
    let (layout, mut policy) = place(&args.name.place)?;
    let name = args.name.name;
    if policy.declared(&name).is_some() {
        return Err(format!(
            "the policy has the audience {name} already; `ron audience show` prints it"
        ));
    }
    policy.audiences.push(Audience {
        audience: name.clone(),
        scopes: words(&args.scopes),
        alg: args.alg,
        max_ttl_s: seconds("--max-ttl", args.max_ttl.as_deref())?,
        caveats: args.caveats,
    });
    change::signed(&layout, &mut policy)?.put_in_force(&layout)?;
    println!("audience {name} is added; `ron client add` gives clients tokens for it");
    Ok(())
}

/// The clients with a rule for an audience.
fn clients<'p>(policy: &'p IssuerPolicy, name: &str) -> Vec<&'p ClientRule> {
    let rules = policy.clients.iter();
    rules.filter(|rule| rule.audience(name).is_some()).collect()
}

fn list(args: &Place) -> Result<(), String> {
    let (_, policy) = place(args)?;
    let declared = policy.audiences.iter().map(|one| one.audience.as_str());
    for name in OWN_AUDIENCES.into_iter().chain(declared) {
        let scopes = match policy.declared(name) {
            Some(declared) => declared.scopes.join(" "),
            None => "(of this installation)".to_owned(),
        };
        println!(
            "{name}  clients: {}  {scopes}",
            clients(&policy, name).len()
        );
    }
    Ok(())
}

fn show(args: &NameArgs) -> Result<(), String> {
    let (_, policy) = place(&args.place)?;
    let name = args.name.as_str();
    match policy.declared(name) {
        Some(declared) => {
            let json = serde_json::to_string_pretty(declared).map_err(|e| e.to_string())?;
            println!("{json}");
        }
        None if OWN_AUDIENCES.contains(&name) => {
            println!("{name} is a service of this installation");
        }
        None => return Err(unknown(name)),
    }
    for rule in clients(&policy, name) {
        let scopes = rule.audience(name).map(|rule| rule.scopes.join(" "));
        println!("client {}: {}", rule.client_id, scopes.unwrap_or_default());
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    format!("the policy has no audience {name}; `ron audience list` prints all")
}

fn remove(args: &NameArgs) -> Result<(), String> {
    let (layout, mut policy) = place(&args.place)?;
    let name = args.name.as_str();
    if policy.declared(name).is_none() {
        return Err(unknown(name));
    }
    let users: Vec<&str> = clients(&policy, name)
        .into_iter()
        .map(|rule| rule.client_id.as_str())
        .collect();
    if !users.is_empty() {
        return Err(format!(
            "clients have rules for {name}: {}; remove them first (`ron client remove NAME --audience {name}`)",
            users.join(", ")
        ));
    }
    policy.audiences.retain(|one| one.audience != name);
    change::signed(&layout, &mut policy)?.put_in_force(&layout)?;
    println!("audience {name} is removed");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_audiences_of_an_installation_are_its_services() {
        assert_eq!(super::OWN_AUDIENCES, ron_services::NAMES);
    }
}
