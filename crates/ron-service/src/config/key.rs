//! One row of a configuration table: the source of help, example file, docs and checks.

/// Type of a key, and its form in TOML.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Text,
    /// Text with a syntax of its own.
    Parsed {
        /// The name of the type in help and docs.
        word: &'static str,
        /// What is wrong with a text.
        check: fn(&str) -> Result<(), String>,
    },
    /// One of the listed words.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// A whole number, 0 to 2^63-1 in a file.
    Count,
    /// `250ms 5s 1m 24h`.
    Duration,
    /// `64KiB 1MiB`.
    Size,
    /// A path in the file system. A relative one begins at the directory of the configuration file that has it; from the
    /// environment and the command line it begins at the working directory of the process.
    Path,
    /// Several paths; comma-separated in the environment and on the command line.
    Paths,
    /// Path of a file with a secret, or `env:NAME`.
    SecretSource,
    /// `127.0.0.1:7440` or `[::1]:7440`.
    Addr,
    /// A list of strings; comma-separated in the environment and on the command line. The function
    /// says what is wrong with an item.
    List(fn(&str) -> Result<(), String>),
    /// `[[name]]` blocks, each with these keys. Only a file can contain them.
    Tables(&'static [Key]),
}

impl Kind {
    /// The name of the type in help and docs.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Parsed { word, .. } => word,
            Kind::Choice(_) => "choice",
            Kind::Bool => "boolean",
            Kind::Count => "number",
            Kind::Duration => "duration",
            Kind::Size => "size",
            Kind::Path => "path",
            Kind::Paths => "list of paths",
            Kind::SecretSource => "path or env:NAME",
            Kind::Addr => "address",
            Kind::List(_) => "list of text",
            Kind::Tables(_) => "blocks",
        }
    }
}

/// Why a reload cannot change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    Clients,
    Devices,
    Documents,
    Files,
    Front,
    Logger,
    Memory,
    Queues,
    Sockets,
    Threads,
    Trust,
}

impl Restart {
    /// A clause, as in "needs a restart: ...".
    pub const fn reason(self) -> &'static str {
        match self {
            Restart::Clients => "clients of other services are made at the start",
            Restart::Devices => "keys and devices are opened at the start",
            Restart::Documents => "what has been signed or stored carries it",
            Restart::Files => "files are opened at the start",
            Restart::Front => "the HTTP front is built with it",
            Restart::Logger => "the logger is installed once",
            Restart::Memory => "memory is reserved at the start",
            Restart::Queues => "queues are allocated at the start",
            Restart::Sockets => "sockets are opened at the start",
            Restart::Threads => "threads read it at their start",
            Restart::Trust => "trusted keys and callers are fixed at the start",
        }
    }
}

/// Whether a running service can adopt another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    Yes,
    No(Restart),
    /// A key of a block changes with the block; any other row has to say one of the two.
    Unstated,
}

/// One key: a row of [`crate::settings!`].
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Full dotted name, such as `limits.max_body_bytes`.
    pub name: &'static str,
    pub kind: Kind,
    /// As typed (without quotes); empty means "not set".
    pub default: &'static str,
    /// Inclusive bounds, as typed; empty means no bound.
    pub min: &'static str,
    pub max: &'static str,
    pub reload: Reload,
    /// Never printed, never accepted from a flag.
    pub secret: bool,
    /// An unset value is a problem.
    pub required: bool,
    pub meaning: &'static str,
}

impl Key {
    /// As typed; lists are separated by commas.
    pub const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self.required = false;
        self
    }
    /// Inclusive bounds, as typed.
    pub const fn range(mut self, min: &'static str, max: &'static str) -> Self {
        self.min = min;
        self.max = max;
        self
    }
    /// A reload may change this key.
    pub const fn reloadable(mut self) -> Self {
        self.reload = Reload::Yes;
        self
    }
    /// Only a restart changes this key.
    pub const fn restart(mut self, why: Restart) -> Self {
        self.reload = Reload::No(why);
        self
    }
    /// The value is never shown.
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
    /// An empty list is a problem.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}
