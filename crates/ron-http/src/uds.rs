//! Unix sockets: the path of a server's socket, the users that may connect, and how a client finds
//! it.
//!
//! ```text
//!  configured path ──short enough──> socket, mode 0600, in a directory of mode 0700; where other users are
//!        │                           allowed: mode 0660, in one that its group may enter (0750)
//!        └──────────above 107 bytes─> symlink ──> <runtime directory>/ron-<hash>.sock
//!
//!  for local programs ─────────────> socket, mode 0666, in a directory that only its owner writes (0755)
//! ```
//!
//! Both ends ask the kernel for the other's user id: the server for every connection it accepts,
//! the client before it writes a byte.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_kernel::net::{Address, Connection, Net, SharedConnection, SharedListener};

use crate::head::Transport;

/// Maximum number of connections that wait to be accepted; the system may allow fewer.
pub(crate) const BACKLOG: u32 = 1024;

/// Longest path of a Unix socket address in bytes; longer ones do not fit the kernel's structure.
pub const UNIX_PATH_MAX: usize = 107;

/// Why a Unix socket cannot be opened, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnixError(String);

/// A bound, listening Unix socket. Dropping it removes its file.
#[derive(Debug)]
pub struct UnixEndpoint {
    socket: SharedListener,
    path: PathBuf,
    link: Option<PathBuf>,
    /// Device and inode of the socket's file: only this one is removed.
    identity: (u64, u64),
    audience: Audience,
    /// Empty for any user, on a socket for local programs only.
    uids: Vec<u32>,
}

/// The intended callers of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// Services and operators, listed by user id.
    Services,
    /// Programs of any user of the host.
    Clients,
}

impl Audience {
    /// The mode of a new directory, and the bits that an existing one must not have. A user who can
    /// write to the directory can replace the socket by another.
    const fn dir_modes(self) -> (u32, u32) {
        match self {
            Self::Services => (0o700, 0o027),
            Self::Clients => (0o755, 0o022),
        }
    }
}

impl UnixEndpoint {
    /// Binds the path. A missing directory is made with mode 0700; an existing one must not be open
    /// to others, and its group may enter but not write. A socket file without a listener is
    /// replaced. Users in `uids` may connect; an empty list means the user of this process only.
    /// Other users reach the socket through the group of its directory, which then also owns the
    /// socket.
    ///
    /// A path above 107 bytes becomes a symbolic link to a short one in the runtime directory;
    /// [`UnixEndpoint::path`] is the short one.
    pub fn bind(net: &dyn Net, path: &Path, uids: &[u32]) -> Result<Self, UnixError> {
        let short = place(path, &runtime_dir())?;
        let link = (short != path).then(|| path.to_owned());
        // The directory first: where others can write to it, checking the socket file proves
        // nothing.
        guarded_dir(&short, Audience::Services)?;
        make_room(net, &short)?;
        if let Some(link) = &link {
            guarded_dir(link, Audience::Services)?;
            relink(link, &short)?;
        }
        Self::listening(net, short, link, Audience::Services, own_or(uids))
    }

    /// Binds the path for local programs: every user may connect, or only those in `uids` when it
    /// is not empty. The directory may be open to all, but only its owner may write to it. A path
    /// above 107 bytes is refused: other users could not reach the runtime directory.
    pub fn bind_for_clients(net: &dyn Net, path: &Path, uids: &[u32]) -> Result<Self, UnixError> {
        let name = path.display();
        if !path.is_absolute() || path.as_os_str().len() > UNIX_PATH_MAX {
            return Err(UnixError(format!(
                "the socket path {name} must be absolute and at most {UNIX_PATH_MAX} bytes long"
            )));
        }
        guarded_dir(path, Audience::Clients)?;
        make_room(net, path)?;
        Self::listening(net, path.to_owned(), None, Audience::Clients, uids.to_vec())
    }

    fn listening(
        net: &dyn Net,
        path: PathBuf,
        link: Option<PathBuf>,
        audience: Audience,
        uids: Vec<u32>,
    ) -> Result<Self, UnixError> {
        let (socket, identity) = listen(net, &path, audience, &uids)
            .map_err(|error| UnixError(format!("cannot listen on {}: {error}", path.display())))?;
        Ok(Self {
            socket,
            path,
            link,
            identity,
            audience,
            uids,
        })
    }

    pub(crate) fn socket(&self) -> &SharedListener {
        &self.socket
    }

