//! The tail of latencies: sign, issue and transfer at shares of their peak, with an open loop.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use ron_proto::Timestamp;
use serde_json::Value;

use crate::client::{self, Maker};
use crate::figures::{bearer, beside, directory, issue, same, signing};
use crate::fleet::{self, Fleet};
use crate::machine;
use crate::open::{self, Plan, Tail, quantile};
use crate::pauses::{Observations, PAUSE, Witness, pauses};
use crate::wallet::{OWN_MAX, even_transfers, fund, own, tokens};

/// Time for the fleet to finish what follows the answers of a load, before the next one.
const SETTLE: Duration = Duration::from_secs(1);
/// Attempts to fund the accounts of a load.
const FUND_TRIES: u32 = 10;
/// Pauses of one figure that are listed; the longest.
const LISTED: usize = 10;

const NAMES: [&str; 3] = ["sign", "issue", "transfer"];

const HEADER: &str = "| figure | clients | load | CPU us per operation | due per second | answered per second | p50 ms | p99 ms | p99.9 ms | worst ms | above 20 ms | refused | lost |\n|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";
const PAUSES_HEADER: &str = "| figure | clients | load | began | after s | ms | requests due | seen meanwhile |\n|---|--:|---|---|--:|--:|--:|---|";

#[derive(Args)]
pub struct TailArgs {
    /// Seconds per figure, and per measurement of a peak.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Clients of each figure, each a connection; more than 900 need `ulimit -n 8192`.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1_000], value_parser = clap::value_parser!(u64).range(1..=1_000))]
    clients: Vec<u64>,
    /// Loads in percent of the peak, which is measured first with a closed loop of as many clients.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 90], value_parser = clap::value_parser!(u64).range(1..=1_000))]
    shares: Vec<u64>,
    /// Requests due per second, instead of shares of a peak.
    #[arg(long, conflicts_with = "shares", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Measure only these.
    #[arg(long, value_delimiter = ',', value_parser = NAMES)]
    only: Vec<String>,
    /// Directory on the disk to measure; a temporary one when absent.
    #[arg(long)]
    dir: Option<std::path::PathBuf>,
    /// Path of the `ron` binary; the one beside this program when absent.
    #[arg(long)]
    ron: Option<std::path::PathBuf>,
}

/// Makes the requests of client n of a load.
type Makers = Box<dyn Fn(usize) -> Maker>;

struct Bench {
    fleet: Fleet,
    args: TailArgs,
    /// Principals at the wallet.
    tokens: Vec<String>,
    /// Rows of the table of pauses.
    pauses: Vec<String>,
}

/// A figure by its name, number of clients and load.
struct Figure<'a> {
    name: &'a str,
    clients: usize,
    load: String,
}

/// Measures all figures and prints them.
pub fn run(args: TailArgs) -> Result<(), String> {
    let (dir, _temporary) = directory(args.dir.as_deref())?;
    let ron = args.ron.clone().map_or_else(|| beside("ron"), Ok)?;
    let fleet = fleet::prepared(&ron, &dir, args.seconds)?;
    let most = args.clients.iter().max().map_or(1, |most| *most as usize);
    let mut bench = Bench {
        tokens: tokens(&fleet, most.max(OWN_MAX))?,
        fleet,
        args,
        pauses: Vec::new(),
    };
    println!("{HEADER}");
    for name in NAMES {
        if bench.args.only.is_empty() || bench.args.only.iter().any(|only| only == name) {
            for clients in bench.args.clients.clone() {
                bench.figures(name, clients as usize)?;
            }
        }
    }
    println!(
        "\nPauses, in which requests were due and none succeeded for more than {} ms:\n",
        PAUSE.as_millis()
    );
    if bench.pauses.is_empty() {
        println!("none");
    } else {
        println!("{PAUSES_HEADER}\n{}", bench.pauses.join("\n"));
    }
    drop(bench);
    print!("\n{}", fleet::checks(&ron, &dir)?);
    Ok(())
}

impl Bench {
    /// The given rate, or the shares of the peak of so many clients, which is measured first.
    fn figures(&mut self, name: &str, clients: usize) -> Result<(), String> {
        let loads = match self.args.rate {
            Some(rate) => vec![(format!("{rate}/s"), rate)],
            None => self.shares_of(self.peak(name, clients)?),
        };
        for (load, rate) in loads {
            let figure = Figure {
                name,
                clients,
                load,
            };
            self.open(&figure, rate)?;
        }
        Ok(())
    }

    fn shares_of(&self, peak: f64) -> Vec<(String, u64)> {
        let load = |share: &u64| {
            #[allow(clippy::cast_sign_loss, reason = "at least 1")]
            let rate = (peak * *share as f64 / 100.0).max(1.0) as u64;
            (format!("{share} %"), rate)
        };
        self.args.shares.iter().map(load).collect()
    }

    /// Operations per second of so many clients with a closed loop.
    fn peak(&self, name: &str, clients: usize) -> Result<f64, String> {
        let (host, makers) = self.requests(name, clients, "peak")?;
        let cpu = machine::cpu_seconds(self.fleet.pid())?;
        let figure = client::load(&host, clients, self.time(), makers)?;
        let cpu = machine::cpu_seconds(self.fleet.pid())? - cpu;
        let peak = figure.rate();
        println!(
            "| {name} | {clients} | peak, closed loop | {:.1} | | {peak:.0} | | | | | | {} | |",
            cpu * 1e6 / figure.answers().max(1) as f64,
            figure.refused()
        );
        Ok(peak)
    }

    const fn time(&self) -> Duration {
        Duration::from_secs(self.args.seconds)
    }

