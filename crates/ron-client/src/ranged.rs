//! Downloads of files in pieces (`Range`), so that memory stays small whatever the file's size and a
//! broken connection costs one piece.

use std::ops::RangeInclusive;

use ron_http::{Cause, Reply};
use ron_kernel::Deadline;

use crate::{Caller, ClientError, Outgoing};

/// One piece of a file.
#[derive(Debug)]
pub struct Piece {
    /// What the server sent: from the first requested byte on, at least one byte.
    pub bytes: Vec<u8>,
    /// Length of the whole file, in bytes.
    pub total: u64,
}

/// Why there is no piece.
#[derive(Debug, thiserror::Error)]
pub enum PieceError {
    /// The call failed, or was answered with an error.
    #[error("{}", said(.0))]
    Call(ClientError),
    /// The server sent something other than the requested bytes.
    #[error("{0}")]
    Wrong(String),
}

/// Requests these bytes of the file at `path`. A server that ignores `Range` sends the whole file,
/// which is accepted for its first piece; the client's maximum response size bounds it.
pub fn piece(
    caller: &Caller,
    path: &str,
    span: RangeInclusive<u64>,
    deadline: Deadline,
) -> Result<Piece, PieceError> {
    let at = *span.start();
    let range = format!("bytes={at}-{}", span.end());
    let reply = caller.send(&Outgoing {
        headers: &[("Range", &range), ("Accept", "application/octet-stream")],
        ..Outgoing::get(path, deadline)
    });
    let reply = reply.map_err(PieceError::Call)?;
    if reply.status == 206 {
        part(reply, at)
    } else if at == 0 {
        Ok(Piece {
            total: reply.body.len() as u64,
            bytes: reply.body,
        })
    } else {
        let why = format!("status {} for a range", reply.status);
        Err(PieceError::Wrong(why))
    }
}

/// Checks that a 206 holds the requested bytes, from `at` on, and states the length of the whole
/// file.
fn part(reply: Reply, at: u64) -> Result<Piece, PieceError> {
    let wrong = || PieceError::Wrong("a range without a proper Content-Range".into());
    let range = reply.header("content-range").ok_or_else(wrong)?;
    let (span, total) = range
        .strip_prefix("bytes ")
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(wrong)?;
    let (from, to) = span.split_once('-').ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    let (from, to, total) = (number(from)?, number(to)?, number(total)?);
    let length = reply.body.len() as u64;
    let fits = from == at && length > 0 && to.checked_sub(from) == Some(length - 1) && to < total;
    if !fits {
        return Err(wrong());
    }
    Ok(Piece {
        bytes: reply.body,
        total,
    })
}

fn said(error: &ClientError) -> String {
    match error {
        ClientError::Unknown {
            cause: Cause::TooLarge,
            ..
        } => format!("{error}; large files need a server that answers ranges (206)"),
        _ => error.to_string(),
    }
}
