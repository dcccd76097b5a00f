//! The tables of docs/TESTING.md, made from the table of lanes.

use std::fmt::Write as _;

use crate::lane::{Group, Lane, example};
use crate::lanes::LANES;

/// The table `name` (`steps`, `long`, `measurements` or `files`), if there is one.
pub fn table(name: &str) -> Option<String> {
    let of = |group: fn(&Lane) -> bool| LANES.iter().filter(move |lane| group(lane));
    match name {
        "steps" => Some(steps()),
        "long" => Some(long(of(|lane| {
            lane.group == Group::Long || lane.longer.is_some()
        }))),
        "measurements" => Some(plain(
            "measures",
            of(|lane| lane.group == Group::Measurement),
        )),
        "files" => Some(plain("writes", of(|lane| lane.group == Group::Files))),
        _ => None,
    }
}

fn steps() -> String {
    let mut out = "| step | what it proves | alone | time |\n|---|---|---|---|\n".to_owned();
    for lane in LANES {
        if let Group::Step(step) = lane.group {
            let alone = example(lane, lane.example);
            let _ = writeln!(
                out,
                "| {step} | {} | `{alone}` | {} |",
                lane.shows, lane.length
            );
        }
    }
    out
}

fn long(lanes: impl Iterator<Item = &'static Lane>) -> String {
    let mut out = "| command | what it proves | time | needs |\n|---|---|---|---|\n".to_owned();
    for lane in lanes {
        let (args, length) = lane.longer.unwrap_or((lane.example, lane.length));
        let how = example(lane, args);
        let _ = writeln!(
            out,
            "| `{how}` | {} | {length} | {} |",
            lane.shows, lane.needs
        );
    }
    out
}

fn plain(verb: &str, lanes: impl Iterator<Item = &'static Lane>) -> String {
    let mut out = format!("| command | what it {verb} | needs |\n|---|---|---|\n");
    for lane in lanes {
        let how = example(lane, lane.example);
        let _ = writeln!(out, "| `{how}` | {} | {} |", lane.shows, lane.needs);
    }
    out
}
