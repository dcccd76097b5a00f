//! `ron rewarder plot`: runs as one SVG picture: the distribution of payouts (payout by rank, both
//! axes logarithmic), and paid and residual amounts per epoch.

#![allow(clippy::cast_sign_loss)] // ranks, powers and pixels, none below zero

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use ron_files::Dir;
use svc_rewarder::manifest::assets::of_each_asset;
use svc_rewarder::manifest::reader::Reader;
use svc_rewarder::manifest::verify::read_manifest;

use super::{ROWS, bar};
use crate::check;
use crate::layout::Layout;
use crate::markup::escape;

/// Maximum points of one curve.
const POINTS: usize = 240;
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f",
];

/// Draw the distribution of payouts and the payouts per epoch, as SVG.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder plot --out epochs.svg\n  ron rewarder plot run-1 run-2 --out two.svg"
)]
pub struct PlotArgs {
    /// Run directories; every run of the data directory when absent.
    dirs: Vec<PathBuf>,
    /// File to write the picture to.
    #[arg(long)]
    out: PathBuf,
    /// Data directory of `ron up` (or a copy of it).
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

/// The drawn figures of one run, as floats; exact amounts are in the manifest.
struct Epoch {
    name: String,
    /// (rank from 1, payout), largest first, thinned out.
    curve: Vec<(f64, f64)>,
    paid: f64,
    residual: f64,
    recipients: u64,
}

pub fn run(args: &PlotArgs) -> Result<(), String> {
    let dirs = if args.dirs.is_empty() {
        check::run_dirs(&Layout::new(args.data_dir.as_deref())?)?
    } else {
        args.dirs.clone()
    };
    if dirs.is_empty() {
        return Err("there is no run to draw".into());
    }
    let bar = bar("plot", dirs.len() as u64, ROWS);
    let mut epochs = Vec::with_capacity(dirs.len());
    for dir in &dirs {
        let at = |e: String| format!("{}: {e}", dir.display());
        let run = Dir::os(dir);
        let manifest = read_manifest(&run).map_err(|e| at(e.to_string()))?;
        for asset in of_each_asset(&run, &manifest) {
            epochs.push(read(&asset, !manifest.also.is_empty()).map_err(at)?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let cannot = |e| format!("cannot write {}: {e}", args.out.display());
    std::fs::write(&args.out, draw(&epochs)).map_err(cannot)?;
    println!("{}: {} epochs", args.out.display(), epochs.len());
    Ok(())
}

/// What a run paid of one asset, which its name has where there are several.
fn read(dir: &Dir, several: bool) -> Result<Epoch, String> {
    let reader = Reader::open(dir).map_err(|e| e.to_string())?;
    let mut amounts = Vec::with_capacity(usize::try_from(reader.len()).unwrap_or(0));
    for rows in reader.pages(reader.len()) {
        let rows = rows.map_err(|e| e.to_string())?;
        amounts.extend(rows.iter().map(|payout| payout.amount_minor.0));
    }
    amounts.sort_unstable_by(|a, b| b.cmp(a));
    let totals = reader.manifest.totals;
    Ok(Epoch {
        name: if several {
            format!("{} {}", reader.manifest.epoch_id, reader.manifest.asset)
        } else {
            reader.manifest.epoch_id.to_string()
        },
        curve: thin(&amounts),
        paid: totals.payout_minor.0 as f64,
        residual: totals.residual_minor.0 as f64,
        recipients: totals.recipients,
    })
}

/// Ranks at even distances on a logarithmic axis, including the first and the last.
fn thin(amounts: &[u128]) -> Vec<(f64, f64)> {
    let last = amounts.len() as f64;
    let mut curve: Vec<(f64, f64)> = Vec::new();
    let mut before = 0;
    for step in 0..POINTS {
        let rank = last.powf(step as f64 / (POINTS - 1) as f64).round();
        let at = (rank as usize).clamp(1, amounts.len().max(1));
        if at > before && at <= amounts.len() {
            curve.push((at as f64, amounts[at - 1] as f64));
            before = at;
        }
    }
    curve
}

fn draw(epochs: &[Epoch]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        HEIGHT * 2.0
    );
    distribution(&mut svg, epochs);
    bars(&mut svg, epochs);
    svg.push_str("</svg>\n");
    svg
}

/// A frame with room for labels.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Frame {
    fn x(&self, part: f64) -> f64 {
        self.left + part * self.width
    }

    fn y(&self, part: f64) -> f64 {
        self.top + (1.0 - part) * self.height
    }

    fn open(&self, svg: &mut String, title: &str, below: &str) {
        let middle = self.left + self.width / 2.0;
        let _ = write!(
            svg,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"15\">{title}</text>\n\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{below}</text>\n\
             <rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888\"/>\n",
            self.top - 14.0,
            self.top + self.height + 38.0,
            self.left,
            self.top,
            self.width,
            self.height
        );
    }

    /// A grid line with its label on the left.
    fn level(&self, svg: &mut String, part: f64, label: &str) {
        let y = self.y(part);
        let _ = write!(
            svg,
            "<line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
            self.left,
            self.left + self.width,
            self.left - 6.0,
            y + 4.0
        );
    }

    /// A label below the axis.
    fn mark(&self, svg: &mut String, part: f64, label: &str) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            self.x(part),
            self.top + self.height + 18.0,
            escape(label)
        );
    }
}

