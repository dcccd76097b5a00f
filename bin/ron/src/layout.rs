//! The files of a data directory: their paths, and how they are written.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use ron_auth::client_secret;
use ron_files::{OsDisk, Replacement};
use ron_kernel::OsRandom;
use ron_services::NAMES;
use serde::{Deserialize, Serialize};

/// Default API port of the first service; the others follow in steps of ten, health ports are five
/// above.
pub const BASE_PORT: u16 = 7440;
/// Distance from the API port of the first service to the health port of the last.
const PORTS_SPAN: u16 = (NAMES.len() as u16 - 1) * 10 + 5;

/// Parses `--base-port`; the ports of six services must fit above it. 0 means free ports.
pub fn base_port(text: &str) -> Result<u16, String> {
    const HIGHEST: u16 = u16::MAX - PORTS_SPAN;
    match text.parse() {
        Ok(port) if port <= HIGHEST => Ok(port),
        _ => Err(format!(
            "it must be a port up to {HIGHEST}: the six services take ports up to {PORTS_SPAN} above it"
        )),
    }
}

/// API port of a service above `base_port`; its health port is five above.
pub fn api_port(base_port: u16, service: &str) -> u16 {
    let index = NAMES.iter().position(|s| *s == service).unwrap_or(0);
    base_port + index as u16 * 10
}

// No doc comment: clap would take it for the description of each command that has this.
#[derive(Args, Clone)]
pub struct Place {
    /// Data directory, as given to `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

impl Place {
    pub fn layout(&self) -> Result<Layout, String> {
        Layout::new(self.data_dir.as_deref())
    }
}

/// The services that write a log, and its directory below their data.
pub const LOGS: [(&str, &str); 3] = [
    ("ron-kms", ron_kms::migrate::LOG),
    ("ron-ledger", ron_ledger::migrate::LOG),
    ("svc-passport", svc_passport::LOG_DIR),
];

#[derive(Debug, Clone)]
pub struct Layout {
    pub root: PathBuf,
}

/// Addresses of a running fleet, in `run/endpoints.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Endpoints {
    /// Process that serves them.
    pub pid: u32,
    /// One per service, in the order of [`NAMES`].
    pub services: Vec<Endpoint>,
}

/// Addresses of one service. If the service is down, any user of the host can take its port; nobody
/// else can take its sockets, and `uid` identifies their listener. Secrets therefore go to the
/// sockets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name of its binary.
    pub service: String,
    /// Base URL of its API.
    pub api: String,
    /// Base URL of its health port.
    pub health: String,
    /// The API's Unix socket as a URL, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_socket: Option<String>,
    /// The health port's Unix socket as a URL, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_socket: Option<String>,
    /// User id that its process runs as.
    pub uid: u32,
}

/// `bootstrap.json`: what `ron init` made. The file is written last, so its presence means that the
/// directory is complete.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Format of this file.
    pub format: u32,
    /// The first name of the issuer, the `iss` of its tokens until `ron issuer move`.
    pub issuer: String,
    /// KMS key that signs tokens with that name.
    pub issuer_key: String,
    /// KMS key that signs policies, and its public key (base64url).
    pub policy_key: String,
    /// Pinned in the services' configurations.
    pub policy_public_key: String,
    /// KMS key that signs manifests, and its public key (base64url).
    pub manifest_key: String,
    /// Given to verifiers of manifests.
    pub manifest_public_key: String,
    /// KMS key that signs notes.
    pub note_key: String,
    /// Verifier key line of the issuer's policy note; pinned in the services' configurations.
    pub note_vkey: String,
    /// Verifier key line of the KMS audit log.
    pub audit_vkey: String,
    /// Verifier key line of the ledger's log.
    pub ledger_vkey: String,
    /// Verifier key line of the revocation log.
    pub revocations_vkey: String,
}

/// `clients/<name>.json`: an OAuth client's credentials.
#[derive(Serialize, Deserialize)]
pub struct ClientFile {
    pub client_id: String,
    pub client_secret: String,
}

impl ClientFile {
    /// A client with a new secret.
    pub fn new(client_id: &str) -> Self {
        Self {
            client_id: client_id.to_owned(),
            client_secret: client_secret::generate(client_id, &OsRandom.bytes()),
        }
    }
}

impl Layout {
    /// The given directory, that of `RON_DATA_DIR`, or `ron` under the user's state directory.
    pub fn new(dir: Option<&Path>) -> Result<Self, String> {
        let root = match dir {
            Some(dir) => dir.to_owned(),
            None => default_dir().ok_or("there is no home directory; name one with --data-dir")?,
        };
        let root = std::path::absolute(&root).map_err(|e| format!("{}: {e}", root.display()))?;
        Ok(Self { root })
    }

