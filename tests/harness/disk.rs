//! Disks that fill up.

use serde_json::json;

use crate::{Fleet, until};

impl Fleet {
    /// Sets how much room must stay free for services, while they run: more than the disk has is the
    /// same to them as a disk that others fill.
    pub fn reserve_disk(&self, services: &[&str], bytes: &str) {
        for service in services {
            let config = self.dir().join(service).join("config.toml");
            let text = std::fs::read_to_string(&config).expect("init wrote it");
            let mut lines = vec![format!("limits.disk_reserve = \"{bytes}\"")];
            let rest = text
                .lines()
                .filter(|l| !l.starts_with("limits.disk_reserve"));
            lines.extend(rest.map(str::to_owned));
            std::fs::write(&config, lines.join("\n")).expect("it is written");
        }
        crate::signal(self.pid(), "-HUP");
    }

    /// Waits until a service reports a full disk, or none.
    pub fn wait_disk_full(&self, service: &str, full: bool) {
        let url = format!("{}/readyz", self.health(service));
        until("its disk", || {
            let body: serde_json::Value =
                serde_json::from_slice(&self.get(&url, None).body).expect("JSON");
            let missing = body["missing"].as_array().expect("a list");
            missing.contains(&json!("disk_full")) == full
        });
    }
}
