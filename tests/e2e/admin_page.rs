//! The console over a fleet of separate processes, in a real browser, below a sub-path behind
//! nginx; and its figures compared with those of a real Prometheus.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Call, HttpClient, Reply};
use ron_kernel::Deadline;
use ron_tests::tools;
use ron_tests::{
    SERVICES, base_port, free_port, http_client, json, ok, ron_on, takes_passports, workspace,
};
use serde_json::Value;

/// Processes, ended by their ids in every case.
pub struct Separate {
    pub dir: tempfile::TempDir,
    base: u16,
    admin_flags: Vec<String>,
    running: Vec<(String, Child)>,
    http: HttpClient,
}

impl Separate {
    pub fn start(admin_flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = base_port();
        ok(&ron_on(
            dir.path(),
            &["init", "--base-port", &base.to_string()],
        ));
        let mut fleet = Self {
            dir,
            base,
            admin_flags: admin_flags.iter().map(|&f| f.to_owned()).collect(),
            running: Vec::new(),
            http: http_client(),
        };
        for name in SERVICES {
            fleet.run(name);
        }
        for name in SERVICES {
            fleet.ready(name);
        }
        fleet
    }

    pub fn port(&self, name: &str) -> u16 {
        let at = SERVICES.iter().position(|s| *s == name).unwrap();
        self.base + at as u16 * 10
    }

    fn run(&mut self, name: &str) {
        let config = self.dir.path().join(name).join("config.toml");
        let flags = self.admin_flags.iter().filter(|_| name == "svc-admin");
        let sets = flags.map(String::as_str).chain(["log.level=warn"]);
        let mut command = tools::service(name, &config, sets);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        self.running.push((name.to_owned(), child));
    }

    /// Any other program, run until the end of the test.
    fn also(&mut self, command: &mut Command) {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.running.push(("other".to_owned(), child.unwrap()));
    }

    pub fn kill(&mut self, name: &str, signal: &str) {
        let at = self.running.iter().position(|(n, _)| n == name).unwrap();
        let (_, mut child) = self.running.remove(at);
        tools::signal(child.id(), signal);
        child.wait().unwrap();
    }

    fn get(&self, url: &str) -> Option<Reply> {
        let call = Call::get(url, Deadline::within(Duration::from_secs(5)));
        self.http.call(call).ok()
    }

    fn ready(&self, name: &str) {
        let url = format!("http://127.0.0.1:{}/readyz", self.port(name) + 5);
        until(name, || {
            self.get(&url).is_some_and(|reply| takes_passports(&reply))
        });
    }

    fn token(&self) -> String {
        let args = ["token", "--audience", "svc-admin", "--scope", "admin:view"];
        ok(&ron_on(self.dir.path(), &args)).trim().to_owned()
    }
}

