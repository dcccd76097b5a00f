//! The `main` of the thin binaries: arguments, logging, signals, reload, drain, exit codes. The
//! only module that touches the process.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use ron_kernel::{Deadline, Signal, SignalEvents, Signals, exit};

use crate::boot::{Service, check, start};
use crate::chassis::{Inherited, Parts, Running};
use crate::config::{self, Config, ConfigProblem, Origin, Table};
use crate::error::StartError;
use crate::logging::{self, LevelHandle};
use crate::notify::Manager;
use crate::stalls::Stalls;

/// Runs a service as a process: `main_with::<ron_kms::RonKms>()`.
pub fn main_with<S: Service>() -> ExitCode {
    ExitCode::from(run::<S>())
}

fn run<S: Service>() -> u8 {
    let table = S::TABLE;
    let matches = match command(table).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                exit::CONFIG
            } else {
                exit::OK
            };
        }
    };
    match matches.subcommand_name() {
        Some("print-example") => return print(&config::render_example(table)),
        Some("print-docs") => return print(&config::render_markdown(table)),
        _ => {}
    }
    let config = match load(table, &matches) {
        Ok(config) => config,
        Err(problems) => return refuse(table, &StartError::Config(problems)),
    };
    if matches.subcommand_name() == Some("check-config") {
        let checked = config.check_writers().and_then(|()| check::<S>(&config));
        return match checked {
            Ok(_) => print(&config.render_effective()),
            Err(problems) => refuse(table, &StartError::Config(problems)),
        };
    }
    run_process::<S>(config, |_| ()).unwrap_or_else(|error| refuse(table, &error))
}

/// Runs a service until a signal, a stop request or a fatal error, with logger and signal handlers of
/// its own process; returns the exit code of the drain. `started` is called once its ports answer.
pub fn run_process<S: Service>(
    config: Config,
    started: impl FnOnce(&Running),
) -> Result<u8, StartError> {
    let inherited = Inherited::from_env(); // changes the environment, so before any thread starts
    let level = logging::init_from(&config);
    if let Err(error) = ron_crypto::process_hardening() {
        tracing::warn!(event = "hardening_incomplete", error = %error);
    }
    let signals = Signals::install()
        .map_err(|e| StartError::failed(format!("signals cannot be handled: {e}")))?;
    let parts = Parts::bind_beside(&config, inherited?)?;
    let stop = parts.stop.0.clone();
    signals.terminated().on_fire(move || stop.fire());
    let running = start::<S>(config, parts)?;
    started(&running);
    Ok(run_until_stopped(running, &signals, &level))
}

/// Waits for signals, a stop request or a fatal error, then drains. The service manager hears of each step.
fn run_until_stopped(mut running: Running, signals: &SignalEvents, level: &LevelHandle) -> u8 {
    let mut manager = Manager::from_env();
    let mut stalls = Stalls::default();
    loop {
        manager.notify(|| running.ready());
        if running.fatal().is_some() || running.stop_requested() {
            break;
        }
        // The wait is short because a stop request or a fatal plane does not wake this thread.
        let due = Deadline::within(Duration::from_millis(100));
        let signal = signals.recv(due);
        stalls.woke(due, [&running]);
        match signal {
            Some(Signal::Terminate) => break,
            Some(Signal::Reload) => drop(running.reload_from_file()), // its outcome is in the log
            None => {}
        }
        level.set(running.config().chassis().log_level);
    }
    manager.stopping();
    let within = running.config().chassis().drain_deadline;
    let report = running.drain(within);
    running.exit_code(&report)
}

/// Prints one line per problem on standard error.
fn refuse(table: &Table, error: &StartError) -> u8 {
    let mut out = std::io::stderr().lock();
    for line in error.to_string().lines() {
        let _ = writeln!(out, "{}: {line}", table.service);
    }
    error.exit_code()
}

fn print(text: &str) -> u8 {
    let _ = std::io::stdout().lock().write_all(text.as_bytes()); // the reader may close the pipe
    exit::OK
}

/// The command line of a service; public so that completions and manual pages can be made from it.
pub fn command(table: &'static Table) -> Command {
    let config = Arg::new("config")
        .long("config")
        .short('c')
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .global(true)
        .help("Configuration file (TOML)");
    let set = Arg::new("set")
        .long("set")
        .value_name("KEY=VALUE")
        .action(ArgAction::Append)
        .global(true)
        .help("Set one key; takes precedence over environment and file; may be repeated");
    let name = table.service;
    let sub = |word: &'static str, about: &'static str, example: &str| {
        let example = format!("Examples:\n  {name} {word}{example}");
        Command::new(word).about(about).after_help(example)
    };
    Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .about(format!("{name}: runs the service in the foreground"))
        .after_help(format!(
            "Examples:\n  {name} --config /etc/ron/{name}/config.toml\n  {name} check-config --config config.toml --set log.level=debug\n\n{}",
            config::render_help(table)
        ))
        .arg(config)
        .arg(set)
        .subcommand(sub(
            "run",
            "Runs the service (the default)",
            " --config config.toml",
        ))
        .subcommand(sub(
            "check-config",
            "Validates the configuration and prints it, secrets redacted",
            " --config config.toml",
        ))
        .subcommand(sub(
            "print-example",
            "Prints a configuration file with every key and its default",
            " > config.toml",
        ))
        .subcommand(sub(
            "print-docs",
            "Prints the table of keys as Markdown",
            " > keys.md",
        ))
}

