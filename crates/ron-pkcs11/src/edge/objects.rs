//! Objects: their attributes, and searches for them.

use cryptoki_sys::{
    CK_ATTRIBUTE, CK_OBJECT_HANDLE, CK_RV, CK_SESSION_HANDLE, CK_ULONG, CKR_ARGUMENTS_BAD,
};

use super::raw::{fill, put, room_for, template, with};
use crate::attributes;
use crate::rv::Rv;

pub unsafe extern "C" fn get_attribute_value(
    session: CK_SESSION_HANDLE,
    object: CK_OBJECT_HANDLE,
    wanted: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
) -> CK_RV {
    with(|module| {
        let (class, key) = module.object(session, object)?;
        let value = |attribute| attributes::value(&key, class, attribute);
        // SAFETY: the program's template, by the contract.
        unsafe { fill(wanted, count, value) }
    })
}

pub unsafe extern "C" fn find_objects_init(
    session: CK_SESSION_HANDLE,
    wanted: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
) -> CK_RV {
    with(|module| {
        // SAFETY: the program's template, by the contract.
        let wanted = unsafe { template(wanted, count)? };
        module.find_begin(session, &wanted)
    })
}

pub unsafe extern "C" fn find_objects(
    session: CK_SESSION_HANDLE,
    objects: *mut CK_OBJECT_HANDLE,
    max: CK_ULONG,
    count: *mut CK_ULONG,
) -> CK_RV {
    with(|module| {
        // Before objects are taken from the search: they would be lost.
        if count.is_null() {
            return Err(Rv(CKR_ARGUMENTS_BAD));
        }
        // SAFETY: the program's room for `max` handles, by the contract.
        let room = unsafe { room_for(objects, max)? };
        let found = module.find_next(session, room.len())?;
        for (place, handle) in room.iter_mut().zip(&found) {
            place.write(*handle);
        }
        // SAFETY: the program's place for one number, by the contract.
        unsafe { put(count, found.len() as CK_ULONG) }
    })
}

pub unsafe extern "C" fn find_objects_final(session: CK_SESSION_HANDLE) -> CK_RV {
    with(|module| module.find_end(session))
}
