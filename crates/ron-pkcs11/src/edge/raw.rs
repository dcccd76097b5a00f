//! Raw pointers of the C interface as slices and values, and outputs back into the program's memory.
//!
//! The contract of PKCS#11, to which the comments of unsafe code here and in the parent module refer: a pointer is null, or valid
//! for the length that is given beside it and aligned for its type; a program does not change the memory while the call runs; and
//! memory to which the module writes is not used by another call at the same time.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Arc;

use cryptoki_sys::{
    CK_ATTRIBUTE, CK_ATTRIBUTE_TYPE, CK_MECHANISM, CK_MECHANISM_TYPE, CK_RV, CK_ULONG,
    CKR_ARGUMENTS_BAD, CKR_BUFFER_TOO_SMALL, CKR_GENERAL_ERROR, CKR_OK,
};

use crate::initialised;
use crate::module::{Module, Output, Room};
use crate::rv::Rv;

/// Maximum number of attributes in a template, and bytes of a value that is compared or of a mechanism's parameter.
const ATTRIBUTES_MAX: CK_ULONG = 1024;
const VALUE_BYTES_MAX: CK_ULONG = 64 * 1024;

/// `CK_UNAVAILABLE_INFORMATION`, the length of a value that is not given.
const UNAVAILABLE: CK_ULONG = CK_ULONG::MAX;

// Built otherwise, a panic would end the program that uses the library.
const _: () = assert!(cfg!(panic = "unwind"), "build with panic = \"unwind\"");

/// The return value of a call. A panic must not reach the program's frames.
pub fn guarded(call: impl FnOnce() -> Result<(), Rv>) -> CK_RV {
    // What a panic may leave half-done is the operation of one session, which was taken out of the table before.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => CKR_OK,
        Ok(Err(Rv(value))) => value,
        Err(_) => CKR_GENERAL_ERROR,
    }
}

/// The same for a call that needs the module of this process.
pub fn with(call: impl FnOnce(Arc<Module>) -> Result<(), Rv>) -> CK_RV {
    guarded(|| call(initialised::current()?))
}

/// Values of the program.
///
/// # Safety
/// The contract holds for `start` and `count` until the call returns.
pub unsafe fn values<'a, T>(start: *const T, count: CK_ULONG) -> Result<&'a [T], Rv> {
    let count = usize::try_from(count).map_err(|_| Rv(CKR_ARGUMENTS_BAD))?;
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    // SAFETY: not null and, by the contract, valid for `count` values.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// Room of the program that may hold nothing yet.
///
/// # Safety
/// The contract holds for `start` and `count` until the call returns.
pub unsafe fn room_for<'a, T>(
    start: *mut T,
    count: CK_ULONG,
) -> Result<&'a mut [MaybeUninit<T>], Rv> {
    // SAFETY: required of the caller; room for values needs no values in it.
    unsafe { values(start.cast::<MaybeUninit<T>>(), count)? };
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked by `values`; the contract makes this call the only user of the memory.
    Ok(unsafe { slice::from_raw_parts_mut(start.cast(), count as usize) })
}

/// Room of the program for bytes, filled with zeros.
///
/// # Safety
/// The contract holds for `start` and `count` until the call returns.
pub unsafe fn zeroed<'a>(start: *mut u8, count: CK_ULONG) -> Result<&'a mut [u8], Rv> {
    // SAFETY: required of the caller.
    let room = unsafe { room_for(start, count)? };
    for place in &mut *room {
        place.write(0);
    }
    // SAFETY: every byte has been written.
    Ok(unsafe { room.assume_init_mut() })
}

