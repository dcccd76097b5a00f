//! Argon2id: a key from a passphrase.

use zeroize::Zeroize;

use crate::secret::Secret32;

/// The cost of a derivation. Higher values are slower for us and for an attacker who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2Params {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    pub lanes: u32,
}

impl Argon2Params {
    /// For a key that is derived once at start: 64 MiB, 3 passes, 1 lane.
    pub const SEALING: Self = Self {
        memory_kib: 64 * 1024,
        passes: 3,
        lanes: 1,
    };
    /// The maximum accepted from stored parameters, so that altered ones cannot exhaust the host.
    pub const CEILING: Self = Self {
        memory_kib: 1024 * 1024,
        passes: 16,
        lanes: 16,
    };

    fn within_ceiling(self) -> bool {
        self.memory_kib <= Self::CEILING.memory_kib
            && self.passes <= Self::CEILING.passes
            && self.lanes <= Self::CEILING.lanes
    }
}

/// Why a derivation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KdfError {
    /// Memory, passes or lanes are out of range.
    #[error("Argon2id parameters are out of range; see Argon2Params for the limits")]
    Params,
    /// The salt is too short or too long, or memory ran out.
    #[error("Argon2id failed: the salt must have 8 to 64 bytes and the memory must be there")]
    Failed,
}

/// Derives 32 bytes with Argon2id version 1.3 (RFC 9106). The salt has 8 to 64 bytes.
pub fn argon2id(pass: &[u8], salt: &[u8], params: Argon2Params) -> Result<Secret32, KdfError> {
    if !params.within_ceiling() {
        return Err(KdfError::Params);
    }
    if !(8..=64).contains(&salt.len()) {
        return Err(KdfError::Failed);
    }
    let Argon2Params {
        memory_kib,
        passes,
        lanes,
    } = params;
    let params =
        argon2::Params::new(memory_kib, passes, lanes, Some(32)).map_err(|_| KdfError::Params)?;
    let blocks = params.block_count();
    let mut memory = vec![argon2::Block::default(); blocks];
    let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    let mut key = Secret32::zeroed();
    let outcome = argon2.hash_password_into_with_memory(pass, salt, key.expose_mut(), &mut memory);
    // The last blocks determine the key, and the library does not erase them.
    memory.iter_mut().for_each(Zeroize::zeroize);
    outcome.map_err(|_| KdfError::Failed)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of the reference implementation (version 0x13, one lane).
    #[test]
    fn argon2id_reference_vectors() {
        let check = |memory_kib, passes, pass: &str, salt: &str, expected: &str| {
            let params = Argon2Params {
                memory_kib,
                passes,
                lanes: 1,
            };
            let key = argon2id(pass.as_bytes(), salt.as_bytes(), params).expect("it derives");
            assert_eq!(hex::encode(key.expose()), expected);
        };
        check(
            256,
            2,
            "password",
            "somesalt",
            "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe",
        );
        check(
            65536,
            2,
            "password",
            "somesalt",
            "09316115d5cf24ed5a15a31a3ba326e5cf32edc24702987c02b6566f61913cf7",
        );
    }

    #[test]
    fn bad_parameters_are_refused() {
        let cheap = Argon2Params {
            memory_kib: 8,
            passes: 1,
            lanes: 1,
        };
        assert!(argon2id(b"p", b"somesalt", cheap).is_ok());
        let refused = |params| argon2id(b"p", b"somesalt", params).err();
        let err = Some(KdfError::Params);
        assert_eq!(
            refused(Argon2Params {
                memory_kib: 0,
                ..cheap
            }),
            err
        );
        assert_eq!(
            refused(Argon2Params {
                memory_kib: u32::MAX,
                ..cheap
            }),
            err
        );
        assert_eq!(refused(Argon2Params { passes: 0, ..cheap }), err);
        assert_eq!(
            refused(Argon2Params {
                passes: 17,
                ..cheap
            }),
            err
        );
        assert_eq!(refused(Argon2Params { lanes: 0, ..cheap }), err);
        assert_eq!(
            argon2id(b"p", b"short", cheap).err(),
            Some(KdfError::Failed)
        );
    }
}
