//! The tables of docs/TESTING.md, made from the table of tasks.

use std::fmt::Write as _;

use crate::task::{Group, Task, example};
use crate::tasks::tasks;

/// The table `name` (`steps`, `long`, `measurements` or `files`), if there is one.
pub fn table(name: &str) -> Option<String> {
    let of = |group: fn(&Task) -> bool| tasks().filter(move |task| group(task));
    match name {
        "steps" => Some(steps()),
        "long" => Some(long(of(|task| {
            task.group == Group::Long || task.longer.is_some()
        }))),
        "measurements" => Some(plain(
            "measures",
            of(|task| task.group == Group::Measurement),
        )),
        "files" => Some(plain("writes", of(|task| task.group == Group::Files))),
        _ => None,
    }
}

fn steps() -> String {
    let mut out = "| step | what it proves | alone | time |\n|---|---|---|---|\n".to_owned();
    for task in tasks() {
        if let Group::Step(step) = task.group {
            let alone = example(task, task.example);
            let _ = writeln!(
                out,
                "| {step} | {} | `{alone}` | {} |",
                task.shows, task.length
            );
        }
    }
    out
}

fn long(tasks: impl Iterator<Item = &'static Task>) -> String {
    let mut out = "| command | what it proves | time | needs |\n|---|---|---|---|\n".to_owned();
    for task in tasks {
        let (args, length) = task.longer.unwrap_or((task.example, task.length));
        let how = example(task, args);
        let _ = writeln!(
            out,
            "| `{how}` | {} | {length} | {} |",
            task.shows, task.needs
        );
    }
    out
}

fn plain(verb: &str, tasks: impl Iterator<Item = &'static Task>) -> String {
    let mut out = format!("| command | what it {verb} | needs |\n|---|---|---|\n");
    for task in tasks {
        let how = example(task, task.example);
        let _ = writeln!(out, "| `{how}` | {} | {} |", task.shows, task.needs);
    }
    out
}
