//! Bodies of the KMS's Vault Transit routes, of every kind: as the bodies of its own API. Also the DER of their signatures,
//! in which every signature has one form.

use ron_crypto::Curve;
use ron_crypto::ecdsa::{from_der, to_der};
use ron_proto::kms::transit::{Configure, Create, Crypt, Datakey, Draw, Sign};

use crate::kms::check;

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
    for curve in [Curve::P256, Curve::P384] {
        if let Some(raw) = from_der(curve, data) {
            assert_eq!(to_der(&raw), data, "another form of the same signature");
        }
        if let Some(raw) = data.get(..2 * curve.size()) {
            assert_eq!(from_der(curve, &to_der(raw)).as_deref(), Some(raw));
        }
    }
}
