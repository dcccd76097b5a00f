//! The C interface: functions that turn raw pointers into values, call the module, and write its answers back.
//!
//! `raw` has the conversions and the contract that makes them sound; the functions are in `tokens`, `objects` and `operations`, in
//! the order of the standard.
#![allow(unsafe_code)] // an interface of C passes pointers; each block says why it is sound

mod list;
mod objects;
mod operations;
mod raw;
mod tokens;

use cryptoki_sys::{CK_FUNCTION_LIST, CK_RV};

/// The only symbol that programs look up; all other functions are in the table that it gives.
///
/// # Safety
/// `list` is null or has room for one pointer.
// The name is the standard's, and no other object of the process may define it for this library.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn C_GetFunctionList(list: *mut *mut CK_FUNCTION_LIST) -> CK_RV {
    // SAFETY: required of the caller. The table itself is only read; that its type is not const is the standard's.
    raw::guarded(|| unsafe { raw::put(list, (&raw const list::LIST).cast_mut()) })
}
