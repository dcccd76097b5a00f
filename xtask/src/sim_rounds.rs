//! Long runs of the worlds under the simulator: rounds, each of seeds behind those of the round before, until there were so many
//! operations. What a round did is a line for each world in a file, so that a later run goes on after it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::cmd::Cmd;
use crate::files;
use crate::loom::{all_names, checked};
use crate::sim::{Totals, WORLD};
use crate::task::{Args, Failure, Outcome};

/// The first seeds of two rounds are so far apart: no world has more seeds in a round.
const APART: u64 = 1_000_000;
/// Longest run of a world, in seconds.
const WORLD_SECONDS: &str = "7200";

pub fn sim_rounds(args: &Args) -> Outcome {
    let wanted: u64 = args.text("total").parse().map_err(|_| {
        Failure("how many operations is a number: cargo xtask sim-rounds 10000000".to_owned())
    })?;
    let record = match args.text("record") {
        "" => files::target().join("sim-rounds.txt"),
        _ => args.path("record")?,
    };
    let program = WORLD.build(args, "sim", &all_names()?)?;
    let worlds = worlds(&program, args.text("models"))?;
    let start = Instant::now();
    let mut rounds = Rounds::read(&record)?;
    let before = rounds.totals().operations;
    while rounds.totals().operations < wanted {
        let first = rounds.next_first();
        let lines = round(args, &program, &worlds, first)?;
        rounds.add(&record, first, &lines)?;
        let (done, seconds) = (rounds.totals().operations, start.elapsed().as_secs());
        println!(
            "== sim-rounds: {done} operations of {wanted}, {} in {seconds} s",
            done - before
        );
    }
    rounds.print();
    Ok(())
}

/// The names of the worlds, and of the program's other tests, whose path contains `filter`.
fn worlds(program: &Path, filter: &str) -> Outcome<Vec<String>> {
    let list = Cmd::new(program)
        .args(["--list", "--format", "terse"])
        .arg(filter);
    let list = list.output()?;
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.is_empty() {
        return Err(Failure(format!("no world has `{filter}` in its path")));
    }
    Ok(names)
}

/// Runs each world under the seeds from `first` on; a line for each. Each has a process of its own, because the threads of
/// processes that were killed in it stay until it ends.
fn round(args: &Args, program: &Path, worlds: &[String], first: u64) -> Outcome<Vec<String>> {
    let file = files::target().join("sim-round");
    files::write(&file, "")?;
    let next = AtomicUsize::new(0);
    let run_all = || -> Outcome {
        while let Some(world) = worlds.get(next.fetch_add(1, Ordering::Relaxed)) {
            checked(args, program, WORLD_SECONDS)
                .env("RON_SIM_FIRST", first.to_string())
                .env("RON_SIM_HASHES", file.display().to_string())
                .args(["--exact", world])
                .run()?;
        }
        Ok(())
    };
    // Two at a time, each of which takes one core.
    let ended = thread::scope(|scope| {
        let other = scope.spawn(run_all);
        [run_all(), other.join().expect("it does not panic")]
    });
    ended.into_iter().collect::<Outcome>()?;
    Ok(files::read(&file)?.lines().map(str::to_owned).collect())
}

/// The lines of all rounds: the first seed of the round, and what the world has printed.
struct Rounds(Vec<(u64, String)>);

impl Rounds {
    fn read(record: &Path) -> Outcome<Self> {
        if !record.exists() {
            return Ok(Self(Vec::new()));
        }
        Self::parse(&files::read(record)?)
            .ok_or_else(|| Failure(format!("{} is not of this task", record.display())))
    }

    fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().map(|line| {
            let (first, rest) = line.split_once(' ')?;
            Some((first.parse().ok()?, rest.to_owned()))
        });
        lines.collect::<Option<_>>().map(Self)
    }

    fn next_first(&self) -> u64 {
        let last = self.0.iter().map(|(first, _)| *first).max();
        last.map_or(0, |first| first + APART)
    }

    fn add(&mut self, record: &Path, first: u64, lines: &[String]) -> Outcome {
        let lines = lines.iter().map(|line| (first, line.clone()));
        self.0.extend(lines);
        let text = self
            .0
            .iter()
            .map(|(first, line)| format!("{first} {line}\n"));
        files::write(record, &text.collect::<String>())
    }

    fn totals(&self) -> Totals {
        Totals::of(self.0.iter().map(|(_, line)| line.as_str()))
    }

    fn print(&self) {
        let mut worlds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (_, line) in &self.0 {
            let name = line.split(' ').next().unwrap_or_default();
            worlds.entry(name).or_default().push(line);
        }
        for (name, lines) in worlds {
            let (rounds, totals) = (lines.len(), Totals::of(lines.into_iter()));
            let (operations, switches) = (totals.operations, totals.switches);
            println!("  {operations:>9}  {switches:>11} switches, {rounds} rounds  {name}");
        }
        self.totals().print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_add_up() {
        let text = "0 a::b 00ff 10 3 7 a_cut=2\n1000000 a::b 00ff 10 4 5 a_cut=3\n";
        let rounds = Rounds::parse(text).expect("rounds");
        assert_eq!(rounds.next_first(), 2_000_000);
        assert_eq!(rounds.totals().operations, 12);
        assert!(Rounds::parse("a::b 00ff").is_none());
        assert_eq!(Rounds(Vec::new()).next_first(), 0);
    }
}
