//! Envelope operations on the signer pool: wrap, unwrap, rewrap, data keys, MACs, random bytes.
//!
//! Leaves and remembered answers never hold a plaintext or its hash: a reader of
//! the log could guess short plaintexts from a hash. A repeated unwrap or data key is decrypted again.

use ron_crypto::ct;
use ron_crypto::hash::{hmac_sha256, sha256};
use ron_custody::backend::Custody;
use ron_custody::index::{Key, KeyIndex, Version};
use ron_custody::keys::derive::for_context;
use ron_custody::keys::{SecretKey, aead_of, envelope};
use ron_custody::{Cause, Refusal};
use ron_http::Principal;
use ron_kernel::Deadline;
use ron_proto::kms::{Bytes, KeyOp, PrivateBytes};
use ron_proto::values::{Alg, Kid, KidVersion, OpId};
use serde::{Deserialize, Serialize};

use super::Kms;
use super::answering::Answer;
use super::derive::{Derivation, Derived};
use super::operation::{Operation, Run, Stop};
use super::task_key::TaskKey;
use crate::audit::entry::Logged;
use crate::audit::leaf::{Draft, NO_MATCH, OK, Op};

#[derive(Clone)]
pub enum EnvelopeOp {
    Wrap(PrivateBytes),
    Unwrap(Bytes),
    /// Decrypt, then encrypt under the head version.
    Rewrap(Bytes),
    /// Make a key of this many bytes and wrap it; the flag says whether to show it.
    Datakey(usize, bool),
    Hmac(Bytes),
    HmacVerify(Bytes, Bytes),
    /// Derive a secret, and wrap it or make a MAC with it.
    Derive(Box<Derivation>),
    /// Draw this many bytes.
    Random(usize),
}

impl EnvelopeOp {
    /// The operation's name in leaves and metrics.
    pub const fn op(&self) -> Op {
        match self {
            Self::Wrap(_) => Op::Wrap,
            Self::Unwrap(_) => Op::Unwrap,
            Self::Rewrap(_) => Op::Rewrap,
            Self::Datakey(..) => Op::Datakey,
            Self::Hmac(_) => Op::Hmac,
            Self::HmacVerify(..) => Op::HmacVerify,
            Self::Derive(_) => Op::Derive,
            Self::Random(_) => Op::Random,
        }
    }

    /// The input whose hash may stand in the leaf; `None` for plaintexts.
    fn public_input(&self) -> Option<&Bytes> {
        match self {
            Self::Unwrap(text) | Self::Rewrap(text) | Self::HmacVerify(_, text) => Some(text),
            Self::Derive(what) => what.peer_public.as_ref(),
            Self::Wrap(_) | Self::Datakey(..) | Self::Hmac(_) | Self::Random(_) => None,
        }
    }
}

#[derive(Clone)]
pub struct EnvelopeTask {
    /// `None` for random bytes.
    pub key: Option<TaskKey>,
    pub version: Option<u32>,
    /// Whether `version` may be an older one that still encrypts, as Vault's paths allow; otherwise only the head does.
    pub older: bool,
    pub aad: Option<Bytes>,
    /// The context from which the key of this use is derived, for keys that ask for it; Vault's paths alone set it.
    pub key_context: Option<Bytes>,
    pub what: EnvelopeOp,
    /// A refusal that does not depend on the key: a limit, or a malformed field.
    pub flaw: Option<Refusal>,
    /// Operation id and SHA-256 of the whole request.
    pub op: Option<(OpId, [u8; 32])>,
    /// The caller's remark, for the leaf.
    pub context: Option<String>,
}

/// The result of an operation; which fields are set depends on the operation.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct EnvelopeOutput {
    /// The key, where the request names it by an alias, which may name another one when the answer is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// The key version that was used.
    pub version: Option<u32>,
    /// The version that decrypted a rewrapped text.
    pub from_version: Option<u32>,
    /// Header and body, see `docs/formats/envelope.md`.
    pub ciphertext: Option<Bytes>,
    /// A plaintext, data key or random bytes. Never in the journal.
    #[serde(skip)]
    pub plaintext: Option<PrivateBytes>,
    pub mac: Option<Bytes>,
    /// The key version that wrapped a derived secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapped_by: Option<KidVersion>,
    /// Whether a MAC matched; `None` where none was checked.
    pub ok: Option<bool>,
}

/// What a ciphertext is bound to, beside its key.
#[derive(Clone, Copy)]
struct Binding<'a> {
    pub aad: Option<&'a [u8]>,
    /// The context from which its key is derived.
    pub context: Option<&'a [u8]>,
}

