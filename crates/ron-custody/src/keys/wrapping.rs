//! The keys that callers wrap imported keys to: made at start, kept in locked memory, never stored. A key that was
//! wrapped to an earlier process has to be wrapped again.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ron_crypto::OaepKey;
use ron_crypto::hash::sha256;
use ron_crypto::hpke::HpkeKey;
use ron_crypto::keyblob;
use ron_crypto::secret::{Secret32, SecretBytes};
use ron_crypto::wrap::unwrap_aes256_kwp;
use ron_kernel::Random;
use ron_proto::kms::{Bytes, Recipient, WrappingKeyDoc};
use ron_proto::values::{Alg, Kid, Purpose, Tenant, Timestamp};
use ron_tlog::note::{Note, NoteSigner};

use super::kem_of;
use crate::{Cause, Refusal};

/// First line of the statement about a wrapping key.
const STATEMENT: &str = "ron-kms/v1/wrapping-key";

struct WrappingKey {
    key: HpkeKey,
    doc: WrappingKeyDoc,
}

/// The wrapping keys of this process.
pub struct WrappingKeys(Vec<WrappingKey>);

impl WrappingKeys {
    /// Makes one for each wrapping algorithm, with a statement signed by the audit log's key.
    pub fn make(
        random: &dyn Random,
        signer: &dyn NoteSigner,
        created: Timestamp,
    ) -> Result<Self, String> {
        let algs = [Alg::X25519MlKem768, Alg::X25519HkdfAes256Gcm];
        let one = |alg: Alg| {
            let kem = kem_of(alg).ok_or("the algorithm wraps no keys")?;
            let key = HpkeKey::generate(kem, random);
            let public = key.public().to_vec();
            let text = format!(
                "{STATEMENT}\n{}\n{alg}\n{}\n{created}\n",
                signer.name(),
                STANDARD.encode(&public)
            );
            let note = Note::sign(&text, &[signer]).map_err(|e| e.to_string())?;
            let doc = WrappingKeyDoc {
                id: URL_SAFE_NO_PAD.encode(sha256(&public)),
                alg,
                public_key: Bytes(public),
                created,
                statement: note.to_string(),
            };
            Ok(WrappingKey { key, doc })
        };
        algs.into_iter()
            .map(one)
            .collect::<Result<_, String>>()
            .map(Self)
    }

    /// The public document of the key of this algorithm.
    pub fn doc(&self, alg: Alg) -> Option<&WrappingKeyDoc> {
        let docs = self.0.iter().map(|key| &key.doc);
        docs.into_iter().find(|doc| doc.alg == alg)
    }

    /// Decrypts a key that is to be imported.
    pub fn open(&self, id: &str, info: &[u8], wrapped: &[u8]) -> Result<SecretBytes, Refusal> {
        let refuse = |detail| Refusal::new(Cause::WrappedRefused, detail);
        let key = self.0.iter().find(|key| key.doc.id == id);
        let key = key.ok_or_else(|| {
            refuse("the wrapping key is not of this process; get /v1/kms/wrapping_key and wrap the key again")
        })?;
        keyblob::unwrap_key(&key.key, info, wrapped).ok_or_else(|| {
            refuse("it was wrapped to another key, for another tenant, purpose or algorithm, or was changed in transit")
        })
    }
}

/// The HPKE `info` that binds a wrapped key to its destination.
pub fn import_info(tenant: &Tenant, purpose: &Purpose, alg: Alg) -> Vec<u8> {
    format!("ron-kms/v1/import\0{tenant}/{purpose}/{alg}").into_bytes()
}

/// The HPKE `info` that binds an exported key to its origin.
pub fn export_info(kid: &Kid, version: u32) -> Vec<u8> {
    format!("ron-kms/v1/export\0{kid}#v{version}").into_bytes()
}

/// Wraps `secret` for `recipient`.
pub fn wrap_for(
    recipient: &Recipient,
    info: &[u8],
    secret: &SecretBytes,
    random: &dyn Random,
) -> Result<Bytes, Refusal> {
    let bad = |detail| Refusal::new(Cause::BadRequest, detail);
    let kem = kem_of(recipient.alg).ok_or_else(|| {
        bad("`recipient.alg` must be x25519-hkdf-aes256-gcm or x25519+ml-kem-768")
    })?;
    keyblob::wrap_key(kem, &recipient.public_key.0, info, secret.expose(), random)
        .map(Bytes)
        .ok_or_else(|| bad("`recipient.public_key` is not a public key of that algorithm"))
}

/// What Vault and AWS import: an AES-256 key under RSA-OAEP, and the key in AES-KWP under that one.
pub fn open_oaep_kwp(key: &OaepKey, wrapped: &[u8]) -> Option<SecretBytes> {
    let (to, rest) = wrapped.split_at_checked(key.size().modulus_len())?;
    let by = key.decrypt(b"", to)?;
    unwrap_aes256_kwp(&Secret32::try_from_bytes(&by)?, rest)
}

/// PKCS#8 of an Ed25519 key (RFC 8410), before its seed.
const ED25519_FRONT: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The bytes of a key as this service seals them, from those that Vault and AWS take: of Ed25519 the seed of its PKCS#8, of others
/// the same. `None` for a document of Ed25519 in another form.
pub fn plain_form(alg: Alg, raw: SecretBytes) -> Option<SecretBytes> {
    if alg != Alg::Ed25519 || raw.len() == 32 {
        return Some(raw);
    }
    let seed = raw.expose().strip_prefix(&ED25519_FRONT)?;
    (seed.len() == 32).then(|| SecretBytes::from_slice(seed))
}
