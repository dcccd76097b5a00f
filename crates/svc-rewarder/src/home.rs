//! Where the service keeps its files: a locked data directory or, with amnesia on, a private
//! directory on a RAM disk that is removed when the service stops.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ron_files::Dir;
use ron_kernel::Random;
use ron_service::{DataDir, StartError};

/// A tmpfs that every Linux mounts.
const RAM: &str = "/dev/shm";
/// Prefix of the directories' names.
const RAM_NAME: &str = "svc-rewarder-";

pub struct Home {
    root: Dir,
    /// The lock of a directory in memory, for as long as this value lives.
    volatile: Option<DataDir>,
}

impl Home {
    /// The configured directory, which the chassis has locked, or one in memory with amnesia on.
    pub fn open(data_dir: Option<Dir>, random: &dyn Random) -> Result<Self, StartError> {
        let Some(root) = data_dir else {
            let lock = in_memory(random)?;
            return Ok(Self {
                root: Dir::os(lock.path()),
                volatile: Some(lock),
            });
        };
        Ok(Self {
            root,
            volatile: None,
        })
    }

    pub const fn root(&self) -> &Dir {
        &self.root
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.volatile.is_some() {
            // A directory that remains is removed by the next service that starts with amnesia on;
            // at this point no caller is left to report to.
            let _ = self.root.remove_all();
        }
    }
}

fn in_memory(random: &dyn Random) -> Result<DataDir, StartError> {
    let ram = Path::new(RAM);
    if let Err(error) = std::fs::metadata(ram) {
        return Err(StartError::io(
            format!("amnesia needs {RAM}: {error}"),
            "mount a tmpfs there, or set data_dir instead",
        ));
    }
    remove_stale_dirs(ram);
    let mut tag = [0; 8];
    random.fill(&mut tag);
    DataDir::at(Dir::os(ram.join(format!("{RAM_NAME}{}", hex::encode(tag)))))
}

/// Removes the directories of killed services that ran with amnesia on: their locks ended with
/// them.
fn remove_stale_dirs(ram: &Path) {
    let Ok(me) = std::fs::metadata("/proc/self") else {
        return;
    };
    for entry in std::fs::read_dir(ram).into_iter().flatten().flatten() {
        // Only directories of this user: a symbolic link of another user could lead anywhere.
        let ours = entry.file_name().to_string_lossy().starts_with(RAM_NAME)
            && entry
                .metadata()
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == me.uid());
        // A starting service creates its lock file and locks it in one step, so a directory without
        // one may be in use.
        if !ours || !entry.path().join("LOCK").is_file() {
            continue;
        }
        let Ok(_dead) = DataDir::at(Dir::os(entry.path())) else {
            continue; // its service still runs
        };
        if let Err(error) = std::fs::remove_dir_all(entry.path()) {
            let path = entry.path();
            tracing::warn!(event = "left_behind", path = %path.display(), reason = %error, "the directory of a killed service could not be removed; it still takes memory");
        }
    }
}
