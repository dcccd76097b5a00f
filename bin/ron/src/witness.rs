//! `ron witness`: a stand-alone C2SP tlog-witness. It cosigns the checkpoints of known logs if they
//! extend the last one it saw, so that two hosts that run a witness for each other detect a log
//! that was truncated, rolled back or rewritten.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use ron_crypto::{Ed25519Key, Secret32, SecretBytes};
use ron_files::OsDisk;
use ron_http::{ApiInfo, Router};
use ron_kernel::{OsRandom, Topology, exit};
use ron_proto::b64;
use ron_service::config::{read_secret_file, render_example};
use ron_service::log_host::witness::{WITNESS_QUEUE, WITNESS_THREAD, serve};
use ron_service::{
    Boot, ChassisSettings, Config, ConfigProblem, DataDir, Running, Service, ServiceSettings,
    Settings as _, StartError, Table, load_process_config, run_process,
};
use ron_tlog::append::WitnessStore;
use ron_tlog::cosignature::Cosigner;
use ron_tlog::note::VerifierKey;

use crate::fleet::lines;
use crate::layout::write_atomic;

ron_service::settings! {
    struct Settings {
        /// Name of the witness in its cosignatures, like witness.example/w1. Never changes.
        "name" => name: String, range("1", "200"), restart(Documents);
        /// Verifier keys (name+id+key) of the logs to cosign; a key's name is its log's origin. Several
        /// keys of one log are allowed.
        "logs" => logs: Vec<VerifierKey>, restart(Trust);
        /// Seed of the Ed25519 key, 32 bytes as base64url, mode 0600. Empty: data_dir/witness.key, made
        /// at the first start.
        "key_file" => key_file: Option<PathBuf>, restart(Files);
    }
}

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        config.read().map_err(|problem| vec![problem])
    }
}

/// All keys of the witness.
static TABLE: Table = Table {
    service: "ron-witness",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7500"),
        (ChassisSettings::health_addr, "127.0.0.1:7505"),
    ],
    keys: Settings::GROUPS,
};

static TOPOLOGY: Topology = ron_service::topology! {
    service: "ron-witness",
    prefix: "wit",
    threads: [WITNESS_THREAD],
    queues: [WITNESS_QUEUE],
    locks: [],
};

/// Cosign the checkpoints of other logs (C2SP tlog-witness).
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron witness print-example > witness.toml\n  ron witness --config witness.toml vkey          # for the policies of logs and verifiers\n  ron witness --config witness.toml --set logs=ron-kms.example/audit+1234abcd+AQ...\n\nTERM drains and ends with code 0."
)]
pub struct WitnessArgs {
    /// Configuration file (TOML).
    #[arg(long, short, global = true)]
    config: Option<PathBuf>,
    /// Set one key, as in KEY=VALUE; overrides environment and file; may be repeated.
    #[arg(long, global = true)]
    set: Vec<String>,
    #[command(subcommand)]
    command: Option<WitnessCommand>,
}

#[derive(Subcommand, Clone, Copy)]
enum WitnessCommand {
    /// Run in the foreground (the default).
    Run,
    /// Print the verifier key of the cosignatures; makes the key if there is none.
    Vkey,
    /// Validate the configuration and print it.
    CheckConfig,
    /// Print a configuration file with every key and its default.
    PrintExample,
}

/// Why the witness has no amnesia mode.
const FORGETS: &str = "amnesia = true is refused: a witness that forgets could sign two histories";

pub fn run(args: &WitnessArgs) -> Result<(), String> {
    let command = args.command.unwrap_or(WitnessCommand::Run);
    if matches!(command, WitnessCommand::PrintExample) {
        print!("{}", render_example(&TABLE));
        return Ok(());
    }
    let config = load_process_config(&TABLE, args.config.as_deref(), &args.set);
    let config = config.map_err(lines)?;
    match command {
        WitnessCommand::CheckConfig => {
            config.check_writers().map_err(lines)?;
            ron_service::check::<Witness>(&config).map_err(lines)?;
            print!("{}", config.render_effective());
        }
        WitnessCommand::Vkey => {
            let settings: Settings = config.read().map_err(|e| e.to_string())?;
            let dir = DataDir::open(&config, Arc::new(OsDisk)).map_err(|e| e.to_string())?;
            let dir = dir.ok_or(FORGETS)?;
            println!("{}", cosigner(&settings, dir.path())?.verifier());
        }
        _ => return attend(config),
    }
    Ok(())
}

