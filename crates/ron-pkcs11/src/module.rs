//! The functions of the C interface over safe values.

use std::sync::Arc;

use cryptoki_sys::{
    CK_ATTRIBUTE_TYPE, CK_MECHANISM_TYPE, CK_OBJECT_CLASS, CK_OBJECT_HANDLE, CK_SESSION_HANDLE,
    CK_SLOT_ID, CK_STATE, CK_USER_TYPE, CKA_CLASS, CKO_PRIVATE_KEY, CKO_PUBLIC_KEY,
    CKR_KEY_FUNCTION_NOT_PERMITTED, CKR_KEY_HANDLE_INVALID, CKR_OPERATION_ACTIVE,
    CKR_OPERATION_NOT_INITIALIZED, CKR_PIN_LEN_RANGE, CKR_SLOT_ID_INVALID,
    CKR_USER_ALREADY_LOGGED_IN, CKR_USER_NOT_LOGGED_IN, CKR_USER_TYPE_INVALID,
    CKS_RO_PUBLIC_SESSION, CKS_RO_USER_FUNCTIONS, CKS_RW_PUBLIC_SESSION, CKS_RW_USER_FUNCTIONS,
    CKU_CONTEXT_SPECIFIC, CKU_USER,
};
use ron_crypto::hash::Hasher;
use ron_kernel::{LockSpec, RankedMutex};
use ron_proto::Alg;

use crate::attributes::{self, Class};
use crate::config::{Config, TokenConfig};
use crate::key::{self, Key};
use crate::mechanism;
use crate::operation::Operation;
use crate::rv::Rv;
use crate::service::Service;
use crate::table::{Session, Table};

static TABLE: LockSpec = LockSpec {
    name: "pkcs11_table",
    rank: 100,
    guards: "sessions and object handles of the process",
};

/// Maximum length of a PIN in bytes. It is no credential and is not looked at.
pub const PIN_BYTES_MAX: usize = 32;

/// What a token's keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Sign,
    Verify,
}

/// What a call does with an output: the program asks for its length, or has room for some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Ask,
    Bytes(usize),
}

/// An output, or the length of one that was asked for or did not fit.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    Length(usize),
    TooSmall(usize),
    Bytes(Vec<u8>),
}

/// One token as programs see it.
pub struct TokenView<'a> {
    pub config: &'a TokenConfig,
    pub sessions: usize,
    pub writing: usize,
}

/// All state between `C_Initialize` and `C_Finalize`.
pub struct Module {
    config: Arc<Config>,
    service: Service,
    table: RankedMutex<Table>,
}

impl Module {
    pub fn new(config: Config) -> Self {
        let config = Arc::new(config);
        Self {
            table: RankedMutex::new(&TABLE, Table::new(config.tokens.len())),
            service: Service::new(config.clone()),
            config,
        }
    }

    /// Number of slots; their numbers count from 0.
    pub fn slots(&self) -> usize {
        self.config.tokens.len()
    }

    fn slot(&self, id: CK_SLOT_ID) -> Result<usize, Rv> {
        let slot = usize::try_from(id).ok().filter(|slot| *slot < self.slots());
        slot.ok_or(Rv(CKR_SLOT_ID_INVALID))
    }