    /// A service's own directory.
    pub fn service(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A service's configuration file.
    pub fn config(&self, name: &str) -> PathBuf {
        self.service(name).join("config.toml")
    }

    /// A service's durable data.
    pub fn data(&self, name: &str) -> PathBuf {
        self.service(name).join("data")
    }

    /// The file with the token by which `caller` calls `callee`.
    pub fn token(&self, caller: &str, callee: &str) -> PathBuf {
        self.service(caller).join(format!("{callee}.token"))
    }

    /// A service's Unix socket: `api` or `health`.
    pub fn socket(&self, service: &str, which: &str) -> PathBuf {
        let dir = self.root.join("run").join(service);
        dir.join(format!("{which}.sock"))
    }

    /// The same as a base URL.
    pub fn socket_url(&self, service: &str, which: &str) -> String {
        socket_url(&self.socket(service, which))
    }

    pub fn policy(&self) -> PathBuf {
        self.root.join("policy")
    }

    /// The file with the credentials of a client.
    pub fn client(&self, name: &str) -> PathBuf {
        self.root.join("clients").join(format!("{name}.json"))
    }

    /// The file with the operator's service token at the KMS, for `ron policy sign` and `ron kms`.
    pub fn operator_token(&self) -> PathBuf {
        self.root.join("clients").join("operator.kms.token")
    }

    pub fn bootstrap(&self) -> PathBuf {
        self.root.join("bootstrap.json")
    }

    pub fn endpoints(&self) -> PathBuf {
        self.root.join("run").join("endpoints.json")
    }

    /// The log lines that `ron up` keeps.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Reads `bootstrap.json`.
    pub fn read_bootstrap(&self) -> Result<Bootstrap, String> {
        read_json(&self.bootstrap())
            .map_err(|e| format!("{e}; run `ron init --data-dir {}`", self.root.display()))
    }
}

impl Endpoints {
    /// Addresses of a service.
    pub fn of(&self, service: &str) -> Result<&Endpoint, String> {
        self.services
            .iter()
            .find(|e| e.service == service)
            .ok_or_else(|| format!("endpoints.json does not list {service}"))
    }
}

/// The base URL of a Unix socket; percent-encoded where a plain path could be misread in a URL.
pub fn socket_url(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let ends = path.extension().is_some_and(|end| end == "sock");
    if ends && text.bytes().all(plain) && !text.contains(".sock/") {
        format!("unix:{text}")
    } else {
        format!("http+unix://{}", ron_client::encode(&text))
    }
}

fn default_dir() -> Option<PathBuf> {
    from_environment("RON_DATA_DIR")
        .map(PathBuf::from)
        .or_else(|| state_dir().map(|state| state.join("ron")))
}

/// The value of an environment variable; one that is empty counts as absent.
pub fn from_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The user's state directory.
pub fn state_dir() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local").join("state")))
}

/// Reads a JSON file.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    ron_proto::strict::from_slice(&bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// Reads a JSON file of a numbered format, which must be the one that this program knows.
pub fn read_format<T: serde::de::DeserializeOwned>(
    path: &Path,
    known: u32,
    format: impl FnOnce(&T) -> u32,
) -> Result<T, String> {
    let read = read_json(path)?;
    match format(&read) {
        found if found == known => Ok(read),
        found => Err(format!(
            "{} is of format {found}, this program knows {known}; use a newer program",
            path.display()
        )),
    }
}

/// The user id of a file's owner.
pub fn owner(path: &Path) -> Result<u32, String> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(path)
        .map_err(|e| format!("cannot read the owner of {}: {e}", path.display()))?;
    Ok(meta.uid())
}

/// Creates a directory that only its owner can enter; an existing one is left as it is.
pub fn make_dir(path: &Path) -> Result<(), String> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| {
            format!(
                "cannot make {}: {e}; is the place writable?",
                path.display()
            )
        })
}

/// Replaces a file atomically with one of this mode; durable on return.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let written = || {
        let mut file = Replacement::create(&OsDisk, path, mode)?;
        file.write_all(bytes)?;
        file.finish()
    };
    written().map_err(|e: std::io::Error| format!("cannot write {}: {e}", path.display()))
}

/// As [`write_atomic`], pretty JSON with a line end.
pub fn write_json<T: Serialize>(path: &Path, value: &T, mode: u32) -> Result<(), String> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|e| e.to_string())?;
    bytes.push(b'\n');
    write_atomic(path, &bytes, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_port_leaves_room_for_all_ports() {
        assert_eq!(base_port("0"), Ok(0));
        assert_eq!(base_port("65480"), Ok(65480));
        assert_eq!(api_port(65480, "svc-admin") + 5, u16::MAX);
        for text in ["65481", "65530", "65536", "-1", "x", ""] {
            let why = base_port(text).expect_err(text);
            assert!(why.contains("up to 65480"), "{text}: {why}");
        }
    }

    #[test]
    fn sockets_of_any_directory_have_a_url() {
        let check = |path: &str, url: &str| assert_eq!(socket_url(Path::new(path)), url);
        check("/srv/ron/run/x/api.sock", "unix:/srv/ron/run/x/api.sock");
        check("/a b/api.sock", "http+unix://%2Fa%20b%2Fapi.sock");
        check("/a:b/api.sock", "http+unix://%2Fa%3Ab%2Fapi.sock");
        check("/x.sock/api.sock", "http+unix://%2Fx.sock%2Fapi.sock");
    }
}
