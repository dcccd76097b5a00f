//! The running rewarder, as the command line calls it.

use std::path::Path;
use std::time::Duration;

use ron_client::{ClientError, RewarderClient, RunRef, TokenAsk};
use ron_files::OsDisk;
use ron_kernel::{Deadline, Shutdown};
use ron_proto::rewarder::{EpochRun, RunState, RunTotals};
use ron_proto::{Asset, ContentId, EpochId};
use svc_rewarder::inputs::snapshot::Sealed;

use super::{ROWS, bar};
use crate::layout::Layout;
use crate::{fleet, token};

/// Timeout of one call.
const CALL: Duration = Duration::from_secs(60);

/// Minimum rate of an upload that the service accepts, in bytes per second.
const SLOWEST: u64 = 64 << 10;

/// Digits of a run key in the short name of a dry run.
const SHORT: usize = 12;

/// A run of the service: the live run of an epoch or, as EPOCH@KEY, a dry run. With /ASSET behind it, what it
/// pays of that asset.
#[derive(Clone, Debug)]
pub struct NamedRun {
    pub epoch: EpochId,
    pub dry_run: Option<ContentId>,
    pub asset: Option<Asset>,
}

impl NamedRun {
    pub fn of(run: &EpochRun) -> Self {
        Self {
            epoch: run.epoch_id.clone(),
            dry_run: run.dry_run.then_some(run.run_key),
            asset: None,
        }
    }

    /// The totals of the asset that is named, or of the first one; `None` for a run without a manifest.
    pub fn totals(&self, run: &EpochRun) -> Option<RunTotals> {
        let Some(named) = &self.asset else {
            return run.totals;
        };
        let found = run.assets.iter().find(|it| it.asset == *named);
        found.map(|it| it.totals)
    }

    pub const fn as_ref(&self) -> RunRef<'_> {
        RunRef {
            epoch: &self.epoch,
            dry_run: self.dry_run.as_ref(),
            asset: self.asset.as_ref(),
        }
    }

    /// The name with as much of the run key as usually tells dry runs apart.
    pub fn short(&self) -> String {
        match &self.dry_run {
            None => self.epoch.to_string(),
            Some(key) => format!("{}@{}", self.epoch, &key.hex()[..SHORT]),
        }
    }
}

/// A client with a fresh token.
pub struct Remote {
    pub client: RewarderClient,
}

/// A deadline for one call.
pub fn within() -> Deadline {
    Deadline::within(CALL)
}

/// The text of a refused call.
pub fn failed(error: ClientError) -> String {
    format!("svc-rewarder: {error}")
}

impl Remote {
    /// Gets a token from the issuer of the fleet on `data_dir`.
    pub fn connect(data_dir: Option<&Path>) -> Result<Self, String> {
        Self::connect_as(data_dir, None)
    }

    /// The same, for the client that is named.
    pub fn connect_as(data_dir: Option<&Path>, client: Option<&str>) -> Result<Self, String> {
        let layout = Layout::new(data_dir)?;
        let ask = TokenAsk {
            audience: "svc-rewarder",
            ..TokenAsk::default()
        };
        let credential = token::credential(&layout, client, &ask)?;
        let at = fleet::reach(&layout, "svc-rewarder")?;
        Ok(Self {
            client: RewarderClient::new(&at.url, credential, at.http),
        })
    }

    /// The run that EPOCH or EPOCH@KEY names, and the asset of EPOCH/ASSET or EPOCH@KEY/ASSET; KEY is the run key
    /// of a dry run, or its first digits.
    pub fn find(&self, name: &str) -> Result<NamedRun, String> {
        let (name, asset) = match name.split_once('/') {
            Some((name, asset)) => (name, Some(asset.parse().map_err(|e| format!("{e}"))?)),
            None => (name, None),
        };
        Ok(NamedRun {
            asset,
            ..self.find_run(name)?
        })
    }

    fn find_run(&self, name: &str) -> Result<NamedRun, String> {
        let (epoch, key) = match name.split_once('@') {
            Some((epoch, key)) => (epoch, Some(key.trim_start_matches("b3:"))),
            None => (name, None),
        };
        let epoch: EpochId = epoch.parse().map_err(|e| format!("{e}"))?;
        let Some(key) = key else {
            return Ok(NamedRun {
                epoch,
                dry_run: None,
                asset: None,
            });
        };
        let runs = self.client.dry_runs(&epoch, within()).map_err(failed)?;
        let named = |run: &&EpochRun| run.run_key.hex().starts_with(key);
        let found: Vec<_> = runs.epochs.iter().filter(named).collect();
        match found.as_slice() {
            [run] if !key.is_empty() => Ok(NamedRun::of(run)),
            [] => Err(format!(
                "epoch {epoch} has no dry run {key}; `ron rewarder dry-runs {epoch}` lists those that are kept"
            )),
            _ => Err(format!(
                "epoch {epoch} has {} dry runs whose run keys begin with \"{key}\"; give more digits",
                found.len()
            )),
        }
    }

    /// Sends a sealed snapshot; sending it again changes nothing.
    pub fn upload(&self, path: &Path) -> Result<ContentId, String> {
        let sealed = Sealed::open(&OsDisk, path).map_err(|e| format!("{}: {e}", path.display()))?;
        let cid = sealed.cid();
        let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        // Time by size: the service gives up slower uploads, and seals within minutes.
        let time = CALL * 15 + Duration::from_secs(sealed.source().len() / SLOWEST);
        let sent = self
            .client
            .put_sealed_file(&cid, &file, Deadline::within(time));
        sent.map(|_| cid).map_err(failed)
    }

    /// Waits, with a progress bar, until `done` returns true.
    pub fn watch(
        &self,
        of: RunRef<'_>,
        longest: Duration,
        done: impl Fn(&EpochRun) -> bool,
    ) -> Result<EpochRun, String> {
        let end = Deadline::within(longest);
        let bar = bar("queued", 0, ROWS);
        loop {
            let run = self.client.epoch(of, within()).map_err(failed)?;
            let p = &run.progress;
            let (pos, len) = match run.state {
                RunState::Queued | RunState::Computing => (p.shares_computed, p.rows_total),
                _ => (p.intents_settled, p.intents_total),
            };
            bar.set_message(run.state.as_str());
            bar.set_length(len);
            bar.set_position(pos);
            let why = run.reason.as_ref();
            let why = why.map_or_else(String::new, |r| format!(": {}: {}", r.code, r.detail));
            if done(&run) {
                bar.finish_and_clear();
                return Ok(run);
            }
            let over = matches!(run.state, RunState::Failed | RunState::Quarantined);
            if over || end.expired() {
                bar.finish_and_clear();
                return Err(format!("epoch {} is {}{why}", of.epoch, run.state.as_str()));
            }
            let (_keep, never) = Shutdown::pair();
            never.wait(Deadline::within(Duration::from_millis(50)));
        }
    }
}
