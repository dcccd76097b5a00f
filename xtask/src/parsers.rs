//! Our metrics parser beside those of other authors on real pages: Debian's exporters and a fresh fleet. Go's parsers
//! are measured too where Debian's packages of their sources are installed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::bench::{build, built};
use crate::cmd::{Cmd, Started};
use crate::files;
use crate::task::{Args, Failure, Outcome};

pub fn parsers(args: &Args) -> Outcome {
    let seconds = args.text("seconds");
    let target = files::target().join("rivals");
    build("release", "-p ron")?;
    Cmd::cargo("build --release --locked --manifest-path benches/rivals/Cargo.toml -p ron-parser-rivals --target-dir")
        .arg(&target)
        .run()?;
    let work = files::scratch("parsers")?;
    let pages = collect(work.path())?;
    Cmd::new(target.join("release/ron-parser-rivals"))
        .arg(seconds)
        .args(&pages)
        .run()?;
    let go = target.join("go-parsers");
    let compiled = Cmd::new("go")
        .args(["build", "-o"])
        .arg(&go)
        .arg("main.go")
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .dir(&files::root().join("benches/rivals/parsers/go"))
        .silent()
        .status();
    if compiled.is_ok_and(|status| status.success()) {
        return Cmd::new(go).arg(seconds).args(&pages).run();
    }
    eprintln!(
        "(Go's parsers are not measured: apt-get install golang-github-victoriametrics-victoriametrics-dev \
         golang-github-victoriametrics-metricsql-dev golang-github-valyala-fastjson-dev golang-github-prometheus-common-dev)"
    );
    Ok(())
}

/// A port that is free at this moment.
fn port() -> Outcome<u16> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let free = free.map_err(|e| Failure(format!("no port is free: {e}")))?;
    Ok(free.port())
}

/// Starts the exporters and a fleet, and saves a page of metrics of each.
fn collect(work: &Path) -> Outcome<Vec<PathBuf>> {
    let (node, prometheus) = (port()?, port()?);
    let log = work.join("log");
    let exporter = Cmd::new("prometheus-node-exporter")
        .arg(format!("--web.listen-address=127.0.0.1:{node}"))
        .hint("scripts/setup.sh installs it")
        .log(&log)?
        .start()?;
    let config = work.join("prometheus.yml");
    files::write(
        &config,
        &format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: self\n  \
             static_configs: [{{targets: [\"127.0.0.1:{prometheus}\"]}}]\n"
        ),
    )?;
    let server = Cmd::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            work.join("tsdb").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{prometheus}"))
        .hint("scripts/setup.sh installs it")
        .log(&log)?
        .start()?;
    let (fleet, endpoints) = start_fleet(work)?;
    let scrape = |url: &str, name: &str| {
        let page = work.join(format!("{name}.txt"));
        Cmd::new("curl")
            .args(["-s", "--retry", "30", "--retry-delay", "1"])
            .args(["--retry-connrefused", &format!("{url}/metrics"), "-o"])
            .arg(&page)
            .run()?;
        Ok(page)
    };
    let pages = vec![
        scrape(&format!("http://127.0.0.1:{node}"), "node-exporter")?,
        scrape(&format!("http://127.0.0.1:{prometheus}"), "prometheus")?,
        scrape(&health(&endpoints, "ron-kms")?, "ron-kms")?,
        scrape(&health(&endpoints, "svc-wallet")?, "svc-wallet")?,
    ];
    for process in [exporter, server, fleet] {
        process.stop()?;
    }
    Ok(pages)
}

/// A fleet that is ready, and its endpoints.
fn start_fleet(work: &Path) -> Outcome<(Started, Value)> {
    let (up, data) = (work.join("up"), work.join("fleet"));
    let mut fleet = Cmd::new(built("release").join("ron"))
        .args(["up", "--base-port", "0", "--data-dir"])
        .arg(&data)
        .log(&up)?
        .start()?;
    while !files::read(&up)?.lines().any(|l| l.starts_with("ready")) {
        if fleet.ended().is_some() {
            return Err(Failure(format!("ron up ended:\n{}", files::read(&up)?)));
        }
        thread::sleep(Duration::from_millis(200));
    }
    let text = files::read(&data.join("run/endpoints.json"))?;
    let endpoints = serde_json::from_str(&text);
    let endpoints = endpoints.map_err(|e| Failure(format!("run/endpoints.json: {e}")))?;
    Ok((fleet, endpoints))
}

/// The URL of a service's health port.
fn health(endpoints: &Value, service: &str) -> Outcome<String> {
    let mut all = endpoints["services"].as_array().into_iter().flatten();
    let found = all.find(|s| s["service"] == service);
    let url = found.and_then(|s| s["health"].as_str()).map(str::to_owned);
    url.ok_or_else(|| Failure(format!("run/endpoints.json names no health of {service}")))
}
