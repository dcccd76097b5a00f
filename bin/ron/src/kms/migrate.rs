//! `ron kms migrate`: the key service goes from files to PostgreSQL, or back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ron_files::OsDisk;
use ron_kernel::{OsRandom, Random as _, SystemClock};
use ron_kms::migrate::{KeyMove, KeyService, LOG};
use ron_service::log_move::{Move, MoveError, Show};
use ron_service::records::{Engine, Postgres};
use ron_tlog::append::Migrated;
use ron_tlog::note::VerifierKey;

use crate::layout::Layout;
use crate::migrate::{self, MigrateArgs, Moves, Order, Way, log_table};
use crate::{fleet, verifiers};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron kms migrate --to 'postgresql://ron_kms@10.0.0.11,10.0.0.12/ron' --rehearse\n  ron kms migrate --to 'postgresql://ron_kms@10.0.0.11,10.0.0.12/ron'\n  ron kms migrate --to 'postgresql://ron_kms@10.0.0.11,10.0.0.12/ron' --resume\n  ron kms migrate --to files --from 'postgresql://ron_kms@10.0.0.11,10.0.0.12/ron'\n  ron kms migrate --to files --from postgresql://ron_kms@10.0.0.11/ron --config /etc/ron/ron-kms.toml --vkey kms.example/a+1234abcd+AQ..."
)]
pub struct KmsMigrateArgs {
    #[command(flatten)]
    common: MigrateArgs,
    /// Configuration file of the KMS, of one that is not in a data directory of `ron up`.
    #[arg(long, requires = "vkey", conflicts_with = "data_dir")]
    config: Option<PathBuf>,
    /// Verifier key of the audit log (name+id+key), instead of the one in verifiers.json.
    #[arg(long)]
    vkey: Option<String>,
}

/// The key service of a configuration.
struct Kms {
    service: KeyService,
    /// The keys of the audit log.
    keys: Vec<VerifierKey>,
}

impl Moves for Kms {
    const NAME: &'static str = "KMS";
    const SCHEMA: &'static str = "ron_kms";

    fn data(&self) -> &Path {
        self.service.data().path()
    }

    fn carry_out(&self, order: &Order<'_>, show: Show<'_>) -> Result<Migrated, MoveError> {
        let kms = KeyMove {
            service: &self.service,
            log: Move {
                data: self.service.data(),
                log: LOG,
                place: order.place,
                keys: &self.keys,
                engine: order.engine,
                engines: &Postgres,
                run: OsRandom.u64(),
            },
            random: OsRandom::shared(),
            clock: SystemClock::shared(),
        };
        match order.way {
            Way::There => kms.to_engine(order.is_resumed, show),
            Way::Rehearsal => kms.rehearse(show),
            Way::Back => kms.to_files(order.is_resumed, show),
        }
    }

    fn after_there(&self, engine: &Engine) -> String {
        let records = Engine {
            schema: format!("{}_keys", engine.schema),
            ..engine.clone()
        };
        format!(
            "The keys and the remembered answers are in the database alone.\nSet these keys in the configuration and start it:\n\n{}\n\n{}\n\n[audit]\norigin = \"{}\"\n\n{}   # the same key on all nodes",
            log_table(engine),
            log_table(&records).replace("[log]", "[records]"),
            self.keys[0].name(),
            self.service.seal_table(),
        )
    }

    fn after_back(&self) -> String {
        format!(
            "The keys and the remembered answers of all nodes are in files too, and no node signs any more. The audit logs of other nodes stay in the database as they are.\nRemove log.* and records.* from the configuration, keep audit.origin = \"{}\" and seal.*, and start it",
            self.keys[0].name()
        )
    }
}

/// Moves the key service of a data directory of `ron up`, or of a configuration.
pub fn run(args: &KmsMigrateArgs, data_dir: Option<&Path>) -> Result<(), String> {
    let config = match &args.config {
        Some(file) => fleet::load_file("ron-kms", file)?,
        None => fleet::load(&Layout::new(data_dir)?, "ron-kms", &[])?,
    };
    let vkey = match &args.vkey {
        Some(vkey) => vkey.clone(),
        None => verifiers::read(&Layout::new(data_dir)?)?.audit_vkey,
    };
    let pin = VerifierKey::parse(&vkey).map_err(|e| format!("the verifier key: {e}"))?;
    let service = KeyService::of(&config, Arc::new(OsDisk)).map_err(fleet::lines)?;
    let keys = service.verifiers(&pin)?;
    migrate::run(&args.common, &Kms { service, keys })
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
        let text = format!("data_dir = \"{}\"\n", dir.path().display());
        let config = Config::from_toml(&ron_kms::TABLE, Path::new("kms.toml"), &text);
        let service = KeyService::of(&config.expect("a configuration"), Arc::new(OsDisk));
        migrate::refuses_a_database_that_it_cannot_use(&Kms {
            service: service.expect("a data directory"),
            keys: vec![key.expect("a name").verifier().clone()],
        });
    }
}
