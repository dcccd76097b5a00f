//! The table of functions that `C_GetFunctionList` gives, and the functions that are not offered.

use std::ffi::c_void;

use cryptoki_sys::{
    CK_ATTRIBUTE, CK_BYTE, CK_FUNCTION_LIST, CK_MECHANISM, CK_OBJECT_HANDLE, CK_RV,
    CK_SESSION_HANDLE, CK_SLOT_ID, CK_ULONG, CK_UTF8CHAR, CKR_FUNCTION_NOT_PARALLEL,
    CKR_FUNCTION_NOT_SUPPORTED, CKR_RANDOM_SEED_NOT_SUPPORTED,
};

use super::{objects, operations, tokens};

/// Functions of the standard that return one value whatever they are given.
macro_rules! refused {
    ($value:expr; $($name:ident($($kind:ty),*);)*) => {
        $(unsafe extern "C" fn $name($(_: $kind),*) -> CK_RV { $value })*
    };
}

type Session = CK_SESSION_HANDLE;
type Object = CK_OBJECT_HANDLE;
type Bytes = *mut CK_BYTE;
type Length = *mut CK_ULONG;
type Template = *mut CK_ATTRIBUTE;
type Mechanism = *mut CK_MECHANISM;

// Tokens, PINs and keys are managed by the service's own tools.
refused! { CKR_FUNCTION_NOT_SUPPORTED;
    init_token(CK_SLOT_ID, *mut CK_UTF8CHAR, CK_ULONG, *mut CK_UTF8CHAR);
    init_pin(Session, *mut CK_UTF8CHAR, CK_ULONG);
    set_pin(Session, *mut CK_UTF8CHAR, CK_ULONG, *mut CK_UTF8CHAR, CK_ULONG);
    create_object(Session, Template, CK_ULONG, *mut Object);
    copy_object(Session, Object, Template, CK_ULONG, *mut Object);
    destroy_object(Session, Object);
    set_attribute_value(Session, Object, Template, CK_ULONG);
    generate_key(Session, Mechanism, Template, CK_ULONG, *mut Object);
    generate_key_pair(Session, Mechanism, Template, CK_ULONG, Template, CK_ULONG, *mut Object, *mut Object);
}

// The keys of this module sign. A state of an operation would hold a program's data.
refused! { CKR_FUNCTION_NOT_SUPPORTED;
    get_object_size(Session, Object, Length);
    get_operation_state(Session, Bytes, Length);
    set_operation_state(Session, Bytes, CK_ULONG, Object, Object);
    init_with_key(Session, Mechanism, Object);
    transform(Session, Bytes, CK_ULONG, Bytes, Length);
    transform_final(Session, Bytes, Length);
    digest_key(Session, Object);
    wrap_key(Session, Mechanism, Object, Object, Bytes, Length);
    unwrap_key(Session, Mechanism, Object, Bytes, CK_ULONG, Template, CK_ULONG, *mut Object);
    derive_key(Session, Mechanism, Object, Template, CK_ULONG, *mut Object);
}

refused! { CKR_RANDOM_SEED_NOT_SUPPORTED; seed_random(Session, Bytes, CK_ULONG); }
refused! { CKR_FUNCTION_NOT_PARALLEL; parallel(Session); }

pub static LIST: CK_FUNCTION_LIST = CK_FUNCTION_LIST {
    version: tokens::VERSION,
    C_Initialize: Some(tokens::initialize),
    C_Finalize: Some(tokens::finalize),
    C_GetInfo: Some(tokens::get_info),
    C_GetFunctionList: Some(super::C_GetFunctionList),
    C_GetSlotList: Some(tokens::get_slot_list),
    C_GetSlotInfo: Some(tokens::get_slot_info),
    C_GetTokenInfo: Some(tokens::get_token_info),
    C_GetMechanismList: Some(tokens::get_mechanism_list),
    C_GetMechanismInfo: Some(tokens::get_mechanism_info),
    C_InitToken: Some(init_token),
    C_InitPIN: Some(init_pin),
    C_SetPIN: Some(set_pin),
    C_OpenSession: Some(tokens::open_session),
    C_CloseSession: Some(tokens::close_session),
    C_CloseAllSessions: Some(tokens::close_all_sessions),
    C_GetSessionInfo: Some(tokens::get_session_info),
    C_GetOperationState: Some(get_operation_state),
    C_SetOperationState: Some(set_operation_state),
    C_Login: Some(tokens::login),
    C_Logout: Some(tokens::logout),
    C_CreateObject: Some(create_object),
    C_CopyObject: Some(copy_object),
    C_DestroyObject: Some(destroy_object),
    C_GetObjectSize: Some(get_object_size),
    C_GetAttributeValue: Some(objects::get_attribute_value),
    C_SetAttributeValue: Some(set_attribute_value),
    C_FindObjectsInit: Some(objects::find_objects_init),
    C_FindObjects: Some(objects::find_objects),
    C_FindObjectsFinal: Some(objects::find_objects_final),
    C_EncryptInit: Some(init_with_key),
    C_Encrypt: Some(transform),
    C_EncryptUpdate: Some(transform),
    C_EncryptFinal: Some(transform_final),
    C_DecryptInit: Some(init_with_key),
    C_Decrypt: Some(transform),
    C_DecryptUpdate: Some(transform),
    C_DecryptFinal: Some(transform_final),
    C_DigestInit: Some(operations::digest_init),
    C_Digest: Some(operations::digest),
    C_DigestUpdate: Some(operations::digest_update),
    C_DigestKey: Some(digest_key),
    C_DigestFinal: Some(operations::digest_final),
    C_SignInit: Some(operations::sign_init),
    C_Sign: Some(operations::sign),
    C_SignUpdate: Some(operations::sign_update),
    C_SignFinal: Some(operations::sign_final),
    C_SignRecoverInit: Some(init_with_key),
    C_SignRecover: Some(transform),
    C_VerifyInit: Some(operations::verify_init),
    C_Verify: Some(operations::verify),
    C_VerifyUpdate: Some(operations::verify_update),
    C_VerifyFinal: Some(operations::verify_final),
    C_VerifyRecoverInit: Some(init_with_key),
    C_VerifyRecover: Some(transform),
    C_DigestEncryptUpdate: Some(transform),
    C_DecryptDigestUpdate: Some(transform),
    C_SignEncryptUpdate: Some(transform),
    C_DecryptVerifyUpdate: Some(transform),
    C_GenerateKey: Some(generate_key),
    C_GenerateKeyPair: Some(generate_key_pair),
    C_WrapKey: Some(wrap_key),
    C_UnwrapKey: Some(unwrap_key),
    C_DeriveKey: Some(derive_key),
    C_SeedRandom: Some(seed_random),
    C_GenerateRandom: Some(operations::generate_random),
    C_GetFunctionStatus: Some(parallel),
    C_CancelFunction: Some(parallel),
    C_WaitForSlotEvent: Some(wait_for_slot_event),
};

/// Tokens neither come nor go while a program runs.
unsafe extern "C" fn wait_for_slot_event(
    flags: cryptoki_sys::CK_FLAGS,
    _: *mut CK_SLOT_ID,
    _: *mut c_void,
) -> CK_RV {
    if flags & cryptoki_sys::CKF_DONT_BLOCK != 0 {
        cryptoki_sys::CKR_NO_EVENT
    } else {
        CKR_FUNCTION_NOT_SUPPORTED
    }
}
