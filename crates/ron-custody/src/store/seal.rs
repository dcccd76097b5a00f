//! Sealed records: private keys at rest, AES-256-GCM with the whole header as associated data.
//!
//! Sealing protects copies of the database (backups, stolen disks, a volume snapshot) that do not include the seal
//! key. It does not protect the host: an attacker who can read the seal key file, or this process, has the keys.
//! Against that, use a TPM or HSM backend.
//!
//! ```text
//! record  "RKMS" | format u8 = 1 | alg u8 | store id 16 | key name u16 + bytes | version u32
//!         | created u64 (unix ms) | public key u16 + bytes | nonce 12        <- header, the AAD
//!         | ciphertext of the private key | tag 16
//! ```
//! Numbers are big-endian. The encryption key comes from the seal key by HKDF-SHA-256 with the store id
//! as salt, so a record opens in its own store only. The nonce is 96 random bits; a store seals a
//! record once per key version, far below the 2^32 uses that random nonces allow.

use ron_crypto::aead::{open_aes256_gcm, seal_aes256_gcm};
use ron_crypto::hash::{HmacSha256, hkdf_sha256};
use ron_crypto::secret::{Secret32, SecretBytes};
use ron_kernel::Random;
use ron_proto::values::{Alg, Kid, Timestamp};

use crate::keys::public_len;
use crate::keys::{PublicKey, SecretKey};

const MAGIC: &[u8; 4] = b"RKMS";
const FORMAT: u8 = 1;
const NONCE_BYTES: usize = 12;
/// Derives the key of backups, and is authenticated with them.
const BACKUP: &[u8] = b"ron-kms/v1/backup";

/// What a record is bound to; the seal authenticates every field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordName {
    /// `tenant/purpose/alg/uuid`, or the fixed name of the log key.
    pub key: String,
    /// From 1.
    pub version: u32,
    /// Algorithm of the private key.
    pub alg: Alg,
    /// When it was made.
    pub created: Timestamp,
}

impl RecordName {
    /// The name of a key's version.
    pub fn of(kid: &Kid, version: u32, created: Timestamp) -> Self {
        Self {
            key: kid.to_string(),
            version,
            alg: kid.alg,
            created,
        }
    }
}

/// Which of two is right where a record and the sum beside it (its MAC or its hash) differ. The MAC of the store decides:
/// it covers the sums, so only one of both readings of a damaged store can match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The record was damaged.
    Sums,
    /// The sum was damaged.
    Records,
}

/// Why a record does not open. Names the key, never its content.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("sealed key {name} is refused: {why}")]
pub struct SealError {
    /// `key#vN`.
    pub name: String,
    /// What is wrong with it, and what to do.
    pub why: String,
}

pub(super) fn refuse(name: &RecordName, why: &'static str) -> SealError {
    SealError {
        name: format!("{}#v{}", name.key, name.version),
        why: format!("{why}. Restore the store from a backup made with this seal key"),
    }
}

/// The refusal of a newer format. Corruption can cause it too; the record is not used in either case.
fn newer(name: String, found: u8) -> SealError {
    SealError {
        name,
        why: format!(
            "its record in keys.db is of format {found}, this program knows up to {FORMAT}; use a newer program, or restore the store from a backup"
        ),
    }
}

/// Seals and opens the records of one store.
pub struct Sealer {
    store_id: [u8; 16],
    record_key: Secret32,
    mac_key: Secret32,
    backup_key: Secret32,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer([secret])")
    }
}

impl Sealer {
    pub fn store_id(&self) -> [u8; 16] {
        self.store_id
    }

    /// The sealer of the store `store_id` under `seal_key`.
    pub fn new(seal_key: &Secret32, store_id: [u8; 16]) -> Self {
        let derive = |salt: &[u8], info: &[u8]| {
            let mut out = Secret32::zeroed();
            hkdf_sha256(salt, seal_key.expose(), info, out.expose_mut());
            out
        };
        Self {
            store_id,
            record_key: derive(&store_id, b"ron-kms/v1/record"),
            mac_key: derive(&store_id, b"ron-kms/v1/metadata"),
            // Of no store: a backup is for when this one is lost.
            backup_key: derive(&[], BACKUP),
        }
    }

    /// Seals the private key `secret`, whose public half is `public`.
    pub fn seal(
        &self,
        name: &RecordName,
        public: &PublicKey,
        secret: &SecretBytes,
        random: &dyn Random,
    ) -> Vec<u8> {
        let mut nonce = [0_u8; NONCE_BYTES];
        random.fill(&mut nonce);
        let mut record = self.header(name, public.raw());
        record.extend_from_slice(&nonce);
        let sealed = seal_aes256_gcm(&self.record_key, &nonce, &record, secret.expose());
        record.extend_from_slice(&sealed);
        record
    }

