//! Keys inside a PKCS#11 token: made there, never extractable, used through session threads.
//!
//! An object's `CKA_ID` is 16 random bytes and is the handle that the store keeps sealed; its
//! `CKA_LABEL` is the key's name with its version, for operators. A restart finds objects by id.
//!
//! The module is loaded once per process. To use several tokens, run one key service for each, because a
//! module has one login per process.

use ron_proto::kms::{KeyBackend, TokenObject};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::object::{Attribute, AttributeType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session as Raw, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::RawAuthPin;
use ron_crypto::secret::SecretBytes;
use ron_kernel::Deadline;
use ron_proto::values::Alg;
use ron_service::config::secret_from_env_or_file;

use super::session_pool::{Fault, Session, check_signature};
use super::settings::Pkcs11Settings;
use super::{Handle, NewKey};
use crate::keys::{DeviceInput, PublicKey};

/// Maximum object handles that a session caches.
const OBJECTS_MAX: usize = 4096;
/// The loaded module, shared by all sessions.
pub struct Driver {
    settings: Pkcs11Settings,
    module: OnceLock<Pkcs11>,
    /// Number of initialisations of the module. Handles of a session from an earlier one are invalid.
    epoch: AtomicU64,
    /// Number of threads inside calls of the module.
    inside: AtomicUsize,
}

/// Guard of a thread inside the module; counted by [`Driver::slot`].
struct Inside<'a>(&'a AtomicUsize);

impl<'a> Inside<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Driver {
    /// A driver that has not loaded its module yet.
    pub fn new(settings: Pkcs11Settings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            module: OnceLock::new(),
            epoch: AtomicU64::new(1),
            inside: AtomicUsize::new(0),
        })
    }

    pub fn connect(self: &Arc<Self>) -> Result<TokenSession, Fault> {
        let _inside = Inside::enter(&self.inside);
        let module = self.module()?;
        let slot = self.slot(module)?;
        // Not closed when dropped: after the module was initialised again, the handle of an old session may be
        // that of a new one.
        let raw = module.open_rw_session_no_drop(slot).map_err(fault)?;
        let pin = secret_from_env_or_file(&self.settings.pin, &|name| std::env::var(name).ok())
            .map_err(|why| Fault::Denied(format!("pkcs11.pin: {why}")))?;
        let pin = RawAuthPin::new(Box::new(pin.expose().to_vec()));
        match raw.login_with_raw(UserType::User, &pin) {
            // The login belongs to the process: the first session logs in for all.
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {}
            Err(error) => return Err(fault(error)),
        }
        Ok(TokenSession {
            raw: Some(raw),
            epoch: self.epoch.load(Ordering::SeqCst),
            driver: self.clone(),
            objects: BTreeMap::new(),
        })
    }

    fn module(&self) -> Result<&Pkcs11, Fault> {
        if let Some(module) = self.module.get() {
            return Ok(module);
        }
        let path = &self.settings.module;
        let module = Pkcs11::new(path)
            .map_err(|e| Fault::Gone(format!("{} cannot be loaded: {e}", path.display())))?;
        initialize(&module)?;
        Ok(self.module.get_or_init(|| module))
    }

    /// The token's slot. Some modules detect tokens only when they are initialised. So if the token is not found, the
    /// module is initialised again, unless another thread is inside it.
    fn slot(&self, module: &Pkcs11) -> Result<Slot, Fault> {
        match self.find_slot(module) {
            Err(Fault::Gone(_)) if self.inside.load(Ordering::SeqCst) == 1 => {
                self.epoch.fetch_add(1, Ordering::SeqCst);
                let _ = module.clone().finalize(); // it may not be initialised
                initialize(module)?;
                self.find_slot(module)
            }
            found => found,
        }
    }

    fn find_slot(&self, module: &Pkcs11) -> Result<Slot, Fault> {
        let slots = module.get_slots_with_initialized_token().map_err(fault)?;
        let label = &self.settings.token;
        let mut found = Vec::new();
        for slot in slots {
            let info = module.get_token_info(slot).map_err(fault)?;
            if label.is_empty() || info.label() == label {
                found.push(slot);
            }
        }
        match found[..] {
            [slot] => Ok(slot),
            [] => Err(Fault::Gone(format!("no token is labelled `{label}`"))),
            _ => Err(Fault::Denied(
                "several tokens fit: set pkcs11.token to the label of one".into(),
            )),
        }
    }
}

