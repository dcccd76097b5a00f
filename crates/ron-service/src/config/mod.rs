//! Configuration: one table of keys per service, the source of the checks, `--help`, the example
//! file and the docs. Flags take precedence over the environment, the environment over the file,
//! the file over the defaults.

mod chassis;
mod diff;
mod key;
mod load;
mod problem;
mod render;
mod secret_file;
mod setting;
mod settings;
mod table;
mod units;
mod values;
mod writers;

pub use chassis::{AuthKeys, BaseUrl, ChassisSettings, LogFormat, LogLevel, PrincipalKeys};
pub use diff::{Change, Diff};
pub use key::{Key, Kind, Reload, Restart};
pub(crate) use load::read_file;
pub use load::{Config, ServiceSettings};
pub use problem::{ConfigProblem, Origin};
pub use render::{render_example, render_help, render_markdown};
pub use secret_file::{read_secret_file, read_secret_in, secret_from_env_or_file};
pub use setting::{Blocks, ByteSize, NoteName, Paths, SecretSource, Setting, Settings, Uid, check};
pub use table::Table;
pub(crate) use table::{close, unknown_key};
pub use units::{parse_duration, parse_size, show_duration, show_size};
pub use values::{SubTable, Value, table_faults};
pub use writers::writer_fault;

#[cfg(test)]
mod tests;