    /// Opens `record`, which must have been sealed under `name`, and checks that the private key
    /// belongs to the public key in the header.
    pub fn open(
        &self,
        name: &RecordName,
        record: &[u8],
    ) -> Result<(SecretKey, PublicKey), SealError> {
        let (secret, public) = self.open_bytes(name, record)?;
        let key = SecretKey::from_secret(name.alg, &secret)
            .ok_or_else(|| refuse(name, "it does not hold a key of its algorithm"))?;
        if key.public() != public {
            return Err(refuse(
                name,
                "its public key does not belong to its private key",
            ));
        }
        Ok((key, public))
    }

    /// Opens `record`, which must have been sealed under `name`. Returns the sealed bytes and the public key in the
    /// header, without checking that they belong together.
    pub fn open_bytes(
        &self,
        name: &RecordName,
        record: &[u8],
    ) -> Result<(SecretBytes, PublicKey), SealError> {
        let (header, public) = self.split(name, record)?;
        let aad_len = header + NONCE_BYTES;
        if record.len() <= aad_len {
            return Err(refuse(name, "the record is cut short"));
        }
        let (aad, sealed) = record.split_at(aad_len);
        let nonce = aad[header..].try_into().expect("the nonce ends the header");
        let secret = open_aes256_gcm(&self.record_key, nonce, aad, sealed).ok_or_else(|| {
            refuse(
                name,
                "its bytes were changed, or it was sealed with another seal key",
            )
        })?;
        let public = PublicKey::from_raw(name.alg, public)
            .ok_or_else(|| refuse(name, "it does not hold a key of its algorithm"))?;
        Ok((secret, public))
    }

    /// Seals the backup of a key: nonce, ciphertext, tag.
    pub fn seal_backup(&self, plain: &[u8], random: &dyn Random) -> Vec<u8> {
        let mut nonce = [0_u8; NONCE_BYTES];
        random.fill(&mut nonce);
        let sealed = seal_aes256_gcm(&self.backup_key, &nonce, BACKUP, plain);
        [&nonce[..], &sealed].concat()
    }

    /// Opens what [`Self::seal_backup`] made under the same seal key.
    pub fn open_backup(&self, sealed: &[u8]) -> Option<SecretBytes> {
        let (nonce, sealed) = sealed.split_first_chunk()?;
        open_aes256_gcm(&self.backup_key, nonce, BACKUP, sealed)
    }

    /// What remains of a record whose private key was destroyed: the header, without the nonce. Not
    /// authenticated by itself; the store's MAC covers it.
    pub fn erased(&self, name: &RecordName, public: &PublicKey) -> Vec<u8> {
        self.header(name, public.raw())
    }

    /// Refuses a record of a newer program.
    pub fn refuse_newer(
        (key, version): (&dyn std::fmt::Display, u32),
        record: &[u8],
    ) -> Result<(), SealError> {
        match record.get(MAGIC.len()) {
            Some(&format) if record.starts_with(MAGIC) && format > FORMAT => {
                Err(newer(format!("{key}#v{version}"), format))
            }
            _ => Ok(()),
        }
    }

    /// What the header of a record of this key states, without a check of its seal: when the version was made, and its public
    /// key.
    pub fn stated<'a>(key: &str, record: &'a [u8]) -> Option<(Timestamp, &'a [u8])> {
        // Magic, format, algorithm, store id, length of the name, name, version.
        let at = MAGIC.len() + 2 + 16 + 2 + key.len() + 4;
        let (created, rest) = record.get(at..)?.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let public = rest.get(..usize::from(u16::from_be_bytes(*len)))?;
        Some((Timestamp(u64::from_be_bytes(*created)), public))
    }

    /// The length of the header of `record` (the nonce follows), and the public key in it.
    fn split<'a>(
        &self,
        name: &RecordName,
        record: &'a [u8],
    ) -> Result<(usize, &'a [u8]), SealError> {
        let at = self.header(name, &[]).len();
        let end = at + public_len(name.alg);
        let public = record
            .get(at..end)
            .ok_or_else(|| refuse(name, "the record is cut short"))?;
        Self::refuse_newer((&name.key, name.version), record)?;
        // The whole header must match, so that a record cannot be moved to another name, version or store.
        if record[..end] != self.header(name, public)[..] {
            return Err(refuse(
                name,
                "its header was changed or belongs to another record",
            ));
        }
        Ok((end, public))
    }

    /// Makes the MACs of many rows.
    pub fn macs(&self) -> Macs {
        Macs(HmacSha256::new(self.mac_key.expose()))
    }

    /// MAC of public metadata, bound to its name `about`.
    pub fn mac(&self, about: &str, data: &[u8]) -> [u8; 32] {
        self.macs().of(about, [data])
    }

    fn header(&self, name: &RecordName, public_raw: &[u8]) -> Vec<u8> {
        let alg = Alg::ALL
            .iter()
            .position(|a| *a == name.alg)
            .expect("ALL holds every algorithm");
        let public_len = public_len(name.alg) as u16;
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[FORMAT, alg as u8]);
        out.extend_from_slice(&self.store_id);
        out.extend_from_slice(&(name.key.len() as u16).to_be_bytes());
        out.extend_from_slice(name.key.as_bytes());
        out.extend_from_slice(&name.version.to_be_bytes());
        out.extend_from_slice(&name.created.0.to_be_bytes());
        out.extend_from_slice(&public_len.to_be_bytes());
        out.extend_from_slice(public_raw);
        out
    }
}

