//! `ron kms`: keys from the command line, as the operator of a data directory or with a token at
//! any KMS.

mod birth;
mod csr;
mod migrate;
mod show;
mod sign;
mod ssh;
mod transfer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::{ClientError, Credential, KmsClient};
use ron_kernel::{Deadline, OsRandom};
use ron_proto::kms::{
    AdoptKey, CreateKey, DestroyKey, KeyBackend, KeyDoc, KeyList, KeyVersionDoc, PayloadPolicy,
    Period, RetireKey, RotateEvery, RotateRequest, TokenObject, UpdateKey,
};
use ron_proto::{Alg, Kid, OpId, Purpose, Tenant};

use crate::layout::Layout;
use crate::{fleet, login, net};

/// Timeout of one response.
const WAIT: Duration = Duration::from_secs(10);

/// Make, use, rotate, retire, destroy, import, export, back up and restore keys.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  KEY=$(ron kms create --purpose app --alg ed25519 --rotate-every 30d)\n  ron kms list --state active\n  SIG=$(ron kms sign $KEY --file release.tar.gz)\n  ron kms verify $KEY --file release.tar.gz --signature $SIG\n  ron kms rotate $KEY --expected-head 1\n  ron kms destroy $KEY --delay 7d && ron kms cancel $KEY\n  ron kms import --purpose app --alg ed25519 old-key.pem\n  ron kms export $KEY --to recipient.pub --out key.wrapped\n  ron kms backup $KEY --out key.backup && ron kms restore key.backup"
)]
pub struct KmsArgs {
    #[command(subcommand)]
    command: Command,
    /// Data directory, as given to `ron up`.
    #[arg(long, global = true)]
    data_dir: Option<PathBuf>,
    /// Base URL of the KMS; that of the data directory when absent.
    #[arg(long, global = true)]
    url: Option<String>,
    /// File with the token for the KMS; the operator's of the data directory when absent.
    #[arg(long, global = true)]
    token_file: Option<PathBuf>,
    /// Print the response as JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key and print its name.
    Create(CreateArgs),
    /// Make a key of an object that a PKCS#11 token has already.
    Adopt(AdoptArgs),
    /// List keys, by name.
    List(ListArgs),
    /// Show a key, or print its public key.
    #[command(disable_version_flag = true)]
    Get(GetArgs),
    /// Make a new head version, or make a version that waits the head now.
    Rotate(RotateArgs),
    /// Change which versions of a key verify, its rotation, and whether it is exportable.
    Update(UpdateArgs),
    /// Sign and print the signature (base64url; two lines for a hybrid key).
    #[command(disable_version_flag = true)]
    Sign(sign::SignArgs),
    /// Sign files in the form of OpenSSH, as ssh-keygen -Y sign does; also for git.
    SshSign(ssh::SshSignArgs),
    /// Make a certificate signing request (PKCS#10) for a key.
    Csr(csr::CsrArgs),
    /// Check signatures; the exit code says whether they are valid.
    #[command(disable_version_flag = true)]
    Verify(sign::VerifyArgs),
    /// Stop signing with a key; it still verifies.
    Retire(ChangeArgs),
    /// Disable a key now and destroy its secrets after a delay; or those of old versions of a key that goes on.
    Destroy(DestroyArgs),
    /// Cancel a scheduled destruction.
    Cancel(ChangeArgs),
    /// Import a key; it is wrapped before it leaves this program.
    Import(transfer::ImportArgs),
    /// Export an exportable key, wrapped to a recipient's public key.
    #[command(disable_version_flag = true)]
    Export(transfer::ExportArgs),
    /// Back up one key with all its versions, sealed under the KMS's seal key.
    Backup(transfer::BackupArgs),
    /// Make a key from a backup, with all its versions.
    Restore(transfer::RestoreArgs),
    /// Make a recipient's key pair for `export`.
    Recipient(transfer::RecipientArgs),
    /// Open an exported key with the recipient's private key.
    Open(transfer::OpenArgs),
    /// Move the KMS from files to PostgreSQL, or back: the audit log, the sealed keys and the answers
    /// that are remembered by operation id. No leaf is written: receipts and checkpoints stay valid, and
    /// keys stay as they are. On the way there the KMS runs until the command asks for its end; on the
    /// way back this node must not be running, and the others sign no more. One side signs at a time, so
    /// an interrupted command is run again with --resume. Keys in a device are refused. Needs a build with
    /// the feature `postgres`.
    Migrate(migrate::KmsMigrateArgs),
    #[command(flatten)]
    Birth(birth::BirthCommand),
}

