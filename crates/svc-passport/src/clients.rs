//! OAuth clients and their secrets: slow hashes, checked by two threads at most, remembered fast.

use std::collections::BTreeMap;

use ron_crypto::{ct, hash, password, rand};
use ron_kernel::{Credits, RankedMutex};
use ron_proto::Problem;

use crate::topology::CLIENT_CACHE;

/// Secrets checked at once; each takes about 20 ms and 19 MiB.
const CHECKS_MAX: usize = 2;
/// Longest secret, in bytes.
const SECRET_BYTES_MAX: usize = 256;

/// Who a client is: name and the Argon2id hash of its secret (PHC text).
#[derive(Clone, PartialEq, Eq)]
pub struct Client {
    /// `client_id`.
    pub id: String,
    /// `$argon2id$...`.
    pub secret_hash: String,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Checks client secrets.
#[derive(Debug)]
pub struct Clients {
    hashes: BTreeMap<String, String>,
    checks: Credits,
    /// Key of the remembered hashes: made at start, never stored.
    memory_key: [u8; 32],
    /// Client -> keyed hash of the secret that was verified last.
    remembered: RankedMutex<BTreeMap<String, [u8; 32]>>,
}

impl Clients {
    /// From the configuration.
    pub fn new(clients: Vec<Client>) -> Self {
        Self {
            hashes: clients.into_iter().map(|c| (c.id, c.secret_hash)).collect(),
            checks: Credits::new(CHECKS_MAX),
            memory_key: rand::bytes(),
            remembered: RankedMutex::new(&CLIENT_CACHE, BTreeMap::new()),
        }
    }

    /// Succeeds when `secret` is the client's. An unknown client costs as much as a wrong secret.
    pub fn check(&self, id: &str, secret: &str) -> Result<(), Problem> {
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            return Err(invalid_client());
        }
        let mut keyed = Vec::with_capacity(id.len() + secret.len() + 1);
        keyed.extend_from_slice(id.as_bytes());
        keyed.push(0);
        keyed.extend_from_slice(secret.as_bytes());
        let tag = hash::hmac_sha256(&self.memory_key, &keyed);
        if self
            .remembered
            .lock()
            .get(id)
            .is_some_and(|known| ct::eq(known, &tag))
        {
            return Ok(());
        }
        let _check = self.checks.try_acquire().ok_or_else(|| Problem::busy(1))?;
        let stored = self.hashes.get(id);
        let right =
            password::verify_secret(secret.as_bytes(), stored.map_or(DUMMY, String::as_str));
        if stored.is_none() || !right {
            return Err(invalid_client());
        }
        self.remembered.lock().insert(id.to_owned(), tag);
        Ok(())
    }
}

/// The hash of a secret that nobody has: what an unknown client's secret is compared with.
const DUMMY: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn invalid_client() -> Problem {
    Problem::unauthorized("the client is unknown or its secret is wrong")
        .with_oauth("invalid_client")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_secret_of_a_known_client_passes_and_is_remembered() {
        let clients = Clients::new(vec![Client {
            id: "operator".to_owned(),
            secret_hash: password::hash_secret(b"correct horse"),
        }]);
        assert!(clients.check("operator", "correct horse").is_ok());
        let remembered = clients.remembered.lock().len();
        assert_eq!(remembered, 1);
        assert!(clients.check("operator", "correct horse").is_ok());
        for (id, secret) in [
            ("operator", "wrong"),
            ("operator", ""),
            ("nobody", "correct horse"),
        ] {
            let got = clients.check(id, secret).unwrap_err();
            assert_eq!(
                (got.status, got.oauth),
                (401, Some("invalid_client")),
                "{id}"
            );
        }
        let busy: Vec<_> = (0..CHECKS_MAX)
            .map(|_| clients.checks.try_acquire().unwrap())
            .collect();
        assert_eq!(clients.check("operator", "other").unwrap_err().status, 429);
        assert!(
            clients.check("operator", "correct horse").is_ok(),
            "remembered needs no check"
        );
        drop(busy);
    }
}
