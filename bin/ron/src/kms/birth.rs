//! `ron kms attest` makes a key's birth certificate; `ron kms verify-birth` checks one offline: the
//! leaf of the key's creation, the proof that the log contains it, the service's statement and the
//! TPM's.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::KmsClient;
use ron_kernel::{Backoff, Deadline, Shutdown};
use ron_kms::{Expect, verify_birth};
use ron_proto::kms::{ATTEST_VERSION, AttestRequest, BirthCertificate};

use crate::layout::{read_json, write_json};

/// Timeout of one call.
const CALL: Duration = Duration::from_secs(10);
/// Maximum wait for the checkpoint that covers a key's creation.
const PROOF: Duration = Duration::from_secs(10);

/// Make and check birth certificates of keys.
#[derive(Subcommand)]
pub enum BirthCommand {
    /// Write the birth certificate of a key's version.
    #[command(disable_version_flag = true)]
    Attest(AttestArgs),
    /// Check a birth certificate offline.
    VerifyBirth(VerifyArgs),
}

#[derive(Args)]
pub struct AttestArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: ron_proto::values::KeyRef,
    /// Version of the key; the head when absent.
    #[arg(long)]
    key_version: Option<u32>,
    /// Nonce in hexadecimal, which shows that the evidence is fresh.
    #[arg(long, default_value = "")]
    nonce: String,
    /// File to write the certificate to.
    #[arg(long)]
    out: PathBuf,
    /// Data directory of `ron up`; set by the options of `ron kms`, see [`BirthCommand::at`].
    #[arg(skip)]
    data_dir: Option<PathBuf>,
    /// Base URL of the KMS.
    #[arg(skip)]
    url: Option<String>,
    /// File with a token of scope kms:read.
    #[arg(skip)]
    token_file: Option<PathBuf>,
}

#[derive(Args)]
#[command(
    after_help = "Without --vkey and --attestation-key the certificate's own keys are trusted; give both keys to verify its origin."
)]
pub struct VerifyArgs {
    /// File with the certificate.
    file: PathBuf,
    /// Verifier key of the audit log (name+id+key), from a trusted source.
    #[arg(long)]
    vkey: Option<String>,
    /// The TPM's attestation key, from a trusted source: an uncompressed point in hexadecimal.
    #[arg(long)]
    attestation_key: Option<String>,
    /// The nonce that was given to `attest`, in hexadecimal.
    #[arg(long)]
    nonce: Option<String>,
}

impl BirthCommand {
    /// The same command, at the KMS that the options of `ron kms` name.
    pub fn at(
        mut self,
        data_dir: Option<PathBuf>,
        url: Option<String>,
        token_file: Option<PathBuf>,
    ) -> Self {
        if let Self::Attest(args) = &mut self {
            (args.data_dir, args.url, args.token_file) = (data_dir, url, token_file);
        }
        self
    }
}

/// Runs one of the two.
pub fn run(command: BirthCommand) -> Result<(), String> {
    match command {
        BirthCommand::Attest(args) => attest(&args),
        BirthCommand::VerifyBirth(args) => check(&args),
    }
}

fn bytes(name: &str, text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2);
    let one = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok().filter(|p| p.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    };
    digits
        .map(one)
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| format!("--{name} must be pairs of hexadecimal digits"))
}

fn attest(args: &AttestArgs) -> Result<(), String> {
    let client = super::client(
        args.data_dir.as_deref(),
        args.url.clone(),
        args.token_file.as_deref(),
    )?;
    let request = AttestRequest {
        version: args.key_version,
        nonce: bytes("nonce", &args.nonce)?.into(),
    };
    let evidence = client
        .attest(
            &super::names::named(&client, &args.key)?,
            &request,
            Deadline::within(CALL),
        )
        .map_err(|e| e.to_string())?;
    let proof = proof(&client, evidence.statement.birth)?;
    let certificate = BirthCertificate {
        v: ATTEST_VERSION,
        evidence,
        proof,
    };
    // A certificate that does not verify is not written.
    let birth = verify_birth(&certificate, &Expect::default())?;
    let out = std::path::absolute(&args.out).map_err(|e| e.to_string())?;
    write_json(&out, &certificate, 0o644)?;
    println!(
        "{}#v{}: {}, leaf {} of {}; written to {}",
        birth.key,
        birth.version,
        certificate.evidence.class,
        birth.leaf,
        birth.log_size,
        out.display()
    );
    Ok(())
}

/// The proof of a leaf; waits for the checkpoint that covers it.
fn proof(client: &KmsClient, leaf: u64) -> Result<String, String> {
    let (_never, pause) = Shutdown::pair();
    let end = Deadline::within(PROOF);
    let ms = Duration::from_millis;
    let mut backoff = Backoff::new(ms(100), ms(1000), ms(100), leaf);
    loop {
        match client.audit_proof(leaf, Deadline::within(CALL)) {
            Ok(proof) => return Ok(proof),
            Err(error) if end.expired() => {
                return Err(format!("the proof of leaf {leaf}: {error}"));
            }
            Err(_) => {
                pause.wait(Deadline::within(backoff.next_pause()).earlier(end));
            }
        }
    }
}

fn check(args: &VerifyArgs) -> Result<(), String> {
    let certificate: BirthCertificate = read_json(&args.file)?;
    let known = |name, text: &Option<String>| text.as_deref().map(|t| bytes(name, t)).transpose();
    let expect = Expect {
        vkey: args.vkey.clone(),
        attestation_key: known("attestation-key", &args.attestation_key)?,
        nonce: known("nonce", &args.nonce)?,
    };
    let birth = verify_birth(&certificate, &expect)
        .map_err(|why| format!("{} is refused: {why}", args.file.display()))?;
    println!(
        "ok: {}#v{} was {} in leaf {} of {} ({} leaves) and is held by backend `{}`{}{}",
        birth.key,
        birth.version,
        if birth.imported { "imported" } else { "made" },
        birth.leaf,
        certificate.evidence.statement.log,
        birth.log_size,
        birth.backend.as_str(),
        if birth.quoted.is_some() {
            ", certified by its TPM"
        } else {
            ""
        },
        if expect.vkey.is_none() {
            "; the log's key is the certificate's own, pin it with --vkey"
        } else {
            ""
        },
    );
    Ok(())
}