impl Drop for Separate {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            tools::signal(child.id(), "-TERM");
        }
        for (_, child) in &mut self.running {
            let patience = Instant::now();
            while child.try_wait().ok().flatten().is_none() {
                if patience.elapsed() > Duration::from_secs(5) {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Waits for a condition, for a minute at most.
fn until(what: &str, wanted: impl Fn() -> bool) {
    let started = Instant::now();
    while !wanted() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{what} did not come"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn artifacts() -> PathBuf {
    let dir = workspace().join("target/test-artifacts");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// nginx as an operator would configure it: the console below `/ops/console/`.
fn nginx(fleet: &mut Separate) -> u16 {
    let port = free_port();
    let dir = fleet.dir.path().join("nginx");
    std::fs::create_dir_all(&dir).unwrap();
    let at = dir.display();
    let conf = format!(
        "daemon off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
         server {{ listen 127.0.0.1:{port};\n\
         location /ops/console/ {{ proxy_pass http://127.0.0.1:{}/; proxy_set_header Host $host; proxy_http_version 1.1; }} }} }}\n",
        fleet.port("svc-admin"),
    );
    let path = dir.join("nginx.conf");
    std::fs::write(&path, conf).unwrap();
    let nginx = ["/usr/sbin/nginx", "/usr/bin/nginx"];
    let nginx = nginx.iter().find(|p| Path::new(p).exists());
    let nginx = nginx.expect("nginx is installed by scripts/setup.sh");
    fleet.also(Command::new(nginx).arg("-p").arg(&dir).arg("-c").arg(&path));
    let url = format!("http://127.0.0.1:{port}/ops/console/");
    until("nginx", || fleet.get(&url).is_some_and(|r| r.status == 200));
    port
}

#[test]
fn the_console_reports_outages_and_recovers_in_a_real_browser() {
    let mut fleet = Separate::start(&["auth.mode=passport", "sampler.metrics_interval=3s"]);
    ok(&ron_on(fleet.dir.path(), &["demo", "--json"]));
    let port = nginx(&mut fleet);
    let token = fleet.token();
    let browser = workspace().join("tests/browser");
    assert!(
        browser.join("node_modules").exists(),
        "run scripts/setup.sh"
    );
    let mut page = Command::new("node")
        .arg(browser.join("console.mjs"))
        .args([
            "--url",
            &format!("http://127.0.0.1:{port}/ops/console/"),
            "--shots",
        ])
        .arg(artifacts())
        .env("RON_TOKEN", token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node is installed by scripts/setup.sh");
    let mut said = Vec::new();
    let mut input = page.stdin.take().unwrap();
    for line in BufReader::new(page.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("{line}");
        let Some(step) = line.strip_prefix("step ") else {
            said.push(line);
            continue;
        };
        match step {
            "kill-kms" => fleet.kill("ron-kms", "-KILL"),
            "start-kms" => {
                fleet.run("ron-kms");
                fleet.ready("ron-kms");
            }
            "stop-admin" => fleet.kill("svc-admin", "-TERM"),
            "start-admin" => {
                fleet.run("svc-admin");
                fleet.ready("svc-admin");
            }
            other => panic!("an unknown step {other}"),
        }
        writeln!(input, "done").unwrap();
    }
    let status = page.wait().unwrap();
    assert!(status.success(), "{said:#?}");
    assert!(said.len() >= 14, "{said:#?}");
}

/// The value of a Prometheus query that returns one number per service; empty results are absent.
fn ask(fleet: &Separate, prometheus: u16, query: &str) -> Option<f64> {
    let text = ron_client::encode(query);
    let url = format!("http://127.0.0.1:{prometheus}/api/v1/query?query={text}");
    // 503 while it starts.
    let reply = fleet.get(&url).filter(|reply| reply.status != 503)?;
    let answer = json(&reply, 200);
    let value = answer["data"]["result"][0]["value"][1].as_str()?.to_owned();
    value.parse().ok().filter(|v: &f64| v.is_finite())
}

#[test]
fn the_figures_agree_with_a_real_prometheus() {
    let mut fleet = Separate::start(&["sampler.metrics_interval=1s", "sampler.metrics_window=30s"]);
    let prometheus = free_port();
    let services = SERVICES.map(|name| (name, fleet.port(name) + 5));
    let dir = fleet.dir.path().to_owned();
    fleet.also(&mut tools::prometheus(&dir, prometheus, &services, ""));
    until("all targets", || {
        ask(&fleet, prometheus, "sum(up)") == Some(6.0)
    });
    // A steady load on a public route of the ledger, for longer than the window before the
    // comparison.
    let url = format!(
        "http://127.0.0.1:{}/log/v1/checkpoint",
        fleet.port("ron-ledger")
    );
    let stop = AtomicBool::new(false);
    let load = || {
        let (began, mut n) = (Instant::now(), 0_u32);
        // Bounded: a panic in the test must not leave it running.
        while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(120) {
            assert!(fleet.get(&url).is_some_and(|reply| reply.status == 200));
            n += 1;
            let due = began + Duration::from_millis(20) * n;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    };
    let report = std::thread::scope(|scope| {
        scope.spawn(load);
        std::thread::sleep(Duration::from_secs(34));
        let report = agreement(&fleet, prometheus);
        stop.store(true, Ordering::Relaxed);
        report
    });
    std::fs::write(artifacts().join("prometheus.txt"), report.join("\n")).unwrap();
}

/// The figures of both, once they agree. The windows of the two end at different moments, and a few
/// slow responses at an edge move a high quantile, so the comparison is repeated a few times.
fn agreement(fleet: &Separate, prometheus: u16) -> Vec<String> {
    let mut last = Vec::new();
    for _ in 0..40 {
        let (agree, report) = compare(fleet, prometheus);
        if agree {
            return report;
        }
        last = report;
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!("forty times in a row the console and Prometheus differ: {last:#?}");
}

/// Whether all figures are within 2 %, and the figures.
fn compare(fleet: &Separate, prometheus: u16) -> (bool, Vec<String>) {
    let url = format!(
        "http://127.0.0.1:{}/api/nodes/ron-ledger/metrics/facets",
        fleet.port("svc-admin")
    );
    let facets: Value = json(&fleet.get(&url).unwrap(), 200);
    let facets = facets["facets"].as_array().unwrap();
    let facet = facets
        .iter()
        .find(|f| f["facet"] == "GET /log/v1/checkpoint");
    let facet = facet.expect("the route that was called");
    let of = "route=\"/log/v1/checkpoint\",service=\"ron-ledger\"";
    // Our figures must lie within what Prometheus computes for the last few ends of its window.
    let windows = |query: &dyn Fn(&str) -> String| -> Vec<f64> {
        [
            "",
            " offset 1s",
            " offset 2s",
            " offset 3s",
            " offset 4s",
            " offset 5s",
        ]
        .iter()
        .filter_map(|offset| ask(fleet, prometheus, &query(offset)))
        .collect()
    };
    let rate = windows(&|offset| {
        format!("sum(rate(ron_ledger_http_requests_total{{{of}}}[30s]{offset}))")
    });
    let (mut agree, mut report) = (true, Vec::new());
    let mut near = |what: &str, ours: f64, theirs: Vec<f64>| {
        let low = theirs.iter().copied().fold(f64::INFINITY, f64::min);
        let high = theirs.iter().copied().fold(0.0, f64::max);
        assert!(low <= high, "Prometheus has no {what}");
        let theirs = ours.clamp(low, high);
        let off = (ours - theirs).abs() / theirs;
        report.push(format!(
            "{what}: console {ours:.6}, Prometheus {theirs:.6}, off by {:.2} %",
            off * 100.0
        ));
        agree &= off <= 0.02;
    };
    near("request rate", facet["requestRate"].as_f64().unwrap(), rate);
    for (q, ours) in [
        ("0.5", "p50Seconds"),
        ("0.95", "p95Seconds"),
        ("0.99", "p99Seconds"),
    ] {
        let theirs = windows(&|offset| {
            format!(
                "histogram_quantile({q}, sum by (le) (rate(ron_ledger_http_request_duration_seconds_bucket{{{of}}}[30s]{offset})))"
            )
        });
        near(ours, facet[ours].as_f64().unwrap(), theirs);
    }
    (agree, report)
}