fn distribution(svg: &mut String, epochs: &[Epoch]) {
    let frame = Frame {
        left: 90.0,
        top: 50.0,
        width: WIDTH - 290.0,
        height: HEIGHT - 120.0,
    };
    frame.open(
        svg,
        "Payout by rank (minor units)",
        "rank of the account, largest payout first",
    );
    let points = || epochs.iter().flat_map(|epoch| &epoch.curve);
    let ranks = points().map(|(rank, _)| rank.log10()).fold(1.0, f64::max);
    let high = points()
        .map(|(_, amount)| amount.log10())
        .fold(0.0, f64::max)
        .ceil();
    let low = points()
        .map(|(_, amount)| amount.log10())
        .fold(high, f64::min)
        .floor();
    let span = (high - low).max(1.0);
    let step = (span / 8.0).ceil() as usize;
    for power in (low as i32..=high as i32).step_by(step.max(1)) {
        let part = (f64::from(power) - low) / span;
        frame.level(svg, part, &format!("1e{power}"));
    }
    for power in 0..=ranks.floor() as i32 {
        frame.mark(svg, f64::from(power) / ranks, &format!("1e{power}"));
    }
    for (at, epoch) in epochs.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let mut path = String::new();
        for (rank, amount) in &epoch.curve {
            let (x, y) = (rank.log10() / ranks, (amount.log10() - low) / span);
            let _ = write!(path, "{:.1},{:.1} ", frame.x(x), frame.y(y));
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>"
        );
        if at < 18 {
            let y = frame.top + 14.0 + 16.0 * at as f64;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{y:.1}\" fill=\"{colour}\">{} ({})</text>",
                frame.left + frame.width + 10.0,
                escape(&epoch.name),
                epoch.recipients
            );
        }
    }
}

fn bars(svg: &mut String, epochs: &[Epoch]) {
    let frame = Frame {
        left: 90.0,
        top: HEIGHT + 50.0,
        width: WIDTH - 290.0,
        height: HEIGHT - 120.0,
    };
    frame.open(svg, "Paid and residual per epoch (minor units)", "epoch");
    let most = epochs
        .iter()
        .map(|epoch| epoch.paid + epoch.residual)
        .fold(1.0, f64::max);
    for quarter in 0..=4 {
        let part = f64::from(quarter) / 4.0;
        frame.level(svg, part, &format!("{:.2e}", most * part));
    }
    let room = 1.0 / epochs.len() as f64;
    for (at, epoch) in epochs.iter().enumerate() {
        let from = room * (at as f64 + 0.15);
        let mut rect = |low: f64, high: f64, colour: &str| {
            let (x, y) = (frame.x(from), frame.y(high));
            let (width, height) = (frame.width * room * 0.7, frame.y(low) - y);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
            );
        };
        let paid = epoch.paid / most;
        rect(0.0, paid, COLOURS[0]);
        rect(paid, paid + epoch.residual / most, COLOURS[4]);
        if epochs.len() <= 12 {
            frame.mark(svg, room * (at as f64 + 0.5), &epoch.name);
        }
    }
    for (row, (what, colour)) in [("paid", COLOURS[0]), ("residual", COLOURS[4])]
        .iter()
        .enumerate()
    {
        let y = frame.top + 14.0 + 16.0 * row as f64;
        let x = frame.left + frame.width + 10.0;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y:.1}\" fill=\"{colour}\">{what}</text>"
        );
    }
}
