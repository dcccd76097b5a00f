//! Bodies of the KMS's Vault Transit routes, of every kind: as the bodies of its own API. Also the DER of their signatures,
//! in which every signature has one form.

use ron_proto::kms::transit::{Configure, Create, Crypt, Datakey, Draw, Sign};

use crate::kms::check;

#[path = "../../crates/ron-kms/src/api/transit/der.rs"]
mod der;

/// Tries one input.
pub fn run(data: &[u8]) {
    let kinds: &[fn(&[u8])] = &[
        check::<Crypt>,
        check::<Sign>,
        check::<Datakey>,
        check::<Draw>,
        check::<Create>,
        check::<Configure>,
    ];
    for kind in kinds {
        kind(data);
    }
    if let Some(raw) = der::from_der(data) {
        assert_eq!(der::der(raw), data, "another form of the same signature");
    }
    if let Some(raw) = data.first_chunk::<64>() {
        assert_eq!(der::from_der(&der::der(*raw)), Some(*raw));
    }
}
