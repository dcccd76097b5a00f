//! Problem codes of the rewarder, beside those that every service shares.

use ron_proto::problem::{Problem, ProblemKind};
use ron_proto::rewarder::{RunReason, RunRelease};
use ron_proto::values::{ContentId, EpochId};
use serde_json::{Value, json};

use crate::inputs::import::ImportError;
use crate::inputs::policy::PolicyRefused;
use crate::library::LibraryError;

const fn kind(
    code: &'static str,
    status: u16,
    title: &'static str,
    meaning: &'static str,
) -> ProblemKind {
    ProblemKind {
        code,
        status,
        title,
        retryable: false,
        meaning,
    }
}

const EPOCH_CONFLICT: ProblemKind = kind(
    "epoch_conflict",
    409,
    "The epoch is bound to other inputs",
    "An epoch has one manifest for ever. Request the inputs it was computed from, or use another epoch.",
);
const USAGE_PAID: ProblemKind = kind(
    "usage_paid",
    409,
    "Another epoch paid this usage",
    "A policy pays a snapshot once, whatever the epoch is called, and an epoch is corrected once; the detail names the epoch that paid or corrects. A further correction names that epoch in `adjusts`.",
);
const EPOCH_VOID: ProblemKind = kind(
    "epoch_void",
    409,
    "The manifest was withdrawn",
    "These inputs give the manifest that was withdrawn, which never pays. Compute the epoch from other inputs.",
);
const EPOCH_OPENED: ProblemKind = kind(
    "epoch_opened",
    409,
    "The epoch is opened in the ledger",
    "Its payouts are made with this manifest, which can no longer be withdrawn. A new epoch that names it in `adjusts` corrects it.",
);
const OTHER_MANIFEST: ProblemKind = kind(
    "other_manifest",
    409,
    "The run has another manifest",
    "The commitment in the request is not that of the epoch's run now; details.commitment has that one. Look at the run, then decide again.",
);
const APPROVALS_MISSING: ProblemKind = kind(
    "approvals_missing",
    409,
    "The manifest is not approved",
    "Principals other than the one that asked for the epoch have to approve its manifest; details.release has how many, and why.",
);
const OWN_RUN: ProblemKind = kind(
    "own_run",
    403,
    "The caller asked for this run",
    "The principal that asked for an epoch does not approve it; another principal has to.",
);
const NEVER_PAYS: ProblemKind = kind(
    "never_pays",
    409,
    "The epoch has no recipients",
    "An epoch without recipients never pays. Withdraw it, and compute it from other inputs.",
);
const NOT_SETTLED: ProblemKind = kind(
    "not_settled",
    409,
    "The epoch to correct is not paid",
    "A correction pays the differences to what was paid, so it needs the settled run of the epoch that it `adjusts`. Settle that first; if the rewarder has lost the run, compute the epoch again from its inputs, which pays nothing twice.",
);
const QUARANTINED: ProblemKind = kind(
    "quarantined",
    409,
    "The run is quarantined",
    "An invariant broke or a value overflowed; nothing is paid. Compute again with other inputs.",
);
const RUN_FAILED: ProblemKind = kind(
    "run_failed",
    409,
    "The run failed",
    "The detail says why; the run paid nothing. Fix the cause, then send the request again.",
);
const BAD_SNAPSHOT: ProblemKind = kind(
    "bad_snapshot",
    400,
    "The usage data is refused",
    "A row or record breaks a rule; the detail names its line. Nothing was stored.",
);
const TOO_MANY_ROWS: ProblemKind = kind(
    "too_many_rows",
    413,
    "Too many rows",
    "The upload has more rows than limits.max_rows; nothing was stored. Split it, or have the limit raised.",
);
const CID_MISMATCH: ProblemKind = kind(
    "cid_mismatch",
    422,
    "The content has another id",
    "The sealed form of the body does not have the id in the path; details.actual has the right one.",
);
const POLICY_REFUSED: ProblemKind = kind(
    "policy_refused",
    422,
    "The policy is refused",
    "It is unsigned, altered, signed by a key that is not trusted, or not runnable; the detail says which.",
);
const POLICY_CONFLICT: ProblemKind = kind(
    "policy_conflict",
    409,
    "The policy version is taken",
    "Versions only grow, and a version never changes its content. Use the next one.",
);
const POLICY_MISMATCH: ProblemKind = kind(
    "policy_mismatch",
    422,
    "Policy and snapshot do not fit",
    "The policy must name every metric of the snapshot; weight 0 is allowed.",
);
const INPUT_REFUSED: ProblemKind = kind(
    "input_refused",
    409,
    "A stored input is damaged",
    "The file on disk is not what was stored. Upload it again.",
);

/// 409: the epoch is bound to other inputs than the request names.
/// `bound_to` describes the run that the epoch is bound to.
pub fn epoch_conflict(bound_to: Value) -> Problem {
    let detail = "this epoch is bound to another snapshot or policy";
    Problem::of(&EPOCH_CONFLICT, detail).with_details(bound_to)
}

/// 409: another epoch has paid the same usage.
pub fn usage_paid(paid_by: &EpochId) -> Problem {
    Problem::of(&USAGE_PAID, usage_paid_detail(paid_by)).with_details(json!({ "paid_by": paid_by }))
}

