//! A PKCS#11 module, which all sessions with its tokens share.
//!
//! Each token of a module has a login of its own. Initialisation is the whole module's: it ends the sessions of all tokens.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};

use super::session_pool::Fault;

/// Bit of [`Module::inside`] that keeps threads out.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A module of the configuration, loaded at the first call.
pub struct Module {
    path: PathBuf,
    loaded: OnceLock<Pkcs11>,
    /// Number of initialisations. Handles of a session from an earlier one are invalid.
    epoch: AtomicU64,
    /// Number of threads inside calls of the module, and [`CLOSED`] while it is initialised again.
    inside: AtomicUsize,
    /// Number of its tokens whose last login succeeded.
    in_use: AtomicUsize,
}

/// Guard of a thread inside the module.
pub struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Module {
    /// A module that is not loaded yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            loaded: OnceLock::new(),
            epoch: AtomicU64::new(1),
            inside: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
        }
    }

    /// Whether this path leads to the same file, which is loaded once per process.
    pub fn is_at(&self, path: &Path) -> bool {
        real(&self.path) == real(path)
    }

    /// The loaded module; called inside.
    pub fn get(&self) -> Result<&Pkcs11, Fault> {
        if let Some(module) = self.loaded.get() {
            return Ok(module);
        }
        let path = &self.path;
        let module = Pkcs11::new(path)
            .map_err(|e| Fault::Gone(format!("{} cannot be loaded: {e}", path.display())))?;
        initialize(&module)?;
        Ok(self.loaded.get_or_init(|| module))
    }

    /// Counts this thread as inside until the guard is dropped. Refused while the module is initialised again.
    pub fn enter(&self) -> Result<Inside<'_>, Fault> {
        let one_more = |count: usize| (count & CLOSED == 0).then_some(count + 1);
        let entered = self
            .inside
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        match entered {
            Ok(_) => Ok(Inside(&self.inside)),
            Err(_) => Err(Fault::Gone(
                "the module is being initialised again".to_owned(),
            )),
        }
    }

    /// The number of its initialisations, by which a session knows whether its handle is still valid.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Notes that one of its tokens came into use, or went out of it; called inside.
    pub fn count_use(&self, begins: bool) {
        if begins {
            self.in_use.fetch_add(1, Ordering::SeqCst);
        } else {
            self.in_use.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Initialises the module again, for a thread that is inside; false where that is refused, because another thread is
    /// inside too or another token is in use, whose sessions would end.
    pub fn initialize_again(&self, module: &Pkcs11) -> Result<bool, Fault> {
        let alone = self
            .inside
            .compare_exchange(1, CLOSED | 1, Ordering::SeqCst, Ordering::SeqCst);
        if alone.is_err() {
            return Ok(false);
        }
        // Read only now: nobody can log in to another token any more.
        let done = if self.in_use.load(Ordering::SeqCst) == 0 {
            self.epoch.fetch_add(1, Ordering::SeqCst);
            let _ = module.clone().finalize(); // it may not be initialised
            initialize(module).map(|()| true)
        } else {
            Ok(false)
        };
        self.inside.store(1, Ordering::SeqCst);
        done
    }
}

/// The file that a path leads to, or the path itself where there is none.
pub fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn initialize(module: &Pkcs11) -> Result<(), Fault> {
    let how = CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK);
    match module.initialize(how) {
        Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
        Err(error) => Err(fault(error)),
    }
}

/// Maps an error of the module to a [`Fault`].
pub fn fault(error: Error) -> Fault {
    let why = error.to_string();
    let Error::Pkcs11(rv, _) = error else {
        return Fault::Refused(why);
    };
    match rv {
        RvError::PinIncorrect
        | RvError::PinInvalid
        | RvError::PinLenRange
        | RvError::PinExpired
        | RvError::PinLocked
        | RvError::UserPinNotInitialized => Fault::Denied(why),
        RvError::DeviceError
        | RvError::DeviceRemoved
        | RvError::TokenNotPresent
        | RvError::TokenNotRecognized
        | RvError::SlotIdInvalid
        | RvError::SessionHandleInvalid
        | RvError::SessionClosed
        | RvError::SessionCount
        | RvError::UserNotLoggedIn
        | RvError::CryptokiNotInitialized
        | RvError::GeneralError => Fault::Gone(why),
        RvError::KeyHandleInvalid
        | RvError::ObjectHandleInvalid
        | RvError::WrappingKeyHandleInvalid
        | RvError::UnwrappingKeyHandleInvalid => Fault::Missing(why),
        RvError::MechanismInvalid
        | RvError::FunctionNotSupported
        | RvError::CurveNotSupported
        | RvError::DomainParamsInvalid => Fault::Unsupported(why),
        _ => Fault::Refused(why),
    }
}

/// Whether this error of a decryption may mean that the ciphertext is wrong.
pub fn may_be_wrong_ciphertext(error: &Error) -> bool {
    matches!(
        error,
        Error::Pkcs11(
            RvError::WrappedKeyInvalid
                | RvError::WrappedKeyLenRange
                | RvError::EncryptedDataInvalid
                | RvError::EncryptedDataLenRange
                | RvError::DataInvalid
                | RvError::DataLenRange
                | RvError::FunctionFailed
                | RvError::GeneralError,
            _
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_one_module() {
        let module = Module::new(Path::new("/proc/self/exe"));
        let program = std::env::current_exe().expect("a path");
        assert!(module.is_at(&program));
        assert!(!module.is_at(Path::new("/none.so")));
        assert!(Module::new(Path::new("/none.so")).is_at(Path::new("/none.so")));
    }

    #[test]
    fn nobody_enters_a_closed_module() {
        let module = Module::new(Path::new("/none"));
        let first = module.enter().expect("open");
        module.inside.fetch_or(CLOSED, Ordering::SeqCst);
        assert!(module.enter().is_err());
        module.inside.fetch_and(!CLOSED, Ordering::SeqCst);
        drop(module.enter().expect("open again"));
        drop(first);
        assert_eq!(module.inside.load(Ordering::SeqCst), 0);
    }
}
