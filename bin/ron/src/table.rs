//! How commands print answers: aligned text, comma-separated values, or JSON.

use ron_proto::wallet::{is_whole_number, spreadsheet_text};
use serde::Serialize;

/// The form of what is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Csv,
    Json,
}

impl Form {
    /// By the switches `--json` and `--csv`, of which one may be set.
    pub const fn of(json: bool, csv: bool) -> Self {
        match (json, csv) {
            (true, _) => Self::Json,
            (false, true) => Self::Csv,
            (false, false) => Self::Text,
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy)]
pub struct Column {
    heading: &'static str,
    /// The text leaves the column out when no row has a value in it.
    sparse: bool,
}

/// A column that is always there.
pub const fn column(heading: &'static str) -> Column {
    Column {
        heading,
        sparse: false,
    }
}

/// A column that few rows have a value in.
pub const fn sparse(heading: &'static str) -> Column {
    Column {
        heading,
        sparse: true,
    }
}

/// Rows under their headings. A cell without a value is empty; the text has a hyphen for it.
pub struct Table {
    columns: Vec<Column>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of columns that are always there.
    pub fn new(headings: &[&'static str]) -> Self {
        let columns: Vec<Column> = headings.iter().map(|heading| column(heading)).collect();
        Self::of(&columns)
    }

    pub fn of(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// The lines of the text: headings, then rows; columns are aligned, numbers to the right.
    pub fn lines(&self) -> Vec<String> {
        let used = |at: usize| self.rows.iter().any(|row| !row[at].is_empty());
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|at| !self.columns[*at].sparse || used(*at))
            .collect();
        let headings = shown.iter().map(|at| self.columns[*at].heading.to_owned());
        let mut lines: Vec<Vec<String>> = vec![headings.collect()];
        for row in &self.rows {
            let cells = shown.iter().map(|at| match row[*at].as_str() {
                "" => "-".to_owned(),
                cell => cell.to_owned(),
            });
            lines.push(cells.collect());
        }
        let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max();
        let widths: Vec<usize> = (0..shown.len()).filter_map(width).collect();
        lines.iter().map(|line| aligned(line, &widths)).collect()
    }

    /// Headings and rows as comma-separated values.
    pub fn csv(&self) -> Result<String, String> {
        let headings = self.columns.iter().map(|column| column.heading.to_owned());
        let headings: Vec<String> = headings.collect();
        let rows = self.rows.iter().map(Vec::as_slice);
        csv_lines(std::iter::once(headings.as_slice()).chain(rows))
    }
}

/// Comma-separated values without headings.
pub fn csv_lines<'a>(rows: impl IntoIterator<Item = &'a [String]>) -> Result<String, String> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    for row in rows {
        // A payer chooses the reference that a payee reads.
        let cells = row.iter().map(|cell| spreadsheet_text(cell));
        csv.write_record(cells).map_err(|e| e.to_string())?;
    }
    let bytes = csv.into_inner().map_err(|e| e.to_string())?;
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

fn aligned(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths).map(|(cell, width)| {
        if is_whole_number(cell) {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    });
    let line = cells.collect::<Vec<_>>().join("  ");
    line.trim_end().to_owned()
}

/// Where and how answers are printed.
#[derive(Clone, Copy)]
pub struct Out {
    pub form: Form,
}

impl Out {
    /// An answer as JSON, whatever the form.
    pub fn json<T: Serialize>(value: &T) -> Result<(), String> {
        let text = serde_json::to_string_pretty(value).map_err(|e| e.to_string())?;
        println!("{text}");
        Ok(())
    }

    /// An answer that is a table.
    pub fn table<T: Serialize>(self, answer: &T, table: &Table) -> Result<(), String> {
        self.tables(answer, table, table)
    }

    /// An answer whose comma-separated values have other columns than its text.
    pub fn tables<T: Serialize>(self, answer: &T, text: &Table, csv: &Table) -> Result<(), String> {
        match self.form {
            Form::Json => Self::json(answer)?,
            Form::Csv => print!("{}", csv.csv()?),
            Form::Text => text.lines().iter().for_each(|line| println!("{line}")),
        }
        Ok(())
    }

    /// An answer that is one thing: a line for each field, or headings and one row.
    pub fn fields<T: Serialize>(
        self,
        answer: &T,
        fields: &[(&'static str, String)],
    ) -> Result<(), String> {
        self.record(answer, fields, fields)
    }

    /// The same; its comma-separated values have columns that do not depend on the answer.
    pub fn record<T: Serialize>(
        self,
        answer: &T,
        text: &[(&'static str, String)],
        csv: &[(&'static str, String)],
    ) -> Result<(), String> {
        if self.form == Form::Text {
            for (name, value) in text {
                println!("{name:<10} {value}");
            }
            return Ok(());
        }
        let headings: Vec<&str> = csv.iter().map(|(name, _)| *name).collect();
        let mut table = Table::new(&headings);
        let values = csv.iter().map(|(_, value)| value.clone());
        table.rows.push(values.collect());
        self.table(answer, &table)
    }

    /// A remark about an answer that is no part of it.
    pub fn note(self, text: &str) {
        match self.form {
            Form::Text => println!("{text}"),
            Form::Csv => eprintln!("{text}"),
            Form::Json => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right_and_unused_columns_are_left_out() {
        let columns = [
            column("account"),
            sparse("hold"),
            column("amount"),
            column("to"),
        ];
        let mut table = Table::of(&columns);
        let cells = |cells: [&str; 4]| cells.map(str::to_owned);
        table.row(cells(["acct:a", "", "5", ""]));
        table.row(cells(["b", "", "-12345678", "c"]));
        assert_eq!(
            table.lines(),
            [
                "account  amount     to",
                "acct:a           5  -",
                "b        -12345678  c"
            ]
        );
        table.row(cells(["c", "tx_1", "7", ""]));
        assert_eq!(table.lines()[3], "c        tx_1          7  -");
    }

    #[test]
    fn csv_has_every_column_and_no_formulas() {
        let columns = ["reference", "change", "memo"].map(column);
        let mut table = Table::of(&columns);
        for reference in ["=1+1", "+1+1", "-1-1", "@sum", "-", "a, b"] {
            table.row([reference, "-250", ""].map(str::to_owned));
        }
        assert_eq!(
            table.csv().unwrap(),
            "reference,change,memo\n'=1+1,-250,\n'+1+1,-250,\n'-1-1,-250,\n'@sum,-250,\n'-,-250,\n\"a, b\",-250,\n"
        );
    }
}
