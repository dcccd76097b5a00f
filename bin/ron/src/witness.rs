//! `ron witness`: a stand-alone C2SP tlog-witness. It cosigns the checkpoints of known logs if they
//! extend the last one it saw, so that two hosts that run a witness for each other detect a log
//! that was truncated, rolled back or rewritten.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_crypto::{Ed25519Key, Random, Secret32, SecretBytes};
use ron_files::OsDisk;
use ron_http::{ApiInfo, Router};
use ron_kernel::{Deadline, Signal, Signals, Topology, exit};
use ron_proto::b64;
use ron_service::config::{read_secret_file, render_example};
use ron_service::log_host::witness::{WITNESS_QUEUE, WITNESS_THREAD, serve};
use ron_service::{
    CHASSIS_KEYS, Chassis, Config, DataDir, Key, Parts, Running, StartError, Table, listen_keys,
    logging,
};
use ron_tlog::append::WitnessStore;
use ron_tlog::cosignature::Cosigner;
use ron_tlog::note::VerifierKey;

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7500", "127.0.0.1:7505");
static KEYS: [Key; 3] = [
    Key::text(
        "name",
        "",
        "Name of the witness in its cosignatures, like witness.example/w1. Never changes.",
    )
    .range("1", "200")
    .required(),
    Key::list(
        "logs",
        "",
        "Verifier keys (name+id+key) of the logs to cosign; a key's name is its log's origin. Several keys of one log are allowed.",
    ),
    Key::path(
        "key_file",
        "",
        "Seed of the Ed25519 key, 32 bytes as base64url, mode 0600. Empty: data_dir/witness.key, made at the first start.",
    ),
];

/// All keys of the witness.
static TABLE: Table = Table {
    service: "ron-witness",
    env_prefix: "RON_WITNESS_",
    keys: &[CHASSIS_KEYS, &LISTEN, &KEYS],
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

pub fn run(args: &WitnessArgs) -> Result<(), String> {
    let command = args.command.unwrap_or(WitnessCommand::Run);
    if matches!(command, WitnessCommand::PrintExample) {
        print!("{}", render_example(&TABLE));
        return Ok(());
    }
    let config = load(args)?;
    match command {
        WitnessCommand::CheckConfig => print!("{}", config.render_effective()),
        WitnessCommand::Vkey => println!(
            "{}",
            cosigner(&config, data_dir(&config)?.path())?.verifier()
        ),
        _ => return attend(config),
    }
    Ok(())
}

fn load(args: &WitnessArgs) -> Result<Config, String> {
    let text = args
        .config
        .as_deref()
        .map(|path| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display())));
    let text = text.transpose()?;
    let file = args.config.as_deref().zip(text.as_deref());
    let mut flags = Vec::new();
    for pair in &args.set {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("--set {pair} must be written KEY=VALUE"))?;
        flags.push((key.trim().to_owned(), value.to_owned()));
    }
    Config::load(&TABLE, file, &|name| std::env::var(name).ok(), &flags).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })
}

fn data_dir(config: &Config) -> Result<DataDir, String> {
    let dir = DataDir::open(config).map_err(|e| e.to_string())?;
    dir.ok_or_else(|| {
        "amnesia = true is refused: a witness that forgets could sign two histories".into()
    })
}

/// Serves until a signal or a failure.
fn attend(config: Config) -> Result<(), String> {
    let _level = logging::init_from(&config);
    if let Err(e) = ron_crypto::process_hardening() {
        tracing::warn!(event = "hardening_incomplete", error = %e);
    }
    let signals = Signals::install().map_err(|e| format!("signals cannot be handled: {e}"))?;
    let parts = Parts::bind(&config).map_err(|e| e.to_string())?;
    let mut running = start(&config, &parts).map_err(|e| e.to_string())?;
    println!(
        "witness {}   health {}",
        running.api_url(),
        running.health_url()
    );
    println!("ready");
    let fatal = loop {
        if let Some(why) = running.fatal() {
            break Some(why);
        }
        // The wait is short because a stop by request does not wake this thread.
        let signal = signals.recv(Deadline::within(Duration::from_millis(100)));
        if running.stop_requested() || signal == Some(Signal::Terminate) {
            break None;
        }
    };
    let within = running.config().duration("drain_deadline");
    let report = running.drain(within);
    match (fatal, running.exit_code(&report)) {
        (Some(why), _) => Err(why),
        (None, exit::OK) => Ok(()),
        (None, code) => Err(format!("the drain ended with code {code}")),
    }
}

fn start(config: &Config, parts: &Parts) -> Result<Running, StartError> {
    let data = data_dir(config).map_err(StartError::failed)?;
    let cosigner = cosigner(config, data.path()).map_err(StartError::failed)?;
    let keys = log_keys(config).map_err(StartError::failed)?;
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
    let store = WitnessStore::open(Arc::new(OsDisk), &data.join("cosigned"), cosigner, keys)
        .map_err(StartError::failed)?;
    let chassis = Chassis::new(&TOPOLOGY, config, parts)?;
    tracing::info!(event = "witness", vkey);
    chassis.capabilities(&["add-checkpoint", "cosignature-v1"]);
    chassis.on_drained(move || drop(data));
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

fn log_keys(config: &Config) -> Result<Vec<VerifierKey>, String> {
    let keys: Vec<VerifierKey> = config
        .list("logs")
        .iter()
        .map(|line| VerifierKey::parse(line).map_err(|e| format!("logs: {line}: {e}")))
        .collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err("logs is empty: name the verifier key of at least one log".into());
    }
    Ok(keys)
}

fn cosigner(config: &Config, dir: &Path) -> Result<Cosigner, String> {
    let path = config
        .path_opt("key_file")
        .map_or_else(|| dir.join("witness.key"), PathBuf::from);
    let made_here = config.path_opt("key_file").is_none();
    let there = path
        .try_exists()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let seed = match (there, made_here) {
        (true, _) => read_seed(&path)?,
        (false, true) if !dir.join("cosigned").exists() => make_seed(dir, &path)?,
        _ => {
            return Err(format!(
                "{} is missing; restore it from a backup",
                path.display()
            ));
        }
    };
    Cosigner::new(config.str("name"), Ed25519Key::from_seed(seed.expose()))
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
fn make_seed(dir: &Path, path: &Path) -> Result<Secret32, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let random: &dyn Random = &ron_crypto::OsRandom;
    let seed = Secret32::generate(random);
    let text = SecretBytes::from(b64::url(seed.expose()).into_bytes());
    let tmp = dir.join("witness.key.tmp");
    let mut options = std::fs::OpenOptions::new();
    let options = options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(&tmp).map_err(fail)?;
    file.write_all(text.expose()).map_err(fail)?;
    file.sync_all().map_err(fail)?;
    std::fs::rename(&tmp, path).map_err(fail)?;
    std::fs::File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(fail)?;
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
