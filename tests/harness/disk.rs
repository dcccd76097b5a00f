//! Disks that fill up.

use serde_json::{Value, json};

use crate::{Fleet, signal, until};

/// More than is free on any machine: the same to a service as a disk that others fill.
const FULL: &str = "1024TiB";
/// The default of `limits.disk_reserve`.
const DEFAULT: &str = "64MiB";

impl Fleet {
    /// Leaves these services no room on their disks, while they run, or gives it back. They notice it with the
    /// reload, and [`Fleet::wait_disk_full`] waits for that.
    pub fn fill_disks(&self, services: &[&str], full: bool) {
        let bytes = if full { FULL } else { DEFAULT };
        for service in services {
            let config = self.dir().join(service).join("config.toml");
            let text = std::fs::read_to_string(&config).expect("init wrote it");
            let rest = text
                .lines()
                .filter(|l| !l.starts_with("limits.disk_reserve"));
            let line = format!("limits.disk_reserve = \"{bytes}\"");
            let text: Vec<&str> = std::iter::once(line.as_str()).chain(rest).collect();
            std::fs::write(&config, text.join("\n")).expect("it is written");
        }
        signal(self.pid(), "-HUP");
    }

    /// Waits until these services report a full disk, or none.
    pub fn wait_disk_full(&self, services: &[&str], full: bool) {
        for service in services {
            let url = format!("{}/readyz", self.health(service));
            until("its disk", || {
                let reply = self.get(&url, None);
                let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
                let missing = body["missing"].as_array().expect("a list");
                missing.contains(&json!("disk_full")) == full
            });
        }
    }
}
