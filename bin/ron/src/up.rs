//! `ron up`: the whole system in one process, with embedded defaults.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ron_kernel::{Deadline, Signal, Signals, exit};

use ron_service::config::{LogFormat, LogLevel};
use ron_service::logging;

use crate::fleet::{Failed, Fleet};
use crate::init;
use crate::layout::{Layout, base_port, make_dir, write_json};
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
    /// Minimum level of log lines.
    #[arg(long, default_value = "warn", value_enum)]
    log_level: LogLevel,
    /// Format of log lines.
    #[arg(long, default_value = "compact", value_enum)]
    log_format: LogFormat,
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
    let _level = logging::init("ron", args.log_format, args.log_level);
    if let Err(e) = ron_crypto::process_hardening() {
        tracing::warn!(event = "hardening_incomplete", error = %e);
    }
    let signals = Signals::install().map_err(|e| format!("signals cannot be handled: {e}"))?;
    let layout = Layout::new(args.data_dir.as_deref())?;
    let made = init::ensure(&layout, args.base_port, None)?;
    let fleet = Fleet::start(&layout, args.base_port, &signals.terminated())?;
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
    let fatal = serve(&fleet, &signals);
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
fn serve(fleet: &Fleet, signals: &ron_kernel::SignalEvents) -> Option<String> {
    loop {
        match signals.recv(Deadline::within(Duration::from_millis(500))) {
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