/// Serves until a signal or a failure.
fn attend(config: Config) -> Result<(), String> {
    let announce = |running: &Running| {
        println!(
            "witness {}   health {}\nready",
            running.api_url(),
            running.health_url()
        );
    };
    match run_process::<Witness>(config, announce).map_err(|e| e.to_string())? {
        exit::OK => Ok(()),
        code => Err(format!(
            "the witness ended with code {code}; its log says why"
        )),
    }
}

struct Witness;

impl Service for Witness {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;

    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let Boot {
            settings,
            chassis,
            data_dir,
            ..
        } = boot;
        let dir = data_dir.ok_or_else(|| StartError::failed(FORGETS))?;
        let cosigner = cosigner(&settings, dir.path()).map_err(StartError::failed)?;
        let keys = settings.logs;
        if keys.is_empty() {
            let why = "logs is empty: name the verifier key of at least one log";
            return Err(StartError::failed(why));
        }
        // One key for two purposes would make a log's signature pass for a cosignature, and the
        // reverse.
        if keys
            .iter()
            .any(|k| k.public()[..] == *cosigner.verifier().public())
        {
            return Err(StartError::failed(
                "the key of a log is the key of this witness",
            ));
        }
        let vkey = cosigner.verifier().to_string();
        let store = WitnessStore::open(chassis.disk.clone(), &dir.file("cosigned"), cosigner, keys)
            .map_err(StartError::failed)?;
        tracing::info!(event = "witness", vkey);
        chassis.capabilities(&["add-checkpoint", "cosignature-v1"]);
        let routes = serve(
            store,
            &chassis.sup,
            &chassis.registry,
            &chassis.km,
            chassis.clock.clone(),
            chassis.ready.clone(),
        );
        let info = ApiInfo {
            title: "ron-witness",
            version: env!("CARGO_PKG_VERSION"),
            description: "Cosigns checkpoints that extend the last one it saw (C2SP tlog-witness).",
        };
        chassis.serve(Router::new(info).add_all(routes))
    }
}

fn cosigner(settings: &Settings, dir: &Path) -> Result<Cosigner, String> {
    let made_here = settings.key_file.is_none();
    let path = settings.key_file.clone();
    let path = path.unwrap_or_else(|| dir.join("witness.key"));
    let there = path
        .try_exists()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let seed = match (there, made_here) {
        (true, _) => read_seed(&path)?,
        (false, true) if !dir.join("cosigned").exists() => make_seed(&path)?,
        _ => {
            return Err(format!(
                "{} is missing; restore it from a backup",
                path.display()
            ));
        }
    };
    Cosigner::new(&settings.name, Ed25519Key::from_seed(seed.expose()))
        .map_err(|e| format!("name: {e}"))
}

fn read_seed(path: &Path) -> Result<Secret32, String> {
    let text = read_secret_file(path)?;
    let text = std::str::from_utf8(text.expose()).unwrap_or("");
    let mut bytes = b64::from_url_array::<32>(text)
        .map_err(|_| format!("{} must hold 32 bytes as base64url", path.display()))?;
    let seed = Secret32::from_slice(&bytes);
    bytes.fill(0);
    Ok(seed)
}

/// Makes a new seed, durable before it is used.
fn make_seed(path: &Path) -> Result<Secret32, String> {
    let seed = Secret32::generate(&OsRandom);
    let text = SecretBytes::from(b64::url(seed.expose()).into_bytes());
    write_atomic(path, text.expose(), 0o600)?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        assert_eq!(
            ron_service::topology_faults(&TOPOLOGY),
            Vec::<String>::new()
        );
    }
}
