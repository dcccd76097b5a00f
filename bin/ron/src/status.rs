//! `ron status`: the whole fleet in one look.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ron_client::{ClientError, HealthClient};
use ron_kernel::Deadline;
use ron_proto::status::{Health, Plane, ServiceStatus};
use ron_services::NAMES;
use serde::Serialize;

use crate::fleet;
use crate::layout::Layout;
use crate::net;
use crate::table::{Out, Table, column, sparse};

/// Maximum time of a service to answer; all are asked at once.
pub const WITHIN: Duration = Duration::from_secs(3);
/// Seconds of a minute, an hour and a day, with their letters.
const UNITS: [(u64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "min")];
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Maximum seconds of `--wait` and `--watch`.
const SECONDS_MAX: u64 = 3_600;
/// Time between two polls of `--wait`.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// Show the state of all services. Ends with code 1 unless all of them are healthy.
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    services: Services,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Wait at most so many seconds until all services are healthy, as after a start.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX), conflicts_with = "watch")]
    wait: Option<u64>,
    /// Show it again every so many seconds, until it is interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", require_equals = true, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX), conflicts_with = "json")]
    watch: Option<u64>,
}

/// A service and what it said.
#[derive(Serialize)]
pub struct Answer {
    /// Its name, or where it was asked.
    pub at: String,
    /// `healthy`, `degraded`, `down` or `no answer`.
    pub state: &'static str,
    /// What is wrong with it, in its own words.
    pub problems: Vec<String>,
    #[serde(flatten)]
    pub reply: Reply,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Status(Box<ServiceStatus>),
    /// Why there is no answer.
    Error(String),
}

impl Answer {
    fn new(at: &str, reply: Reply) -> Self {
        let (state, problems) = match &reply {
            Reply::Error(why) => ("no answer", vec![why.clone()]),
            Reply::Status(status) => judge(status),
        };
        Self {
            at: at.to_owned(),
            state,
            problems,
            reply,
        }
    }

    fn is_healthy(&self) -> bool {
        self.state == "healthy"
    }
}