    pub fn token(&self, id: CK_SLOT_ID) -> Result<TokenView<'_>, Rv> {
        let slot = self.slot(id)?;
        let (sessions, writing) = self.table.lock().open_in(slot);
        Ok(TokenView {
            config: &self.config.tokens[slot],
            sessions,
            writing,
        })
    }

    pub fn open_session(&self, id: CK_SLOT_ID, writes: bool) -> Result<CK_SESSION_HANDLE, Rv> {
        let slot = self.slot(id)?;
        self.table.lock().open(slot, writes)
    }

    pub fn close_session(&self, session: CK_SESSION_HANDLE) -> Result<(), Rv> {
        self.table.lock().close(session)
    }

    pub fn close_all_sessions(&self, id: CK_SLOT_ID) -> Result<(), Rv> {
        let slot = self.slot(id)?;
        self.table.lock().close_all(slot);
        Ok(())
    }

    /// Slot, state, and whether the session may write.
    pub fn session_info(
        &self,
        session: CK_SESSION_HANDLE,
    ) -> Result<(CK_SLOT_ID, CK_STATE, bool), Rv> {
        let mut table = self.table.lock();
        let Session { slot, writes, .. } = *table.session(session)?;
        let state = match (table.tokens[slot].logged_in, writes) {
            (false, false) => CKS_RO_PUBLIC_SESSION,
            (false, true) => CKS_RW_PUBLIC_SESSION,
            (true, false) => CKS_RO_USER_FUNCTIONS,
            (true, true) => CKS_RW_USER_FUNCTIONS,
        };
        Ok((slot as CK_SLOT_ID, state, writes))
    }

    /// Tolerates any PIN of at most 32 bytes: the caller is its user id or its token file.
    pub fn login(
        &self,
        session: CK_SESSION_HANDLE,
        user: CK_USER_TYPE,
        pin_bytes: usize,
    ) -> Result<(), Rv> {
        let mut table = self.table.lock();
        let slot = table.session(session)?.slot;
        if pin_bytes > PIN_BYTES_MAX {
            return Err(Rv(CKR_PIN_LEN_RANGE));
        }
        match user {
            CKU_CONTEXT_SPECIFIC => return Ok(()),
            CKU_USER => {}
            _ => return Err(Rv(CKR_USER_TYPE_INVALID)),
        }
        let token = &mut table.tokens[slot];
        if token.logged_in {
            return Err(Rv(CKR_USER_ALREADY_LOGGED_IN));
        }
        token.logged_in = true;
        Ok(())
    }

    pub fn logout(&self, session: CK_SESSION_HANDLE) -> Result<(), Rv> {
        let mut table = self.table.lock();
        let slot = table.session(session)?.slot;
        let token = &mut table.tokens[slot];
        if !token.logged_in {
            return Err(Rv(CKR_USER_NOT_LOGGED_IN));
        }
        token.logged_in = false;
        Ok(())
    }

    /// Begins a search; the keys are listed again, so it sees keys that were made, rotated or retired.
    pub fn find_begin(
        &self,
        session: CK_SESSION_HANDLE,
        template: &[(CK_ATTRIBUTE_TYPE, Vec<u8>)],
    ) -> Result<(), Rv> {
        let slot = {
            let mut table = self.table.lock();
            let session = table.session(session)?;
            if session.found.is_some() {
                return Err(Rv(CKR_OPERATION_ACTIVE));
            }
            session.slot
        };
        // A search for certificates or data objects is answered without the service, which has none.
        if names_keys(template) {
            self.list(slot)?;
        }
        let mut table = self.table.lock();
        let found = table
            .objects(slot)
            .filter(|(_, class, key)| attributes::matches(key, *class, template))
            .map(|(handle, ..)| handle)
            .collect();
        table.session(session)?.found = Some(found);
        Ok(())
    }

    /// The next objects of the search, at most `max`.
    pub fn find_next(
        &self,
        session: CK_SESSION_HANDLE,
        max: usize,
    ) -> Result<Vec<CK_OBJECT_HANDLE>, Rv> {
        let mut table = self.table.lock();
        let found = &mut table.session(session)?.found;
        let found = found.as_mut().ok_or(Rv(CKR_OPERATION_NOT_INITIALIZED))?;
        Ok(found.drain(..max.min(found.len())).collect())
    }

    pub fn find_end(&self, session: CK_SESSION_HANDLE) -> Result<(), Rv> {
        let ended = self.table.lock().session(session)?.found.take();
        ended.map(drop).ok_or(Rv(CKR_OPERATION_NOT_INITIALIZED))
    }

    /// Reads the keys of a token from the service. Only public keys that are not known yet are fetched.
    fn list(&self, slot: usize) -> Result<(), Rv> {
        let token = &self.config.tokens[slot];
        let calls = self.service.calls()?;
        let mut listed = Vec::new();
        for doc in calls.keys(&token.purpose)? {
            let hidden = doc.key.alg == Alg::Ed25519 && !token.ed25519;
            if doc.key.tenant != token.tenant || hidden || !key::usable(&doc) {
                continue;
            }
            let known = self.table.lock().known(slot, &doc.key, doc.head);
            if let Some(known) = known {
                listed.push(known);
            } else if let Some(doc) = calls.key(&doc.key)? {
                listed.extend(Key::of(&doc, token.labels.get(&doc.key)).map(Arc::new));
            }
        }
        self.table.lock().list(slot, listed);
        Ok(())
    }

    /// The object of a handle, for its attributes.
    pub fn object(
        &self,
        session: CK_SESSION_HANDLE,
        object: CK_OBJECT_HANDLE,
    ) -> Result<(Class, Arc<Key>), Rv> {
        let mut table = self.table.lock();
        let slot = table.session(session)?.slot;
        table.object(slot, object)
    }

    pub fn begin(
        &self,
        what: Use,
        session: CK_SESSION_HANDLE,
        (mechanism, parameter): (CK_MECHANISM_TYPE, &[u8]),
        object: CK_OBJECT_HANDLE,
    ) -> Result<(), Rv> {
        let mut table = self.table.lock();
        let slot = table.session(session)?.slot;
        if operation_of(what, table.session(session)?).is_some() {
            return Err(Rv(CKR_OPERATION_ACTIVE));
        }
        let mechanism = mechanism::signing(mechanism, parameter)?;
        let found = table.object(slot, object);
        let (class, key) = found.map_err(|_| Rv(CKR_KEY_HANDLE_INVALID))?;
        let fits = match what {
            Use::Sign => class == Class::Private,
            Use::Verify => class == Class::Public,
        };
        if !fits {
            return Err(Rv(CKR_KEY_FUNCTION_NOT_PERMITTED));
        }
        let operation = Operation::new(key, mechanism)?;
        *operation_of(what, table.session(session)?) = Some(operation);
        Ok(())
    }

    /// Takes the operation out of its session, so that the lock is not held while data is hashed or the service works.
    fn take(&self, what: Use, session: CK_SESSION_HANDLE) -> Result<Operation, Rv> {
        let taken = operation_of(what, self.table.lock().session(session)?).take();
        taken.ok_or(Rv(CKR_OPERATION_NOT_INITIALIZED))
    }

    /// One part of the data. An error ends the operation.
    pub fn update(&self, what: Use, session: CK_SESSION_HANDLE, part: &[u8]) -> Result<(), Rv> {
        let mut operation = self.take(what, session)?;
        operation.update(part)?;
        operation.in_parts = true;
        *operation_of(what, self.table.lock().session(session)?) = Some(operation);
        Ok(())
    }

    /// Signs: `data` is all of the data, or `None` when it came in parts. Asking for the length, and too little room, leave the
    /// operation as it is; everything else ends it.
    pub fn sign(
        &self,
        session: CK_SESSION_HANDLE,
        data: Option<&[u8]>,
        room: Room,
    ) -> Result<Output, Rv> {
        {
            let mut table = self.table.lock();
            let operation = &table.session(session)?.sign;
            let operation = operation
                .as_ref()
                .ok_or(Rv(CKR_OPERATION_NOT_INITIALIZED))?;
            let length = operation.key.signature_len();
            match room {
                Room::Ask => return Ok(Output::Length(length)),
                Room::Bytes(room) if room < length => return Ok(Output::TooSmall(length)),
                Room::Bytes(_) => {}
            }
        }
        let (key, payload) = self.complete(Use::Sign, session, data)?.finish()?;
        let calls = self.service.calls()?;
        let length = key.signature_len();
        let signature = calls.sign(payload.request(&key))?;
        if signature.len() != length {
            self.service
                .explain("the service answered with a signature of another length");
            return Err(Rv(cryptoki_sys::CKR_DEVICE_ERROR));
        }
        Ok(Output::Bytes(signature))
    }

    pub fn verify(
        &self,
        session: CK_SESSION_HANDLE,
        data: Option<&[u8]>,
        signature: &[u8],
    ) -> Result<(), Rv> {
        let (key, payload) = self.complete(Use::Verify, session, data)?.finish()?;
        payload.verify(&key, signature)
    }

    /// The operation with all of its data.
    fn complete(
        &self,
        what: Use,
        session: CK_SESSION_HANDLE,
        data: Option<&[u8]>,
    ) -> Result<Operation, Rv> {
        let mut operation = self.take(what, session)?;
        if let Some(data) = data {
            if operation.in_parts {
                return Err(Rv(CKR_OPERATION_ACTIVE));
            }
            operation.update(data)?;
        }
        Ok(operation)
    }

    pub fn digest_begin(
        &self,
        session: CK_SESSION_HANDLE,
        (mechanism, parameter): (CK_MECHANISM_TYPE, &[u8]),
    ) -> Result<(), Rv> {
        let mut table = self.table.lock();
        let session = table.session(session)?;
        if session.digest.is_some() {
            return Err(Rv(CKR_OPERATION_ACTIVE));
        }
        session.digest = Some(Hasher::new(mechanism::digesting(mechanism, parameter)?));
        Ok(())
    }

    pub fn digest_update(&self, session: CK_SESSION_HANDLE, part: &[u8]) -> Result<(), Rv> {
        let taken = self.table.lock().session(session)?.digest.take();
        let mut hasher = taken.ok_or(Rv(CKR_OPERATION_NOT_INITIALIZED))?;
        hasher.update(part);
        self.table.lock().session(session)?.digest = Some(hasher);
        Ok(())
    }

    /// As [`Module::sign`].
    pub fn digest(
        &self,
        session: CK_SESSION_HANDLE,
        data: Option<&[u8]>,
        room: Room,
    ) -> Result<Output, Rv> {
        let taken = self.table.lock().session(session)?.digest.take();
        let mut hasher = taken.ok_or(Rv(CKR_OPERATION_NOT_INITIALIZED))?;
        let length = hasher.by().size();
        if room == Room::Ask || matches!(room, Room::Bytes(room) if room < length) {
            self.table.lock().session(session)?.digest = Some(hasher);
            return Ok(if room == Room::Ask {
                Output::Length(length)
            } else {
                Output::TooSmall(length)
            });
        }
        hasher.update(data.unwrap_or_default());
        Ok(Output::Bytes(hasher.finish().as_bytes().to_vec()))
    }

    pub fn random(&self, session: CK_SESSION_HANDLE, room: &mut [u8]) -> Result<(), Rv> {
        self.table.lock().session(session)?;
        self.service.calls()?.random(room)
    }
}

