//! Import and export: keys are wrapped and unwrapped here, so that the KMS's port never carries one.

use std::path::{Path, PathBuf};

use clap::Args;
use ron_client::KmsClient;
use ron_crypto::hpke::{HpkeKey, Kem};
use ron_crypto::secret::SecretBytes;
use ron_crypto::{OsRandom, keyblob};
use ron_kms::keys::wrapping::{export_info, import_info, kem_of, wrap_for};
use ron_proto::kms::{Bytes, ExportKey, ImportKey, PayloadPolicy, Recipient, RotateEvery};
use ron_proto::{Alg, Kid, OpId, Purpose, Tenant, b64};
use ron_service::config::read_secret_file;
use ron_tlog::note::{Note, VerifierKey};
use serde::{Deserialize, Serialize};

use super::{op_id, payload, show, soon, told};
use crate::layout::{read_json, write_json};

#[derive(Args)]
pub struct ImportArgs {
    /// The private key, mode 0600: PKCS#8 in PEM (Ed25519, P-256), or raw bytes: an Ed25519 or ML-DSA
    /// seed, both seeds of a hybrid, a symmetric key.
    file: PathBuf,
    /// Tenant; must be that of the caller.
    #[arg(long, default_value = "ron")]
    tenant: Tenant,
    /// What it is for.
    #[arg(long)]
    purpose: Purpose,
    /// Its algorithm.
    #[arg(long)]
    alg: Alg,
    /// What it may sign: any, digest, or a policy as JSON.
    #[arg(long, default_value = "any", value_parser = payload)]
    payload: PayloadPolicy,
    /// Let it leave again, wrapped.
    #[arg(long)]
    exportable: bool,
    /// Rotate it this often, such as 30d.
    #[arg(long)]
    rotate_every: Option<RotateEvery>,
    /// Verifier key line of the KMS's audit log, which vouches for the wrapping key; asked of the
    /// KMS itself when absent, which proves nothing about who answers.
    #[arg(long)]
    vkey: Option<String>,
    /// The same id and request again makes no second key.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
pub struct ExportArgs {
    /// The key.
    key: Kid,
    /// Which version; the head when absent.
    #[arg(long)]
    version: Option<u32>,
    /// Public key file that `ron kms recipient` wrote.
    #[arg(long)]
    to: PathBuf,
    /// Where to write the wrapped key.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args)]
pub struct RecipientArgs {
    /// Where to write the private key; the public one goes to the same name with `.pub`.
    file: PathBuf,
    /// x25519+ml-kem-768 or x25519-hkdf-aes256-gcm.
    #[arg(long, default_value = "x25519+ml-kem-768")]
    alg: Alg,
}

#[derive(Args)]
pub struct OpenArgs {
    /// What `ron kms export` wrote.
    file: PathBuf,
    /// The recipient's private key.
    #[arg(long)]
    with: PathBuf,
    /// Where to write the key that was inside.
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

/// Wraps a key here and hands it over.
pub fn import(kms: &KmsClient, args: &ImportArgs, json: bool) -> Result<(), String> {
    let secret = read_private_key(&args.file, args.alg)?;
    let to = told(kms.wrapping_key(Alg::X25519MlKem768, soon()))?;
    let vkey = match &args.vkey {
        Some(line) => line.clone(),
        None => told(kms.audit_vkey(soon()))?,
    };
    let vkey = VerifierKey::parse(vkey.trim()).map_err(|e| format!("--vkey: {e}"))?;
    let note = Note::parse(&to.statement).map_err(|e| format!("the wrapping key: {e}"))?;
    note.verify(std::slice::from_ref(&vkey))
        .map_err(|e| format!("nobody trusted vouches for the wrapping key: {e}"))?;
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
        wrapping_key: to.id,
        wrapped,
        op_id: op_id(args.op_id),
    };
    show::made(&told(kms.import(&request, soon()))?, json)
}

/// Gets a wrapped key and writes it to a file.
pub fn export(kms: &KmsClient, args: &ExportArgs, json: bool) -> Result<(), String> {
    let request = ExportKey {
        version: args.version,
        recipient: Some(read_json(&args.to)?),
        op_id: Some(op_id(None)),
    };
    let answer = told(kms.export(&args.key, &request, soon()))?;
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

/// Makes a recipient's key pair.
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

/// Opens a wrapped key.
pub fn open(args: &OpenArgs) -> Result<(), String> {
    let wrapped: WrappedFile = read_json(&args.file)?;
    let mine: RecipientFile = read_json(&args.with)?;
    let kem: Kem = kem_of(mine.alg).ok_or("the recipient's key is of another algorithm")?;
    let key = HpkeKey::from_bytes(kem, &SecretBytes::new(mine.private_key.0))
        .map_err(|e| format!("{}: {e}", args.with.display()))?;
    let info = export_info(&wrapped.key, wrapped.version);
    let secret = keyblob::unwrap_key(&key, &info, &wrapped.wrapped.0)
        .ok_or("it was wrapped to another recipient, or was changed")?;
    crate::layout::write_atomic(&absolute(&args.out)?, secret.expose(), 0o600)?;
    println!("{}", args.out.display());
    Ok(())
}

/// The path with its directory, which is synced with the file.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// What the KMS takes as the private key of `alg`: see `docs/formats/kms.md`.
fn read_private_key(path: &Path, alg: Alg) -> Result<SecretBytes, String> {
    // Checks who may read the file; it also cuts line ends off, which raw keys may end in.
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
        Alg::EcdsaP256 => Ok(der),
        // RFC 8410: the seed ends the document, behind its fixed front of 16 bytes.
        Alg::Ed25519 if der.len() == 48 && der.expose()[..16] == ED25519_FRONT => {
            Ok(SecretBytes::from_slice(&der.expose()[16..]))
        }
        _ => Err(format!(
            "{}: a PEM file must hold an Ed25519 or P-256 key; give other keys as raw bytes",
            path.display()
        )),
    }
}

const ED25519_FRONT: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The document in a PEM file; `None` when it is no PEM file.
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