/// The state of a service that answers, and what is wrong with it.
fn judge(status: &ServiceStatus) -> (&'static str, Vec<String>) {
    let ill = status.planes.iter();
    let ill = ill.filter(|plane| plane.health != Health::Healthy);
    let line = |plane: &Plane| match &plane.reason {
        Some(why) => format!("{}: {why}", plane.name),
        None => format!("{}: no reason given", plane.name),
    };
    let mut problems: Vec<String> = ill.map(line).collect();
    let failing = status.recent.failing();
    problems.extend(failing.map(|share| {
        let (percent, all) = (share * 100.0, status.recent.requests);
        format!(
            "server errors: {percent:.1} % of {all} answers within five minutes; the console's page of the service names the routes, and its log the causes"
        )
    }));
    let state = match status.health {
        Health::Healthy if failing.is_some() => "degraded",
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Down => "down",
    };
    (state, problems)
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<(), String> {
    let Some(seconds) = args.watch else {
        let wait = Duration::from_secs(args.wait.unwrap_or(0));
        let found = settled(args, Deadline::within(wait))?;
        if args.json {
            Out::json(&found)?;
        } else {
            println!("{}", lines(&found).join("\n"));
        }
        return verdict(&found);
    };
    let clear = std::io::stdout().is_terminal();
    loop {
        // Before the terminal is cleared, so that it is never empty while a service is silent.
        let shown = match poll(args) {
            Ok(found) => lines(&found),
            // The data directory may be being made.
            Err(why) => vec![why],
        };
        let begin = if clear { CLEAR } else { "" };
        println!("{begin}{}\n", shown.join("\n"));
        net::pause(Duration::from_secs(seconds));
    }
}

/// The answers once all services are healthy; at the deadline, those of the last poll.
fn settled(args: &StatusArgs, by: Deadline) -> Result<Vec<Answer>, String> {
    loop {
        let found = poll(args)?;
        if by.expired() || found.iter().all(Answer::is_healthy) {
            return Ok(found);
        }
        net::pause(by.remaining().min(POLL_EVERY));
    }
}

fn poll(args: &StatusArgs) -> Result<Vec<Answer>, String> {
    let places = args.services.places(&NAMES)?;
    Ok(ron_kernel::scoped(places.len(), |at| ask(&places[at])))
}

// No doc comment: clap would take it for the description of each command that has this.
#[derive(Args)]
pub struct Services {
    /// Data directory, as given to `ron up`: the services of this host.
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    /// Health address of a service, as in `http://10.0.0.2:7465`; may be repeated, and replaces the services of this host.
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    pub health: Vec<String>,
}

impl Services {
    /// The services at the health addresses, or those of `names` that this host has.
    pub fn places(&self, names: &[&'static str]) -> Result<Vec<Place>, String> {
        if !self.health.is_empty() {
            return Ok(self.health.iter().cloned().map(Place::Url).collect());
        }
        let layout = Layout::new(self.data_dir.as_deref())?;
        let has = |name: &&&str| layout.config(name).exists();
        let places = names.iter().filter(has);
        let places: Vec<Place> = places
            .map(|name| Place::Host(layout.clone(), name))
            .collect();
        if places.is_empty() {
            let root = layout.root.display();
            return Err(format!(
                "{root} has no configuration of {}: name the data directory with --data-dir, or services with --health",
                names.join(", ")
            ));
        }
        Ok(places)
    }
}

/// Where a service is asked.
#[derive(Clone)]
pub enum Place {
    /// A service of a data directory.
    Host(Layout, &'static str),
    /// Its health address.
    Url(String),
}

impl Place {
    /// The service's name, or its address.
    pub fn name(&self) -> &str {
        match self {
            Self::Host(_, name) => name,
            Self::Url(url) => url,
        }
    }

    /// A client of its health port.
    pub fn client(&self) -> Result<HealthClient, String> {
        match self {
            Self::Host(layout, name) => fleet::reach_health(layout, name)
                .map(|reached| HealthClient::new(&reached.url, reached.http)),
            Self::Url(url) => Ok(HealthClient::new(url, net::client())),
        }
    }
}

/// Asks a service for its state.
pub fn ask(place: &Place) -> Answer {
    let status = place.client().and_then(|client| {
        let answer = client.status(Deadline::within(WITHIN));
        answer.map_err(|error| no_answer(&error))
    });
    let reply = status.map_or_else(Reply::Error, |status| Reply::Status(Box::new(status)));
    Answer::new(place.name(), reply)
}

/// Why there is no answer. A read changes nothing, so its outcome is of no interest.
pub fn no_answer(error: &ClientError) -> String {
    match error {
        ClientError::Unknown { detail, .. } | ClientError::NotSent { detail } => detail.clone(),
        error @ ClientError::Refused { .. } => error.to_string(),
    }
}

/// A table, and below it what is wrong: services that give no answer first, because others may suffer from that.
fn lines(found: &[Answer]) -> Vec<String> {
    let mut services = Table::of(&[
        column("service"),
        column("state"),
        column("version"),
        column("up for"),
        sparse("restarts"),
        sparse("log"),
    ]);
    for one in found {
        let (name, version, up, restarts, log) = match &one.reply {
            Reply::Error(_) => (&one.at, String::new(), String::new(), 0, None),
            Reply::Status(status) => (
                &status.service,
                status.version.clone(),
                time(status.uptime_seconds),
                status.planes.iter().map(|plane| plane.restart_count).sum(),
                status.log.as_ref(),
            ),
        };
        let restarts = if restarts == 0 {
            String::new()
        } else {
            restarts.to_string()
        };
        let log = log.map(|log| match (log.active, log.behind) {
            (true, _) => "writes".to_owned(),
            (false, 0) => "standby".to_owned(),
            (false, behind) => format!("standby, {behind} entries behind"),
        });
        services.row([
            name.clone(),
            one.state.to_owned(),
            version,
            up,
            restarts,
            log.unwrap_or_default(),
        ]);
    }
    let mut lines = services.lines();
    let mut ill: Vec<&Answer> = found.iter().filter(|one| !one.is_healthy()).collect();
    ill.sort_by_key(|one| matches!(&one.reply, Reply::Status(status) if status.ready));
    ill.sort_by_key(|one| matches!(one.reply, Reply::Status(_)));
    for one in ill {
        lines.push(String::new());
        let name = match &one.reply {
            Reply::Status(status) => &status.service,
            Reply::Error(_) => &one.at,
        };
        lines.push(format!("{name} ({})", one.state));
        lines.extend(one.problems.iter().map(|problem| format!("  {problem}")));
    }
    lines
}

/// A time in its two largest units.
fn time(seconds: u64) -> String {
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (unit, letter) in UNITS {
        if rest >= unit {
            parts.push(format!("{} {letter}", rest / unit));
        }
        rest %= unit;
    }
    parts.push(format!("{rest} s"));
    parts.truncate(2);
    parts.join(" ")
}

fn verdict(found: &[Answer]) -> Result<(), String> {
    let ill = found.iter().filter(|one| !one.is_healthy()).count();
    if ill == 0 {
        return Ok(());
    }
    Err(format!("{ill} of {} services are not healthy", found.len()))
}

#[cfg(test)]
mod tests {
    use ron_proto::status::RecentAnswers;

    use super::*;

    fn service(name: &str, health: Health, reason: Option<&str>) -> Answer {
        let plane = Plane {
            name: "ledger".to_owned(),
            health,
            ready: health != Health::Down,
            restart_count: 0,
            reason: reason.map(str::to_owned),
        };
        let status = ServiceStatus {
            service: name.to_owned(),
            instance: name.to_owned(),
            version: "0.1.0".to_owned(),
            profile: "durable".to_owned(),
            uptime_seconds: 7_384,
            ready: health != Health::Down,
            health,
            amnesia: false,
            planes: vec![plane],
            capabilities: Vec::new(),
            recent: RecentAnswers::default(),
            log: None,
        };
        Answer::new(name, Reply::Status(Box::new(status)))
    }

    #[test]
    fn what_gives_no_answer_stands_before_what_suffers_from_it() {
        let silent = Answer::new("ron-ledger", Reply::Error("connection refused".to_owned()));
        let found = [
            service("svc-rewarder", Health::Degraded, Some("the ledger is away")),
            service("svc-wallet", Health::Down, Some("the ledger is away")),
            service("ron-kms", Health::Healthy, None),
            silent,
        ];
        let lines = lines(&found);
        let at = |text: &str| lines.iter().position(|line| line == text).expect(text);
        let [ledger, wallet, rewarder] = [
            at("ron-ledger (no answer)"),
            at("svc-wallet (down)"),
            at("svc-rewarder (degraded)"),
        ];
        assert!(ledger < wallet && wallet < rewarder, "{lines:#?}");
        assert_eq!(lines[wallet + 1], "  ledger: the ledger is away");
        assert!(!lines.iter().any(|line| line.starts_with("ron-kms (")));
        assert!(lines[3].contains("2 h 3 min"), "{}", lines[3]);
        let said = verdict(&found).expect_err("three are ill");
        assert_eq!(said, "3 of 4 services are not healthy");
        assert_eq!(verdict(&found[2..3]), Ok(()));
    }

    #[test]
    fn a_service_that_calls_itself_healthy_and_answers_with_errors_is_not() {
        let Reply::Status(mut status) = service("svc-wallet", Health::Healthy, None).reply else {
            unreachable!("it has answered");
        };
        status.planes[0].health = Health::Healthy;
        status.recent = RecentAnswers {
            requests: 200,
            server_errors: 3,
        };
        let found = [Answer::new("svc-wallet", Reply::Status(status))];
        let lines = lines(&found);
        assert_eq!(lines[3], "svc-wallet (degraded)", "{lines:#?}");
        assert!(
            lines[4].starts_with("  server errors: 1.5 % of 200 answers"),
            "{lines:#?}"
        );
        assert!(verdict(&found).is_err());
        let json = serde_json::to_value(&found).expect("JSON");
        assert_eq!(json[0]["state"], "degraded");
        assert_eq!(json[0]["problems"].as_array().map(Vec::len), Some(1));
        assert_eq!(json[0]["status"]["recent"]["serverErrors"], 3);
    }

    #[test]
    fn times_have_their_two_largest_units() {
        let cases = [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min 0 s"),
            (7_384, "2 h 3 min"),
            (180_061, "2 d 2 h"),
        ];
        for (seconds, text) in cases {
            assert_eq!(time(seconds), text);
        }
    }
}
