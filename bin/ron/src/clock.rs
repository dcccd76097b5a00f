//! `ron clock`: whether the services of a data directory believe the machine's date, and the
//! operator's word that it is right.

use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::{Caller, Credential, HealthClient};
use ron_kernel::Deadline;
use ron_services::NAMES;
use serde_json::{Value, json};

use crate::fleet;
use crate::layout::{Layout, Place};

const WITHIN: Duration = Duration::from_secs(5);
/// The caller whose tokens allow actions on the services.
const CONSOLE: &str = "svc-admin";

/// Show whether the services believe the machine's date, and confirm it.
#[derive(Args)]
#[command(
    after_help = "A service does not follow the machine's date when it jumps, or when it was wrong at the start: see\n\
    docs/runbooks/clock.md. Make sure that `date -u` is right before you confirm it.\n\n\
    Examples:\n  ron clock show\n  ron clock accept --data-dir /srv/ron"
)]
pub struct ClockArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show for each running service how far the machine's date is from its own.
    Show(Place),
    /// Have each running service believe the machine's date from now on. Allowed for the user who
    /// may read the console's tokens.
    Accept(Place),
}

/// Runs the command.
pub fn run(args: &ClockArgs) -> Result<(), String> {
    let (place, accept) = match &args.command {
        Command::Show(place) => (place, false),
        Command::Accept(place) => (place, true),
    };
    let layout = place.layout()?;
    let mut failed = Vec::new();
    for name in NAMES {
        let result = if accept {
            accepted(&layout, name)
        } else {
            shown(&layout, name)
        };
        match result {
            Ok(line) => println!("{name}: {line}"),
            Err(why) => failed.push(format!("{name}: {why}")),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(failed.join("\n"))
}

fn shown(layout: &Layout, name: &str) -> Result<String, String> {
    let reached = fleet::reach_health(layout, name)?;
    let health = HealthClient::new(&reached.url, reached.http);
    let status = health
        .status(Deadline::within(WITHIN))
        .map_err(|e| e.to_string())?;
    let clock = status
        .planes
        .into_iter()
        .find(|plane| plane.name == "clock");
    Ok(clock
        .and_then(|plane| plane.reason)
        .unwrap_or_else(|| "believes the machine's date".to_owned()))
}

fn accepted(layout: &Layout, name: &str) -> Result<String, String> {
    let reached = fleet::reach_health(layout, name)?;
    let credential = Credential::from_file(&layout.token(CONSOLE, name))?;
    let caller = Caller::new(&reached.url, credential, reached.http);
    let done: Value = caller
        .post(
            "/api/v1/clock/accept",
            &json!({}),
            true,
            Deadline::within(WITHIN),
        )
        .map_err(|e| e.to_string())?;
    Ok(match done["changes"][0].as_str() {
        Some(was) => format!("accepted ({was})"),
        None => "believed the machine's date already".to_owned(),
    })
}
