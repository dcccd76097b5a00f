//! Tables of `ron wallet`: aligned text, or comma-separated values.

use clap::Args;
use serde::Serialize;

use super::Out;

#[derive(Args)]
pub struct Form {
    /// Print comma-separated values.
    #[arg(long)]
    pub csv: bool,
}

/// Rows under their headings.
pub struct Table {
    headings: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    fn widths(&self) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.fold(self.headings[at].len(), usize::max)
        };
        (0..self.headings.len()).map(width).collect()
    }

    /// One row, its columns aligned: numbers to the right.
    pub fn line(&self, at: usize) -> String {
        aligned(&self.rows[at], &self.widths())
    }
}

fn aligned(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths).map(|(cell, width)| {
        let digits = cell.strip_prefix('-').unwrap_or(cell);
        let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if number {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    });
    let line = cells.collect::<Vec<_>>().join("  ");
    line.trim_end().to_owned()
}

pub fn print<T: Serialize>(answer: &T, table: &Table, out: Out, form: &Form) -> Result<(), String> {
    if out.json {
        return Out::print(answer);
    }
    if form.csv {
        let mut csv = csv::Writer::from_writer(std::io::stdout().lock());
        let mut rows = std::iter::once(table.headings.iter().map(ToString::to_string).collect())
            .chain(table.rows.iter().cloned());
        return rows
            .try_for_each(|row: Vec<String>| csv.write_record(row))
            .and_then(|()| csv.flush().map_err(Into::into))
            .map_err(|e| e.to_string());
    }
    let widths = table.widths();
    let headings: Vec<String> = table.headings.iter().map(ToString::to_string).collect();
    println!("{}", aligned(&headings, &widths));
    for row in &table.rows {
        println!("{}", aligned(row, &widths));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let mut table = Table::new(&["account", "amount"]);
        table.row(["acct:a".to_owned(), "5".to_owned()]);
        table.row(["b".to_owned(), "12345678".to_owned()]);
        assert_eq!(table.line(0), "acct:a          5");
        assert_eq!(table.line(1), "b        12345678");
        table.row(["c".to_owned(), "-45".to_owned()]);
        assert_eq!(table.line(2), "c             -45");
    }
}