#[derive(Args)]
struct CreateArgs {
    /// Tenant of the key; must be the caller's.
    #[arg(long, default_value = "ron")]
    tenant: Tenant,
    /// Purpose of the key.
    #[arg(long)]
    purpose: Purpose,
    /// Algorithm, such as ed25519, ecdsa-p256, rsa-3072, ml-dsa-65, ed25519+ml-dsa-65.
    #[arg(long)]
    alg: Alg,
    /// Payload policy, which limits what the key may sign: any, digest, prehash (ECDSA and RSA: files of any size, in the form that
    /// OpenSSL verifies), or a policy as JSON.
    #[arg(long, default_value = "any", value_parser = payload)]
    payload: PayloadPolicy,
    /// Allow export in wrapped form. Can be withdrawn later, but not granted later.
    #[arg(long)]
    exportable: bool,
    /// Rotation interval, such as 30d.
    #[arg(long)]
    rotate_every: Option<RotateEvery>,
    /// Backend that holds the key: file, memory, pkcs11, tpm or remote; the store's default when
    /// absent.
    #[arg(long, value_parser = backend)]
    backend: Option<KeyBackend>,
    /// Idempotency id: the same id and request makes no second key. Random when absent.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
#[group(id = "object", required = true, multiple = false, args = ["label", "id"])]
struct AdoptArgs {
    /// Label of the object (CKA_LABEL).
    #[arg(long)]
    label: Option<String>,
    /// Id of the object (CKA_ID), in hex.
    #[arg(long)]
    id: Option<String>,
    /// Tenant of the key; must be the caller's.
    #[arg(long, default_value = "ron")]
    tenant: Tenant,
    /// Purpose of the key.
    #[arg(long)]
    purpose: Purpose,
    /// Algorithm of the object: ed25519, ecdsa-p256, ecdsa-p384, RSA or aes256-kwp.
    #[arg(long)]
    alg: Alg,
    /// Payload policy, as for `create`.
    #[arg(long, default_value = "any", value_parser = payload)]
    payload: PayloadPolicy,
    /// Idempotency id: the same id and request makes no second key.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
struct ListArgs {
    /// List only keys of this purpose.
    #[arg(long)]
    purpose: Option<Purpose>,
    /// List only keys of this algorithm.
    #[arg(long)]
    alg: Option<Alg>,
    /// List only keys in this state.
    #[arg(long, value_parser = ["active", "retired", "pending_destruction", "destroyed"])]
    state: Option<String>,
}

#[derive(Args)]
struct GetArgs {
    /// Key, as tenant/purpose/algorithm/uuid.
    key: Kid,
    /// Print the public key of one version in this form instead.
    #[arg(long, value_parser = ["raw", "pem", "jwk", "ssh"])]
    public: Option<String>,
    /// Version of the key; the head when absent.
    #[arg(long, requires = "public")]
    version: Option<u32>,
}

#[derive(Args)]
struct RotateArgs {
    #[command(flatten)]
    change: ChangeArgs,
    /// Let the next version sign at once, also one that is published already. Without it, the next
    /// version of a key that signs tokens is published for rotation.prepublish before it signs,
    /// because verifiers keep the keys that they have read. The version before still verifies: if it
    /// may be known to others, revoke it with `ron token revoke --kid`; the command is printed.
    #[arg(long)]
    now: bool,
}

#[derive(Args)]
struct ChangeArgs {
    /// Key, as tenant/purpose/algorithm/uuid.
    key: Kid,
    #[command(flatten)]
    once: Once,
}

#[derive(Args)]
struct Once {
    /// Refuse unless this is the head version.
    #[arg(long)]
    expected_head: Option<u32>,
    /// Idempotency id: the same id and request changes nothing more.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
struct UpdateArgs {
    /// Key, as tenant/purpose/algorithm/uuid.
    key: Kid,
    /// Oldest version that still verifies.
    #[arg(long)]
    min_verify_version: Option<u32>,
    /// Oldest version with which Vault's paths encrypt; 0 for the head alone.
    #[arg(long)]
    min_wrap_version: Option<u32>,
    /// Whether Vault's paths may delete the key.
    #[arg(long)]
    deletion_allowed: Option<bool>,
    /// Rotation interval, such as 30d, or never.
    #[arg(long)]
    rotate_every: Option<RotateEvery>,
    /// Forbid export permanently.
    #[arg(long)]
    not_exportable: bool,
    #[command(flatten)]
    once: Once,
}

#[derive(Args)]
struct DestroyArgs {
    /// Key, as tenant/purpose/algorithm/uuid.
    key: Kid,
    /// Delay of the destruction, such as 7d; the KMS's default when absent.
    #[arg(long)]
    delay: Option<Period>,
    /// Destroy only the secrets of the versions below this one, which no longer verify; the key stays in use.
    #[arg(long)]
    below_version: Option<u32>,
    #[command(flatten)]
    once: Once,
}

fn payload(text: &str) -> Result<PayloadPolicy, String> {
    let plain = serde_json::Value::String(text.to_owned());
    serde_json::from_value(plain)
        .or_else(|_| serde_json::from_str(text))
        .map_err(|e| format!("not `any`, `digest`, `prehash` or a policy as JSON: {e}"))
}

fn backend(text: &str) -> Result<KeyBackend, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| "not file, memory, pkcs11, tpm or remote".to_owned())
}

pub fn run(args: KmsArgs) -> Result<(), String> {
    let json = args.json;
    // Commands that need no KMS, or find it themselves.
    let command = match args.command {
        Command::SshSign(ask) if !ask.signs() => return ask.pass_on(),
        Command::Recipient(new) => return transfer::recipient(&new),
        Command::Open(open) => return transfer::open(&open),
        Command::Migrate(migrate) => return migrate::run(&migrate, args.data_dir.as_deref()),
        Command::Birth(birth) => {
            return birth::run(birth.at(args.data_dir, args.url, args.token_file));
        }
        command => command,
    };
    let kms = client(
        args.data_dir.as_deref(),
        args.url,
        args.token_file.as_deref(),
    )?;
    match command {
        Command::Create(new) => create(&kms, new, json),
        Command::Adopt(ask) => {
            let object = ask.label.map(TokenObject::Label);
            let request = AdoptKey {
                tenant: ask.tenant,
                purpose: ask.purpose,
                alg: ask.alg,
                object: object.unwrap_or_else(|| TokenObject::Id(ask.id.unwrap_or_default())),
                payload: ask.payload,
                op_id: op_id(ask.op_id),
            };
            show::made(&explain(kms.adopt(&request, deadline()))?, json)
        }
        Command::List(list) => list_keys(&kms, &list, json),
        Command::Get(ask) => get(&kms, &ask, json),
        Command::Rotate(ask) => rotate(&kms, ask, json),
        Command::Update(ask) => {
            let request = UpdateKey {
                min_verify_version: ask.min_verify_version,
                min_wrap_version: ask.min_wrap_version,
                deletion_allowed: ask.deletion_allowed,
                rotate_every: ask.rotate_every,
                exportable: ask.not_exportable.then_some(false),
                expected_head: ask.once.expected_head,
                op_id: Some(op_id(ask.once.op_id)),
            };
            show::changed(&explain(kms.update(&ask.key, &request, deadline()))?, json)
        }
        Command::Retire(ask) => {
            let answer = kms.retire(&ask.key, &retire(&ask.once), deadline());
            show::changed(&explain(answer)?, json)
        }
        Command::Cancel(ask) => {
            let answer = kms.cancel_destroy(&ask.key, &retire(&ask.once), deadline());
            show::changed(&explain(answer)?, json)
        }
        Command::Destroy(ask) => {
            let request = DestroyKey {
                below_version: ask.below_version,
                delay: ask.delay,
                expected_head: ask.once.expected_head,
                op_id: Some(op_id(ask.once.op_id)),
            };
            show::changed(&explain(kms.destroy(&ask.key, &request, deadline()))?, json)
        }
        Command::Sign(ask) => sign::sign(&kms, ask, json),
        Command::SshSign(ask) => ssh::sign(&kms, &ask),
        Command::Csr(ask) => csr::run(&kms, &ask),
        Command::Verify(ask) => sign::verify(&kms, ask, json),
        Command::Import(ask) => transfer::import(&kms, &ask, json),
        Command::Export(ask) => transfer::export(&kms, &ask, json),
        Command::Backup(ask) => transfer::backup(&kms, &ask, json),
        Command::Restore(ask) => transfer::restore(&kms, &ask, json),
        Command::Recipient(_) | Command::Open(_) | Command::Birth(_) | Command::Migrate(_) => {
            Ok(()) // done above
        }
    }
}

fn rotate(kms: &KmsClient, ask: RotateArgs, json: bool) -> Result<(), String> {
    let RotateArgs { change, now } = ask;
    // A rotation of a key that may be known to others does not depend on what this read only prints.
    let before = match kms.key(&change.key, deadline()) {
        Err(_) if now => None,
        before => Some(explain(before)?),
    };
    let before = before.filter(|doc| matches!(doc.payload, PayloadPolicy::Jwt(_)));
    let publish_first = !now && before.is_some();
    let request = RotateRequest {
        expected_head: change.once.expected_head,
        publish_first,
        op_id: Some(op_id(change.once.op_id)),
    };
    let answer = explain(kms.rotate(&change.key, &request, deadline()))?;
    show::changed(&answer, json)?;
    if let Some(before) = before.filter(|doc| now && doc.head < answer.document.head) {
        still_verifies(&before);
    }
    Ok(())
}

/// Says how the version of a key that has signed tokens until now is revoked; not on standard output, which a program may read.
fn still_verifies(before: &KeyDoc) {
    let head = before
        .versions
        .iter()
        .find(|one| one.version == before.head);
    if let Some(jwk) = head.and_then(|head| head.jwk.as_ref()) {
        eprintln!(
            "tokens of version {} still verify, also new ones that others make with it, until it is revoked:\n  \
             ron token revoke --kid {} --reason 'the key may be known to others'",
            before.head, jwk.kid
        );
    }
}

pub fn client(
    data_dir: Option<&Path>,
    url: Option<String>,
    token_file: Option<&Path>,
) -> Result<KmsClient, String> {
    let layout = Layout::new(data_dir)?;
    let credential = match token_file {
        Some(file) => Credential::from_file(file)?,
        None => match login::credential(&layout, "ron-kms")? {
            Some(kept) => kept,
            None => Credential::from_file(&layout.operator_token())?,
        },
    };
    if let Some(url) = url {
        return Ok(KmsClient::new(&url, credential, net::client()));
    }
    let at = fleet::reach(&layout, "ron-kms")?;
    Ok(KmsClient::new(&at.url, credential, at.http))
}

pub fn deadline() -> Deadline {
    Deadline::within(WAIT)
}

pub fn explain<T>(answer: Result<T, ClientError>) -> Result<T, String> {
    answer.map_err(|e| format!("ron-kms: {e}"))
}

pub fn op_id(given: Option<OpId>) -> OpId {
    given.unwrap_or_else(|| OpId::from_random(OsRandom.bytes()))
}

fn retire(once: &Once) -> RetireKey {
    RetireKey {
        expected_head: once.expected_head,
        op_id: Some(op_id(once.op_id)),
    }
}

fn create(kms: &KmsClient, new: CreateArgs, json: bool) -> Result<(), String> {
    let request = CreateKey {
        tenant: new.tenant,
        purpose: new.purpose,
        alg: new.alg,
        payload: new.payload,
        exportable: new.exportable,
        rotate_every: new.rotate_every,
        backend: new.backend,
        op_id: op_id(new.op_id),
    };
    show::made(&explain(kms.create_key(&request, deadline()))?, json)
}

fn list_keys(kms: &KmsClient, list: &ListArgs, json: bool) -> Result<(), String> {
    let fields = [
        ("purpose", list.purpose.as_ref().map(ToString::to_string)),
        ("alg", list.alg.map(|alg| alg.to_string())),
        ("state", list.state.clone()),
    ];
    let given = fields.into_iter().filter_map(|(name, value)| {
        let value = value?;
        Some(format!("{name}={}", encode(&value)))
    });
    let filter: Vec<String> = given.collect();
    show::list(&all_keys(kms, &filter.join("&"))?, json)
}

/// A value of a query; `+` is the only character of names that has another meaning there.
fn encode(text: &str) -> String {
    text.replace('+', "%2B")
}

/// All keys that pass the filter, which is a query, without their versions.
pub fn all_keys(kms: &KmsClient, filter: &str) -> Result<KeyList, String> {
    let mut all = KeyList::default();
    let mut after = String::new();
    loop {
        let query = format!("limit=200&{filter}{after}");
        let page = explain(kms.keys_where(query.trim_end_matches('&'), deadline()))?;
        all.keys.extend(page.keys);
        all.quarantined.extend(page.quarantined);
        match page.next {
            Some(key) => after = format!("&after={}", encode(&key)),
            None => return Ok(all),
        }
    }
}

/// All versions of a key.
pub fn all_versions(kms: &KmsClient, key: &Kid) -> Result<Vec<KeyVersionDoc>, String> {
    explain(kms.versions_above(key, 0, WAIT))
}

/// Shows one key, or one of its public keys.
fn get(kms: &KmsClient, ask: &GetArgs, json: bool) -> Result<(), String> {
    let document = || explain(kms.key(&ask.key, deadline()));
    let Some(form) = ask.public.as_deref() else {
        if json {
            return show::as_json(&document()?);
        }
        show::key(&document()?, &all_versions(kms, &ask.key)?);
        return Ok(());
    };
    let number = ask
        .version
        .map_or_else(|| document().map(|doc| doc.head), Ok)?;
    let one = (number.saturating_sub(1), 1);
    let page = explain(kms.versions(&ask.key, one, deadline()))?;
    let version = page.versions.iter().find(|v| v.version == number);
    let version = version.ok_or_else(|| format!("the key has no version {number}"))?;
    if form == "ssh" {
        println!("{}", ssh::public_line(&ask.key, version)?);
        return Ok(());
    }
    show::public(version, ask.key.alg, form)
}
