//! Causes of refusals and failures: one closed list, with the code of each.

use ron_files::NoRoom;
use ron_kernel::ClockAlarm;

/// The result of an operation that was done, in leaves and metrics.
pub const OK: &str = "ok";
/// The result of a check whose MAC or signature does not match its message: done, not refused.
pub const NO_MATCH: &str = "no_match";

macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $code:literal,)*) => {
        /// Every cause of a refusal or failure. One cause has one code, on the wire and as the `result`
        /// of the audit leaf.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Cause {
            $($(#[$doc])* $cause,)*
        }

        impl Cause {
            /// All causes, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$cause),*];

            /// The machine-readable code; it never changes for a cause.
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$cause => $code,)*
                }
            }
        }
    };
}

causes! {
    /// The request is malformed or breaks a rule of its format.
    BadRequest = "bad_request",
    /// A message or field exceeds its size limit.
    TooLarge = "too_large",
    /// An algorithm, mode or property no backend offers.
    Unsupported = "unsupported",
    /// The key belongs to another tenant, or the caller is limited to other keys.
    Forbidden = "forbidden",
    /// The operation needs approvals that are missing.
    ApprovalMissing = "approval_missing",
    /// An approval that does not count.
    ApprovalRefused = "approval_refused",
    /// The key's policy, or that no grant covers it.
    KeyPolicyDenied = "key_policy_denied",
    /// No such key or version.
    NotFound = "not_found",
    /// The key's payload policy does not allow these bytes.
    PayloadRefused = "payload_refused",
    /// A policy that is not signed by a pinned key, not canonical, or older than one that was in force.
    PolicyRefused = "policy_refused",
    /// A checkpoint that shrinks its log or contradicts an earlier one.
    CheckpointRefused = "checkpoint_refused",
    /// The ciphertext does not decrypt or authenticate.
    CiphertextRefused = "ciphertext_refused",
    /// The version has reached `nonces.cap`.
    UsesExhausted = "uses_exhausted",
    /// The pinned version is not the head.
    VersionNotHead = "version_not_head",
    /// `expected_head` is not the head.
    StaleHead = "stale_head",
    /// The alias names another key than the caller expects.
    StaleAlias = "stale_alias",
    /// The key is retired, pending destruction or destroyed.
    KeyNotActive = "key_not_active",
    /// The key is not exportable, or not in the requested form.
    ExportForbidden = "export_forbidden",
    /// The wrapped key of an import does not decrypt.
    WrappedRefused = "wrapped_key_refused",
    /// The op_id was used before with another body.
    OpIdMismatch = "idempotency_mismatch",
    /// The operation with this op_id is still running.
    InFlight = "in_flight",
    /// Remembered answers are damaged or missing, so no new op_id is taken.
    AnswersLost = "answers_lost",
    /// A bounded queue is full.
    Busy = "busy",
    /// The audit log cannot take leaves, so nothing may be signed or changed.
    AuditUnavailable = "audit_unavailable",
    /// The audit log is not what was written to it, so nothing may be signed or changed.
    AuditTampered = "audit_tampered",
    /// The key store cannot be written, or the device that holds the key is unavailable.
    StoreUnavailable = "store_unavailable",
    /// The stored record of the version, or the metadata of the key, is damaged.
    Quarantined = "quarantined",
    /// The device that holds the key no longer has it.
    KeyMissing = "key_missing",
    /// The configuration requires a recent attestation of where the key is held, and there is none.
    AttestationMissing = "attestation_missing",
    /// The deadline passed before work on the job began.
    DeadlineExceeded = "deadline_exceeded",
    /// The service is stopping.
    Draining = "draining",
    /// A defect of this program.
    Internal = "internal",
}

/// A refusal and what the caller can do about it. Holds no input bytes and no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", cause.code())]
pub struct Refusal {
    pub cause: Cause,
    /// What happened, and what would work instead.
    pub detail: String,
    /// The head version, for causes where the caller needs it to retry.
    pub head: Option<u32>,
    /// Seconds to wait before a retry; used only by causes that pass with time.
    pub retry_after_s: u32,
}

impl Refusal {
    /// A refusal for `cause`; `detail` must hold no input.
    pub fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self {
            cause,
            detail: detail.into(),
            head: None,
            retry_after_s: 1,
        }
    }

    /// Adds the present head version.
    pub fn with_head(mut self, head: u32) -> Self {
        self.head = Some(head);
        self
    }

    /// A queue is full; `retry_after_s` from its drain rate.
    pub fn busy(retry_after_s: u32) -> Self {
        let detail = "a queue is full; nothing was done";
        Self {
            retry_after_s,
            ..Self::new(Cause::Busy, detail)
        }
    }

    /// The record of this version is damaged.
    pub fn quarantined(key: &impl std::fmt::Display, version: u32) -> Self {
        let detail = format!(
            "the stored record of {key}#v{version} is damaged: the version verifies, and does nothing else until the key store \
             is restored from a backup; a rotation makes a new version"
        );
        Self::new(Cause::Quarantined, detail)
    }

    /// The stored metadata of the key is damaged.
    pub fn quarantined_key(key: &impl std::fmt::Display) -> Self {
        let detail = format!(
            "the stored metadata of {key} is damaged: the key is out of use until the key store is restored from a backup"
        );
        Self::new(Cause::Quarantined, detail)
    }

    /// The audit log is closed for writing.
    pub fn audit_down() -> Self {
        let detail = "the audit log cannot be written, so nothing is signed or changed; \
                      verification still works. See /readyz.";
        Self {
            retry_after_s: 5,
            ..Self::new(Cause::AuditUnavailable, detail)
        }
    }

    /// The disk has too little room for leaves; nothing was signed or changed.
    pub fn no_room(full: &NoRoom) -> Self {
        Self {
            retry_after_s: 5,
            ..Self::new(Cause::AuditUnavailable, full.to_string())
        }
    }

    /// The audit log differs from what was written: no retry helps.
    pub fn audit_tampered() -> Self {
        let detail = "the audit log differs from what was written to it, so nothing is signed or changed until it is \
                      restored; verification still works. See /readyz.";
        Self::new(Cause::AuditTampered, detail)
    }

    /// The date is not known, so no leaf can say when it was written.
    pub fn date_unknown(alarm: &ClockAlarm) -> Self {
        let detail = format!("{alarm}; {}", ClockAlarm::HINT);
        Self {
            retry_after_s: 5,
            ..Self::new(Cause::AuditUnavailable, detail)
        }
    }
}
