//! Where a run is that a command names: its directory, a bundle of it, or the address of a bundle.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ron_client::ranged::{Piece, PieceError, piece};
use ron_client::{Caller, Credential};
use ron_files::{Dir, OsDisk};
use ron_http::{ClientConfig, HttpClient, url_origin};
use ron_kernel::Deadline;
use ron_proto::rewarder::PayoutProof;
use ron_proto::{Account, Asset, ContentId, strict};
use svc_rewarder::manifest::assets::further;
use svc_rewarder::manifest::bundle::{BUNDLE, Bundle, content_of, proof_path};
use svc_rewarder::manifest::dir;
use svc_rewarder::manifest::verify::read_manifest;

use super::remote::{NamedRun, Remote};
use super::{BYTES, bar};
use crate::net;

/// Bytes requested at a time.
const PIECE: u64 = 2 << 20;
/// Largest file that a server without ranges sends.
const WHOLE_MAX: u64 = 64 << 20;
/// Largest `bundle.json`, and largest proof.
const SMALL_MAX: u64 = 1 << 20;
/// Most bytes that one command downloads.
const DOWNLOAD_MAX: u64 = 8 << 30;
/// Lowest rate of a server, in bytes per second, after the first seconds.
const RATE: u64 = 64 << 10;
/// Names that are tried for a temporary directory.
const NAMES_MAX: u32 = 1_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// Files that prove and compare payouts.
pub const PAYOUTS: &[&str] = &[
    dir::RUN,
    dir::RUN_SIG,
    dir::PAYOUTS,
    dir::TREE,
    dir::CLAIMS_TREE,
    dir::CORRECTION,
];
/// Files that explain them.
pub const INPUTS: &[&str] = &[
    dir::RUN,
    dir::PAYOUTS,
    dir::TREE,
    dir::SNAPSHOT,
    dir::POLICY,
    dir::CORRECTION,
];
/// Everything that a verification reads.
pub const ALL: &[&str] = &Bundle::FILES;

/// A run's directory. A downloaded one is removed with this value.
pub struct Place {
    pub dir: PathBuf,
    downloaded: bool,
}

impl Place {
    /// The run that `name` names, with these of its files; `None` if it is neither a directory nor an
    /// address.
    pub fn find(name: &str, files: &[&str]) -> Result<Option<Self>, String> {
        if let Some(site) = Site::at(name)? {
            return site.download(files).map(Some);
        }
        let dir = PathBuf::from(name);
        let found = dir.is_dir().then_some(Self {
            dir,
            downloaded: false,
        });
        Ok(found)
    }

    /// The same; an error if `name` is nothing of that.
    pub fn need(name: &str, files: &[&str]) -> Result<Self, String> {
        let found = Self::find(name, files)?;
        found.ok_or_else(|| format!("{name} is no directory of a run and no address of a bundle"))
    }

    /// The manifest of a correction of the service and the accounts that it compares.
    pub fn of_correction(remote: &Remote, run: &NamedRun, manifest: &str) -> Result<Self, String> {
        let place = Self {
            dir: temporary()?,
            downloaded: true,
        };
        let path = place.dir.join(dir::RUN);
        fs::write(&path, manifest).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let part = |at, last| {
            remote
                .client
                .correction(run.as_ref(), at..=last, patience(at, last))
        };
        let bar = bar("download", 0, BYTES);
        let target = place.dir.join(dir::CORRECTION);
        download(&target, None, part, |have, length| {
            bar.set_length(length);
            bar.set_position(have);
        })
        .map_err(|why| format!("svc-rewarder: {}: {why}", dir::CORRECTION))?;
        bar.finish_and_clear();
        Ok(place)
    }

    pub fn open(&self) -> Dir {
        Dir::os(&self.dir)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.downloaded {
            let _ = fs::remove_dir_all(&self.dir); // this process made it; what is left is in the system's temporary directory
        }
    }
}

/// A bundle on a web server.
pub struct Site {
    url: String,
    /// Path of the bundle, with a slash at its end.
    path: String,
    caller: Caller,
}

impl Site {
    /// The bundle at an address; `None` if `url` is none.
    pub fn at(url: &str) -> Result<Option<Self>, String> {
        if !(url.starts_with("http://") || url.starts_with("https://")) {
            return Ok(None);
        }
        let base = url_origin(url).ok_or_else(|| format!("{url} is not an address"))?;
        let path = url[base.len()..].trim_end_matches('/');
        if path.contains(['?', '#']) {
            return Err(format!(
                "{url}: the address of a bundle is that of its directory, without ? and #"
            ));
        }
        let http = HttpClient::new(ClientConfig {
            max_response_bytes: WHOLE_MAX,
            ..net::config()
        });
        Ok(Some(Self {
            url: url.to_owned(),
            path: format!("{path}/"),
            caller: Caller::new(base, Credential::none(), Arc::new(http)),
        }))
    }

    /// The stored proof of an account; `None` if the bundle has none of it.
    pub fn proof(&self, account: &Account) -> Result<Option<PayoutProof>, String> {
        let name = proof_path(account);
        let Some(bytes) = self.small(&name)? else {
            return Ok(None);
        };
        let proof = strict::from_slice(&bytes);
        proof
            .map(Some)
            .map_err(|e| format!("{}: {name}: {e}", self.url))
    }