fn operation_of(what: Use, session: &mut Session) -> &mut Option<Operation> {
    match what {
        Use::Sign => &mut session.sign,
        Use::Verify => &mut session.verify,
    }
}

/// Whether a template can match a key.
fn names_keys(template: &[(CK_ATTRIBUTE_TYPE, Vec<u8>)]) -> bool {
    let is_key = |value: &Vec<u8>| {
        [CKO_PRIVATE_KEY, CKO_PUBLIC_KEY]
            .iter()
            .any(|class: &CK_OBJECT_CLASS| value[..] == class.to_ne_bytes())
    };
    let mut classes = template
        .iter()
        .filter(|(attribute, _)| *attribute == CKA_CLASS);
    classes.all(|(_, value)| is_key(value))
}

#[cfg(test)]
mod tests {
    use cryptoki_sys::{
        CKA_LABEL, CKM_ECDSA, CKM_ECDSA_SHA256, CKM_SHA256, CKO_CERTIFICATE, CKR_DEVICE_REMOVED,
        CKR_MECHANISM_INVALID, CKR_SESSION_HANDLE_INVALID, CKR_SIGNATURE_INVALID, CKU_SO,
    };
    use ron_crypto::{Curve, EcKey};

    use super::*;
    use crate::config;
    use crate::key::Public;