/// Writes one value; `CKR_ARGUMENTS_BAD` without a place for it.
///
/// # Safety
/// The contract holds for `place` and one value.
pub unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Rv> {
    if place.is_null() {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    // SAFETY: not null and, by the contract, valid for one value.
    unsafe { place.write(value) };
    Ok(())
}

/// Number and parameter of a mechanism.
///
/// # Safety
/// The contract holds for `mechanism` and for what it points to.
pub unsafe fn mechanism<'a>(
    mechanism: *const CK_MECHANISM,
) -> Result<(CK_MECHANISM_TYPE, &'a [u8]), Rv> {
    // SAFETY: by the contract, null or one mechanism.
    let mechanism = unsafe { mechanism.as_ref() }.ok_or(Rv(CKR_ARGUMENTS_BAD))?;
    if mechanism.ulParameterLen > VALUE_BYTES_MAX {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    let (start, length) = (mechanism.pParameter.cast::<u8>(), mechanism.ulParameterLen);
    // SAFETY: required of the caller; any bytes are bytes.
    Ok((mechanism.mechanism, unsafe { values(start, length)? }))
}

/// A template for a search, copied.
///
/// # Safety
/// The contract holds for `start`, `count`, and what the attributes point to.
pub unsafe fn template(
    start: *const CK_ATTRIBUTE,
    count: CK_ULONG,
) -> Result<Vec<(CK_ATTRIBUTE_TYPE, Vec<u8>)>, Rv> {
    if count > ATTRIBUTES_MAX {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    // SAFETY: required of the caller.
    let attributes = unsafe { values(start, count)? };
    let copy = |attribute: &CK_ATTRIBUTE| {
        if attribute.ulValueLen > VALUE_BYTES_MAX {
            return Err(Rv(CKR_ARGUMENTS_BAD));
        }
        // SAFETY: required of the caller; any bytes are bytes.
        let bytes = unsafe { values(attribute.pValue.cast::<u8>(), attribute.ulValueLen)? };
        Ok((attribute.type_, bytes.to_vec()))
    };
    attributes.iter().map(copy).collect()
}

/// Writes the values of the attributes in a template, each to where the attribute says, or only their lengths. All are tried; the
/// first error is returned.
///
/// # Safety
/// The contract holds for `start`, `count`, and what the attributes point to.
pub unsafe fn fill(
    start: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
    value: impl Fn(CK_ATTRIBUTE_TYPE) -> Result<Vec<u8>, Rv>,
) -> Result<(), Rv> {
    if start.is_null() || count > ATTRIBUTES_MAX {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    let mut done = Ok(());
    for at in 0..count as usize {
        // SAFETY: below `count`, so valid by the contract; the template is the program's and in use by this call alone.
        let attribute = unsafe { &mut *start.add(at) };
        let outcome = value(attribute.type_).and_then(|bytes| {
            let length = bytes.len() as CK_ULONG;
            if !attribute.pValue.is_null() {
                if attribute.ulValueLen < length {
                    return Err(Rv(CKR_BUFFER_TOO_SMALL));
                }
                let place = attribute.pValue.cast::<u8>();
                // SAFETY: the attribute says that it has room for `ulValueLen` bytes, which was compared above; the value is a
                // copy of ours, so the two do not overlap.
                unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
            Ok(length)
        });
        attribute.ulValueLen = outcome.unwrap_or(UNAVAILABLE);
        done = done.and(outcome.map(drop));
    }
    done
}

/// Whether a program asks for the length of an output, or how much room it has.
///
/// # Safety
/// The contract holds for `length` and one value.
pub unsafe fn room(output: *const u8, length: *const CK_ULONG) -> Result<Room, Rv> {
    if length.is_null() {
        return Err(Rv(CKR_ARGUMENTS_BAD));
    }
    if output.is_null() {
        return Ok(Room::Ask);
    }
    // SAFETY: not null. A program that asks for the length alone need not have set it, so it is read only here.
    let bytes = unsafe { length.read() };
    Ok(Room::Bytes(usize::try_from(bytes).unwrap_or(usize::MAX)))
}

/// Writes an output, or only its length.
///
/// # Safety
/// The contract holds for `place`, whose room is the value at `length`, and for `length`.
pub unsafe fn give(output: Output, place: *mut u8, length: *mut CK_ULONG) -> Result<(), Rv> {
    let (size, outcome) = match &output {
        Output::Length(size) => (*size, Ok(())),
        Output::TooSmall(size) => (*size, Err(Rv(CKR_BUFFER_TOO_SMALL))),
        Output::Bytes(bytes) => {
            // SAFETY: the module gives bytes only where the room that the program has is at least as large.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            (bytes.len(), Ok(()))
        }
    };
    // SAFETY: required of the caller.
    unsafe { put(length, size as CK_ULONG)? };
    outcome
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use cryptoki_sys::{CKA_ID, CKA_LABEL, CKR_ATTRIBUTE_TYPE_INVALID};

    use super::*;

    #[test]
    fn a_panic_is_a_return_value() {
        assert_eq!(guarded(|| panic!("for the test")), CKR_GENERAL_ERROR);
        assert_eq!(guarded(|| Err(Rv(CKR_ARGUMENTS_BAD))), CKR_ARGUMENTS_BAD);
        assert_eq!(guarded(|| Ok(())), CKR_OK);
    }

    #[test]
    fn null_pointers_are_refused_where_there_must_be_something() {
        // SAFETY: null, or slices of ours.
        unsafe {
            assert_eq!(values::<u8>(ptr::null(), 0), Ok(&[][..]));
            assert_eq!(values::<u8>(ptr::null(), 1), Err(Rv(CKR_ARGUMENTS_BAD)));
            let one = [7_u64];
            assert_eq!(
                values(one.as_ptr(), CK_ULONG::MAX),
                Err(Rv(CKR_ARGUMENTS_BAD))
            );
            assert_eq!(values(one.as_ptr(), 1), Ok(&one[..]));
            assert!(mechanism(ptr::null()).is_err());
            assert!(template(ptr::null(), 1).is_err());
            assert_eq!(put(ptr::null_mut::<u8>(), 1), Err(Rv(CKR_ARGUMENTS_BAD)));
            assert!(room(ptr::null(), ptr::null()).is_err());
        }
    }

    #[test]
    fn outputs_follow_the_convention() {
        let mut buffer = [0_u8; 4];
        let mut length: CK_ULONG = 3;
        // SAFETY: a buffer and a length of ours, which live on.
        unsafe {
            assert_eq!(room(ptr::null(), &raw const length), Ok(Room::Ask));
            assert_eq!(room(buffer.as_ptr(), &raw const length), Ok(Room::Bytes(3)));
            let small = give(Output::TooSmall(4), buffer.as_mut_ptr(), &raw mut length);
            assert_eq!((small, length), (Err(Rv(CKR_BUFFER_TOO_SMALL)), 4));
            let given = give(
                Output::Bytes(vec![1, 2]),
                buffer.as_mut_ptr(),
                &raw mut length,
            );
            assert_eq!((given, length, buffer), (Ok(()), 2, [1, 2, 0, 0]));
        }
    }

    #[test]
    fn all_attributes_of_a_template_are_tried() {
        let mut value = [0_u8; 3];
        let attribute = |type_, place: *mut u8, length| CK_ATTRIBUTE {
            type_,
            pValue: place.cast(),
            ulValueLen: length,
        };
        let place = value.as_mut_ptr();
        let mut wanted = [
            attribute(0xbad, place, 3),
            attribute(CKA_LABEL, ptr::null_mut(), 0),
            attribute(CKA_LABEL, place, 2),
            attribute(CKA_ID, place, 3),
        ];
        let known = |type_| match type_ {
            CKA_LABEL => Ok(b"abc".to_vec()),
            CKA_ID => Ok(b"xy".to_vec()),
            _ => Err(Rv(CKR_ATTRIBUTE_TYPE_INVALID)),
        };
        // SAFETY: a template and a buffer of ours, which live on.
        let done = unsafe { fill(wanted.as_mut_ptr(), 4, known) };
        assert_eq!(done, Err(Rv(CKR_ATTRIBUTE_TYPE_INVALID)));
        let lengths = wanted.map(|attribute| attribute.ulValueLen);
        assert_eq!(lengths, [UNAVAILABLE, 3, UNAVAILABLE, 2]);
        assert_eq!(&value, b"xy\0");
    }
}
