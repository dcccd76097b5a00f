//! `ron up`: the whole system in one process, with embedded defaults.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ron_kernel::{Deadline, Signal, Signals, exit};

use ron_service::config::{LogFormat, LogLevel};
use ron_service::logging::{self, Output};
use ron_service::stalls::Stalls;

use crate::backup::Recoveries;
use crate::fleet::{Failed, Fleet};
use crate::init::{self, Wanted};
use crate::layout::{Layout, base_port, make_dir, write_json};
use crate::log_files::{self, LogFiles};
use crate::verifiers;

/// Run all six services in one process.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron up\n  ron up --data-dir /srv/ron\n  ron up --data-dir /tmp/trial --base-port 0   # free ports, see run/endpoints.json\n\nCtrl-C drains and ends with code 0; a second Ctrl-C ends at once."
)]
pub struct UpArgs {
    /// Data directory; `ron` under the user's state directory when absent. Made if it does not
    /// exist.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// API port of the first service for this run; the others follow in steps of ten, health ports
    /// are five above. 0 takes free ports. The configured ports when absent: 7440 and above, unless
    /// `ron init` was given others.
    #[arg(long, value_parser = base_port)]
    base_port: Option<u16>,
    /// Minimum level of log lines on standard error.
    #[arg(long, default_value = "warn", value_enum)]
    log_level: LogLevel,
    /// Format of log lines on standard error.
    #[arg(long, default_value = "compact", value_enum)]
    log_format: LogFormat,
    /// Maximum size of the log files in `logs` of the data directory, which `ron trace` reads; the oldest
    /// lines go first. 0B keeps none.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = log_files::total_size)]
    keep_logs: u64,
    /// Minimum level of log lines in these files.
    #[arg(long, value_name = "LEVEL", default_value = "info", value_enum)]
    keep_level: LogLevel,
}

/// Runs `ron up`, which has exit codes of its own.
pub fn run(args: &UpArgs) -> ExitCode {
    let code = until_stopped(args).unwrap_or_else(|failed| {
        eprintln!("error: {}", failed.why);
        failed.code
    });
    ExitCode::from(code)
}

fn until_stopped(args: &UpArgs) -> Result<u8, Failed> {
    let mut outputs = vec![Output::stderr(args.log_format, args.log_level)];
    let mut logs = (args.keep_logs > 0).then(LogFiles::new);
    if let Some(logs) = &logs {
        let sink = logs.sink();
        let take = move |line: &[u8]| sink.take(line);
        outputs.push(Output::new(LogFormat::Json, args.keep_level, take));
    }
    logging::init("ron", outputs);
    let code = fleet_until_stopped(args, &mut logs);
    if let Some(logs) = &logs {
        logs.stop();
    }
    code
}

fn fleet_until_stopped(args: &UpArgs, logs: &mut Option<LogFiles>) -> Result<u8, Failed> {
    if let Err(e) = ron_crypto::process_hardening() {
        tracing::warn!(event = "hardening_incomplete", error = %e);
    }
    let signals = Signals::install().map_err(|e| format!("signals cannot be handled: {e}"))?;
    let layout = Layout::new(args.data_dir.as_deref())?;
    let made = init::ensure(&layout, &Wanted::ports(args.base_port))?;
    let recoveries = Recoveries::of(&layout)?;
    let fleet = Fleet::start(&layout, args.base_port, &signals.terminated())?;
    if let Some(logs) = &logs {
        logs.start(&layout.logs(), args.keep_logs, room_of_logs(&fleet));
    }
    if let Some(last) = recoveries.recoveries.last() {
        let (at, backup) = (last.at, last.backup);
        tracing::warn!(event = "recovered_from_backup", %at, %backup);
    }
    let sound = fleet
        .wait_ready()
        .and_then(|ready| verifiers::confirm(&layout).map(|()| ready));
    let ready = match sound {
        Ok(ready) => ready,
        Err(why) => {
            fleet.drain();
            return Err(Failed {
                why,
                code: exit::FATAL,
            });
        }
    };
    make_dir(&layout.root.join("run"))?; // backups do not contain it
    write_json(&layout.endpoints(), &fleet.endpoints, 0o600)?;
    announce(&layout, &fleet, made, ready);
    let fatal = serve(&fleet, &signals, logs);
    let code = fleet.drain();
    let _ = std::fs::remove_file(layout.endpoints()); // a stale file is recognised by its pid
    match fatal {
        Some(why) => Err(Failed {
            why,
            code: exit::FATAL,
        }),
        None => Ok(code),
    }
}

/// Free bytes that log files leave on the disk: twice what any service needs to go on, so that they never are what
/// stops one.
fn room_of_logs(fleet: &Fleet) -> u64 {
    let services = fleet.services.iter();
    let reserves = services.map(|service| service.config().chassis().disk_reserve.0);
    reserves.max().unwrap_or(0).saturating_mul(2)
}

/// Prints the addresses. A closed standard output is no error.
fn announce(layout: &Layout, fleet: &Fleet, made: bool, ready: bool) {
    let root = layout.root.display();
    let mut text = if made {
        format!("made {root}\n{}\n", init::keep_safe(layout))
    } else {
        format!("using {root}\n")
    };
    for e in &fleet.endpoints.services {
        let _ = writeln!(text, "  {:<13} {}   health {}", e.service, e.api, e.health);
    }
    let console = fleet.endpoints.of(svc_admin::settings::TABLE.service);
    let last = if ready {
        "ready".to_owned()
    } else {
        format!(
            "not ready: the machine's date does not fit the newest entries; check it with `date -u`, and if it is right run: \
             ron clock accept --data-dir {root}"
        )
    };
    let _ = write!(
        text,
        "console: {}/\na token: ron token --data-dir {root} --audience svc-wallet\n{last}\n",
        console.map_or("", |e| e.api.as_str()),
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Waits for a signal, a request to stop, or a fatal failure, and returns the reason of the latter.
fn serve(
    fleet: &Fleet,
    signals: &ron_kernel::SignalEvents,
    logs: &mut Option<LogFiles>,
) -> Option<String> {
    let mut stalls = Stalls::default();
    loop {
        if let Some(logs) = logs {
            logs.report();
        }
        let due = Deadline::within(Duration::from_millis(500));
        let signal = signals.recv(due);
        stalls.woke(due, &fleet.services);
        match signal {
            Some(Signal::Terminate) => return None,
            Some(Signal::Reload) => reload(fleet),
            None => {}
        }
        for service in &fleet.services {
            if let Some(why) = service.fatal() {
                return Some(format!("{}: {why}", service.service()));
            }
            if service.stop_requested() {
                return None;
            }
        }
    }
}

fn reload(fleet: &Fleet) {
    for service in &fleet.services {
        match service.reload_from_file() {
            Ok(diff) if diff.is_empty() => {}
            Ok(diff) => eprintln!("{} reloaded: {}", service.service(), diff.summary()),
            Err(e) => eprintln!("{} kept its configuration: {e}", service.service()),
        }
    }
}
