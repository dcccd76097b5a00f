//! Snapshots and policies on disk, by content.
//!
//! `snapshots/tenant-T/<hex>.bin` are sealed snapshots under their content id;
//! `policies/tenant-T/<id>.v<version>.json` are signed policies, canonical to the byte. Policies of
//! the operator's `policy_dir` (`reward.json`, `reward-*.json`, each with `.sig`) serve the tenant
//! they name. Stored files are checked on every read as strictly as those received over HTTP.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ron_files::{Dir, DiskFile};
use ron_kernel::DiskWatches;
use ron_proto::rewarder::{PolicyId, SignedPolicy};
use ron_proto::strict;
use ron_proto::values::{ContentId, Tenant};

use crate::inputs::policy::{self, PolicyRefused, VerifiedPolicy};
use crate::inputs::snapshot::{Head, Sealed};
use crate::inputs::source::Source;
use crate::manifest::dir;
use ron_service::pinned::KeyRing;

/// Why the library cannot return or store a file.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// There is no such file; the message says which.
    #[error("{0}")]
    Missing(String),
    /// The stored file exists but is not valid; the message names it.
    #[error("{0}")]
    Refused(String),
    /// A different file exists under this name.
    #[error("{0}")]
    Conflict(String),
    #[error("the library's disk: {0}")]
    Io(#[from] io::Error),
}

/// A snapshot that was uploaded or fetched.
#[derive(Clone, Debug)]
pub struct StoredSnapshot {
    pub tenant: Tenant,
    /// Content id, taken from the file name.
    pub cid: ContentId,
    /// When it was stored or last renewed, in milliseconds since 1970.
    pub renewed_ms: u64,
}

/// The library; clones share the directories.
#[derive(Clone, Debug)]
pub struct Library {
    root: Dir,
    policy_dir: Option<Dir>,
    keys: KeyRing,
    /// Sealed snapshots placed there by others, `<hex>.bin`, valid for every tenant.
    snapshot_dir: Option<Dir>,
    /// Watches the small writes, which request handlers make.
    disk: Option<DiskWatches>,
    /// Keeps the temporary names of threads apart.
    next: Arc<AtomicU64>,
}

