//! Reads chosen entries of a verified directory again, each segment at most once and front to back.

use std::path::Path;

use super::errors::VerifyError;
use super::layout::{
    BATCH_HEADER, BATCH_TAG, ENTRY_HEADER, SEGMENT_HEADER, SegmentHeader, entry_holds, entry_len,
    entry_parts, segment_name,
};
use super::meta::Meta;
use super::segments;
use super::window::Window;
use ron_files::{Disk, OsDisk};

/// Calls `visit` with leaf and private part of each entry of `wanted`, in order. For a directory that
/// [`super::verify_dir`] has accepted: only the checksums of the chosen entries are checked again.
/// `wanted` ascends and has no index twice.
pub fn pick(
    dir: &Path,
    wanted: &[u64],
    visit: &mut dyn FnMut(u64, &[u8], &[u8]) -> Result<(), String>,
) -> Result<(), VerifyError> {
    let whole = |why: String| VerifyError {
        index: None,
        why: format!("{}: {why}", dir.display()),
    };
    let meta = Meta::load(&OsDisk, dir).map_err(|e| whole(e.to_string()))?;
    let meta = meta.ok_or_else(|| whole("it holds no log".to_owned()))?;
    let names = OsDisk.list(dir).map_err(|e| whole(e.to_string()))?;
    let headers = segments::headers(&OsDisk, dir, &meta, &segments::numbers(&names));
    let headers = headers.map_err(|e| whole(e.to_string()))?;
    if headers.is_empty() {
        return Err(whole("it holds no segment".to_owned()));
    }
    let segment = |index: &u64| segments::holding(&headers, *index);
    for wanted in wanted.chunk_by(|a, b| segment(a) == segment(b)) {
        let at = segment(&wanted[0]);
        in_segment(dir, &meta, &headers[at].0, wanted, visit)?;
    }
    Ok(())
}

/// The same within one segment.
fn in_segment(
    dir: &Path,
    meta: &Meta,
    header: &SegmentHeader,
    wanted: &[u64],
    visit: &mut dyn FnMut(u64, &[u8], &[u8]) -> Result<(), String>,
) -> Result<(), VerifyError> {
    let name = segment_name(header.number);
    let io = |e: std::io::Error| VerifyError::at(wanted[0], format!("{name}: {e}"));
    let file = segments::open(&OsDisk, dir, meta, header.number).map_err(io)?;
    let mut window = Window::new(&*file, file.len().map_err(io)?);
    let (mut offset, mut index) = (SEGMENT_HEADER as u64, header.first);
    for wanted in wanted {
        let changed = || VerifyError::at(*wanted, "it was changed while the log was verified");
        loop {
            let head = window.at(offset, ENTRY_HEADER).map_err(io)?;
            let head = head.ok_or_else(changed)?;
            // A batch header may lie before any entry.
            if head[0] == BATCH_TAG {
                offset += BATCH_HEADER as u64;
                continue;
            }
            let len = entry_len(head).ok_or_else(changed)?;
            if index == *wanted {
                let entry = window.at(offset, len).map_err(io)?;
                let entry = entry.filter(|e| entry_holds(e, &meta.salt, index));
                let (preimage, private) = entry_parts(entry.ok_or_else(changed)?);
                visit(index, &preimage[1..], private).map_err(|why| VerifyError::at(index, why))?;
                break;
            }
            index += 1;
            offset += len as u64;
        }
    }
    Ok(())
}
