/** Entries of the audit log of ron-kms. */
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { VerificationError } from "../errors.js";
import type { Checkpoint, Policy } from "./checkpoint.js";
import { Members, canonicalObject, concat } from "./encoding.js";
import { TlogProof } from "./tlog.js";

/** The newest format, and the first in which an entry may have a request id. */
const VERSION = 2;
const REQUEST_ID_SINCE = 2;

/** An operation of the key service, done or refused, and the checkpoint that proves it. */
export interface AuditEntry {
  readonly index: bigint;
  readonly checkpoint: Checkpoint;
  readonly op: string;
  /** `ok`, or the code of the refusal. */
  readonly result: string;
  readonly actor: string;
  readonly tenant: string;
  /** Unix milliseconds. */
  readonly ts: number;
  readonly key: string | undefined;
  readonly version: number | undefined;
  readonly alg: string | undefined;
  readonly purpose: string | undefined;
  readonly context: string | undefined;
  readonly opId: string | undefined;
  readonly inputSha256: string | undefined;
  readonly outputSha256: string | undefined;
  readonly keyOpCounter: number | undefined;
  readonly prevStoreVersion: number;
  /** The id of the request, as the client sent it in `X-Request-Id` or the service made it. */
  readonly requestId: string | undefined;
}

/** Checks an audit entry, byte for byte, with its proof; returns what it says. */
export function verifyAudit(entry: Uint8Array, proof: string, policy: Policy): AuditEntry {
  const parsed = TlogProof.parse(proof);
  const checkpoint = parsed.check(entry, policy);
  const leaf = new Members(canonicalObject(entry, "the audit entry"), "the audit entry");
  const version = leaf.whole("v");
  if (version < 1 || version > VERSION) {
    throw new VerificationError("the audit entry has a format that this version of the package does not know");
  }
  const found = {
    index: parsed.index,
    checkpoint,
    op: leaf.text("op"),
    result: leaf.text("result"),
    actor: leaf.text("actor"),
    tenant: leaf.text("tenant"),
    ts: leaf.whole("ts"),
    key: leaf.optionalText("key"),
    version: leaf.optionalWhole("version"),
    alg: leaf.optionalText("alg"),
    purpose: leaf.optionalText("purpose"),
    context: leaf.optionalText("context"),
    opId: leaf.optionalText("op_id"),
    inputSha256: leaf.optionalText("input_sha256"),
    outputSha256: leaf.optionalText("output_sha256"),
    keyOpCounter: leaf.optionalWhole("key_op_counter"),
    prevStoreVersion: leaf.whole("prev_store_version"),
    requestId: version >= REQUEST_ID_SINCE ? leaf.optionalText("request_id") : undefined,
  };
  leaf.end();
  return found;
}

/** Whether an entry is that of these signatures over this message (of a key that signs messages as they are). */
export function recordsSignature(entry: AuditEntry, message: Uint8Array, signatures: readonly Uint8Array[]): boolean {
  return (
    entry.op === "sign" &&
    entry.result === "ok" &&
    entry.inputSha256 === bytesToHex(sha256(message)) &&
    entry.outputSha256 === bytesToHex(sha256(concat(...signatures)))
  );
}
