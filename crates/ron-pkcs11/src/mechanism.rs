//! The mechanisms: what each is, and its parameter.

use std::mem::size_of;

use cryptoki_sys::{
    CK_FLAGS, CK_KEY_TYPE, CK_MECHANISM_INFO, CK_MECHANISM_TYPE, CK_RSA_PKCS_MGF_TYPE, CK_ULONG,
    CKF_DIGEST, CKF_EC_F_P, CKF_EC_NAMEDCURVE, CKF_EC_UNCOMPRESS, CKF_HW, CKF_SIGN, CKF_VERIFY,
    CKG_MGF1_SHA256, CKG_MGF1_SHA384, CKG_MGF1_SHA512, CKK_EC, CKK_EC_EDWARDS, CKK_RSA, CKM_ECDSA,
    CKM_ECDSA_SHA256, CKM_ECDSA_SHA384, CKM_ECDSA_SHA512, CKM_EDDSA, CKM_RSA_PKCS,
    CKM_RSA_PKCS_PSS, CKM_SHA256, CKM_SHA256_RSA_PKCS, CKM_SHA256_RSA_PKCS_PSS, CKM_SHA384,
    CKM_SHA384_RSA_PKCS, CKM_SHA384_RSA_PKCS_PSS, CKM_SHA512, CKM_SHA512_RSA_PKCS,
    CKM_SHA512_RSA_PKCS_PSS, CKR_MECHANISM_INVALID, CKR_MECHANISM_PARAM_INVALID,
};
use ron_crypto::Sha2;

use crate::rv::Rv;

/// A way to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Over data that is hashed here, or else over a hash of the program.
    Ecdsa(Option<Sha2>),
    Eddsa,
    /// Over data that is hashed here, or else over a `DigestInfo` of the program.
    RsaPkcs1(Option<Sha2>),
    /// The salt is as long as the hash.
    RsaPss {
        by: Sha2,
        hashes: bool,
    },
}

/// What a number of the C interface stands for.
#[derive(Clone, Copy)]
enum Means {
    Signs(Mechanism),
    /// PSS takes its hash function from its parameter where the number does not name it.
    Pss(Option<Sha2>),
    Digests(Sha2),
}

/// The table of `docs/pkcs11-module.md`. The first RSA mechanism is one that hashes, because `pkcs11-tool --test` gives the first
/// one its own choice of data, for `CKM_RSA_PKCS` a hash by SHA-1.
const ALL: [(CK_MECHANISM_TYPE, Means); 16] = {
    use Means::{Digests, Pss, Signs};
    use Sha2::{Sha256, Sha384, Sha512};
    [
        (
            CKM_SHA256_RSA_PKCS,
            Signs(Mechanism::RsaPkcs1(Some(Sha256))),
        ),
        (
            CKM_SHA384_RSA_PKCS,
            Signs(Mechanism::RsaPkcs1(Some(Sha384))),
        ),
        (
            CKM_SHA512_RSA_PKCS,
            Signs(Mechanism::RsaPkcs1(Some(Sha512))),
        ),
        (CKM_RSA_PKCS, Signs(Mechanism::RsaPkcs1(None))),
        (CKM_SHA256_RSA_PKCS_PSS, Pss(Some(Sha256))),
        (CKM_SHA384_RSA_PKCS_PSS, Pss(Some(Sha384))),
        (CKM_SHA512_RSA_PKCS_PSS, Pss(Some(Sha512))),
        (CKM_RSA_PKCS_PSS, Pss(None)),
        (CKM_ECDSA, Signs(Mechanism::Ecdsa(None))),
        (CKM_ECDSA_SHA256, Signs(Mechanism::Ecdsa(Some(Sha256)))),
        (CKM_ECDSA_SHA384, Signs(Mechanism::Ecdsa(Some(Sha384)))),
        (CKM_ECDSA_SHA512, Signs(Mechanism::Ecdsa(Some(Sha512)))),
        (CKM_EDDSA, Signs(Mechanism::Eddsa)),
        (CKM_SHA256, Digests(Sha256)),
        (CKM_SHA384, Digests(Sha384)),
        (CKM_SHA512, Digests(Sha512)),
    ]
};

/// All numbers, in the order of the table.
pub fn numbers() -> impl Iterator<Item = CK_MECHANISM_TYPE> {
    ALL.iter().map(|(number, _)| *number)
}

fn means(number: CK_MECHANISM_TYPE) -> Result<Means, Rv> {
    let found = ALL.iter().find(|(known, _)| *known == number);
    found
        .map(|(_, means)| *means)
        .ok_or(Rv(CKR_MECHANISM_INVALID))
}

/// The mechanism of `C_SignInit` and `C_VerifyInit`.
pub fn signing(number: CK_MECHANISM_TYPE, parameter: &[u8]) -> Result<Mechanism, Rv> {
    match means(number)? {
        Means::Signs(mechanism) => without(parameter).map(|()| mechanism),
        Means::Pss(named) => {
            let by = pss_hash(parameter).ok_or(Rv(CKR_MECHANISM_PARAM_INVALID))?;
            if named.is_some_and(|named| named != by) {
                return Err(Rv(CKR_MECHANISM_PARAM_INVALID));
            }
            Ok(Mechanism::RsaPss {
                by,
                hashes: named.is_some(),
            })
        }
        Means::Digests(_) => Err(Rv(CKR_MECHANISM_INVALID)),
    }
}

/// The hash function of `C_DigestInit`.
pub fn digesting(number: CK_MECHANISM_TYPE, parameter: &[u8]) -> Result<Sha2, Rv> {
    match means(number)? {
        Means::Digests(by) => without(parameter).map(|()| by),
        Means::Signs(_) | Means::Pss(_) => Err(Rv(CKR_MECHANISM_INVALID)),
    }
}