impl EnvelopeTask {
    /// What the task's ciphertexts are bound to.
    fn binding(&self) -> Binding<'_> {
        Binding {
            aad: self.aad.as_ref().map(Bytes::as_slice),
            context: self.key_context.as_ref().map(Bytes::as_slice),
        }
    }

    /// The version that encrypts or makes the MAC, and its secret half.
    fn by<'a>(&self, key: &'a Key) -> Result<(&'a Version, &'a Custody), Refusal> {
        if self.older {
            return key.wrapping(self.version);
        }
        Ok((key.head_for(self.version)?, key.active_secret()?))
    }
}

impl Operation for EnvelopeTask {
    type Output = EnvelopeOutput;

    fn op(&self) -> Op {
        self.what.op()
    }

    fn task_key(&self) -> Option<&TaskKey> {
        self.key.as_ref()
    }

    fn task_key_mut(&mut self) -> Option<&mut TaskKey> {
        self.key.as_mut()
    }

    fn other_key(&self) -> Option<(&TaskKey, KeyOp)> {
        match &self.what {
            EnvelopeOp::Derive(what) => Some((what.wrapping_key()?, KeyOp::Wrap)),
            _ => None,
        }
    }

    fn other_key_mut(&mut self) -> Option<&mut TaskKey> {
        match &mut self.what {
            EnvelopeOp::Derive(what) => what.wrapping_key_mut(),
            _ => None,
        }
    }

    fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    fn op_id(&self) -> Option<(OpId, [u8; 32])> {
        self.op
    }

    fn draft(&self, caller: &Principal) -> Draft {
        let input = self.what.public_input();
        // A remark does not replace the name of the other key that was used.
        let wraps = self.other_key().and_then(|(key, _)| key.kid());
        let wraps = wraps.map(|kid| format!("wrapped by {kid}"));
        let notes = [wraps, self.context.clone()];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        Draft {
            context: (!notes.is_empty()).then(|| notes.join("; ")),
            input_sha256: input.map(|bytes| hex::encode(sha256(&bytes.0))),
            op_id: self.op.map(|(id, _)| id.to_string()),
            ..Draft::of(self.what.op(), caller, self.key())
        }
    }

    fn run(&self, at: &mut Run<'_>, draft: &mut Draft) -> Result<EnvelopeOutput, Stop> {
        let mut made = at.kms.try_envelope(at, self)?;
        let is_alias = |key: &&TaskKey| key.alias().is_some();
        let named = self.key.as_ref().filter(is_alias);
        made.key = named.and_then(TaskKey::kid).cloned();
        let output = made.ciphertext.as_ref().or(made.mac.as_ref());
        draft.output_sha256 = output.map(|o| hex::encode(sha256(&o.0)));
        draft.version = made.version;
        Ok(made)
    }

    fn result(made: &EnvelopeOutput) -> &'static str {
        if made.ok == Some(false) { NO_MATCH } else { OK }
    }

    /// Plaintexts are not remembered, so an unwrap or a shown data key is decrypted again, with the caller's present access.
    fn again(
        &self,
        index: &KeyIndex,
        (caller, deadline): (&Principal, Deadline),
        mut remembered: Logged<EnvelopeOutput>,
    ) -> Answer<EnvelopeOutput> {
        let text = match (&self.what, &remembered.output.ciphertext) {
            (EnvelopeOp::Unwrap(text), _) => text,
            (EnvelopeOp::Datakey(_, true), Some(text)) => text,
            _ => return Ok(remembered),
        };
        let Some(asked) = &self.key else {
            return Ok(remembered);
        };
        let kid = remembered.output.key.as_ref().or(asked.kid());
        let kid = kid.ok_or_else(crate::replay::unreadable_answer)?;
        let key = index.find(caller, kid)?;
        let (_, plaintext) = unwrap(key, self.binding(), &text.0, deadline)?;
        remembered.output.plaintext = Some(plaintext);
        Ok(remembered)
    }
}

