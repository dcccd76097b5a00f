//! `ron doctor`: checks this host and the configuration before a service has to, and says how to
//! fix what is wrong.
//!
//! It changes nothing except for a trial file, which it removes again, and needs no running
//! service.

mod archive;
mod database;
mod disk;
mod host;
mod service;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use ron_services::NAMES;

use crate::layout::{BASE_PORT, Layout, base_port};

/// Check this host: configuration, permissions, ports, clock, disk, limits, HSM and TPM; and the database of a shared log.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron doctor\n  ron doctor --data-dir /srv/ron\n  ron doctor --service ron-kms --config /etc/ron/ron-kms.toml\n  ron doctor --json | jq '.findings[] | select(.verdict != \"ok\")'\n\nEnds with code 1 when something is wrong enough to keep a service from starting or from being trusted."
)]
pub struct DoctorArgs {
    /// Data directory of `ron up`; `ron` under the user's state directory when absent.
    #[arg(long, conflicts_with_all = ["service", "config"])]
    data_dir: Option<PathBuf>,
    /// Check one service with a configuration file of its own.
    #[arg(long, requires = "config", value_parser = NAMES)]
    service: Option<String>,
    /// Configuration file of that service.
    #[arg(long, requires = "service")]
    config: Option<PathBuf>,
    /// API port of the first service, for a data directory that does not exist yet.
    #[arg(long, default_value_t = BASE_PORT, value_parser = base_port)]
    base_port: u16,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, but not as it should in production.
    Warn,
    /// A service would not start, or could not be trusted.
    Fail,
}

/// The result of one check.
#[derive(Serialize)]
struct Finding {
    verdict: Verdict,
    /// Subject of the check, such as `ron-kms ports`.
    about: String,
    says: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// All findings, in the order of the checks.
#[derive(Default, Serialize)]
struct Report {
    findings: Vec<Finding>,
}

impl Report {
    fn ok(&mut self, about: &str, says: impl Into<String>) {
        self.add(Verdict::Ok, about, says.into(), None);
    }

    fn warn(&mut self, about: &str, says: impl Into<String>, hint: impl Into<String>) {
        self.add(Verdict::Warn, about, says.into(), Some(hint.into()));
    }

    fn fail(&mut self, about: &str, says: impl Into<String>, hint: impl Into<String>) {
        self.add(Verdict::Fail, about, says.into(), Some(hint.into()));
    }

    fn add(&mut self, verdict: Verdict, about: &str, says: String, hint: Option<String>) {
        self.findings.push(Finding {
            verdict,
            about: about.to_owned(),
            says,
            hint,
        });
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings
            .iter()
            .filter(|f| f.verdict == verdict)
            .count()
    }

    fn table(&self) -> String {
        let width = self.findings.iter().map(|f| f.about.len()).max();
        let width = width.unwrap_or(0);
        let mut text = String::new();
        for finding in &self.findings {
            let word = match finding.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            let _ = writeln!(text, "{word}  {:<width$}  {}", finding.about, finding.says);
            if let Some(hint) = &finding.hint {
                let _ = writeln!(text, "      {:<width$}  -> {hint}", "");
            }
        }
        let (fail, warn) = (self.count(Verdict::Fail), self.count(Verdict::Warn));
        let _ = writeln!(
            text,
            "{} checks: {fail} failed, {warn} with warnings",
            self.findings.len()
        );
        text
    }
}

pub fn run(args: &DoctorArgs) -> Result<(), String> {
    let mut report = Report::default();
    host::check(&mut report);
    match (&args.service, &args.config) {
        (Some(name), Some(file)) => service::check_file(&mut report, name, file),
        _ => service::check_fleet(
            &mut report,
            &Layout::new(args.data_dir.as_deref())?,
            args.base_port,
        ),
    }
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        println!("{text}");
    } else {
        print!("{}", report.table());
    }
    match report.count(Verdict::Fail) {
        0 => Ok(()),
        1 => Err("one check failed; see above".into()),
        n => Err(format!("{n} checks failed; see above")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_counts() {
        let mut report = Report::default();
        report.ok("clock", "fine");
        report.fail("ron-kms ports", "taken", "free it");
        assert_eq!(
            report.table(),
            "ok    clock          fine\n\
             FAIL  ron-kms ports  taken\n      \
                                  -> free it\n\
             2 checks: 1 failed, 0 with warnings\n"
                .replace("      -> ", "                     -> ")
        );
    }
}
