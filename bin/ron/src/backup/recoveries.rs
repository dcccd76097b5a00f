//! `recoveries.json`: that a data directory was restored from a backup, which every reader of its logs has to know.

use std::fmt::Write as _;
use std::path::PathBuf;

use ron_proto::Timestamp;
use serde::{Deserialize, Serialize};

use crate::layout::{Layout, read_format, write_json};

/// Format of the file.
const FORMAT: u32 = 1;

/// All restores of a data directory, oldest first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recoveries {
    format: u32,
    pub recoveries: Vec<Recovery>,
}

/// One restore.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recovery {
    pub at: Timestamp,
    /// When the backup was taken: what was acknowledged since is lost.
    pub backup: Timestamp,
    /// The audit log before: its verifier key, its end, and where it is kept.
    pub audit_vkey_before: String,
    pub audit_size_before: u64,
    pub audit_root_before: String,
    pub audit_kept_in: String,
    /// Verifier key of the audit log since.
    pub audit_vkey: String,
    /// Leaves of the revocation log before.
    pub revocations_before: u64,
    /// Tokens of earlier epochs are refused.
    pub epoch: u64,
    /// Keys that wrap again when they are rotated.
    pub closed_for_wrapping: Vec<String>,
    /// Remembered answers that the backup has not whole.
    pub lost_answers: Vec<String>,
}

fn path(layout: &Layout) -> PathBuf {
    layout.root.join("recoveries.json")
}

impl Recoveries {
    /// Those of a data directory; none without the file.
    pub fn of(layout: &Layout) -> Result<Self, String> {
        let path = path(layout);
        if !path.exists() {
            return Ok(Self {
                format: FORMAT,
                recoveries: Vec::new(),
            });
        }
        read_format(&path, FORMAT, |read: &Self| read.format)
    }

    pub fn write(&self, layout: &Layout) -> Result<(), String> {
        write_json(&path(layout), self, 0o600)
    }
}

impl Recovery {
    /// What it means, for the operator.
    pub fn shown(&self, layout: &Layout) -> String {
        let mut text = format!(
            "recovered: this is the state of {}; what was acknowledged since is lost\n\
             - the audit log goes on under another name, {}; the log before ends with {} leaves in {}\n\
             - tokens of epochs before {} are refused, so that every client gets a new one\n\
             - operation ids and idempotency keys that were used since then are not known: a repeated request is carried out again\n\
             - the ledger and the revocation log go on after the backup's last entries: a witness that has cosigned more refuses them",
            self.backup,
            self.audit_vkey.split('+').next().unwrap_or_default(),
            self.audit_size_before,
            layout.root.join(&self.audit_kept_in).display(),
            self.epoch,
        );
        if !self.closed_for_wrapping.is_empty() {
            let _ = write!(
                text,
                "\n- these keys unwrap, and wrap again once they are rotated (ron kms rotate KEY): {}",
                self.closed_for_wrapping.join(", ")
            );
        }
        if !self.lost_answers.is_empty() {
            let _ = write!(
                text,
                "\n- the backup has not all answers to operation ids: {}",
                self.lost_answers.join("; ")
            );
        }
        text
    }
}
