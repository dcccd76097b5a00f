//! General functions, slots, tokens and sessions.

use std::ffi::c_void;

use cryptoki_sys::{
    CK_BBOOL, CK_C_INITIALIZE_ARGS, CK_FLAGS, CK_INFO, CK_MECHANISM_INFO, CK_MECHANISM_TYPE,
    CK_NOTIFY, CK_RV, CK_SESSION_HANDLE, CK_SESSION_INFO, CK_SLOT_ID, CK_SLOT_INFO, CK_TOKEN_INFO,
    CK_ULONG, CK_USER_TYPE, CK_UTF8CHAR, CK_VERSION, CKF_OS_LOCKING_OK, CKF_RNG, CKF_RW_SESSION,
    CKF_SERIAL_SESSION, CKF_TOKEN_INITIALIZED, CKF_TOKEN_PRESENT, CKF_USER_PIN_INITIALIZED,
    CKR_ARGUMENTS_BAD, CKR_BUFFER_TOO_SMALL, CKR_CANT_LOCK, CKR_CRYPTOKI_ALREADY_INITIALIZED,
    CKR_GENERAL_ERROR, CKR_SESSION_PARALLEL_NOT_SUPPORTED,
};

use super::raw::{guarded, put, room_for, values, with};
use crate::config;
use crate::initialised;
use crate::mechanism;
use crate::module::{Module, PIN_BYTES_MAX};
use crate::names::padded;
use crate::rv::Rv;
use crate::service::explain;
use crate::table::SESSIONS_MAX;

/// PKCS#11 2.40.
pub const VERSION: CK_VERSION = CK_VERSION {
    major: 2,
    minor: 40,
};
const MANUFACTURER: &str = "ron";
const LIBRARY_VERSION: CK_VERSION = CK_VERSION { major: 0, minor: 1 };
/// `CK_UNAVAILABLE_INFORMATION`: memory of a token.
const UNKNOWN: CK_ULONG = CK_ULONG::MAX;

pub unsafe extern "C" fn initialize(args: *mut c_void) -> CK_RV {
    guarded(|| {
        // SAFETY: null or the structure of the standard, by the contract.
        if let Some(args) = unsafe { args.cast::<CK_C_INITIALIZE_ARGS>().as_ref() } {
            check_locking(args)?;
        }
        if initialised::current().is_ok() {
            return Err(Rv(CKR_CRYPTOKI_ALREADY_INITIALIZED));
        }
        let config = config::load().map_err(|why| {
            explain(&why);
            Rv(CKR_GENERAL_ERROR)
        })?;
        initialised::start(Module::new(config))
    })
}