    /// A module with one key, a private object 1 and a public object 2, whose service is not there; a session; the key.
    fn module() -> (Module, CK_SESSION_HANDLE, EcKey) {
        let module = Module::new(config::for_tests("unix:/nonexistent/kms.sock"));
        let (ec, _) = EcKey::generate(Curve::P256);
        let key = Key::sample("ecdsa-p256", Public::Ec(Curve::P256, ec.public().to_vec()));
        module.table.lock().list(0, vec![Arc::new(key)]);
        let session = module.open_session(0, false).unwrap();
        (module, session, ec)
    }

    #[test]
    fn asking_for_a_length_leaves_the_operation_and_an_error_ends_it() {
        let (module, session, _) = module();
        let sign = |data: &[u8], room| module.sign(session, Some(data), room);
        let begin = || module.begin(Use::Sign, session, (CKM_ECDSA, &[]), 1);
        let none = Err(Rv(CKR_OPERATION_NOT_INITIALIZED));
        assert_eq!(sign(&[7; 32], Room::Ask), none);
        begin().unwrap();
        assert_eq!(begin(), Err(Rv(CKR_OPERATION_ACTIVE)));
        assert_eq!(sign(&[7; 32], Room::Ask), Ok(Output::Length(64)));
        assert_eq!(sign(&[7; 32], Room::Bytes(63)), Ok(Output::TooSmall(64)));
        // The service is asked only now.
        assert_eq!(sign(&[7; 32], Room::Bytes(64)), Err(Rv(CKR_DEVICE_REMOVED)));
        assert_eq!(sign(&[7; 32], Room::Bytes(64)), none);
        // Data at once does not follow data in parts.
        begin().unwrap();
        module.update(Use::Sign, session, &[7; 16]).unwrap();
        assert_eq!(
            sign(&[7; 16], Room::Bytes(64)),
            Err(Rv(CKR_OPERATION_ACTIVE))
        );
        assert_eq!(
            module.update(Use::Sign, session, &[7]),
            none.map(|_: Output| ())
        );
    }

