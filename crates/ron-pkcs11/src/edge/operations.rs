//! Digests, signatures, verification and random bytes.

use cryptoki_sys::{CK_BYTE, CK_MECHANISM, CK_OBJECT_HANDLE, CK_RV, CK_SESSION_HANDLE, CK_ULONG};

use super::raw::{give, mechanism, room, values, with, zeroed};
use crate::module::Use;

pub unsafe extern "C" fn digest_init(session: CK_SESSION_HANDLE, by: *mut CK_MECHANISM) -> CK_RV {
    with(|module| {
        // SAFETY: the program's mechanism, by the contract.
        module.digest_begin(session, unsafe { mechanism(by)? })
    })
}

pub unsafe extern "C" fn digest(
    session: CK_SESSION_HANDLE,
    data: *mut CK_BYTE,
    length: CK_ULONG,
    hash: *mut CK_BYTE,
    hash_length: *mut CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's data and its room for the hash, by the contract.
        let (data, room) = unsafe { (values(data, length)?, room(hash, hash_length)?) };
        let output = module.digest(session, Some(data), room)?;
        // SAFETY: the same room.
        unsafe { give(output, hash, hash_length) }
    })
}

pub unsafe extern "C" fn digest_update(
    session: CK_SESSION_HANDLE,
    part: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's data, by the contract.
        module.digest_update(session, unsafe { values(part, length)? })
    })
}

pub unsafe extern "C" fn digest_final(
    session: CK_SESSION_HANDLE,
    hash: *mut CK_BYTE,
    hash_length: *mut CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's room for the hash, by the contract.
        let output = module.digest(session, None, unsafe { room(hash, hash_length)? })?;
        // SAFETY: the same room.
        unsafe { give(output, hash, hash_length) }
    })
}

pub unsafe extern "C" fn sign_init(
    session: CK_SESSION_HANDLE,
    by: *mut CK_MECHANISM,
    key: CK_OBJECT_HANDLE,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's mechanism, by the contract.
        module.begin(Use::Sign, session, unsafe { mechanism(by)? }, key)
    })
}

pub unsafe extern "C" fn sign(
    session: CK_SESSION_HANDLE,
    data: *mut CK_BYTE,
    length: CK_ULONG,
    signature: *mut CK_BYTE,
    signature_length: *mut CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's data and its room for the signature, by the contract.
        let (data, room) = unsafe { (values(data, length)?, room(signature, signature_length)?) };
        let output = module.sign(session, Some(data), room)?;
        // SAFETY: the same room.
        unsafe { give(output, signature, signature_length) }
    })
}

pub unsafe extern "C" fn sign_update(
    session: CK_SESSION_HANDLE,
    part: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's data, by the contract.
        module.update(Use::Sign, session, unsafe { values(part, length)? })
    })
}

pub unsafe extern "C" fn sign_final(
    session: CK_SESSION_HANDLE,
    signature: *mut CK_BYTE,
    signature_length: *mut CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's room for the signature, by the contract.
        let output = module.sign(session, None, unsafe { room(signature, signature_length)? })?;
        // SAFETY: the same room.
        unsafe { give(output, signature, signature_length) }
    })
}

pub unsafe extern "C" fn verify_init(
    session: CK_SESSION_HANDLE,
    by: *mut CK_MECHANISM,
    key: CK_OBJECT_HANDLE,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's mechanism, by the contract.
        module.begin(Use::Verify, session, unsafe { mechanism(by)? }, key)
    })
}

pub unsafe extern "C" fn verify(
    session: CK_SESSION_HANDLE,
    data: *mut CK_BYTE,
    length: CK_ULONG,
    signature: *mut CK_BYTE,
    signature_length: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's data and signature, by the contract.
        let (data, signature) =
            unsafe { (values(data, length)?, values(signature, signature_length)?) };
        module.verify(session, Some(data), signature)
    })
}

pub unsafe extern "C" fn verify_update(
    session: CK_SESSION_HANDLE,
    part: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's data, by the contract.
        module.update(Use::Verify, session, unsafe { values(part, length)? })
    })
}

pub unsafe extern "C" fn verify_final(
    session: CK_SESSION_HANDLE,
    signature: *mut CK_BYTE,
    signature_length: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's signature, by the contract.
        module.verify(session, None, unsafe {
            values(signature, signature_length)?
        })
    })
}

pub unsafe extern "C" fn generate_random(
    session: CK_SESSION_HANDLE,
    bytes: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's room, by the contract.
        module.random(session, unsafe { zeroed(bytes, length)? })
    })
}
