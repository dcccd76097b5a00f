//! The console's timeline over processes that are killed and started again: what happened, why, each once, also after a restart
//! of the console.

use std::collections::BTreeSet;
use std::time::Duration;

use ron_http::Call;
use ron_kernel::Deadline;
use ron_proto::admin::{IncidentNode, NodeState, TimelineEntry, TimelineList};
use ron_tests::processes::Rig;
use ron_tests::{ok, ron_on, until};

struct Console {
    url: String,
    token: String,
}

impl Console {
    fn of(rig: &Rig) -> Self {
        let args = [
            "token",
            "--audience",
            "svc-admin",
            "--scope",
            "admin:view",
            "--ttl",
            "1h",
        ];
        let token = ok(&ron_on(rig.dir.path(), &args));
        // The sixth service of the fleet; the first is ron-kms.
        let port = rig.port("ron-kms") + 50;
        Self {
            url: format!("http://127.0.0.1:{port}"),
            token: format!("Bearer {}", token.trim()),
        }
    }

    fn page(&self, rig: &Rig, query: &str) -> Option<TimelineList> {
        let url = format!("{}/api/timeline{query}", self.url);
        let headers = [("authorization", self.token.as_str())];
        let by = Deadline::within(Duration::from_secs(5));
        let reply = rig.http.call(Call::get(&url, by).headers(&headers));
        reply.ok().filter(ron_http::Reply::is_success)?.json().ok()
    }

    /// Every line, newest first; none while the console does not answer.
    fn lines(&self, rig: &Rig) -> Vec<TimelineEntry> {
        let (mut lines, mut query) = (Vec::new(), String::new());
        loop {
            let Some(page) = self.page(rig, &query) else {
                return Vec::new();
            };
            lines.extend(page.entries);
            match page.next {
                Some(before) => query = format!("?before={before}"),
                None => return lines,
            }
        }
    }
}

/// The newest state of the node in the timeline.
fn state<'l>(lines: &'l [TimelineEntry], node: &str) -> Option<&'l TimelineEntry> {
    let mut states = lines.iter().filter(|line| line.kind == "node_state");
    states.find(|line| line.node == node)
}

fn is(lines: &[TimelineEntry], node: &str, wanted: &[&str]) -> bool {
    let said = state(lines, node).and_then(|line| line.reason.as_deref());
    said.is_some_and(|said| wanted.contains(&said))
}

/// What services told of themselves.
fn events(lines: &[TimelineEntry]) -> Vec<(&str, &str, u64, Option<&str>)> {
    let told = lines.iter().filter(|line| line.kind != "node_state");
    let told = told.map(|line| {
        (
            line.node.as_str(),
            line.kind.as_str(),
            line.at.unix_ms(),
            line.reason.as_deref(),
        )
    });
    told.collect()
}

/// The outage of the ledger is one entry, with what it did to the wallet.
fn one_incident(page: &TimelineList) {
    let with_ledger = page.incidents.iter().filter(|incident| {
        let down = |of: &IncidentNode| of.node == "ron-ledger" && of.worst == NodeState::Down;
        incident.nodes.iter().any(down)
    });
    let [incident] = with_ledger.collect::<Vec<_>>()[..] else {
        panic!("{:#?}", page.incidents);
    };
    let cause = &incident.nodes[0];
    assert_eq!(
        (cause.node.as_str(), cause.worst, cause.because.as_deref()),
        ("ron-ledger", NodeState::Down, None)
    );
    let wallet = incident.nodes.iter().find(|node| node.node == "svc-wallet");
    let wallet = wallet.expect("the wallet is in it");
    assert_eq!(wallet.because.as_deref(), Some("ron-ledger"));
    assert!(wallet.until.is_some_and(|until| until >= wallet.since));
    let lines = page.entries.iter();
    let lines = lines.filter(|line| line.incident == Some(incident.id));
    assert_eq!(lines.count() as u64, incident.lines, "{incident:#?}");
}

#[test]
fn a_killed_ledger_is_the_cause_of_what_follows_and_nothing_is_told_twice() {
    let mut rig = Rig::start();
    rig.run("svc-admin");
    let console = Console::of(&rig);
    until("all four are healthy", || {
        let lines = console.lines(&rig);
        ["ron-kms", "svc-passport", "ron-ledger", "svc-wallet"]
            .iter()
            .all(|node| is(&lines, node, &["healthy"]))
    });
    rig.kill("ron-ledger");
    until("the wallet is not well because of the ledger", || {
        let lines = console.lines(&rig);
        let wallet = state(&lines, "svc-wallet");
        is(&lines, "ron-ledger", &["down"])
            && is(&lines, "svc-wallet", &["degraded", "down"])
            && wallet.is_some_and(|line| line.because.as_deref() == Some("ron-ledger"))
    });
    let lines = console.lines(&rig);
    let blamed: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line.because.as_deref())
        .collect();
    assert!(
        !blamed.contains("ron-kms") && !blamed.contains("svc-passport"),
        "{lines:#?}"
    );
    let starts = events(&lines)
        .iter()
        .filter(|event| (event.0, event.1) == ("ron-ledger", "started"))
        .count();
    rig.run("ron-ledger");
    rig.wait_ready("ron-ledger");
    until("both are well, and the ledger's start is told", || {
        let lines = console.lines(&rig);
        let now = events(&lines)
            .iter()
            .filter(|event| (event.0, event.1) == ("ron-ledger", "started"))
            .count();
        // A restart within the window degrades.
        is(&lines, "ron-ledger", &["healthy", "degraded"])
            && is(&lines, "svc-wallet", &["healthy"])
            && now == starts + 1
    });
    one_incident(&console.page(&rig, "").unwrap());
    let before = console.lines(&rig);
    rig.kill("svc-admin");
    rig.run("svc-admin");
    until(
        "the console is back, and has read the services again",
        || {
            let lines = console.lines(&rig);
            lines.first().map(|line| line.seq) > before.first().map(|line| line.seq)
        },
    );
    std::thread::sleep(Duration::from_secs(8));
    let after = console.lines(&rig);
    let told = events(&after);
    let once: BTreeSet<_> = told.iter().collect();
    assert_eq!(once.len(), told.len(), "{told:#?}");
    let kept = events(&before);
    assert!(
        kept.iter().all(|event| once.contains(event)),
        "{kept:#?}\n{told:#?}"
    );
    one_incident(&console.page(&rig, "").unwrap());
    let page = console.page(&rig, "?least=error&node=ron-ledger").unwrap();
    assert!(!page.entries.is_empty());
    assert!(page.entries.iter().all(
        |line| line.node == "ron-ledger" && line.severity == ron_proto::events::Severity::Error
    ));
    let bad = console.page(&rig, "?least=much");
    assert!(bad.is_none(), "{bad:?}");
}