fn load(table: &'static Table, matches: &ArgMatches) -> Result<Config, Vec<ConfigProblem>> {
    let path = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let set = matches.get_many::<String>("set").into_iter().flatten();
    load_process_config(table, path, set)
}

/// Loads the configuration of a process: the file, its environment, then `KEY=VALUE` pairs.
pub fn load_process_config<'a>(
    table: &'static Table,
    path: Option<&Path>,
    set: impl IntoIterator<Item = &'a String>,
) -> Result<Config, Vec<ConfigProblem>> {
    let mut flags = Vec::new();
    for pair in set {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(vec![ConfigProblem {
                origin: Origin::Flag,
                key: format!("--set {pair}"),
                why: "must be written KEY=VALUE".to_owned(),
            }]);
        };
        flags.push((key.trim().to_owned(), value.to_owned()));
    }
    let env = |name: &str| std::env::var(name).ok();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    load_checked(table, path, &env, &flags, names)
}

/// Loads the configuration, and refuses variables with the service's prefix that name no key: they
/// are misspelt settings.
fn load_checked(
    table: &'static Table,
    path: Option<&Path>,
    env: &dyn Fn(&str) -> Option<String>,
    flags: &[(String, String)],
    names: impl Iterator<Item = String>,
) -> Result<Config, Vec<ConfigProblem>> {
    let text = path.map(config::read_file).transpose()?;
    let file = path.zip(text.as_deref());
    let config = Config::load(table, file, env, flags)?;
    let (rows, prefix) = (table.rows(), table.env_prefix());
    let mut problems: Vec<ConfigProblem> = names
        .filter(|name| name.starts_with(&prefix))
        .filter(|name| !rows.iter().any(|row| table.env_name(row.name) == *name))
        // A variable that the configuration names as the source of a secret is not a setting.
        .filter(|name| {
            !config
                .values()
                .any(|(_, value)| value.to_toml().contains(name.as_str()))
        })
        .map(|name| {
            let typed = name[prefix.len()..].to_ascii_lowercase();
            let near = rows.iter().filter_map(|row| {
                let edits = config::close(&row.name.replace('.', "_"), &typed)?;
                Some((edits, row.name))
            });
            let near = near.min().map(|(_, name)| table.env_name(name));
            ConfigProblem {
                origin: Origin::Env(name),
                key: String::new(),
                why: config::unknown_key(near.as_deref()),
            }
        })
        .collect();
    problems.sort_by_key(ToString::to_string);
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LogLevel, Settings as _};

    crate::settings! {
        #[allow(dead_code)] // the test reads the table
        struct Own {
            /// Where a secret is, as in env:NAME.
            "secret_from" => secret_from: Option<String>, restart(Files);
        }
    }
    static TABLE: Table = Table {
        service: "ron-trial",
        defaults: &[],
        keys: Own::GROUPS,
    };

    fn check(names: &[&str], flags: &[(&str, &str)]) -> Result<Config, String> {
        let flags: Vec<(String, String)> = flags
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect();
        load_checked(
            &TABLE,
            None,
            &|_| None,
            &flags,
            names.iter().map(|&name| name.to_owned()),
        )
        .map_err(|problems| {
            problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        })
    }

    #[test]
    fn misspelt_variables_are_refused_by_name() {
        assert!(
            check(
                &[
                    "PATH",
                    "RON_TESTING",
                    "RON_TRIAL_LOG_LEVEL",
                    "RON_TRIAL_LIMITS_MAX_BODY_BYTES"
                ],
                &[]
            )
            .is_ok()
        );
        assert_eq!(
            check(&["RON_TRIAL_LOG_LEVLE", "RON_TRIAL_BIND_ADR"], &[]).unwrap_err(),
            "environment RON_TRIAL_BIND_ADR: is not a known key; did you mean RON_TRIAL_BIND_ADDR?\n\
             environment RON_TRIAL_LOG_LEVLE: is not a known key; did you mean RON_TRIAL_LOG_LEVEL?"
        );
        assert!(
            check(
                &["RON_TRIAL_PASS"],
                &[("secret_from", "env:RON_TRIAL_PASS")]
            )
            .is_ok()
        );
    }

    #[test]
    fn the_command_line_is_consistent_and_its_help_names_every_key() {
        command(&TABLE).debug_assert();
        let help = command(&TABLE).render_long_help().to_string();
        for row in TABLE.rows() {
            assert!(help.contains(row.name), "{} is missing", row.name);
        }
        let matches = command(&TABLE)
            .try_get_matches_from(["ron-trial", "check-config", "--set", "log.level=debug"])
            .unwrap();
        let loaded = load(&TABLE, &matches).unwrap();
        assert_eq!(loaded.chassis().log_level, LogLevel::Debug);
        let matches = command(&TABLE)
            .try_get_matches_from(["ron-trial", "--set", "log.level"])
            .unwrap();
        assert!(
            load(&TABLE, &matches).unwrap_err()[0]
                .to_string()
                .contains("KEY=VALUE")
        );
        let matches = command(&TABLE)
            .try_get_matches_from(["ron-trial", "-c", "/no/such.toml"])
            .unwrap();
        assert!(
            load(&TABLE, &matches).unwrap_err()[0]
                .to_string()
                .contains("/no/such.toml")
        );
    }
}
