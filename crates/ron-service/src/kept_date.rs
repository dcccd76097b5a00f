//! The newest date that a service has believed, in its data directory: the next start does not believe
//! an earlier one, nor one that is too long after it.

use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{SharedClock, ThreadCtx, ticker::Ticker};

use crate::error::StartError;
use crate::kept_sum::{with_sum, without_sum};

/// Name of the file.
const NAME: &str = "date";
/// First word of the file; the date in milliseconds since 1970 follows, and a line with their sum.
const FORMAT: &str = "ron-kept-date/v2";
const BYTES_MAX: u64 = 160;
/// Time between two writes: a date that is wrong by less may pass unnoticed.
pub const DATE_KEPT_EVERY: Duration = Duration::from_mins(10);

/// Keeps the date of a clock.
#[derive(Debug)]
pub(crate) struct KeptDate {
    dir: Dir,
    clock: SharedClock,
}

impl KeptDate {
    /// Tells the clock the date that an earlier run has kept, if any did.
    pub fn resume(dir: Dir, clock: SharedClock) -> Result<Self, StartError> {
        let path = dir.file(NAME);
        let refuse = |why: String| {
            let hint = "it holds the newest date that the service has believed: restore it, or remove it and the machine's \
                        date is believed as it is";
            StartError::io(format!("{} {why}", path.display()), hint)
        };
        let bytes = dir.read_small(NAME, BYTES_MAX);
        let bytes = bytes.map_err(|e| refuse(format!("cannot be read: {e}")))?;
        if let Some(bytes) = bytes {
            let newest = parse(&bytes)
                .ok_or_else(|| refuse("is damaged, or of a newer version".to_owned()))?;
            clock.resume_after(newest);
        }
        Ok(Self { dir, clock })
    }

    /// The thread's body.
    pub fn run(&self, ctx: &ThreadCtx) {
        let mut ticker = Ticker::new(self.clock.clone(), DATE_KEPT_EVERY);
        self.write();
        while ticker.wait(&ctx.shutdown).is_some() {
            self.write();
        }
    }

    fn write(&self) {
        // A date in doubt is not kept: it would be compared with itself.
        if self.clock.alarm().is_some() {
            return;
        }
        let text = format!("{FORMAT} {}", self.clock.unix_ms());
        let bytes = with_sum(text.as_bytes());
        if let Err(e) = self.dir.write(NAME, &bytes) {
            tracing::warn!(event = "date_not_kept", error = %e);
        }
    }
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(without_sum(bytes)?).ok()?;
    text.strip_prefix(FORMAT)?.strip_prefix(' ')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Clock as _, ManualClock};

    use super::*;

    #[test]
    fn a_kept_date_is_read_again_and_damage_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(1_800_000_000_000);
        let kept = KeptDate::resume(Dir::os(dir.path()), clock.clone()).unwrap();
        kept.write();
        let path = dir.path().join(NAME);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(parse(&bytes), Some(clock.unix_ms()));
        KeptDate::resume(Dir::os(dir.path()), clock.clone()).unwrap();
        let flipped = (0..bytes.len()).map(|at| {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            flipped
        });
        let cut = (0..bytes.len()).map(|len| bytes[..len].to_vec());
        let newer = with_sum(b"ron-kept-date/v3 1");
        for damaged in flipped.chain(cut).chain([newer]) {
            std::fs::write(&path, damaged).unwrap();
            let refused = KeptDate::resume(Dir::os(dir.path()), clock.clone()).unwrap_err();
            assert!(refused.to_string().contains("damaged"), "{refused}");
        }
    }
}
