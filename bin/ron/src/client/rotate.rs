//! `ron client rotate-secret`: the next secret of a client, while the one in use stays good for a time.

use clap::Args;
use ron_auth::{client_secret, service_token};
use ron_client::{ClientError, ClientProof, PassportClient};
use ron_kernel::{Clock as _, SystemClock};
use ron_proto::Timestamp;
use ron_service::config::parse_duration;

use super::{Issuer, NameArgs, blocks, unknown};
use crate::in_force::put_in_force;
use crate::layout::{ClientFile, make_dir, write_json};

#[derive(Args)]
pub struct RotateArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Time for which the old secret stays good; with 0s it ends at once. Of two older secrets the older one always ends at once.
    #[arg(long, default_value = "1h")]
    overlap: String,
}

pub fn run(args: &RotateArgs) -> Result<(), String> {
    let name = args.name.name.as_str();
    let overlap = parse_duration(&args.overlap).map_err(|e| format!("--overlap: {e}"))?;
    let end = Timestamp(SystemClock.unix_ms()).saturating_add(overlap);
    let issuer = Issuer::of(&args.name.place)?;
    let client = issuer.clients.iter().find(|client| client.id == name);
    let client = client.ok_or_else(|| unknown(name))?;
    let file = ClientFile::new(name);
    let hash = service_token::hash(&file.client_secret);
    let text = blocks::with_secrets(&issuer.text, name, |old| {
        let kept = old.last().filter(|_| !overlap.is_zero());
        let kept = kept.map(|old| ending(old, end));
        kept.into_iter().chain([hash]).collect()
    });
    let text = text.ok_or_else(|| {
        format!(
            "{name} proves itself by {}, and no secret_sha256 of it is in {}: change it by hand (`ron client secret`)",
            client.proofs.join(", "),
            issuer.layout.config("svc-passport").display()
        )
    })?;
    let path = issuer.layout.client(name);
    make_dir(&issuer.layout.root.join("clients"))?;
    issuer.write(&text, &issuer.names())?;
    if let Err(e) = write_json(&path, &file, 0o600) {
        // Nobody would have the secret of the new hash.
        issuer.write(&issuer.text, &issuer.names())?;
        return Err(e);
    }
    println!("client {name} has a new secret: {}", path.display());
    // As a client it gives back a token that does not exist.
    let is_so = |issuer: &PassportClient, until| {
        let proof = ClientProof::Secret(&file.client_secret);
        match issuer.give_back(name, proof, "none", until) {
            Ok(()) => Ok(true),
            Err(ClientError::Refused { status: 401, .. }) => Ok(false),
            Err(e) => Err(e.to_string()),
        }
    };
    if !put_in_force(&issuer.layout, "the new secret", is_so)? {
        return Ok(());
    }
    if overlap.is_zero() {
        println!("it is in force, and the old secret has ended");
    } else {
        println!("it is in force; the old secret ends at {end} at the latest");
    }
    println!("tokens that were issued with the old secret stay valid until they expire");
    Ok(())
}

/// The hash of a secret that ends at this time, or at its own end if that is earlier.
fn ending(old: &str, end: Timestamp) -> String {
    let (hash, own) = old.split_once('@').unwrap_or((old, ""));
    match client_secret::parse_end(own) {
        Ok(own) if own < end => old.to_owned(),
        _ => format!("{hash}@{end}"),
    }
}