fn initialize(module: &Pkcs11) -> Result<(), Fault> {
    let how = CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK);
    match module.initialize(how) {
        Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
        Err(error) => Err(fault(error)),
    }
}

/// Maps an error of the module to a [`Fault`].
pub(super) fn fault(error: Error) -> Fault {
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

/// A session of the token, owned by one thread.
pub struct TokenSession {
    raw: Option<Raw>,
    epoch: u64,
    driver: Arc<Driver>,
    objects: BTreeMap<Vec<u8>, ObjectHandle>,
}

impl Drop for TokenSession {
    fn drop(&mut self) {
        if self.epoch == self.driver.epoch.load(Ordering::SeqCst)
            && let Some(raw) = self.raw.take()
        {
            let _inside = Inside::enter(&self.driver.inside);
            let _ = raw.close(); // the session may be dead already
        }
    }
}

impl Session for TokenSession {
    const KIND: KeyBackend = KeyBackend::Pkcs11;
    const OPS: &'static [&'static str] = &[
        "probe",
        "pkcs11_make",
        "pkcs11_adopt",
        "pkcs11_sign",
        "pkcs11_destroy",
        "pkcs11_wrap",
        "pkcs11_unwrap",
    ];

    fn probe(&mut self) -> Result<(), Fault> {
        self.inside(|raw, _| {
            let info = raw.get_session_info().map_err(fault)?;
            // Some modules answer that without asking the token; random bytes do come from it.
            let mut some = [0_u8; 8];
            match raw.generate_random_slice(&mut some).map_err(fault) {
                Err(Fault::Refused(_) | Fault::Unsupported(_)) | Ok(()) => {}
                Err(gone) => return Err(gone),
            }
            match info.session_state() {
                cryptoki::session::SessionState::RwUser => Ok(()),
                other => Err(Fault::Gone(format!("the session is {other:?}"))),
            }
        })
    }

    fn make(&mut self, alg: Alg, id: [u8; 16], name: &str, by: Deadline) -> Result<NewKey, Fault> {
        let handle = Handle(id.to_vec());
        let made = self.make_once(alg, &handle, name);
        let public = match made {
            // SoftHSM reports a general error to one of two sessions that make or destroy keys at the same moment.
            // Its session goes on, so that is no reason to call the token unavailable.
            Err(Fault::Gone(_)) if self.probe().is_ok() => {
                self.destroy(&handle, by)?;
                self.make_once(alg, &handle, name)?
            }
            made => made?,
        };
        Ok(NewKey { handle, public })
    }

    fn adopt(&mut self, alg: Alg, object: &TokenObject) -> Result<NewKey, Fault> {
        self.adopt_object(alg, object)
    }

    /// Destroys the objects with this id; success when there is none.
    fn destroy(&mut self, Handle(id): &Handle, _: Deadline) -> Result<(), Fault> {
        self.inside(|raw, objects| {
            objects.remove(id);
            let found = raw.find_objects(&[Attribute::Id(id.clone())]);
            for object in found.map_err(fault)? {
                match raw.destroy_object(object).map_err(fault) {
                    // Another program has destroyed it since.
                    Ok(()) | Err(Fault::Missing(_)) => {}
                    Err(fault) => return Err(fault),
                }
            }
            Ok(())
        })
    }

    fn sign(&mut self, alg: Alg, handle: &Handle, input: &DeviceInput) -> Result<Vec<u8>, Fault> {
        self.sign_with(alg, handle, input)
    }

    fn wrap(
        &mut self,
        handle: &Handle,
        _: &[u8],
        plaintext: &[u8],
        _: Deadline,
    ) -> Result<Vec<u8>, Fault> {
        self.wrap_bytes(handle, plaintext)
    }

    fn unwrap(
        &mut self,
        handle: &Handle,
        _: &[u8],
        wrapped: &[u8],
        _: Deadline,
    ) -> Result<SecretBytes, Fault> {
        self.unwrap_bytes(handle, wrapped)
    }
}

