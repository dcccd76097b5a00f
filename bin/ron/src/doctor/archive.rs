//! The archives of logs: what has been moved there is a part of the log.

use std::path::Path;

use ron_files::OsDisk;
use ron_service::Config;
use ron_service::log_host::archive::ArchiveKeys;
use ron_tlog::append::check_archived;
use rustix::fs::{Access, access};

use super::Report;
use crate::layout::LOGS;

/// Checks that the log of a service can be read wherever its segments are, and that more of them can be archived.
pub fn check(report: &mut Report, service: &str, config: &Config) {
    let data = config.chassis().data_dir.as_deref();
    let log = LOGS.iter().find(|(name, _)| *name == service);
    let (Some(data), Some((_, log))) = (data, log) else {
        return;
    };
    let about = format!("{service} archive");
    let archived = match check_archived(&OsDisk, &data.join(log)) {
        Ok(archived) => archived,
        Err(error) => {
            let hint = "mount the archive, or put the file back from a backup, and check its owner and mode; until then the entries in it \
                        cannot be read or verified";
            return report.fail(&about, error.to_string(), hint);
        }
    };
    let keys: Option<ArchiveKeys> = config.read().ok();
    match keys.and_then(|keys| keys.dir) {
        Some(dir) => match unfit(&dir) {
            Some(why) => report.fail(
                &about,
                why,
                "mount it, or make it a directory of this user; until then segments stay in data_dir",
            ),
            None => report.ok(
                &about,
                format!("{archived} segments are there, below {}", dir.display()),
            ),
        },
        None if archived > 0 => report.ok(
            &about,
            format!("{archived} segments are there; archive_dir is not set, so no more follow"),
        ),
        None => {}
    }
}

/// Why nothing can be written to a directory, which the service makes when its parent is there.
fn unfit(dir: &Path) -> Option<String> {
    let mut places = dir.ancestors();
    let place = places.find(|place| place.exists())?;
    if !place.is_dir() {
        return Some(format!("{} is not a directory", place.display()));
    }
    let error = access(place, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!(
        "nothing can be written to {}: {}",
        place.display(),
        std::io::Error::from(error)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_to_is_unfit() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(unfit(dir.path()), None);
        assert_eq!(unfit(&dir.path().join("new/below")), None);
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below")] {
            let why = unfit(&path).expect("no place for a segment");
            assert!(why.contains("file is not a directory"), "{why}");
        }
    }
}
