//! Where the service keeps things: its locked data directory, or under amnesia a private directory
//! of a RAM disk that goes when the service does.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ron_service::{Config, DataDir, Migration, Parts, StartError, Store};

/// A RAM disk on every Linux.
const RAM: &str = "/dev/shm";
/// What directories there are named after.
const RAM_NAME: &str = "svc-rewarder-";

/// The directory, locked for as long as this lives.
pub struct Home {
    root: PathBuf,
    _lock: DataDir,
    volatile: bool,
}

impl Home {
    /// The configured directory, or a new one in memory.
    pub fn open(config: &Config, parts: &Parts) -> Result<Self, StartError> {
        let (lock, volatile) = match DataDir::open(config)? {
            Some(dir) => (dir, false),
            None => (in_memory(parts)?, true),
        };
        Ok(Self {
            root: lock.path().to_owned(),
            _lock: lock,
            volatile,
        })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The database of the runs; under amnesia SQLite's own memory.
    pub fn store(&self, migrations: &[Migration]) -> Result<Store, StartError> {
        let store = if self.volatile {
            Store::memory(migrations)
        } else {
            Store::open(&self.root.join("rewarder.db"), migrations)
        };
        store.map_err(StartError::failed)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.volatile {
            // What stays is removed by the next service in amnesia; there is nobody to tell.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

fn in_memory(parts: &Parts) -> Result<DataDir, StartError> {
    let ram = Path::new(RAM);
    if let Err(error) = std::fs::metadata(ram) {
        return Err(StartError::io(
            format!("amnesia needs {RAM}: {error}"),
            "mount a tmpfs there, or set data_dir instead",
        ));
    }
    forget_the_dead(ram);
    let mut tag = [0; 8];
    parts.random.fill(&mut tag);
    DataDir::at(&ram.join(format!("{RAM_NAME}{}", hex::encode(tag))))
}

/// Removes what services in amnesia left behind that were killed: their locks ended with them.
fn forget_the_dead(ram: &Path) {
    let Ok(me) = std::fs::metadata("/proc/self") else {
        return;
    };
    for entry in std::fs::read_dir(ram).into_iter().flatten().flatten() {
        // Only directories of this user: a link of somebody else's could lead anywhere.
        let ours = entry.file_name().to_string_lossy().starts_with(RAM_NAME)
            && entry
                .metadata()
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == me.uid());
        // A service that is just starting makes its lock and takes it in one go.
        if !ours || !entry.path().join("LOCK").is_file() {
            continue;
        }
        let Ok(_dead) = DataDir::at(&entry.path()) else {
            continue; // it lives
        };
        if let Err(error) = std::fs::remove_dir_all(entry.path()) {
            let path = entry.path();
            tracing::warn!(event = "left_behind", path = %path.display(), reason = %error, "what a killed service kept stays in memory");
        }
    }
}
