//! The requests of Vault's documentation: the table of docs/vault-transit.md, line by line.

use std::collections::BTreeMap;
use std::process::Command;

use ron_tests::{Fleet, ok, workspace};
use serde_json::Value;

/// A line of the table.
struct Line {
    method: String,
    path: String,
    body: String,
    status: u16,
    /// A member of `data`, or the code of a refusal; empty where the table states none.
    shows: String,
}

/// The lines of the table whose first column is `request`.
fn lines(page: &str) -> Vec<Line> {
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| request |"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells = row.split('|').skip(1);
        let cells: Vec<String> = cells
            .map(|cell| cell.trim_matches([' ', '*']).replace('`', ""))
            .collect();
        let part = |text: &str, n: usize| {
            let found = text.split_whitespace().nth(n);
            found.unwrap_or_default().to_owned()
        };
        Line {
            method: part(&cells[0], 0),
            path: part(&cells[0], 1),
            body: cells[1].clone(),
            status: part(&cells[2], 0).parse().expect("a status"),
            shows: part(&cells[2], 1),
        }
    })
    .collect()
}

#[test]
fn the_requests_of_vaults_documentation_are_answered_as_the_page_says() {
    let page = std::fs::read_to_string(workspace().join("docs/vault-transit.md")).expect("a page");
    let lines = lines(&page);
    assert!(lines.len() > 30, "{}", lines.len());
    let fleet = Fleet::start();
    let token = fleet.token("ron-kms", None);
    let mut earlier: BTreeMap<String, String> = BTreeMap::new();
    for line in lines {
        let what = format!("{} {} {}", line.method, line.path, line.body);
        let mut body = line.body;
        for (name, value) in &earlier {
            body = body.replace(&format!("${}", name.to_uppercase()), value);
        }
        assert!(!body.contains('$'), "no earlier answer for {what}");
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "20", "-w", "\n%{http_code}"]);
        curl.args(["--header", &format!("X-Vault-Token: {token}")]);
        curl.args(["--request", &line.method]);
        if !body.is_empty() {
            curl.args(["--data", &body]);
        }
        let url = format!("{}/v1/transit/{}", fleet.api("ron-kms"), line.path);
        let text = ok(&curl.arg(url).output().expect("curl runs"));
        let (answer, status) = text.rsplit_once('\n').expect("a status");
        assert_eq!(status, line.status.to_string(), "{what}: {answer}");
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        let data = &answer["data"];
        if line.shows.is_empty() {
            continue;
        }
        if line.status == 200 || line.shows == "batch_results" {
            let member = &data[&line.shows];
            assert!(!member.is_null(), "{what}: {answer}");
            assert!(line.shows != "valid" || *member == true, "{what}: {answer}");
            if let Some(text) = member.as_str() {
                earlier.insert(line.shows, text.to_owned());
            }
        } else {
            let error = answer["errors"][0].as_str().unwrap_or_default();
            assert!(
                error.starts_with(&format!("{}:", line.shows)),
                "{what}: {answer}"
            );
        }
    }
}
