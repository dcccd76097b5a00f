//! Fetches snapshots from a configured URL, by content id.
//!
//! The file is requested in pieces of 2 MiB (`Range`), each with a deadline that follows from the
//! minimum rate. So a slow source is given up early, a broken connection costs one piece, and
//! memory stays small whatever the snapshot's size. A fetched file is accepted only if its content
//! id is the requested one.

use std::sync::Arc;
use std::time::Duration;

use ron_client::ranged::{Piece, PieceError, piece};
use ron_client::{Caller, Credential, encode};
use ron_http::{HttpClient, url_origin};
use ron_kernel::Deadline;
use ron_proto::values::ContentId;

use super::{Scratch, Temporary, within};
use crate::inputs::import::Cancel;
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::READABLE;

/// Bytes requested at a time; must stay below the client's maximum response size.
const PIECE: u64 = 2 << 20;

/// Why a snapshot was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The source has no such snapshot (404).
    #[error("the source has no snapshot {0}")]
    Missing(ContentId),
    /// The source was not reached, refused, or was too slow; a later retry can help.
    #[error("the source of snapshots: {0}")]
    Unavailable(String),
    /// The source sent something other than the requested snapshot.
    #[error("the source of snapshots sent something else: {0}")]
    Wrong(String),
    /// The local disk failed.
    #[error("the fetched snapshot cannot be kept: {0}")]
    Disk(String),
    /// The caller's [`Cancel`] ended the fetch.
    #[error("fetching the snapshot was stopped before its end")]
    Stopped,
}

/// The configured source of snapshots.
#[derive(Clone)]
pub struct Origin {
    caller: Caller,
    /// Path and query, with `{hex}` or `{cid}`.
    path: Arc<str>,
    /// Maximum size of a snapshot, in bytes.
    cap: u64,
    /// Maximum accounts of a snapshot.
    rows_max: u64,
    /// Minimum rate of the source, in bytes per second.
    min_rate: u64,
    /// Time allowed for a piece in addition to that of its bytes.
    patience: Duration,
}

impl Origin {
    /// An origin at `template`, an absolute URL in which `{hex}` stands for the 64 hexadecimal
    /// digits of the content id, or `{cid}` for the whole id, percent-encoded.
    pub fn new(
        template: &str,
        credential: Credential,
        http: Arc<HttpClient>,
        cap: u64,
        min_rate: u64,
    ) -> Result<Self, String> {
        if template.contains("{hex}") == template.contains("{cid}") {
            return Err("snapshot.url must hold {hex} or {cid} for the content id".into());
        }
        let base = url_origin(template).filter(|base| template[base.len()..].starts_with('/'));
        let Some(base) = base else {
            return Err("snapshot.url must be an absolute URL with a path".into());
        };
        let path = &template[base.len()..];
        Ok(Self {
            caller: Caller::new(base, credential, http),
            path: path.into(),
            cap,
            rows_max: u64::MAX,
            min_rate: min_rate.max(1),
            patience: Duration::from_secs(5),
        })
    }

    /// With a maximum for the accounts of a snapshot.
    #[must_use]
    pub fn up_to(self, rows_max: u64) -> Self {
        Self { rows_max, ..self }
    }

    /// Fetches a snapshot into a new file in `scratch` and checks it completely.
    pub fn fetch(
        &self,
        cid: &ContentId,
        scratch: &Scratch,
        cancel: &Cancel,
    ) -> Result<(Temporary, Sealed), FetchError> {
        let disk = |error: std::io::Error| FetchError::Disk(error.to_string());
        let temporary = scratch.temporary();
        let file = temporary
            .disk()
            .create_with_mode(temporary.path(), READABLE)
            .map_err(disk)?;
        let hex = hex::encode(cid.0);
        let path = self.path.replace("{hex}", &hex);
        let path = path.replace("{cid}", &encode(&cid.to_string()));
        let (mut at, mut total) = (0, None);
        while total.is_none_or(|total| at < total) {
            if cancel.0() {
                return Err(FetchError::Stopped);
            }
            let piece = self.piece(cid, &path, at, total)?;
            file.write_at(at, &piece.bytes).map_err(disk)?;
            at += piece.bytes.len() as u64;
            total = Some(piece.total);
        }
        drop(file);
        let sealed = Sealed::open(temporary.disk(), temporary.path());
        let sealed = sealed.map_err(|error| FetchError::Wrong(error.to_string()))?;
        if sealed.cid() != *cid {
            let why = format!("its content id is {}", sealed.cid());
            return Err(FetchError::Wrong(why));
        }
        let sealed = within(sealed, self.rows_max);
        let sealed = sealed.map_err(|error| FetchError::Wrong(error.to_string()))?;
        Ok((temporary, sealed))
    }

    fn piece(
        &self,
        cid: &ContentId,
        path: &str,
        at: u64,
        total: Option<u64>,
    ) -> Result<Piece, FetchError> {
        let last = total.unwrap_or(self.cap).min(at + PIECE) - 1;
        let time = self.patience + Duration::from_secs((last - at) / self.min_rate);
        let piece = piece(&self.caller, path, at..=last, Deadline::within(time));
        let piece = piece.map_err(|error| match error {
            PieceError::Call(error) if error.status() == Some(404) => FetchError::Missing(*cid),
            PieceError::Call(_) => FetchError::Unavailable(error.to_string()),
            PieceError::Wrong(why) => FetchError::Wrong(why),
        })?;
        if total.is_some_and(|total| total != piece.total) {
            return Err(FetchError::Wrong("its length changed on the way".into()));
        }
        if piece.total > self.cap {
            let why = format!(
                "{} bytes; limits.max_snapshot_bytes is {}",
                piece.total, self.cap
            );
            return Err(FetchError::Wrong(why));
        }
        Ok(piece)
    }
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Origin")
    }
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
