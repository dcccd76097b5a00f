//! `ron events`: what happened in the services, by time.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ron_kernel::Deadline;
use ron_proto::Timestamp;
use ron_proto::events::{EventPage, ServiceEvent};
use serde::Serialize;

use crate::net;
use crate::status::{Place, no_answer, places};

/// Maximum time of a service to answer; all are asked at once.
const WITHIN: Duration = Duration::from_secs(3);
/// How long a service may wait for its next event before it is asked again.
const WAIT: Duration = Duration::from_secs(25);
/// Pause before a service that gave no answer is asked again.
const AGAIN: Duration = Duration::from_secs(2);

/// Show what happened in all services, oldest first. Ends with code 1 unless all of them answer.
///
/// Each service keeps its newest 1,024 events while it runs: starts, lost readiness and why, restarts of threads, reloads,
/// changes of keys and policies.
#[derive(Args)]
pub struct EventsArgs {
    /// Data directory, as given to `ron up`: the services of this host.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Health address of a service, as in `http://10.0.0.2:7465`; may be repeated, and replaces the services of this host.
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    health: Vec<String>,
    /// Print one JSON document per line.
    #[arg(long)]
    json: bool,
    /// Then show further events as they happen, until it is interrupted. Services that give no answer are asked again.
    #[arg(long, short)]
    follow: bool,
}

/// An event with the service that it happened in.
#[derive(Serialize)]
struct Line<'a> {
    service: &'a str,
    instance: &'a str,
    version: &'a str,
    #[serde(flatten)]
    event: &'a ServiceEvent,
}

/// Runs the command.
pub fn run(args: &EventsArgs) -> Result<(), String> {
    let places = places(args.data_dir.as_deref(), &args.health)?;
    let first = ron_kernel::scoped(places.len(), |at| read(&places[at], None, Duration::ZERO));
    let mut lines: Vec<(Timestamp, String)> = Vec::new();
    for (place, page) in places.iter().zip(&first) {
        let Ok(page) = page else { continue };
        let events = page.events.iter();
        lines.extend(events.map(|event| (event.at, line(args, place, page, event))));
    }
    // A stable sort: the events of one service stay in their order, whatever its clock did.
    lines.sort_by_key(|(at, _)| *at);
    if print(lines.iter().map(|(_, line)| line.as_str())).is_err() {
        return Ok(()); // the reader of the lines has gone
    }
    if args.follow {
        ron_kernel::scoped(places.len(), |at| {
            follow(args, &places[at], first[at].clone());
        });
        return Ok(());
    }
    verdict(&places, &first)
}

fn read(place: &Place, seen: Option<&EventPage>, wait: Duration) -> Result<EventPage, String> {
    let within = Deadline::within(WITHIN + wait);
    let answer = place.client()?.events(seen, wait, within);
    answer.map_err(|error| no_answer(&error))
}

/// Prints further events of a service.
fn follow(args: &EventsArgs, place: &Place, first: Result<EventPage, String>) {
    let (mut seen, mut silent) = match first {
        Ok(page) => (Some(page), None),
        Err(why) => (None, Some(why)),
    };
    if let Some(why) = &silent {
        eprintln!("{} gives no answer: {why}", place.name());
    }
    loop {
        match read(place, seen.as_ref(), WAIT) {
            Ok(page) => {
                let known = seen.filter(|seen| seen.boot == page.boot);
                print_new(args, place, known.map(|seen| seen.next), &page);
                (seen, silent) = (Some(page), None);
            }
            Err(why) => {
                if silent.is_none() {
                    eprintln!("{} gives no answer: {why}", place.name());
                }
                silent = Some(why);
                net::pause(AGAIN);
            }
        }
    }
}

/// Prints the events of a page after the number that is known.
fn print_new(args: &EventsArgs, place: &Place, known: Option<u64>, page: &EventPage) {
    if page.reset && known.is_some() {
        eprintln!("{} dropped events before they were read", place.name());
    }
    let events = page.events.iter();
    let new = events.filter(|event| known.is_none_or(|known| event.seq > known));
    let new: Vec<String> = new.map(|event| line(args, place, page, event)).collect();
    if print(new.iter().map(String::as_str)).is_err() {
        std::process::exit(0); // the reader of the lines has gone; other threads wait for events
    }
}

fn print<'a>(lines: impl Iterator<Item = &'a str>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

fn line(args: &EventsArgs, place: &Place, page: &EventPage, event: &ServiceEvent) -> String {
    if args.json {
        let line = Line {
            service: &page.service,
            instance: &page.instance,
            version: &page.version,
            event,
        };
        return serde_json::to_string(&line).unwrap_or_default();
    }
    // Two instances of a service have the same name.
    let name = match place {
        Place::Host(..) => &page.service,
        Place::Url(url) => url,
    };
    let mut text = format!(
        "{}  {name:<12}  {:<5}  {}",
        event.at,
        event.severity.as_str(),
        event.kind.as_str()
    );
    let number = event.number.map(|number| number.to_string());
    for word in [&event.reason, &number].into_iter().flatten() {
        text.push(' ');
        text.push_str(word);
    }
    text
}

fn verdict(places: &[Place], found: &[Result<EventPage, String>]) -> Result<(), String> {
    let silent = places.iter().zip(found);
    let silent: Vec<String> = silent
        .filter_map(|(place, page)| {
            let why = page.as_ref().err()?;
            Some(format!("{} gives no answer: {why}", place.name()))
        })
        .collect();
    if silent.is_empty() {
        return Ok(());
    }
    Err(silent.join("\n"))
}
