//! Configuration of scheduled rotation and of destruction.

use std::time::Duration;

use ron_service::{Config, ConfigProblem, Key};

/// The configuration keys of this module.
pub static KEYS: [Key; 4] = [
    Key::duration(
        "rotation.prepublish",
        "1h",
        "How long the next public key of a key with rotate_every is published before it signs (half of rotate_every where that is shorter).",
    )
    .range("1s", "720h"),
    Key::count(
        "rotation.jitter_percent",
        "10",
        "Scheduled rotations come up to this much of rotate_every early, at random, so that keys made together are not rotated together.",
    )
    .range("0", "50"),
    Key::duration(
        "destroy.delay",
        "168h",
        "Time between the order to destroy a key and its destruction, when the order names none.",
    )
    .range("1s", "8784h"),
    Key::duration(
        "destroy.delay_min",
        "24h",
        "The shortest such time that an order may name. Danger: with a short one a mistake cannot be cancelled in time.",
    )
    .range("1s", "8784h"),
];

/// Periods and delays of rotation and destruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifecycleSettings {
    /// How long a version is published before it signs.
    pub prepublish: Duration,
    /// Maximum part of its period, in percent, that a rotation may come early.
    pub jitter_percent: u64,
    /// Delay of a destruction whose request names none.
    pub destroy_delay: Duration,
    /// Shortest delay that a request may name.
    pub destroy_delay_min: Duration,
}

/// Reads and checks the settings of rotation and destruction.
pub fn lifecycle(config: &Config, problems: &mut Vec<ConfigProblem>) -> LifecycleSettings {
    let settings = LifecycleSettings {
        prepublish: config.duration("rotation.prepublish"),
        jitter_percent: config.u64("rotation.jitter_percent"),
        destroy_delay: config.duration("destroy.delay"),
        destroy_delay_min: config.duration("destroy.delay_min"),
    };
    if settings.destroy_delay < settings.destroy_delay_min {
        problems.push(config.problem("destroy.delay", "is shorter than destroy.delay_min"));
    }
    settings
}
