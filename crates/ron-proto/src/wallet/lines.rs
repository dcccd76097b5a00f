//! Entries and statements as lines of comma-separated values, for the service and for its clients.

use std::ops::Range;

use super::{HistoryEntry, Statement};
use crate::values::{Account, SignedAmount, Timestamp};

/// Headings of a statement's lines.
pub const STATEMENT_COLUMNS: [&str; 10] = [
    "seq",
    "time",
    "effective_at",
    "op",
    "txid",
    "counterparty",
    "change_minor",
    "balance_minor",
    "reference",
    "memo",
];

/// The columns of a statement with texts of a caller: reference and memo.
pub const STATEMENT_TEXTS: Range<usize> = 8..10;

fn cell<T: ToString>(value: Option<&T>) -> String {
    value.map(T::to_string).unwrap_or_default()
}

impl HistoryEntry {
    /// What the entry changed in the balance of an account, with its sign.
    pub fn change(&self, account: &Account) -> String {
        let amount = cell(self.amount_minor.as_ref());
        let credited = self.to.as_ref() == Some(account);
        let debited = self.from.as_ref() == Some(account);
        match (credited, debited) {
            _ if self.refused.is_some() || !self.op.moves_money() => "0".to_owned(),
            (true, false) => amount,
            (false, true) => format!("-{amount}"),
            _ => "0".to_owned(),
        }
    }
}

impl Statement {
    /// The lines below [`STATEMENT_COLUMNS`]: an entry each, the opening balance before the first page
    /// and the closing balance after the last one.
    pub fn lines(
        &self,
        first_page: bool,
    ) -> impl Iterator<Item = [String; STATEMENT_COLUMNS.len()]> + '_ {
        let sum = |name: &str, at: Timestamp, balance: SignedAmount| {
            let (at, balance) = (at.to_string(), balance.to_string());
            ["", &at, "", name, "", "", "", &balance, "", ""].map(str::to_owned)
        };
        let opening = first_page.then(|| sum("opening", self.from, self.opening_minor));
        let last_page = self.next.is_none();
        let closing = last_page.then(|| sum("closing", self.until, self.closing_minor));
        let entries = self.entries.iter().map(|e| self.line(e));
        opening.into_iter().chain(entries).chain(closing)
    }

    fn line(&self, e: &HistoryEntry) -> [String; STATEMENT_COLUMNS.len()] {
        let credited = e.to.as_ref() == Some(&self.account);
        let other = if credited { &e.from } else { &e.to };
        [
            e.seq.to_string(),
            e.ts.to_string(),
            cell(e.effective_at.as_ref()),
            e.op.to_string(),
            cell(e.txid.as_ref()),
            cell(other.as_ref()),
            e.change(&self.account),
            cell(e.balance_minor.as_ref()),
            cell(e.reference.as_ref()),
            cell(e.memo.as_ref()),
        ]
    }
}

/// Whether a cell is a whole number, perhaps below zero.
pub fn is_whole_number(cell: &str) -> bool {
    let digits = cell.strip_prefix('-').unwrap_or(cell);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// A text of a caller as a cell of a spreadsheet, which would run what begins like a formula; a whole
/// number below zero only looks like one.
pub fn spreadsheet_text(text: &str) -> String {
    match text.bytes().next() {
        Some(b'=' | b'+' | b'-' | b'@') if !is_whole_number(text) => format!("'{text}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_is_guarded_and_a_number_is_not() {
        for text in [
            "=1+1",
            "+1",
            "-1+1",
            "-",
            "--1",
            "-1.5",
            "@SUM(A1)",
            "-2-cmd|' /C'!A0",
        ] {
            assert_eq!(spreadsheet_text(text), format!("'{text}"));
        }
        for text in [
            "",
            "-5",
            "0",
            "340282366920938463463374607431768211455",
            "order 7",
            "a=1",
        ] {
            assert_eq!(spreadsheet_text(text), text);
        }
    }
}
