//! Receipt files: made from a record and its proof, and verified offline with SHA-256 and Ed25519
//! alone. Pure. Format: `docs/formats/receipt.md`.

use ron_crypto::hash::sha256;
use ron_proto::Tenant;
use ron_proto::ledger::{
    Hash64, HiddenPart, PrincipalName, PrivateFacts, PrivatePart, PrivateParts, RECEIPT_FORMAT,
    Receipt, ReceiptFile, ShownPart,
};
use ron_tlog::checkpoint::CheckpointFault;
use ron_tlog::policy::PolicyFault;
use ron_tlog::tree::{leaf_hash, verify_inclusion};
use ron_tlog::{Checkpoint, Note, Policy, TlogProof, VerifierKey};

use crate::answers;
use crate::core::{
    DecodeError, Layout, Part, PublicLeaf, SALT, Table, read_caller, read_metadata, read_text,
};

/// The receipt file of a record, with every part of its private record shown that was not erased.
pub fn file(
    leaf: Vec<u8>,
    private: &[u8],
    proof: TlogProof,
    vkey: String,
) -> Result<ReceiptFile, DecodeError> {
    Ok(ReceiptFile {
        format: RECEIPT_FORMAT.to_owned(),
        leaf,
        private: Some(parts(private)?),
        path: proof.hashes.into_iter().map(Hash64).collect(),
        checkpoint: proof.checkpoint,
        vkey,
    })
}

fn parts(private: &[u8]) -> Result<PrivateParts, DecodeError> {
    let (salt, openings) = Layout::of(private)?.openings(private);
    let part = |part: Part| {
        let found = openings.iter().find(|o| o.part == part)?;
        Some(match found.opening {
            Some((salt, bytes)) => PrivatePart::Shown(ShownPart {
                salt: salt.to_vec(),
                bytes: bytes.to_vec(),
            }),
            None => PrivatePart::Hidden(HiddenPart {
                hash: Hash64(found.hash),
            }),
        })
    };
    let absent = || DecodeError {
        at: 0,
        why: "the private record has no caller".to_owned(),
    };
    Ok(PrivateParts {
        salt: salt.to_vec(),
        caller: part(Part::Caller).ok_or_else(absent)?,
        memo: part(Part::Memo),
        metadata: part(Part::Metadata),
        reference: part(Part::Reference),
    })
}

/// Why a receipt file proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptFault {
    #[error("it is not a receipt file: {0}")]
    Format(String),
    #[error("it is of the log `{0}`, not of the log whose key is trusted")]
    OtherLog(String),
    #[error("its checkpoint: {0}")]
    Checkpoint(#[from] CheckpointFault),
    #[error("its checkpoint does not satisfy the policy: {0}")]
    Policy(#[from] PolicyFault),
    #[error("its leaf cannot be read: {0}")]
    Leaf(DecodeError),
    #[error("its leaf is not in the log that the checkpoint signs: {0}")]
    Path(String),
    #[error("the entry was refused, so nothing was moved")]
    Refused,
    #[error("its private part is not the one that the leaf was made with")]
    Private,
    #[error("its private part cannot be read: {0}")]
    PrivateBytes(String),
}

/// What a receipt file proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    pub receipt: Receipt,
    /// What the file shows of the private side.
    pub private: PrivateFacts,
    /// The name that the entry was made for, if the file shows it.
    pub maker: Option<(Tenant, PrincipalName)>,
    pub checkpoint: Checkpoint,
    /// Witnesses of the policy that have cosigned the checkpoint.
    pub witnesses: Vec<String>,
}

/// Reads a receipt file.
pub fn read(json: &[u8]) -> Result<ReceiptFile, ReceiptFault> {
    let bad = |why: String| ReceiptFault::Format(why);
    let file: ReceiptFile = ron_proto::strict::from_slice(json).map_err(|e| bad(e.to_string()))?;
    if file.format != RECEIPT_FORMAT {
        return Err(bad(format!(
            "its format is not {RECEIPT_FORMAT}; a newer version may have written it"
        )));
    }
    Ok(file)
}

