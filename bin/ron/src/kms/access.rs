//! `ron kms policy` and `ron kms grant`: who may do what with a key.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ron_client::KmsClient;
use ron_proto::kms::{
    AskApproval, ExplainKeyPolicy, KeyOp, KeyPolicy, MakeGrant, Period, PutKeyPolicy, RetireGrant,
    When,
};
use ron_proto::values::{KeyRef, Timestamp};
use ron_proto::{OpId, strict};

use super::approvals;
use super::names::named;
use super::{deadline, explain, op_id, show};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron kms policy check policy.json\n  ron kms policy set alias/app policy.json\n  ron kms policy get alias/app\n  ron kms policy explain alias/app --principal web --op sign --context invoice-7\n  ron kms policy set alias/app --none"
)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Subcommand)]
enum PolicyCommand {
    /// Print the policy of a key as JSON.
    Get(GetArgs),
    /// Set the policy of a key, or remove it.
    Set(SetArgs),
    /// Check a policy file without a KMS.
    Check(CheckArgs),
    /// Say what the KMS would decide about a caller, and by which rule; the exit code says whether it is allowed.
    Explain(ExplainArgs),
}

#[derive(Args)]
struct GetArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
}

#[derive(Args)]
struct SetArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// File with the policy as JSON.
    #[arg(required_unless_present = "none", conflicts_with = "none")]
    file: Option<PathBuf>,
    /// Remove the policy and the grants of the key: scopes and caveats alone decide then.
    #[arg(long)]
    none: bool,
    /// Ask for the approvals that the present policy demands, and print the id of the request.
    #[arg(long)]
    ask_approval: bool,
    /// Idempotency id: the same id and request changes nothing more.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
struct CheckArgs {
    /// File with the policy as JSON.
    file: PathBuf,
}

#[derive(Args)]
struct ExplainArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// Name of the caller.
    #[arg(long)]
    principal: String,
    /// Client that the caller's passport was issued to.
    #[arg(long)]
    client: Option<String>,
    /// Scope of the caller; may be repeated.
    #[arg(long)]
    scope: Vec<String>,
    /// Operation, such as sign.
    #[arg(long)]
    op: KeyOp,
    /// Remark of the request.
    #[arg(long)]
    context: Option<String>,
    /// Address of the caller; a Unix socket when absent.
    #[arg(long)]
    peer: Option<IpAddr>,
    /// Time of the request; now when absent.
    #[arg(long)]
    at: Option<Timestamp>,
}

impl PolicyArgs {
    /// Whether the command needs no KMS.
    pub fn is_local(&self) -> bool {
        matches!(self.command, PolicyCommand::Check(_))
    }
}

/// Does a command that needs no KMS.
pub fn local(args: &PolicyArgs) -> Result<(), String> {
    match &args.command {
        PolicyCommand::Check(ask) => check(ask),
        _ => Ok(()),
    }
}

pub fn policy(kms: &KmsClient, args: PolicyArgs, json: bool) -> Result<(), String> {
    match args.command {
        PolicyCommand::Get(ask) => {
            let found = explain(kms.key_policy(&named(kms, &ask.key)?, deadline()))?;
            show::as_json(&found.policy)
        }
        PolicyCommand::Set(ask) => {
            let policy = ask.file.as_ref().map(read).transpose()?;
            let id = op_id(ask.op_id);
            let request = PutKeyPolicy {
                policy,
                op_id: Some(id),
            };
            let key = named(kms, &ask.key)?;
            if ask.ask_approval {
                let wanted = AskApproval {
                    policy: Some(request),
                    ..AskApproval::default()
                };
                return approvals::ask(kms, &key, (id, wanted), json);
            }
            let answer = kms.put_key_policy(&key, &request, deadline());
            show::changed(&explain(answer)?, json)
        }
        PolicyCommand::Check(ask) => check(&ask),
        PolicyCommand::Explain(ask) => {
            let request = ExplainKeyPolicy {
                principal: ask.principal,
                client: ask.client,
                scopes: ask.scope,
                op: ask.op,
                context: ask.context,
                peer: ask.peer,
                at: ask.at,
            };
            let key = named(kms, &ask.key)?;
            let answer = explain(kms.explain_key_policy(&key, &request, deadline()))?;
            if json {
                show::as_json(&answer)?;
            } else {
                println!("{}: {}", answer.by, answer.why);
            }
            if answer.allowed {
                return Ok(());
            }
            Err(format!("`{}` is not allowed", request.op))
        }
    }
}