    #[test]
    fn a_key_is_used_for_what_its_object_is() {
        let (module, session, ec) = module();
        let begin = |what, object| module.begin(what, session, (CKM_ECDSA_SHA256, &[]), object);
        assert_eq!(begin(Use::Sign, 2), Err(Rv(CKR_KEY_FUNCTION_NOT_PERMITTED)));
        assert_eq!(
            begin(Use::Verify, 1),
            Err(Rv(CKR_KEY_FUNCTION_NOT_PERMITTED))
        );
        assert_eq!(begin(Use::Sign, 3), Err(Rv(CKR_KEY_HANDLE_INVALID)));
        let digests = module.begin(Use::Sign, session, (CKM_SHA256, &[]), 1);
        assert_eq!(digests, Err(Rv(CKR_MECHANISM_INVALID)));
        let signature = ec.sign_hash(&ron_crypto::Hashed::of(ron_crypto::Sha2::Sha256, b"hello"));
        begin(Use::Verify, 2).unwrap();
        module.update(Use::Verify, session, b"hel").unwrap();
        module.update(Use::Verify, session, b"lo").unwrap();
        assert_eq!(module.verify(session, None, &signature), Ok(()));
        begin(Use::Verify, 2).unwrap();
        let wrong = module.verify(session, Some(b"hell0"), &signature);
        assert_eq!(wrong, Err(Rv(CKR_SIGNATURE_INVALID)));
    }

    #[test]
    fn searches_that_cannot_find_keys_need_no_service() {
        let (module, session, _) = module();
        let class = |class: CK_OBJECT_CLASS| (CKA_CLASS, class.to_ne_bytes().to_vec());
        let keys = [class(CKO_PRIVATE_KEY), (CKA_LABEL, b"tls".to_vec())];
        assert_eq!(
            module.find_begin(session, &keys),
            Err(Rv(CKR_DEVICE_REMOVED))
        );
        module
            .find_begin(session, &[class(CKO_CERTIFICATE)])
            .unwrap();
        assert_eq!(
            module.find_begin(session, &[]),
            Err(Rv(CKR_OPERATION_ACTIVE))
        );
        assert_eq!(module.find_next(session, 10), Ok(Vec::new()));
        module.find_end(session).unwrap();
        assert_eq!(
            module.find_end(session),
            Err(Rv(CKR_OPERATION_NOT_INITIALIZED))
        );
    }

    #[test]
    fn a_login_changes_the_state_alone() {
        let (module, session, _) = module();
        let state = || module.session_info(session).map(|(_, state, _)| state);
        assert_eq!(state(), Ok(CKS_RO_PUBLIC_SESSION));
        assert_eq!(
            module.login(session, CKU_SO, 4),
            Err(Rv(CKR_USER_TYPE_INVALID))
        );
        assert_eq!(
            module.login(session, CKU_USER, 33),
            Err(Rv(CKR_PIN_LEN_RANGE))
        );
        assert_eq!(module.login(session, CKU_USER, 32), Ok(()));
        assert_eq!(
            module.login(session, CKU_USER, 0),
            Err(Rv(CKR_USER_ALREADY_LOGGED_IN))
        );
        assert_eq!(state(), Ok(CKS_RO_USER_FUNCTIONS));
        assert_eq!(module.logout(session), Ok(()));
        assert_eq!(module.logout(session), Err(Rv(CKR_USER_NOT_LOGGED_IN)));
        module.close_session(session).unwrap();
        assert_eq!(state(), Err(Rv(CKR_SESSION_HANDLE_INVALID)));
        assert!(module.open_session(1, false).is_err());
    }

    #[test]
    fn digests_are_made_at_once_and_in_parts() {
        let (module, session, _) = module();
        let want = Output::Bytes(ron_crypto::hash::sha256(b"hello").to_vec());
        module.digest_begin(session, (CKM_SHA256, &[])).unwrap();
        let asked = module.digest(session, Some(b"hello"), Room::Ask);
        assert_eq!(asked, Ok(Output::Length(32)));
        let small = module.digest(session, Some(b"hello"), Room::Bytes(31));
        assert_eq!(small, Ok(Output::TooSmall(32)));
        assert_eq!(
            module
                .digest(session, Some(b"hello"), Room::Bytes(32))
                .as_ref(),
            Ok(&want)
        );
        module.digest_begin(session, (CKM_SHA256, &[])).unwrap();
        module.digest_update(session, b"hel").unwrap();
        module.digest_update(session, b"lo").unwrap();
        assert_eq!(module.digest(session, None, Room::Bytes(64)), Ok(want));
        assert_eq!(
            module.digest_update(session, b"x"),
            Err(Rv(CKR_OPERATION_NOT_INITIALIZED))
        );
    }
}
