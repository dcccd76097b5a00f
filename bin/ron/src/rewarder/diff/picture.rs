//! The picture of a comparison: payouts before and after, each on a logarithmic axis, by how many accounts
//! have them. Its size does not depend on the number of accounts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::markup::escape;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 60.0;
const SIZE: f64 = 560.0;
/// Cells of one power of ten.
const CELLS: usize = 8;
/// Room of the axes for payouts of zero.
const NOTHING: f64 = 60.0;

/// Counts of accounts by the cells of their payouts before and after; cell -1 is nothing.
#[derive(Debug, Default)]
pub struct Picture(BTreeMap<(i32, i32), u64>);

/// The cell of an amount.
fn cell(amount: u128) -> i32 {
    if amount == 0 {
        -1
    } else {
        ((amount as f64).log10() * CELLS as f64) as i32
    }
}

impl Picture {
    /// Another account with these payouts.
    pub fn add(&mut self, before: u128, after: u128) {
        *self.0.entry((cell(before), cell(after))).or_default() += 1;
    }

    pub fn draw(&self, before: &str, after: &str) -> String {
        let cells = || {
            self.0
                .keys()
                .flat_map(|(x, y)| [*x, *y])
                .filter(|c| *c >= 0)
        };
        let per = CELLS as i32;
        let low = cells().min().unwrap_or(0).div_euclid(per) * per;
        let high = (cells().max().unwrap_or(0).div_euclid(per) + 1) * per;
        let span = f64::from(high - low);
        let place = |cell: i32| match cell {
            -1 => NOTHING / 2.0,
            cell => NOTHING + (f64::from(cell - low) + 0.5) / span * (SIZE - NOTHING),
        };
        let bottom = TOP + SIZE;
        let mut svg = frame(low, high, before, after);
        let most = self.0.values().copied().max().unwrap_or(1) as f64;
        for ((x, y), count) in &self.0 {
            let radius = 2.0 + 9.0 * (*count as f64).ln_1p() / most.ln_1p();
            let colour = match (*x, *y) {
                (-1, _) => "#2a8f4f",
                (_, -1) => "#c0392b",
                _ => "#2b6cb0",
            };
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\" fill=\"{colour}\" fill-opacity=\"0.6\"><title>{count} accounts</title></circle>",
                LEFT + place(*x),
                bottom - place(*y),
            );
        }
        legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }
}

/// The frame with its axes, which go from one cell to the other.
fn frame(low: i32, high: i32, before: &str, after: &str) -> String {
    let (bottom, span, per) = (TOP + SIZE, f64::from(high - low), CELLS as i32);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{:.1}\" y=\"28\" text-anchor=\"middle\" font-size=\"15\">Payouts of {} and {} (minor units)</text>\n\
         <rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIZE}\" height=\"{SIZE}\" fill=\"none\" stroke=\"#888\"/>\n",
        bottom + 60.0,
        LEFT + SIZE / 2.0,
        escape(before),
        escape(after),
    );
    let corner = LEFT + NOTHING;
    let _ = writeln!(
        svg,
        "<line x1=\"{corner}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{TOP}\" stroke=\"#bbb\" stroke-dasharray=\"4 3\"/>",
        bottom - NOTHING,
        LEFT + SIZE,
    );
    let mark = |svg: &mut String, at: f64, label: &str| {
        let (x, y) = (LEFT + at, bottom - at);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            bottom + 18.0,
            LEFT - 6.0,
            y + 4.0,
        );
    };
    mark(&mut svg, NOTHING / 2.0, "0");
    for power in (low..=high).step_by(CELLS) {
        let at = NOTHING + f64::from(power - low) / span * (SIZE - NOTHING);
        mark(&mut svg, at, &format!("1e{}", power / per));
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
         <text x=\"20\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {:.1})\">{}</text>",
        LEFT + SIZE / 2.0,
        bottom + 40.0,
        escape(before),
        TOP + SIZE / 2.0,
        TOP + SIZE / 2.0,
        escape(after),
    );
    svg
}

fn legend(svg: &mut String) {
    for (row, (what, colour)) in [
        ("in both", "#2b6cb0"),
        ("appeared", "#2a8f4f"),
        ("left", "#c0392b"),
    ]
    .into_iter()
    .enumerate()
    {
        let (x, y) = (LEFT + SIZE + 14.0, TOP + 12.0 + 18.0 * row as f64);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y:.1}\" fill=\"{colour}\">{what}</text>"
        );
    }
}
