//! One leaf of the audit log: canonical JSON, at most 4 KiB, the same fields for every operation.

use ron_http::{Principal, Trace};
use ron_proto::kms::{GatedOp, KeyOp};
use ron_proto::strict;
use ron_proto::values::Kid;
use serde::{Deserialize, Serialize};

use crate::replay::Answered;
pub use ron_custody::{NO_MATCH, OK};

/// Longest leaf, in bytes.
pub const LEAF_BYTES_MAX: usize = 4 * 1024;
/// Format of the leaves written now.
pub const LEAF_VERSION: u64 = 2;
/// The first format with [`Leaf::request_id`]; it is all that format 1 lacks.
const REQUEST_ID_SINCE: u64 = 2;

macro_rules! operations {
    ($($(#[$doc:meta])* $op:ident = $name:literal $changes:literal,)*) => {
        /// The operation that a leaf records, done or refused.
        #[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Op {
            $($(#[$doc])* #[serde(rename = $name)] $op,)*
        }

        impl Op {
            /// The name in leaves and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$op => $name,)*
                }
            }

            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$op),)*
                    _ => None,
                }
            }

            /// Whether the operation, when done, increments the store version.
            pub const fn changes_store(self) -> bool {
                match self {
                    $(Self::$op => $changes,)*
                }
            }
        }
    };
}

// The name, and whether the operation changes the store.
operations! {
    Start = "start" false,
    /// The service stopped in order.
    Stop = "stop" false,
    /// Another node with the same keys has an audit log; `context` is the verifier key of its newest key.
    PeerLog = "peer_log" false,
    /// A configuration was loaded while running.
    Reload = "reload" false,
    /// An operator had the service believe the machine's date; `context` says how far it was from the service's own.
    AcceptDate = "accept_date" false,
    /// An operator accepted that answers to operation ids are lost; `context` says which.
    ForgetAnswers = "forget_answers" false,
    /// The first leaf of a log that follows a restore from a backup; `context` has the log before, and what is not known of the time since.
    Recover = "recover" false,
    /// A key was made.
    Create = "create" true,
    /// An object of a device became a key; `context` names it.
    Adopt = "adopt" true,
    /// A key was imported.
    Import = "import" true,
    /// A key got a new head.
    Rotate = "rotate" true,
    /// A key got its next version, which does not sign yet.
    Publish = "publish" true,
    /// The waiting version of a key became its head.
    Activate = "activate" true,
    /// A key's settings were changed.
    Update = "update" true,
    /// An alias was set, moved or deleted; `context` says which, and from which key.
    Alias = "alias" true,
    /// The policy of a key was set or removed; `context` is its SHA-256.
    KeyPolicy = "key_policy" true,
    /// Approvals were asked for; `context` has the id of the request, its operation and its hash.
    ApprovalAsk = "approval_ask" true,
    /// A request was approved; `context` has its id and the approver.
    Approve = "approve" true,
    /// A grant was made; `context` holds its id, its grantee, its operations and its end.
    Grant = "grant" true,
    /// A grant was ended before its time.
    GrantRetire = "grant_retire" true,
    /// A key signs no more.
    Retire = "retire" true,
    /// The destruction of a key was ordered.
    Destroy = "destroy" true,
    /// A pending destruction was cancelled.
    DestroyCancel = "destroy_cancel" true,
    /// A key's secrets were destroyed.
    Destroyed = "destroyed" true,
    /// A key was exported, wrapped.
    Export = "export" false,
    /// A key was backed up with its history, sealed.
    Backup = "backup" false,
    /// A key was made from a backup; `context` names the key that was backed up.
    Restore = "restore" true,
    Sign = "sign" false,
    /// The log itself got a new key; `context` holds the statement that both keys signed.
    RotateLogKey = "rotate_log_key" true,
    Wrap = "wrap" false,
    Unwrap = "unwrap" false,
    /// A ciphertext was encrypted again under the head version.
    Rewrap = "rewrap" false,
    /// A data key was made and wrapped.
    Datakey = "datakey" false,
    /// A MAC was made.
    Hmac = "hmac" false,
    /// A MAC was checked; the result may be `no_match`.
    HmacVerify = "hmac_verify" false,
    /// A secret was derived, and wrapped or used for a MAC; `context` names the key that wrapped it.
    Derive = "derive" false,
    /// Random bytes were drawn.
    Random = "random" false,
    /// A block of nonces was reserved; `context` is the number of uses reserved so far.
    ReserveUses = "reserve_uses" true,
    /// A device attested that it holds a key.
    Attest = "attest" false,
    /// A signed issuer policy came into force; `context` is its version and hash.
    IssuerPolicy = "issuer_policy" true,
}

