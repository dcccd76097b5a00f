//! The example of each page of docs/api against one fleet, as the page shows it.

use std::fs;
use std::os::unix::fs::symlink;

use ron_tests::{Fleet, SERVICES, ok};

use crate::documented::{Room, below};

/// Pages, and words that the output of their examples has.
const PAGES: [(&str, &[&str]); 6] = [
    (
        "docs/api/ron-kms.md",
        &["\"signatures\"", "\"ok\":true", "c2sp.org/tlog-proof@v1"],
    ),
    (
        "docs/api/svc-passport.md",
        &["\"ok\":true", "\"ok\":false", "\"keys\""],
    ),
    (
        "docs/api/ron-ledger.md",
        &["\"seq\"", "acct:alice", "\n\u{2014} "],
    ),
    (
        "docs/api/svc-wallet.md",
        &["\"amount_minor\":\"250\"", "\"ron-receipt/v1\""],
    ),
    ("docs/api/svc-rewarder.md", &["storage", "\"epochs\""]),
    ("docs/api/svc-admin.md", &["\"healthy\"", "\"logs\""]),
];

#[test]
fn the_example_of_every_api_page_runs() {
    let (room, fleet) = (Room::new(), Fleet::start());
    symlink(fleet.dir(), room.path("state/ron")).unwrap();
    for service in SERVICES {
        let page = format!("docs/api/{service}.md");
        let found = PAGES.iter().find(|(name, _)| *name == page);
        let (_, expected) = found.unwrap_or_else(|| panic!("{page} has no expectation"));
        let blocks = below(&page, "<!-- run by: api_examples -->");
        let dir = room.path("tmp").join(service);
        fs::create_dir(&dir).unwrap();
        let script = format!("set -euo pipefail\n{}", blocks[0].1);
        let said = ok(&room.command(&dir, &script).output().unwrap());
        for words in *expected {
            assert!(said.contains(words), "{page}: {words}: {said}");
        }
    }
}
