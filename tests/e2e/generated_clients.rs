//! Clients that generators of others make of the OpenAPI documents: each makes the call of the page about them.

use std::fs;
use std::os::unix::fs::symlink;

use ron_tests::{Fleet, ok, workspace};

use crate::documented::{Room, below};

const PAGE: &str = "docs/generate-clients.md";

#[test]
fn generated_clients_call_the_wallet_as_the_page_says() {
    let (room, fleet) = (Room::new(), Fleet::start());
    symlink(fleet.dir(), room.path("state/ron")).unwrap();
    let dir = room.path("tmp");
    let modules = workspace().join("tests/interop/node_modules");
    symlink(&modules, dir.join("node_modules")).unwrap();
    let blocks = below(PAGE, "<!-- run by: generated_clients -->");
    let tags: Vec<&str> = blocks.iter().map(|(tag, _)| tag.as_str()).collect();
    assert_eq!(tags, ["sh", "sh", "python", "sh", "ts"]);
    let usual = "http://127.0.0.1:7470";
    assert!(blocks[4].1.contains(usual), "{usual}");
    let files = [("call.py", 2), ("call.ts", 4)];
    for (name, at) in files {
        let text = blocks[at].1.replace(usual, &fleet.api("svc-wallet"));
        fs::write(dir.join(name), text).unwrap();
    }
    // The types are checked, then removed.
    fs::write(dir.join("tsconfig.json"), TSCONFIG).unwrap();
    fs::write(dir.join("package.json"), r#"{"type": "module"}"#).unwrap();
    let script = format!(
        "set -euo pipefail\n{}\n{}\npython call.py\n{}\nnpx tsc\nnode call.js\n",
        blocks[0].1, blocks[1].1, blocks[3].1
    );
    let said = ok(&room.command(&dir, &script).output().unwrap());
    let amounts = said.lines().filter(|line| *line == "1000").count();
    assert_eq!(amounts, 2, "both clients read the balance: {said}");
}

const TSCONFIG: &str = r#"{"compilerOptions": {"target": "ES2022", "module": "nodenext", "strict": true, "skipLibCheck": true, "types": ["node"]}, "files": ["call.ts"]}"#;