impl TokenSession {
    fn make_once(&mut self, alg: Alg, handle: &Handle, name: &str) -> Result<PublicKey, Fault> {
        if alg == Alg::Aes256Kwp {
            return self.make_wrapping(handle, name);
        }
        let public = self.make_pair(alg, &handle.0, name)?;
        check_signature(&public, |test| self.sign(alg, handle, test))?;
        Ok(public)
    }

    pub(super) fn inside<R>(
        &mut self,
        work: impl FnOnce(&Raw, &mut BTreeMap<Vec<u8>, ObjectHandle>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let _inside = Inside::enter(&self.driver.inside);
        if self.epoch != self.driver.epoch.load(Ordering::SeqCst) {
            return Err(Fault::Gone("the module was initialised again".into()));
        }
        match &self.raw {
            Some(raw) => work(raw, &mut self.objects),
            None => Err(Fault::Gone("the session is closed".into())),
        }
    }

    /// Forgets the token's handle of this object: the next use looks it up again.
    pub(super) fn forget(&mut self, Handle(id): &Handle) {
        self.objects.remove(id);
    }

    /// Runs `work` with the key of this handle. The token's handle of its object is remembered; if the token no longer
    /// knows it, the object is looked up once more.
    pub(super) fn with_key<R>(
        &mut self,
        class: ObjectClass,
        Handle(id): &Handle,
        work: impl Fn(&Raw, ObjectHandle) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let driver = self.driver.clone();
        self.inside(|raw, objects| {
            let remembered = objects.contains_key(id);
            let mut done = find(raw, objects, class, id).and_then(|key| work(raw, key));
            if remembered && matches!(done, Err(Fault::Missing(_))) {
                objects.remove(id);
                done = find(raw, objects, class, id).and_then(|key| work(raw, key));
            }
            if matches!(done, Err(Fault::Missing(_))) {
                objects.remove(id);
                // A token that was removed has no objects either.
                driver.find_slot(driver.module()?)?;
            }
            done
        })
    }
}

/// Reads back whether the key can leave the token: a token may accept a template and ignore parts of it. Destroys the key if so.
pub(super) fn check_protected(raw: &Raw, key: ObjectHandle) -> Result<(), Fault> {
    let wanted = [AttributeType::NeverExtractable, AttributeType::Sensitive];
    let found = raw.get_attributes(key, &wanted).map_err(fault)?;
    if found
        == [
            Attribute::NeverExtractable(true),
            Attribute::Sensitive(true),
        ]
    {
        return Ok(());
    }
    let _ = raw.destroy_object(key); // refused in any case
    let why = "the token does not protect the key: CKA_NEVER_EXTRACTABLE or CKA_SENSITIVE is false";
    Err(Fault::Refused(why.into()))
}

/// The private or secret key with this id.
fn find(
    raw: &Raw,
    objects: &mut BTreeMap<Vec<u8>, ObjectHandle>,
    class: ObjectClass,
    id: &[u8],
) -> Result<ObjectHandle, Fault> {
    if let Some(known) = objects.get(id) {
        return Ok(*known);
    }
    let template = [Attribute::Class(class), Attribute::Id(id.to_vec())];
    let found = raw.find_objects(&template).map_err(fault)?;
    let key = match found[..] {
        [key] => key,
        [] => return Err(Fault::Missing(format!("id {}", hex::encode(id)))),
        _ => {
            return Err(Fault::Refused(format!(
                "the token has {} keys with the id {}",
                found.len(),
                hex::encode(id)
            )));
        }
    };
    // Only a cache: each key is found again by its id.
    if objects.len() >= OBJECTS_MAX {
        objects.clear();
    }
    objects.insert(id.to_vec(), key);
    Ok(key)
}
