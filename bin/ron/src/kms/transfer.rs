//! Import, export, backup and restore: imported and exported keys are wrapped and unwrapped in this program, so that no plaintext key
//! passes the KMS's port.

use std::path::{Path, PathBuf};

use clap::Args;
use ron_client::KmsClient;
use ron_crypto::hpke::{HpkeKey, Kem};
use ron_crypto::keyblob;
use ron_crypto::secret::SecretBytes;
use ron_custody::keys::kem_of;
use ron_custody::keys::wrapping::{export_info, import_info, wrap_for};
use ron_kernel::OsRandom;
use ron_proto::kms::{
    AskApproval, BackupKey, Bytes, ExportKey, ImportKey, PayloadPolicy, Recipient, RestoreKey,
    RotateEvery,
};
use ron_proto::values::KeyRef;
use ron_proto::{Alg, Kid, OpId, Purpose, Tenant, b64};
use ron_service::config::read_secret_file;
use ron_tlog::note::{Note, VerifierKey};
use serde::{Deserialize, Serialize};

use super::approvals;
use super::names::named;
use super::{deadline, explain, op_id, payload, show};
use crate::layout::{read_json, write_atomic, write_json};

#[derive(Args)]
pub struct ImportArgs {
    /// File with the private key, mode 0600: PKCS#8 in PEM (Ed25519, ECDSA, RSA, rsa-oaep), or raw bytes: an
    /// Ed25519 or ML-DSA seed, both seeds of a hybrid, a symmetric key.
    file: PathBuf,
    /// Tenant of the key; must be the caller's.
    #[arg(long, default_value = "ron")]
    tenant: Tenant,
    /// Purpose of the key.
    #[arg(long)]
    purpose: Purpose,
    /// Algorithm of the key.
    #[arg(long)]
    alg: Alg,
    /// Payload policy, which limits what the key may sign: any, digest, or a policy as JSON.
    #[arg(long, default_value = "any", value_parser = payload)]
    payload: PayloadPolicy,
    /// Allow export in wrapped form.
    #[arg(long)]
    exportable: bool,
    /// Rotation interval, such as 30d.
    #[arg(long)]
    rotate_every: Option<RotateEvery>,
    /// Verifier key line of the KMS's audit log, which authenticates the wrapping key. When absent,
    /// the KMS itself is asked for it, which does not prove the KMS's identity.
    #[arg(long)]
    vkey: Option<String>,
    /// Idempotency id: the same id and request makes no second key.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
pub struct ExportArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// Version of the key; the head when absent.
    #[arg(long)]
    version: Option<u32>,
    /// Public key file written by `ron kms recipient`.
    #[arg(long)]
    to: PathBuf,
    /// File to write the wrapped key to.
    #[arg(long)]
    out: PathBuf,
    /// Ask for the approvals that the key's policy demands, and print the id of the request.
    #[arg(long)]
    ask_approval: bool,
    /// Id of the request; the one that was approved, where approvals are needed. Random when absent.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
pub struct BackupArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// File to write the backup to.
    #[arg(long)]
    out: PathBuf,
    /// Ask for the approvals that the key's policy demands, and print the id of the request.
    #[arg(long)]
    ask_approval: bool,
    /// Id of the request; the one that was approved, where approvals are needed. Random when absent.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
pub struct RestoreArgs {
    /// File written by `ron kms backup`.
    file: PathBuf,
    /// Tenant of the key; must be the caller's.
    #[arg(long, default_value = "ron")]
    tenant: Tenant,
    /// Purpose of the restored key; that in the backup when absent.
    #[arg(long)]
    purpose: Option<Purpose>,
    /// Idempotency id: the same id and request makes no second key.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
pub struct RecipientArgs {
    /// File to write the private key to; the public key goes to the same name with `.pub`.
    file: PathBuf,
    /// Algorithm of the key pair: x25519+ml-kem-768 or x25519-hkdf-aes256-gcm.
    #[arg(long, default_value = "x25519+ml-kem-768")]
    alg: Alg,
}

#[derive(Args)]
pub struct OpenArgs {
    /// File written by `ron kms export`.
    file: PathBuf,
    /// File with the recipient's private key.
    #[arg(long)]
    with: PathBuf,
    /// File to write the unwrapped key to.
    #[arg(long)]
    out: PathBuf,
}

/// A recipient's private key as a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipientFile {
    alg: Alg,
    private_key: Bytes,
}

/// A wrapped key as a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrappedFile {
    key: Kid,
    version: u32,
    wrapped: Bytes,
}

