//! `ron kms`: keys from the command line, as the operator of a data directory or with a token at
//! any KMS.

mod access;
mod approvals;
mod birth;
mod csr;
mod derive;
mod migrate;
mod names;
mod show;
mod sign;
mod ssh;
mod transfer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use ron_client::{ClientError, Credential, KmsClient};
use ron_kernel::{Deadline, OsRandom};
use ron_proto::kms::{
    AdoptKey, AskApproval, CreateKey, DestroyKey, KeyBackend, KeyDoc, KeyList, KeyVersionDoc,
    PayloadPolicy, Period, RetireKey, RotateEvery, RotateRequest, TokenObject, UpdateKey,
};
use ron_proto::values::{Alias, KeyRef, TagMatch, TagName, TagValue, TokenName, ValueError};
use ron_proto::{Alg, Kid, OpId, Purpose, Tenant};

use names::named;

use crate::layout::{Layout, from_environment};
use crate::{fleet, login, net};

/// Timeout of one response.
const WAIT: Duration = Duration::from_secs(10);

/// Make, use, rotate, retire, destroy, import, export, back up and restore keys.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  KEY=$(ron kms create --purpose app --alg ed25519 --rotate-every 30d)\n  ron kms list --state active --tag team=web\n  ron kms update $KEY --tag team=web --description 'invoices'\n  ron kms alias set app $KEY && ron kms sign alias/app --file invoice.pdf\n  SIG=$(ron kms sign $KEY --file release.tar.gz)\n  ron kms verify $KEY --file release.tar.gz --signature $SIG\n  ron kms derive alias/agree --peer theirs.pem --info 'orders v1' --wrap-with alias/kek\n  ron kms rotate $KEY --expected-head 1\n  ron kms destroy $KEY --delay 7d && ron kms cancel $KEY\n  ron kms import --purpose app --alg ed25519 old-key.pem\n  ron kms export $KEY --to recipient.pub --out key.wrapped\n  ron kms backup $KEY --out key.backup && ron kms restore key.backup"
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
    /// Change which versions of a key verify, its rotation, its tags and description, and whether it is exportable.
    Update(UpdateArgs),
    /// Second names of keys: set, move, delete and list them.
    Alias(names::AliasArgs),
    /// The policy of a key: who may do what with it, and under which conditions.
    Policy(access::PolicyArgs),
    /// Grants: rights to use a key for some time, beside its policy.
    Grant(access::GrantArgs),
    /// Requests that need the approvals of several people.
    Approvals(approvals::ApprovalsArgs),
    /// Approve a request that waits, by a signature with your own key.
    Approve(approvals::ApproveArgs),
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
    /// Derive a secret by key agreement or HKDF, and print it wrapped, or a MAC under it.
    #[command(disable_version_flag = true)]
    Derive(derive::DeriveArgs),
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
    /// Name of the PKCS#11 token that holds the key, where the KMS is configured with several; implies --backend pkcs11.
    #[arg(long)]
    token: Option<TokenName>,
    /// Idempotency id: the same id and request makes no second key. Random when absent.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
#[command(group(ArgGroup::new("object").required(true).args(["label", "id"])))]
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
    /// Name of the token that has the object, where the KMS is configured with several.
    #[arg(long)]
    token: Option<TokenName>,
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
    /// List only the key with this alias, without alias/.
    #[arg(long)]
    alias: Option<Alias>,
    /// List only keys with this tag, as name or name=value; repeat it to demand several.
    #[arg(long)]
    tag: Vec<TagMatch>,
}

#[derive(Args)]
struct GetArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
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
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
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
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
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
    /// Describe what the key is for; an empty text removes the description.
    #[arg(long)]
    description: Option<String>,
    /// Set a tag, as name=value; may be repeated.
    #[arg(long, value_parser = tag)]
    tag: Vec<(TagName, TagValue)>,
    /// Remove a tag; may be repeated.
    #[arg(long)]
    untag: Vec<TagName>,
    #[command(flatten)]
    once: Once,
}

#[derive(Args)]
struct DestroyArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// Delay of the destruction, such as 7d; the KMS's default when absent.
    #[arg(long)]
    delay: Option<Period>,
    /// Destroy only the secrets of the versions below this one, which no longer verify; the key stays in use.
    #[arg(long)]
    below_version: Option<u32>,
    /// Ask for the approvals that the key's policy demands, and print the id of the request.
    #[arg(long)]
    ask_approval: bool,
    #[command(flatten)]
    once: Once,
}

fn payload(text: &str) -> Result<PayloadPolicy, String> {
    let plain = serde_json::Value::String(text.to_owned());
    serde_json::from_value(plain)
        .or_else(|_| serde_json::from_str(text))
        .map_err(|e| format!("not `any`, `digest`, `prehash` or a policy as JSON: {e}"))
}