/// Verifies a receipt file against the log key `trusted`, and against a witness policy if there is
/// one.
pub fn verify(
    file: &ReceiptFile,
    trusted: &VerifierKey,
    policy: Option<&Policy>,
) -> Result<Proven, ReceiptFault> {
    let named = VerifierKey::parse(&file.vkey)
        .map_err(|e| ReceiptFault::Format(format!("its vkey: {e}")))?;
    if named != *trusted {
        return Err(ReceiptFault::OtherLog(named.name().to_owned()));
    }
    let keys = std::slice::from_ref(trusted);
    let origin = Some(trusted.name());
    let checkpoint = Checkpoint::open(&file.checkpoint, keys, origin)?;
    let mut witnesses = Vec::new();
    if let Some(policy) = policy {
        policy.check(&file.checkpoint, keys, origin)?;
        let note = Note::parse(&file.checkpoint).map_err(CheckpointFault::from)?;
        let cosigned = policy.cosigners(&note).into_iter();
        witnesses.extend(cosigned.map(|at| policy.witnesses[at].name.clone()));
    }
    let leaf = PublicLeaf::decode(&file.leaf).map_err(ReceiptFault::Leaf)?;
    let hash = leaf_hash(&file.leaf);
    let path: Vec<[u8; 32]> = file.path.iter().map(|h| h.0).collect();
    verify_inclusion(&hash, leaf.seq, checkpoint.size, &path, &checkpoint.root)
        .map_err(|e| ReceiptFault::Path(e.to_string()))?;
    let receipt = answers::receipt(&leaf, hash).ok_or(ReceiptFault::Refused)?;
    let (private, maker) = match &file.private {
        Some(parts) => read_private(parts, &leaf.private_hash)?,
        None => (PrivateFacts::default(), None),
    };
    Ok(Proven {
        receipt,
        private,
        maker,
        checkpoint,
        witnesses,
    })
}

type Maker = Option<(Tenant, PrincipalName)>;

fn read_private(
    parts: &PrivateParts,
    private_hash: &[u8; 32],
) -> Result<(PrivateFacts, Maker), ReceiptFault> {
    let salt = parts.salt.as_slice();
    let mut table = Table::new(salt.try_into().map_err(|_| ReceiptFault::Private)?);
    let texts = [
        (Part::Caller, Some(&parts.caller)),
        (Part::Memo, parts.memo.as_ref()),
        (Part::Metadata, parts.metadata.as_ref()),
        (Part::Reference, parts.reference.as_ref()),
    ];
    for (part, shown) in texts {
        if let Some(shown) = shown {
            table.add(part, &hash_of(shown).ok_or(ReceiptFault::Private)?);
        }
    }
    if table.hash() != *private_hash {
        return Err(ReceiptFault::Private);
    }
    let bad = |e: DecodeError| ReceiptFault::PrivateBytes(e.to_string());
    let mut facts = PrivateFacts::default();
    let mut maker = None;
    if let PrivatePart::Shown(part) = &parts.caller {
        let caller = read_caller(&part.bytes).map_err(bad)?;
        let header = caller.header;
        facts.idem = header.key.as_ref().map(ToString::to_string);
        facts.nonce = caller.nonce;
        facts.effective_at = header.effective_at;
        maker = Some((header.tenant, header.principal));
    }
    facts.memo = shown(parts.memo.as_ref(), read_text).map_err(bad)?;
    facts.metadata = shown(parts.metadata.as_ref(), read_metadata).map_err(bad)?;
    facts.reference = shown(parts.reference.as_ref(), read_text).map_err(bad)?;
    Ok((facts, maker))
}

fn shown<T>(
    part: Option<&PrivatePart>,
    read: fn(&[u8]) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    match part {
        Some(PrivatePart::Shown(part)) => read(&part.bytes).map(Some),
        Some(PrivatePart::Hidden(_)) | None => Ok(None),
    }
}

/// The hash of a part; `None` when its salt has another length than all salts: another split of salt and bytes would have
/// the same hash.
fn hash_of(part: &PrivatePart) -> Option<[u8; 32]> {
    match part {
        PrivatePart::Shown(part) => {
            (part.salt.len() == SALT).then(|| sha256(&[part.salt.as_slice(), &part.bytes].concat()))
        }
        PrivatePart::Hidden(part) => Some(part.hash.0),
    }
}
