//! `ron client`: secrets of OAuth clients. The issuer keeps a hash and the client the secret; no
//! other copy exists.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ron_auth::{client_secret, service_token};

use crate::layout::{ClientFile, Layout, make_dir, write_json};

/// Make secrets for OAuth clients of the issuer.
#[derive(Args)]
pub struct ClientArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a new secret for a client: the secret goes to a file, its hash to standard output.
    Secret(SecretArgs),
}

#[derive(Args)]
struct SecretArgs {
    /// Name of the client (its client_id).
    name: String,
    /// Data directory, as given to `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// File to write the secret to, with mode 0600; clients/<name>.json of the data directory when
    /// absent. Must not exist.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Expiry of the secret, as in 2027-01-01T00:00:00Z; never when absent.
    #[arg(long)]
    expires: Option<String>,
}

pub fn run(args: &ClientArgs) -> Result<(), String> {
    match &args.command {
        Command::Secret(args) => secret(args),
    }
}

fn secret(args: &SecretArgs) -> Result<(), String> {
    let name = &args.name;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(good) {
        return Err("a client's name is 1 to 64 of A-Z, a-z, 0-9, . _ and -".to_owned());
    }
    let end = match &args.expires {
        Some(text) => {
            let end = client_secret::parse_end(text).map_err(|e| format!("--expires: {e}"))?;
            format!("@{end}")
        }
        None => String::new(),
    };
    let path = if let Some(path) = &args.out {
        path.clone()
    } else {
        let layout = Layout::new(args.data_dir.as_deref())?;
        make_dir(&layout.root.join("clients"))?;
        layout.client(name)
    };
    if path.exists() {
        let path = path.display();
        return Err(format!(
            "{path} is there already; write the new secret to another file with --out, and put it in its place when \
             the issuer has the new hash"
        ));
    }
    let file = ClientFile::new(name);
    write_json(&path, &file, 0o600)?;
    let hash = service_token::hash(&file.client_secret);
    println!("secret_sha256 = [\"{hash}{end}\"]");
    eprintln!(
        "the secret is in {}; put this line into the block of {name} in [[clients]] of svc-passport's configuration \
         and reload it (a list of two keeps the old secret good meanwhile)",
        path.display()
    );
    Ok(())
}