fn tag(text: &str) -> Result<(TagName, TagValue), String> {
    let tag: TagMatch = text.parse().map_err(|e: ValueError| e.to_string())?;
    let value = tag.value.ok_or("write a tag as name=value")?;
    Ok((tag.name, value))
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
        Command::Approvals(ask) if let Some(done) = ask.local() => return done,
        Command::Policy(ask) if ask.is_local() => return access::local(&ask),
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
                token: ask.token,
                payload: ask.payload,
                op_id: op_id(ask.op_id),
            };
            show::made(&explain(kms.adopt(&request, deadline()))?, json)
        }
        Command::List(list) => list_keys(&kms, &list, json),
        Command::Get(ask) => get(&kms, &ask, json),
        Command::Rotate(ask) => rotate(&kms, ask, json),
        Command::Alias(ask) => names::run(&kms, ask, json),
        Command::Policy(ask) => access::policy(&kms, ask, json),
        Command::Grant(ask) => access::grant(&kms, ask, json),
        Command::Approvals(ask) => approvals::run(&kms, &ask, json),
        Command::Approve(ask) => approvals::approve(&kms, &ask, json),
        Command::Update(ask) => {
            let set = ask.tag.into_iter().map(|(name, value)| (name, Some(value)));
            let removed = ask.untag.into_iter().map(|name| (name, None));
            let request = UpdateKey {
                min_verify_version: ask.min_verify_version,
                min_wrap_version: ask.min_wrap_version,
                deletion_allowed: ask.deletion_allowed,
                rotate_every: ask.rotate_every,
                exportable: ask.not_exportable.then_some(false),
                description: ask.description,
                tags: set.chain(removed).collect(),
                expected_head: ask.once.expected_head,
                op_id: Some(op_id(ask.once.op_id)),
            };
            show::changed(
                &explain(kms.update(&named(&kms, &ask.key)?, &request, deadline()))?,
                json,
            )
        }
        Command::Derive(ask) => derive::run(&kms, ask, json),
        Command::Retire(ask) => {
            let answer = kms.retire(&named(&kms, &ask.key)?, &retire(&ask.once), deadline());
            show::changed(&explain(answer)?, json)
        }
        Command::Cancel(ask) => {
            let answer =
                kms.cancel_destroy(&named(&kms, &ask.key)?, &retire(&ask.once), deadline());
            show::changed(&explain(answer)?, json)
        }
        Command::Destroy(ask) => {
            let id = op_id(ask.once.op_id);
            let request = DestroyKey {
                below_version: ask.below_version,
                delay: ask.delay,
                expected_head: ask.once.expected_head,
                op_id: Some(id),
            };
            if ask.ask_approval {
                let wanted = AskApproval {
                    destroy: Some(request),
                    ..AskApproval::default()
                };
                return approvals::ask(&kms, &named(&kms, &ask.key)?, (id, wanted), json);
            }
            show::changed(
                &explain(kms.destroy(&named(&kms, &ask.key)?, &request, deadline()))?,
                json,
            )
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
    let key = named(kms, &change.key)?;
    let before = match kms.key(&key, deadline()) {
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
    let answer = explain(kms.rotate(&key, &request, deadline()))?;
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
    let named = from_environment("RON_TOKEN_FILE").map(PathBuf::from);
    let credential = match token_file.or(named.as_deref()) {
        Some(file) => Credential::from_file(file)?,
        None => match login::credential(&layout, "ron-kms")? {
            Some(kept) => kept,
            None => Credential::from_file(&layout.operator_token())?,
        },
    };
    let named = from_environment("RON_URL").map(|url| url.to_string_lossy().into_owned());
    if let Some(url) = url.or(named) {
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
    let of_token = new.token.is_some().then_some(KeyBackend::Pkcs11);
    let request = CreateKey {
        tenant: new.tenant,
        purpose: new.purpose,
        alg: new.alg,
        payload: new.payload,
        exportable: new.exportable,
        derived: false,
        rotate_every: new.rotate_every,
        backend: new.backend.or(of_token),
        token: new.token,
        op_id: op_id(new.op_id),
    };
    show::made(&explain(kms.create_key(&request, deadline()))?, json)
}

fn list_keys(kms: &KmsClient, list: &ListArgs, json: bool) -> Result<(), String> {
    let fields = [
        ("purpose", list.purpose.as_ref().map(ToString::to_string)),
        ("alg", list.alg.map(|alg| alg.to_string())),
        ("state", list.state.clone()),
        ("alias", list.alias.as_ref().map(ToString::to_string)),
    ];
    let tags = list.tag.iter().map(|tag| ("tag", Some(tag.to_string())));
    let given = fields.into_iter().chain(tags).filter_map(|(name, value)| {
        let value = value?;
        Some(format!("{name}={}", encode(&value)))
    });
    let filter: Vec<String> = given.collect();
    show::list(&all_keys(kms, &filter.join("&"))?, json)
}

/// A value of a query; `+` and `=` are the only characters of names and tags that have another meaning there.
fn encode(text: &str) -> String {
    text.replace('+', "%2B").replace('=', "%3D")
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
    let key = named(kms, &ask.key)?;
    let document = || explain(kms.key(&key, deadline()));
    let Some(form) = ask.public.as_deref() else {
        if json {
            return show::as_json(&document()?);
        }
        show::key(&document()?, &all_versions(kms, &key)?);
        return Ok(());
    };
    let number = ask
        .version
        .map_or_else(|| document().map(|doc| doc.head), Ok)?;
    let one = (number.saturating_sub(1), 1);
    let page = explain(kms.versions(&key, one, deadline()))?;
    let version = page.versions.iter().find(|v| v.version == number);
    let version = version.ok_or_else(|| format!("the key has no version {number}"))?;
    if form == "ssh" {
        println!("{}", ssh::public_line(&key, version)?);
        return Ok(());
    }
    show::public(version, key.alg, form)
}
