/** Offline verification: of payments, audit entries and payouts. Needs no service and no network. */
export { VerificationError } from "../errors.js";
export { type AuditEntry, recordsSignature, verifyAudit } from "./audit.js";
export { type Checkpoint, Policy } from "./checkpoint.js";
export { type AlsoPaid, type Claims, type Correction, type Manifest, type Payout, type PayoutsRoot, verifyManifest, verifyPayout } from "./manifest.js";
export { Note, type VerifierKey, parseVkey } from "./note.js";
export { type ProvenReceipt, type Shown, verifyReceipt } from "./receipt.js";
export { TlogProof } from "./tlog.js";