impl std::str::FromStr for Op {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::from_name(name).ok_or_else(|| "it is no operation of the audit log".to_owned())
    }
}

impl Op {
    /// Whether the answer is kept in the journal under the caller's operation id.
    pub const fn is_remembered(self) -> bool {
        matches!(
            self,
            Self::Sign
                | Self::Wrap
                | Self::Unwrap
                | Self::Rewrap
                | Self::Datakey
                | Self::Hmac
                | Self::HmacVerify
                | Self::Derive
                | Self::Random
        )
    }

    /// The operation of a caller that a key's policy decides about; `None` for what concerns no key, for what the service does by
    /// itself, and where the parties of a grant, a signature or the operation that is asked for decide.
    pub const fn key_op(self) -> Option<KeyOp> {
        Some(match self {
            Self::Create => KeyOp::Create,
            Self::Import | Self::Adopt | Self::Restore => KeyOp::Import,
            Self::Rotate | Self::Publish => KeyOp::Rotate,
            Self::Update => KeyOp::Update,
            Self::Alias => KeyOp::Alias,
            Self::KeyPolicy => KeyOp::Policy,
            Self::Grant => KeyOp::Grant,
            Self::Retire => KeyOp::Retire,
            Self::Destroy => KeyOp::Destroy,
            Self::DestroyCancel => KeyOp::DestroyCancel,
            Self::Export | Self::Backup => KeyOp::Export,
            Self::Sign => KeyOp::Sign,
            Self::Wrap => KeyOp::Wrap,
            Self::Unwrap => KeyOp::Unwrap,
            Self::Rewrap => KeyOp::Rewrap,
            Self::Datakey => KeyOp::Datakey,
            Self::Hmac => KeyOp::Hmac,
            Self::HmacVerify => KeyOp::HmacVerify,
            Self::Derive => KeyOp::Derive,
            Self::Attest => KeyOp::Attest,
            Self::Start
            | Self::Stop
            | Self::PeerLog
            | Self::Reload
            | Self::AcceptDate
            | Self::ForgetAnswers
            | Self::Recover
            | Self::Activate
            | Self::Destroyed
            | Self::RotateLogKey
            | Self::Random
            | Self::ReserveUses
            | Self::IssuerPolicy
            | Self::GrantRetire
            | Self::ApprovalAsk
            | Self::Approve => return None,
        })
    }

    /// The operation as one that may need approvals.
    pub const fn gated(self) -> Option<GatedOp> {
        Some(match self {
            Self::Destroy => GatedOp::Destroy,
            Self::Export => GatedOp::Export,
            Self::Backup => GatedOp::Backup,
            Self::KeyPolicy => GatedOp::KeyPolicy,
            _ => return None,
        })
    }

    /// Whether the operation may make a version of a key. A rotation makes none when a published version waits.
    pub const fn makes_version(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Adopt
                | Self::Import
                | Self::Restore
                | Self::Rotate
                | Self::Publish
        )
    }
}

/// A leaf. **The fields must stand in alphabetical order.** With ASCII names and integers only, `serde_json` then writes
/// the canonical form (RFC 8785) directly; a test compares the two.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Leaf {
    /// Name of the calling principal, or `ron-kms`.
    pub actor: String,
    /// Algorithm of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// Remark of the caller, or what a start or reload is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// SHA-256 of the signed bytes, or of the canonical request body; hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_sha256: Option<String>,
    /// Name of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How many leaves name this key, this one included; absent when there is no such key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_op_counter: Option<u64>,
    pub op: Op,
    /// Operation id, given by the caller or generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<String>,
    /// SHA-256 of the signature, or of the new public key; hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_sha256: Option<String>,
    /// The whole-store version before the operation.
    pub prev_store_version: u64,
    /// Purpose of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// Id of the request; absent where the service acted by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Trace>,
    /// `ok`, or the code of the refusal.
    pub result: String,
    /// Tenant of the key, or of the caller where no key is named.
    pub tenant: String,
    /// Unix milliseconds; never less than the leaf before.
    pub ts: u64,
    /// [`LEAF_VERSION`], or the format in which the leaf was written.
    pub v: u64,
    /// Version of the key that was used or made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// What an operation has to say in its leaf. The log adds the time, the count and the store version when it appends.
