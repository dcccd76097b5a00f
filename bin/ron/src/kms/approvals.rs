//! `ron kms approvals` and `ron kms approve`: operations that several people have to agree to. An approver's key stays on the
//! approver's machine.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ron_client::KmsClient;
use ron_crypto::hash::sha256;
use ron_custody::keys::{Input, SecretKey};
use ron_proto::kms::{
    ApprovalDoc, Approve, Approver, AskApproval, Bytes, approval_text, operation_bytes,
};
use ron_proto::values::KeyRef;
use ron_proto::{Alg, Kid, OpId};

use super::names::named;
use super::transfer::read_private_key;
use super::{deadline, explain, show};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron kms approvals enroll --name alice --key-file alice.pem\n  ron kms destroy alias/app --ask-approval\n  ron kms approvals list alias/app\n  ron kms approve alias/app $ID --approver alice --key-file alice.pem\n  ron kms destroy alias/app --op-id $ID"
)]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    command: ApprovalsCommand,
}

#[derive(Subcommand)]
enum ApprovalsCommand {
    /// List the requests of a key that wait for approvals, or have them and were not used yet.
    List(ListArgs),
    /// Print the entry of an approver for `approvals.approvers` of a key policy, from the approver's private key. Needs no KMS.
    Enroll(EnrollArgs),
}

#[derive(Args)]
struct ListArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
}

#[derive(Args)]
struct EnrollArgs {
    /// The name under which the approver calls the KMS.
    #[arg(long)]
    name: String,
    /// File with the approver's private key: Ed25519 or ECDSA P-256 in PKCS#8 PEM, as `openssl genpkey` makes it.
    #[arg(long)]
    key_file: PathBuf,
}

#[derive(Args)]
pub struct ApproveArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// Id of the request.
    request: OpId,
    /// Name of the approver in the key's policy.
    #[arg(long)]
    approver: String,
    /// File with the approver's private key: Ed25519 or ECDSA P-256 in PKCS#8 PEM.
    #[arg(long)]
    key_file: PathBuf,
}

impl ApprovalsArgs {
    /// Does a command that needs no KMS; `None` for the others.
    pub fn local(&self) -> Option<Result<(), String>> {
        match &self.command {
            ApprovalsCommand::Enroll(ask) => Some(enroll(ask)),
            ApprovalsCommand::List(_) => None,
        }
    }
}

pub fn run(kms: &KmsClient, args: &ApprovalsArgs, json: bool) -> Result<(), String> {
    let ApprovalsCommand::List(ask) = &args.command else {
        return Ok(()); // done without a KMS
    };
    let list = explain(kms.approvals(&named(kms, &ask.key)?, deadline()))?;
    if json {
        return show::as_json(&list.requests);
    }
    for one in &list.requests {
        shown(one);
    }
    Ok(())
}

fn shown(one: &ApprovalDoc) {
    let by = one.approved_by.join(",");
    println!(
        "{}  {}  asked by {}  {} of {} approvals{}{by}  until {}",
        one.id,
        one.op,
        one.requester,
        one.approved_by.len(),
        one.needed,
        if by.is_empty() { "" } else { ": " },
        one.expires
    );
    println!("    {}", one.body);
}

fn enroll(ask: &EnrollArgs) -> Result<(), String> {
    let (alg, secret) = private_key(&ask.key_file)?;
    show::as_json(&Approver {
        name: ask.name.clone(),
        alg,
        public_key: Bytes(secret.public().raw().to_vec()),
    })
}

fn private_key(path: &Path) -> Result<(Alg, SecretKey), String> {
    for alg in [Alg::Ed25519, Alg::EcdsaP256] {
        let raw = read_private_key(path, alg);
        if let Some(secret) = raw.ok().and_then(|raw| SecretKey::from_secret(alg, &raw)) {
            return Ok((alg, secret));
        }
    }
    // Says what is wrong with the file, where that is known.
    read_private_key(path, Alg::Ed25519)?;
    let path = path.display();
    Err(format!(
        "{path}: not an Ed25519 or P-256 key in PKCS#8 PEM; make one with `openssl genpkey -algorithm ed25519 -out KEY.pem`"
    ))
}

/// Signs the request with the approver's key. What is signed is computed here, from what is shown.
pub fn approve(kms: &KmsClient, ask: &ApproveArgs, json: bool) -> Result<(), String> {
    let (_, secret) = private_key(&ask.key_file)?;
    let key = named(kms, &ask.key)?;
    let list = explain(kms.approvals(&key, deadline()))?;
    let found = list.requests.iter().find(|one| one.id == ask.request);
    let request = found.ok_or("no such request of this key waits; see `ron kms approvals list`")?;
    let bytes = operation_bytes(
        request.op.as_str(),
        &key.to_string(),
        request.body.as_bytes(),
    );
    let computed = hex::encode(sha256(&bytes));
    if computed != request.operation_sha256 {
        return Err("the KMS states another hash than that of the request that it shows; nothing was signed".to_owned());
    }
    eprintln!(
        "approving `{}` of {key}, asked by {}:\n{}",
        request.op, request.requester, request.body
    );
    let text = approval_text(request.id, &computed);
    let signatures = secret.sign(Input::Message(text.as_bytes()), None);
    let signature = signatures
        .into_iter()
        .next()
        .ok_or("the key makes no signature")?;
    let approval = Approve {
        approver: ask.approver.clone(),
        signature: signature.signature,
    };
    let answer = kms.approve(&key, ask.request, &approval, deadline());
    show::changed(&explain(answer)?, json)
}

/// Asks for approvals of a request, and says how it goes on.
pub fn ask(
    kms: &KmsClient,
    key: &Kid,
    (id, ask): (OpId, AskApproval),
    json: bool,
) -> Result<(), String> {
    let answer = explain(kms.ask_approval(key, &ask, deadline()))?;
    if json {
        return show::as_json(&answer);
    }
    println!("{id}");
    eprintln!(
        "approvers run: ron kms approve {key} {id} --approver NAME --key-file FILE\nthen send the same request again with --op-id {id}"
    );
    Ok(())
}