    /// The path to which clients connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this user may connect. Root could become any of the users anyway; allowing it makes
    /// `sudo ron ...` work.
    pub(crate) fn allows(&self, uid: u32) -> bool {
        let anybody = self.audience == Audience::Clients && self.uids.is_empty();
        anybody || uid == 0 || self.uids.contains(&uid)
    }

    /// The transport of a connection of this user.
    pub(crate) fn transport(&self, uid: u32) -> Transport {
        match self.audience {
            Audience::Services => Transport::Unix { uid },
            Audience::Clients => Transport::ClientSocket { uid },
        }
    }
}

impl Drop for UnixEndpoint {
    fn drop(&mut self) {
        // A file that another process has put there meanwhile is kept.
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity);
        if ours {
            let _ = std::fs::remove_file(&self.path);
            if let Some(link) = &self.link
                && std::fs::read_link(link).is_ok_and(|target| target == self.path)
            {
                let _ = std::fs::remove_file(link);
            }
        }
    }
}

/// The directory for sockets whose configured path is too long.
fn runtime_dir() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let own = PathBuf::from(format!("/run/user/{uid}"));
    if own.is_dir() {
        return own.join("ron");
    }
    PathBuf::from(format!("/tmp/ron-{uid}"))
}

/// The path itself when it fits, otherwise one in `runtime` named by its hash.
fn place(path: &Path, runtime: &Path) -> Result<PathBuf, UnixError> {
    use std::fmt::Write as _;
    if !path.is_absolute() {
        return Err(UnixError(format!(
            "the socket path {} must be absolute",
            path.display()
        )));
    }
    if path.as_os_str().len() <= UNIX_PATH_MAX {
        return Ok(path.to_owned());
    }
    let hash = ron_crypto::hash::sha256(path.as_os_str().as_bytes());
    let mut name = "ron-".to_owned();
    for byte in &hash[..12] {
        write!(name, "{byte:02x}").expect("writing to a String cannot fail");
    }
    Ok(runtime.join(name + ".sock"))
}

/// The listed users, or the user of this process when the list is empty.
pub(crate) fn own_or(uids: &[u32]) -> Vec<u32> {
    if uids.is_empty() {
        vec![rustix::process::geteuid().as_raw()]
    } else {
        uids.to_vec()
    }
}

/// Makes the directory of a socket, or checks that no other user can replace the socket in it.
fn guarded_dir(socket: &Path, audience: Audience) -> Result<(), UnixError> {
    let Some(dir) = socket.parent() else {
        return Err(UnixError("the socket path has no directory".to_owned()));
    };
    let name = dir.display();
    let (mode_made, mode_forbidden) = audience.dir_modes();
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode_made)
        .create(dir);
    made.map_err(|error| UnixError(format!("cannot make the directory {name}: {error}")))?;
    let meta = std::fs::metadata(dir).map_err(|error| UnixError(format!("{name}: {error}")))?;
    let uid = rustix::process::geteuid().as_raw();
    if meta.uid() != uid {
        return Err(UnixError(format!(
            "the directory {name} belongs to user {}, not to {uid}; give the socket a directory \
             of its own",
            meta.uid()
        )));
    }
    let mode = meta.permissions().mode() & 0o7777;
    if mode & mode_forbidden == 0 {
        return Ok(());
    }
    Err(UnixError(match audience {
        Audience::Services => format!(
            "the directory {name} is open to others (mode {mode:04o}); run: chmod 700 {name} (or \
             750, for callers in its group), or give the socket a directory of its own"
        ),
        Audience::Clients => format!(
            "others may write to the directory {name} (mode {mode:04o}); run: chmod go-w {name}, or \
             give the socket a directory of its own"
        ),
    }))
}