/// The store's outbox holds drafts as JSON.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    pub actor: String,
    pub alg: Option<String>,
    pub context: Option<String>,
    pub input_sha256: Option<String>,
    pub key: Option<String>,
    pub op: Op,
    pub op_id: Option<String>,
    pub output_sha256: Option<String>,
    pub purpose: Option<String>,
    /// Shared with the request, so that it costs a signature no allocation.
    pub request_id: Option<Trace>,
    pub result: String,
    pub tenant: String,
    pub version: Option<u32>,
    /// Whether the key exists, so that its operations are counted.
    pub counted: bool,
    /// The whole-store version after the operation, if it changed the store.
    #[serde(skip)]
    pub store_version_after: Option<u64>,
}

/// What the log adds to a draft; the fields are those of [`Leaf`].
pub(super) struct Place {
    pub(super) ts: u64,
    pub(super) key_op_counter: Option<u64>,
    pub(super) prev_store_version: u64,
}

impl Draft {
    /// A draft about no key, of an operation that is done.
    pub fn new(op: Op, actor: &str, tenant: &str) -> Self {
        Self {
            actor: actor.to_owned(),
            alg: None,
            context: None,
            input_sha256: None,
            key: None,
            op,
            op_id: None,
            output_sha256: None,
            purpose: None,
            request_id: None,
            result: OK.to_owned(),
            tenant: tenant.to_owned(),
            version: None,
            counted: false,
            store_version_after: None,
        }
    }

    /// A draft of what a caller does, with the key as far as it is known.
    pub fn of(op: Op, caller: &Principal, kid: Option<&Kid>) -> Self {
        let draft = Self::new(op, &caller.name, caller.tenant.as_str());
        match kid {
            Some(kid) => draft.about(kid),
            None => draft,
        }
    }

    /// A draft about the service itself.
    pub fn service(op: Op, context: &str) -> Self {
        Self {
            context: Some(context.to_owned()),
            ..Self::new(op, "ron-kms", "ron")
        }
    }

    /// Names the key, its algorithm and its purpose.
    pub fn about(self, kid: &Kid) -> Self {
        Self {
            alg: Some(kid.alg.as_str().to_owned()),
            key: Some(kid.to_string()),
            purpose: Some(kid.purpose.to_string()),
            ..self
        }
    }

    /// The draft for the store's outbox.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a draft holds strings and integers only")
    }

    /// Parses a draft of the store's outbox.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        strict::from_slice(json).map_err(|e| format!("not the draft of a leaf: {e}"))
    }

    pub(super) fn at(self, place: Place) -> Leaf {
        Leaf {
            actor: self.actor,
            alg: self.alg,
            context: self.context,
            input_sha256: self.input_sha256,
            key: self.key,
            key_op_counter: place.key_op_counter,
            op: self.op,
            op_id: self.op_id,
            output_sha256: self.output_sha256,
            prev_store_version: place.prev_store_version,
            purpose: self.purpose,
            request_id: self.request_id,
            result: self.result,
            tenant: self.tenant,
            ts: place.ts,
            v: LEAF_VERSION,
            version: self.version,
        }
    }
}

