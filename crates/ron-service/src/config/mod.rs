//! Configuration: one table of keys per service, the source of the checks, `--help`, the example
//! file and the docs. Flags take precedence over the environment, the environment over the file,
//! the file over the defaults.

mod chassis_keys;
mod diff;
mod key;
mod load;
mod render;
mod secret_file;
mod units;
mod values;

pub use chassis_keys::{CHASSIS_KEYS, PRINCIPAL_KEYS, listen_keys};
pub use diff::{Change, Diff};
pub use key::{Key, Kind, Table};
pub(crate) use key::{close, unknown_key};
pub(crate) use load::read_file;
pub use load::{Config, ConfigProblem, Origin};
pub use render::{render_example, render_help, render_markdown};
pub use secret_file::{read_secret_file, secret_from_env_or_file};
pub use units::{parse_duration, parse_size, show_duration, show_size};
pub use values::{SubTable, Value, table_faults};

#[cfg(test)]
mod tests;
