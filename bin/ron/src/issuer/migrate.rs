//! `ron issuer migrate`: the issuer goes from files to PostgreSQL, or back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ron_files::OsDisk;
use ron_kernel::{OsRandom, Random as _, SystemClock};
use ron_service::log_move::{Move, MoveError, Show};
use ron_service::records::{Engine, Postgres};
use ron_tlog::append::Migrated;
use ron_tlog::note::VerifierKey;
use svc_passport::{IssuerMove, IssuerService, LOG_DIR};

use crate::layout::Layout;
use crate::migrate::{self, MigrateArgs, Moves, Order, Way, log_table};
use crate::{fleet, verifiers};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron issuer migrate --to 'postgresql://svc_passport@10.0.0.11,10.0.0.12/ron' --rehearse\n  ron issuer migrate --to 'postgresql://svc_passport@10.0.0.11,10.0.0.12/ron'\n  ron issuer migrate --to 'postgresql://svc_passport@10.0.0.11,10.0.0.12/ron' --resume\n  ron issuer migrate --to files --from 'postgresql://svc_passport@10.0.0.11,10.0.0.12/ron'"
)]
pub struct IssuerMigrateArgs {
    #[command(flatten)]
    common: MigrateArgs,
    /// Data directory, as given to `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Configuration file of the issuer, of one that is not in a data directory of `ron up`.
    #[arg(long, requires = "vkey", conflicts_with = "data_dir")]
    config: Option<PathBuf>,
    /// Verifier key of the revocation log (name+id+key), instead of the one in verifiers.json.
    #[arg(long)]
    vkey: Option<String>,
}

/// The issuer of a configuration.
struct Issuer {
    service: IssuerService,
    vkey: VerifierKey,
}

impl Moves for Issuer {
    const NAME: &'static str = "issuer";
    const SCHEMA: &'static str = "svc_passport";

    fn data(&self) -> &Path {
        self.service.data().path()
    }

    fn carry_out(&self, order: &Order<'_>, show: Show<'_>) -> Result<Migrated, MoveError> {
        let issuer = IssuerMove {
            service: &self.service,
            log: Move {
                data: self.service.data(),
                log: LOG_DIR,
                place: order.place,
                keys: std::slice::from_ref(&self.vkey),
                engine: order.engine,
                engines: &Postgres,
                run: OsRandom.u64(),
            },
            random: OsRandom::shared(),
            clock: SystemClock::shared(),
        };
        match order.way {
            Way::There => issuer.to_engine(order.is_resumed, show),
            Way::Rehearsal => issuer.rehearse(show),
            Way::Back => issuer.to_files(order.is_resumed, show),
        }
    }

    fn after_there(&self, engine: &Engine) -> String {
        let records = log_table(&self.service.records(engine)).replace("[log]", "[records]");
        format!(
            "It reads all entries from the database when it starts.\nSet these keys in the configuration and start it:\n\n{}\n\n{records}",
            log_table(engine)
        )
    }

    fn after_back(&self) -> String {
        "remove log.* and records.* from its configuration and start it; no node revokes or issues any more".to_owned()
    }
}

/// Moves the issuer of a data directory of `ron up`, or of a configuration.
pub fn run(args: &IssuerMigrateArgs) -> Result<(), String> {
    let layout = || Layout::new(args.data_dir.as_deref());
    let config = match &args.config {
        Some(file) => fleet::load_file("svc-passport", file)?,
        None => fleet::load(&layout()?, "svc-passport", &[])?,
    };
    let vkey = match &args.vkey {
        Some(vkey) => vkey.clone(),
        None => verifiers::read(&layout()?)?.revocations_vkey,
    };
    let issuer = Issuer {
        service: IssuerService::of(&config, Arc::new(OsDisk)).map_err(fleet::lines)?,
        vkey: VerifierKey::parse(&vkey).map_err(|e| format!("the verifier key: {e}"))?,
    };
    migrate::run(&args.common, &issuer)
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;
    use ron_service::Config;
    use ron_tlog::note::Ed25519NoteSigner;

    use super::*;

    #[test]
    fn a_database_that_it_cannot_use_is_refused() {
        let key = Ed25519NoteSigner::new("a/b", Ed25519Key::from_seed(&[1; 32]));
        let dir = tempfile::tempdir().expect("a directory");
        let text = format!(
            "data_dir = \"{}\"\n[kms]\nkey = \"ron/issuer/ed25519/0190f0a0-0000-7000-8000-000000000001\"\n[policy]\ndir = \"/p\"\n\
             public_keys = [\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"]\n",
            dir.path().display()
        );
        let table = fleet::table("svc-passport").expect("a service");
        let config = Config::from_toml(table, Path::new("passport.toml"), &text);
        let service = IssuerService::of(&config.expect("a configuration"), Arc::new(OsDisk));
        migrate::refuses_a_database_that_it_cannot_use(&Issuer {
            service: service.expect("a data directory"),
            vkey: key.expect("a name").verifier().clone(),
        });
    }
}