fn check(ask: &CheckArgs) -> Result<(), String> {
    let policy = read(&ask.file)?;
    println!(
        "{} rules of `allow`, {} of `deny`: well formed",
        policy.allow.len(),
        policy.deny.len()
    );
    Ok(())
}

/// A policy without faults.
fn read(path: &PathBuf) -> Result<KeyPolicy, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let policy: KeyPolicy =
        strict::from_slice(&bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    let faults = policy.faults();
    if faults.is_empty() {
        return Ok(policy);
    }
    Err(format!("{}: {}", path.display(), faults.join("; ")))
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  GRANT=$(ron kms grant make alias/app --to job --op sign --lifetime 8h)\n  ron kms grant list alias/app\n  ron kms grant retire alias/app $GRANT"
)]
pub struct GrantArgs {
    #[command(subcommand)]
    command: GrantCommand,
}

#[derive(Subcommand)]
enum GrantCommand {
    /// Let another caller use a key for some time, as far as you may, and print the id of the grant.
    Make(MakeArgs),
    /// List the grants of a key that have not ended.
    List(GetArgs),
    /// End a grant before its time.
    Retire(RetireArgs),
}

#[derive(Args)]
struct MakeArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// Name of the caller that may use the key.
    #[arg(long)]
    to: String,
    /// Client that its passport must be issued to.
    #[arg(long)]
    client: Option<String>,
    /// Operation, such as sign; may be repeated.
    #[arg(long, required = true)]
    op: Vec<KeyOp>,
    /// How long the grant lives, such as 8h; at most 90d.
    #[arg(long)]
    lifetime: Period,
    /// Remark that requests must carry: a text, or a prefix that ends in *; may be repeated.
    #[arg(long)]
    context: Vec<String>,
    /// Idempotency id, and the id of the grant. Random when absent.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
struct RetireArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// Id of the grant.
    grant: OpId,
}

pub fn grant(kms: &KmsClient, args: GrantArgs, json: bool) -> Result<(), String> {
    match args.command {
        GrantCommand::Make(ask) => {
            let id = op_id(ask.op_id);
            let request = MakeGrant {
                grantee: ask.to,
                client: ask.client,
                ops: ask.op,
                when: When {
                    context: ask.context,
                    ..When::default()
                },
                lifetime: ask.lifetime,
                op_id: Some(id),
            };
            let key = named(kms, &ask.key)?;
            let answer = explain(kms.make_grant(&key, &request, deadline()))?;
            if json {
                return show::as_json(&answer);
            }
            println!("{id}");
            Ok(())
        }
        GrantCommand::List(ask) => {
            let list = explain(kms.grants(&named(kms, &ask.key)?, deadline()))?;
            if json {
                return show::as_json(&list.grants);
            }
            for grant in list.grants {
                let ops: Vec<_> = grant.ops.iter().map(|op| op.as_str()).collect();
                let (id, to, by) = (grant.id, grant.grantee, grant.maker);
                println!(
                    "{id}  {to}  {}  by {by}  until {}",
                    ops.join(","),
                    grant.expires
                );
            }
            Ok(())
        }
        GrantCommand::Retire(ask) => {
            let request = RetireGrant {
                op_id: Some(op_id(None)),
            };
            let key = named(kms, &ask.key)?;
            let answer = kms.retire_grant(&key, ask.grant, &request, deadline());
            show::changed(&explain(answer)?, json)
        }
    }
}