/// Sizes of keys in bits, and uses. Signatures are made in the device, hashes in this process.
pub fn info(number: CK_MECHANISM_TYPE) -> Result<CK_MECHANISM_INFO, Rv> {
    let row = |(min, max): (CK_ULONG, CK_ULONG), flags: CK_FLAGS| CK_MECHANISM_INFO {
        ulMinKeySize: min,
        ulMaxKeySize: max,
        flags,
    };
    let signs = CKF_HW | CKF_SIGN | CKF_VERIFY;
    let curves = CKF_EC_F_P | CKF_EC_NAMEDCURVE | CKF_EC_UNCOMPRESS;
    Ok(match means(number)? {
        Means::Digests(_) => row((0, 0), CKF_DIGEST),
        Means::Signs(Mechanism::Ecdsa(_)) => row((256, 384), signs | curves),
        Means::Signs(Mechanism::Eddsa) => row((255, 255), signs | CKF_EC_NAMEDCURVE),
        Means::Signs(_) | Means::Pss(_) => row((2048, 4096), signs),
    })
}

impl Mechanism {
    /// The type of key that it takes.
    pub const fn key_kind(self) -> CK_KEY_TYPE {
        match self {
            Self::Ecdsa(_) => CKK_EC,
            Self::Eddsa => CKK_EC_EDWARDS,
            Self::RsaPkcs1(_) | Self::RsaPss { .. } => CKK_RSA,
        }
    }

    /// The function by which data is hashed here before it is signed.
    pub const fn hashes(self) -> Option<Sha2> {
        match self {
            Self::Ecdsa(by) | Self::RsaPkcs1(by) => by,
            Self::RsaPss { by, hashes: true } => Some(by),
            Self::RsaPss { hashes: false, .. } | Self::Eddsa => None,
        }
    }
}

fn without(parameter: &[u8]) -> Result<(), Rv> {
    if parameter.is_empty() {
        Ok(())
    } else {
        Err(Rv(CKR_MECHANISM_PARAM_INVALID))
    }
}

/// The hash function of `CK_RSA_PKCS_PSS_PARAMS`. `None` unless it is one of SHA-2, MGF1 uses the same, and the salt is as long
/// as the hash: the service makes no other form.
fn pss_hash(parameter: &[u8]) -> Option<Sha2> {
    const WORD: usize = size_of::<CK_ULONG>();
    let (words, rest) = parameter.as_chunks::<WORD>();
    let [hash, mgf, salt] = words else {
        return None;
    };
    let [hash, mgf, salt] = [hash, mgf, salt].map(|word| CK_ULONG::from_ne_bytes(*word));
    let (by, its_mgf): (_, CK_RSA_PKCS_MGF_TYPE) = match hash {
        CKM_SHA256 => (Sha2::Sha256, CKG_MGF1_SHA256),
        CKM_SHA384 => (Sha2::Sha384, CKG_MGF1_SHA384),
        CKM_SHA512 => (Sha2::Sha512, CKG_MGF1_SHA512),
        _ => return None,
    };
    let fits = rest.is_empty() && mgf == its_mgf && salt == by.size() as CK_ULONG;
    fits.then_some(by)
}

#[cfg(test)]
mod tests {
    use cryptoki_sys::{CKG_MGF1_SHA1, CKM_SHA_1, CKM_SHA1_RSA_PKCS};

    use super::*;

    fn pss(hash: CK_ULONG, mgf: CK_ULONG, salt: CK_ULONG) -> Vec<u8> {
        [hash, mgf, salt].map(CK_ULONG::to_ne_bytes).concat()
    }

    #[test]
    fn every_number_has_its_info_and_one_use() {
        for number in numbers() {
            let info = info(number).unwrap();
            let digests = digesting(number, &[]).is_ok();
            assert_eq!(digests, info.flags & CKF_DIGEST != 0, "{number:#x}");
            assert_eq!(!digests, info.flags & CKF_SIGN != 0, "{number:#x}");
        }
        assert_eq!(
            signing(CKM_SHA1_RSA_PKCS, &[]),
            Err(Rv(CKR_MECHANISM_INVALID))
        );
        assert_eq!(digesting(CKM_SHA_1, &[]), Err(Rv(CKR_MECHANISM_INVALID)));
    }

    #[test]
    fn parameters_of_pss_are_those_that_the_service_can_make() {
        let check = |number, parameter: Vec<u8>, good: bool| {
            let got = signing(number, &parameter);
            assert_eq!(got.is_ok(), good, "{parameter:?} {got:?}");
        };
        let good = pss(CKM_SHA256, CKG_MGF1_SHA256, 32);
        check(CKM_RSA_PKCS_PSS, good.clone(), true);
        check(CKM_SHA256_RSA_PKCS_PSS, good.clone(), true);
        check(CKM_SHA384_RSA_PKCS_PSS, good.clone(), false);
        check(CKM_RSA_PKCS_PSS, pss(CKM_SHA512, CKG_MGF1_SHA512, 64), true);
        check(
            CKM_RSA_PKCS_PSS,
            pss(CKM_SHA256, CKG_MGF1_SHA256, 20),
            false,
        );
        check(CKM_RSA_PKCS_PSS, pss(CKM_SHA256, CKG_MGF1_SHA1, 32), false);
        check(CKM_RSA_PKCS_PSS, pss(CKM_SHA_1, CKG_MGF1_SHA1, 20), false);
        check(CKM_RSA_PKCS_PSS, good[..23].to_vec(), false);
        check(CKM_RSA_PKCS_PSS, Vec::new(), false);
        check(CKM_ECDSA, good, false);
        check(CKM_ECDSA, Vec::new(), true);
    }
}
