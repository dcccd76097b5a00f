//! Causes of refusals and failures: one closed list, with the code of each.

/// The result of an operation that was done, in leaves and metrics.
pub const OK: &str = "ok";
/// The result of a check whose MAC or signature does not match its message: done, not refused.
pub const NO_MATCH: &str = "no_match";

/// Every cause of a refusal or failure. One cause has one code, on the wire and as the `result`
/// of the audit leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The request is malformed or breaks a rule of its format.
    BadRequest,
    /// A message or field exceeds its size limit.
    TooLarge,
    /// An algorithm, mode or property no backend offers.
    Unsupported,
    /// The key belongs to another tenant, or the caller is limited to other keys.
    Forbidden,
    /// No such key or version.
    NotFound,
    /// The key's payload policy does not allow these bytes.
    PayloadRefused,
    /// A checkpoint that shrinks its log or contradicts an earlier one.
    CheckpointRefused,
    /// The ciphertext does not decrypt or authenticate.
    CiphertextRefused,
    /// The version has reached `nonces.cap`.
    UsesExhausted,
    /// The pinned version is not the head.
    VersionNotHead,
    /// `expected_head` is not the head.
    StaleHead,
    /// The key is retired, pending destruction or destroyed.
    KeyNotActive,
    /// The key is not exportable, or not in the requested form.
    ExportForbidden,
    /// The wrapped key of an import does not decrypt.
    WrappedRefused,
    /// The op_id was used before with another body.
    OpIdMismatch,
    /// The operation with this op_id is still running.
    InFlight,
    /// A bounded queue is full.
    Busy,
    /// The audit log cannot take leaves, so nothing may be signed or changed.
    AuditUnavailable,
    /// The key store cannot be written, or the device that holds the key is unavailable.
    StoreUnavailable,
    /// The configuration requires a recent attestation of where the key is held, and there is none.
    AttestationMissing,
    /// The deadline passed before work on the job began.
    DeadlineExceeded,
    /// The service is stopping.
    Draining,
    /// A defect of this program.
    Internal,
}

impl Cause {
    /// All causes, in the order of the documentation.
    pub const ALL: [Self; 23] = [
        Self::BadRequest,
        Self::TooLarge,
        Self::Unsupported,
        Self::Forbidden,
        Self::NotFound,
        Self::PayloadRefused,
        Self::CheckpointRefused,
        Self::CiphertextRefused,
        Self::UsesExhausted,
        Self::VersionNotHead,
        Self::StaleHead,
        Self::KeyNotActive,
        Self::ExportForbidden,
        Self::WrappedRefused,
        Self::OpIdMismatch,
        Self::InFlight,
        Self::Busy,
        Self::AuditUnavailable,
        Self::StoreUnavailable,
        Self::AttestationMissing,
        Self::DeadlineExceeded,
        Self::Draining,
        Self::Internal,
    ];

    /// The machine-readable code; it never changes for a cause.
    pub const fn code(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::TooLarge => "too_large",
            Self::Unsupported => "unsupported",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::PayloadRefused => "payload_refused",
            Self::CheckpointRefused => "checkpoint_refused",
            Self::CiphertextRefused => "ciphertext_refused",
            Self::UsesExhausted => "uses_exhausted",
            Self::VersionNotHead => "version_not_head",
            Self::StaleHead => "stale_head",
            Self::KeyNotActive => "key_not_active",
            Self::ExportForbidden => "export_forbidden",
            Self::WrappedRefused => "wrapped_key_refused",
            Self::OpIdMismatch => "idempotency_mismatch",
            Self::InFlight => "in_flight",
            Self::Busy => "busy",
            Self::AuditUnavailable => "audit_unavailable",
            Self::StoreUnavailable => "store_unavailable",
            Self::AttestationMissing => "attestation_missing",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Draining => "draining",
            Self::Internal => "internal",
        }
    }
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

    /// The audit log is closed for writing.
    pub fn audit_down() -> Self {
        let detail = "the audit log cannot be written, so nothing is signed or changed; \
                      verification still works. See /readyz.";
        Self {
            retry_after_s: 5,
            ..Self::new(Cause::AuditUnavailable, detail)
        }
    }
}