/// The module locks by the operating system alone: a program that brings its own locks must allow that.
fn check_locking(args: &CK_C_INITIALIZE_ARGS) -> Result<(), Rv> {
    let own = [
        args.CreateMutex.is_some(),
        args.DestroyMutex.is_some(),
        args.LockMutex.is_some(),
        args.UnlockMutex.is_some(),
    ];
    let some = own.contains(&true);
    if !args.pReserved.is_null() || (some && own.contains(&false)) {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    if some && args.flags & CKF_OS_LOCKING_OK == 0 {
        return Err(Rv(CKR_CANT_LOCK));
    }
    Ok(())
}

pub unsafe extern "C" fn finalize(reserved: *mut c_void) -> CK_RV {
    guarded(|| {
        if !reserved.is_null() {
            return Err(Rv(CKR_ARGUMENTS_BAD));
        }
        initialised::end()
    })
}

pub unsafe extern "C" fn get_info(info: *mut CK_INFO) -> CK_RV {
    with(|_| {
        let filled = CK_INFO {
            cryptokiVersion: VERSION,
            manufacturerID: padded(MANUFACTURER),
            flags: 0,
            libraryDescription: padded("keys of ron-kms"),
            libraryVersion: LIBRARY_VERSION,
        };
        // SAFETY: the program's place for one structure, by the contract.
        unsafe { put(info, filled) }
    })
}

/// Writes a list, or only its length, as the standard has it for slots and mechanisms.
///
/// # Safety
/// The contract holds for `place`, whose room is the value at `count`, and for `count`.
unsafe fn give_list<T: Copy>(list: &[T], place: *mut T, count: *mut CK_ULONG) -> Result<(), Rv> {
    if count.is_null() {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    let needed = list.len() as CK_ULONG;
    let mut outcome = Ok(());
    if !place.is_null() {
        // SAFETY: not null; with room for a list the program has set the number of its places.
        if unsafe { *count } < needed {
            outcome = Err(Rv(CKR_BUFFER_TOO_SMALL));
        } else {
            // SAFETY: the room was compared above.
            let room = unsafe { room_for(place, needed)? };
            for (place, value) in room.iter_mut().zip(list) {
                place.write(*value);
            }
        }
    }
    // SAFETY: required of the caller.
    unsafe { put(count, needed)? };
    outcome
}

pub unsafe extern "C" fn get_slot_list(
    _with_token: CK_BBOOL,
    list: *mut CK_SLOT_ID,
    count: *mut CK_ULONG,
) -> CK_RV {
    with(|module| {
        let slots: Vec<CK_SLOT_ID> = (0..module.slots() as CK_SLOT_ID).collect();
        // SAFETY: the program's list and its length, by the contract.
        unsafe { give_list(&slots, list, count) }
    })
}

pub unsafe extern "C" fn get_slot_info(slot: CK_SLOT_ID, info: *mut CK_SLOT_INFO) -> CK_RV {
    with(|module| {
        let token = module.token(slot)?.config;
        let filled = CK_SLOT_INFO {
            slotDescription: padded(&format!("ron-kms {}/{}", token.tenant, token.purpose)),
            manufacturerID: padded(MANUFACTURER),
            flags: CKF_TOKEN_PRESENT,
            hardwareVersion: LIBRARY_VERSION,
            firmwareVersion: LIBRARY_VERSION,
        };
        // SAFETY: the program's place for one structure, by the contract.
        unsafe { put(info, filled) }
    })
}

/// Without `CKF_LOGIN_REQUIRED`: the service knows the caller before any PIN.
pub unsafe extern "C" fn get_token_info(slot: CK_SLOT_ID, info: *mut CK_TOKEN_INFO) -> CK_RV {
    with(|module| {
        let token = module.token(slot)?;
        let filled = CK_TOKEN_INFO {
            label: padded(&token.config.label),
            manufacturerID: padded(MANUFACTURER),
            model: padded("ron-kms"),
            serialNumber: padded(&token.config.serial),
            flags: CKF_RNG | CKF_TOKEN_INITIALIZED | CKF_USER_PIN_INITIALIZED,
            ulMaxSessionCount: SESSIONS_MAX as CK_ULONG,
            ulSessionCount: token.sessions as CK_ULONG,
            ulMaxRwSessionCount: SESSIONS_MAX as CK_ULONG,
            ulRwSessionCount: token.writing as CK_ULONG,
            ulMaxPinLen: PIN_BYTES_MAX as CK_ULONG,
            ulMinPinLen: 0,
            ulTotalPublicMemory: UNKNOWN,
            ulFreePublicMemory: UNKNOWN,
            ulTotalPrivateMemory: UNKNOWN,
            ulFreePrivateMemory: UNKNOWN,
            hardwareVersion: LIBRARY_VERSION,
            firmwareVersion: LIBRARY_VERSION,
            utcTime: padded(""),
        };
        // SAFETY: the program's place for one structure, by the contract.
        unsafe { put(info, filled) }
    })
}

pub unsafe extern "C" fn get_mechanism_list(
    slot: CK_SLOT_ID,
    list: *mut CK_MECHANISM_TYPE,
    count: *mut CK_ULONG,
) -> CK_RV {
    with(|module| {
        module.token(slot)?;
        let numbers: Vec<CK_MECHANISM_TYPE> = mechanism::numbers().collect();
        // SAFETY: the program's list and its length, by the contract.
        unsafe { give_list(&numbers, list, count) }
    })
}

pub unsafe extern "C" fn get_mechanism_info(
    slot: CK_SLOT_ID,
    number: CK_MECHANISM_TYPE,
    info: *mut CK_MECHANISM_INFO,
) -> CK_RV {
    with(|module| {
        module.token(slot)?;
        // SAFETY: the program's place for one structure, by the contract.
        unsafe { put(info, mechanism::info(number)?) }
    })
}

/// The callback is for events that this module does not have.
pub unsafe extern "C" fn open_session(
    slot: CK_SLOT_ID,
    flags: CK_FLAGS,
    _application: *mut c_void,
    _notify: CK_NOTIFY,
    session: *mut CK_SESSION_HANDLE,
) -> CK_RV {
    with(|module| {
        if flags & CKF_SERIAL_SESSION == 0 {
            return Err(Rv(CKR_SESSION_PARALLEL_NOT_SUPPORTED));
        }
        if session.is_null() {
            return Err(Rv(CKR_ARGUMENTS_BAD));
        }
        let opened = module.open_session(slot, flags & CKF_RW_SESSION != 0)?;
        // SAFETY: the program's place for one handle, by the contract.
        unsafe { put(session, opened) }
    })
}

pub unsafe extern "C" fn close_session(session: CK_SESSION_HANDLE) -> CK_RV {
    with(|module| module.close_session(session))
}

pub unsafe extern "C" fn close_all_sessions(slot: CK_SLOT_ID) -> CK_RV {
    with(|module| module.close_all_sessions(slot))
}

pub unsafe extern "C" fn get_session_info(
    session: CK_SESSION_HANDLE,
    info: *mut CK_SESSION_INFO,
) -> CK_RV {
    with(|module| {
        let (slot, state, writes) = module.session_info(session)?;
        let filled = CK_SESSION_INFO {
            slotID: slot,
            state,
            flags: CKF_SERIAL_SESSION | if writes { CKF_RW_SESSION } else { 0 },
            ulDeviceError: 0,
        };
        // SAFETY: the program's place for one structure, by the contract.
        unsafe { put(info, filled) }
    })
}

pub unsafe extern "C" fn login(
    session: CK_SESSION_HANDLE,
    user: CK_USER_TYPE,
    pin: *mut CK_UTF8CHAR,
    length: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's bytes, by the contract. A PIN may be null, whatever its length is said to be.
        let pin = unsafe { values(pin, if pin.is_null() { 0 } else { length })? };
        module.login(session, user, pin.len())
    })
}