/// Wraps a key in this program and sends it to the KMS.
pub fn import(kms: &KmsClient, args: &ImportArgs, json: bool) -> Result<(), String> {
    let secret = read_private_key(&args.file, args.alg)?;
    let to = explain(kms.wrapping_key(Alg::X25519MlKem768, deadline()))?;
    let vkey = match &args.vkey {
        Some(line) => line.clone(),
        None => explain(kms.audit_vkey(deadline()))?,
    };
    let vkey = VerifierKey::parse(vkey.trim()).map_err(|e| format!("--vkey: {e}"))?;
    let note = Note::parse(&to.statement).map_err(|e| format!("the wrapping key: {e}"))?;
    note.verify(std::slice::from_ref(&vkey))
        .map_err(|e| format!("the wrapping key is not signed by a trusted audit log: {e}"))?;
    let public = ron_proto::b64::std(&to.public_key.0);
    let said = to
        .statement
        .lines()
        .nth(3)
        .is_some_and(|line| line == public);
    if !said {
        return Err("the statement of the audit log is about another wrapping key".to_owned());
    }
    let recipient = Recipient {
        alg: to.alg,
        public_key: to.public_key,
    };
    let info = import_info(&args.tenant, &args.purpose, args.alg);
    let wrapped = wrap_for(&recipient, &info, &secret, &OsRandom).map_err(|e| e.to_string())?;
    let request = ImportKey {
        tenant: args.tenant.clone(),
        purpose: args.purpose.clone(),
        alg: args.alg,
        payload: args.payload.clone(),
        exportable: args.exportable,
        rotate_every: args.rotate_every,
        into: None,
        wrapping_key: to.id,
        wrapped,
        op_id: op_id(args.op_id),
    };
    show::made(&explain(kms.import(&request, deadline()))?, json)
}

/// Fetches a wrapped key and writes it to a file.
pub fn export(kms: &KmsClient, args: &ExportArgs, json: bool) -> Result<(), String> {
    let id = op_id(args.op_id);
    let request = ExportKey {
        version: args.version,
        recipient: Some(read_json(&args.to)?),
        op_id: Some(id),
    };
    if args.ask_approval {
        let wanted = AskApproval {
            export: Some(request),
            ..AskApproval::default()
        };
        return approvals::ask(kms, &named(kms, &args.key)?, (id, wanted), json);
    }
    let answer = explain(kms.export(&named(kms, &args.key)?, &request, deadline()))?;
    let file = WrappedFile {
        key: answer.key.clone(),
        version: answer.version,
        wrapped: answer.wrapped.clone(),
    };
    write_json(&absolute(&args.out)?, &file, 0o600)?;
    if json {
        return show::as_json(&answer);
    }
    println!("{}", args.out.display());
    eprintln!("version {}, leaf {}", answer.version, answer.receipt.index);
    Ok(())
}

/// Writes a backup to a file. It needs no protection of its own: only the KMS opens it.
pub fn backup(kms: &KmsClient, args: &BackupArgs, json: bool) -> Result<(), String> {
    let (key, id) = (named(kms, &args.key)?, op_id(args.op_id));
    let request = BackupKey { op_id: Some(id) };
    if args.ask_approval {
        let wanted = AskApproval {
            backup: Some(request),
            ..AskApproval::default()
        };
        return approvals::ask(kms, &key, (id, wanted), json);
    }
    let answer = explain(kms.backup(&key, &request, deadline()))?;
    let text = format!("{}\n", answer.backup);
    write_atomic(&absolute(&args.out)?, text.as_bytes(), 0o600)?;
    if json {
        return show::as_json(&answer);
    }
    println!("{}", args.out.display());
    eprintln!(
        "versions 1 to {}, leaf {}; it opens with the seal key of this KMS, so keep that apart from it",
        answer.head, answer.receipt.index
    );
    Ok(())
}

pub fn restore(kms: &KmsClient, args: &RestoreArgs, json: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(&args.file);
    let text = text.map_err(|e| format!("{}: {e}", args.file.display()))?;
    let request = RestoreKey {
        tenant: args.tenant.clone(),
        purpose: args.purpose.clone(),
        backup: text.trim().to_owned(),
        op_id: op_id(args.op_id),
    };
    show::made(&explain(kms.restore(&request, deadline()))?, json)
}

