//! The last line of a small file that a service keeps: the SHA-256 of everything before it. A changed byte is damage then, and
//! not another value. Against a program that can write to the directory it is no defence: that program can make the line too.

use ron_crypto::hash::sha256;
use ron_proto::b64;

const LABEL: &[u8] = b"\nsum ";

fn sum_of(content: &[u8]) -> String {
    b64::url(&sha256(content))
}

/// The content with its last line.
pub(crate) fn with_sum(content: &[u8]) -> Vec<u8> {
    [content, LABEL, sum_of(content).as_bytes(), b"\n"].concat()
}

/// The content of a file; `None` when it is not what was written.
pub(crate) fn without_sum(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_suffix(b"\n")?;
    let at = rest.windows(LABEL.len()).rposition(|part| part == LABEL)?;
    let content = &rest[..at];
    (rest[at + LABEL.len()..] == *sum_of(content).as_bytes()).then_some(content)
}
