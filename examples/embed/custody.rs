//! Custody and signing without a service: a key that cannot be exported, two signatures, and the audit log that proves them.
//!
//! `embed-custody DIR` keeps everything durable in DIR; a second run signs with the same key.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_kernel::Deadline;
use ron_kms::{Custody, TABLE, verify_dir};
use ron_proto::kms::{CreateKey, PayloadPolicy, SignRequest, VerifyMode, VerifyRequest};
use ron_proto::values::{Alg, OpId};
use ron_service::Config;

type Failure = Box<dyn Error>;

// part: main
fn main() -> Result<(), Failure> {
    let dir = std::env::args_os().nth(1).ok_or("usage: embed-custody DIR");
    let dir = PathBuf::from(dir?);
    let custody = open(&dir)?;
    let invoices = [
        b"invoice 1: 250 to bob".as_slice(),
        b"invoice 2: 70 to carol",
    ];
    for invoice in invoices {
        sign(&custody, invoice)?;
    }
    // The verifier key is what an auditor pins; it is public.
    let vkey = custody.audit_vkey();
    let stragglers = custody.close(Duration::from_secs(5));
    if !stragglers.is_empty() {
        return Err(format!("threads did not end: {}", stragglers.join(", ")).into());
    }
    audit(&dir, &vkey)
}
// end

// part: open
fn open(dir: &Path) -> Result<Custody, Failure> {
    let dir = dir.to_str().ok_or("the directory's name is not UTF-8")?;
    // The keys of docs/config/ron-kms.md apply here too; nothing is read from the environment.
    let flags = [("data_dir", dir), ("audit.origin", "shop.example/invoices")];
    let flags: Vec<(String, String)> = flags
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let config =
        Config::load(&TABLE, None, &|_| None, &flags).map_err(ron_service::StartError::from)?;
    Ok(Custody::open(&config, "default".parse()?)?)
}
// end

// part: sign
fn sign(custody: &Custody, invoice: &[u8]) -> Result<(), Failure> {
    let deadline = Deadline::within(Duration::from_secs(5));
    // The same `op_id` gives the same key, however often this runs.
    let wanted = CreateKey {
        tenant: "default".parse()?,
        purpose: "invoices".parse()?,
        alg: Alg::Ed25519,
        backend: None,
        payload: PayloadPolicy::Any,
        exportable: false,
        derived: false,
        rotate_every: None,
        op_id: OpId::from_name("the key that signs invoices"),
        token: None,
    };
    let key = custody.create_key(wanted, deadline)?.key;
    let signed = custody.sign(SignRequest::message(key.clone(), invoice), deadline)?;
    let check = VerifyRequest {
        key: key.into(),
        version: Some(signed.version),
        message: Some(invoice.to_vec().into()),
        digest: None,
        prehash: None,
        signatures: signed.signatures,
        mode: VerifyMode::And,
    };
    let holds = custody.verify(check)?.ok;
    // By now the leaf is durable: a signature without its leaf is never returned.
    println!("leaf {}: signature holds: {holds}", signed.receipt.index);
    Ok(())
}
// end

// part: audit
fn audit(dir: &Path, vkey: &str) -> Result<(), Failure> {
    // Needs only the directory (or a copy) and the pinned key; nothing has to run.
    let report = verify_dir(&dir.join("audit"), vkey, &mut |_, _| {})?;
    for (key, ops) in &report.keys {
        println!("{key}: {} signatures", ops.signatures);
    }
    println!(
        "{} leaves verified, {} of them under the signed checkpoint",
        report.size, report.checkpoint_size
    );
    Ok(())
}
// end
