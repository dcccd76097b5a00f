//! `ron doctor`: looks at this host and at the configuration before a service has to, and says what to do.
//!
//! It changes nothing but a trial file, which it takes away again, and needs no running service.

mod disk;
mod host;
mod service;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::layout::{BASE_PORT, Layout, SERVICES, base_port};

/// Check this host: configuration, permissions, ports, clock, disk, limits, HSM and TPM.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron doctor\n  ron doctor --data-dir /srv/ron\n  ron doctor --service ron-kms --config /etc/ron/ron-kms.toml\n  ron doctor --json | jq '.findings[] | select(.verdict != \"ok\")'\n\nEnds with code 1 when something is wrong enough to keep a service from starting or from being trusted."
)]
pub struct DoctorArgs {
    /// Data directory of `ron up`; `ron` under the user's state directory when absent.
    #[arg(long, conflicts_with_all = ["service", "config"])]
    data_dir: Option<PathBuf>,
    /// Look at one service with a configuration file of its own.
    #[arg(long, requires = "config", value_parser = SERVICES)]
    service: Option<String>,
    /// That file.
    #[arg(long, requires = "service")]
    config: Option<PathBuf>,
    /// API port of the first service, for a data directory that does not exist yet.
    #[arg(long, default_value_t = BASE_PORT, value_parser = base_port)]
    base_port: u16,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// It works, but not as it should in production.
    Warn,
    /// A service would not start, or could not be trusted.
    Fail,
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Finding {
    verdict: Verdict,
    /// What was looked at, as `ron-kms ports`.
    about: String,
    /// What was seen.
    says: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// What was found, in the order in which it was looked at.
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
            "{} looked at, {warn} to improve, {fail} wrong",
            self.findings.len()
        );
        text
    }
}

/// Runs `ron doctor`.
pub fn run(args: &DoctorArgs) -> Result<(), String> {
    let mut report = Report::default();
    host::look(&mut report);
    match (&args.service, &args.config) {
        (Some(name), Some(file)) => service::look_at_file(&mut report, name, file),
        _ => service::look_at_fleet(
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
        1 => Err("one thing is wrong; see above".into()),
        n => Err(format!("{n} things are wrong; see above")),
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
             2 looked at, 0 to improve, 1 wrong\n"
                .replace("      -> ", "                     -> ")
        );
    }
}
