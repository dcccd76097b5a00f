//! Keys inside a PKCS#11 token: made there, never extractable, used through session threads.
//!
//! An object's `CKA_ID` is 16 random bytes and is the handle that the store keeps sealed; its
//! `CKA_LABEL` is the key's name with its version, for operators. A restart finds objects by id.
//!
//! A module is loaded once per process and may have several of the configured tokens, each with sessions and a login of its
//! own ([`super::pkcs11_module`]).

use ron_proto::kms::{KeyBackend, TokenObject};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cryptoki::context::Pkcs11;
use cryptoki::error::{Error, RvError};
use cryptoki::object::{Attribute, AttributeType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session as Raw, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::RawAuthPin;
use ron_crypto::secret::SecretBytes;
use ron_kernel::Deadline;
use ron_proto::values::Alg;
use ron_service::config::secret_from_env_or_file;

use super::pkcs11_module::{Module, fault};
use super::session_pool::{Fault, Session, check_signature};
use super::settings::Pkcs11Settings;
use super::{Handle, NewKey, Wrapping};
use crate::keys::{DeviceInput, PublicKey, symmetric_len};

/// Maximum object handles that a session caches.
const OBJECTS_MAX: usize = 4096;

/// A configured token, shared by all sessions with it.
pub struct Token {
    settings: Pkcs11Settings,
    module: Arc<Module>,
    /// Whether its last login succeeded.
    in_use: AtomicBool,
}

/// The tokens of these settings. Those with the same module share it.
pub fn tokens(settings: &[Pkcs11Settings]) -> Vec<Arc<Token>> {
    let mut modules: Vec<Arc<Module>> = Vec::new();
    let mut token = |wanted: &Pkcs11Settings| {
        let known = modules.iter().find(|module| module.is_at(&wanted.module));
        let module = known.cloned().unwrap_or_else(|| {
            modules.push(Arc::new(Module::new(&wanted.module)));
            modules[modules.len() - 1].clone()
        });
        Arc::new(Token {
            settings: wanted.clone(),
            module,
            in_use: AtomicBool::new(false),
        })
    };
    settings.iter().map(&mut token).collect()
}

impl Token {
    /// The settings that it was made from.
    pub fn settings(&self) -> &Pkcs11Settings {
        &self.settings
    }

    pub fn connect(self: &Arc<Self>) -> Result<TokenSession, Fault> {
        let _inside = self.module.enter()?;
        let session = self.log_in();
        self.set_in_use(session.is_ok());
        session
    }

    fn log_in(self: &Arc<Self>) -> Result<TokenSession, Fault> {
        let module = self.module.get()?;
        let slot = self.slot(module)?;
        // Not closed when dropped: after the module was initialised again, the handle of an old session may be
        // that of a new one.
        let raw = module.open_rw_session_no_drop(slot).map_err(fault)?;
        let pin = secret_from_env_or_file(&self.settings.pin, &|name| std::env::var(name).ok())
            .map_err(|why| Fault::Denied(format!("pin: {why}")))?;
        let pin = RawAuthPin::new(Box::new(pin.expose().to_vec()));
        match raw.login_with_raw(UserType::User, &pin) {
            // The login belongs to the process: the first session logs in for all with this token.
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {}
            Err(error) => return Err(fault(error)),
        }
        Ok(TokenSession {
            raw: Some(raw),
            epoch: self.module.epoch(),
            token: self.clone(),
            objects: BTreeMap::new(),
        })
    }

    fn set_in_use(&self, now: bool) {
        if self.in_use.swap(now, Ordering::SeqCst) != now {
            self.module.count_use(now);
        }
    }

    /// The token's slot. Some modules detect tokens only when they are initialised. So if the token is not found, the
    /// module is initialised again, where that disturbs no other token.
    fn slot(&self, module: &Pkcs11) -> Result<Slot, Fault> {
        match self.find_slot(module) {
            Err(Fault::Gone(why)) => {
                self.set_in_use(false);
                if self.module.initialize_again(module)? {
                    self.find_slot(module)
                } else {
                    Err(Fault::Gone(why))
                }
            }
            found => found,
        }
    }

    fn find_slot(&self, module: &Pkcs11) -> Result<Slot, Fault> {
        let label = &self.settings.token;
        let mut why = format!("no token is labelled `{label}`");
        let mut found = Vec::new();
        for slot in module.get_slots_with_token().map_err(fault)? {
            match module.get_token_info(slot) {
                Ok(info) if !info.token_initialized() => {}
                Ok(info) if label.is_empty() || info.label() == label => found.push(slot),
                Ok(_) => {}
                // It may be another token that is away, so the others are still searched.
                Err(error) => why = format!("{why}, and one gives no label: {error}"),
            }
        }
        match found[..] {
            [slot] => Ok(slot),
            [] => Err(Fault::Gone(why)),
            _ => Err(Fault::Denied(
                "several tokens fit: set pkcs11.token to the label of one, or give each a label of its own".into(),
            )),
        }
    }
}

/// A session of the token, owned by one thread.
pub struct TokenSession {
    raw: Option<Raw>,
    epoch: u64,
    token: Arc<Token>,
    objects: BTreeMap<Vec<u8>, ObjectHandle>,
}

impl Drop for TokenSession {
    fn drop(&mut self) {
        let module = &self.token.module;
        if let Ok(_inside) = module.enter()
            && self.epoch == module.epoch()
            && let Some(raw) = self.raw.take()
        {
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
        how: &Wrapping,
        plaintext: &[u8],
        _: Deadline,
    ) -> Result<Vec<u8>, Fault> {
        self.wrap_with(handle, how, plaintext)
    }

    fn unwrap(
        &mut self,
        handle: &Handle,
        how: &Wrapping,
        wrapped: &[u8],
        _: Deadline,
    ) -> Result<SecretBytes, Fault> {
        self.unwrap_with(handle, how, wrapped)
    }
}

impl TokenSession {
    fn make_once(&mut self, alg: Alg, handle: &Handle, name: &str) -> Result<PublicKey, Fault> {
        if symmetric_len(alg).is_some() {
            return self.make_secret(alg, handle, name);
        }
        let public = self.make_pair(alg, &handle.0, name)?;
        check_signature(&public, |test| self.sign(alg, handle, test))?;
        Ok(public)
    }

    pub(super) fn inside<R>(
        &mut self,
        work: impl FnOnce(&Raw, &mut BTreeMap<Vec<u8>, ObjectHandle>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let _inside = self.token.module.enter()?;
        if self.epoch != self.token.module.epoch() {
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
        let token = self.token.clone();
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
                token.find_slot(token.module.get()?)?;
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