impl Kms {
    fn try_envelope(&self, at: &Run<'_>, task: &EnvelopeTask) -> Result<EnvelopeOutput, Refusal> {
        let deadline = at.deadline;
        if let Some(flaw) = &task.flaw {
            return Err(flaw.clone());
        }
        let Some(asked) = &task.key else {
            let EnvelopeOp::Random(length) = task.what else {
                return Err(Refusal::new(Cause::Internal, "an operation without a key"));
            };
            return Ok(EnvelopeOutput {
                plaintext: Some(self.draw(length)),
                ..EnvelopeOutput::default()
            });
        };
        let key = at.key(asked)?;
        suits(key.kid.alg, task.what.op())?;
        let to = task.binding();
        match &task.what {
            EnvelopeOp::Wrap(plaintext) => {
                self.wrap(key, task.by(key)?, to, plaintext.expose(), deadline)
            }
            EnvelopeOp::Unwrap(text) => {
                let (version, plaintext) = unwrap(key, to, &text.0, deadline)?;
                Ok(EnvelopeOutput {
                    version: Some(version),
                    plaintext: Some(plaintext),
                    ..EnvelopeOutput::default()
                })
            }
            EnvelopeOp::Rewrap(text) => {
                let (from, plaintext) = unwrap(key, to, &text.0, deadline)?;
                let made = self.wrap(key, task.by(key)?, to, plaintext.expose(), deadline)?;
                Ok(EnvelopeOutput {
                    from_version: Some(from),
                    ..made
                })
            }
            EnvelopeOp::Datakey(length, show) => {
                let fresh = self.draw(*length);
                let made = self.wrap(key, task.by(key)?, to, fresh.expose(), deadline)?;
                Ok(EnvelopeOutput {
                    plaintext: show.then_some(fresh),
                    ..made
                })
            }
            EnvelopeOp::Hmac(message) => {
                let (version, secret) = task.by(key)?;
                let made = secret.mac(&message.0, deadline)?;
                Ok(EnvelopeOutput {
                    version: Some(version.number),
                    mac: Some(Bytes(made)),
                    ..EnvelopeOutput::default()
                })
            }
            EnvelopeOp::HmacVerify(message, given) => {
                check_mac(key, task.version, (&message.0, &given.0), deadline)
            }
            EnvelopeOp::Derive(what) => {
                let (version, secret) = what.secret(key, task.version)?;
                let made = self.use_derived(at, task, &what.output, secret.expose())?;
                Ok(EnvelopeOutput {
                    version: Some(version),
                    ..made
                })
            }
            EnvelopeOp::Random(_) => Err(Refusal::new(Cause::Internal, "random bytes need no key")),
        }
    }

    /// Encrypts under a version of the key.
    fn wrap(
        &self,
        key: &Key,
        (version, secret): (&Version, &Custody),
        to: Binding<'_>,
        plaintext: &[u8],
        deadline: Deadline,
    ) -> Result<EnvelopeOutput, Refusal> {
        envelope::check(key.kid.alg, to.aad, plaintext.len())?;
        check_context(key, to)?;
        let aad = to.aad.unwrap_or_default();
        let nonce = match secret.use_numbers() {
            Some(numbers) if aead_of(key.kid.alg).is_some() => {
                // A number is used up once it is taken, even if the steps after it fail.
                let number = self.use_number((&key.kid, version.number), numbers, deadline)?;
                Some(envelope::nonce(number, self.random.as_ref()))
            }
            _ => None,
        };
        let secret = match secret {
            Custody::Local(secret) => secret,
            Custody::Device(held) => {
                let wrapped = held.wrap(nonce, aad, plaintext, deadline)?;
                let header = envelope::header(key.kid.alg, version.number);
                return Ok(EnvelopeOutput {
                    version: Some(version.number),
                    ciphertext: Some(Bytes([&header[..], &wrapped].concat())),
                    ..EnvelopeOutput::default()
                });
            }
        };
        // The numbers are those of the key, so that no two uses of a derived key share one either.
        let derived = derived(secret, to)?;
        let ciphertext = envelope::seal(
            (&key.kid, version.number),
            (derived.as_ref().unwrap_or(secret), &version.public),
            nonce,
            aad,
            plaintext,
            self.random.as_ref(),
        );
        let ciphertext =
            ciphertext.ok_or_else(|| Refusal::new(Cause::Internal, "the key does not wrap"))?;
        Ok(EnvelopeOutput {
            version: Some(version.number),
            ciphertext: Some(Bytes(ciphertext)),
            ..EnvelopeOutput::default()
        })
    }

    /// Wraps a derived secret under the head of another key, or makes a MAC with it.
    fn use_derived(
        &self,
        at: &Run<'_>,
        task: &EnvelopeTask,
        output: &Derived,
        secret: &[u8],
    ) -> Result<EnvelopeOutput, Refusal> {
        let by = match output {
            Derived::Wrap(by) => at.key(by)?,
            Derived::Hmac(message) => {
                let mac = hmac_sha256(secret, &message.0).to_vec();
                return Ok(EnvelopeOutput {
                    mac: Some(Bytes(mac)),
                    ..EnvelopeOutput::default()
                });
            }
        };
        suits(by.kid.alg, Op::Wrap)?;
        let head = (by.head(), by.active_secret()?);
        let made = self.wrap(by, head, task.binding(), secret, at.deadline)?;
        Ok(EnvelopeOutput {
            wrapped_by: Some(by.kid.at(by.head)),
            ..made
        })
    }