impl Leaf {
    /// The canonical bytes. A leaf that would be too long loses its `context`, which alone has no
    /// fixed bound.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = serde_json::to_vec(self).expect("a leaf holds strings and integers only");
        if bytes.len() <= LEAF_BYTES_MAX || self.context.is_none() {
            return bytes;
        }
        Self {
            context: None,
            ..self.clone()
        }
        .to_bytes()
    }

    /// Parses a leaf; any form but the canonical one is refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let leaf: Self = strict::from_slice(bytes).map_err(|e| format!("not a leaf: {e}"))?;
        if !(1..=LEAF_VERSION).contains(&leaf.v) {
            return Err(format!(
                "the leaf has format {}, this program reads 1 to {LEAF_VERSION}",
                leaf.v
            ));
        }
        if leaf.request_id.is_some() && leaf.v < REQUEST_ID_SINCE {
            return Err(format!("a leaf of format {} has no request id", leaf.v));
        }
        if leaf.to_bytes() != bytes {
            return Err("the leaf is not in canonical form".into());
        }
        Ok(leaf)
    }

    /// The operation, when the journal keeps its answer.
    pub fn answered(&self) -> Option<Answered> {
        let done = self.result == OK || self.result == NO_MATCH;
        let op_id = self
            .op_id
            .as_ref()
            .filter(|_| self.op.is_remembered() && done)?;
        Some(Answered {
            tenant: self.tenant.clone(),
            op_id: op_id.parse().ok()?,
            ts: self.ts,
        })
    }

    /// Whether the leaf records a change of the store: the store version after it is one higher.
    pub fn changed_store(&self) -> bool {
        self.op.changes_store() && self.result == OK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::jcs;

    fn place() -> Place {
        Place {
            ts: 1_700_000_000_123,
            key_op_counter: Some(7),
            prev_store_version: 3,
        }
    }

    fn full() -> Leaf {
        let draft = Draft {
            alg: Some("ed25519".into()),
            context: Some("a \"remark\" \\ with / signs".into()),
            input_sha256: Some("00".repeat(32)),
            key: Some("ron/issuer/ed25519/x".into()),
            op_id: Some("0190".into()),
            output_sha256: Some("11".repeat(32)),
            purpose: Some("issuer".into()),
            request_id: Trace::new("find-me-42"),
            version: Some(2),
            ..Draft::service(Op::Sign, "")
        };
        assert_eq!(Draft::parse(&draft.to_json()).as_ref(), Ok(&draft));
        draft.at(place())
    }

    #[test]
    fn serde_json_writes_the_canonical_form() {
        for leaf in [full(), Draft::service(Op::Start, "x").at(place())] {
            let plain = leaf.to_bytes();
            assert_eq!(plain, jcs::to_vec(&leaf).expect("canonical"));
            assert_eq!(Leaf::parse(&plain).expect("parses"), leaf);
        }
    }

    #[test]
    fn anything_but_the_canonical_form_is_refused() {
        let text = String::from_utf8(full().to_bytes()).expect("utf-8");
        let check = |text: String| assert!(Leaf::parse(text.as_bytes()).is_err(), "{text}");
        check(text.replace("\"v\":2", "\"v\":3"));
        check(text.replace("\"v\":2", "\"v\":0"));
        check(text.replace("\"v\":2", "\"v\": 2"));
        check(text.replace("find-me-42", "find me"));
        check(text.replace("find-me-42", &"x".repeat(65)));
        check(text.replacen('{', "{\"zz\":1,", 1));
        check(text.replacen("{\"actor\":\"ron-kms\",", "{", 1));
        check(format!("{text}\n"));
        check(text.replace("\"ts\":1700000000123", "\"ts\":1700000000123.0"));
    }

    /// A leaf as it was written before leaves had request ids.
    #[test]
    fn leaves_of_format_1_are_read_and_have_no_request_id() {
        let text = String::from_utf8(full().to_bytes()).expect("utf-8");
        let earlier = text.replace("\"request_id\":\"find-me-42\",", "");
        let earlier = earlier.replace("\"v\":2", "\"v\":1");
        let read = Leaf::parse(earlier.as_bytes()).expect("parses");
        assert_eq!((read.v, &read.request_id), (1, &None));
        assert_eq!(read.to_bytes(), earlier.as_bytes());
        let mixed = text.replace("\"v\":2", "\"v\":1");
        let why = Leaf::parse(mixed.as_bytes()).expect_err("format 1 has no such member");
        assert!(why.contains("request id"), "{why}");
    }

    /// The outbox may hold the draft of a change from before drafts had request ids.
    #[test]
    fn a_draft_without_a_request_id_is_read() {
        let text = String::from_utf8(Draft::service(Op::Create, "x").to_json()).expect("utf-8");
        let earlier = text.replace("\"request_id\":null,", "");
        assert_ne!(earlier, text);
        let read = Draft::parse(earlier.as_bytes());
        assert_eq!(read, Ok(Draft::service(Op::Create, "x")));
    }

    #[test]
    fn a_leaf_stays_under_its_limit() {
        let leaf = Leaf {
            context: Some("x".repeat(LEAF_BYTES_MAX)),
            ..full()
        };
        assert!(leaf.to_bytes().len() <= LEAF_BYTES_MAX);
    }
}