/// 409: an epoch that is to be corrected has not been paid.
pub fn not_settled(epoch: &EpochId) -> Problem {
    Problem::of(
        &NOT_SETTLED,
        format!("epoch {epoch} is to be corrected, and there is no settled run of it"),
    )
}

/// 409: these inputs give a manifest that was withdrawn.
pub fn withdrawn() -> Problem {
    Problem::of(&EPOCH_VOID, WITHDRAWN)
}

/// Detail of `epoch_void`, both as a problem and as the reason of a failed run.
pub const WITHDRAWN: &str = "the manifest that these inputs give was withdrawn and never pays; compute the epoch from other inputs";

/// 409: too late to withdraw.
pub fn epoch_opened() -> Problem {
    let detail = "the ledger has opened the epoch with this manifest, and its payouts are made";
    Problem::of(&EPOCH_OPENED, detail)
}

/// 409: the request names another manifest than the run's.
pub fn other_manifest(of_run: &ContentId) -> Problem {
    let detail = "the request names another manifest than the run of this epoch has";
    Problem::of(&OTHER_MANIFEST, detail).with_details(json!({ "commitment": of_run }))
}

/// 409: it pays only once it is approved.
pub fn approvals_missing(release: &RunRelease) -> Problem {
    let detail = format!(
        "the manifest has {} of {} approvals that it needs before it pays",
        release.approvals.len(),
        release.needed
    );
    if release.never_pays() {
        return never_pays();
    }
    Problem::of(&APPROVALS_MISSING, detail).with_details(json!({ "release": release }))
}

/// 403: nobody approves its own run.
pub fn own_run(by: &str) -> Problem {
    let detail = format!("{by} asked for this run; another principal has to approve it");
    Problem::of(&OWN_RUN, detail)
}

/// 409: there is nobody to pay.
pub fn never_pays() -> Problem {
    let detail = "the epoch has no recipients and never pays; withdraw it, then compute it from other inputs";
    Problem::of(&NEVER_PAYS, detail)
}

/// Detail of `usage_paid`, both as a problem and as the reason of a failed run.
pub fn usage_paid_detail(paid_by: &EpochId) -> String {
    format!(
        "epoch {paid_by} paid this snapshot by this policy, or corrects the same epoch. Usage of another period needs a snapshot that names that period; \
         a correction of {paid_by} names it in adjusts"
    )
}

/// 409: the run broke an invariant and will not be paid.
pub fn quarantined(reason: Option<&RunReason>) -> Problem {
    Problem::of(&QUARANTINED, detail(reason))
}

/// 409: the run failed. Refusals that the ledger repeats for ever keep their own code; the others
/// say whether a retry can help.
pub fn failed(reason: Option<&RunReason>) -> Problem {
    match reason.map(|reason| reason.code.as_str()) {
        Some("epoch_conflict") => Problem::of(&EPOCH_CONFLICT, detail(reason)),
        Some("usage_paid") => Problem::of(&USAGE_PAID, detail(reason)),
        Some("epoch_void") => Problem::of(&EPOCH_VOID, detail(reason)),
        code => {
            let again = matches!(
                code,
                Some("busy" | "deadline_exceeded" | "io" | "source_unavailable")
            );
            let problem = Problem::of(&RUN_FAILED, detail(reason)).retryable(again);
            problem.with_details(json!({ "reason": code }))
        }
    }
}

fn detail(reason: Option<&RunReason>) -> String {
    reason.map_or_else(
        || "no reason was recorded".to_owned(),
        |reason| reason.detail.clone(),
    )
}

/// An import, or an upload in the canonical form, was refused.
pub fn bad_snapshot(error: &ImportError) -> Problem {
    let problem = Problem::of(&BAD_SNAPSHOT, error.to_string());
    match error {
        ImportError::TooMany { rows_max } => Problem::of(&TOO_MANY_ROWS, error.to_string())
            .with_details(json!({ "rows_max": rows_max })),
        ImportError::Line { line, .. } => problem.with_details(json!({ "line": line })),
        ImportError::Row { row, .. } => problem.with_details(json!({ "row": row })),
        _ => problem,
    }
}

/// 422: the content id in the path is not that of the body's sealed form.
pub fn cid_mismatch(actual: &ContentId) -> Problem {
    let detail = "the sealed form of this body has another content id; details.actual has it";
    Problem::of(&CID_MISMATCH, detail).with_details(json!({ "actual": actual }))
}

/// 422: an uploaded policy was refused.
pub fn policy_refused(error: &PolicyRefused) -> Problem {
    Problem::of(&POLICY_REFUSED, format!("the policy is refused: {error}"))
}

/// 422: the policy does not cover the snapshot.
pub fn policy_mismatch(why: String) -> Problem {
    Problem::of(&POLICY_MISMATCH, why)
}

/// The library has no such input, or the stored file is damaged; `policy` chooses the problem code.
pub fn library(error: &LibraryError, policy: bool) -> Problem {
    let detail = error.to_string();
    match error {
        LibraryError::Missing(_) => Problem::not_found(detail),
        LibraryError::Conflict(_) => Problem::of(&POLICY_CONFLICT, detail),
        LibraryError::Refused(_) if policy => Problem::of(&POLICY_REFUSED, detail),
        LibraryError::Refused(_) => Problem::of(&INPUT_REFUSED, detail),
        LibraryError::Io(_) => {
            tracing::error!(event = "library_io", reason = %detail, "the library's disk failed");
            Problem::unavailable("the library's disk cannot be used", 5)
        }
    }
}
