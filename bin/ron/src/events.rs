//! `ron events`: what happened in the services, by time.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use ron_kernel::Deadline;
use ron_proto::Timestamp;
use ron_proto::events::{EventPage, ServiceEvent};
use ron_services::NAMES;
use serde::Serialize;

use crate::net;
use crate::status::{Place, Services, WITHIN, no_answer};

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
    #[command(flatten)]
    services: Services,
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
    let places = args.services.places(&NAMES)?;
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
    let silent: Vec<String> = first.into_iter().filter_map(Result::err).collect();
    if silent.is_empty() {
        return Ok(());
    }
    Err(silent.join("\n"))
}

/// Events of a service after those of an earlier page; an error names the service.
fn read(place: &Place, seen: Option<&EventPage>, wait: Duration) -> Result<EventPage, String> {
    let page = place.client().and_then(|client| {
        let answer = client.events(seen, wait, Deadline::within(WITHIN + wait));
        answer.map_err(|error| no_answer(&error))
    });
    page.map_err(|why| format!("{} gives no answer: {why}", place.name()))
}

/// Prints further events of a service, for ever.
fn follow(args: &EventsArgs, place: &Place, first: Result<EventPage, String>) {
    let mut silent = first.is_err();
    let mut seen = first.inspect_err(|why| eprintln!("{why}")).ok();
    loop {
        match read(place, seen.as_ref(), WAIT) {
            Ok(page) => {
                // A service that was started again has lost the events that were not read before, and counts from 1.
                if page.reset && seen.is_some_and(|seen| seen.boot == page.boot) {
                    eprintln!("{} dropped events before they were read", place.name());
                }
                print_page(args, place, &page);
                (seen, silent) = (Some(page), false);
            }
            Err(why) => {
                if !silent {
                    eprintln!("{why}");
                }
                silent = true;
                net::pause(AGAIN);
            }
        }
    }
}

fn print_page(args: &EventsArgs, place: &Place, page: &EventPage) {
    let events = page.events.iter();
    let lines: Vec<String> = events.map(|event| line(args, place, page, event)).collect();
    if print(lines.iter().map(String::as_str)).is_err() {
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