impl Library {
    /// A library under `root` that trusts policies signed by `keys`.
    pub fn new(root: Dir, policy_dir: Option<PathBuf>, keys: KeyRing) -> Self {
        Self {
            root,
            policy_dir: policy_dir.map(Dir::os),
            keys,
            snapshot_dir: None,
            disk: None,
            next: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Refuses to write policies and marks while the disk hangs, and reports it. Copies of snapshots are
    /// not watched: a large one may take long.
    pub fn watch_disk(mut self, disk: DiskWatches) -> Self {
        self.disk = Some(disk);
        self
    }

    fn small_write<R>(&self, write: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        match &self.disk {
            Some(disk) => disk.try_call(write)?,
            None => write(),
        }
    }

    /// Adds a directory of snapshots beside the uploaded ones. They are read in place, and every
    /// byte is checked against the requested id.
    pub fn with_snapshots(mut self, dir: Option<PathBuf>) -> Self {
        self.snapshot_dir = dir.map(Dir::os);
        self
    }

    /// Checks a policy against the trusted keys without storing it.
    pub fn verify(&self, signed: &SignedPolicy) -> Result<VerifiedPolicy, PolicyRefused> {
        policy::verify(&signed.policy, &signed.signature, &self.keys)
    }

    fn snapshots(&self, tenant: &Tenant) -> Dir {
        self.root
            .join("snapshots")
            .join(&format!("tenant-{tenant}"))
    }

    fn policies(&self, tenant: &Tenant) -> Dir {
        self.root.join("policies").join(&format!("tenant-{tenant}"))
    }

    /// Marks a stored snapshot as in use now, which restarts its retention. Snapshots that are
    /// missing or lie in `snapshot_dir` are ignored.
    pub fn renew(&self, tenant: &Tenant, cid: &ContentId, now_ms: u64) {
        if let Ok(file) = self.snapshots(tenant).open_read(&snapshot_name(cid)) {
            self.date(&*file, now_ms);
        }
    }

    /// The file's modification time is the record of the last use; it needs no database and survives a
    /// restart.
    fn date(&self, file: &dyn DiskFile, now_ms: u64) {
        if let Err(error) = self.small_write(|| file.set_modified_ms(now_ms)) {
            tracing::warn!(event = "renew_failed", reason = %error, "the retention of a snapshot could not be restarted");
        }
    }

    /// Every snapshot that was uploaded or fetched, in order of tenant and content id.
    pub fn stored_snapshots(&self) -> io::Result<Vec<StoredSnapshot>> {
        let root = self.root.join("snapshots");
        let mut found = Vec::new();
        for name in file_names(&root)? {
            let tenant = name.strip_prefix("tenant-").and_then(|of| of.parse().ok());
            let Some(tenant) = tenant else { continue };
            let tenant: Tenant = tenant;
            let dir = root.join(&name);
            for name in file_names(&dir)? {
                let hex = name.strip_suffix(".bin");
                let cid = hex.and_then(|hex| format!("b3:{hex}").parse().ok());
                let Some(cid) = cid else { continue };
                found.push(StoredSnapshot {
                    tenant: tenant.clone(),
                    cid,
                    renewed_ms: dir.open_read(&name)?.modified_ms()?,
                });
            }
        }
        Ok(found)
    }

    pub fn remove(&self, stored: &StoredSnapshot) -> io::Result<()> {
        self.snapshots(&stored.tenant)
            .remove(&snapshot_name(&stored.cid))
    }

    /// Stores a sealed snapshot under its content id; false if it was stored before. Its retention begins
    /// again.
    pub fn put_snapshot(
        &self,
        tenant: &Tenant,
        sealed: &Sealed,
        now_ms: u64,
    ) -> Result<bool, LibraryError> {
        let dir = self.snapshots(tenant);
        let name = snapshot_name(&sealed.cid());
        // Saves the copy, where links are not supported.
        if !dir.exists(&name)? {
            // Before the file has its name: a sweep may see it at once.
            if let Source::File { file, .. } = sealed.source() {
                self.date(&**file, now_ms);
            }
            if self.add_once(&dir, &name, sealed.source())? {
                return Ok(true);
            }
        }
        self.renew(tenant, &sealed.cid(), now_ms);
        Ok(false)
    }

    /// Reads and checks a snapshot.
    pub fn snapshot(&self, tenant: &Tenant, cid: &ContentId) -> Result<Sealed, LibraryError> {
        let damaged =
            |why: String| LibraryError::Refused(format!("snapshot {cid} is damaged: {why}"));
        let source = self.snapshot_source(tenant, cid)?;
        let sealed = Sealed::check(source).map_err(|error| damaged(error.to_string()))?;
        if sealed.cid() != *cid {
            return Err(damaged("its content does not match its name".into()));
        }
        Ok(sealed)
    }

    /// Reads a snapshot's header only.
    pub fn snapshot_head(&self, tenant: &Tenant, cid: &ContentId) -> Result<Head, LibraryError> {
        self.snapshot_file(tenant, cid).map(|(head, _)| head)
    }

    /// A snapshot's header, and the file; only the header has been checked.
    pub fn snapshot_file(
        &self,
        tenant: &Tenant,
        cid: &ContentId,
    ) -> Result<(Head, Source), LibraryError> {
        let source = self.snapshot_source(tenant, cid)?;
        let head = Head::read(&source).map_err(|error| {
            LibraryError::Refused(format!("snapshot {cid} is damaged: {error}"))
        })?;
        Ok((head, source))
    }

    fn snapshot_source(&self, tenant: &Tenant, cid: &ContentId) -> Result<Source, LibraryError> {
        let name = snapshot_name(cid);
        let open = |dir: &Dir| Source::open(&**dir.disk(), &dir.file(&name));
        let mut found = open(&self.snapshots(tenant));
        if let (Err(_), Some(dir)) = (&found, &self.snapshot_dir) {
            found = open(dir);
        }
        found.map_err(|error| {
            missing_or(error, || {
                format!("there is no snapshot {cid}; upload it first")
            })
        })
    }

    /// Stores a signed policy. Storing the same one again returns false; a version older than the
    /// newest, or another text under the same version, is a conflict.
    pub fn put_policy(
        &self,
        tenant: &Tenant,
        verified: &VerifiedPolicy,
    ) -> Result<bool, LibraryError> {
        let (id, version) = (&verified.policy.id, verified.policy.version);
        let stored = self.versions(tenant, id)?;
        if let Some(newest) = stored.first().filter(|newest| **newest > version) {
            return Err(LibraryError::Conflict(format!(
                "policy {id} is at version {newest} already; versions only grow"
            )));
        }
        let dir = self.policies(tenant);
        let envelope = SignedPolicy {
            policy: strict::from_slice(&verified.canonical).map_err(io::Error::other)?,
            signature: verified.signature.clone(),
        };
        let bytes = Source::Memory(dir::to_json(&envelope)?);
        let name = file_name(id, version);
        if self.small_write(|| self.add_once(&dir, &name, &bytes))? {
            return Ok(true);
        }
        if self.stored(tenant, id, version)?.hash == verified.hash {
            Ok(false)
        } else {
            Err(LibraryError::Conflict(format!(
                "policy {id} version {version} exists with other content; use a new version"
            )))
        }
    }

    /// The policy with this hash. If a stored version fails its checks, the error names it, because
    /// it might be the requested one.
    pub fn policy(
        &self,
        tenant: &Tenant,
        id: &PolicyId,
        hash: &ContentId,
    ) -> Result<VerifiedPolicy, LibraryError> {
        self.find_policy(
            tenant,
            id,
            |policy| policy.hash == *hash,
            || format!("there is no signed policy {id} with this hash; upload it first"),
        )
    }

    /// Stores a policy for which a run is about to be recorded: from then on none that is older is
    /// taken from the operator's directory.
    pub fn keep_policy(
        &self,
        tenant: &Tenant,
        verified: &VerifiedPolicy,
    ) -> Result<(), LibraryError> {
        let stored = self.versions(tenant, &verified.policy.id)?;
        if !stored.contains(&verified.policy.version) {
            self.put_policy(tenant, verified)?;
        }
        Ok(())
    }

    /// The newest version of a policy.
    pub fn newest_policy(
        &self,
        tenant: &Tenant,
        id: &PolicyId,
    ) -> Result<VerifiedPolicy, LibraryError> {
        self.find_policy(tenant, id, |_| true, || format!("there is no policy {id}"))
    }

    fn find_policy(
        &self,
        tenant: &Tenant,
        id: &PolicyId,
        wanted: impl Fn(&VerifiedPolicy) -> bool,
        missing: impl Fn() -> String,
    ) -> Result<VerifiedPolicy, LibraryError> {
        let mut refused = None;
        let versions = self.versions(tenant, id)?;
        let newest = versions.first().copied().unwrap_or(0);
        let mut given = Vec::new();
        for policy in self.from_policy_dir() {
            match policy {
                // A policy of another tenant is treated as missing, in whatever directory it lies.
                Ok(policy) if policy.policy.tenant != *tenant || policy.policy.id != *id => {}
                Ok(policy) if policy.policy.version > newest => given.push(policy),
                Ok(policy) if wanted(&policy) && !versions.contains(&policy.policy.version) => {
                    let why = older(id, policy.policy.version, newest);
                    refused = refused.or(Some(LibraryError::Refused(why)));
                }
                Ok(_) => {} // stored, or an earlier one than what is asked for
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        given.sort_by_key(|policy| std::cmp::Reverse(policy.policy.version));
        if let Some(policy) = given.into_iter().find(&wanted) {
            return Ok(policy);
        }
        for version in versions {
            match self.stored(tenant, id, version) {
                Ok(policy) if policy.policy.tenant == *tenant && wanted(&policy) => {
                    return Ok(policy);
                }
                Ok(_) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| LibraryError::Missing(missing())))
    }

    /// Faults of the operator's policies, by file name; empty when all are valid.
    pub fn policy_dir_faults(&self) -> Vec<String> {
        let faults = self.from_policy_dir().into_iter().filter_map(Result::err);
        faults.map(|error| error.to_string()).collect()
    }

    /// Stored versions of a policy, newest first.
    fn versions(&self, tenant: &Tenant, id: &PolicyId) -> io::Result<Vec<u64>> {
        let mut versions: Vec<u64> = file_names(&self.policies(tenant))?
            .iter()
            .filter_map(|name| {
                let version = name.strip_prefix(id.as_str())?.strip_prefix(".v")?;
                version.strip_suffix(".json")?.parse().ok()
            })
            .collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        Ok(versions)
    }

    fn stored(
        &self,
        tenant: &Tenant,
        id: &PolicyId,
        version: u64,
    ) -> Result<VerifiedPolicy, LibraryError> {
        let refuse = |why: String| {
            LibraryError::Refused(format!("policy {id} version {version} is refused: {why}"))
        };
        let bytes = self.policies(tenant).read(&file_name(id, version))?;
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let signed: SignedPolicy =
            strict::from_slice(&bytes).map_err(|error| refuse(format!("altered: {error}")))?;
        if dir::to_json(&signed)? != bytes {
            return Err(refuse(PolicyRefused::NotCanonical.to_string()));
        }
        let policy = self
            .verify(&signed)
            .map_err(|error| refuse(error.to_string()))?;
        if policy.policy.id != *id || policy.policy.version != version {
            return Err(refuse(
                "its id or version differs from its file name".into(),
            ));
        }
        Ok(policy)
    }

    fn from_policy_dir(&self) -> Vec<Result<VerifiedPolicy, LibraryError>> {
        let Some(dir) = &self.policy_dir else {
            return Vec::new();
        };
        let names = match file_names(dir) {
            Ok(names) => names,
            Err(error) => return vec![Err(error.into())],
        };
        names
            .iter()
            .filter(|name| {
                *name == "reward.json" || (name.starts_with("reward-") && name.ends_with(".json"))
            })
            .map(|name| self.load_operator(dir, name))
            .collect()
    }

    fn load_operator(&self, dir: &Dir, name: &str) -> Result<VerifiedPolicy, LibraryError> {
        let json = dir.read(name)?;
        let json = json.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let signature = dir.read(&format!("{name}.sig"))?;
        policy::verify_stored(&json, signature.as_deref(), &self.keys).map_err(|error| {
            LibraryError::Refused(format!("policy {name} in policy_dir is refused: {error}"))
        })
    }

    /// Stores a file that must not exist yet; false if it did.
    fn add_once(&self, dir: &Dir, name: &str, source: &Source) -> io::Result<bool> {
        let tag = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        dir.create()?;
        dir::add_once(dir, name, source, &tag)
    }
}

/// The name of a snapshot's file.
pub fn snapshot_name(cid: &ContentId) -> String {
    format!("{}.bin", hex::encode(cid.0))
}

fn file_name(id: &PolicyId, version: u64) -> String {
    format!("{id}.v{version}.json")
}

fn older(id: &PolicyId, version: u64, newest: u64) -> String {
    format!(
        "policy {id} version {version} in policy_dir is older than version {newest}, which was used here; versions only grow"
    )
}

/// Names of a directory's files, sorted; empty if the directory does not exist.
pub(crate) fn file_names(dir: &Dir) -> io::Result<Vec<String>> {
    match dir.list() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names,
    }
}

fn missing_or(error: io::Error, what: impl Fn() -> String) -> LibraryError {
    if error.kind() == io::ErrorKind::NotFound {
        LibraryError::Missing(what())
    } else {
        LibraryError::Io(error)
    }
}
