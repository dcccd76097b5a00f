//! `ron client rotate-secret`: the next secret of a client, while the one in use stays good for a time.

use std::time::Duration;

use clap::Args;
use ron_auth::{client_secret, service_token};
use ron_client::{ClientError, ClientProof, Credential, PassportClient};
use ron_kernel::{Clock as _, Deadline, SystemClock};
use ron_proto::Timestamp;
use ron_service::config::parse_duration;

use super::{Issuer, NameArgs, blocks, unknown};
use crate::layout::{ClientFile, Layout, make_dir, write_json};
use crate::{fleet, net};

/// Maximum wait for the new secret to come into force after a reload.
const IN_FORCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
const CALL: Duration = Duration::from_secs(3);

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
            "{name} proves itself by {}, and no secret_sha256 of it is written in one line of {}: change it by hand (`ron client secret`)",
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
    if !fleet::reload(&issuer.layout)? {
        eprintln!(
            "the services are separate processes: reload svc-passport (kill -HUP, or systemctl reload) to put it in force"
        );
        return Ok(());
    }
    is_in_force(&issuer.layout, name, &file)?;
    if overlap.is_zero() {
        println!("it is in force, and the old secret has ended");
    } else {
        println!("it is in force; the old secret ends at {end} at the latest");
    }
    println!("tokens that were issued with the old secret stay valid until they expire");
    Ok(())
}

/// Waits until the issuer takes the secret: as a client it gives back a token that does not exist.
fn is_in_force(layout: &Layout, name: &str, file: &ClientFile) -> Result<(), String> {
    let at = fleet::reach(layout, "svc-passport")?;
    let issuer = PassportClient::new(&at.url, Credential::none(), at.http);
    let until = Deadline::within(IN_FORCE);
    loop {
        let proof = ClientProof::Secret(&file.client_secret);
        match issuer.give_back(name, proof, "none", until.capped(CALL)) {
            Ok(()) => return Ok(()),
            Err(ClientError::Refused { status: 401, .. }) if !until.expired() => {}
            Err(e) => {
                return Err(format!(
                    "the new secret is written, but not in force yet: {e}; `ron doctor` says why"
                ));
            }
        }
        net::pause(PAUSE);
    }
}

/// The hash of a secret that ends at this time, or at its own end if that is earlier.
fn ending(old: &str, end: Timestamp) -> String {
    let (hash, own) = old.split_once('@').unwrap_or((old, ""));
    match client_secret::parse_end(own) {
        Ok(own) if own < end => old.to_owned(),
        _ => format!("{hash}@{end}"),
    }
}