/// The key of a store's MACs, ready for many of them.
pub struct Macs(HmacSha256);

impl Macs {
    /// MAC of public metadata, bound to its name `about`.
    pub fn of<const N: usize>(&self, about: &str, data: [&[u8]; N]) -> [u8; 32] {
        // The length in front keeps `about` and `data` apart: no two pairs give the same bytes.
        let len = (about.len() as u64).to_be_bytes();
        let name = [&len[..], about.as_bytes()];
        self.0.mac(name.into_iter().chain(data))
    }

    /// MAC of the index of the leaf that records the making of a version, and of the log that it is in, unless that is the first.
    pub fn birth(&self, key: &str, version: u32, (log, birth): (Option<&str>, u64)) -> [u8; 32] {
        let log = log.unwrap_or_default().as_bytes();
        self.of(
            &format!("birth {key}#v{version}"),
            [&birth.to_be_bytes(), log],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::SeededRandom;

    fn sealer(fill: u8, store: u8) -> Sealer {
        Sealer::new(&Secret32::new([fill; 32]), [store; 16])
    }

    fn name(alg: Alg) -> RecordName {
        RecordName {
            key: format!("ron/issuer/{alg}/0190f0a0-0000-7000-8000-000000000000"),
            version: 3,
            alg,
            created: Timestamp(1_700_000_000_000),
        }
    }

    #[test]
    fn one_changed_byte_anywhere_is_refused_by_name() {
        for alg in Alg::ALL {
            let random = SeededRandom::new(5);
            let (key, secret) = SecretKey::generate(alg, &random);
            let sealer = sealer(1, 1);
            let record = sealer.seal(&name(alg), &key.public(), &secret, &random);
            let (again, public) = sealer.open(&name(alg), &record).expect("opens");
            assert_eq!(again.public(), key.public());
            assert_eq!(public, key.public());
            for at in 0..record.len() {
                let mut bad = record.clone();
                bad[at] ^= 1;
                let error = sealer.open(&name(alg), &bad).expect_err("changed");
                assert!(error.name.ends_with("#v3"), "byte {at}: {error}");
            }
            for len in 0..record.len() {
                assert!(
                    sealer.open(&name(alg), &record[..len]).is_err(),
                    "cut at {len}"
                );
            }
            let mut longer = record.clone();
            longer.push(0);
            assert!(sealer.open(&name(alg), &longer).is_err());
        }
    }

    #[test]
    fn a_record_opens_under_its_own_name_key_and_store_only() {
        let random = SeededRandom::new(5);
        let (key, secret) = SecretKey::generate(Alg::Ed25519, &random);
        let good = name(Alg::Ed25519);
        let record = sealer(1, 1).seal(&good, &key.public(), &secret, &random);
        let check = |sealer: &Sealer, name: &RecordName, ok: bool| {
            assert_eq!(sealer.open(name, &record).is_ok(), ok, "{name:?}");
        };
        check(&sealer(1, 1), &good, true);
        check(&sealer(2, 1), &good, false);
        check(&sealer(1, 2), &good, false);
        check(
            &sealer(1, 1),
            &RecordName {
                version: 2,
                ..good.clone()
            },
            false,
        );
        check(
            &sealer(1, 1),
            &RecordName {
                key: good.key.replace("issuer", "issues"),
                ..good.clone()
            },
            false,
        );
        check(
            &sealer(1, 1),
            &RecordName {
                created: Timestamp(1),
                ..good.clone()
            },
            false,
        );
        check(
            &sealer(1, 1),
            &RecordName {
                alg: Alg::EcdsaP256,
                ..good.clone()
            },
            false,
        );
    }
}
