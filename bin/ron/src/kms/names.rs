//! `ron kms alias`: second names of keys; and the key that an argument means.

use clap::{Args, Subcommand};
use ron_client::KmsClient;
use ron_proto::kms::SetAlias;
use ron_proto::values::{Alias, KeyRef};
use ron_proto::{Kid, OpId};

use super::{deadline, explain, op_id, show};

/// The key that an argument names; an alias is looked up now.
pub fn named(kms: &KmsClient, key: &KeyRef) -> Result<Kid, String> {
    match key {
        KeyRef::Kid(kid) => Ok(kid.clone()),
        KeyRef::Alias(alias) => Ok(explain(kms.alias(alias, deadline()))?.key),
    }
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron kms alias set app $KEY\n  ron kms sign alias/app --file release.tar.gz\n  ron kms alias move app $NEW\n  ron kms alias list"
)]
pub struct AliasArgs {
    #[command(subcommand)]
    command: AliasCommand,
}

#[derive(Subcommand)]
enum AliasCommand {
    /// Give a key a second name, which stands for it as alias/<name>.
    Set(SetArgs),
    /// Have an alias name another key from now on, at once.
    Move(SetArgs),
    /// Delete an alias; the key stays.
    Delete {
        /// The alias, without alias/.
        alias: Alias,
    },
    /// List the aliases of the tenant with their keys.
    List,
}

#[derive(Args)]
struct SetArgs {
    /// The alias, without alias/.
    alias: Alias,
    /// Key that it names, as tenant/purpose/algorithm/uuid or as another alias.
    key: KeyRef,
    /// Idempotency id: the same id and request changes nothing more.
    #[arg(long)]
    op_id: Option<OpId>,
}

pub fn run(kms: &KmsClient, args: AliasArgs, json: bool) -> Result<(), String> {
    let (ask, from) = match args.command {
        AliasCommand::Set(ask) => (ask, None),
        AliasCommand::Move(ask) => {
            let from = explain(kms.alias(&ask.alias, deadline()))?.key;
            (ask, Some(from))
        }
        AliasCommand::Delete { alias } => {
            let answer = kms.delete_alias(&alias, deadline());
            return show::changed(&explain(answer)?, json);
        }
        AliasCommand::List => return list(kms, json),
    };
    let request = SetAlias {
        key: named(kms, &ask.key)?,
        from,
        op_id: Some(op_id(ask.op_id)),
    };
    let answer = kms.set_alias(&ask.alias, &request, deadline());
    show::changed(&explain(answer)?, json)
}

fn list(kms: &KmsClient, json: bool) -> Result<(), String> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = explain(kms.aliases(after.as_ref(), deadline()))?;
        all.extend(page.aliases);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if json {
        return show::as_json(&all);
    }
    for one in all {
        println!("{}  {}", one.alias, one.key);
    }
    Ok(())
}
