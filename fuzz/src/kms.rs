//! Request bodies of the KMS, of every kind: what is accepted is written again and read as the same,
//! and nothing but an object is accepted.

use ron_proto::kms::{
    AttestRequest, CreateKey, DatakeyRequest, DeriveRequest, DestroyKey, ExportKey, HmacRequest,
    HmacVerifyRequest, ImportKey, PutIssuerPolicy, RandomRequest, RetireKey, RewrapRequest,
    RotateLogKey, RotateRequest, SignBatch, SignRequest, UnwrapBatch, UnwrapRequest, UpdateKey,
    VerifyBatch, VerifyRawRequest, VerifyRequest, WrapBatch, WrapRequest,
};
use ron_proto::strict;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A body of one kind.
pub fn check<T: DeserializeOwned + Serialize>(body: &[u8]) {
    let Ok(read) = strict::from_slice::<T>(body) else {
        return;
    };
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    assert_eq!(first, Some(&b'{'), "something else than an object");
    let written = serde_json::to_vec(&read).expect("it can be written");
    let again: T = strict::from_slice(&written).expect("its own output");
    let again = serde_json::to_vec(&again).expect("it can be written");
    assert_eq!(written, again);
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let kinds: &[fn(&[u8])] = &[
        check::<SignRequest>,
        check::<SignBatch>,
        check::<VerifyRequest>,
        check::<VerifyBatch>,
        check::<VerifyRawRequest>,
        check::<WrapRequest>,
        check::<WrapBatch>,
        check::<UnwrapRequest>,
        check::<UnwrapBatch>,
        check::<RewrapRequest>,
        check::<DatakeyRequest>,
        check::<DeriveRequest>,
        check::<HmacRequest>,
        check::<HmacVerifyRequest>,
        check::<RandomRequest>,
        check::<CreateKey>,
        check::<RotateRequest>,
        check::<UpdateKey>,
        check::<RetireKey>,
        check::<DestroyKey>,
        check::<ImportKey>,
        check::<ExportKey>,
        check::<AttestRequest>,
        check::<RotateLogKey>,
        check::<PutIssuerPolicy>,
    ];
    for kind in kinds {
        kind(data);
    }
}