    fn draw(&self, length: usize) -> PrivateBytes {
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes);
        PrivateBytes::new(bytes)
    }
}

/// Refuses operations that keys of this algorithm do not support.
fn suits(alg: Alg, op: Op) -> Result<(), Refusal> {
    let fits = match op {
        Op::Hmac | Op::HmacVerify => alg.is_mac(),
        Op::Derive => alg.derives(),
        _ => alg.wraps(),
    };
    if fits {
        return Ok(());
    }
    let detail = format!("{} is not an operation of {alg} keys", op.as_str());
    Err(Refusal::new(Cause::Unsupported, detail))
}

/// Decrypts with the version that the ciphertext's header names.
fn unwrap(
    key: &Key,
    to: Binding<'_>,
    text: &[u8],
    deadline: Deadline,
) -> Result<(u32, PrivateBytes), Refusal> {
    envelope::check_aad(key.kid.alg, to.aad)?;
    check_context(key, to)?;
    let aad = to.aad.unwrap_or_default();
    let (version, body) = envelope::parse(key.kid.alg, text)?;
    let secret = match custody_of(key, version)? {
        Custody::Local(secret) => secret,
        Custody::Device(held) => {
            let plaintext = held.unwrap(aad, body, deadline)?;
            return Ok((version, plaintext.expose().into()));
        }
    };
    let derived = derived(secret, to)?;
    let secret = derived.as_ref().unwrap_or(secret);
    let plaintext = envelope::open((&key.kid, version), secret, aad, body);
    let plaintext = plaintext.ok_or_else(envelope::refused)?;
    Ok((version, plaintext.expose().into()))
}

/// Refuses a use without the context that the key asks for, and with one that it does not.
fn check_context(key: &Key, to: Binding<'_>) -> Result<(), Refusal> {
    let detail = match (key.derived, to.context) {
        (true, Some(_)) | (false, None) => return Ok(()),
        (true, None) => {
            "each use of this key names a context from which its key is derived: use Vault's paths"
        }
        (false, Some(_)) => "this key is not derived: leave the context out",
    };
    Err(Refusal::new(Cause::Unsupported, detail))
}

/// The key of a use with a context.
fn derived(secret: &SecretKey, to: Binding<'_>) -> Result<Option<SecretKey>, Refusal> {
    let Some(context) = to.context else {
        return Ok(None);
    };
    let derived = for_context(secret, context);
    let none = || Refusal::new(Cause::Internal, "no key is derived from this one");
    derived.map(Some).ok_or_else(none)
}

/// The secret of a version that may still unwrap and verify. A version that does not exist is refused with the same
/// error as a ciphertext that does not decrypt.
fn custody_of(key: &Key, version: u32) -> Result<&Custody, Refusal> {
    if version > 0 && version < key.min_verify {
        return Err(Refusal::new(
            Cause::BadRequest,
            format!(
                "version {version} no longer unwraps; the minimum is {}",
                key.min_verify
            ),
        ));
    }
    if key.version(version).is_some_and(|found| found.damaged) {
        return Err(Refusal::quarantined(&key.kid, version));
    }
    let secret = key.secrets.get(&version);
    let secret = secret.filter(|_| version <= key.head().number);
    secret.ok_or_else(envelope::refused)?.open()
}

/// Tries the given version, or all versions from `min_verify` on, newest first, in constant time per version.
fn check_mac(
    key: &Key,
    wanted: Option<u32>,
    (message, given): (&[u8], &[u8]),
    deadline: Deadline,
) -> Result<EnvelopeOutput, Refusal> {
    let no_version = || {
        Refusal::new(Cause::NotFound, "the key has no such version").with_head(key.head().number)
    };
    let versions = match wanted {
        Some(number) => {
            key.version(number).ok_or_else(no_version)?;
            number..=number
        }
        None => key.min_verify..=key.head().number,
    };
    let mut made = EnvelopeOutput {
        ok: Some(false),
        ..EnvelopeOutput::default()
    };
    for version in versions.rev() {
        if ct::eq(&custody_of(key, version)?.mac(message, deadline)?, given) {
            made.ok = Some(true);
            made.version = Some(version);
            break;
        }
    }
    Ok(made)
}
