//! Client secrets at rest: Argon2id in the PHC string format.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};

use crate::{
    ct,
    kdf::{Argon2Params, argon2id},
    rand,
};

/// Hashes a secret for storage, with a fresh salt: `$argon2id$v=19$m=19456,t=2,p=1$salt$hash`.
/// Takes about 20 ms and 19 MiB, so bound how many run at once.
#[must_use]
pub fn hash_secret(secret: &[u8]) -> String {
    let salt = rand::bytes::<16>();
    let params = Argon2Params::INTERACTIVE;
    let hash = argon2id(secret, &salt, params).expect("our own parameters are in range");
    let Argon2Params {
        memory_kib,
        passes,
        lanes,
    } = params;
    let (salt, hash) = (
        STANDARD_NO_PAD.encode(salt),
        STANDARD_NO_PAD.encode(hash.expose()),
    );
    format!("$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${hash}")
}

/// True when the secret is the one that was hashed. A text that is not such a hash, or asks for
/// more memory or time than we give, verifies nothing.
#[must_use]
pub fn verify_secret(secret: &[u8], phc: &str) -> bool {
    let Some(stored) = Stored::parse(phc) else {
        return false;
    };
    argon2id(secret, &stored.salt, stored.params)
        .is_ok_and(|hash| ct::eq(hash.expose(), &stored.hash))
}

/// True when a text is a hash that [`verify_secret`] can check; for validating configuration.
#[must_use]
pub fn is_hash(phc: &str) -> bool {
    Stored::parse(phc).is_some()
}

struct Stored {
    params: Argon2Params,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

impl Stored {
    fn parse(phc: &str) -> Option<Self> {
        let rest = phc.strip_prefix("$argon2id$v=19$")?;
        let mut fields = rest.split('$');
        let (params, salt, hash) = (fields.next()?, fields.next()?, fields.next()?);
        let mut costs = params.split(',');
        let mut cost = |name: &str| costs.next()?.strip_prefix(name)?.parse::<u32>().ok();
        let params = Argon2Params {
            memory_kib: cost("m=")?,
            passes: cost("t=")?,
            lanes: cost("p=")?,
        };
        if fields.next().is_some() || costs.next().is_some() {
            return None;
        }
        let (salt, hash) = (
            STANDARD_NO_PAD.decode(salt).ok()?,
            STANDARD_NO_PAD.decode(hash).ok()?,
        );
        (hash.len() == 32).then_some(Self { params, salt, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_fits_its_secret_only() {
        let phc = hash_secret(b"correct horse");
        assert!(phc.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        assert!(is_hash(&phc));
        assert!(verify_secret(b"correct horse", &phc));
        assert!(!verify_secret(b"correct hors", &phc));
        assert!(!verify_secret(b"", &phc));
        assert_ne!(
            phc,
            hash_secret(b"correct horse"),
            "each hash has its own salt"
        );
    }

    /// A string made by the reference implementation.
    #[test]
    fn reads_what_others_wrote() {
        let phc = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$\
                   nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        assert!(verify_secret(b"password", phc));
        assert!(!verify_secret(b"passwore", phc));
    }

    #[test]
    fn bent_strings_verify_nothing() {
        let good = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$\
                    nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        let bend = |from: &str, to: &str| {
            let bent = good.replacen(from, to, 1);
            assert_ne!(bent, good);
            assert!(!verify_secret(b"password", &bent), "{bent}");
        };
        bend("argon2id", "argon2i");
        bend("v=19", "v=16");
        bend("m=256", "m=4294967295");
        bend("t=2", "t=4000000000");
        bend("m=256,t=2", "t=2,m=256");
        bend("p=1", "p=1,x=2");
        bend("/4", "/4$more");
        bend("/4", "");
        bend("nf65", "nf64");
    }
}