/// Removes a socket file without a listener; any other file in its place is an error.
fn make_room(net: &dyn Net, path: &Path) -> Result<(), UnixError> {
    let name = path.display();
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(UnixError(format!("{name}: {error}"))),
    };
    if !meta.file_type().is_socket() {
        return Err(UnixError(format!(
            "{name} is there and is no socket; remove it or choose another uds_path"
        )));
    }
    match net.connect(&Address::Unix(path.to_owned()), Some(Duration::ZERO)) {
        // A full backlog (timed out, below) has a listener too.
        Ok(_) => Err(in_use(path)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .map_err(|error| UnixError(format!("cannot remove the stale {name}: {error}")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => Err(in_use(path)),
    }
}

fn in_use(path: &Path) -> UnixError {
    UnixError(format!(
        "another process listens on {0}; find it with: ss -lxp src {0}",
        path.display()
    ))
}

/// Points `link` at the short path; replaces an existing link, but no other file.
fn relink(link: &Path, short: &Path) -> Result<(), UnixError> {
    let name = link.display();
    match std::fs::symlink_metadata(link) {
        Ok(meta) if !meta.file_type().is_symlink() => {
            return Err(UnixError(format!(
                "{name} is there and is no link; remove it or choose another uds_path"
            )));
        }
        Ok(_) => std::fs::remove_file(link)
            .map_err(|error| UnixError(format!("cannot replace {name}: {error}")))?,
        Err(_) => {}
    }
    std::os::unix::fs::symlink(short, link)
        .map_err(|error| UnixError(format!("cannot link {name}: {error}")))
}

/// Binds and listens. Where other users are allowed and the group may enter the directory, the
/// group owns the socket too; the user id is still checked for every connection.
fn listen(
    net: &dyn Net,
    path: &Path,
    audience: Audience,
    uids: &[u32],
) -> io::Result<(SharedListener, (u64, u64))> {
    let socket = net.bind(&Address::Unix(path.to_owned()))?;
    // Owner and mode are set before it listens: no connection can come in under the wrong ones.
    let own = rustix::process::geteuid().as_raw();
    let others = uids.iter().any(|uid| *uid != own);
    let dir = path.parent().filter(|_| others);
    let dir = dir.map(std::fs::metadata).transpose()?;
    let mode = match dir.filter(|dir| dir.mode() & 0o010 != 0) {
        _ if audience == Audience::Clients => 0o666,
        Some(dir) => {
            // Usually it is the group's already, and a system call filter may forbid the chown.
            if std::fs::symlink_metadata(path)?.gid() != dir.gid() {
                std::os::unix::fs::lchown(path, None, Some(dir.gid()))?;
            }
            0o660
        }
        None => 0o600,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    let meta = std::fs::symlink_metadata(path)?;
    socket.listen(BACKLOG)?;
    Ok((socket, (meta.dev(), meta.ino())))
}

/// The server of a socket runs as another user than the client expects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the process that listens on {} runs as uid {found}, not as {}, so nothing was sent; if that user \
     is meant to run the service, add the uid to peer_uids, otherwise find the process: ss -lxp src {}",
    path.display(), uid_list(expected), path.display()
)]
pub(crate) struct ForeignServer {
    pub path: PathBuf,
    pub found: u32,
    pub expected: Vec<u32>,
}

fn uid_list(uids: &[u32]) -> String {
    let texts: Vec<String> = uids.iter().map(u32::to_string).collect();
    texts.join(" or ")
}

/// Whether the server at the other end ran as one of these users when it began to listen.
pub(crate) fn check_server(
    connection: &dyn Connection,
    path: &Path,
    expected: &[u32],
) -> io::Result<Result<(), ForeignServer>> {
    let found = connection.peer_uid()?;
    if expected.contains(&found) {
        return Ok(Ok(()));
    }
    Ok(Err(ForeignServer {
        path: path.to_owned(),
        found,
        expected: expected.to_vec(),
    }))
}

/// Connects to a server's path, or to the target of the link at a long path; waits at most `limit`
/// for room in its backlog.
pub(crate) fn dial(
    net: &dyn Net,
    path: &Path,
    limit: Option<Duration>,
) -> io::Result<SharedConnection> {
    let target;
    let path = if path.as_os_str().len() <= UNIX_PATH_MAX {
        path
    } else {
        target = std::fs::read_link(path)?;
        &target
    };
    net.connect(&Address::Unix(path.to_owned()), limit)
}

#[cfg(test)]
mod tests {
    use ron_kernel::OsNet;

    use super::*;

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(dir.path(), private).expect("mode");
        dir
    }

    fn fault(path: &Path) -> String {
        UnixEndpoint::bind(&OsNet, path, &[])
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn directory_and_socket_are_private_and_the_file_goes_with_the_listener() {
        let dir = dir();
        let path = dir.path().join("made/here/s.sock");
        let endpoint = UnixEndpoint::bind(&OsNet, &path, &[]).expect("bound");
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o7777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().expect("a parent")), 0o700);
        assert!(endpoint.allows(rustix::process::geteuid().as_raw()));
        assert!(!endpoint.allows(4_000_000_001));
        assert!(endpoint.allows(0), "root");
        drop(endpoint);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let dir = dir();
        let path = dir.path().join("s.sock");
        let endpoint = UnixEndpoint::bind(&OsNet, &path, &[7]).expect("bound");
        assert!(endpoint.allows(7));
        assert!(fault(&path).contains("another process listens"));
        assert!(path.exists(), "the running one keeps its file");
        // Left by a process that was killed.
        let stale = dir.path().join("stale.sock");
        drop(std::os::unix::net::UnixListener::bind(&stale).expect("bound"));
        assert!(stale.exists());
        drop(UnixEndpoint::bind(&OsNet, &stale, &[]).expect("replaced"));
        // Replaced by another process while we ran: its file stays.
        std::fs::remove_file(&path).expect("ours");
        std::fs::write(&path, "theirs").expect("written");
        drop(endpoint);
        assert!(path.exists());
        assert!(fault(&path).contains("is no socket"));
    }

    #[test]
    fn open_directories_and_relative_paths_are_refused() {
        let dir = dir();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).expect("made");
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).expect("mode");
        assert!(fault(&open.join("s.sock")).contains("chmod 700"));
        assert!(fault(Path::new("s.sock")).contains("absolute"));
    }

    #[test]
    fn a_group_may_look_in_and_reaches_the_socket_where_others_are_allowed() {
        let dir = dir();
        let set = |path: &Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("mode");
        };
        set(dir.path(), 0o750);
        let path = dir.path().join("s.sock");
        let meta = |path: &Path| std::fs::metadata(path).expect("there");
        let own = rustix::process::geteuid().as_raw();
        drop(UnixEndpoint::bind(&OsNet, &path, &[own]).expect("bound"));
        let alone = UnixEndpoint::bind(&OsNet, &path, &[]).expect("bound");
        assert_eq!(meta(&path).mode() & 0o7777, 0o600);
        drop(alone);
        let shared = UnixEndpoint::bind(&OsNet, &path, &[own, own + 1]).expect("bound");
        assert_eq!(meta(&path).mode() & 0o7777, 0o660);
        assert_eq!(meta(&path).gid(), meta(dir.path()).gid());
        drop(shared);
        set(dir.path(), 0o700);
        let closed = UnixEndpoint::bind(&OsNet, &path, &[own + 1]).expect("bound");
        assert_eq!(meta(&path).mode() & 0o7777, 0o600, "for root alone");
        drop(closed);
        set(dir.path(), 0o770);
        assert!(fault(&path).contains("or 750"), "a group that writes");
    }

    #[test]
    fn a_socket_for_local_programs_is_open_to_all_in_a_directory_that_only_we_write() {
        let dir = dir();
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(dir.path(), mode).expect("mode");
        };
        set(0o755);
        let path = dir.path().join("client.sock");
        let open = UnixEndpoint::bind_for_clients(&OsNet, &path, &[]).expect("bound");
        let mode = std::fs::metadata(&path).expect("there").mode() & 0o7777;
        assert_eq!(mode, 0o666);
        assert!(open.allows(4_000_000_001));
        let uid = 4_000_000_001;
        assert_eq!(open.transport(uid), Transport::ClientSocket { uid });
        drop(open);
        let some = UnixEndpoint::bind_for_clients(&OsNet, &path, &[7]).expect("bound");
        assert!(some.allows(7) && !some.allows(8));
        drop(some);
        let fault = |path: &Path| {
            UnixEndpoint::bind_for_clients(&OsNet, path, &[])
                .expect_err("refused")
                .to_string()
        };
        for mode in [0o775, 0o757, 0o1777] {
            set(mode);
            assert!(fault(&path).contains("chmod go-w"), "{mode:o}");
        }
        let long = dir.path().join("x".repeat(120)).join("s.sock");
        assert!(fault(&long).contains("at most 107 bytes"));
    }

    #[test]
    fn a_long_path_is_a_link_to_a_short_one() {
        let dir = dir();
        let path = dir.path().join("x".repeat(120)).join("s.sock");
        let endpoint = UnixEndpoint::bind(&OsNet, &path, &[]).expect("bound");
        let short = endpoint.path().to_owned();
        assert!(short.as_os_str().len() <= UNIX_PATH_MAX);
        assert_eq!(std::fs::read_link(&path).expect("a link"), short);
        dial(&OsNet, &path, None).expect("it listens");
        assert!(fault(&path).contains("another process listens"));
        drop(endpoint);
        assert!(!short.exists() && std::fs::symlink_metadata(&path).is_err());
        let again = UnixEndpoint::bind(&OsNet, &path, &[]).expect("bound again");
        assert_eq!(again.path(), short, "the same every time");
    }
}