pub unsafe extern "C" fn logout(session: CK_SESSION_HANDLE) -> CK_RV {
    with(|module| module.logout(session))
}

#[cfg(test)]
mod tests {
    use cryptoki_sys::CKF_LIBRARY_CANT_CREATE_OS_THREADS;

    use super::*;

    unsafe extern "C" fn create(_: *mut *mut c_void) -> CK_RV {
        0
    }

    unsafe extern "C" fn change(_: *mut c_void) -> CK_RV {
        0
    }

    #[test]
    fn locks_of_the_program_are_not_needed_and_not_used() {
        let none = CK_C_INITIALIZE_ARGS::default();
        let all = CK_C_INITIALIZE_ARGS {
            CreateMutex: Some(create),
            DestroyMutex: Some(change),
            LockMutex: Some(change),
            UnlockMutex: Some(change),
            ..none
        };
        let check = |args: CK_C_INITIALIZE_ARGS, want: Result<(), Rv>| {
            assert_eq!(check_locking(&args), want, "{args:?}");
        };
        let flags = CKF_OS_LOCKING_OK | CKF_LIBRARY_CANT_CREATE_OS_THREADS;
        check(none, Ok(()));
        check(CK_C_INITIALIZE_ARGS { flags, ..none }, Ok(()));
        check(CK_C_INITIALIZE_ARGS { flags, ..all }, Ok(()));
        check(all, Err(Rv(CKR_CANT_LOCK)));
        let half = CK_C_INITIALIZE_ARGS {
            LockMutex: None,
            ..all
        };
        check(half, Err(Rv(CKR_ARGUMENTS_BAD)));
        let reserved = (&raw const none).cast_mut().cast();
        check(
            CK_C_INITIALIZE_ARGS {
                pReserved: reserved,
                ..none
            },
            Err(Rv(CKR_ARGUMENTS_BAD)),
        );
    }
}
