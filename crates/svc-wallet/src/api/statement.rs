//! `GET /v1/account/{a}/statement`: opening balance, entries and closing balance, as JSON or CSV.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{FoundEntry, StatementTime};
use ron_proto::wallet::{
    HistoryEntry, STATEMENT_COLUMNS, STATEMENT_TEXTS, Statement, WalletAction, spreadsheet_text,
};
use ron_proto::{Asset, Problem, Timestamp, scope};

use super::history::{LIMIT, MIN_SEQ, given};
use super::{Api, page_limit, param, sequence, viewer};
use crate::render::shown;

const CSV: &str = "text/csv; charset=utf-8; header=present";

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get(
        "/v1/account/{account}/statement",
        Need::Scope(scope::WALLET_READ),
        move |req| statement(&api, req),
    )
    .summary("Statement of an account in one asset: opening balance, entries, closing balance. As CSV it has a line for each; a Link header names the page that follows.")
    .query_as::<Asset>("asset", true, "Asset of the statement")
    .query_as::<Timestamp>("from", true, "First time of the statement")
    .query_as::<Timestamp>("until", true, "End of the statement, not part of it, as in the history")
    .query_as::<StatementTime>("by", false, "entry (the ledger's time, the default), or effective: whole UTC days, issues and debits on the day of their effective_at, in one page of at most 10,000")
    .query_as::<String>("format", false, "json (the default) or csv")
    .query_as::<u64>("after", false, "Return only entries after this ledger sequence: `next` of the page before")
    .query_as::<u64>("limit", false, LIMIT)
    .query_as::<u64>("min_seq", false, MIN_SEQ)
    .returns::<Statement>(200)
    .returns_bytes(200, CSV)
    .errors(&[400, 403, 429, 503])
    .while_draining()
}

fn statement(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["statement"]).inc();
    req.query_only(&[
        "asset", "from", "until", "by", "format", "after", "limit", "min_seq",
    ])?;
    let account = param(req, "account")?;
    let asset: Asset = req.query_required("asset")?;
    let from: Timestamp = req.query_required("from")?;
    let until: Timestamp = req.query_required("until")?;
    let by: StatementTime = req.query_as("by")?.unwrap_or_default();
    let csv = match req.query_one("format")? {
        None | Some("json") => false,
        Some("csv") => true,
        Some(_) => return Err(Problem::bad_request("format is json or csv")),
    };
    let after = sequence(req, "after")?;
    let limit = page_limit(req)?;
    api.allow(req, WalletAction::Read, &account, Some(&asset), None)?;
    let viewer = viewer(&req.principal)?;
    let query = [
        ("asset", Some(asset.to_string())),
        ("from", Some(from.to_string())),
        ("until", Some(until.to_string())),
        ("by", Some(by.as_str().to_owned())),
        ("after", after.map(|seq| seq.to_string())),
        ("limit", Some(limit.to_string())),
        (
            "min_seq",
            sequence(req, "min_seq")?.map(|seq| seq.to_string()),
        ),
    ];
    let page = api
        .upstream
        .client
        .statement(&account, &given(query), Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "account"))?;
    let shown = |found: FoundEntry| HistoryEntry {
        balance_minor: found.balance_minor,
        ..shown(found.event, &viewer, &account)
    };
    let doc = Statement {
        entries: page.entries.into_iter().map(shown).collect(),
        account: account.clone(),
        asset,
        from,
        until,
        by,
        opening_minor: page.opening_minor,
        credits_minor: page.credits_minor,
        debits_minor: page.debits_minor,
        closing_minor: page.closing_minor,
        next: page.next,
        as_of_seq: page.seq,
    };
    if !csv {
        return Ok(Response::json(200, &doc).cache("no-store"));
    }
    let text = to_csv(&doc, after.is_none()).map_err(|e| {
        tracing::error!(event = "statement_failed", error = %e);
        Problem::internal("the statement cannot be written as CSV")
    })?;
    let response = Response::bytes(200, CSV, text).cache("no-store");
    Ok(match doc.next {
        Some(next) => response.header(
            "Link",
            format!("<{}>; rel=\"next\"", link(&doc, next, limit)),
        ),
        None => response,
    })
}

/// The path of the page that follows; accounts and assets need no escapes beside `:` and `/`.
fn link(doc: &Statement, next: u64, limit: u64) -> String {
    let account = doc.account.as_str().replace('/', "%2F");
    format!(
        "/v1/account/{account}/statement?asset={}&from={}&until={}&by={}&format=csv&after={next}&limit={limit}",
        doc.asset,
        doc.from,
        doc.until,
        doc.by.as_str()
    )
}

/// The page as comma-separated values.
fn to_csv(doc: &Statement, first: bool) -> Result<Vec<u8>, csv::Error> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(STATEMENT_COLUMNS)?;
    for mut cells in doc.lines(first) {
        for text in &mut cells[STATEMENT_TEXTS] {
            *text = spreadsheet_text(text);
        }
        out.write_record(cells)?;
    }
    out.into_inner()
        .map_err(|e| csv::Error::from(e.into_error()))
}

#[cfg(test)]
mod tests {
    use ron_proto::Amount;

    use super::*;
    use ron_proto::ledger::EntryKind;

    fn entry(seq: u64, from: &str, to: &str, amount: u128) -> HistoryEntry {
        HistoryEntry {
            seq,
            ts: Timestamp(seq * 1000),
            op: EntryKind::Transfer,
            txid: None,
            refused: None,
            from: Some(from.parse().unwrap()),
            to: Some(to.parse().unwrap()),
            asset: Some("ron".parse().unwrap()),
            amount_minor: Some(Amount(amount)),
            balance_minor: Some(Amount(7).into()),
            nonce: None,
            hold: None,
            batch: None,
            reverses: None,
            reference: Some("=1+1".parse().unwrap()),
            memo: Some("a, \"b\"".parse().unwrap()),
            metadata: None,
            effective_at: None,
        }
    }

    #[test]
    fn csv_has_signs_quotes_and_no_formulas() {
        let mut doc = Statement {
            account: "a".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            from: Timestamp(0),
            until: Timestamp(86_400_000),
            by: StatementTime::Entry,
            opening_minor: Amount(5).into(),
            credits_minor: Amount(5),
            debits_minor: Amount(3),
            closing_minor: Amount(7).into(),
            entries: vec![entry(1, "b", "a", 5), entry(2, "a", "b", 3)],
            next: None,
            as_of_seq: 2,
        };
        let text = |doc: &Statement, first| String::from_utf8(to_csv(doc, first).unwrap()).unwrap();
        let all = text(&doc, true);
        let lines: Vec<&str> = all.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[1].contains(",opening,,,,5,,"), "{all}");
        assert!(
            lines[2].ends_with(",transfer,,b,5,7,'=1+1,\"a, \"\"b\"\"\""),
            "{all}"
        );
        assert!(lines[3].contains(",b,-3,7,"), "{all}");
        assert!(lines[4].contains(",closing,,,,7,,"), "{all}");
        doc.next = Some(2);
        assert_eq!(
            text(&doc, false).lines().count(),
            3,
            "neither opening nor closing"
        );
    }
}
