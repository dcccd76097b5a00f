//! Objects that somebody else has made in a PKCS#11 token, and that become keys.

use cryptoki::object::{Attribute, AttributeType, ObjectClass};
use ron_proto::kms::TokenObject;
use ron_proto::values::Alg;

use super::pkcs11::TokenSession;
use super::pkcs11_module::fault;
use super::pkcs11_sign::{ALGS, not_here, read_public};
use super::session_pool::{Fault, Session as _, check_signature};
use super::{Handle, NewKey, pkcs11_secret};
use crate::keys::aead_of;

impl TokenSession {
    /// The key of this label or id, after it has signed or wrapped once. Nothing in the token changes.
    pub(super) fn adopt_object(&mut self, alg: Alg, object: &TokenObject) -> Result<NewKey, Fault> {
        if aead_of(alg).is_some() {
            let why = format!("adopting a key of {alg}: nobody knows which nonces it has used");
            return Err(Fault::Unsupported(why));
        }
        if pkcs11_secret::ALGS.contains(&alg) {
            let handle = self.id_of(ObjectClass::SECRET_KEY, object)?;
            let public = self.test_secret(alg, &handle)?;
            return Ok(NewKey { handle, public });
        }
        if !ALGS.contains(&alg) {
            return Err(not_here(alg));
        }
        let handle = self.id_of(ObjectClass::PRIVATE_KEY, object)?;
        let public = self.with_key(ObjectClass::PUBLIC_KEY, &handle, |raw, key| {
            read_public(raw, alg, key)
        });
        let public = public.map_err(|error| match error {
            Fault::Missing(_) => Fault::Unsupported(
                "adopting a private key without its public key: write the public key into the token, under the same CKA_ID".into(),
            ),
            other => other,
        })?;
        // The token's handle that is remembered for this id must be that of the private key.
        self.forget(&handle);
        check_signature(&public, |test| self.sign(alg, &handle, test))?;
        Ok(NewKey { handle, public })
    }

    /// The `CKA_ID` of the one object of this class that is meant, by which it is found from now on.
    fn id_of(&mut self, class: ObjectClass, object: &TokenObject) -> Result<Handle, Fault> {
        let named = match object {
            TokenObject::Label(label) => Attribute::Label(label.clone().into_bytes()),
            TokenObject::Id(id) => {
                let id = hex::decode(id);
                Attribute::Id(id.map_err(|_| Fault::Unsupported("an id that is not hex".into()))?)
            }
        };
        let id = self.inside(|raw, _| {
            let found = raw.find_objects(&[Attribute::Class(class), named]);
            let [key] = found.map_err(fault)?[..] else {
                return Err(Fault::Unsupported(
                    "adopting: not one key of the token fits, but none or several; name it by another label or id".into(),
                ));
            };
            let id = raw.get_attributes(key, &[AttributeType::Id]);
            match id.map_err(fault)?.pop() {
                Some(Attribute::Id(id)) if !id.is_empty() => Ok(id),
                _ => Err(Fault::Unsupported(
                    "adopting a key without CKA_ID, by which it is found again: set one".into(),
                )),
            }
        })?;
        Ok(Handle(id))
    }
}