    /// What the bundle consists of.
    pub fn bundle(&self) -> Result<Bundle, String> {
        let bytes = self.small(BUNDLE)?;
        let bytes =
            bytes.ok_or_else(|| format!("{}: there is no {BUNDLE}; it is no bundle", self.url))?;
        Bundle::read(&bytes).map_err(|e| format!("{}: {e}", self.url))
    }

    fn download(&self, files: &[&str]) -> Result<Place, String> {
        let place = Place {
            dir: temporary()?,
            downloaded: true,
        };
        self.fill(&place.dir, files)?;
        if files == ALL {
            let run = Dir::os(&place.dir);
            let manifest = read_manifest(&run).map_err(|e| format!("{}: {e}", self.url))?;
            for also in &manifest.also {
                let dir = further(&run, &also.asset);
                fs::create_dir(dir.path())
                    .map_err(|e| format!("cannot write {}: {e}", dir.path().display()))?;
                self.further(&also.asset).fill(dir.path(), files)?;
            }
        }
        Ok(place)
    }

    /// The bundle of a further asset.
    fn further(&self, asset: &Asset) -> Self {
        let below = format!("{}{asset}", dir::ASSET);
        Self {
            url: format!("{}/{below}", self.url.trim_end_matches('/')),
            path: format!("{}{below}/", self.path),
            caller: self.caller.clone(),
        }
    }

    /// Downloads files of the bundle to a directory.
    fn fill(&self, to: &Path, files: &[&str]) -> Result<(), String> {
        let bundle = self.bundle()?;
        let wanted: Vec<_> = bundle
            .files
            .iter()
            .filter(|file| files.contains(&file.name.as_str()))
            .collect();
        let bytes = wanted
            .iter()
            .try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
        let Some(bytes) = bytes.filter(|bytes| *bytes <= DOWNLOAD_MAX) else {
            return Err(format!(
                "{}: its files have more than {DOWNLOAD_MAX} bytes; copy the bundle and name its directory",
                self.url
            ));
        };
        let bar = bar("download", bytes, BYTES);
        for file in wanted {
            let target = to.join(&file.name);
            let before = bar.position();
            let id = self.file(&file.name, file.bytes, &target, |have| {
                bar.set_position(before + have);
            })?;
            if id != file.id {
                return Err(format!(
                    "{}: {} is not what {BUNDLE} says",
                    self.url, file.name
                ));
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Downloads a file of exactly this length, and returns its content id.
    fn file(
        &self,
        name: &str,
        length: u64,
        target: &Path,
        got: impl Fn(u64),
    ) -> Result<ContentId, String> {
        let part = |at, last| self.piece(name, at, last);
        download(target, Some(length), part, |have, _| got(have))
            .map_err(|why| format!("{}: {name}: {why}", self.url))?;
        content_of(&OsDisk, target)
            .map(|(id, _)| id)
            .map_err(|e| format!("cannot read {}: {e}", target.display()))
    }

    fn small(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        match self.piece(name, 0, SMALL_MAX - 1) {
            Ok(part) if part.total == part.bytes.len() as u64 && part.total <= SMALL_MAX => {
                Ok(Some(part.bytes))
            }
            Ok(part) => Err(format!(
                "{}: {name} has {} bytes; at most {SMALL_MAX} are read",
                self.url, part.total
            )),
            Err(PieceError::Call(error)) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(format!("{}: {name}: {error}", self.url)),
        }
    }

    fn piece(&self, name: &str, at: u64, last: u64) -> Result<Piece, PieceError> {
        let path = format!("{}{name}", self.path);
        piece(&self.caller, &path, at..=last, patience(at, last))
    }
}

/// When a piece must have come.
fn patience(at: u64, last: u64) -> Deadline {
    Deadline::within(PATIENCE + Duration::from_secs((last - at) / RATE))
}

/// Downloads a file in pieces: of exactly `length` bytes, as the bundle says, or, where that is not known, of as many as the server
/// says. `part` gets the first byte of a piece and its last; `show` what is there and the length.
fn download(
    target: &Path,
    mut length: Option<u64>,
    part: impl Fn(u64, u64) -> Result<Piece, PieceError>,
    show: impl Fn(u64, u64),
) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("cannot write {}: {e}", target.display());
    let mut file = fs::File::create_new(target).map_err(cannot)?;
    let said_by = length.map_or("its first piece", |_| BUNDLE);
    let mut have = 0;
    while length.is_none_or(|length| have < length) {
        let last = length.unwrap_or(DOWNLOAD_MAX).min(have + PIECE) - 1;
        let part = part(have, last).map_err(|e| e.to_string())?;
        let length = *length.get_or_insert(part.total);
        if part.total != length || have + part.bytes.len() as u64 > length {
            let found = part.total;
            return Err(format!("it has {found} bytes; {said_by} says {length}"));
        }
        if length > DOWNLOAD_MAX {
            return Err(format!(
                "it has {length} bytes; at most {DOWNLOAD_MAX} are read"
            ));
        }
        file.write_all(&part.bytes).map_err(cannot)?;
        have += part.bytes.len() as u64;
        show(have, length);
    }
    Ok(())
}

/// A new directory that nobody else can enter.
fn temporary() -> Result<PathBuf, String> {
    let root = std::env::temp_dir();
    let cannot = |e: std::io::Error| format!("cannot make a directory in {}: {e}", root.display());
    // The names of others are passed over: making a directory fails where anything has its name.
    for n in 0..NAMES_MAX {
        let dir = root.join(format!("ron-bundle-{}-{n}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(cannot(e)),
        }
    }
    Err(cannot(std::io::ErrorKind::AlreadyExists.into()))
}
