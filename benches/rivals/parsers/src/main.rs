//! The console's metrics parser compared with other parsers on the same pages, in one thread:
//! `parsers SECONDS FILE...`.
//!
//! The measure is processor time in user mode, so that other work on the machine does not count.
//! Every parser reads whole pages repeatedly; the console's parser runs once as the samplers use it
//! (each sample's key, name, labels, value and time), and once with every label unescaped into
//! owned text, which is what the other parsers return.

#[path = "../../../../crates/svc-admin/src/promtext/mod.rs"]
#[allow(dead_code)]
mod promtext;

use std::hint::black_box;
use std::io::BufRead as _;

use promtext::{Item, Labels, Reader};
use rustix::time::{ClockId, clock_gettime};

/// One way to read a page; returns how many samples it saw, or `None` when it refuses the page.
type Parse = fn(&str) -> Option<usize>;

const PARSERS: [(&str, Parse); 5] = [
    ("svc-admin", borrowed),
    ("svc-admin, labels owned", owned),
    ("prometheus-parse 0.2", prometheus_parse),
    ("prometheus-exposition-format-rs 0.1", exposition_format),
    ("prom_text_format_parser 0.1", text_format),
];

fn borrowed(page: &str) -> Option<usize> {
    let mut samples = 0;
    for item in Reader::new(page.as_bytes()) {
        if let Item::Sample(sample) = black_box(item) {
            black_box((sample.key, sample.labels, sample.value));
            samples += 1;
        }
    }
    Some(samples)
}

fn owned(page: &str) -> Option<usize> {
    let mut samples = 0;
    for item in Reader::new(page.as_bytes()) {
        if let Item::Sample(sample) = item {
            let pairs = Labels::new(sample.labels);
            let labels: Vec<(String, String)> = pairs
                .map(|(name, value)| (name.to_owned(), value.into_owned()))
                .collect();
            black_box((sample.name.to_owned(), labels, sample.value));
            samples += 1;
        }
    }
    Some(samples)
}

fn prometheus_parse(page: &str) -> Option<usize> {
    let lines = page.as_bytes().lines();
    let scrape = prometheus_parse::Scrape::parse(lines).ok()?;
    Some(black_box(scrape).samples.len())
}

fn exposition_format(page: &str) -> Option<usize> {
    let metrics = prometheus_exposition_format_rs::parse_complete(page).ok()?;
    Some(black_box(metrics).len())
}

fn text_format(page: &str) -> Option<usize> {
    let scrape = prom_text_format_parser::Scrape::parse(page).ok()?;
    Some(black_box(scrape).metrics.len())
}

/// User and system time of this process, which has one thread, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Megabytes (10^6 bytes) per second of processor time: the best of five parts of the time.
fn rate(parse: Parse, page: &str, seconds: f64) -> Option<f64> {
    parse(page)?;
    let mut best: f64 = 0.0;
    for _ in 0..5 {
        let (start, mut rounds, mut took) = (cpu_s(), 0_u32, 0.0);
        while took < seconds / 5.0 {
            for _ in 0..8 {
                black_box(parse(black_box(page)));
            }
            rounds += 8;
            took = cpu_s() - start;
        }
        best = best.max(f64::from(rounds) * page.len() as f64 / 1e6 / took);
    }
    Some(best)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().and_then(|s| s.parse().ok()).unwrap_or(2.0);
    let pages: Vec<(String, String)> = args
        .map(|path| {
            let page = std::fs::read_to_string(&path).expect("a page of text");
            let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
            (name.trim_end_matches(".txt").to_owned(), page)
        })
        .collect();
    assert!(!pages.is_empty(), "usage: parsers SECONDS FILE...");
    println!(
        "| MB/s of processor time |{}",
        pages
            .iter()
            .map(|(name, page)| format!(" {name} ({} kB) |", page.len() / 1000))
            .collect::<String>()
    );
    println!("|---|{}", "--:|".repeat(pages.len()));
    for (name, parse) in PARSERS {
        let cells: String = pages
            .iter()
            .map(|(_, page)| match rate(parse, page, seconds) {
                Some(rate) => format!(" {rate:.0} |"),
                None => " refuses the page |".to_owned(),
            })
            .collect();
        println!("| {name} |{cells}");
    }
}