pub fn recipient(args: &RecipientArgs) -> Result<(), String> {
    let kem =
        kem_of(args.alg).ok_or("--alg must be x25519+ml-kem-768 or x25519-hkdf-aes256-gcm")?;
    if args.file.exists() {
        return Err(format!("{} is there already", args.file.display()));
    }
    let key = HpkeKey::generate(kem, &OsRandom);
    let private = RecipientFile {
        alg: args.alg,
        private_key: Bytes(key.to_bytes().expose().to_vec()),
    };
    let public = Recipient {
        alg: args.alg,
        public_key: Bytes(key.public().to_vec()),
    };
    let mut beside = args.file.as_os_str().to_owned();
    beside.push(".pub");
    write_json(&absolute(&args.file)?, &private, 0o600)?;
    write_json(&absolute(Path::new(&beside))?, &public, 0o644)?;
    println!("{}", Path::new(&beside).display());
    Ok(())
}

pub fn open(args: &OpenArgs) -> Result<(), String> {
    let wrapped: WrappedFile = read_json(&args.file)?;
    let mine: RecipientFile = read_json(&args.with)?;
    let kem: Kem = kem_of(mine.alg).ok_or("the recipient's key is of another algorithm")?;
    let key = HpkeKey::from_bytes(kem, &SecretBytes::new(mine.private_key.0))
        .map_err(|e| format!("{}: {e}", args.with.display()))?;
    let info = export_info(&wrapped.key, wrapped.version);
    let secret = keyblob::unwrap_key(&key, &info, &wrapped.wrapped.0)
        .ok_or("it was wrapped to another recipient, or was changed")?;
    write_atomic(&absolute(&args.out)?, secret.expose(), 0o600)?;
    println!("{}", args.out.display());
    Ok(())
}

/// The path with its directory, which is synced with the file.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Reads the KMS's form of a private key of `alg`: see `docs/formats/kms.md`.
pub fn read_private_key(path: &Path, alg: Alg) -> Result<SecretBytes, String> {
    // Checks the file's mode. It also strips line ends, which raw keys may end in; these are read
    // again below.
    let trimmed = read_secret_file(path)?;
    let bytes = if from_pem(trimmed.expose()).is_some() {
        trimmed
    } else {
        let raw = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        SecretBytes::new(raw)
    };
    let Some(der) = from_pem(bytes.expose()) else {
        return Ok(bytes);
    };
    let der = der.map_err(|e| format!("{}: {e}", path.display()))?;
    match alg {
        _ if alg.is_ecdsa() || alg.is_rsa() || alg.is_oaep() => Ok(der),
        Alg::EcdhP256 | Alg::EcdhP384 => Ok(der),
        // RFC 8410: the seed or scalar ends the document, after a fixed prefix of 16 bytes.
        Alg::Ed25519 if der.len() == 48 && der.expose()[..16] == front(0x70) => {
            Ok(SecretBytes::from_slice(&der.expose()[16..]))
        }
        Alg::EcdhX25519 if der.len() == 48 && der.expose()[..16] == front(0x6e) => {
            Ok(SecretBytes::from_slice(&der.expose()[16..]))
        }
        _ => Err(format!(
            "{}: a PEM file must hold a key of {alg}, which is one of RSA or on a curve; give other keys as raw bytes",
            path.display()
        )),
    }
}

/// PKCS#8 before 32 bytes of an algorithm of RFC 8410, whose identifier ends in `arc`.
const fn front(arc: u8) -> [u8; 16] {
    [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, arc, 0x04, 0x22, 0x04,
        0x20,
    ]
}

/// The document in a PEM file; `None` if it is not a PEM file.
fn from_pem(bytes: &[u8]) -> Option<Result<SecretBytes, String>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let body = text.trim().strip_prefix("-----BEGIN PRIVATE KEY-----");
    if body.is_none() && text.trim_start().starts_with("-----BEGIN") {
        return Some(Err("it is not PKCS#8 (BEGIN PRIVATE KEY)".to_owned()));
    }
    let body = body?.strip_suffix("-----END PRIVATE KEY-----");
    let Some(body) = body else {
        return Some(Err("the END line is missing".to_owned()));
    };
    let joined = zeroize(body.split_whitespace().collect());
    Some(
        b64::from_std(&joined)
            .map(SecretBytes::new)
            .map_err(|_| "it is not base64".to_owned()),
    )
}

fn zeroize(text: String) -> ZeroizedText {
    ZeroizedText(SecretBytes::from(text))
}

/// Text that is erased when dropped.
struct ZeroizedText(SecretBytes);

impl std::ops::Deref for ZeroizedText {
    type Target = str;
    fn deref(&self) -> &str {
        std::str::from_utf8(self.0.expose()).expect("it was made from a string")
    }
}