    /// The host of an operation, and the makers of its requests for a load that is told from others by its label.
    fn requests(
        &self,
        name: &str,
        clients: usize,
        label: &str,
    ) -> Result<(String, Makers), String> {
        std::thread::sleep(SETTLE);
        if name == "sign" {
            let (host, [single, _]) = signing(&self.fleet, 1)?;
            return Ok((host, Box::new(move |_| same(single.clone()))));
        }
        if name == "issue" {
            let host = self.fleet.host("svc-passport")?;
            let token = bearer(&self.fleet.token("svc-passport")?);
            let of = host.clone();
            return Ok((host, Box::new(move |n| same(issue(&of, &token, n)))));
        }
        let host = self.fleet.host("svc-wallet")?;
        let family = format!(
            "tail-{clients}-{}",
            label.trim_end_matches(" %").replace('/', "-")
        );
        // The wallet may refuse writes for a moment after a load; the key of the request is the same.
        let mut tries = 1;
        while let Err(why) = fund(&host, &self.tokens[0], &family, clients) {
            if tries == FUND_TRIES {
                return Err(why);
            }
            tries += 1;
            std::thread::sleep(SETTLE);
        }
        let (tokens, of) = (self.tokens.clone(), host.clone());
        let maker = move |n| even_transfers(&of, own(&tokens, clients, n), &family, n);
        Ok((host, Box::new(maker)))
    }

    /// A load with an open loop: its row, and those of its pauses.
    fn open(&mut self, figure: &Figure<'_>, rate: u64) -> Result<(), String> {
        let (host, makers) = self.requests(figure.name, figure.clients, &figure.load)?;
        let mut witness = Witness::new(&self.fleet)?;
        let plan = Plan {
            rate,
            time: self.time(),
        };
        let cpu = machine::cpu_seconds(self.fleet.pid())?;
        let mut began = SystemTime::UNIX_EPOCH;
        let (tail, seen) = open::load(&host, figure.clients, plan, makers, |begin, ended| {
            began = SystemTime::now();
            witness.watch(begin, ended)
        })?;
        let cpu = machine::cpu_seconds(self.fleet.pid())? - cpu;
        println!("{}", row(figure, plan, &tail, cpu));
        self.list(figure, &tail, &seen?, began);
        Ok(())
    }

    fn list(&mut self, figure: &Figure<'_>, tail: &Tail, seen: &Observations, began: SystemTime) {
        let mut found = pauses(&tail.samples);
        found.sort_by_key(|pause| std::cmp::Reverse(pause.length()));
        let left_out = found.len().saturating_sub(LISTED);
        found.truncate(LISTED);
        found.sort_by_key(|pause| pause.from);
        if found.is_empty() {
            return;
        }
        let events = events(&self.fleet).unwrap_or_else(|why| {
            eprintln!("the pauses are listed without events: {why}");
            Vec::new()
        });
        let Figure {
            name,
            clients,
            load,
        } = figure;
        for pause in &found {
            let at = |micros: u32| {
                let time = began + Duration::from_micros(micros.into());
                Timestamp(
                    time.duration_since(UNIX_EPOCH)
                        .unwrap_or_default()
                        .as_millis() as u64,
                )
            };
            let mut meanwhile = seen.during(pause);
            let refused = tail
                .refusals
                .iter()
                .filter(|at| (pause.from..=pause.to).contains(at))
                .count();
            if refused > 0 {
                meanwhile.push(format!("requests refused: {refused}"));
            }
            let logged = events
                .iter()
                .filter(|(when, _)| (at(pause.from)..=at(pause.to)).contains(when));
            meanwhile.extend(logged.map(|(_, text)| format!("event: {text}")));
            self.pauses.push(format!(
                "| {name} | {clients} | {load} | {} | {:.3} | {:.1} | {} | {} |",
                at(pause.from),
                f64::from(pause.from) / 1e6,
                f64::from(pause.length()) / 1e3,
                pause.requests,
                meanwhile.join("; ")
            ));
        }
        if left_out > 0 {
            self.pauses.push(format!(
                "| {name} | {clients} | {load} | | | | | {left_out} shorter pauses |"
            ));
        }
    }
}

fn row(figure: &Figure<'_>, plan: Plan, tail: &Tail, cpu: f64) -> String {
    let latencies = tail.latencies();
    let ms = |per_mille| match quantile(&latencies, tail.lost(), per_mille) {
        Some(micros) => format!("{:.2}", f64::from(micros) / 1e3),
        None => "lost".to_owned(),
    };
    let late =
        latencies.len() - latencies.partition_point(|took| u128::from(*took) <= PAUSE.as_micros());
    let note = tail
        .refusal
        .as_ref()
        .map_or(String::new(), |text| format!(" ({text})"));
    format!(
        "| {} | {} | {} | {:.1} | {} | {:.0} | {} | {} | {} | {} | {late} | {}{note} | {} |",
        figure.name,
        figure.clients,
        figure.load,
        cpu * 1e6 / latencies.len().max(1) as f64,
        plan.rate,
        latencies.len() as f64 / tail.seconds(plan),
        ms(500),
        ms(990),
        ms(999),
        ms(1_000),
        tail.refusals.len(),
        tail.lost()
    )
}

/// The events of all services, oldest first, with their times.
fn events(fleet: &Fleet) -> Result<Vec<(Timestamp, String)>, String> {
    let text = fleet.ron(&["events", "--json"])?;
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).ok()?;
        let word = |name: &str| event[name].as_str();
        let what = [
            word("service")?,
            word("kind")?,
            word("reason").unwrap_or(""),
        ];
        Some((
            word("at")?.parse().ok()?,
            what.join(" ").trim_end().to_owned(),
        ))
    };
    text.lines()
        .map(|line| event(line).ok_or_else(|| format!("no event: {line}")))
        .collect()
}
