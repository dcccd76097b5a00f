//! Memory for secrets: erased on drop, never printed, excluded from core dumps and, as far as the
//! process's limit of locked memory allows, from swap.

mod pages;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::{fmt, io};

use pages::Room;
use zeroize::Zeroize;

/// Protects the process's memory from debuggers and core dumps of its own user
/// (`PR_SET_DUMPABLE 0`), and forbids core files for it and its children (`RLIMIT_CORE` 0). Called
/// once, first in `main`.
pub fn process_hardening() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let none = rustix::process::Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(rustix::process::Resource::Core, none)?;
    Ok(())
}

/// True when only its owner can read or write the file of a secret: mode 0600 or less.
///
/// A credential that a service manager put into `$CREDENTIALS_DIRECTORY` may have the group's read
/// bit as well: there the group bits of a file of root stand for the access list by which exactly
/// this service may read it.
pub fn is_private(path: &Path, meta: &Metadata) -> bool {
    let given = std::env::var_os("CREDENTIALS_DIRECTORY")
        .is_some_and(|dir| !dir.is_empty() && path.starts_with(&dir));
    private_mode(meta.mode(), given && meta.uid() == 0)
}

const fn private_mode(mode: u32, by_the_manager: bool) -> bool {
    let open = if by_the_manager { 0o037 } else { 0o077 };
    mode & open == 0
}

/// Secret bytes of any length. Moving the value does not copy the bytes.
pub struct SecretBytes {
    room: Room,
    length: usize,
}

impl SecretBytes {
    /// Copies the bytes into secret memory and erases the original.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        let secret = Self::from_slice(&bytes);
        bytes.zeroize();
        secret
    }

    /// Copies the bytes; the caller must erase the original.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut secret = Self::zeroed(bytes.len());
        secret.expose_mut().copy_from_slice(bytes);
        secret
    }

    /// This many zero bytes, to be filled in place.
    pub fn zeroed(length: usize) -> Self {
        Self {
            room: Room::zeroed(length),
            length,
        }
    }

    /// The bytes. Do not copy them anywhere that is not erased.
    pub fn expose(&self) -> &[u8] {
        &self.room.bytes()[..self.length]
    }

    /// The bytes, to be changed in place.
    pub fn expose_mut(&mut self) -> &mut [u8] {
        &mut self.room.bytes_mut()[..self.length]
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Keeps the first `length` bytes and erases the rest.
    pub fn truncate(&mut self, length: usize) {
        if length < self.length {
            self.expose_mut()[length..].zeroize();
            self.length = length;
        }
    }

    /// A second copy; deliberately not `Clone`, so that copies are visible in the code.
    pub fn duplicate(&self) -> Self {
        Self::from_slice(self.expose())
    }
}

impl From<Vec<u8>> for SecretBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl From<String> for SecretBytes {
    fn from(text: String) -> Self {
        Self::new(text.into_bytes())
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("[secret]")
    }
}

/// A secret of 32 bytes: a key or a seed.
pub struct Secret32(SecretBytes);

impl Secret32 {
    /// Copies the bytes into secret memory and erases this copy. Copies that the compiler made on
    /// the way stay; fill [`Secret32::zeroed`] in place where that matters.
    pub fn new(mut bytes: [u8; 32]) -> Self {
        let secret = Self::from_slice(&bytes);
        bytes.zeroize();
        secret
    }

    /// Copies the bytes; the caller must erase the original.
    pub fn from_slice(bytes: &[u8; 32]) -> Self {
        Self(SecretBytes::from_slice(bytes))
    }

    /// The bytes as a key; `None` unless there are 32.
    pub fn try_from_bytes(bytes: &SecretBytes) -> Option<Self> {
        bytes.expose().try_into().ok().map(Self::from_slice)
    }

    /// Zeros, to be filled in place.
    pub fn zeroed() -> Self {
        Self(SecretBytes::zeroed(32))
    }

    /// A fresh random key.
    pub fn generate(random: &dyn ron_kernel::Random) -> Self {
        let mut secret = Self::zeroed();
        random.fill(secret.expose_mut());
        secret
    }

    /// The bytes. Do not copy them anywhere that is not erased.
    pub fn expose(&self) -> &[u8; 32] {
        self.0
            .expose()
            .try_into()
            .expect("it was made with 32 bytes")
    }

    /// The bytes, to be changed in place.
    pub fn expose_mut(&mut self) -> &mut [u8; 32] {
        self.0
            .expose_mut()
            .try_into()
            .expect("it was made with 32 bytes")
    }

    /// A second copy; deliberately not `Clone`, so that copies are visible in the code.
    pub fn duplicate(&self) -> Self {
        Self(self.0.duplicate())
    }
}

impl fmt::Debug for Secret32 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_printed() {
        assert_eq!(
            format!("{:?}", SecretBytes::new(b"hunter2".to_vec())),
            "[secret]"
        );
        assert_eq!(format!("{:?}", Secret32::new([7; 32])), "[secret]");
    }

    #[test]
    fn only_a_managers_credential_may_show_a_group_that_reads() {
        let check = |mode, by_the_manager, private| {
            assert_eq!(private_mode(mode, by_the_manager), private, "{mode:o}");
        };
        check(0o100_600, false, true);
        check(0o100_400, true, true);
        check(0o100_440, true, true);
        check(0o100_440, false, false);
        check(0o100_460, true, false);
        check(0o100_444, true, false);
    }

    #[test]
    fn bytes_come_back_and_shrink() {
        let mut secret = SecretBytes::new((0..=255).collect());
        assert_eq!(secret.expose(), (0..=255).collect::<Vec<u8>>());
        secret.truncate(3);
        assert_eq!(secret.expose(), [0, 1, 2]);
        secret.truncate(9);
        assert_eq!(secret.len(), 3);
        assert!(SecretBytes::zeroed(0).is_empty());
        assert_eq!(secret.duplicate().expose(), secret.expose());
        let key = Secret32::try_from_bytes(&SecretBytes::new(vec![1; 32])).expect("32 bytes");
        assert_eq!(key.expose(), &[1; 32]);
        assert!(Secret32::try_from_bytes(&SecretBytes::new(vec![1; 31])).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Many secrets exist at once without overlapping, and a dropped one leaves zeros for the
        /// next.
        #[test]
        fn secrets_keep_apart(sizes in proptest::collection::vec(0_usize..600, 1..60)) {
            let mut live = Vec::new();
            for (index, size) in sizes.into_iter().enumerate() {
                let fresh = SecretBytes::zeroed(size);
                prop_assert!(fresh.expose().iter().all(|byte| *byte == 0));
                drop(fresh);
                let byte = index as u8 + 1;
                live.push((byte, SecretBytes::new(vec![byte; size])));
                if index % 3 == 2 {
                    live.swap_remove(index / 3);
                }
            }
            for (byte, secret) in &live {
                prop_assert!(secret.expose().iter().all(|found| found == byte));
            }
        }
    }
}
